"""The collection of unusual image files on the command line: each file alone in a folder, and all together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fidtool.images.decode import decode
from fidtool.settings import Settings
from fidtool.sources.census import IMAGE_SUFFIXES
from fidtool.sources.folder import list_folder
from support.awkward import AWKWARD, SETTINGS, refused
from support.command_line import Run
from support.pictures import make_pictures
from support.processes import PATIENCE

SKIPPING = ("--on-error", "skip", "--max-skip", 1)
pytestmark = pytest.mark.skipif(not AWKWARD.is_dir(), reason="needs the conformance images")


def listed() -> list[str]:
    """Return the names of the files that fidtool lists as images."""
    if not AWKWARD.is_dir():
        return []
    return sorted(list_folder(str(AWKWARD)).names)


def test_only_files_without_an_image_suffix_are_ignored() -> None:
    others = {path.name for path in AWKWARD.iterdir()} - set(listed())
    assert {Path(name).suffix.lower() for name in others if not name.startswith(".")} & IMAGE_SUFFIXES == set()


def test_each_file_alone(here: Run, tmp_path: Path) -> None:
    """With `skip` and with `fail`, the status is 0 or 2, with one line per error and without a traceback.

    Files that can be decoded are the FAKEs of one run, each in its own folder. The others have one run each.
    """
    real = make_pictures(tmp_path / "real", 3)
    names = listed()
    assert len(names) > 100
    good = []
    for number, name in enumerate(names):
        folder = tmp_path / "alone" / str(number)
        folder.mkdir(parents=True)
        (folder / name).symlink_to(AWKWARD / name)
        if not refused(name):
            good.append(folder)
            continue
        strict, lenient = (here("compute", real, folder, *SETTINGS, *more) for more in ((), SKIPPING))
        assert strict.status == lenient.status == 2, name
        assert f"cannot decode {folder / name}: " in strict.error
        assert f"no file in {folder} can be used" in lenient.error
        assert name in lenient.error
    assert len(good) > 50
    strict, lenient = (here("compute", real, *good, *SETTINGS, *more) for more in ((), SKIPPING))
    assert strict.status == lenient.status == 0, strict.stderr
    assert strict.json["results"] == lenient.json["results"]
    assert [result["fake"] for result in strict.json["results"]] == list(map(str, good))
    assert {result["count"]["fake"] for result in strict.json["results"]} == {1}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux to read a process's own peak memory")
def test_all_files_together_skip(environment: dict[str, str], tmp_path: Path) -> None:
    """Three batches may be in memory at a time. The decompression bombs would take thousands of MB more."""
    real, names = make_pictures(tmp_path / "real", 3), listed()
    bad = [name for name in names if refused(name)]
    arguments = ["compute", real, AWKWARD, *SETTINGS, "--on-error", "skip", "--max-skip", "0.5"]
    program = (
        "import pathlib, re, sys\n"
        "from fidtool.cli.main import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1], file=sys.stderr)\n"
    )
    peaks = []
    for last in (arguments, ["compute", real, real, *SETTINGS]):
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, last)],
            # One heap for all threads: otherwise the peak depends on the number of heaps in use.
            env={**environment, "MALLOC_ARENA_MAX": "1"},
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        peaks.append(1024 * int(done.stderr.splitlines()[-1]))
        if last is arguments:
            (result,) = json.loads(done.stdout)["results"]
    assert sorted(Path(entry["file"]).name for entry in result["skipped"]) == bad
    assert result["count"]["fake"] == len(names) - len(bad)
    sizes = [
        image.pixels.nbytes for image in (decode((AWKWARD / name).read_bytes()) for name in names if name not in bad)
    ]
    assert Settings().max_pixels * 3 > 500e6, "a decompression bomb would exceed the bound below"
    assert peaks[0] - peaks[1] < 3 * sum(sizes), (peaks, sum(sizes))
