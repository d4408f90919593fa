"""Ignored files of a source are counted by suffix, and formats that Pillow cannot decode are
named.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import PIL
import pytest
from PIL import AvifImagePlugin, features

import fidtool
from support.command_line import Run
from support.encoded import encoded, noise
from support.pictures import make_pictures
from support.places import COLOURS

COUNT = 12
BASE = ("--extractor", COLOURS, "--no-cache", "--json", "--quiet")


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_pictures(tmp_path / "real", COUNT, 1), make_pictures(tmp_path / "fake", COUNT)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot write AVIF")
def test_the_error_about_a_missing_decoder_names_the_format(
    here: Run, sets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    alien = sets[1] / "alien.avif"
    alien.write_bytes(encoded(noise(), "AVIF"))
    check = features.check
    monkeypatch.setattr(features, "check", lambda name: name != "avif" and check(name))
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    run = here("compute", *sets, *BASE, "--num-workers", 0)
    assert run.status == 2
    for words in (
        f"cannot decode {alien}: ",
        "in the format AVIF, ",
        PIL.__version__,
        "pip install",
    ):
        assert words in run.error
    found = here("check", sets[1], "--json", "--num-workers", 0).json["images"]["findings"]
    assert [(each["code"], each["example"]) for each in found][:1] == [("unreadable", str(alien))]


def test_the_error_about_heic_suggests_a_conversion(here: Run, sets: tuple[Path, Path]) -> None:
    alien = sets[1] / "photo.HEIC"
    alien.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(1000))
    run = here("compute", *sets, *BASE)
    assert run.status == 2
    assert (
        f"cannot decode {alien}: it is a HEIF image (HEIC), which Pillow cannot decode: convert it"
        in run.error
    )


def test_other_files_are_counted_without_a_finding(here: Run, sets: tuple[Path, Path]) -> None:
    (sets[0] / "notes.txt").write_text(
        "BM are the initials of whoever took these pictures, all of them by hand"
    )
    (sets[0] / "more.txt").write_text("P1: the first of them")
    run = here("check", sets[0])
    (line,) = run.stdout.splitlines()
    assert line.endswith(" pixels; ignored: 2 files (.txt): no findings")
    assert here("check", sets[0], "--json").json["images"]["passed_over"] == {
        "other": 2,
        "kinds": {".txt": 2},
    }


def test_files_that_may_be_images_are_said_to_be_ignored(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Once a set, also of an archive. What lies beside images by custom needs no word."""
    for name in ("notes.txt", "labels.json", ".hidden.png", "__MACOSX/00000.png", "00000.cls"):
        (sets[0] / name).parent.mkdir(exist_ok=True)
        (sets[0] / name).write_bytes(b"")
    (sets[1] / "captions.txt").write_text("a")
    for number in range(3):
        (sets[1] / f"{number}.xyz").write_bytes(b"")
    shutil.make_archive(str(tmp_path / "fake"), "zip", sets[1])
    for fake in (sets[1], tmp_path / "fake.zip"):
        said = (
            "ignored 3 files (.xyz), 1 file (.txt): if some of them are images, rename them or "
            "pass their paths"
        )
        found = here("compute", sets[0], fake, fake, *BASE[:-1])
        assert [line for line in found.stderr.splitlines() if "ignored" in line] == [
            f"{fake}: {said} as a list"
        ]
        assert found.json["run"]["notes"] == [f"{fake}: {said} as a list"]
    made = here("stats", sets[1], "-o", "fake.npz", *BASE[:3])
    assert made.stderr.count("ignored 3 files (.xyz)") == 1
    with pytest.warns(fidtool.FidtoolWarning, match=r"ignored 3 files \(.xyz\)"):
        fidtool.compute(*sets, extractor=COLOURS, cache=False)
