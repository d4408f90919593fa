"""The same images in every form of source give bitwise the same values."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fidtool.reading.batches import plan_batches
from fidtool.reading.decode import decode
from fidtool.sources.contents import ValueRange
from fidtool.sources.image_set import Sampling
from fidtool.sources.listing import open_images
from support.command_line import Run
from support.places import TINY
from support.source_forms import (
    ARGUMENTS,
    COUNT,
    FORMS,
    names_in,
    pixels_in,
    prepare_expected,
    prepare_forms,
    write_zip,
)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return prepare_forms(tmp_path_factory)


@pytest.fixture(scope="module")
def expected(forms: dict[str, str]) -> dict[str, float]:
    return prepare_expected(forms)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_folders_values(
    here: Run, forms: dict[str, str], expected: dict[str, float], form: str
) -> None:
    run = here("compute", forms["real"], forms[form], *ARGUMENTS)
    assert run.metrics == expected
    assert run.json["results"][0]["count"]["fake"] == COUNT


@pytest.mark.parametrize("form", ["images.zip", "images.tar.gz"])
def test_decoding_workers_do_not_change_values(
    here: Run, forms: dict[str, str], expected: dict[str, float], form: str
) -> None:
    assert (
        here("compute", forms["real"], forms[form], *ARGUMENTS, "--num-workers", 2).metrics
        == expected
    )


@pytest.mark.parametrize("form", ["images.tar.gz", "images.npz"])
def test_num_draws_the_same_images_from_every_form(
    here: Run, forms: dict[str, str], form: str
) -> None:
    drawn = [
        here("compute", forms["real"], forms[each], *ARGUMENTS, "--num", 13).metrics
        for each in ("folder", form)
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("form", ["folder", *FORMS])
def test_each_name_has_the_right_image(forms: dict[str, str], form: str) -> None:
    """Equal values do not show that each image is read under its own name."""
    images = open_images(forms[form], True, ValueRange(0.0, 1.0)).draw(Sampling(None, 3))
    expected = pixels_in(Path(forms["folder"]))
    names = names_in(Path(forms["folder"]))
    seen = []
    for batch in plan_batches(images, 5):
        contents = list(images.read(batch.images))
        files = [images.file(index) for index in batch.images]
        for content, file in zip(contents, files, strict=True):
            place = (
                int(file[file.rindex("[") + 1 : -1])
                if file.endswith("]")
                else names.index(tail(file, names))
            )
            np.testing.assert_array_equal(decode(content).pixels, expected[place])
            seen.append(place)
    assert sorted(seen) == list(range(COUNT))


def tail(file: str, names: list[str]) -> str:
    """Return the relative name at the end of a path."""
    return max((name for name in names if file.endswith(f"/{name}")), key=len)


def test_features_of_a_streamed_source_are_in_the_order_of_the_set(forms: dict[str, str]) -> None:
    import fidtool

    kept = {}
    for form in ("folder", "images.tar.gz"):
        statistics = fidtool.compute_statistics(
            forms[form], extractor=TINY, metrics="kid", cache=False
        )
        assert statistics is not None
        assert statistics.pictures is not None
        kept[form] = statistics
    np.testing.assert_array_equal(kept["folder"].features, kept["images.tar.gz"].features)
    assert list(kept["folder"].pictures.names) == list(kept["images.tar.gz"].pictures.names)
    np.testing.assert_array_equal(
        kept["folder"].pictures.records, kept["images.tar.gz"].pictures.records
    )


def test_a_list_from_standard_input(
    here: Run, forms: dict[str, str], expected: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(forms["folder"])
    text = "".join(f"{folder / name}\n" for name in names_in(folder)).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert here("compute", forms["real"], "-", *ARGUMENTS).metrics == expected


def test_statistics_and_images_in_one_file(
    here: Run, forms: dict[str, str], tmp_path: Path
) -> None:
    both = tmp_path / "both.npz"
    np.savez(both, mu=np.zeros(16), sigma=np.eye(16), arr_0=pixels_in(Path(forms["folder"])))
    statistics = here("compute", forms["real"], both, *ARGUMENTS[:4])
    assert "the statistics are used" in " ".join(statistics.stderr.split())
    assert "both.npz:arr_0" in statistics.stderr
    images = here("compute", forms["real"], f"{both}:arr_0", *ARGUMENTS)
    assert images.metrics == here("compute", forms["real"], forms["folder"], *ARGUMENTS).metrics


def test_statistics_of_archives_are_cached(
    here: Run, forms: dict[str, str], tmp_path: Path
) -> None:
    folder = Path(forms["folder"])
    names = names_in(folder)
    write_zip(tmp_path / "set.zip", folder, names)
    time.sleep(0.08)  # younger files are not cached: see test_cache
    arguments = ("compute", "set.zip", "set.zip", "--extractor", TINY, "--json")
    computed = [here(*arguments).json["run"]["images_computed"] for _ in range(2)]
    assert computed == [COUNT, 0]
    write_zip(tmp_path / "set.zip", folder, names[:-1])
    assert here(*arguments).json["run"]["images_computed"] == COUNT - 1


def test_a_report_shows_images_from_archives(
    here: Run, forms: dict[str, str], tmp_path: Path
) -> None:
    archive = forms["images.tar.gz"]
    run = here(
        "compute",
        forms["real"],
        archive,
        "--extractor",
        TINY,
        "--no-cache",
        "--report",
        "page.html",
    )
    assert run.status == 0, run.stderr
    page = (tmp_path / "page.html").read_text()
    assert "images.tar.gz/000.png" in page
    assert page.count("data:image/") >= COUNT


def test_a_checkpoint_of_an_archive_is_resumed(here: Run, forms: dict[str, str]) -> None:
    arguments = (
        "compute",
        forms["real"],
        forms["images.tar.gz"],
        *ARGUMENTS,
        "--checkpoint",
        "kept",
    )
    first, again = here(*arguments), here(*arguments)
    assert first.metrics == again.metrics
    assert (first.json["run"]["images_resumed"], again.json["run"]["images_resumed"]) == (
        0,
        2 * COUNT,
    )
