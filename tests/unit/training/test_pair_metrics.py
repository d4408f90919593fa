"""PSNR, SSIM, MS-SSIM and LPIPS for training loops, in one process. See also
test_training_ranks.
"""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fidtool
from fidtool.training import (
    FrechetInceptionDistance,
    LearnedPerceptualImagePatchSimilarity,
    MultiScaleStructuralSimilarityIndexMeasure,
    PeakSignalNoiseRatio,
    StructuralSimilarityIndexMeasure,
)
from fidtool.training.pair_metrics import ReconstructionMetric
from support.pictures import pictures
from support.reconstructions import write_backbone
from support.tiny_network import network

Pairs = tuple[torch.Tensor, torch.Tensor]


def pairs_of(count: int, side: int = 24, seed: int = 1) -> Pairs:
    """Images, and noisier ones of them: uint8 of shape (count, 3, side, side + 3)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    target = torch.nn.functional.interpolate(coarse, (side, side + 3), mode="bilinear")
    preds = target + torch.randn(target.shape, generator=generator) * 0.05
    return (preds.clamp(0, 1) * 255).byte(), (target * 255).byte()


def by_command(pairs: Pairs, *metrics: Any) -> dict[str, float]:
    real, fake = ([*images.permute(0, 2, 3, 1).numpy()] for images in reversed(pairs))
    return (
        fidtool.compute(real, fake, metrics=[*metrics], cache=False, diagnose=False)
        .results[0]
        .metrics
    )


def values(metric: ReconstructionMetric) -> dict[str, float]:
    value = metric.compute()
    assert (value.dtype, value.shape) == (torch.float64, ())
    assert metric.result is not None
    assert float(value) == next(iter(metric.result.values.values()))
    return dict(metric.result.values)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_backbone(tmp_path_factory.mktemp("weights") / "alexnet.pth")


def test_values_have_the_bits_of_the_command(backbone: Path, environment: object) -> None:
    pairs = pairs_of(7, 180)
    computed = by_command(pairs, "psnr", "ssim", "ms-ssim", fidtool.LPIPS(weights=backbone))
    metrics = [
        PeakSignalNoiseRatio(),
        StructuralSimilarityIndexMeasure(),
        MultiScaleStructuralSimilarityIndexMeasure(),
        LearnedPerceptualImagePatchSimilarity(weights=backbone),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    for metric in metrics:
        for start in (3, 0, 5):  # in another order and in other batches
            metric.update(*(images[start : {3: 5, 0: 3, 5: 7}[start]] for images in pairs))
        for name, value in values(metric).items():
            assert value == computed[name], name
        assert metric.result is not None
        assert (metric.result.real, metric.result.fake, metric.result.scope) == (
            7,
            7,
            "this process",
        )
        assert metric.result.warnings == ()
    torch.set_num_threads(threads)
    assert {name for metric in metrics for name in values(metric)} == set(computed)


def test_floats_are_rounded_to_the_bytes_of_the_command() -> None:
    preds, target = (torch.rand(4, 3, 9, 9), torch.rand(4, 3, 9, 9))
    bytes_of = [(images * 255 + 0.5).byte() for images in (preds, target)]
    wanted = PeakSignalNoiseRatio()
    wanted.update(bytes_of[0], bytes_of[1])
    for metric in (PeakSignalNoiseRatio(normalize=True), PeakSignalNoiseRatio(data_range=1.0)):
        metric.update(preds, target)
        assert values(metric) == values(wanted)
    assert PeakSignalNoiseRatio(255).normalize is False
    gray, expanded = PeakSignalNoiseRatio(255), PeakSignalNoiseRatio()
    gray.update(bytes_of[0][:, :1], bytes_of[1][:, :1])
    expanded.update(*(images[:, :1].expand(-1, 3, -1, -1) for images in bytes_of))
    assert values(gray) == values(expanded)


def test_arguments_of_torchmetrics_metric() -> None:
    metric = PeakSignalNoiseRatio(
        compute_on_cpu=True, compute_with_cache=False, dist_sync_on_step=False
    )
    metric.update(*pairs_of(3))
    assert values(metric)
    for refused in (
        {"dist_sync_on_step": True},
        {"dist_sync_fn": print},
        {"distributed_available_fn": bool},
    ):
        with pytest.raises(
            fidtool.InputError, match="cannot be used, because the metric synchronises the ranks"
        ):
            StructuralSimilarityIndexMeasure(**refused)  # type: ignore[arg-type]


def test_sizes_may_differ_between_calls_and_batches_may_be_empty() -> None:
    metric = StructuralSimilarityIndexMeasure()
    parts = [pairs_of(2, 24), pairs_of(3, 31), pairs_of(0)]
    of_batches = [float(metric(*part)) for part in parts]
    assert of_batches[2] != of_batches[2], "the mean of no pairs is NaN"
    assert values(metric)["ssim"] == pytest.approx(
        (2 * of_batches[0] + 3 * of_batches[1]) / 5, rel=1e-12
    )
    one = PeakSignalNoiseRatio()
    one.update(*pairs_of(1))
    assert set(values(one)) == {"psnr"}, "one pair has no deviation"


@pytest.mark.parametrize(
    ("preds", "target", "index", "text"),
    [
        (
            torch.zeros(2, 3, 8, 8),
            torch.zeros(2, 3, 8, 8),
            None,
            "^preds: images must be uint8, not float32; pass norm",
        ),
        (pairs_of(2)[0], pairs_of(2)[1].float(), None, "^target: images must be uint8"),
        (
            pairs_of(2)[0],
            pairs_of(3)[1],
            None,
            r"same shape, not \(2, 3, 24, 27\) and \(3, 3, 24, 27\)",
        ),
        (pairs_of(2)[0], pairs_of(2)[1][:, :1], None, r"and \(2, 1, 24, 27\)"),
        (
            pairs_of(2)[0].numpy(),
            pairs_of(2)[1].numpy(),
            None,
            "^preds: images must be a torch.Tensor, not ndarray",
        ),
        ([], [], None, "^preds: images must be a torch.Tensor, not list"),
        (*pairs_of(2, 5), None, r"^SSIM needs images of at least 6×6 pixels, but one has 8×5$"),
        (
            *pairs_of(2),
            [1],
            r"^index must be integers, one for each of the 2 pairs, not int64 of shape \(1,\)",
        ),
        (*pairs_of(2), [1.0, 2.0], r"^index must be integers, .* not float64 of shape \(2,\)"),
        (*pairs_of(2), torch.tensor([1, -2]), "in the dataset, from 0, not -2"),
        (*pairs_of(2), torch.tensor([[1], [2]]), r"not int64 of shape \(2, 1\)"),
        (*pairs_of(2), 7, "^index must be integers"),
    ],
)
def test_invalid_pairs(preds: Any, target: Any, index: Any, text: str) -> None:
    metric = StructuralSimilarityIndexMeasure()
    with pytest.raises(fidtool.InputError, match=text):
        metric.update(preds, target, index)
    with pytest.raises(
        fidtool.InputError,
        match=r"^SSIM needs at least 1 pair of images, but there are 0: add them wi",
    ):
        metric.compute()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: PeakSignalNoiseRatio(2.0),
            "data_range must be 1 for floats in 0..1, or 255 for uint8 images, not 2.0",
        ),
        (lambda: PeakSignalNoiseRatio(255, normalize=True), "data_range must be 1 for floats"),
        (lambda: PeakSignalNoiseRatio((0, 1)), "data_range must be 1"),  # type: ignore[arg-type]
        (lambda: PeakSignalNoiseRatio(normalize="relu"), "normalize must be True or False"),  # type: ignore[arg-type]
        (
            lambda: LearnedPerceptualImagePatchSimilarity("squeeze"),
            "net_type must be alex or vgg, not 'squeeze'",
        ),  # type: ignore[arg-type]
        (
            lambda: LearnedPerceptualImagePatchSimilarity(weights="no.pth"),
            "^weights='no.pth' is neither a file",
        ),
    ],
)
def test_invalid_settings(make: Callable[[], object], text: str, environment: object) -> None:
    with pytest.raises(fidtool.InputError, match=text):
        make()


def test_an_unknown_keyword_is_named() -> None:
    for kind in (PeakSignalNoiseRatio, LearnedPerceptualImagePatchSimilarity):
        with pytest.raises(TypeError, match="unexpected keyword argument 'nomalize'"):
            kind(nomalize=True)  # type: ignore[call-arg]


def test_a_pair_that_cannot_be_compared_adds_none() -> None:
    metric = MultiScaleStructuralSimilarityIndexMeasure()
    with pytest.raises(
        fidtool.InputError,
        match=r"MS-SSIM needs images of at least 176×176 pixels, but one has 178×175$",
    ):
        metric.update(*pairs_of(3, 175))
    metric.update(*pairs_of(3, 176))
    assert metric.compute() > 0
    assert metric.result is not None
    assert metric.result.fake == 3


def test_each_index_counts_once() -> None:
    preds, target = pairs_of(5)
    wanted, metric = PeakSignalNoiseRatio(), PeakSignalNoiseRatio()
    wanted.update(preds, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)
        metric.update(preds[:4], target[:4], index=torch.tensor([7, 0, 3, 2], dtype=torch.int32))
        metric.update(preds[[4, 1, 4]], target[[4, 1, 4]], [9, 0, 9])
        metric.update(preds[:0], target[:0])
        assert values(metric) == values(wanted)
    metric.update(preds[:1], target[3:4], index=[2])
    # The one that was added later.
    with pytest.warns(fidtool.FidtoolWarning, match="^1 pairs were left out"):
        assert values(metric) == values(wanted)
    assert metric.result is not None
    assert metric.result.fake == 5
    metric.merge_state(metric.clone())
    assert values(metric) == values(wanted)
    metric.merge_state(wanted)
    assert metric.compute() == wanted.compute()
    assert metric.result.fake == 10, "pairs without an index all count"
    metric.reset()
    metric.update(preds, target)
    assert values(metric) == values(wanted)


@pytest.fixture
def filled(backbone: Path) -> list[ReconstructionMetric]:
    metrics = [PeakSignalNoiseRatio(), LearnedPerceptualImagePatchSimilarity(weights=backbone)]
    for metric in metrics:
        metric.update(*pairs_of(5, 40))
    return metrics


def test_copies_and_merges(filled: list[ReconstructionMetric], environment: object) -> None:
    for metric in filled:
        before = values(metric)
        copies = [metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))]
        for copied in copies:
            assert values(copied) == before
            copied.update(*pairs_of(4, 40, seed=2))
            assert values(copied) != before
        assert values(metric) == before, "a copy has its own values"
        other = metric.clone()
        other.reset()
        other.update(*pairs_of(4, 40, seed=2))
        metric.merge_state(other)
        assert values(metric) == values(copies[0])
    with pytest.raises(
        fidtool.InputError, match=r"takes a fidtool.training.PeakSignalNoiseRatio, not Learned"
    ):
        filled[0].merge_state(filled[1])


def test_state(
    filled: list[ReconstructionMetric], backbone: Path, environment: object, tmp_path: Path
) -> None:
    """No network is in it; a strict load; a warning for pairs that count twice; other settings are
    refused.
    """
    for metric in filled:
        model, file = torch.nn.ModuleDict({"metric": metric}), io.BytesIO()
        assert list(model.parameters()) == []
        assert model.state_dict() == {}, "as torchmetrics'"
        metric.persistent(True)
        torch.save(model.state_dict(), file)
        assert len(file.getvalue()) < 10_000
        file.seek(0)
        other = metric.clone()
        other.update(*pairs_of(3, 40, seed=3))
        torch.nn.ModuleDict({"metric": other}).load_state_dict(torch.load(file, weights_only=True))
        assert values(other) == values(metric)
        other.update(*pairs_of(5, 40))
        with pytest.warns(
            fidtool.FidtoolWarning,
            match="^5 pairs that were added after loading a checkpoint .* count twice",
        ):
            other.compute()
    moved = LearnedPerceptualImagePatchSimilarity(
        weights=shutil.copy(backbone, tmp_path / "moved.pth")
    )
    moved.load_state_dict(filled[1].state_dict())
    assert values(moved) == values(filled[1])
    text = r"the checkpoint and this metric differ \(own: lpips of SHA-256 \w{12} against psnr\)"
    with pytest.raises(fidtool.InputError, match=text):
        filled[0].load_state_dict(filled[1].state_dict())
    metric, indexed = PeakSignalNoiseRatio(), PeakSignalNoiseRatio()
    indexed.update(*pairs_of(5), index=range(5))
    indexed.persistent(True)
    metric.load_state_dict(indexed.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)
        metric.update(*pairs_of(5), index=range(5))
        assert values(metric) == values(indexed)


def test_what_a_merged_metric_restored_is_still_known() -> None:
    for make in (PeakSignalNoiseRatio, lambda: FrechetInceptionDistance(network())):
        saved, restored, joined = make(), make(), make()
        for metric in (saved, joined):
            preds, target = pairs_of(8)
            if isinstance(metric, FrechetInceptionDistance):
                metric.update(target, real=True)
                metric.update(preds, real=False)
            else:
                metric.update(preds, target)
        saved.persistent(True)
        restored.load_state_dict(saved.state_dict())
        joined.merge_state(restored)
        with pytest.warns(
            fidtool.FidtoolWarning,
            match="8 .* that were added after loading a checkpoint .* count twice",
        ):
            joined.compute()


def test_a_state_of_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = PeakSignalNoiseRatio()
    metric.persistent(True)
    metric.update(*pairs_of(5))
    with monkeypatch.context() as patched:
        patched.setattr("fidtool.training.synced_metric.group_rank_and_size", lambda _: (0, 2))
        state = metric.state_dict()
        patched.setattr("fidtool.training.synced_metric.group_rank_and_size", lambda _: (1, 2))
        with pytest.warns(
            fidtool.FidtoolWarning, match="of rank 0 of 2, whose pairs belong to another rank"
        ):
            metric.load_state_dict(state)
    metric.update(*pairs_of(2))
    with pytest.warns(fidtool.FidtoolWarning, match="pairs from before the checkpoint are missing"):
        metric.compute()


def test_identical_images_are_said() -> None:
    metric, (_, target) = PeakSignalNoiseRatio(), pairs_of(3)
    metric.update(target, target)
    with pytest.warns(
        fidtool.FidtoolWarning,
        match=r"the PSNR of 3 pairs of \(almost\) identical images counts as 100",
    ):
        assert metric.compute() == 100
    assert metric.result is not None
    assert len(metric.result.warnings) == 1


def test_weights_that_are_not_numbers(tmp_path: Path, backbone: Path) -> None:
    tensors = torch.load(backbone, weights_only=True)
    tensors["features.0.weight"][0] = float("nan")
    torch.save(tensors, tmp_path / "nan.pth")
    metric = LearnedPerceptualImagePatchSimilarity(weights=tmp_path / "nan.pth")
    with pytest.raises(fidtool.RunError, match="LPIPS of a pair is NaN or infinite"):
        metric.update(*pairs_of(2, 40))


def test_torchs_defaults_have_no_effect(
    filled: list[ReconstructionMetric], backbone: Path, environment: object
) -> None:
    wanted = [values(metric) for metric in filled]
    pairs = pairs_of(5, 40)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            made = [PeakSignalNoiseRatio(), LearnedPerceptualImagePatchSimilarity(weights=backbone)]
            for metric in made:
                torch.nn.ModuleList([metric]).half()
                metric.update(*pairs)
            assert [values(metric) for metric in made] == wanted
    finally:
        torch.set_default_dtype(torch.float32)


def test_collections_of_torchmetrics(backbone: Path) -> None:
    """Beside the FID, and a checkpoint of torchmetrics' metrics."""
    pytest.importorskip("torchmetrics", reason="its collection takes them")
    from torchmetrics import MetricCollection
    from torchmetrics.image import LearnedPerceptualImagePatchSimilarity as Theirs

    preds, target = pairs_of(6, 40)
    lpips = LearnedPerceptualImagePatchSimilarity(weights=backbone)
    metrics = MetricCollection(
        {"psnr": PeakSignalNoiseRatio(), "ssim": StructuralSimilarityIndexMeasure(), "lpips": lpips}
    )
    of_batch = metrics(preds[:2], target[:2])
    metrics.update(preds=preds[2:], target=target[2:])
    computed = metrics.compute()
    assert set(computed) == set(of_batch) == {"psnr", "ssim", "lpips"}
    wanted = by_command((preds, target), "psnr", "ssim", fidtool.LPIPS(weights=backbone))
    assert {name: float(value) for name, value in computed.items()} == {
        name: wanted[name] for name in computed
    }
    metrics.reset()
    both = MetricCollection(
        {"psnr": PeakSignalNoiseRatio(), "fid": FrechetInceptionDistance(network())}
    )
    both.update(preds=preds, target=target, imgs=pictures(4, 1), real=False)
    assert float(both["psnr"].compute()) == wanted["psnr"]
    state = {f"net.{name}": tensor for name, tensor in torch.nn.Linear(2, 2).state_dict().items()}
    with pytest.warns(
        fidtool.FidtoolWarning, match="checkpoint comes from a metric of torchmetrics"
    ):
        lpips.load_state_dict(state, strict=True)
    assert issubclass(Theirs, type(lpips).__mro__[3])


@pytest.mark.parametrize("order", ["same", "next", "other batch"])
def test_other_orders_are_said(order: str) -> None:
    """Whether the partners are in the same batch or not; a merge has the pairs of both, and a reset
    forgets them.
    """
    preds, target = pairs_of(40)
    moved = preds.roll({"same": 0, "next": 1, "other batch": 20}[order], 0)
    metric = PeakSignalNoiseRatio()
    for batch in zip(moved.split(10), target.split(10), strict=True):
        metric.update(*batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric.compute()
    assert metric.result is not None
    said = [
        warning
        for warning in metric.result.warnings
        if "are probably in different orders" in warning.text
    ]
    assert len(said) == len(caught) == (order != "same")
    assert all(
        " of 40 sampled preds fit the target of another pair better" in warning.text
        for warning in said
    )
    other = PeakSignalNoiseRatio()
    other.merge_state(metric)
    other.compute()
    assert other.result is not None
    assert list(other.result.warnings) == said
    metric.reset()
    metric.update(preds, target)
    metric.compute()
    assert metric.result.warnings == ()


def test_the_sample_of_many_pairs_is_the_same_in_any_order() -> None:
    """Nor does it depend on pairs that are added again."""
    preds, target = pairs_of(600, side=8)
    preds[1::3] = preds[1::3].flip(0)
    warned = []
    for orders in ((torch.arange(600),), (torch.arange(600).flip(0), torch.arange(300))):
        metric = PeakSignalNoiseRatio()
        for order in orders:
            for part in order.split(70):
                metric.update(preds[part], target[part])
        metric.compute()
        assert metric.result is not None
        warned.append([warning.text for warning in metric.result.warnings])
    (text,) = warned[0]
    assert " of 256 sampled preds fit the target of another pair better" in text
    assert warned[1] == warned[0]
