"""Compares fidtool with other tools on the same images and weights: ``python scripts/parity
--help``.
"""

from __future__ import annotations

import sys
from pathlib import Path

# `python scripts/parity` puts scripts/parity first on the path; the modules import each other as
# parity.….
sys.path[0] = str(Path(__file__).resolve().parents[1])

from parity.table import main  # noqa: E402

if __name__ == "__main__":
    main(prog_name="python scripts/parity")
