"""Awkward files on several ranks: the first is named, once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.awkward import AWKWARD, SETTINGS, refused
from support.command_line import Run
from support.pictures import make_pictures

pytestmark = pytest.mark.skipif(not AWKWARD.is_dir(), reason="the conformance data are not beside the checkout")


def test_all_files_together_fail(fidtool: Run, tmp_path: Path) -> None:
    real = make_pictures(tmp_path / "real", 3)
    for ranks in (None, 2):
        run = fidtool("compute", real, AWKWARD, *SETTINGS[:-2], "--quiet", ranks=ranks)
        assert run.status != 0
        (error,) = re.findall(r"^error: cannot decode (.*)$", run.stderr, re.MULTILINE)
        assert refused(Path(error.split(": ")[0]).name)
