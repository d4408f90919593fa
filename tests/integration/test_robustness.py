"""Failing runs, and files of the user that a run must not change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.command_line import Run
from support.pictures import make_pictures
from support.places import FD, TINY
from support.processes import PATIENCE
from support.ranks import RankServer


def test_output_follows_links_and_writes_to_devices(fidtool: Run, tmp_path: Path) -> None:
    images = make_pictures(tmp_path / "images", 20)
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text('{"old": true}')
    link.symlink_to(target)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    for output in (link, pipe):
        assert (
            fidtool("compute", images, images, "--extractor", TINY, "--output", output).status == 0
        )
    assert link.is_symlink()
    assert target.read_text().startswith('{\n  "schema"')
    assert pipe.is_fifo()
    assert reader.communicate(timeout=PATIENCE)[0].startswith(b"{")


def test_output_and_stdout_may_be_the_same_file(
    environment: dict[str, str], tmp_path: Path, rank_server: RankServer
) -> None:
    """The record follows the value."""
    make_pictures(tmp_path / "images", 20)
    both = tmp_path / "both"
    both.write_text("earlier lines\n")
    arguments = ["compute", "images", "images", "--extractor", TINY, "--output", "/dev/stdout"]
    with open(both, "a") as stdout:
        command = rank_server.stand_in("fidtool", arguments)
        subprocess.run(command, env=environment, cwd=tmp_path, stdout=stdout, check=True)
    assert both.read_text().startswith(f"earlier lines\n{FD}: 0.0000\n{{\n")
    assert both.read_text().endswith("}\n")


def test_the_demo_does_not_overwrite_images(fidtool: Run, tmp_path: Path) -> None:
    mine = make_pictures(tmp_path / "mine" / "real", 2)
    before = {file: file.read_bytes() for file in mine.iterdir()}
    run = fidtool("demo", "--folder", tmp_path / "mine")
    assert run.status == 2
    assert "--folder" in run.stderr
    assert {file: file.read_bytes() for file in mine.iterdir()} == before
