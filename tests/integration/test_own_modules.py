"""Networks of a program's own: plain modules, names, steps of features, and Inception with other
weights.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.features.choice import parse_networks
from fidtool.features.models.inception import load_weights
from fidtool.features.network import preserve
from fidtool.training import FrechetInceptionDistance, InceptionScore
from support.command_line import Run
from support.offline import ORIGINAL, needs_weights
from support.pictures import make_pictures
from support.places import SUPPORT, TINY
from support.scaled_networks import Means

NO_CUDA = not torch.cuda.is_available()
NEEDS_CUDA = "needs a CUDA device"
SCALED = str(SUPPORT / "scaled_networks.py")


@pytest.fixture
def sets(environment: dict[str, str], tmp_path: Path) -> tuple[str, str]:
    real = make_pictures(tmp_path / "real", 24, 0, sides=(20, 32))
    fake = make_pictures(tmp_path / "fake", 24, 1, sides=(20, 32))
    return str(real), str(fake)


class _Sized(torch.nn.Module):
    """Takes images of one size only."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3 * side * side, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.uint8
        found: torch.Tensor = self.linear(x.flatten(1) / 255)
        return found


def test_a_plain_module_gets_images_as_in_the_metrics_for_training(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (16, 3, 24, 24)
    real, fake = (
        torch.randint(0, high, shape, dtype=torch.uint8, generator=generator) for high in (256, 200)
    )
    module = _Sized(24)
    metric = FrechetInceptionDistance(module)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    found = fidtool.compute(real, fake, extractor=module, cache=False)
    assert found.results[0].metrics["fd__Sized"] == pytest.approx(float(metric.compute()), rel=1e-6)
    assert any("_Sized gets the images as they are: uint8" in note for note in found.run.notes)
    definition = found.definitions["features"]
    assert definition is not None
    assert (definition.resize, definition.normalization, definition.dims) == ("none", "none", 4)
    statistics = fidtool.compute_statistics(real, extractor=module, cache=False)
    assert statistics is not None
    with_file = FrechetInceptionDistance(module, real_statistics=statistics)
    with_file.update(fake, real=False)
    assert float(with_file.compute()) == pytest.approx(float(metric.compute()), rel=1e-6)


def test_a_module_is_afterwards_as_it_was(sets: tuple[str, str]) -> None:
    inner = Means()
    modules: list[Any] = [Means(), fidtool.Network(inner, input_size=8, name="inner")]
    modules[0].train()
    inner.eval()
    inner.factor.requires_grad_(False)
    fidtool.compute(*sets, extractor=modules, cache=False)
    assert (modules[0].training, modules[0].factor.requires_grad) == (True, True)
    assert (inner.training, inner.factor.requires_grad) == (False, False)


def test_a_module_that_fails_is_afterwards_as_it_was(sets: tuple[str, str]) -> None:
    module = _Sized(24)
    with pytest.raises(RuntimeError, match=r"_Sized failed on a batch"):
        fidtool.compute(*sets, extractor=module.train(), cache=False)
    assert module.training


_MOVES = [
    "meta",
    torch.float64,
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(NO_CUDA, reason=NEEDS_CUDA)]),
]


@pytest.mark.parametrize("target", _MOVES)
def test_a_module_that_was_moved_comes_back(target: Any) -> None:
    """Its buffers and gradients come back as well."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    images = torch.rand(2, 3, 8, 8)
    module(images).square().sum().backward()
    expected = module(images)
    with preserve(module):
        module.eval().to(target)
    assert torch.equal(module(images), expected)
    optimizer.step()
    assert not torch.equal(module(images), expected)


def test_a_module_may_be_made_in_inference_mode(sets: tuple[str, str]) -> None:
    with torch.inference_mode():
        module = Means()
    found = fidtool.compute(*sets, extractor=module, cache=False)
    assert found.results[0].metrics["fd_Means"] > 0
    assert (module.training, module.factor.requires_grad) == (True, True)


def test_a_module_that_takes_no_bytes_gets_a_hint(sets: tuple[str, str]) -> None:
    with pytest.raises(RuntimeError, match="unsigned char") as error:
        fidtool.compute(*sets, extractor=torch.nn.Conv2d(3, 4, 3), cache=False)
    (note,) = error.value.__notes__
    assert "uint8 tensors of shape (n, 3, height, width)" in note
    assert "wrap it in fidtool.Network" in note


class _Alone(Means):
    """Fails if two threads call it at the same time."""

    calling = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.calling.acquire(blocking=False)
        time.sleep(0.01)
        found = super().forward(x)
        self.calling.release()
        return found


def test_one_thread_calls_a_module_that_is_passed_twice(sets: tuple[str, str]) -> None:
    module = _Alone()
    found = fidtool.compute(*sets, extractor=[module, module], batch_size=1, cache=False)
    first, second = found.results[0].metrics.values()
    assert first == second


@pytest.mark.parametrize(
    "value",
    ["inception@weights=a/tuned.pth", "a/net.py:name@protocol=clean", "a/net.py:name"],
)
def test_the_option_of_a_step_can_be_passed(value: str) -> None:
    (choice,) = parse_networks(value)
    (advised,) = parse_networks(f"{choice.step_setting[1]}=16")
    assert advised == replace(choice, feature_step=16)


def test_networks_have_names(here: Run, sets: tuple[str, str]) -> None:
    mixed: list[Any] = [
        Means(),
        Means(2.0),
        fidtool.Network(Means(), input_size=8, name="my-net"),
        f"{SCALED}:large",
    ]
    found = fidtool.compute(*sets, extractor=mixed, cache=False)
    assert [*found.results[0].metrics] == ["fd_Means", "fd_Means_2", "fd_my_net", "fd_large"]
    traced = torch.jit.trace(Means(), torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    of_script = fidtool.compute(*sets, extractor=traced, cache=False)
    assert [*of_script.results[0].metrics] == ["fd_Means"]
    named = here("compute", *sets, "--extractor", f"{SCALED}:small", "--no-cache", "--quiet")
    assert re.match(r"FD \(small\): \d\.\d+e-1\d\b", named.stdout)
    twice = here("compute", *sets, "--extractor", f"{SCALED}:small,{SCALED}:small")
    assert "scaled_networks.py:small twice" in twice.error
    same = [fidtool.Network(Means(factor), input_size=8, name="a") for factor in (1.0, 2.0)]
    assert [*fidtool.compute(*sets, extractor=same, cache=False).results[0].metrics] == [
        "fd_a",
        "fd_a_2",
    ]


@pytest.mark.parametrize("name", ["inception", "dinov2", "a,b", "a@b", "net.pt", 3])
def test_names_of_other_networks_are_refused(name: Any) -> None:
    with pytest.raises(fidtool.InputError, match=r"Network\.name"):
        fidtool.Network(Means(), input_size=8, name=name)


@pytest.mark.parametrize("factor", [1.0, 1e4, 1e-5, 0.0])
def test_features_of_any_scale_are_added_up(sets: tuple[str, str], factor: float) -> None:
    found = fidtool.compute(*sets, extractor=Means(factor), cache=False)
    alike = fidtool.compute(*sets, extractor=Means(1.0), feature_step=10, cache=False)
    expected = alike.results[0].metrics["fd_Means"] * factor**2
    assert found.results[0].metrics["fd_Means"] == pytest.approx(expected, rel=1e-4)


class _Rough(torch.nn.Module):
    """Features that are a million times as large for images of noise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = x.float().mean((2, 3)) / 255
        rough = x.float().var((2, 3)).amax(1, keepdim=True) > 1
        return torch.where(rough, means * 1e6, means)


def test_noise_does_not_decide_on_the_step() -> None:
    real, fake = (
        torch.arange(start, 240, 10, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
        for start in (10, 30)
    )
    found = fidtool.compute(real, fake, extractor=_Rough(), cache=False)
    definition = found.definitions["features"]
    assert definition is not None
    assert definition.feature_step == 18
    assert found.results[0].metrics["fd__Rough"] > 0


def test_statistics_of_another_step_are_compared_with_a_warning(
    here: Run, sets: tuple[str, str]
) -> None:
    both = ("--no-cache", "--extractor", TINY)
    for name, images, step in (("r.npz", sets[0], 18), ("f.npz", sets[1], 16)):
        assert here("stats", images, "-o", name, *both, "--feature-step", step).status == 0
    of_files = here("compute", "r.npz", "f.npz", "--json")
    of_images = here("compute", *sets, *both, "--json")
    assert of_files.fid == pytest.approx(of_images.fid, rel=1e-4)
    assert "f.npz: its features were rounded to multiples of 2^-16" in of_files.stderr
    taken = here("compute", "f.npz", sets[1], *both, "--json")
    assert taken.json["protocol"]["feature_step"] == 16
    assert taken.fid == 0.0


def test_parts_have_the_step_of_the_whole_set(here: Run, sets: tuple[str, str]) -> None:
    large = ("--extractor", f"{SCALED}:large", "--batch-size", 4, "--no-cache")
    assert here("stats", sets[0], "-o", "whole.npz", *large).status == 0
    for part in (1, 2, 3):
        assert (
            here("stats", sets[0], "-o", f"{part}.npz", "--part", f"{part}/3", *large).status == 0
        )
    assert here("merge", "1.npz", "2.npz", "3.npz", "-o", "merged.npz").status == 0
    whole, merged = (fidtool.read_statistics(name) for name in ("whole.npz", "merged.npz"))
    np.testing.assert_array_equal(whole.sigma, merged.sigma)
    make_pictures(Path(sets[0]), 40, 0, sides=(20, 32))
    grown = here("stats", sets[0], "-o", "grown.npz", "--since", "whole.npz", *large)
    assert grown.status == 0, grown.stderr


def test_another_step_is_comparable_with_a_baseline(here: Run, sets: tuple[str, str]) -> None:
    for seed, folder in enumerate(sets):
        make_pictures(Path(folder), 200, seed, sides=(8, 12))
    means = ("--extractor", f"{SCALED}:means", "--uncertainty", "--history", "h.jsonl")
    first = here("compute", *sets, *means, "--feature-step", 16)
    assert first.status == 0, first.stderr
    second = here("compute", *sets, *means, "--fail-worse-than", "h.jsonl", "--feature-step", 15)
    assert second.status == 0, second.stderr


def test_small_distances_of_classes_have_digits(here: Run, tmp_path: Path) -> None:
    for seed, side in enumerate(("real", "fake")):
        for name in ("ant", "bee"):
            make_pictures(tmp_path / side / name, 16, seed, sides=(20, 32))
    small = ("--extractor", f"{SCALED}:small", "--per-class", "--report", "page.html")
    shown = here("compute", "real", "fake", *small)
    assert shown.status == 0, shown.stderr
    assert re.search(
        r"FD \(small\) per class: mean \S+e-\d+ over 2 classes, worst \S+e-\d+", shown.stdout
    )
    assert "0.0000" not in shown.stdout
    assert not re.search(r"\b0\.0000\b", Path("page.html").read_text())


def test_statistics_of_a_named_network_ask_for_it(here: Run, sets: tuple[str, str]) -> None:
    statistics = fidtool.compute_statistics(sets[0], extractor=Means(), cache=False)
    fidtool.write_statistics("means.npz", statistics)
    refused = here("compute", "means.npz", sets[1])
    assert refused.status == 2
    assert "a custom network with the name Means: pass this network with --extractor" in (
        refused.error
    )


def test_metrics_for_training_know_the_name_of_a_network() -> None:
    metric = FrechetInceptionDistance(f"{SCALED}:means")
    for real in (True, False):
        images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
        metric.update(images, real=real)
    metric.compute()
    assert metric.result is not None
    assert [*metric.result.values] == ["fd_means"]


@needs_weights
def test_inception_with_other_weights_is_a_network_of_its_own(
    here: Run, sets: tuple[str, str], tmp_path: Path
) -> None:
    state = dict(load_weights(None, lambda line: None).state)
    name = "Mixed_7c.branch_pool.conv.weight"
    state[name] = state[name] * 1.1
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"state_dict": wrapped}, "tuned.pth")
    value = "inception@weights=tuned.pth"
    run = ("compute", *sets, "--num", 4, "--no-cache", "--quiet")
    found = here(*run, "--extractor", f"inception,{value}", "--json")
    assert [*found.metrics] == ["fid", "fd_inception_weights_tuned_pth"]
    fid, own = found.metrics.values()
    assert own != fid
    assert own == pytest.approx(fid, rel=0.2)
    metric = FrechetInceptionDistance(feature=value)
    metric.update(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), real=True)
    metric.update(torch.ones(2, 3, 8, 8, dtype=torch.uint8), real=False)
    metric.compute()
    assert metric.result is not None
    assert [*metric.result.values] == ["fd_inception_weights_tuned_pth"]
    antialiased = FrechetInceptionDistance(value, antialias=True)
    alike = FrechetInceptionDistance(value, protocol="torchmetrics", float_to_byte="floor")
    assert antialiased.reference_digest == alike.reference_digest
    with pytest.raises(fidtool.InputError, match="needs Inception's classifier"):
        InceptionScore(value)
    refused = here(*run, "--weights", "tuned.pth")
    assert f"pass --extractor {value} if you want to use other weights" in refused.error
    assert (
        "not the features of inception@weights"
        in here(*run, "--extractor", value, "--metrics", "is").error
    )
    assert "published weights" in here(*run, "--extractor", f"inception@weights={ORIGINAL}").error
    assert here("stats", sets[0], "-o", "tuned.npz", *run[3:], "--extractor", value).status == 0
    unnamed = here("compute", "tuned.npz", sets[1]).error
    assert f"Inception with the weights of a file, {value}: pass --extractor {value}" in unnamed
    missing = here(*run, "--extractor", "inception@weights=no.pth").error
    assert "no weights file no.pth (from --extractor inception@weights=no.pth)" in missing
    published = dict(load_weights(None, lambda line: None).state)
    torch.save({f"net.{name}": tensor for name, tensor in published.items()}, "anew.pth")
    anew = here(*run, "--extractor", "inception,inception@weights=anew.pth").error
    assert (
        "pass --weights anew.pth together with --extractor inception, or with inception,..." in anew
    )
    both = {f"{part}.{name}": tensor for part in ("model", "ema") for name, tensor in state.items()}
    torch.save(both, "both.pth")
    several = here(*run, "--extractor", "inception@weights=both.pth").error
    assert "several networks, model.* and ema.*: save only one of them" in several
    state["fc.weight"] = torch.zeros(5, 2048)
    torch.save(state, "five.pth")
    five = here(*run, "--num", 2, "--extractor", "inception@weights=five.pth", "--json")
    assert any("differ from torchvision's" in note for note in five.json["run"]["notes"])
    assert not any("torchvision's" in note for note in found.json["run"]["notes"])
    del state[name]
    state["Conv2d_1a_3x3.conv.weight"] = torch.zeros(32, 1, 3, 3)
    torch.save(state, "other.pth")
    unfit = here(*run, "--extractor", "inception@weights=other.pth").error
    assert (
        f"missing: {name}; wrong shape: Conv2d_1a_3x3.conv.weight [32, 1, 3, 3] instead of" in unfit
    )
