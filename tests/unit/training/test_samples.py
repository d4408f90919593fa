"""Numbers of samples: what a sampler repeats counts once, also beyond the images that can be left out later."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fidtool
from fidtool.training import (
    FrechetInceptionDistance,
    KernelInceptionDistance,
    PeakSignalNoiseRatio,
    WithIndex,
    gather_outputs,
    samples,
    sums,
)
from support.tiny_network import network

IMAGES = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def made(kind: Any = FrechetInceptionDistance) -> Any:
    more = {"subsets": 5, "subset_size": 20} if kind is KernelInceptionDistance else {}
    metric = kind(network(), batch_size=4, **more)
    metric.update(255 - IMAGES, real=True)
    return metric


def values_of(metric: Any) -> list[str]:
    metric.compute()
    return [value.hex() for value in metric.result.values.values()]


@pytest.mark.parametrize("kind", [FrechetInceptionDistance, KernelInceptionDistance])
@pytest.mark.parametrize("held", [4, 1024])
def test_repeated_samples(kind: Any, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: within a batch, in a later one, and after a state was saved and loaded."""
    monkeypatch.setattr(sums, "_HELD_ROWS", held)
    plain = made(kind)
    plain.update(IMAGES, real=False)
    expected = values_of(plain)
    metric = made(kind)
    order = [*range(30), 5, 5, *range(20, 60), 0, 59, 59]
    for batch in torch.split(torch.tensor(order), 7):
        metric.update(IMAGES[batch], real=False, index=batch)
        if int(batch[0]) < 30:
            state = copy.deepcopy(metric.state_dict())
    assert values_of(metric) == expected
    assert metric.result.fake == 60
    assert metric.result.warnings == ()
    resumed = kind(network(), batch_size=4, **({"subsets": 5, "subset_size": 20} if "Kernel" in kind.__name__ else {}))
    resumed.load_state_dict(state)
    resumed.update(IMAGES, real=False, index=range(60))
    assert values_of(resumed) == expected


@pytest.mark.parametrize("kind", [FrechetInceptionDistance, PeakSignalNoiseRatio])
def test_other_images_with_numbers_of_earlier_ones(kind: Any) -> None:
    """As of two joined data sets, or of a next epoch without `reset`. The same images again are no reason to warn."""
    metric = made() if kind is FrechetInceptionDistance else PeakSignalNoiseRatio()

    def update(images: torch.Tensor) -> None:
        pair = kind is PeakSignalNoiseRatio
        metric.update(images, **({"target": 255 - images} if pair else {"real": False}), index=range(len(images)))
        metric.compute()

    update(IMAGES[:30])
    update(IMAGES[:30])
    assert metric.result.warnings == ()
    assert metric.result.fake == 30
    if kind is PeakSignalNoiseRatio:
        other = PeakSignalNoiseRatio()
        other.update(IMAGES[30:31], 255 - IMAGES[30:31], index=[0])
        metric.merge_state(other)
        metric.compute()
    else:
        update(IMAGES[30:31])
    said = "1 (generated images|pairs) were left out, .* call reset\\(\\) before the next epoch"
    resumed = made() if kind is FrechetInceptionDistance else PeakSignalNoiseRatio()
    resumed.reset()
    resumed.load_state_dict(metric.state_dict())
    resumed.compute()
    merged = made() if kind is FrechetInceptionDistance else PeakSignalNoiseRatio()
    merged.merge_state(resumed)
    merged.compute()
    for each in (metric, resumed, merged):
        (warning,) = each.result.warnings
        assert re.match(said, warning)


def test_random_reconstructions_of_one_sample_are_not_other_samples() -> None:
    metric = PeakSignalNoiseRatio()
    metric.update(IMAGES[:30], IMAGES[30:], index=range(30))
    metric.update(IMAGES[1:21], IMAGES[30:50], index=range(20))
    metric.compute()
    assert metric.result is not None
    assert (metric.result.fake, metric.result.warnings) == (30, ())


@pytest.mark.parametrize("kind", [FrechetInceptionDistance, KernelInceptionDistance, PeakSignalNoiseRatio])
def test_incomplete_states_are_refused(kind: Any) -> None:
    metric = PeakSignalNoiseRatio() if kind is PeakSignalNoiseRatio else made(kind)
    images = IMAGES if kind is PeakSignalNoiseRatio else False
    metric.update(IMAGES, images, index=range(60))
    state = metric.state_dict()
    cut = {
        FrechetInceptionDistance: ("fake_held", "fake_samples"),
        KernelInceptionDistance: ("fake_rows", "fake_samples"),
        PeakSignalNoiseRatio: ("pair_value", "pair_sample"),
    }
    for name in cut[kind]:
        fresh = PeakSignalNoiseRatio() if kind is PeakSignalNoiseRatio else made(kind)
        with pytest.raises(fidtool.InputError, match=r"their numbers (of images )?differ"):
            fresh.load_state_dict({**state, name: state[name][:10]})
    if kind is FrechetInceptionDistance:
        with pytest.raises(fidtool.InputError, match="their numbers of images differ"):
            made().load_state_dict({**state, "fake_held": state["fake_held"][:, :3]})


@pytest.mark.parametrize("held", [8, 1024])
def test_metrics_that_share_samples_are_merged(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample counts once if its features can be left out; otherwise a warning says how many count again."""
    monkeypatch.setattr(sums, "_HELD_ROWS", held)
    metric, other = made(), made()
    other.reset()
    for start in range(0, 40, 4):
        metric.update(IMAGES[start : start + 4], real=False, index=list(range(start, start + 4)))
        place = start + 20
        other.update(IMAGES[place : place + 4], real=False, index=range(place, place + 4))
    metric.merge_state(other)
    metric.compute()
    plain = made()
    plain.update(IMAGES, real=False)
    if held == 1024:
        assert values_of(metric) == values_of(plain)
        assert metric.result.fake == 60
    else:
        again = metric.result.fake - 60
        assert again > 0
        assert f"{again} of {60 + again} generated images count again" in metric.result.warnings[0]


@given(st.lists(st.tuples(st.lists(st.integers(-1, 5), max_size=8), st.integers(0, 8)), min_size=1, max_size=4))
def test_which_images_remain(ranks: list[tuple[list[int], int]]) -> None:
    """Each sample remains, and only once unless several ranks cannot leave it out; unknown samples all remain."""
    of_ranks = [np.array(numbers, dtype=np.int64) for numbers, _ in ranks]
    free = [min(last, len(numbers)) for numbers, last in ranks]
    kept = sums.each_once(of_ranks, free)
    assert list(map(len, kept)) == list(map(len, of_ranks))
    remain = [int(number) for own, keep in zip(of_ranks, kept, strict=True) for number in own[keep]]
    bound = [int(number) for own, last in zip(of_ranks, free, strict=True) for number in own[: len(own) - last]]
    for number in range(6):
        there = any(number in own for own in of_ranks)
        assert remain.count(number) == max(there, bound.count(number))
    assert remain.count(-1) == sum(list(own).count(-1) for own in of_ranks)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ([0], "one for each of the 2 images"),
        ([0.5, 1.0], "index must be integers"),
        ([0, -2], "not -2"),
        (torch.zeros(2, 1, dtype=torch.int64), r"shape \(2, 1\)"),
        (["a", "b"], "index must be integers"),
        (5, "index must be integers"),
        ([[0], [1, 2]], "index must be integers"),
        (np.array([0, 2**64 - 1], dtype=np.uint64), "not -1"),
    ],
)
def test_wrong_numbers(index: Any, said: str) -> None:
    metric = FrechetInceptionDistance(network())
    with pytest.raises(fidtool.InputError, match=said):
        metric.update(IMAGES[:2], real=False, index=index)
    assert metric.state_dict() == {}
    with pytest.raises(fidtool.InputError, match=r"index must be|has 2 elements, and index has 1"):
        gather_outputs([1, 2], index=index)


@pytest.mark.parametrize("ranks", [1, 2])
def test_which_outputs_are_of_other_samples(ranks: int, recwarn: pytest.WarningsRecorder) -> None:
    """On several ranks a sampler repeats samples: floats may differ, but not the labels."""
    floats = torch.arange(12.0).reshape(6, 2)
    again, first = np.array([4, 5]), np.array([0, 1])
    equal = torch.tensor([True, False, True, False, True, False])
    for same in ([torch.tensor([[torch.nan, 1.0]] * 6)], [floats, list("abcdab")], [floats, equal], []):
        samples._warn_of_other_samples(same, again, first, ranks)
    assert not recwarn
    for other in ([list("abcdef")], [floats, torch.arange(6)], *([[floats]] if ranks == 1 else [])):
        with pytest.warns(fidtool.FidtoolWarning, match="2 of 6 samples were left out"):
            samples._warn_of_other_samples(other, again, first, ranks)
    samples._warn_of_other_samples([floats], again, first, 2)
    with pytest.warns(fidtool.FidtoolWarning, match="4 of 6 samples were left out"):
        samples._warn_of_other_samples([floats], np.arange(2, 6), np.array([0, 1, 0, 1]), ranks)


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0


def test_a_single_process() -> None:
    """`WithIndex` and `gather_outputs` without a process group; the order is that of the data set."""
    loader = torch.utils.data.DataLoader(WithIndex(torch.utils.data.TensorDataset(IMAGES)), 7, shuffle=True)
    index, brightness = [], []
    for numbers, (images,) in loader:
        index.append(numbers)
        brightness.append(images.float().mean((1, 2, 3)))
    (gathered,) = gather_outputs(brightness, index=index)
    assert torch.equal(gathered, IMAGES.float().mean((1, 2, 3)))
    assert gather_outputs([], index=[]) == ([],)
    assert gather_outputs(["b", "a", "b"], index=[1, 0, 1]) == (["a", "b"],)
    with pytest.raises(fidtool.InputError, match="is an IterableDataset, whose samples have no numbers"):
        WithIndex(Stream())
    assert gather_outputs(list(np.array([7, 8])), index=range(2)) == ([7, 8],)
