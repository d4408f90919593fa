"""Ignored files of a source are counted by suffix, and formats that Pillow cannot decode are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import PIL
import pytest
from PIL import AvifImagePlugin, Image, features

from fidtool.sources.folder import list_folder
from fidtool.sources.opening import open_images
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS
from support.source_forms import encoded, write_tar, write_zip

COUNT, RENAMED = 12, 4
BASE = ("--extractor", COLOURS, "--no-cache", "--json", "--quiet")
NOTHING = {"other": 0}


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_pictures(tmp_path / "real", COUNT, 1), make_pictures(tmp_path / "fake", COUNT)


def rename(folder: Path, suffix: str, count: int = RENAMED) -> None:
    """Change the suffix of the first images, without changing their contents."""
    for file in sorted(folder.iterdir())[:count]:
        file.rename(file.with_suffix(suffix))


# --- files that count as images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".avif", ".jp2", ".jfif"])
def test_images_are_recognised_by_their_suffix(here: Run, sets: tuple[Path, Path], suffix: str) -> None:
    before = here("compute", *sets, *BASE)
    rename(sets[1], suffix)
    after = here("compute", *sets, *BASE)
    assert after.metrics == before.metrics
    assert after.json["results"][0]["count"] == {"real": COUNT, "fake": COUNT}
    assert after.json["results"][0]["warnings"] == before.json["results"][0]["warnings"]


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot write AVIF")
def test_avif_images_count(here: Run, sets: tuple[Path, Path]) -> None:
    for file in sorted(sets[1].iterdir())[:RENAMED]:
        with Image.open(file) as image:
            image.save(file.with_suffix(".avif"))
        file.unlink()
    result = here("compute", *sets, *BASE).json["results"][0]
    assert result["count"] == {"real": COUNT, "fake": COUNT}
    assert result["passed_over"] == {"real": NOTHING, "fake": NOTHING}
    assert here("check", sets[1], "--json").json["images"]["formats"] == {"PNG": COUNT - RENAMED, "AVIF": RENAMED}


def test_a_list_may_name_images_with_any_suffix(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    rename(sets[1], ".img")
    (tmp_path / "list.txt").write_text("".join(f"{file}\n" for file in sets[1].iterdir()))
    result = here("compute", sets[0], "list.txt", *BASE).json["results"][0]
    assert result["count"]["fake"] == COUNT


# --- formats that this Pillow cannot decode --------------------------------------------------------------------------


def _without(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Simulate a Pillow that was built without the decoder."""
    check = features.check
    monkeypatch.setattr(features, "check", lambda name: name != feature and check(name))
    if feature == "avif":
        monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    else:
        monkeypatch.delattr(Image.core, "jpeg2k_decoder", raising=False)


@pytest.mark.parametrize(
    ("suffix", "file_format", "feature"), [(".avif", "AVIF", "avif"), (".jp2", "JPEG2000", "jpg_2000")]
)
def test_the_error_about_a_missing_decoder_names_the_format(
    here: Run, sets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, suffix: str, file_format: str, feature: str
) -> None:
    if not features.check(feature):
        pytest.skip(f"this Pillow cannot write {file_format}")
    alien = sets[1] / f"alien{suffix}"
    alien.write_bytes(encoded(file_format))
    _without(monkeypatch, feature)
    run = here("compute", *sets, *BASE, "--num-workers", 0)
    assert run.status == 2
    spelled = file_format.replace("JPEG2000", "JPEG 2000")
    for words in (f"cannot decode {alien}: ", f"in the format {spelled}, ", PIL.__version__, "pip install"):
        assert words in run.error
    found = here("check", sets[1], "--json", "--num-workers", 0).json["images"]["findings"]
    assert [(each["code"], each["example"]) for each in found][:1] == [("unreadable", str(alien))]


@pytest.mark.parametrize("brands", [b"heic\0\0\0\0mif1heic", b"mif1\0\0\0\0mif1heic"])
def test_the_error_about_heic_suggests_a_conversion(here: Run, sets: tuple[Path, Path], brands: bytes) -> None:
    alien = sets[1] / "photo.HEIC"
    alien.write_bytes(b"\0\0\0\x18ftyp" + brands + bytes(1000))
    run = here("compute", *sets, *BASE)
    assert run.status == 2
    assert f"cannot decode {alien}: it is a HEIF image (HEIC), which Pillow cannot decode: convert it" in run.error


# --- files that do not count as images -------------------------------------------------------------------------------


def test_other_files_are_counted_without_a_finding(here: Run, sets: tuple[Path, Path]) -> None:
    (sets[0] / "notes.txt").write_text("BM are the initials of whoever took these pictures, all of them by hand")
    (sets[0] / "more.txt").write_text("P1: the first of them")
    run = here("check", sets[0])
    (line,) = run.stdout.splitlines()
    assert line.endswith(" pixels; ignored: 2 files (.txt): no findings")
    assert here("check", sets[0], "--json").json["images"]["passed_over"] == {"other": 2}


@pytest.mark.parametrize("form", ["set.zip", "set.tar", "set.tar.gz"])
def test_archives_ignore_the_same_files_as_folders(sets: tuple[Path, Path], tmp_path: Path, form: str) -> None:
    rename(sets[1], ".img")
    (sets[1] / "._00009.png").write_bytes(b"\0\5\x16\7")
    names = sorted(file.name for file in sets[1].iterdir())
    archive = tmp_path / form
    if form == "set.zip":
        write_zip(archive, sets[1], names)
    else:
        write_tar(archive, sets[1], names, "w:gz" if form.endswith("gz") else "w")
    found = open_images(str(archive))
    others = 2 if form == "set.zip" else len(names) + 1  # one label file, or one per image and a hidden file
    assert len(found) == COUNT - RENAMED
    assert found.source.passed_over.other == RENAMED + others
    assert open_images(str(archive)).read([0]) == found.read([0])


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _unreadable(place: Path) -> None:
    place.write_bytes(encoded("PNG"))
    place.chmod(0)


def _broken_link(place: Path) -> None:
    place.symlink_to(place.parent / "nowhere")


@pytest.mark.parametrize("make", [_pipe, _unreadable, _broken_link])
def test_files_that_cannot_be_opened_are_ignored(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = make_pictures(tmp_path / "set", 2)
    make(folder / "odd")
    assert list_folder(str(folder)).source.passed_over.other == 1


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot write AVIF")
def test_a_truncated_avif_is_reported_as_damaged(here: Run, sets: tuple[Path, Path]) -> None:
    cut = sets[1] / "cut.avif"
    cut.write_bytes(encoded("AVIF")[:100])
    run = here("compute", *sets, *BASE)
    assert run.status == 2
    assert f"cannot decode {cut}: not an image that Pillow can read (it begins like AVIF but is damaged" in run.error
