"""Archives, arrays and lists that are damaged, malicious or unusual: a clear error or the right
value.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.bad_forms import REFUSED, make_bad
from support.command_line import Outcome, Run
from support.damage import GIB, npy_header, pixels, sparse, tarred, zipped
from support.odd_forms import RIGHT
from support.places import TINY
from support.source_forms import make_squares, names_in, write_tar, write_zip

COUNT = 20
SMALL = ("--extractor", TINY, "--no-cache", "--json")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_squares(tmp_path_factory.mktemp("odd") / "images", COUNT)


@pytest.fixture
def place(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the test runs, with the images in ``images``."""
    (tmp_path / "images").symlink_to(images)
    monkeypatch.setenv("FIDTOOL_TEST_TRACE", str(tmp_path / "trace"))
    return tmp_path


def everything_in(place: Path) -> set[str]:
    return {
        str(file)
        for file in place.rglob("*")
        if "fidtool-cache" not in file.parts and not file.is_socket()
    }


@pytest.mark.parametrize("case", REFUSED)
def test_bad_sources_are_refused(here: Run, place: Path, case: str) -> None:
    name, make, words = REFUSED[case]
    make_bad(place, name, make)
    before = everything_in(place)
    run = here("compute", "images", name, *SMALL)
    assert run.status == 2, run
    assert [word for word in words if word not in run.error] == [], run.error
    assert everything_in(place) == before, "the run wrote a file"


@pytest.fixture
def reference(here: Run, place: Path) -> Outcome:
    return here("compute", "images", "images", *SMALL)


@pytest.mark.parametrize("make", RIGHT, ids=lambda make: make.__name__)
def test_unusual_sources_are_read_correctly(
    here: Run, place: Path, reference: Outcome, make: Callable[[Path], str]
) -> None:
    name = make(place)
    before = everything_in(place)
    run = here("compute", "images", name, *SMALL, "--value-range", "0,1")
    assert run.metrics == reference.metrics
    assert everything_in(place) == before, "the run wrote a file"
    assert not Path("/escaped").exists()


def test_an_empty_member_is_read_as_empty(here: Run, place: Path) -> None:
    """The data after the member must not be read as its contents."""
    with tarfile.open(place / "bad.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("000.png"))
        archive.add(place / "images/000.png", "001.png")
    assert (
        "cannot decode bad.tar/000.png: it is empty (0 bytes)"
        in here("compute", "images", "bad.tar", *SMALL).error
    )


def test_a_damaged_member_is_named_and_can_be_skipped(here: Run, place: Path) -> None:
    """One bit of its contents is flipped."""
    data = bytearray(zipped(place, method=zipfile.ZIP_STORED))
    data[data.find(b"005.png") + 700] ^= 4
    (place / "bad.zip").write_bytes(data)
    run = here("compute", "images", "bad.zip", *SMALL)
    assert run.status == 2
    assert "cannot read bad.zip/005.png: the archive is damaged" in run.error
    skipping = here(
        "compute", "images", "bad.zip", *SMALL, "--on-error", "skip", "--max-skip", "0.1"
    )
    assert [each["file"] for each in skipping.json["results"][0]["skipped"]] == ["bad.zip/005.png"]
    assert skipping.json["results"][0]["count"]["fake"] == COUNT - 1


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_broken_links_are_named(here: Run, place: Path, suffix: str) -> None:
    with tarfile.open(place / f"bad.{suffix}", f"w:{suffix[4:]}") as archive:  # type: ignore[call-overload]
        for name in names_in(place / "images"):
            archive.add(place / "images" / name, name)
        link = tarfile.TarInfo("z.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    run = here("compute", "images", f"bad.{suffix}", *SMALL)
    assert run.status == 2
    assert f"bad.{suffix}/z.png: it is a link to /etc/passwd" in run.error


def test_a_member_that_claims_to_be_huge_is_not_read(here: Run, place: Path) -> None:
    """The size in the archive's directory is enough to refuse the member."""
    write_zip(place / "bad.zip", place / "images", names_in(place / "images"))
    data = bytearray((place / "bad.zip").read_bytes())
    entry = data.index(b"PK\1\2")  # the entry of the last name: the directory is written in reverse
    data[entry + 24 : entry + 28] = (3 * GIB).to_bytes(4, "little")
    (place / "bad.zip").write_bytes(data)
    run = here("compute", "images", "bad.zip", *SMALL)
    assert run.status == 2
    assert f"{names_in(place / 'images')[-1]}: it has {3 * GIB} bytes" in run.error


def test_an_array_of_10_gib_is_read_row_by_row(here: Run, place: Path) -> None:
    header = npy_header((10 * GIB // 12288, 64, 64, 3))
    sparse(place / "large.npy", len(header) + 10 * GIB // 12288 * 12288, header)
    run = here("compute", "images", "large.npy", *SMALL, "--num", 19)
    assert run.json["results"][0]["count"] == {"real": 19, "fake": 19}


def test_values_outside_the_range_are_clipped_and_counted(here: Run, place: Path) -> None:
    values = pixels(place).astype(np.float32) / 255
    values[:3] += 0.5
    np.save(place / "odd.npy", values)
    run = here("compute", "images", "odd.npy", *SMALL, "--value-range", "0,1")
    assert "odd.npy: 3 images with values outside --value-range" in run.stderr
    values[4, 0, 0, 0] = np.nan
    np.save(place / "odd.npy", values)
    assert (
        "odd.npy[4]: it contains NaN"
        in here("compute", "images", "odd.npy", *SMALL, "--value-range", "0,1").error
    )


def test_missing_files_of_a_list_are_reported_before_any_work(here: Run, place: Path) -> None:
    lines = [f"images/{name}" for name in names_in(place / "images")]
    (place / "bad.txt").write_bytes(
        b"\xef\xbb\xbf" + "\r\n".join([*lines, "images/x.png", "images/y.png"]).encode()
    )
    run = here("compute", "images", "bad.txt", *SMALL)
    assert run.status == 2
    assert (
        "bad.txt lists files that do not exist (line 21: images/x.png and 1 more): fix" in run.error
    )
    (place / "lists").mkdir()
    (place / "lists/a.txt").write_text("\n".join(lines))
    but = (
        f"but {lines[0]} exists, and paths are relative to the folder of the list: move the list "
        "to the working directory"
    )
    assert but in here("compute", "images", "lists/a.txt", *SMALL).error


@pytest.mark.parametrize("label", [" 3", ",3", "\tn01440764"])
def test_labels_in_a_list_without_columns(here: Run, place: Path, label: str) -> None:
    (place / "bad.txt").write_text(
        "".join(f"images/{name}{label}\n" for name in names_in(place / "images"))
    )
    (place / "first.txt").write_text("3 images/0.png\n")
    assert "seems to have a label beside the path" in here("check", "first.txt").error
    for command in (("compute", "images", "bad.txt", *SMALL), ("check", "bad.txt")):
        assert (
            " more), and the line seems to have a label beside the path: remove the labels"
            in here(*command).error
        )


def test_probable_mistakes_are_reported(here: Run, place: Path) -> None:
    """Archives beside images, and a flag that only affects folders."""
    names = names_in(place / "images")
    for part in range(2):
        write_tar(
            place / f"part-{part:03}.tar", place / "images", names[10 * part : 10 * part + 10]
        )
    run = here("compute", "images", "part-000.tar", "part-001.tar", *SMALL, "--no-recursive")
    assert "--no-recursive has no effect on part-000.tar" in run.stderr
    (place / "mixed").mkdir()
    tarred(place, "mixed/more.tar")
    (place / "mixed/a.png").symlink_to(place / "images/000.png")
    run = here("compute", "images", "mixed", *SMALL)
    assert "mixed contains 1 .tar file: archives in a folder are not read" in run.stderr


def test_a_table_row_without_bytes(here: Run, place: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    files = [place / "images" / name for name in names_in(place / "images")]
    rows = [
        {"bytes": None if index == 3 else file.read_bytes(), "path": None}
        for index, file in enumerate(files)
    ]
    parquet.write_table(pyarrow.table({"image": rows}), place / "bad.parquet")
    assert (
        "bad.parquet[3]: its row has no image bytes"
        in here("compute", "images", "bad.parquet", *SMALL).error
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shard-{0..3}.tar", ["shard-1.tar"]),
        ("shard-{3..0}.tar", ["3..0"]),
        ("images.npz:other", ["none is named other", "arr_0"]),
        ("{images,images}.npz", ["twice"]),
        ("a{0..9999}b{0..999}.tar", ["matches more than 1000000 files"]),
    ],
)
def test_bad_patterns_are_refused(here: Run, place: Path, name: str, words: list[str]) -> None:
    tarred(place, "shard-0.tar")
    np.savez(place / "images.npz", pixels(place))
    run = here("compute", "images", name, *SMALL)
    assert run.status == 2
    assert [word for word in words if word not in run.error] == [], run.error


def test_a_closed_standard_input_is_reported(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no sys.stdin then."""
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in here("check", "-").error
