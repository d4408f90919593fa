"""A run imports no torchvision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.offline import needs_weights
from support.pictures import make_pictures


@needs_weights
def test_a_run_does_not_import_torchvision(tmp_path: Path, environment: dict[str, str]) -> None:
    """That takes longer than 40 images."""
    folder = str(make_pictures(tmp_path / "set", 2))
    code = (
        "import sys, fidtool; fidtool.compute(*sys.argv[1:], dims=64, cache=False); assert 'torch' in sys.modules;"
        "print([name for name in ('torchvision', 'scipy.stats', 'matplotlib') if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, folder, folder], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
