"""Whole runs on a GPU: `python -m pytest -m gpu`. On other machines they are skipped."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import fidtool
from fidtool.features.resize import Preparation, resize
from support.command_line import Run
from support.pictures import make_pictures
from support.reconstructions import write_backbone

DEVICE = "cuda:0"
RELATIVE = 1e-5
"""Largest relative difference of float32 values between the CPU and a GPU."""
GROWTH = 1.02

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def compute(environment: dict[str, str], tmp_path: Path) -> Callable[..., fidtool.Evaluation]:
    """Compute the metrics of two sets of 40 images on the GPU."""
    real, fake = (
        make_pictures(tmp_path / name, 40, seed) for seed, name in enumerate(("real", "fake"))
    )
    return partial(fidtool.compute, real, fake, **{"device": DEVICE, "cache": False})  # type: ignore[arg-type]


def bits(evaluation: fidtool.Evaluation) -> tuple[dict[str, float], str | None]:
    """Return the values, and the hash of the features of a fixed batch."""
    return dict(evaluation.results[0].metrics), evaluation.run.probe


def test_values_equal_those_of_the_cpu(compute: Callable[..., fidtool.Evaluation]) -> None:
    chosen = {"metrics": ["fid", fidtool.KID(subset_size=20), "prdc"]}
    here, there = (
        dict(compute(device=device, **chosen).results[0].metrics) for device in ("cpu", DEVICE)
    )
    assert there == pytest.approx(here, rel=RELATIVE)


def test_a_run_has_the_same_bits_again_and_with_two_ranks(
    compute: Callable[..., fidtool.Evaluation], fidtool: Run
) -> None:
    found = compute()
    assert bits(compute(num_workers=2)) == bits(found)
    run = fidtool("compute", "real", "fake", "--device", DEVICE, "--no-cache", "--json", ranks=2)
    assert json.loads(run.stdout)["results"][0]["metrics"] == dict(found.results[0].metrics)


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_a_reduced_precision_is_on_record(
    compute: Callable[..., fidtool.Evaluation], precision: str
) -> None:
    exact, found = compute(), compute(precision=precision)
    assert compute(precision=precision, num_workers=2).fid == found.fid
    assert (exact.run.precision, found.run.precision) == ("fp32", precision)
    assert found.fid != exact.fid
    assert found.fid == pytest.approx(exact.fid, rel=0.05)


@contextlib.contextmanager
def fast_settings() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def test_the_state_of_the_calling_program_does_not_change_the_bits(
    compute: Callable[..., fidtool.Evaluation],
) -> None:
    expected = bits(compute())
    stream: torch.cuda.Stream = torch.cuda.Stream(DEVICE)  # type: ignore[no-untyped-call]
    for state in (
        torch.autocast("cuda", torch.bfloat16),
        torch.inference_mode(),
        torch.cuda.stream(stream),
        fast_settings(),
    ):
        with state:
            assert bits(compute()) == expected, state
    found: list[fidtool.Evaluation] = []
    thread = threading.Thread(target=lambda: found.append(compute()))
    thread.start()
    thread.join()
    assert bits(found[0]) == expected


@pytest.mark.parametrize(
    ("kind", "grey_levels"),
    [("pillow-bicubic", 0), ("pillow-bilinear", 0), ("bilinear", 0.01), ("bilinear-tf1", 0.01)],
)
def test_resized_images_equal_those_of_the_cpu(kind: str, grey_levels: float) -> None:
    rng = np.random.RandomState(0)
    for shape in ((97, 61), (40, 400)):
        images = torch.from_numpy(rng.randint(0, 256, (2, *shape, 3)).astype(np.uint8))
        here, there = (
            resize(images.to(device), 96, Preparation(kind)).cpu() for device in ("cpu", DEVICE)
        )  # type: ignore[arg-type]
        assert float((there - here).abs().max()) <= grey_levels


def test_memory_does_not_grow_with_the_number_of_images(environment: dict[str, str]) -> None:
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats(DEVICE)
    seen, batches, size = [], 300, 64
    batch = torch.randint(0, 256, (size, 3, 128, 128), dtype=torch.uint8)

    def images() -> Iterator[torch.Tensor]:
        for number in range(1, batches + 1):
            yield batch
            if number in (batches // 3, batches):
                seen.append(
                    (
                        torch.cuda.max_memory_allocated(DEVICE),
                        torch.cuda.max_memory_reserved(DEVICE),
                    )
                )

    fidtool.compute_statistics(images(), device=DEVICE, batch_size=size, diagnose=False)
    (early, early_reserved), (late, late_reserved) = seen
    assert late <= GROWTH * early
    assert late_reserved <= GROWTH * early_reserved


def test_training_metrics_of_pairs_have_the_bits_of_a_run(
    environment: dict[str, str], tmp_path: Path
) -> None:
    from fidtool.training import (
        LearnedPerceptualImagePatchSimilarity,
        MultiScaleStructuralSimilarityIndexMeasure,
    )

    weights = write_backbone(tmp_path / "alexnet.pth")
    target = torch.randint(0, 256, (3, 3, 180, 180), dtype=torch.uint8)
    preds = target // 2 + 60
    wanted = fidtool.compute(
        *([*images.permute(0, 2, 3, 1).numpy()] for images in (target, preds)),
        metrics=["ms-ssim", fidtool.LPIPS(weights=weights)],
        device=DEVICE,
    ).results[0]
    for metric, name in (
        (MultiScaleStructuralSimilarityIndexMeasure(), "ms_ssim"),
        (LearnedPerceptualImagePatchSimilarity(weights=weights), "lpips"),
    ):
        metric.update(preds[:1], target[:1])
        on_cpu = metric.compute()
        metric.to(DEVICE).reset()
        metric.update(preds.to(DEVICE), target)  # images on the CPU are moved
        value = metric.compute()
        assert value.device == torch.device(DEVICE)
        assert float(value) == wanted.metrics[name]
        assert on_cpu.device.type == "cpu"
