"""Settings of a network are adopted from statistics files; explicit settings take precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY
from support.published_networks import make_sets, randomised
from support.small_sets import make_real

RESNET = ("--extractor", "timm:test_resnet")


@pytest.fixture
def real(here: Run, tmp_path: Path) -> Path:
    return make_real(here, tmp_path)


def test_dims_and_protocol_are_adopted_from_the_file(here: Run, real: Path) -> None:
    said = here("compute", "real", "fake", "--dims", 64, "--protocol", "tensorflow", "--json")
    unsaid = here("compute", "real64.npz", "fake", "--json")
    assert unsaid.metrics == said.metrics
    assert unsaid.json["protocol"] == said.json["protocol"]
    assert (
        "settings taken from real64.npz: dims 64 and protocol tensorflow"
        in unsaid.stderr.splitlines()
    )
    half = here(
        "compute",
        "real64.npz",
        "fake",
        "--protocol",
        "tensorflow",
        "--extractor",
        "inception",
        "--json",
    )
    assert half.metrics == said.metrics
    assert "settings taken from real64.npz: dims 64" in half.stderr.splitlines()
    assert unsaid.json["run"]["notes"] == [
        "settings taken from real64.npz: dims 64 and protocol tensorflow"
    ]
    assert said.json["run"]["notes"] == []


def test_explicit_settings_take_precedence(here: Run, real: Path) -> None:
    dims = here("compute", "real64.npz", "fake", "--dims", 192)
    assert (dims.status, "64 dimensions" in dims.error, "has 192" in dims.error) == (2, True, True)
    protocol = here("compute", "real64.npz", "fake", "--protocol", "clean")
    assert protocol.status == 2
    assert "bicubic-antialias against bilinear-tf1): choose --protocol tensorflow" in protocol.error
    assert (
        here("stats", "fake", "--dims", 64, "--protocol", "clean", "-o", "clean64.npz").status == 0
    )
    both = here("compute", "real64.npz", "fake", "clean64.npz")
    assert (both.status, "use different protocols" in both.error) == (2, True)
    assert "choose" not in both.error, "no single --protocol would match both files"


@pytest.mark.slow
def test_a_published_network_is_adopted_from_the_file(here: Run, tmp_path: Path) -> None:
    """The network may also be CMMD's, which then uses the extractor's features."""
    timm = pytest.importorskip("timm", reason="needs timm, from the extra 'test'")
    make_sets(tmp_path, 4)
    torch.save(
        randomised(timm.create_model("test_resnet"), gain=1.5).state_dict(),
        tmp_path / "weights.pth",
    )
    weights = ("--weights", "weights.pth")
    cmmd = ("--metrics", "fid,cmmd", "--cmmd-extractor", f"{RESNET[1]}@weights=weights.pth")
    assert here("stats", "real", "-o", "real.npz", *RESNET, *weights, *cmmd).status == 0
    for more in ((), cmmd):
        said = here("compute", "real.npz", "fake", *RESNET, *weights, *more, "--json")
        unsaid = here("compute", "real.npz", "fake", *weights, *more, "--json")
        assert unsaid.metrics == said.metrics
        assert (unsaid.json["protocol"], unsaid.json["layers"]) == (
            said.json["protocol"],
            said.json["layers"],
        )
        assert (
            "settings taken from real.npz: extractor timm:test_resnet" in unsaid.stderr.splitlines()
        )
    inception = here("compute", "real.npz", "fake", "--extractor", "inception")
    assert inception.status == 2
    assert "dimensions (of timm:test_resnet)" in inception.error


def test_code_named_in_a_file_is_not_run(here: Run, tmp_path: Path) -> None:
    copy = tmp_path / "mine.py"
    copy.write_text(Path(TINY.rpartition(":")[0]).read_text())
    make_pictures(tmp_path / "real", 4)
    assert here("stats", "real", "-o", "own.npz", "--extractor", "mine.py:network").status == 0
    copy.write_text("raise SystemExit('it ran')")
    refused = here("compute", "own.npz", "real")
    assert refused.status == 2
    assert "own.npz has features of the custom network mine.py:network@" in refused.error
    assert "pass --extractor mine.py:network, with its path" in refused.error


def test_settings_are_adopted_from_two_files(here: Run, real: Path) -> None:
    assert (
        here(
            "stats", "fake", "-o", "fake64.npz", "--dims", 64, "--protocol", "tensorflow", "--quiet"
        ).status
        == 0
    )
    run = here("compute", "real64.npz", "fake64.npz", "--json")
    assert run.json["run"]["notes"] == [
        "settings taken from real64.npz and fake64.npz: dims 64 and protocol tensorflow"
    ]
