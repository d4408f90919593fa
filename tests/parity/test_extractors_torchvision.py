"""The guide's network of torchvision, a custom network in a file, against torchvision's transform
and model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models import ResNet18_Weights, get_model, get_model_weights
from torchvision.models.feature_extraction import create_feature_extractor

from support.command_line import Run
from support.pages import PAGES, programs
from support.published_networks import distance, features, make_sets, randomised

(PROGRAM,) = [
    content for text in PAGES.values() for name, content in programs(text) if name == "my_resnet.py"
]
CUSTOM = ("--extractor", "my_resnet.py:network", "--json", "--quiet")


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two sets, which is also that of torch.hub."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    make_sets(tmp_path)
    return tmp_path


def published(place: Path, name: str, gain: float = 1.0) -> nn.Module:
    """Return a model with random weights, which are in the file of the published ones."""
    model = randomised(get_model(name, weights=None), gain)
    file = Path(get_model_weights(name).DEFAULT.url).name
    torch.save(model.state_dict(), place / "hub" / "checkpoints" / file)
    return model


def test_features_are_the_input_of_the_classifier(here: Run, place: Path) -> None:
    (place / "my_resnet.py").write_text(PROGRAM.replace("resnet50", "resnet18"))
    resnet = published(place, "resnet18")
    outcome = here("compute", "real", "fake", *CUSTOM)
    assert outcome.status == 0, outcome.stderr
    body = nn.Sequential(*list(resnet.children())[:-1], nn.Flatten())
    transform = ResNet18_Weights.DEFAULT.transforms()
    expected = distance(*(features(place / name, transform, body) for name in ("real", "fake")))
    assert outcome.fid == pytest.approx(expected, rel=1e-5)
    protocol = outcome.json["protocol"]
    assert protocol["resize"] == "pillow-bilinear, shorter edge 256, centre 224"
    assert (protocol["dims"], protocol["input_size"], protocol["ddof"]) == (512, 224, 1)
    assert protocol["normalization"] == "(x/255-[0.485, 0.456, 0.406])/[0.229, 0.224, 0.225]"


def test_a_map_of_features_is_averaged_over_positions(here: Run, place: Path) -> None:
    """As the guide says of the map of layer3."""
    text = PROGRAM.replace("resnet50", "resnet18").replace(
        "model.fc = ", "model.layer4 = model.fc = "
    )
    (place / "my_resnet.py").write_text(text)
    graph = create_feature_extractor(published(place, "resnet18"), {"layer3": "x"})
    outcome = here("compute", "real", "fake", *CUSTOM)
    assert outcome.status == 0, outcome.stderr
    transform = ResNet18_Weights.DEFAULT.transforms()
    sets = (
        features(place / name, transform, lambda x: graph(x)["x"].mean((2, 3)))
        for name in ("real", "fake")
    )
    assert outcome.fid == pytest.approx(distance(*sets), rel=1e-5)
    assert outcome.json["protocol"]["dims"] == 256


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("mobilenet_v3_small", "classifier[-1]"),
        pytest.param("vit_b_32", "heads.head", marks=pytest.mark.slow),
    ],
)
def test_other_models(here: Run, place: Path, name: str, classifier: str) -> None:
    """As the guide says of their classifiers."""
    text = PROGRAM.replace("resnet50", name).replace("model.fc", f"model.{classifier}")
    (place / "my_resnet.py").write_text(text)
    model = published(place, name, 2.4 if name == "mobilenet_v3_small" else 1.0)
    outcome = here("compute", "real", "fake", *CUSTOM)
    assert outcome.status == 0, outcome.stderr
    replaced = model.get_submodule(classifier.partition("[")[0].partition(".")[0])
    replaced[-1] = nn.Identity()  # type: ignore[index, operator]
    transform = get_model_weights(name).DEFAULT.transforms()
    expected = distance(*(features(place / each, transform, model) for each in ("real", "fake")))
    assert outcome.fid == pytest.approx(expected, rel=1e-5)


def test_timm_has_the_same_network(here: Run, place: Path) -> None:
    """As the guide says of torchvision's first weights in timm."""
    pytest.importorskip("timm", reason="needs timm, from the extra 'test'")
    (place / "my_resnet.py").write_text(PROGRAM.replace("resnet50", "resnet18"))
    torch.save(published(place, "resnet18").state_dict(), "saved.pth")
    own = here("compute", "real", "fake", *CUSTOM, "--feature-step", 18)  # as timm's
    timm = ("--extractor", "timm:resnet18.tv_in1k", "--weights", "saved.pth", "--json", "--quiet")
    assert here("compute", "real", "fake", *timm).fid == own.fid


@pytest.mark.parametrize(
    "spec", ["torchvision", "torchvision:resnet18", "Torchvision:resnet18:layer2"]
)
@pytest.mark.parametrize("flag", ["--extractor", "--cmmd-extractor"])
def test_the_name_of_its_network_says_what_to_do(
    here: Run, place: Path, spec: str, flag: str
) -> None:
    """Earlier versions took it, and a function of that name in the package is no network."""
    outcome = here("compute", "real", "fake", "--metrics", "fid,cmmd", flag, spec)
    remedy = "write a file that loads it (FILE.py:NAME), as `fidtool guide custom-networks` shows"
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.error == f"error: {flag} {spec} is not a network: {remedy}"


def test_statistics_with_its_features_are_read(here: Run, place: Path) -> None:
    """As earlier versions wrote them."""
    (place / "my_resnet.py").write_text(PROGRAM.replace("resnet50", "resnet18"))
    published(place, "resnet18")
    assert here("stats", "real", "-o", "new.npz", *CUSTOM[:2]).status == 0
    with np.load(place / "new.npz") as file:
        arrays = dict(file)
    own = str(arrays["fingerprint"])
    spec = own.partition('"extractor": "')[2].partition('"')[0]
    arrays["fingerprint"] = np.array(own.replace(spec, "torchvision:resnet18"))
    np.savez(place / "old.npz", **arrays)
    assert here("compute", "old.npz", "old.npz").stdout == "FD (torchvision:resnet18): 0.0000\n"
    refused = here("compute", "old.npz", "fake")
    assert refused.status == 2
    for words in (
        "torchvision:resnet18 is not a network",
        "(settings taken from old.npz: extractor torchvision:resnet18)",
    ):
        assert words in refused.error
    new = here("compute", "new.npz", "fake", *CUSTOM)
    assert here("compute", "old.npz", "fake", *CUSTOM, "--allow-mismatch").fid == new.fid
