"""Failing runs, and files of the user that a run must not change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Run
from support.pictures import make_pictures
from support.places import FD, TINY
from support.processes import PATIENCE


def test_output_follows_links_and_writes_to_devices(fidtool: Run, tmp_path: Path) -> None:
    images = make_pictures(tmp_path / "images", 20)
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text('{"old": true}')
    link.symlink_to(target)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    for output in (link, pipe):
        assert fidtool("compute", images, images, "--extractor", TINY, "--output", output).status == 0
    assert link.is_symlink()
    assert target.read_text().startswith('{\n  "schema"')
    assert pipe.is_fifo()
    assert reader.communicate(timeout=PATIENCE)[0].startswith(b"{")


@pytest.mark.parametrize("redirection", [">> both", "3>&1 >/dev/null | cat > both"])
def test_output_and_stdout_may_be_the_same_file(environment: dict[str, str], tmp_path: Path, redirection: str) -> None:
    """The record follows the value, also in a regular file."""
    make_pictures(tmp_path / "images", 20)
    (tmp_path / "both").write_text("earlier lines\n")
    output = "/dev/fd/3" if redirection.startswith("3") else "/dev/stdout"
    command = f'"$0" -m fidtool compute images images --extractor "$1" --output {output} {redirection}'
    subprocess.run(["sh", "-c", command, sys.executable, TINY], env=environment, cwd=tmp_path, check=True)
    earlier = "earlier lines\n" if ">>" in redirection else ""
    number = "" if output == "/dev/fd/3" else f"{FD}: 0.0000\n"
    written = (tmp_path / "both").read_text()
    assert written.startswith(f"{earlier}{number}{{\n")
    assert written.endswith("}\n")


def test_the_demo_does_not_overwrite_images(fidtool: Run, tmp_path: Path) -> None:
    mine = make_pictures(tmp_path / "mine" / "real", 2)
    before = {file: file.read_bytes() for file in mine.iterdir()}
    run = fidtool("demo", "--folder", tmp_path / "mine")
    assert run.status == 2
    assert "--folder" in run.stderr
    assert {file: file.read_bytes() for file in mine.iterdir()} == before
