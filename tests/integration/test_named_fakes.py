"""Several FAKEs under the names that a program gives them."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fidtool
from fidtool.report.tables import format_lines
from support.places import TINY
from support.source_forms import make_pair, names_in, pixels_in

COUNT = 22
SETTINGS: dict[str, Any] = {"extractor": TINY, "batch_size": 4, "metrics": "fid"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("named"), COUNT)


def test_whatever_is_a_fake_has_a_name(place: Path, environment: dict[str, str]) -> None:
    images = place / "images"
    pixels = pixels_in(images)
    statistics = fidtool.compute_statistics(images, **SETTINGS)
    fidtool.write_statistics(place / "stored.npz", statistics)
    forms: dict[str, Any] = {
        "a path": images,
        "a text": str(images),
        "a file": place / "stored.npz",
        "an array": pixels,
        "files": [str(images / name) for name in names_in(images)],
        "a tensor": torch.from_numpy(pixels),
        "an iterable": iter(pixels),
        "Images": fidtool.Images(pixels, name="another"),
        "statistics": statistics,
    }
    evaluation = fidtool.compute(place / "real", forms, **SETTINGS)
    expected = fidtool.compute(place / "real", images, **SETTINGS).frechet_distance
    assert [result.fake.name for result in evaluation.results] == [*forms]
    assert [*evaluation.by_name] == [*forms]
    for name, result in evaluation.by_name.items():
        assert result.frechet_distance == pytest.approx(expected, rel=1e-9), name
    assert evaluation.run.notes[:3] == (
        f"a path is {images}",
        f"a text is {images}",
        f"a file is {place / 'stored.npz'}",
    )
    (line,) = (each.message for each in evaluation.alerts if "are the same set" in each.message)
    assert line == "a path and a text are the same set"


def test_a_function_has_a_name(place: Path, environment: dict[str, str]) -> None:
    def generate(n: int) -> torch.Tensor:
        return torch.randint(0, 255, (n, 3, 24, 24), dtype=torch.uint8)

    forms = {"one": generate, "two": fidtool.Images(generate)}
    evaluation = fidtool.compute(place / "real", forms, num_fake=9, **SETTINGS)
    assert {name: result.fake.count for name, result in evaluation.by_name.items()} == {
        "one": 9,
        "two": 9,
    }


def test_names_are_in_all_that_a_run_says(place: Path, environment: dict[str, str]) -> None:
    folder = place / "images"
    forms = {"epoch 1": folder, "epoch 2": pixels_in(folder)[::-1]}
    settings = {**SETTINGS, "uncertainty": True}
    seen: list[str] = []
    evaluation = fidtool.compute(
        place / "real", forms, progress=lambda name, done, total: seen.append(name), **settings
    )
    document = json.loads(json.dumps(evaluation.to_dict()))
    assert [result["fake"] for result in document["results"]] == [*forms]
    rows = csv.DictReader(format_lines("csv", {"": evaluation}))
    assert [row["fake"] for row in rows] == [*forms]
    table = format_lines("table", {"": evaluation})
    assert [line[:7] for line in table[1:3]] == [*forms]
    about = {warning.set for result in evaluation.results for warning in result.warnings}
    assert about <= {"", *forms, *(f"{name}, real" for name in forms), str(place / "real")}
    assert about & {*forms}
    assert {*seen} <= {str(place / "real"), *forms}
    for name, given in forms.items():
        with pytest.raises(fidtool.InputError, match=f"num_fake .* but {name} has {COUNT}"):
            fidtool.compute(place / "real", {name: given}, num_fake=23, **SETTINGS)


def test_a_named_folder_has_the_cache_of_the_folder(
    environment: dict[str, str], tmp_path: Path
) -> None:
    make_pair(tmp_path, 8)
    time.sleep(0.08)  # younger files are not cached
    sets = tmp_path / "real", tmp_path / "images"
    first = fidtool.compute(*sets, **SETTINGS)
    again = fidtool.compute(sets[0], {"epoch 1": sets[1]}, **SETTINGS)
    assert again.frechet_distance == first.frechet_distance
    assert "epoch 1" in again.run.cached
    assert again.run.images_computed == 0


def test_a_name_of_a_set_in_memory_is_free_for_another(
    place: Path, environment: dict[str, str]
) -> None:
    pixels = pixels_in(place / "images")
    evaluation = fidtool.compute(pixels, {"real": pixels[:20], "fake": pixels[1:]}, **SETTINGS)
    assert [*evaluation.by_name] == ["real", "fake"]
    assert evaluation.results[0].real.name == "real 2"


def test_a_name_that_real_was_given_is_taken(place: Path, environment: dict[str, str]) -> None:
    pixels = pixels_in(place / "images")
    real = fidtool.Images(pixels, name="epoch 1")
    with pytest.raises(fidtool.InputError, match="two sets have the name epoch 1: choose another"):
        fidtool.compute(real, {"epoch 1": pixels[:20]}, **SETTINGS)


def test_rows(place: Path, environment: dict[str, str]) -> None:
    forms = {"a": place / "images", "b": pixels_in(place / "images")[:20]}
    evaluation = fidtool.compute(place / "real", forms, **SETTINGS)
    found: dict[str, dict[str, float]] = {}
    for row in evaluation.rows:
        assert row["class"] == "(all)"
        found.setdefault(row["set"], {})[row["metric"]] = row["value"]
    assert found == {
        name: {"count.real": COUNT, "count.fake": result.fake.count, **result.metrics}
        for name, result in evaluation.by_name.items()
    }
