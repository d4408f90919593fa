"""A run that was killed goes on where it was, with any number of ranks, to the same bits."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, Run, free_port, make_pictures
from ranks import Rank, RankServer

import fidtool as package
from fidtool.images.source import BadFile
from fidtool.images.traits import Traits
from fidtool.statistics.checkpoint import MANIFEST, Checkpoint
from fidtool.statistics.share import Share

FAULTY = f"{Path(__file__).parent / 'faulty_network.py'}:network"
KILLS = 24
BATCHES = 150
PACE = 0.02
EVERY = 0.1


def most_lost(ranks: int) -> int:
    """Forward passes that a kill can cost: those since the last writing, in an interval and in two writings.

    While a rank writes, its lanes (threads that run the network, two together or one a rank on two cores) finish what
    they have and what waits for them; in the interval between, each lane does a pass in no less than PACE seconds.
    """
    import os

    lanes = max(1, (os.cpu_count() or 1) // ranks)
    return ranks * (lanes * (int(EVERY / PACE) + 2) + 2 * (2 * lanes + 1))


def test_kills_at_random_instants_cost_an_interval_each_and_no_bit(rank_server: RankServer, tmp_path: Path) -> None:
    """The network counts its passes in a file, those of killed runs as well."""
    server = rank_server
    server.folder = tmp_path
    make_pictures(tmp_path / "real", BATCHES, 1)
    make_pictures(tmp_path / "fake", BATCHES, 2)
    (tmp_path / "real" / "00077.png").write_bytes(b"no image")  # what is skipped is kept as well
    arguments = ["compute", "real", "fake", "--extractor", FAULTY, "--no-cache", "--batch-size", "1", "--json"]
    arguments += ["--on-error", "skip"]
    keeping = [*arguments, "--checkpoint", "kept", "--checkpoint-every", str(EVERY)]
    (alone,) = server.start(arguments, 1)
    assert server.wait([alone], 60) == [0], alone.stderr
    reference = json.loads(alone.stdout)["results"]

    chance = random.Random(20)
    kills = resumes = finished = 0
    passes = tmp_path / "passes"
    plan = allowed = 2 * BATCHES - 1
    while kills < KILLS or (tmp_path / "kept").exists():
        size = chance.choice([1, 2, 3, 4])
        ranks = server.start(keeping, size, FAULT_PACE=str(PACE), FORWARD_LOG=str(passes))
        if None in server.wait(ranks, chance.uniform(0.5, 2.5)):
            kill(ranks, chance)
            assert None not in server.wait(ranks, 30), "a rank hangs"
            kills += 1
            allowed += most_lost(size)
        resumes += len(re.findall(r"kept has [1-9]\d* of 150 batches already", ranks[0].stderr)) > 0
        if [rank.status for rank in ranks] == [0] * size:
            assert json.loads(ranks[0].stdout)["results"] == reference
            assert plan <= passes.stat().st_size <= allowed, (passes.stat().st_size, allowed)
            shutil.rmtree(tmp_path / "kept")
            passes.unlink()
            finished, allowed = finished + 1, plan
    assert finished >= 2
    assert resumes >= 15, f"only {resumes} of {kills} kills left finished work"


def kill(ranks: list[Rank], chance: random.Random) -> None:
    """All of them at once, or one, which the others have to notice; mostly without a warning."""
    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    for rank in ranks if chance.random() < 0.7 else [chance.choice(ranks)]:
        if rank.status is None:
            rank.send(number)


@pytest.mark.parametrize("ranks", [None, 3])
def test_a_finished_run_is_found_again(fidtool: Run, tmp_path: Path, ranks: int | None) -> None:
    images = make_pictures(tmp_path / "images", 30, sides=(31, 40))
    settings = [images, "--extractor", TINY, "--no-cache", "--batch-size", 4]
    assert fidtool("stats", *settings, "-o", "plain.npz").status == 0
    assert fidtool("stats", *settings, "-o", "kept.npz", "--checkpoint", "kept", ranks=ranks).status == 0
    again = fidtool("stats", *settings, "-o", "again.npz", "--checkpoint", "kept")
    assert "kept has 8 of 8 batches already" in again.stderr
    bits = {
        (found.mu.tobytes(), found.sigma.tobytes(), found.count, found.traits)
        for found in (package.read_statistics(tmp_path / f"{name}.npz") for name in ("plain", "kept", "again"))
    }
    assert len(bits) == 1


def test_torchruns_restarts_go_on(environment: dict[str, str], tmp_path: Path) -> None:
    """The last rank is killed in the first attempt alone."""
    make_pictures(tmp_path / "real", 40, 1)
    make_pictures(tmp_path / "fake", 40, 2)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", "--max-restarts=2"]
    settings = ["--extractor", FAULTY, "--no-cache", "--batch-size", "1", "--json", "--checkpoint", "kept"]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "fidtool", "compute", "real", "fake", *settings, "--checkpoint-every", "0"],
        cwd=tmp_path,
        env={**environment, "FAULT": "kill", "FAULT_RANK": "1", "FAULT_ATTEMPT": "0", "FAULT_PACE": "0.01"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["run"]["images_resumed"] > 0
    assert result["results"][0]["count"] == {"real": 40, "fake": 40}
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1


@pytest.fixture
def kept(here: Run, tmp_path: Path) -> list[Any]:
    """Arguments of a run with the small network that has filled the folder ``kept``."""
    real, fake = make_pictures(tmp_path / "real", 12, 1), make_pictures(tmp_path / "fake", 12, 2)
    arguments = ["compute", real, fake, "--extractor", TINY, "--no-cache", "--batch-size", 2, "--checkpoint", "kept"]
    assert here(*arguments).status == 0
    return arguments


OTHERS = {
    "protocol": (["--protocol", "tensorflow"], "resize was bilinear then and is bilinear-tf1 now"),
    "batch size": (["--batch-size", 3], "batch_size was 2 then and is 3 now"),
    "number": (["--num", 10], "num was None then and is 10 now"),
    "seed": (["--seed", 1], "seed was 0 then and is 1 now"),
    "network": (["--extractor", TINY.replace(":network", ":large")], "dims was 16 then and is 3 now"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_runs_checkpoint_is_refused_by_name(here: Run, kept: list[Any], other: str) -> None:
    more, difference = OTHERS[other]
    run = here(*kept, *more)
    assert run.status == 2
    assert difference in run.error
    assert "belongs to another run" in run.error


def test_another_sets_checkpoint_is_refused_by_name(here: Run, kept: list[Any], tmp_path: Path) -> None:
    third = make_pictures(tmp_path / "third", 12, 3)
    assert f"and this one is of {tmp_path / 'real'}, {third}" in here(*kept[:2], third, *kept[3:]).error
    (tmp_path / "fake" / "00003.png").touch()
    assert f"files of {tmp_path / 'fake'} have changed since" in here(*kept).error
    (tmp_path / "fake" / "00003.png").unlink()
    assert f"{tmp_path / 'fake'} had 12 images then and has 11 now" in here(*kept).error
    assert here(*kept, "--checkpoint", "elsewhere").status == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "no checkpoint of this version"), ("{}", "no checkpoint of")],
)
def test_a_damaged_manifest_is_refused(here: Run, kept: list[Any], tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "kept" / MANIFEST).write_text(content)
    assert message in here(*kept).error


def test_a_file_is_no_folder(here: Run, kept: list[Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in here(*kept, "--checkpoint", "file").error


def test_a_damaged_part_is_said_and_computed_again(here: Run, kept: list[Any], tmp_path: Path) -> None:
    before = here(*kept, "--json")
    part = next((tmp_path / "kept").glob("000-*.part.npz"))
    whole = part.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", whole[:700] + bytes([whole[700] ^ 1]) + whole[701:]):
        for file in (tmp_path / "kept").glob("000-*.part.npz"):
            file.unlink()
        part.write_bytes(damage)
        run = here(*kept, "--json")
        assert f"{part.relative_to(tmp_path)} is damaged" in run.stderr
        assert run.json["results"][0]["metrics"] == before.json["results"][0]["metrics"]
        assert run.json["run"]["images_computed"] == 12
        assert run.json["run"]["images_resumed"] == 12


def test_a_folder_that_cannot_be_written_is_said(here: Run, kept: list[Any]) -> None:
    """Nobody, root neither, may make files in /sys."""
    run = here(*kept, "--checkpoint", "/sys/fidtool", "--quiet")
    assert run.status == 0
    (line,) = run.stderr.splitlines()[:1]
    assert line.startswith("warning: --checkpoint /sys/fidtool cannot be written (")
    assert run.stderr.count("/sys/fidtool") == 1


def test_what_was_skipped_is_not_forgotten(here: Run, kept: list[Any], tmp_path: Path) -> None:
    (tmp_path / "fake" / "00005.png").write_bytes(b"no image")
    skip = [*kept, "--checkpoint", "skipping", "--on-error", "skip", "--max-skip", "0.1", "--json"]
    first, second = here(*skip), here(*skip)
    assert second.json["run"]["images_resumed"] == 24
    assert first.json["results"] == second.json["results"]
    assert second.json["results"][0]["skipped"][0]["file"].endswith("00005.png")
    strict = here(*kept, "--checkpoint", "skipping")
    assert strict.status == 2
    assert "00005.png" in strict.error
    assert "--on-error skip" in strict.error
    assert "none" not in here(*skip, "--max-skip", "0.01").error


# The folder itself.


def share_of(batches: list[int]) -> Share:
    """Batch b holds b + 1 images whose two features tell which they are."""
    import torch

    share = Share(8, 2, 18)
    for batch in batches:
        features = torch.arange(2 * (batch + 1)).view(-1, 2) / 4.0 + batch
        share.add(batch, features, Traits(lossy=batch), [BadFile(f"{batch}", "broken")])
    return share


def totals(share: Share) -> tuple[Any, ...]:
    frozen = share.moments.totals()
    low, high = frozen["low"].astype(object), frozen.get("high", np.zeros_like(frozen["low"])).astype(object)
    return (
        int(frozen["count"]),
        frozen["sum"].tolist(),
        (low + high * 2**32).tolist(),
        share.traits,
        sorted(bad.file for bad in share.skipped),
        share.done.tolist(),
    )


def checkpoint(folder: Path, name: str, said: list[str] | None = None) -> Checkpoint:
    made = Checkpoint(str(folder), 0.0, (said if said is not None else []).append)
    made.join(name, 0)
    return made


def test_parts_add_up_to_the_whole(tmp_path: Path) -> None:
    for name, batches in (("a", [0, 3]), ("b", [1]), ("c", [7, 2, 4])):
        checkpoint(tmp_path, name).keep(0, share_of(batches))
    loaded = Share(8, 2, 18)
    checkpoint(tmp_path, "d").load(0, loaded)
    assert totals(loaded) == totals(share_of([0, 1, 2, 3, 4, 7]))


def test_no_batch_counts_twice(tmp_path: Path) -> None:
    """Two runs at once on one folder write parts with batches in common."""
    checkpoint(tmp_path, "a").keep(0, share_of([0, 1, 2]))
    checkpoint(tmp_path, "b").keep(0, share_of([2, 3]))
    loaded = Share(8, 2, 18)
    checkpoint(tmp_path, "c").load(0, loaded)
    assert totals(loaded) in [totals(share_of([0, 1, 2])), totals(share_of([2, 3]))]


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed before the old parts were deleted"])
def test_a_part_takes_the_place_of_those_it_was_made_of(
    tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path, "a").keep(0, share_of([0, 1]))
    second = checkpoint(tmp_path, "b")
    share = Share(8, 2, 18)
    second.load(0, share)
    share.absorb(share_of([5]).freeze() or {})
    if killed:
        monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    second.keep(0, share)
    assert len(list(tmp_path.glob("*.part.npz"))) == 1 + killed
    for _ in range(2):
        loaded = Share(8, 2, 18)
        checkpoint(tmp_path, "c").load(0, loaded)
        assert totals(loaded) == totals(share_of([0, 1, 5]))


def test_an_addition_that_was_interrupted_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's death raises an exception anywhere in the main thread."""
    import torch

    share = share_of([0, 1])
    checkpoint(tmp_path, "a").keep(0, share)
    monkeypatch.setattr(Traits, "__add__", lambda self, other: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        share.add(2, torch.zeros(1, 2), Traits(), [])
    monkeypatch.undo()
    checkpoint(tmp_path, "a").keep(0, share)
    loaded = Share(8, 2, 18)
    checkpoint(tmp_path, "b").load(0, loaded)
    assert totals(loaded) == totals(share_of([0, 1]))


def test_half_written_files_are_swept(tmp_path: Path) -> None:
    old, young = tmp_path / ".000-a-00000.part.npz.x.tmp", tmp_path / ".000-b-00000.part.npz.y.tmp"
    old.touch()
    young.touch()
    import os

    os.utime(old, (time.time() - 100, time.time() - 100))
    checkpoint(tmp_path, "c").load(0, Share(8, 2, 18))
    assert not old.exists()
    assert young.exists()
