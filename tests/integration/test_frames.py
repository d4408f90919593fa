"""``--frames all``: every frame of an image file is an image of its own, and its pixels are those
that Pillow shows.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

import fidtool
from fidtool.reading.decode import DecodeError, decode
from fidtool.reading.frames import expand_frames
from fidtool.sources.contents import Frame
from fidtool.sources.image_set import ImageSet, Sampling
from fidtool.sources.listing import open_images
from fidtool.sources.memory import Images
from fidtool.validation import MAX_PIXELS
from support.command_line import Run
from support.encoded import FILES, encoded, noise
from support.places import TINY
from support.source_forms import (
    ARGUMENTS,
    COUNT,
    make_frame_forms,
    make_pair,
    prepare_expected,
    write_list,
    write_parquet,
    write_tar,
    write_zip,
)

KINDS = {"a.gif": "GIF", "b.png": "PNG", "c.tif": "TIFF", "d.webp": "WEBP"}


def animation(kind: str, count: int = 4) -> bytes:
    """Return frames that differ in parts, so that each depends on those before it. TIFF's last has
    another size.
    """
    first, *others = (noise(seed=1) for _ in range(count))
    for number, frame in enumerate(others, 1):
        frame.paste((90 * number % 256, 40, 9), (2 * number, 3, 2 * number + 9, 15))
    if kind == "TIFF":
        others[-1] = others[-1].resize((20, 30))
    return encoded(
        first,
        kind,
        save_all=True,
        append_images=others,
        **({"duration": 50} if kind != "TIFF" else {}),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("animations") / "images"
    folder.mkdir()
    for name, kind in KINDS.items():
        (folder / name).write_bytes(animation(kind))
    (folder / "e.jpg").write_bytes(FILES["JPEG"])
    (folder / "named wrongly.jpg").write_bytes(animation("GIF", 2))
    return folder


def pages_of(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for file in sorted(folder.iterdir()):
        with Image.open(file) as image:
            for number, page in enumerate(ImageSequence.Iterator(image)):
                several = getattr(image, "n_frames", 1) > 1
                found[f"{file.name}[{number}]" if several else file.name] = np.asarray(
                    page.convert("RGB")
                )
    return found


def in_memory(folder: Path) -> ImageSet:
    return Images([file.read_bytes() for file in sorted(folder.iterdir())], name="given").image_set(
        None
    )


def written(write: Callable[..., None], name: str, *mode: str) -> Callable[[Path], ImageSet]:
    def opened(folder: Path) -> ImageSet:
        write(folder.parent / name, folder, sorted(file.name for file in folder.iterdir()), *mode)
        return open_images(str(folder.parent / name))

    return opened


FORMS: dict[str, Callable[[Path], ImageSet]] = {
    "folder": lambda folder: open_images(str(folder)),
    "zip": written(write_zip, "images.zip"),
    "tar": written(write_tar, "images.tar"),
    "packed tar": written(write_tar, "images.tar.gz", "w:gz"),
    "table": written(write_parquet, "images.parquet"),
    "list": written(write_list, "images.txt"),
    "memory": in_memory,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_frame_is_read_once_under_its_name(folder: Path, form: str) -> None:
    images = expand_frames(FORMS[form](folder), MAX_PIXELS)
    expected = pages_of(folder)
    names = [name.rpartition("/")[2] for name in map(images.stored.__getitem__, images.order)]
    if form in ("table", "memory"):
        assert names[:5] == ["[0][0]", "[0][1]", "[0][2]", "[0][3]", "[1][0]"]
    else:
        assert names == list(expected)
    assert len(images) == len(images.stored) == 19
    drawn = images.draw(Sampling(None, 3))
    order = [int(each) for each in drawn.order]
    contents = drawn.read(range(19)) if not drawn.reader.in_order else []
    for place, content in zip(order, contents, strict=False):
        at = images.order.tolist().index(place)
        np.testing.assert_array_equal(decode(content).pixels, list(expected.values())[at])
    places = images.order.argsort()
    for place, content in zip(places, images.reader.read(np.arange(19)), strict=True):
        found = decode(content)
        np.testing.assert_array_equal(found.pixels, list(expected.values())[place])
        assert not found.properties.animated


def test_the_number_of_ranks_and_the_form_do_not_matter(here: Run, tmp_path: Path) -> None:
    place = make_pair(tmp_path, COUNT)
    forms = make_frame_forms(place / "images")
    expected = prepare_expected({"real": str(place / "real"), "folder": str(place / "images")})
    for form in forms:
        for further in ((), ("--num-workers", 2)):
            run = here(
                "compute",
                place / "real",
                form,
                *ARGUMENTS,
                "--frames",
                "all",
                "--expect",
                COUNT,
                *further,
            )
            assert run.metrics == expected
    assert run.json["run"]["config"]["frames"] == "all"


def test_num_cache_and_checkpoint_follow(here: Run, tmp_path: Path) -> None:
    place = make_pair(tmp_path, COUNT)
    folder = make_frame_forms(place / "images")[0]
    both = place / "real", folder
    arguments = "--extractor", TINY, "--json", "--batch-size", 4
    drawn = [
        here("compute", place / "real", each, *arguments, "--num", 9, "--frames", "all").metrics
        for each in (folder, place / "images")
    ]
    assert drawn[0] == drawn[1]
    first, every, again = (
        here("compute", *both, *arguments, "--frames", which) for which in ("first", "all", "all")
    )
    assert [run.json["results"][0]["count"]["fake"] for run in (first, every, again)] == [
        4,
        COUNT,
        COUNT,
    ]
    assert first.metrics != every.metrics == again.metrics
    assert len(again.json["run"]["cached"]) == 2
    first, other = (
        here(
            "compute",
            *both,
            *arguments,
            "--no-cache",
            "--checkpoint",
            tmp_path / "done",
            "--frames",
            which,
        )
        for which in ("first", "all")
    )
    assert first.status == 0
    assert other.status == 2


@pytest.mark.parametrize("given", [list, iter], ids=["sequence", "iterable"])
def test_programs_pass_files_with_frames(tmp_path: Path, given: Callable[[Any], Any]) -> None:
    place = make_pair(tmp_path, COUNT)
    folder = Path(make_frame_forms(place / "images")[0])
    files = [file.read_bytes() for file in sorted(folder.iterdir())]
    settings: dict[str, Any] = {"extractor": ARGUMENTS[1], "cache": False, "batch_size": 4}
    expected = fidtool.compute(place / "real", place / "images", **settings).fid
    found = fidtool.compute(place / "real", fidtool.Images(given(files)), frames="all", **settings)
    assert (found.fid, found.results[0].fake.count) == (expected, COUNT)


def test_a_frame_that_is_gone_or_damaged_is_named(tmp_path: Path, here: Run) -> None:
    with pytest.raises(DecodeError):
        decode(Frame(animation("GIF", 2), 5))
    (tmp_path / "a.png").write_bytes(FILES["PNG"])
    data = animation("TIFF", 6)
    (tmp_path / "b.tif").write_bytes(data[: len(data) // 2])
    run = here("compute", tmp_path, tmp_path, "--extractor", TINY, "--frames", "all")
    assert run.status == 2
    assert "b.tif[" in run.stderr


def test_the_warning_about_first_frames_names_the_option(here: Run, folder: Path) -> None:
    run = here("check", folder)
    assert "5 images with several frames" in run.stdout + run.stderr
    assert "--frames all" in run.stdout + run.stderr
    listed = here("check", folder, "--frames", "all", "--list")
    assert f"{folder}/a.gif[3]" in listed.stdout.splitlines()
    assert io.StringIO(listed.stdout).readlines()[-1] == f"{folder}/named wrongly.jpg[1]\n"


@pytest.mark.parametrize("given", [list, iter], ids=["sequence", "iterable"])
def test_pillow_objects_with_frames(tmp_path: Path, given: Callable[[Any], Any]) -> None:
    """They are refused where all frames are asked for, and counted where the first is used."""
    settings: dict[str, Any] = {"extractor": TINY, "cache": False}
    real = [noise(seed=number) for number in range(3)]
    for kind, said in (("GIF", True), ("TIFF", True), ("MPO", False)):
        images = [Image.open(io.BytesIO(animation(kind))) for _ in range(3)]
        found = fidtool.compute(real, fidtool.Images(given(images)), **settings)
        assert (
            any(
                "3 images with several frames" in line
                for line in map(str, found.results[0].warnings)
            )
            == said
        )
        if said:
            problem = "frames='all' needs files, .*: pass its path or bytes, or a copy"
            with pytest.raises(fidtool.InputError, match=problem):
                fidtool.compute(real, fidtool.Images(given(images)), frames="all", **settings)
            frames = [frame.copy() for frame in ImageSequence.Iterator(images[0])]
            all_frames = fidtool.compute(
                real, fidtool.Images(given(frames)), frames="all", **settings
            )
            assert all_frames.results[0].fake.count == len(frames)
