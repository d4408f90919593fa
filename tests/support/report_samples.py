"""Evaluations like those of a long run, built without one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fidtool.diagnose.diagnosis import Diagnosis, DuplicatesBySet, Health
from fidtool.diagnose.duplicates import Duplicates, SharedCopies
from fidtool.diagnose.findings import Finding
from fidtool.errors import ResultWarning
from fidtool.features.protocol import Definition
from fidtool.metrics.registry import BUILT_IN
from fidtool.result.evaluation import Comparison, Evaluation, SetResult, SkippedFile
from fidtool.result.explanations import (
    Classes,
    ClassResult,
    Difference,
    Exhibit,
    HarmfulImage,
    Influence,
    Interval,
    Neighbour,
    Removal,
    Uncertainty,
)
from fidtool.result.values import FeatureSource, Value
from fidtool.settings.record import RunRecord

NASTY = "<b>&\"quotes'<script>window.hacked=1</script>\n\u202etxt"
"""Characters that a file name can contain, apart from undecodable bytes."""
COMMAND = ("fidtool", "compute", "real", "fake", "--report", "report.html")
METRICS = {
    "sfid": 40.5,
    "kid": 0.0123,
    "kid_std": 0.001,
    "is": 9.25,
    "is_std": 0.125,
    "precision": 0.625,
    "recall": 0.5,
    "density": 0.875,
    "coverage": 0.75,
    "fid_infinity": 11.5,
    "fid_infinity_error": 0.25,
    "cmmd": 1.5,
    "authpct": 87.5,
}


def known_of(features: FeatureSource = FeatureSource(), *names: str) -> tuple[Value, ...]:  # noqa: B008 - it is frozen
    """Return the values of the built-in metrics, or of some, for the features of a network."""
    numbers = [
        (kind.name, number)
        for kind in BUILT_IN.values()
        for number in (*kind.numbers, *kind.summary)
    ]
    return tuple(
        Value(metric, number, features)
        for metric, number in numbers
        if not names or number.name in names
    )


KNOWN = known_of()
DINO = FeatureSource("features", "dinov2", 1024, "dinov2")
FURTHER = FeatureSource("dinov2", "dinov2", 1024, "dinov2")
"""The features of DINOv2 as the first network of a run, and as a further one."""


def write_image(folder: Path, name: str, size: tuple[int, int] = (160, 120), seed: int = 0) -> str:
    """Write an image of noise and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(seed).randint(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    file = os.path.join(folder, name)
    with open(file, "wb") as handle:
        Image.fromarray(pixels).save(handle, "PNG")
    return file


def duplicates(files: Sequence[str] = (), copies: int = 0) -> Duplicates:
    """Return ``copies`` duplicates among 100 images; the files contain the same image."""
    examples = (tuple(files),) * 8 if files else ()
    return Duplicates(
        100, 100 - copies, copies, 0, {1: 100 - 2 * copies, 2: copies}, None, examples
    )


def health(path: str, found: Duplicates) -> Health:
    """Return the health of a set of 100 images."""
    histogram = tuple((place + 1) / 136 for place in range(16))
    return Health(
        path=path,
        images=100,
        formats={"PNG": 90, "JPEG": 10},
        modes={"RGB": 100},
        sizes={"160x120": 60, "32x32": 40},
        aspect_ratios=(1.0, 1.33, 1.33),
        jpeg_quality=(70, 80, 90),
        brightness=(120.5, 30.25),
        histogram=histogram,
        grayscale=0.0,
        unreadable=(),
        duplicates=found,
    )


def bare(*fakes: str, real: str = "real", fid: float = 12.3456) -> Evaluation:
    """Return an evaluation with metrics and nothing else."""
    results = [
        Comparison(SetResult(real, 100), SetResult(fake, 100), {"fid": fid + place}, KNOWN)
        for place, fake in enumerate(fakes)
    ]
    record = RunRecord(
        world_size=2,
        device="NVIDIA <H100>",
        backend="gloo",
        precision="fp32",
        kernels="torch",
        batch_size=50,
        num_workers=4,
        images_computed=200,
        forward_passes=4,
        images_resumed=50,
        cached=(),
        probe="ab" * 32,
        linear_algebra_threads=2,
        seconds={"extract": 12.25, "total": 15.5},
        extraction={"network": 11.5},
        images_per_second=16.5,
        versions={"python": "3.11.7", "torch": "2.9"},
        command=COMMAND,
        host="node7",
        date="2025-01-31T23:59:59Z",
        config={"batch_size": 50, "metrics": ["fid", "kid"], "exhibits": True},
    )
    definition = Definition(
        "inception", "cd" * 32, 2048, 18, 299, "(x-127.5)/127.5", "bilinear", "pillow", 1
    )
    return Evaluation({"features": definition}, tuple(results), record)


def classes(count: int = 40) -> Classes:
    """Return classes with hostile names, the worst first, and one that is only in FAKE."""
    names = [f"n{place:04} {NASTY}" for place in range(count)]
    found = [
        ClassResult(name, 50, 40, {"fid": 90.0 - place, "kid": 0.01})
        for place, name in enumerate(names)
    ]
    worst = {"fid": (names[0], 90.0), "kid": (names[0], 0.01)}
    return Classes(
        "class",
        (*found, ClassResult("few", 0, 1)),
        {"fid": 90.0 - (count - 1) / 2, "kid": 0.01},
        worst,
    )


def rich(evaluation: Evaluation, files: Sequence[str]) -> Evaluation:
    """Add everything that can accompany a metric; ``files`` are shown repeatedly."""
    many = list(files) * (1 + 1000 // len(files))
    results = []
    for place, each in enumerate(evaluation.results):
        result = _full(each, many, place)
        assert result.diagnosis is not None
        assert result.diagnosis.fake is not None
        own = health(result.fake.name, result.diagnosis.fake)
        neighbours = tuple(
            Neighbour(fake, real, 5.5) for fake, real in itertools.pairwise(many[:30])
        )
        random = tuple(many[:48])
        exhibit = Exhibit(own, health(result.real.name, duplicates()), random, neighbours, random)
        results.append(replace(result, exhibit=exhibit))
    interval = Interval(-1.5, 0.5, -2.5, -0.5)
    differences = [
        Difference(one.fake.name, other.fake.name, interval)
        for place, one in enumerate(results)
        for other in results[place + 1 :]
    ]
    definitions, run = evaluation.definitions, evaluation.run
    results = [
        replace(each, missed=(f"{each.fake.name} has FID {each.fid:.6g}, above 10",))
        for each in results
    ]
    return Evaluation(definitions, tuple(results), run, differences=tuple(differences), gated="fid")


def _full(result: Comparison, files: Sequence[str], place: int) -> Comparison:
    fid = result.fid
    corrected = Interval(fid - 1.0, 0.25, fid - 1.5, fid - 0.5)
    found = Finding("noise", "high", 3, files[0], f"3 images look like noise, {files[0]}")
    return Comparison(
        result.real,
        result.fake,
        {**result.metrics, **METRICS},
        KNOWN,
        (
            ResultWarning(result.fake.name, f"{NASTY} is doubtful"),
            ResultWarning("", "about every set"),
        ),
        tuple(
            SkippedFile(result.fake.name, f"{file}.{number}", "truncated")
            for number, file in enumerate(files[:150])
        ),
        Diagnosis(
            DuplicatesBySet(duplicates(), duplicates(files[:8], 20)),
            SharedCopies(20, tuple(itertools.pairwise(files[:9]))),
            (found, Finding("other size", "medium", 100, "", "FAKE's images are smaller", "pair")),
        ),
        {
            "fid": Uncertainty(
                1.0, corrected, "", ((25, fid + 6), (50, fid + 3), (75, fid + 1), (100, fid))
            )
        }
        if place % 2 == 0
        else {"fid": Uncertainty(None, None, "too few images", ((25, fid + 6), (100, fid)))},
        Influence(
            tuple(HarmfulImage(file, 0.5 / (1 + rank)) for rank, file in enumerate(files)),
            (),
            tuple(
                Removal(part, round(100 * part), predicted=fid - 1, distance=fid - 2)
                for part in (0.005, 0.01, 0.02)
            ),
            "100 images for 2048 dimensions",
        ),
    )
