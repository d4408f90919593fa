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
    assert found.json["settings"]["kid"] == {"subsets": 100, "subset_size": 1000, "seed": 0}
    sizes = [value for each in found.json["results"] for name, value in each["metrics"].items() if "size" in name]
    assert sizes == [COUNT, 17]
    sets_of = f"{sets[0]} (only {COUNT} images), {third} (only 17 images)"
    assert f"{sets_of}: KID draws subsets of that size instead of 1000\n" in found.stderr
    explicit = here("compute", *sets, third, *KID, "--kid-subset-size", 17)
    values = [[*each.json["results"][1]["metrics"].values()] for each in (found, explicit)]
    assert values[0][:2] == values[1]
    assert "instead of" not in explicit.stderr
    assert (
        "(only 17 images): KID draws subsets of that size instead of 20"
        in here("compute", *sets, third, *KID, "--kid-subset-size", 20).stderr
    )


def test_a_subset_that_is_all_of_both_sets_has_no_spread(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    same = make_pictures(tmp_path / "same", COUNT, 4)
    found = here("compute", sets[0], same, *KID)
    (name, value), (size, _) = found.metrics.items()
    assert name.startswith("kid_")
    assert "std" not in name
    assert size.startswith("kid_subset_size_")
    text = here("compute", sets[0], same, *KID[:-1]).stdout
    assert text == f"KID ({TINY}): {value:.6f}\n"
    smaller = here("compute", *sets, *KID)
    assert len(smaller.metrics) == 3
    explicit = here("compute", sets[0], same, *KID, "--kid-subset-size", COUNT, "--report", "report.html")
    assert explicit.metrics == {name: value}
    assert f">{value:.3f}</span>" in (tmp_path / "report.html").read_text()


def test_iterables_are_compared_with_their_own_sizes(sets: tuple[Path, Path], environment: dict[str, str]) -> None:
    from PIL import Image

    def some(count: int) -> fidtool.Images:
        return fidtool.Images(iter([Image.open(file) for file in sorted(sets[1].iterdir())[:count]]))

    kid = {"extractor": TINY, "metrics": "kid", "cache": False}
    found = fidtool.compute(sets[0], [some(20), some(10)], **kid)  # type: ignore[arg-type]
    assert [each.value("kid_subset_size") for each in found.results] == [20, 10]
    with pytest.raises(fidtool.InputError, match=r"KID needs at least two images per set, and .* has 1"):
        fidtool.compute(sets[0], [some(20), some(1)], **kid)  # type: ignore[arg-type]
