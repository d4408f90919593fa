"""Images in an S3-compatible store, on three ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import frechet
from support.ranks import RankServer, finish
from support.stores import ARGUMENTS, folders_fid, make_place, s3_server

FORMS = ("images", "images.zip", "images.tar.gz", "images.parquet")


def test_three_ranks_give_the_same_values(
    rank_server: RankServer, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """One run with all forms, each as one FAKE."""
    place = make_place(tmp_path_factory)
    arguments = ["compute", place / "real", *(f"s3://bucket/{form}" for form in FORMS), *ARGUMENTS]
    with s3_server(place, tmp_path / "log") as s3:
        started = rank_server.quick_torchrun(3, "fidtool", arguments, {**environment, **s3}, tmp_path)
        run = finish(rank_server, started)
    assert run.status == 0, run.stderr
    assert run.json["run"]["world_size"] == 3
    assert [frechet(result) for result in run.json["results"]] == [folders_fid(place)] * len(FORMS)
