"""--crop and --crop-fake: framed sets of every source, remembered by caches and files, and shown
beside the number.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.sources.crops import Crop
from support.command_line import Run, messages
from support.framed_images import write_framed
from support.places import COLOURS, FD, TINY
from support.source_forms import FORMS, make_forms, make_squares, names_in, pixels_in

COUNT = 20
BEFOREHAND = ("adm", "edm", "center", "center-bicubic", "tensor-center", "var")
SMALL = ("--extractor", TINY)
SETTINGS: dict[str, Any] = {"extractor": TINY, "cache": False, "batch_size": 8}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders: ``photos`` of mixed sizes, the same cropped beforehand, and ``fake`` of equal
    squares.
    """
    place = tmp_path_factory.mktemp("framing")
    write_framed(place / "photos")
    make_squares(place / "fake", COUNT, 3)
    for crop in BEFOREHAND:
        write_framed(place / f"photos-{crop}", f"{crop}:48")
    time.sleep(0.08)  # younger files are not cached
    return place


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, float]:
    """The distances of the photos that were cropped beforehand, and of the whole photos."""
    folders = [place / f"photos-{crop}" for crop in BEFOREHAND] + [place / "photos"]
    found = [
        result.frechet_distance
        for result in fidtool.compute(place / "fake", folders, **SETTINGS).results
    ]
    assert len(set(found)) == len(folders)
    return {
        name: value
        for name, value in zip([*BEFOREHAND, ""], found, strict=True)
        if value is not None
    }


# --- the value ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("crop", "workers"), [("adm", 0), ("tensor-center", 2)])
def test_value_is_that_of_images_cropped_beforehand(
    place: Path, expected: dict[str, float], environment: dict[str, str], crop: str, workers: int
) -> None:
    settings = {**SETTINGS, "crop_fake": f"{crop}:48", "num_workers": workers}
    (result,) = fidtool.compute(place / "fake", place / "photos", **settings).results
    assert result.frechet_distance == expected[crop]
    assert (result.real.framing, result.fake.framing) == (None, Crop(crop, 48))


def test_reconstructions_are_compared_as_they_are(place: Path, environment: dict[str, str]) -> None:
    """``crop`` is of REAL alone: reconstructions have their final size, and VAR's crop would cut
    off their border.
    """
    (result,) = fidtool.compute(
        place / "photos", place / "photos-var", crop="var:48", **SETTINGS
    ).results
    assert (result.real.framing, result.fake.framing) == (Crop("var", 48), None)
    assert result.frechet_distance == pytest.approx(0, abs=1e-9)
    (cut,) = fidtool.compute(
        place / "photos-var", place / "photos-var", crop_fake="var:48", **SETTINGS
    ).results
    assert (cut.frechet_distance or 0) > 1e-3


def test_every_source(tmp_path: Path, environment: dict[str, str]) -> None:
    """Archives, arrays, lists, tables: as the folder, which is framed as it would be beforehand."""
    forms = make_forms(make_squares(tmp_path / "images", COUNT, 3))
    make_squares(tmp_path / "real", COUNT, 1)
    settings = {**SETTINGS, "value_range": (0, 1), "crop_fake": "adm:10"}
    found = fidtool.compute(tmp_path / "real", [*forms.values()], **settings)
    values = {result.frechet_distance for result in found.results}
    assert len(found.results) == len(FORMS) + 1
    assert len(values) == 1
    assert {result.fake.framing for result in found.results} == {Crop("adm", 10)}
    whole = fidtool.compute(tmp_path / "real", tmp_path / "images", **SETTINGS)
    assert {whole.frechet_distance} != values


def opened(folder: Path) -> Iterator[Image.Image]:
    return (Image.open(folder / name) for name in names_in(folder))


def mixed(folder: Path) -> Iterator[Any]:
    """Encoded images, which workers decode, and after the first batch Pillow's, which are decoded
    before.
    """
    encoded = [(folder / name).read_bytes() for name in names_in(folder)]
    return itertools.chain(encoded[:8], list(opened(folder))[8:])


GIVEN: dict[str, Callable[[Path], Any]] = {
    "a list of Pillow images": lambda folder: list(opened(folder)),
    "an iterable of files and Pillow images": mixed,
}


@pytest.mark.parametrize("form", GIVEN)
def test_images_in_memory(
    place: Path, expected: dict[str, float], environment: dict[str, str], form: str
) -> None:
    settings = {**SETTINGS, "crop_fake": "center:48", "num_workers": 2}
    (result,) = fidtool.compute(place / "fake", GIVEN[form](place / "photos"), **settings).results
    assert result.frechet_distance == expected["center"]
    assert (result.fake.count, result.fake.framing) == (COUNT, Crop("center", 48))


def test_diagnosis_is_of_the_framed_images(tmp_path: Path, environment: dict[str, str]) -> None:
    """Two photos with the same centre are duplicates once they are cropped, and all sizes are
    equal.
    """
    real, fake = (
        make_squares(tmp_path / "real", COUNT, 1),
        make_squares(tmp_path / "fake", COUNT, 2),
    )
    names = names_in(fake)[:6]
    centre = np.asarray(Image.open(fake / names[0]))
    for number, name in enumerate(names):
        wide = np.full((24, 24 + 2 * number, 3), 40 * number, np.uint8)
        wide[:, number : number + 24] = centre
        Image.fromarray(wide).save(fake / name)
    whole, framed = (
        fidtool.compute(real, fake, crop_fake=crop, **SETTINGS).results[0]
        for crop in (None, "edm:24")
    )
    assert whole.duplicates is not None
    assert framed.duplicates is not None
    assert (whole.duplicates.exact, framed.duplicates.exact) == (0, 5)


# --- what remembers it ----------------------------------------------------------------------------


def test_cache_distinguishes(here: Run, place: Path, expected: dict[str, float]) -> None:
    line = ("compute", place / "fake", place / "photos", *SMALL, "--batch-size", 8, "--json")

    def value(*crop: object) -> tuple[float, int, str | None]:
        run = here(*line, *crop)
        (result,) = run.json["results"]
        return run.fid, run.json["run"]["images_computed"], result["sets"]["fake"]["framing"]

    assert value() == (expected[""], 2 * COUNT, None)
    for crop in ("adm", "edm"):
        assert value("--crop-fake", f"{crop}:48") == (expected[crop], COUNT, f"{crop}:48")
    assert value("--crop-fake", "adm:32")[1:] == (COUNT, "adm:32")
    assert value() == (expected[""], 0, None)
    assert value("--crop-fake", "EDM:48") == (expected["edm"], 0, "edm:48")
    assert value("--crop", "adm:48", "--crop-fake", "adm:48")[1] == COUNT  # REAL's crop is its own
    assert "photos (cropped by adm:32)" in here("cache").stdout


def test_statistics_file_remembers(here: Run, place: Path) -> None:
    assert (
        here("stats", place / "photos", "-o", "photos.npz", *SMALL, "--crop", "adm:48").status == 0
    )
    statistics = fidtool.read_statistics("photos.npz")
    assert statistics.framing == Crop("adm", 48)
    # In files it is text.
    assert json.loads(str(np.load("photos.npz")["run"]))["framing"] == "adm:48"
    assert (statistics.config or {})["crop"] == "adm:48"
    wanted = here("compute", place / "photos-adm", place / "fake", *SMALL, "--json")
    run = here("compute", "photos.npz", place / "fake", *SMALL, "--json")
    (result,) = run.json["results"]
    assert run.fid == wanted.fid
    assert [each["framing"] for each in result["sets"].values()] == ["adm:48", None]
    assert result["sets"]["real"]["made_with"]["crop"] == "adm:48"


def test_checkpoint_distinguishes(here: Run, place: Path) -> None:
    line = (
        "compute",
        place / "photos",
        place / "fake",
        *SMALL,
        "--no-cache",
        "--json",
        "--checkpoint",
        "kept",
    )
    first = here(*line, "--crop", "adm:48")
    again = here(*line, "--crop", "adm:48")
    assert (again.fid, again.json["run"]["images_resumed"]) == (first.fid, 2 * COUNT)
    refused = here(*line, "--crop", "adm:32")
    assert refused.status == 2
    assert f"framing of {place / 'photos'} was adm:48 and is now adm:32" in refused.stderr


# --- where it is shown ----------------------------------------------------------------------------


def test_lines_are_unchanged_and_the_framing_is_on_stderr(here: Run, place: Path) -> None:
    line = ("compute", place / "photos", place / "fake", *SMALL)
    run = here(*line, "--crop", "adm:48", "--crop-fake", "edm:12", "--quiet")
    assert re.fullmatch(rf"{re.escape(FD)}: \d+\.\d{{4}}\n", run.stdout)
    said = [each for each in run.stderr.splitlines() if not each.startswith("warning: ")]
    adm, edm = "adm:48 (box and bicubic filters)", "edm:12 (Lanczos filter)"
    assert said == [f"{place / 'photos'}: cropped by {adm}", f"{place / 'fake'}: cropped by {edm}"]


def test_table_shows_it(here: Run, place: Path) -> None:
    line = (
        "compute",
        place / "fake",
        place / "photos",
        place / "photos-edm",
        *SMALL,
        "--format",
        "table",
        "--quiet",
    )
    run = here(*line, "--crop-fake", "center:32")
    shown = " ".join(" ".join(run.stdout.splitlines()).split())
    assert (
        f"{place / 'photos'}, {place / 'photos-edm'}: cropped by center:32 (bilinear filter with"
        in shown
    )
    assert "framed" not in run.stderr


def test_page_shows_it_and_the_framed_images(here: Run, place: Path, tmp_path: Path) -> None:
    for package in ("jinja2", "matplotlib"):
        pytest.importorskip(package, reason=f"the page needs {package}, from the extra 'report'")
    flags = ("--extractor", COLOURS, "--report", "page.html")
    crops = ("--crop", "adm:40", "--crop-fake", "resize:20")
    assert here("compute", place / "photos", place / "fake", *flags, *crops).status == 0
    page = (tmp_path / "page.html").read_text()
    header = page.partition("</header>")[0]
    assert f"{place / 'photos'} ({COUNT} images, cropped by adm:40)" in header
    assert f"{place / 'fake'} ({COUNT} images, cropped by resize:20)" in header
    assert sizes_in(page) == {(40, 40), (20, 20)}


def sizes_in(page: str) -> set[tuple[int, int]]:
    """Return the sizes of the images on a page."""
    found = re.findall(r"data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/=]+)", page)
    assert len(found) > COUNT
    return {Image.open(io.BytesIO(base64.b64decode(data))).size for data in found}


# --- what it does not apply to --------------------------------------------------------------------


def test_no_effect_on_statistics_files(here: Run, place: Path) -> None:
    assert here("stats", place / "photos", "-o", "photos.npz", *SMALL).status == 0
    run = here("compute", "photos.npz", place / "fake", *SMALL, "--crop", "adm:48")
    assert "photos.npz has statistics: --crop does not apply to it" in run.stderr
    applied = here("compute", "photos.npz", place / "fake", *SMALL, "--crop-fake", "edm:9")
    assert "does not apply to it" not in applied.stderr


def test_a_set_can_be_framed_in_two_ways(here: Run, place: Path) -> None:
    photos = place / "photos"
    both = here(
        "compute", photos, photos, *SMALL, "--crop", "adm:48", "--crop-fake", "adm:32", "--json"
    ).json
    assert here("stats", photos, "-o", "real.npz", *SMALL, "--crop", "adm:48").status == 0
    apart = here("compute", "real.npz", photos, *SMALL, "--crop-fake", "adm:32", "--json").json
    for found in (both, apart):
        sets = found["results"][0]["sets"]
        assert {role: one["framing"] for role, one in sets.items()} == {
            "real": "adm:48",
            "fake": "adm:32",
        }
    assert both["results"][0]["metrics"] == apart["results"][0]["metrics"]
    assert not [line for line in messages(both["results"][0]) if "the same set as REAL" in line]


def test_an_object_can_be_framed_in_two_ways(place: Path, environment: dict[str, str]) -> None:
    pixels = pixels_in(place / "fake")
    once = fidtool.compute(pixels, pixels, crop="adm:8", **SETTINGS).results[0]
    twice = fidtool.compute(
        fidtool.Images(pixels), fidtool.Images(pixels), crop="adm:8", **SETTINGS
    ).results[0]
    assert (twice.real.framing, twice.fake.framing) == (Crop("adm", 8), None)
    assert (twice.frechet_distance or 0) > 0
    assert dict(once.metrics) == dict(twice.metrics)
