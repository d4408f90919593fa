"""Images in an S3-compatible store, on three ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import frechet
from support.ranks import RankServer, finish
from support.stores import ARGUMENTS, make_expected, make_place, make_s3

FORMS = ("images", "images.zip", "images.tar.gz", "images.parquet")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory)


@pytest.fixture(scope="module")
def expected(place: Path) -> float:
    return make_expected(place)


@pytest.fixture(scope="module")
def s3(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    yield from make_s3(place, tmp_path_factory)


@pytest.fixture(scope="module")
def record(
    rank_server: RankServer, place: Path, s3: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """One run with all forms, each as one FAKE."""
    arguments = ["compute", place / "real", *(f"s3://bucket/{form}" for form in FORMS), *ARGUMENTS]
    environment = {**rank_server.environment, **s3}
    started = rank_server.quick_torchrun(3, "fidtool", arguments, environment, tmp_path_factory.mktemp("run"))
    run = finish(rank_server, started)
    assert run.status == 0, run.stderr
    assert run.json["run"]["world_size"] == 3
    return run.json


@pytest.mark.parametrize("form", FORMS)
def test_three_ranks_give_the_same_values(record: dict[str, Any], expected: float, form: str) -> None:
    (result,) = (each for each in record["results"] if each["fake"] == f"s3://bucket/{form}")
    assert frechet(result) == expected
