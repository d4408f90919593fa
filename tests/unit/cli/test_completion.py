"""Completion in shells: what they complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Run

COMPLETED = {
    "fidtool com": ["plain,compute"],
    "fidtool compute --pre": ["plain,--preset", "plain,--precision"],
    "fidtool compute --kid-subset-": ["plain,--kid-subset-size"],
    "fidtool compute --precision b": ["plain,bf16"],
    "fidtool compute re": ["file,re"],
    "fidtool compute real/ fa": ["file,fa"],
    "fidtool compute real/ fake/ --report pa": ["file,pa"],
    "fidtool compute --metrics fid kid --dump": ["plain,--dump-config"],
    "fidtool compute --metrics fid,pr": ["plain,fid,prdc"],
    "fidtool compute --metrics fid,kid,fid": ["plain,fid,kid,fid", "plain,fid,kid,fid-infinity"],
    "fidtool compute --metrics my": ["file,my"],
    "fidtool stats --protocol t": ["plain,tensorflow", "plain,torchmetrics"],
    "fidtool stats --protocol my": [""],
    "fidtool compute --preset sty": ["plain,stylegan"],
    "fidtool compute --extractor di": ["plain,dinov2"],
    "fidtool compute --extractor my.p": ["file,my.p"],
    "fidtool metrics fid k": ["plain,kid"],
    "fidtool presets cl": ["plain,clean-fid"],
    "fidtool refs adm:imagenet25": ["plain,adm:imagenet256"],
    "fidtool published adm:imagenet25": ["plain,adm:imagenet256"],
    "fidtool refs --download adm:imagenet25": ["plain,adm:imagenet256"],
    "fidtool verify fid.json --preset cl": ["plain,clean-fid"],
    "fidtool guide pa": ["plain,papers", "plain,parts"],
    "fidtool stats --layout a": ["plain,adm"],
    "fidtool check --against re": ["file,re"],
    "fidtool verify fi": ["file,fi"],
    "fidtool unknown --ver": ["plain,--version"],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_what_is_completed(
    here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    """Through click's protocol, also where settings in a file are wrong."""
    (tmp_path / "pyproject.toml").write_text("[tool.fidtool]\nqwxyz = 3\n")
    for name, value in ("WORDS", line), ("CWORD", str(len(line.split()) - 1)):
        monkeypatch.setenv(f"COMP_{name}", value)
    monkeypatch.setenv("_FIDTOOL_COMPLETE", "bash_complete")
    outcome = here()
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines() == COMPLETED[line]


def test_in_bash(environment: dict[str, str], tmp_path: Path) -> None:
    """Without an import of torch, whose time one would wait for at each key."""
    if (bash := shutil.which("bash")) is None:
        pytest.skip("needs bash")
    command = tmp_path / "fidtool"
    command.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -X importtime -m fidtool "$@" 2>> imports\n'
    )
    command.chmod(0o755)
    script = """
        eval "$(_FIDTOOL_COMPLETE=bash_source fidtool)" && complete -p fidtool
        complete_last() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _fidtool_completion fidtool && echo "${COMPREPLY[@]}"
        }
        complete_last fidtool compute real/ fake/ --precision bf
        complete_last fidtool compute real/ fake/ --metrics fid,k
        complete_last fidtool guide cach
        complete_last fidtool metrics pr
    """
    path = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    run = subprocess.run(
        [bash, "-c", script],
        env={**environment, "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    registered, *completed = run.stdout.splitlines()
    assert registered == "complete -o nosort -F _fidtool_completion fidtool"
    assert completed == ["bf16", "fid,kid", "caching", "prdc"], run.stderr
    imported = (tmp_path / "imports").read_text()
    assert imported.count("| fidtool.cli.main\n") == 5
    assert " torch\n" not in imported
