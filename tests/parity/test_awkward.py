"""The collection of unusual image files: each is decoded or refused as its manifest says."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from typing import Any

import pytest

from support.places import CONFORMANCE
from support.processes import PATIENCE

AWKWARD = CONFORMANCE / "awkward"

needs_folder = pytest.mark.skipif(not AWKWARD.is_dir(), reason="needs the conformance images")

LOADED_TWICE = (
    "Pillow refuses to load it, but a second attempt on the same object returns the rows decoded "
    "so far; the program that wrote the manifest read the EXIF data first, which was the first "
    "attempt"
)

OTHER_OUTCOME = dict.fromkeys(
    ("broken_data_stream.png", "badadler.png", "bitrot_IDAT.png"), LOADED_TWICE
)
"""Files whose outcome differs from the manifest, with the reason."""

NO_ANIMATION = {
    "sugarshack.mpo": "a camera's second view of the same moment",
    "sugarshack_mpo_named.jpg": "a camera's second view of the same moment",
    "hopper.psd": "its frames are the layers of one image",
}

NOT_ROTATED = {"g4_orientation_6.tif": "Pillow rotates TIFFs itself"}

DECODE_ALL = r"""
import faulthandler, json, pathlib, re, sys
from fidtool.reading.decode import DecodeError, DecodeOptions, decode
from fidtool.sources.contents import ValueRange

OPTIONS = DecodeOptions(floats=ValueRange(0.0, 255.0))

def peak():
    # Not getrusage, whose peak includes that of the process before exec.
    status = pathlib.Path("/proc/self/status")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) if status.exists() else None

before, found = peak(), {}
for name in json.load(sys.stdin):
    data = pathlib.Path(sys.argv[1], name).read_bytes()
    faulthandler.dump_traceback_later(30, exit=True)
    try:
        image = decode(data, OPTIONS)
        height, width, _ = image.pixels.shape
        seen = image.properties
        found[name] = {"size": f"{width}x{height}", "animated": seen.animated, "rotated": seen.rotated}
    except DecodeError as error:
        found[name] = {"refused": str(error)}
json.dump({"found": found, "peaks": [before, peak()]}, sys.stdout)
"""


def manifest() -> dict[str, dict[str, str]]:
    """Return the rows of the manifest by file name; empty if there is no folder."""
    if not AWKWARD.is_dir():
        return {}
    with open(AWKWARD / "MANIFEST.tsv", encoding="utf-8", newline="") as handle:
        return {
            row["file"]: row
            for row in csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
        }


ROWS = manifest()


@pytest.fixture(scope="module")
def decoded() -> dict[str, Any]:
    """Results of `decode` for every file, from a separate process: no other exception, and at most
    30 s per file.
    """
    present = [name for name in ROWS if (AWKWARD / name).exists()]
    done = subprocess.run(
        [sys.executable, "-c", DECODE_ALL, str(AWKWARD)],
        input=json.dumps(present),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


@needs_folder
def test_the_folder_matches_its_manifest(decoded: dict[str, Any]) -> None:
    assert {path.name for path in AWKWARD.iterdir()} - set(ROWS) == {"MANIFEST.tsv"}
    assert {*OTHER_OUTCOME, *NO_ANIMATION, *NOT_ROTATED} <= set(ROWS)
    # Hidden files are easily lost when a folder is copied.
    assert {name for name in set(ROWS) - set(decoded["found"]) if not name.startswith(".")} == set()


@needs_folder
@pytest.mark.parametrize("name", ROWS)
def test_each_file_is_decoded_or_refused_as_in_the_manifest(
    name: str, decoded: dict[str, Any]
) -> None:
    if name not in decoded["found"]:
        pytest.skip("a hidden file that was lost when the folder was copied")
    found, row = decoded["found"][name], ROWS[name]
    decodes = row['Pillow 13.0.0 convert("RGB")'].startswith("yes")
    assert ("refused" not in found) == (decodes != (name in OTHER_OUTCOME)), found
    if "refused" in found:
        assert found["refused"]
        assert "\n" not in found["refused"]
        return
    facts = dict(fact.split("=") for fact in row["info"].split() if "=" in fact)
    assert found["size"] == row["size"]
    assert found["animated"] == (int(facts.get("frames", 1)) > 1 and name not in NO_ANIMATION)
    assert found["rotated"] == (facts.get("orientation", "1") != "1" and name not in NOT_ROTATED)


@needs_folder
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs Linux to read a process's own peak memory"
)
def test_memory_is_bounded_by_the_largest_image(decoded: dict[str, Any]) -> None:
    """A pixel takes 14 bytes: 4 in Pillow, 4 for its RGB copy, 3 for the bytes passed to NumPy, 3
    in the array.

    Decoders may need as much again, and libraries are loaded on first use. The decompression bombs
    among the files would take thousands of MB. Less than half of the 14 bytes would mean that the
    measurement is wrong.
    """
    declared = [row["size"].split("x") for row in ROWS.values() if "x" in row["size"]]
    largest = max(int(width) * int(height) for width, height in declared)
    before, after = decoded["peaks"]
    assert 14 * largest // 2 < after - before < 2 * 14 * largest + 64 * 2**20
