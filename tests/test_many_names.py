"""Millions of images: named, ordered, planned, dealt and handed over without one being read, each exactly once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fidtool.sources.names import Names, Numbered, Prefixed, beneath
from fidtool.sources.patterns import expand_braces
from support.command_line import Run
from support.places import TINY
from support.processes import PATIENCE

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300)
FILE_NAMES = TEXT | st.binary(min_size=1, max_size=20).filter(lambda data: 0 not in data).map(os.fsdecode)


@settings(max_examples=60, deadline=None)
@given(st.lists(FILE_NAMES, max_size=30))
def test_names_are_what_they_were_made_of(texts: list[str]) -> None:
    names = Names(texts)
    for each in (names, pickle.loads(pickle.dumps(names))):
        assert list(each) == texts
        assert len(each) == len(texts)
        assert [each[index] for index in range(-len(texts), len(texts))] == texts * 2
        assert each[1:3] == texts[1:3]
    assert list(Prefixed("a/", names)) == [f"a/{text}" for text in texts]
    with pytest.raises(IndexError):
        names[len(texts)]


def test_many_names_take_little_more_than_their_letters() -> None:
    names = Names(f"{number:08}.png" for number in range(200_000))
    assert names[123_456] == "00123456.png"
    assert len(pickle.dumps(names)) < 200_000 * 15
    assert (len(Numbered(5)), Numbered(5)[4], Numbered(5)[1:3]) == (5, "[4]", ["[1]", "[2]"])


@pytest.mark.parametrize(
    ("paths", "prefix", "rest"),
    [
        (["a/b/c.tar", "a/b/d.tar"], "a/b/", ["c.tar", "d.tar"]),
        (["a/b/c.tar", "a/bd/c.tar"], "a/", ["b/c.tar", "bd/c.tar"]),
        (["c.tar", "a/c.tar"], "", ["c.tar", "a/c.tar"]),
        (["/c.tar", "/a/c.tar"], "/", ["c.tar", "a/c.tar"]),
        (["s3://b/x/c.tar", "s3://b/y/c.tar"], "s3://b/", ["x/c.tar", "y/c.tar"]),
    ],
)
def test_what_paths_share(paths: list[str], prefix: str, rest: list[str]) -> None:
    assert beneath(paths) == (prefix, rest)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a{0..2}.tar", ["a0.tar", "a1.tar", "a2.tar"]),
        ("a{008..011}", ["a008", "a009", "a010", "a011"]),
        ("{x,y}{1..2}", ["x1", "x2", "y1", "y2"]),
        ("a{b}", ["ab"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


PLAN = textwrap.dedent("""
    import pickle, sys
    import numpy as np
    from fidtool.images.plan import deal, plan_batches
    from fidtool.sources.files import LocalFiles
    from fidtool.sources.image_set import Found, ImageSet
    from fidtool.sources.names import Names, Prefixed
    from fidtool.sources.whole import WholeFiles

    count, ranks = int(sys.argv[1]), 7
    names = Names(f"{number:08}.png" for number in range(count))
    files = LocalFiles(Prefixed("set/", names))
    found = Found("set", "folder", names, "set/", files, WholeFiles(files), None, 0)
    stamps = np.zeros((count, 5), dtype=np.int64)
    images = ImageSet(found, stamps, np.arange(count, dtype=np.uint32)).draw(None, 3)
    images = pickle.loads(pickle.dumps(images.handed_over()))
    batches = plan_batches(images, 64)
    seen = np.zeros(count, dtype=np.uint8)
    for rank in range(ranks):
        for batch in deal(batches, rank, ranks):
            seen[images.order[batch.start : batch.stop]] += 1
    assert (seen == 1).all()
    place = int(np.flatnonzero(images.order == 7_654_321 % count)[0])
    assert images.file(place) == f"set/{7_654_321 % count:08}.png"
    assert "torch" not in sys.modules
""")


STONE = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak(*arguments: object) -> int:
    """Bytes of memory that Python with these arguments takes at most.

    Linux counts in the peak of the process that a program is started from, which is why a small one starts it.
    """
    command = [sys.executable, "-I", "-S", "-c", STONE, sys.executable, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) * 1024


def test_ten_million_names_are_planned_and_each_counts_once() -> None:
    assert peak("-c", PLAN, 10_000_000) < 3000 << 20


def test_memory_hardly_grows_with_the_names(tmp_path: Path) -> None:
    """What lists 20,000 files more takes at most 300 bytes for each, which makes 300 MB of a million."""
    peaks = []
    for count in (20, 20_020):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:08}.bmp").touch()
        peaks.append(peak("-m", "fidtool", "check", folder, "--list"))
    assert peaks[1] - peaks[0] < 20_000 * 300 + (2 << 20), peaks
    assert max(peaks) < 1 << 30, "they are its own"


def test_every_name_counts_on_every_rank(fidtool: Run, tmp_path: Path) -> None:
    """Some thousand files on three ranks: found, handed over, and used once each."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3001):
        Image.new("RGB", (2, 2), (number % 251, number % 17, number % 7)).save(folder / f"{number}.bmp")
    arguments = ("--extractor", TINY, "--no-cache", "--no-diagnosis", "--json")
    runs = [fidtool("compute", folder, folder, *arguments, ranks=ranks) for ranks in (1, 3)]
    assert [run.json["results"][0]["count"]["fake"] for run in runs] == [3001, 3001]
    assert runs[0].metrics == runs[1].metrics
