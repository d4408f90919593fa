"""Images in an S3-compatible store, on three ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run
from support.stores import ARGUMENTS, make_expected, make_place, make_s3, make_to_s3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory)


@pytest.fixture(scope="module")
def expected(place: Path) -> float:
    return make_expected(place)


@pytest.fixture(scope="module")
def s3(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    yield from make_s3(place, tmp_path_factory)


@pytest.fixture
def to_s3(s3: dict[str, str], here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    return make_to_s3(s3, here, monkeypatch)


@pytest.mark.parametrize("form", ["images", "images.zip", "images.tar.gz", "images.parquet"])
def test_and_so_on_three_ranks(
    fidtool: Run, place: Path, expected: float, s3: dict[str, str], to_s3: None, form: str
) -> None:
    run = fidtool("compute", place / "real", f"s3://bucket/{form}", *ARGUMENTS, ranks=3, **s3)
    assert run.fid == expected
