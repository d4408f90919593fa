"""Named references, presets and crops with everything else that a run can do, on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run, frechet
from support.http_store import http_store
from support.offline import needs_weights
from support.pictures import make_pictures
from support.published import ADM, EDM, make_mirror

pytestmark = needs_weights


@pytest.fixture
def mirror(environment: dict[str, str], tmp_path: Path) -> Path:
    make_pictures(tmp_path / "fake", 6, 1)
    place = make_mirror(tmp_path / "mirror")
    environment["FIDTOOL_REFERENCES_URL"] = place.as_uri()
    return place


def test_one_and_two_ranks(fidtool: Run, mirror: Path, tmp_path: Path) -> None:
    """With a preset, a crop, error bars and the influence."""
    line = ["compute", ADM.name, "fake", "--preset", "adm", "--crop-fake", "adm:24", "--uncertainty", "--influence"]
    one = fidtool(*line, "--no-cache", "--json")
    assert one.status == 0, one.stderr
    two = fidtool(*line, "--no-cache", "--json", ranks=2)
    assert two.status == 0, two.stderr
    assert two.metrics.pop("sfid") == pytest.approx(one.metrics["sfid"], rel=1e-12)
    assert {**two.metrics, "sfid": 0} == {**one.metrics, "sfid": 0}
    for name in ("count", "sets", "framing", "diagnosis", "influence"):
        assert two.json["results"][0][name] == one.json["results"][0][name]
    assert two.json["run"]["world_size"] == 2
    assert one.json["results"][0]["framing"] == {"real": None, "fake": "adm:24"}
    assert one.json["results"][0]["uncertainty"]["withheld"]


def test_rank_zero_alone_downloads(fidtool: Run, mirror: Path, environment: dict[str, str]) -> None:
    with http_store(mirror) as store:
        web = {"FIDTOOL_REFERENCES_URL": store.url, "no_proxy": "127.0.0.1"}
        found = fidtool("compute", EDM.name, "fake", "--preset", "edm", "--json", ranks=2, **web)
        assert found.status == 0, found.stderr
        name = EDM.url.partition("://")[2]
        assert store.sent[name] == (mirror / name).stat().st_size
    assert frechet(found.json["results"][0]) > 0


def test_every_rank_ends_if_the_download_fails(fidtool: Run, mirror: Path) -> None:
    failed = fidtool("compute", "edm:ffhq", "fake", "--json", ranks=2)
    assert failed.status != 0
    assert failed.stderr.count("error: ") == 1, failed.stderr
    assert "edm:ffhq" in failed.stderr
