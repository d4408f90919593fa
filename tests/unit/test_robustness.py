"""Settings of wrong types, and files that change during a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool as package
from fidtool.settings.settings import Settings
from fidtool.sources.contents import Read
from fidtool.sources.image_set import ImageSet
from support.pictures import make_pictures
from support.places import TINY


def test_files_that_change_during_the_run_are_reported(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_pictures(tmp_path / "images", 20)
    read = ImageSet.read

    def then_changed(self: ImageSet, indices: Sequence[int]) -> Iterator[Read]:
        data = read(self, indices)
        if 7 in indices:
            os.utime(self.file(7), ns=(1, 1))
        return data

    monkeypatch.setattr(ImageSet, "read", then_changed)
    evaluation = package.compute(images, images, extractor=TINY)
    (warning,) = evaluation.run.warnings
    assert "changed while" in warning.text
    assert warning in evaluation.alerts
    assert warning.severity == "medium"
    monkeypatch.undo()
    monkeypatch.setenv("FIDTOOL_CACHE", environment["FIDTOOL_CACHE"])
    assert package.compute(images, images, extractor=TINY).run.images_computed == 20, (
        "it was not cached"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"extractor": Path("net.py")}, "extractor must be a string"),
        ({"fail_above": "20"}, "fail_above must be a number"),
        ({"recursive": "no"}, "recursive must be True or False"),
    ],
)
def test_settings_of_wrong_types_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(package.InputError, match=message):
        package.compute("real", "fake", **settings)


def test_numpy_numbers_are_accepted() -> None:
    assert type(Settings(batch_size=np.int64(4)).batch_size) is int  # type: ignore[arg-type]
    assert type(Settings(max_skip=np.float64(0.1)).max_skip) is float
    assert Settings(max_skip=Fraction(1, 4)).max_skip == 0.25  # type: ignore[arg-type]
