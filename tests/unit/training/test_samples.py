"""Numbers of samples: what a sampler repeats counts once, also beyond the images that can be left
out later.
"""

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
    rows,
    sums,
)
from support.tiny_network import network

IMAGES = torch.randint(
    0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
)


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
    monkeypatch.setattr(sums, "HELD_ROWS", held)
    plain = made(kind)
    plain.update(IMAGES, real=False)
    expected = values_of(plain)
    metric = made(kind)
    metric.persistent(True)
    order = [*range(30), 5, 5, *range(20, 60), 0, 59, 59]
    for batch in torch.split(torch.tensor(order), 7):
        metric.update(IMAGES[batch], real=False, index=batch)
        if int(batch[0]) < 30:
            state = copy.deepcopy(metric.state_dict())
    assert values_of(metric) == expected
    assert metric.result.fake == 60
    assert metric.result.warnings == ()
    resumed = kind(
        network(),
        batch_size=4,
        **({"subsets": 5, "subset_size": 20} if "Kernel" in kind.__name__ else {}),
    )
    resumed.load_state_dict(state)
    resumed.update(IMAGES, real=False, index=range(60))
    assert values_of(resumed) == expected


@pytest.mark.parametrize("kind", [FrechetInceptionDistance, PeakSignalNoiseRatio])
def test_other_images_with_numbers_of_earlier_ones(kind: Any) -> None:
    """As of two joined data sets, or of a next epoch without `reset`. The same images again are no
    reason to warn.
    """
    metric = made() if kind is FrechetInceptionDistance else PeakSignalNoiseRatio()

    def update(images: torch.Tensor) -> None:
        pair = kind is PeakSignalNoiseRatio
        metric.update(
            images,
            **({"target": images // 2} if pair else {"real": False}),
            index=range(len(images)),
        )
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
    metric.persistent(True)
    resumed.load_state_dict(metric.state_dict())
    resumed.compute()
    merged = made() if kind is FrechetInceptionDistance else PeakSignalNoiseRatio()
    merged.reset()  # its real images are those of the other metric
    merged.merge_state(resumed)
    merged.compute()
    for evaluated in (metric, resumed, merged):
        (warning,) = evaluated.result.warnings
        assert re.match(said, warning.text)


def test_a_next_epoch_without_reset_is_said() -> None:
    """Also of reconstructions, whose targets are the same in each epoch."""
    metric = PeakSignalNoiseRatio()
    for preds in (IMAGES[30:], IMAGES[:30]):
        metric.update(preds, IMAGES[:30], index=range(30))
        metric.compute()
    assert metric.result is not None
    assert metric.result.fake == 30
    assert metric.result.warnings[0].text.startswith(
        "30 pairs were left out, because others have the same index"
    )


def test_an_update_that_fails_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = made()
    metric.update(IMAGES[:8], real=False, index=range(8))
    with monkeypatch.context() as patched:
        patched.setattr(sums, "ForwardPasses", lambda *_: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                metric.update(IMAGES[8:20], real=False, index=[0, *range(9, 20)])
    metric.compute()
    assert metric.result.warnings == made_without_index(8).result.warnings


def made_without_index(count: int) -> Any:
    metric = made()
    metric.update(IMAGES[:count], real=False)
    metric.compute()
    return metric


def cut(values: torch.Tensor) -> Any:
    return values[:10]


def missing(values: torch.Tensor) -> Any:
    return None


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        (FrechetInceptionDistance, "fake_held", cut),
        (FrechetInceptionDistance, "fake_held", lambda values: values[:, :3]),
        (FrechetInceptionDistance, "fake_sample", cut),
        (FrechetInceptionDistance, "fake_hash", missing),
        (KernelInceptionDistance, "fake_held", cut),
        (KernelInceptionDistance, "fake_sample", cut),
        (KernelInceptionDistance, "header", missing),
        (PeakSignalNoiseRatio, "pair_value", cut),
        (PeakSignalNoiseRatio, "pair_sample", cut),
        (PeakSignalNoiseRatio, "pair_left_out", missing),
    ],
)
def test_a_refused_state_changes_nothing(kind: Any, name: str, change: Any) -> None:
    metric = PeakSignalNoiseRatio() if kind is PeakSignalNoiseRatio else made(kind)
    images = IMAGES if kind is PeakSignalNoiseRatio else False
    metric.update(255 - IMAGES, images, index=range(60))
    expected = values_of(metric)
    metric.persistent(True)
    state = metric.state_dict()
    with pytest.raises((ValueError, TypeError)):
        metric.load_state_dict({**state, name: change(state[name])})
    assert values_of(metric) == expected


class Cropped(torch.nn.Module):
    """More features of larger images."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, : images.shape[3]] / 256


@pytest.mark.parametrize("kind", [FrechetInceptionDistance, KernelInceptionDistance])
def test_features_of_different_lengths_are_refused(kind: Any) -> None:
    text = "features of different lengths, 4 and 8"
    metrics = [kind(Cropped(), batch_size=4) for _ in range(2)]
    for metric, side in zip(metrics, (4, 8), strict=True):
        for real in (True, False):
            metric.update(torch.rand(8, 3, side, side), real=real)
    with pytest.raises(fidtool.InputError, match=text):
        metrics[0].merge_state(metrics[1])
    with pytest.raises(fidtool.InputError, match=text):
        metrics[0].update(torch.rand(8, 3, 8, 8), real=False)
    mixed = kind(Cropped(), batch_size=64)
    for side in (4, 8):
        mixed.update(torch.rand(8, 3, side, side), real=True)
    with pytest.raises(fidtool.InputError, match=text):
        mixed.compute()


@pytest.mark.parametrize("held", [8, 1024])
def test_metrics_that_share_samples_are_merged(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample counts once if its features can be left out; otherwise a warning says how many
    count again.
    """
    monkeypatch.setattr(sums, "HELD_ROWS", held)
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
        assert (
            f"{again} of {60 + again} generated images count more than once"
            in metric.result.warnings[0].text
        )


@given(
    st.lists(
        st.tuples(st.lists(st.integers(-1, 5), max_size=8), st.integers(0, 8)),
        min_size=1,
        max_size=4,
    )
)
def test_which_images_remain(ranks: list[tuple[list[int], int]]) -> None:
    """Each sample remains, and only once unless several ranks cannot leave it out; unknown samples
    all remain.
    """
    of_ranks = [np.array(numbers, dtype=np.int64) for numbers, _ in ranks]
    free = [min(last, len(numbers)) for numbers, last in ranks]
    marks = [np.arange(len(own)) % 2 for own in of_ranks]
    known = [np.zeros(len(own), [("sample", np.int64), ("hash", np.int64)]) for own in of_ranks]
    for own, numbers, hashes in zip(known, of_ranks, marks, strict=True):
        own["sample"] = numbers
        own["hash"] = hashes
    parts = [np.split(own, [len(own) - last]) for own, last in zip(known, free, strict=True)]
    bound_rows, rest = zip(*parts, strict=True)
    kept_samples = rows.select_new_samples(bound_rows, rest, "hash")
    kept = [
        np.concatenate([np.ones(len(own), bool), samples.new])
        for own, samples in zip(bound_rows, kept_samples, strict=True)
    ]
    different = sum(samples.different for samples in kept_samples)
    assert list(map(len, kept)) == list(map(len, of_ranks))
    remain = [int(number) for own, keep in zip(of_ranks, kept, strict=True) for number in own[keep]]
    bound = [
        int(number)
        for own, last in zip(of_ranks, free, strict=True)
        for number in own[: len(own) - last]
    ]
    for number in range(6):
        there = any(number in own for own in of_ranks)
        assert remain.count(number) == max(there, bound.count(number))
    assert remain.count(-1) == sum(list(own).count(-1) for own in of_ranks)
    first, others = dict[int, int](), list[tuple[int, int]]()
    for own, keep, of_own in zip(of_ranks, kept, marks, strict=True):
        pairs = [*zip(own.tolist(), of_own.tolist(), strict=True)]
        for place, (number, mark) in enumerate(pairs):
            if keep[place]:
                first.setdefault(number, mark)
            else:
                others.append((number, mark))
    assert different == sum(first[number] != mark for number, mark in others), (
        "those left out differ from the first"
    )


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ([0], "one for each of the 2 images"),
        ([0.5, 1.0], "index must be integers"),
        ([0, -2], "not -2"),
        (torch.zeros(2, 1, dtype=torch.int64), r"shape \(2, 1\)"),
        (["a", "b"], "index must be integers"),
        (5, "index must be integers"),
        (np.array([0, 2**64 - 1], dtype=np.uint64), "not -1"),
    ],
)
def test_wrong_numbers(index: Any, said: str) -> None:
    metric = FrechetInceptionDistance(network())
    with pytest.raises(fidtool.InputError, match=said):
        metric.update(IMAGES[:2], real=False, index=index)
    assert metric.state_dict() == {}
    with pytest.raises(fidtool.InputError, match=r"index must be|has 2 elements, but index has 1"):
        gather_outputs([1, 2], index=index)


def test_which_outputs_are_of_other_samples(recwarn: pytest.WarningsRecorder) -> None:
    """In one process. Those of several ranks are in `check_outputs` of gathers.py."""
    floats, labels = torch.arange(24.0).reshape(12, 2), torch.arange(12)
    equal = torch.cat([labels[:6], labels[:6]])
    again = [*range(6), *range(6)]
    gather_outputs(torch.tensor([[torch.nan, 1.0]] * 12), list("abcdefabcdef"), index=again)
    gather_outputs(index=again)
    assert not recwarn
    for outputs, count in (
        ([labels], 1),
        ([floats, list("abcdefghijkl")], 4),
        ([floats], 6),
        ([floats, equal], 6),
    ):
        index = [*range(6), *range(count), *range(6 + count, 12)]
        with pytest.warns(fidtool.FidtoolWarning, match=f"{count} of 12 samples were left out"):
            gather_outputs(*outputs, index=index)


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0


def test_a_single_process() -> None:
    """`WithIndex` and `gather_outputs` without a process group; the order is that of the data
    set.
    """
    loader = torch.utils.data.DataLoader(
        WithIndex(torch.utils.data.TensorDataset(IMAGES)), 7, shuffle=True
    )
    index, brightness = [], []
    for numbers, (images,) in loader:
        index.append(numbers)
        brightness.append(images.float().mean((1, 2, 3)))
    (gathered,) = gather_outputs([*brightness, torch.tensor([])], index=[*index, torch.tensor([])])
    assert torch.equal(gathered, IMAGES.float().mean((1, 2, 3)))
    assert gather_outputs([], index=[]) == ([],)
    assert gather_outputs(["b", "a", "b"], index=[1, 0, 1]) == (["a", "b"],)
    with pytest.raises(
        fidtool.InputError, match="is an IterableDataset, whose samples have no numbers"
    ):
        WithIndex(Stream())
    assert gather_outputs(list(np.array([7, 8])), index=range(2)) == ([7, 8],)
