"""Compares two versions of fidtool on the same commands: ``python scripts/compare --help``."""

from __future__ import annotations

import sys
from pathlib import Path

# `python scripts/compare` puts scripts/compare first on the path; the modules import each other as compare.….
sys.path[0] = str(Path(__file__).resolve().parents[1])

from compare.command import main  # noqa: E402

if __name__ == "__main__":
    main(prog_name="python scripts/compare")
