"""Named references on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run, frechet
from support.http_store import http_store
from support.offline import needs_weights
from support.pictures import make_pictures
from support.published import EDM, make_mirror

pytestmark = needs_weights


@pytest.fixture
def mirror(environment: dict[str, str], tmp_path: Path) -> Path:
    make_pictures(tmp_path / "fake", 6, 1)
    place = make_mirror(tmp_path / "mirror")
    environment["FIDTOOL_REFERENCES_URL"] = place.as_uri()
    return place


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
