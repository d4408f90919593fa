"""Photos and CIFAR-10 images: no false alarms, and duplicates."""

from __future__ import annotations

import numpy as np
import pytest

from fidtool.diagnose.duplicates import find_copies
from fidtool.reading.decode import decode
from support.command_line import Run, messages
from support.degenerate import compared, records_of
from support.encoded import encoded
from support.places import CONFORMANCE

pytestmark = pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="needs the conformance images")


@pytest.mark.parametrize(
    "pair", [("cifar10/train", "cifar10/test"), ("flowers/daisy", "flowers/roses")]
)
def test_photos_have_no_warnings(here: Run, pair: tuple[str, str]) -> None:
    real, fake = (CONFORMANCE / name for name in pair)
    result, _, outcome = compared(here, real, fake)
    assert messages(result) == []
    assert "warning" not in outcome.stderr
    diagnosis = result["diagnosis"]
    assert diagnosis["findings"] == []
    assert diagnosis["shared"] == {"count": 0, "examples": []}
    assert [diagnosis["duplicates"][name]["copies"] for name in ("real", "fake")] == [0, 0]


@pytest.mark.parametrize(
    ("folder", "kind", "quality"), [("cifar10/test", "JPEG", 75), ("flowers/roses", "WEBP", 80)]
)
def test_re_encoded_photos_are_found(folder: str, kind: str, quality: int) -> None:
    """Among the first fifty photos as PNG files."""
    files = sorted((CONFORMANCE / folder).glob("*.*g"))[:50]
    pixels = [decode(file.read_bytes()).pixels for file in files]
    first = records_of([encoded(each, compress_level=1) for each in pixels])
    second = records_of([encoded(each, kind, quality=quality) for each in pixels])
    exact, near = find_copies(np.concatenate([first, second]))
    assert len(np.unique(exact)) == len(exact)
    assert near is not None
    found = near[len(first) :] == np.arange(len(first))
    assert found.mean() >= 0.97
    assert not (near[: len(first)] != np.arange(len(first))).any()
