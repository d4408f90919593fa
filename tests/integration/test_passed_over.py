"""Ignored files of a source: files that look like images are never ignored without a warning."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import PIL
import pytest
from PIL import AvifImagePlugin, Image, features

from fidtool.diagnose.findings import passed_over_findings
from fidtool.images.decode import DecodeError, decode
from fidtool.sources import census
from fidtool.sources.census import format_of
from fidtool.sources.folder import list_folder
from fidtool.sources.opening import open_images
from support.command_line import Run
from support.pictures import make_pictures
from support.places import COLOURS
from support.source_forms import encoded, write_tar, write_zip

COUNT, RENAMED = 12, 4
BASE = ("--extractor", COLOURS, "--no-cache", "--json", "--quiet")
NOTHING = {"images": 0, "other": 0, "at_least": False}


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
    assert not [line for line in result["warnings"] if "content but not by" in line]


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


def test_a_damaged_image_is_not_attributed_to_the_decoder() -> None:
    with pytest.raises(DecodeError) as failed:
        decode(encoded("WEBP")[:100])
    assert "without its decoder" not in str(failed.value)


# --- files that do not count as images -------------------------------------------------------------------------------


def test_ignored_images_give_a_warning(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    """In `compute` with and without the diagnosis, in `stats`, and in `check`."""
    rename(sets[1], ".img")
    (sets[1] / "notes.txt").write_text("none of them")
    (sets[1] / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (sets[1] / ".hidden.png").write_bytes((sets[1] / "00000.img").read_bytes())
    example = str(sets[1] / "00000.img")
    start = f"{sets[1]}: {RENAMED} files are images by their content but not by their suffix, and are ignored"
    for arguments in ((), ("--no-diagnosis",)):
        run = here("compute", *sets, *BASE, *arguments)
        result = run.json["results"][0]
        (warning,) = [line for line in result["warnings"] if "content but not by" in line]
        assert warning.startswith(start)
        assert warning.endswith(f"(for example {example})")
        assert f"warning: {warning}" in run.stderr.splitlines()
        assert result["count"]["fake"] == COUNT - RENAMED
        assert result["passed_over"] == {"real": NOTHING, "fake": {**NOTHING, "images": RENAMED, "other": 3}}
        if not arguments:
            found = [each for each in result["diagnosis"]["findings"] if each["code"] == "passed over"]
            assert [(each["set"], each["count"], each["example"]) for each in found] == [("fake", RENAMED, example)]
    stats = here("stats", sets[1], "-o", "kept.npz", "--extractor", COLOURS)
    assert f"warning: {start}" in stats.stderr
    health = here("check", sets[1], "--json").json["images"]
    assert health["passed_over"] == {**NOTHING, "images": RENAMED, "other": 3}
    assert [each["count"] for each in health["findings"] if each["code"] == "passed over"] == [RENAMED]
    text = here("check", sets[1]).stdout.splitlines()
    assert text[0].endswith("; ignored: 4 files (.img), 1 file (.db), 1 file (.txt), 1 hidden")
    assert any(line.startswith(f"medium: {start}") for line in text)
    assert here("compute", "kept.npz", sets[0], *BASE).json["results"][0]["passed_over"]["real"] is None


def test_ignored_images_are_reported_even_if_both_sets_have_them(here: Run, sets: tuple[Path, Path]) -> None:
    for folder in sets:
        rename(folder, ".img")
    document = here("check", sets[1], "--against", sets[0], "--json").json
    for part in ("images", "against"):
        assert "passed over" in [each["code"] for each in document[part]["findings"]]


def test_other_files_are_counted_without_a_finding(here: Run, sets: tuple[Path, Path]) -> None:
    (sets[0] / "notes.txt").write_text("BM are the initials of whoever took these pictures, all of them by hand")
    (sets[0] / "more.txt").write_text("P1: the first of them")
    run = here("check", sets[0])
    (line,) = run.stdout.splitlines()
    assert line.endswith(" pixels; ignored: 2 files (.txt): no findings")
    assert here("check", sets[0], "--json").json["images"]["passed_over"] == {**NOTHING, "other": 2}


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
    passed_over = found.source.passed_over
    assert (len(found), passed_over.images, passed_over.example) == (COUNT - RENAMED, RENAMED, f"{archive}/00000.img")
    assert passed_over.other == others
    assert open_images(str(archive)).read([0]) == found.read([0])


def test_a_folder_without_image_suffixes_names_a_file_that_is_an_image(here: Run, sets: tuple[Path, Path]) -> None:
    rename(sets[1], ".img", COUNT)
    run = here("compute", *sets, *BASE)
    assert run.status == 2
    assert f"{sets[1] / '00000.img'} is an image by its first bytes" in run.error


def test_only_some_of_many_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some files of each suffix, more if one is an image, and a limited number over many suffixes."""
    folder = make_pictures(tmp_path / "set", 1)
    for number in range(40):
        (folder / f"{number:02}.txt").write_text("a caption")
    opened: list[str] = []
    monkeypatch.setattr(census, "_FEW", 5)
    monkeypatch.setattr(census, "_MOST", 8)
    monkeypatch.setattr(census, "_MOST_KINDS", 3)
    monkeypatch.setattr(census, "format_of", lambda head: opened.append("") or format_of(head))
    passed_over = list_folder(str(folder)).source.passed_over
    assert (passed_over.images, passed_over.unseen, passed_over.at_least) == (0, 35, True)
    assert passed_over.words == "40 files (.txt), 35 of them not opened"
    assert len(opened) == 5
    for number in range(10):
        (folder / f"{number:02}.img").write_bytes(encoded("PNG"))
    passed_over = list_folder(str(folder)).source.passed_over
    assert (passed_over.images, passed_over.other, passed_over.unseen) == (8, 42, 37)
    for number in range(30):
        (folder / f"of.{number:02}").write_text("a suffix of its own")
    opened.clear()
    list_folder(str(folder))
    assert len(opened) <= (3 + 1) * 8, "at most 8 files of each of three suffixes, and 8 of all others"


def test_each_suffix_is_sampled(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    """The order of the files in the archive does not matter."""
    archive = tmp_path / "set.zip"
    picture = (sets[1] / "00000.png").read_bytes()
    with zipfile.ZipFile(archive, "w") as target:
        for suffix in ("txt", "json", "cls", "lbl", "yaml"):
            for number in range(300):
                target.writestr(f"{number}.{suffix}", "none")
        for number in range(2 * RENAMED):
            target.writestr(f"{number}.img", picture)
        target.writestr("0.png", picture)
    result = here("compute", sets[0], archive, *BASE, "--no-diagnosis").json["results"][0]
    assert result["passed_over"]["fake"] == {"images": 2 * RENAMED, "other": 1500, "at_least": True}
    (warning,) = [line for line in result["warnings"] if "content but not by" in line]
    assert f"{archive}: at least {2 * RENAMED} files are images" in warning
    unseen = 1500 - 5 * census._FEW
    assert f", {unseen} of them not opened" in here("check", archive).stdout.splitlines()[0]


def test_remote_files_are_not_opened() -> None:
    counter = census.Census(looks=False)
    assert not counter.takes("a/b.img", "a/b.img", lambda: encoded("PNG"))
    found = counter.found()
    assert found.to_dict() == {"images": 0, "other": 1, "at_least": True}
    assert found.words == "1 file (.img), 1 of them not opened"


@pytest.mark.parametrize(
    ("heads", "advice"),
    [
        ([b"8BPS\0\x01"], "is ignored: convert it to PNG (from PSD)"),
        ([b"8BPS\0\x01", b"qoif"], "are ignored: convert them to PNG (from PSD and QOI)"),
        (
            [b"GIF89a", b"qoif"],
            "are ignored: convert the QOI files to PNG and rename the others (.png, .jpg,",
        ),
        ([b"\0\0\0\x18ftypheic"], "is ignored: convert it to PNG (from HEIF)"),
        (
            [b"GIF89a"],
            "is ignored: rename it (.png, .jpg, .webp …), or list the paths of all images in a ",
        ),
    ],
)
def test_the_suggestion_depends_on_the_format(heads: list[bytes], advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    counter = census.Census()
    for number, head in enumerate(heads):
        counter.is_image(f"{number}.dat", f"{number}.dat", lambda head=head: head)  # type: ignore[misc]
    (finding,) = passed_over_findings(counter.found())
    assert advice in finding.message


def test_a_format_without_a_decoder_must_be_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    check = features.check
    monkeypatch.setattr(features, "check", lambda name: name != "avif" and check(name))
    counter = census.Census()
    counter.is_image("a.dat", "a.dat", lambda: b"\0\0\0\x18ftypavif")
    (finding,) = passed_over_findings(counter.found())
    assert finding.message.endswith("convert it to PNG (from AVIF)")


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
    passed_over = list_folder(str(folder)).source.passed_over
    assert passed_over.images + passed_over.other == 1


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot write AVIF")
def test_a_truncated_avif_is_reported_as_damaged(here: Run, sets: tuple[Path, Path]) -> None:
    cut = sets[1] / "cut.avif"
    cut.write_bytes(encoded("AVIF")[:100])
    run = here("compute", *sets, *BASE)
    assert run.status == 2
    assert f"cannot decode {cut}: not an image that Pillow can read (it begins like AVIF but is damaged" in run.error
