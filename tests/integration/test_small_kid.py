"""KID of sets with fewer images than its default subset size."""

from __future__ import annotations

from pathlib import Path

import pytest

import fidtool
from support.command_line import Run
from support.pictures import make_pictures
from support.places import TINY
from support.small_sets import COUNT, make_sets

KID = ("--extractor", TINY, "--metrics", "kid", "--json")


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


def test_subsets_have_the_size_of_the_smallest_set(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    third = make_pictures(tmp_path / "third", 17, 2)
    found = here("compute", *sets, third, *KID)
    assert found.json["settings"]["kid"] == {"subsets": 100, "subset_size": 17, "seed": 0}
    assert found.json["run"]["config"]["kid_subset_size"] == 17
    warning = f"KID draws subsets of 17 images instead of 1000, because {third} has 17"
    assert found.stderr.count(warning) == 1
    assert all(result["warnings"][0] == warning for result in found.json["results"])
    explicit = here("compute", *sets, third, *KID, "--kid-subset-size", 17)
    values = [[result["metrics"] for result in each.json["results"]] for each in (found, explicit)]
    assert values[0] == values[1]
    assert "instead of 1000" not in explicit.stderr


def test_files_that_may_be_skipped_do_not_count(here: Run, sets: tuple[Path, Path]) -> None:
    skip = ("--on-error", "skip", "--max-skip", 0.1)
    found = here("compute", *sets, *KID, *skip)
    assert found.json["settings"]["kid"]["subset_size"] == COUNT - 4
    assert "has 40, of which --on-error skip may skip 4" in found.stderr


def test_a_subset_that_is_all_of_both_sets_has_no_spread(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    same = make_pictures(tmp_path / "same", COUNT, 4)
    found = here("compute", sets[0], same, *KID)
    ((name, value),) = found.metrics.items()
    assert name.startswith("kid_")
    assert "std" not in name
    text = here("compute", sets[0], same, *KID[:-1]).stdout
    assert text == f"KID ({TINY}): {value:.6f}\n"
    smaller = here("compute", *sets, *KID)
    assert len(smaller.metrics) == 2
    explicit = here("compute", sets[0], same, *KID, "--kid-subset-size", COUNT, "--report", "report.html")
    assert explicit.metrics == found.metrics
    assert f"{value:.6f}" in (tmp_path / "report.html").read_text()


def test_later_iterables_are_compared_with_the_same_size(sets: tuple[Path, Path], environment: dict[str, str]) -> None:
    from PIL import Image

    def some(count: int) -> fidtool.Images:
        return fidtool.Images(iter([Image.open(file) for file in sorted(sets[1].iterdir())[:count]]))

    kid = {"extractor": TINY, "metrics": "kid", "cache": False}
    found = fidtool.compute(sets[0], [some(20), some(30)], **kid)  # type: ignore[arg-type]
    assert found.settings["kid"]["subset_size"] == 20
    with pytest.raises(fidtool.InputError, match=r"KID draws subsets of 20 images, and .* has 10: pass"):
        fidtool.compute(sets[0], [some(20), some(10)], **kid)  # type: ignore[arg-type]
