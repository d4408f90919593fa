"""``--extractor torchvision:NAME[:node]`` against torchvision's transform and model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models import MobileNet_V3_Small_Weights, ResNet18_Weights
from torchvision.models._api import Weights
from torchvision.models.feature_extraction import create_feature_extractor

from support.command_line import Run
from support.http_store import http_store
from support.published_networks import (
    built,
    distance,
    features,
    make_place,
    make_resnet,
    randomised,
    refused_extractor,
)

TRANSFORM = ResNet18_Weights.DEFAULT.transforms()


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return make_resnet()


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path, resnet: nn.Module) -> Path:
    return make_place(tmp_path, resnet)


def test_features_are_the_input_of_the_classifier(here: Run, place: Path, resnet: nn.Module) -> None:
    arguments = ("--extractor", "torchvision:resnet18", "--weights", "resnet18.pth", "--json", "--quiet")
    outcome = here("compute", "real", "fake", *arguments)
    assert outcome.status == 0, outcome.stderr
    body = nn.Sequential(*list(resnet.children())[:-1], nn.Flatten())
    expected = distance(*(features(place / name, TRANSFORM, body) for name in ("real", "fake")))
    assert outcome.fid == pytest.approx(expected, rel=1e-5)
    protocol = outcome.json["protocol"]
    assert protocol["extractor"] == "torchvision:resnet18"
    assert protocol["resize"] == "pillow-bilinear, shorter edge 256, centre 224"
    assert (protocol["dims"], protocol["input_size"], protocol["ddof"]) == (512, 224, 1)
    assert protocol["normalization"] == "(x/255-[0.485, 0.456, 0.406])/[0.229, 0.224, 0.225]"


def test_a_node_is_averaged_over_positions(here: Run, place: Path, resnet: nn.Module) -> None:
    arguments = ("--extractor", "torchvision:resnet18:layer2", "--weights", "resnet18.pth", "--json", "--quiet")
    outcome = here("compute", "real", "fake", *arguments)
    assert outcome.status == 0, outcome.stderr
    graph = create_feature_extractor(resnet, {"layer2": "x"})
    sets = (features(place / name, TRANSFORM, lambda x: graph(x)["x"].mean((2, 3))) for name in ("real", "fake"))
    assert outcome.fid == pytest.approx(distance(*sets), rel=1e-5)
    assert outcome.json["protocol"]["dims"] == 128


def test_a_network_with_different_classes(here: Run, place: Path) -> None:
    """A fine-tuned network: only its classifier differs in shape, and it is not used."""
    tuned = randomised(torchvision.models.mobilenet_v3_small(weights=None, num_classes=7), gain=2.4)
    torch.save({"state_dict": tuned.state_dict()}, place / "tuned.pth")
    arguments = ("--extractor", "torchvision:mobilenet_v3_small", "--weights", "tuned.pth", "--json", "--quiet")
    outcome = here("compute", "real", "fake", *arguments)
    assert outcome.status == 0, outcome.stderr
    assert outcome.json["protocol"]["dims"] == 1024
    tuned.classifier[3] = nn.Identity()  # type: ignore[operator, index]
    transform = MobileNet_V3_Small_Weights.DEFAULT.transforms()
    expected = distance(*(features(place / name, transform, tuned) for name in ("real", "fake")))
    assert outcome.fid == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def server(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server for the weights instead of torchvision's, and an empty torch.hub folder."""
    (place / "www").mkdir()
    monkeypatch.setenv("TORCH_HOME", str(place / "torch-home"))
    with http_store(place / "www") as store:
        yield store.url


def serve(place: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish the weights under a name with the start of their SHA-256, which torchvision verifies."""
    import hashlib

    data = (place / "resnet18.pth").read_bytes()
    name = f"resnet18-{hashlib.sha256(data).hexdigest()[:8]}.pth"
    (place / "www" / name).write_bytes(data)
    published = ResNet18_Weights.IMAGENET1K_V1.value
    moved = Weights(f"{address}{name}", published.transforms, published.meta)
    monkeypatch.setattr(ResNet18_Weights.IMAGENET1K_V1, "_value_", moved)


@pytest.mark.slow
def test_download(here: Run, place: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(place, server, monkeypatch)
    arguments = ("compute", "real", "fake", "--extractor", "torchvision:resnet18", "--json")
    downloaded = here(*arguments)
    assert downloaded.status == 0, downloaded.stderr
    assert f"getting the weights of torchvision:resnet18: {server}" in downloaded.stderr
    local = here(*arguments, "--weights", "resnet18.pth")
    assert downloaded.fid == local.fid
    assert downloaded.json["protocol"] == local.json["protocol"]


def test_a_failed_download(here: Run, place: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(place, server, monkeypatch)
    next((place / "www").iterdir()).unlink()
    outcome = here("compute", "real", "fake", "--extractor", "torchvision:resnet18", "--quiet")
    assert outcome.status == 1
    for text in (server, "Not Found", "--weights FILE", "TORCH_HOME", "fidtool[offline]"):
        assert text in outcome.error


@pytest.mark.parametrize(
    ("spec", "weights", "texts"),
    [
        ("torchvision:resnet19", None, ["no model 'resnet19'", "did you mean", "resnet18"]),
        ("torchvision:resnet18", "V7", ["--weights V7 is neither a file nor one of the weights of resnet18"]),
        ("torchvision:resnet18:layer9", "resnet18.pth", ["no node 'layer9'", "did you mean", "layer4"]),
        ("torchvision:resnet34", "resnet18.pth", ["resnet18.pth does not contain the weights of torchvision:resnet34"]),
        ("torchvision:squeezenet1_1", "squeeze.pth", ["no Linear layer", "name a node"]),
        ("torchvision:fcn_resnet50", "resnet18.pth", ["not an image classifier", "SemanticSegmentation"]),
        ("torchvision:quantized_resnet18", "resnet18.pth", ["8 bits", "use resnet18"]),
        ("torchvision:resnet18", "own.pth", ["own.pth does not contain a state_dict"]),
    ],
)
def test_mistakes_are_reported(here: Run, place: Path, spec: str, weights: str | None, texts: list[str]) -> None:
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), place / "squeeze.pth")
    torch.save([1, 2], place / "own.pth")
    refused_extractor(here, spec, weights, texts)


@pytest.mark.parametrize("name", ["googlenet", "inception_v3", "vit_b_16", "densenet121"])
def test_models_that_torchvision_builds_differently_for_its_weights(name: str) -> None:
    """The architecture must be the same, so that the published weights fit and get the input they were trained with."""
    from fidtool.features.models.torchvision import _architecture

    entry = torchvision.models.get_model_weights(name).DEFAULT
    arguments = {"aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    with torch.device("meta"):
        ours = _architecture(name, entry.transforms().crop_size[0])
        if name in ("googlenet", "inception_v3"):
            assert ours.transform_input
        theirs = torchvision.models.get_model(name, weights=None, **arguments)
    assert {key: value.shape for key, value in ours.state_dict().items()} == {
        key: value.shape for key, value in theirs.state_dict().items()
    }


def test_a_published_file_selects_its_transform(place: Path) -> None:
    """The two entries of the model use different sizes; a file is recognised by its name."""
    from torchvision.models import RegNet_X_400MF_Weights

    state = torchvision.models.regnet_x_400mf(weights=None).state_dict()
    for entry in RegNet_X_400MF_Weights:
        file = place / Path(entry.url).name
        torch.save(state, file)
        resize = built("torchvision:regnet_x_400mf", file).definition.resize
        assert f"shorter edge {entry.transforms().resize_size[0]}," in resize
    edges = [entry.transforms().resize_size[0] for entry in RegNet_X_400MF_Weights]
    assert len(set(edges)) == 2


def test_the_transform_for_an_unknown_file_name_is_recorded(here: Run, place: Path) -> None:
    torch.save(torchvision.models.regnet_x_400mf(weights=None).state_dict(), place / "own.pth")
    arguments = ("--extractor", "torchvision:regnet_x_400mf", "--weights", "own.pth", "--feature-step", 20)
    outcome = here("compute", "real", "fake", *arguments, "--json", "--quiet")
    assert outcome.status == 0, outcome.stderr
    said = [warning["message"] for warning in outcome.json["run"]["warnings"]]
    (said,) = [line for line in said if "images are prepared as for IMAGENET1K_V2" in line]
    assert said in outcome.stderr
