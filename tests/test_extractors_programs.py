"""``--extractor FILE.pt2`` and TorchScript files, ``package.module:factory``, and the flags that go with them."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fidtool
from fidtool.config import Config
from support.command_line import Run
from support.places import TINY
from support.published_networks import built, distance, features, make_sets

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SETTINGS = {"input_size": 24, "mean": MEAN, "std": STD, "feature_step": 17}


class Small(nn.Module):
    """What a fuser would take: convolution, then a chain of pointwise steps."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 12, 5, stride=3)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            self.convolution.weight.copy_(torch.randn(12, 3, 5, 5, generator=generator) * 0.2)
            self.convolution.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        return (torch.sigmoid(x) * x + torch.tanh(x) * 0.3).exp().clamp(max=9.0).mean((2, 3))


def save_script(file: Path, extra: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch call TorchScript deprecated
        script = torch.jit.script(Small().eval())
        torch.jit.save(script, str(file), _extra_files={} if extra is None else {"fidtool.json": extra})


def save_program(file: Path, extra: str | None, dynamic: bool = True) -> None:
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    program = torch.export.export(Small().eval(), (torch.zeros(2, 3, 24, 24),), dynamic_shapes=shapes)
    torch.export.save(program, file, extra_files={} if extra is None else {"fidtool.json": extra})


SAVE: dict[str, Callable[[Path, str | None], None]] = {".pt": save_script, ".ts": save_script, ".pt2": save_program}


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    make_sets(tmp_path)
    return tmp_path


def transform(picture: Image.Image) -> torch.Tensor:
    """The default protocol's resize, and the file's mean and deviation."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float()
    small = nn.functional.interpolate(pixels, size=(24, 24), mode="bilinear", align_corners=False)[0] / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (small - mean) / std


@pytest.mark.parametrize("suffix", SAVE)
def test_it_is_the_program_fed_as_its_file_says(here: Run, place: Path, suffix: str) -> None:
    file = place / f"small{suffix}"
    SAVE[suffix](file, json.dumps(SETTINGS))
    outcome = here("compute", "real", "fake", "--extractor", file, "--json", "--quiet")
    assert outcome.status == 0, outcome.stderr
    expected = distance(*(features(place / name, transform, Small().eval()) for name in ("real", "fake")))
    assert outcome.fid == pytest.approx(expected, rel=1e-3)
    protocol = outcome.json["protocol"]
    assert protocol["extractor"].startswith(f"small{suffix}@")
    assert [protocol[key] for key in ("input_size", "feature_step", "resize", "name")] == [
        24,
        17,
        "bilinear",
        "pytorch-fid",
    ]
    clean = here("compute", "real", "fake", "--extractor", file, "--protocol", "clean", "--json", "--quiet")
    assert (clean.json["protocol"]["name"], clean.fid == outcome.fid) == ("clean", False)


def test_two_ranks_agree(fidtool: Run, place: Path) -> None:
    save_script(place / "small.pt", json.dumps(SETTINGS))
    arguments = ("compute", "real", "fake", "--extractor", "small.pt", "--quiet", "--json", "--no-cache")
    alone, together = fidtool(*arguments), fidtool(*arguments, ranks=2)
    assert (alone.status, together.status) == (0, 0), together.stderr
    assert together.fid == alone.fid


def test_every_pass_has_the_first_ones_bits_on_any_thread(place: Path) -> None:
    """TorchScript left alone compiles after two passes, and rounds in another way from then on."""
    save_script(place / "small.pt", json.dumps(SETTINGS))
    extractor = built(str(place / "small.pt"))
    images = [torch.from_numpy(np.array(Image.open(file))) for file in sorted((place / "real").iterdir())]
    first = extractor.features(images)
    found: list[torch.Tensor] = []

    def work() -> None:
        torch.set_num_threads(1)
        found.extend(extractor.features(images) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert all(torch.equal(each, first) for each in found)


def test_the_flags_complete_a_file_that_says_nothing(here: Run, place: Path) -> None:
    save_program(place / "mute.pt2", None)
    save_program(place / "told.pt2", json.dumps({"input_size": 24, "feature_step": 14}))
    flags = ("--input-size", 24, "--feature-step", 14)
    mute = here("compute", "real", "fake", "--extractor", "mute.pt2", *flags, "--json", "--quiet")
    told = here("compute", "real", "fake", "--extractor", "told.pt2", "--json", "--quiet")
    assert (mute.status, told.status) == (0, 0), mute.stderr
    assert mute.fid == told.fid
    keys = ("input_size", "feature_step", "normalization", "weights_sha256")
    assert [mute.json["protocol"][key] for key in keys] == [told.json["protocol"][key] for key in keys]


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
@pytest.mark.parametrize(
    ("extra", "flags", "texts"),
    [
        (None, (), ["does not say how large its input is", "--input-size N", '{"input_size": N}']),
        ('{"input_size": 24}', ("--input-size", 32), ["--input-size 32", "says that its input is 24"]),
        ("{", (), ["fidtool.json in", "is no JSON"]),
        ('{"size": 24}', (), ["input_size, mean, std, feature_step and nothing else"]),
        ('{"input_size": 24, "std": [0, 1, 1]}', (), ["fidtool.json in", "std", "above 0"]),
        ('{"input_size": 24}', ("--weights", "small.pt"), ["--weights is for Inception"]),
    ],
)
def test_mistakes_in_its_settings(
    here: Run, place: Path, suffix: str, extra: str | None, flags: tuple[Any, ...], texts: list[str]
) -> None:
    SAVE[suffix](place / f"small{suffix}", extra)
    outcome = here("compute", "real", "fake", "--extractor", f"small{suffix}", *flags, "--quiet")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert [text for text in texts if text not in outcome.error] == [], outcome.error


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ("gone.pt2", ["no file gone.pt2"]),
        ("gone.pt", ["no file gone.pt"]),
        ("text.pt2", ["text.pt2 is no program that torch.export.save wrote"]),
        ("state.pth", ["state.pth is no TorchScript program", "a state_dict needs its network"]),
    ],
)
def test_files_that_are_no_programs(here: Run, place: Path, spec: str, texts: list[str]) -> None:
    (place / "text.pt2").write_text("no program")
    torch.save(Small().state_dict(), place / "state.pth")
    outcome = here("compute", "real", "fake", "--extractor", spec, "--quiet")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert [text for text in texts if text not in outcome.error] == [], outcome.error


def test_a_fixed_batch_is_explained(here: Run, place: Path) -> None:
    save_program(place / "fixed.pt2", json.dumps(SETTINGS), dynamic=False)
    outcome = here("compute", "real", "fake", "--extractor", "fixed.pt2", "--quiet")
    assert outcome.status == 1
    assert "dynamic batch dimension, dynamic_shapes=" in outcome.error
    save_program(place / "silent.pt2", None)
    other = here("compute", "real", "fake", "--extractor", "silent.pt2", "--input-size", 25, "--quiet")
    assert other.error.endswith("--input-size, or its fidtool.json, has to say the size that it was exported with")


def test_programs_that_were_saved_in_training_mode(here: Run, place: Path) -> None:
    """Nothing puts them into evaluation mode any more."""

    class Dropping(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(x), 0.2, self.training)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(Dropping().train(), torch.zeros(2, 3, 24, 24), check_trace=False)
        torch.jit.save(traced, str(place / "traced.pt"), _extra_files={"fidtool.json": json.dumps(SETTINGS)})
    program = torch.export.export(
        Dropping().train(), (torch.zeros(2, 3, 24, 24),), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    torch.export.save(program, place / "train.pt2", extra_files={"fidtool.json": json.dumps(SETTINGS)})
    for name in ("traced.pt", "train.pt2"):
        outcome = here("compute", "real", "fake", "--extractor", name, "--quiet")
        assert outcome.status == 1
        assert outcome.error.startswith(f"error: {name}")
        assert "gives other features for the same picture" in outcome.error


def test_a_factory_in_a_module(here: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the current folder, too, as `python -m` would; the file's own factory is the same network."""
    (place / "ours").mkdir()
    (place / "ours" / "__init__.py").write_text("")
    source = Path(TINY.rpartition(":")[0]).read_text()
    (place / "ours" / "encoders.py").write_text(source)
    named = here("compute", "real", "fake", "--extractor", "ours.encoders:network", "--json", "--quiet")
    assert named.status == 0, named.stderr
    filed = here("compute", "real", "fake", "--extractor", TINY, "--json", "--quiet")
    assert named.fid == filed.fid
    digest = filed.json["protocol"]["extractor"].rpartition("@")[2]
    assert named.json["protocol"]["extractor"] == f"ours.encoders:network@{digest}"


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ("no_such_package.nets:network", ["ModuleNotFoundError", "no_such_package"]),
        ("json:dumps", ["--extractor json:dumps failed", "TypeError"]),
        ("json:missing", ["AttributeError", "missing"]),
        ("json.decoder:JSONDecoder", ["returned JSONDecoder", "fidtool.Network"]),
        ("resnet50", ["unknown extractor 'resnet50'", "torchvision:NAME", "timm:NAME", "dinov2", "clip"]),
    ],
)
def test_factories_that_are_none(here: Run, place: Path, spec: str, texts: list[str]) -> None:
    outcome = here("compute", "real", "fake", "--extractor", spec, "--quiet")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert [text for text in texts if text not in outcome.error] == [], outcome.error


def test_feature_step_is_part_of_the_definition(here: Run, place: Path) -> None:
    first, second = (
        here("compute", "real", "fake", "--extractor", TINY, "--json", "--quiet", "--feature-step", step)
        for step in (18, 16)
    )
    assert (first.status, second.status) == (0, 0), second.stderr
    assert [each.json["protocol"]["feature_step"] for each in (first, second)] == [18, 16]
    assert first.json["protocol"]["fingerprint"] != second.json["protocol"]["fingerprint"]
    assert first.fid == here("compute", "real", "fake", "--extractor", TINY, "--json", "--quiet").fid


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"feature_step": 18}, "feature_step is fixed for Inception"),
        ({"input_size": 299}, "input_size is fixed for Inception"),
        ({"extractor": TINY, "feature_step": 101}, r"must lie in -100\.\.100"),
        ({"extractor": TINY, "feature_step": 1.5}, "must be an integer"),
        ({"extractor": TINY, "input_size": 0}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(fidtool.InputError, match=text):
        Config(**settings)


def test_an_input_size_that_the_network_knows(here: Run, place: Path) -> None:
    outcome = here("compute", "real", "fake", "--extractor", TINY, "--input-size", 24, "--quiet")
    assert outcome.status == 2
    assert "--input-size is for exported programs" in outcome.error


def test_training_takes_named_networks_and_passes_gradients(place: Path) -> None:
    """Also through the rounding to 8 bits of a network that prepares images in its own way."""
    import torchvision

    from fidtool.training import FeatureExtractor

    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), place / "resnet18.pth")
    extractor = FeatureExtractor("torchvision:resnet18", weights=place / "resnet18.pth")
    picture = torch.from_numpy(np.array(Image.open(place / "real" / "00000.png")))
    images = (picture.permute(2, 0, 1)[None].float() / 255).requires_grad_()
    output = extractor(images)
    measured = built("torchvision:resnet18", place / "resnet18.pth").features([picture])
    # The measured pass is in channels-last memory and this one is not: float32 convolutions that round otherwise.
    torch.testing.assert_close(output.detach(), measured, rtol=1e-4, atol=1e-5)
    output.sum().backward()
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()
    assert (images.grad != 0).float().mean() > 0.5
    with pytest.raises(fidtool.InputError, match="--protocol clean does not go with"):
        FeatureExtractor("torchvision:resnet18", protocol="clean", weights=place / "resnet18.pth")


@pytest.mark.parametrize("protocol", ["clean", "torchmetrics", "stylegan", "adm"])
def test_training_takes_every_protocol(place: Path, protocol: str) -> None:
    from fidtool.training import FeatureExtractor

    extractor = FeatureExtractor(TINY, protocol=protocol)
    images = torch.rand(2, 3, 40, 70, generator=torch.Generator().manual_seed(0)).requires_grad_()
    extractor(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().max() > 0
    assert extractor.definition.protocol_name == ("tensorflow" if protocol == "adm" else protocol)
