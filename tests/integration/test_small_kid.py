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
PARAMETERS = {"degree": 3, "gamma": None, "coef": 1.0, "sigma": 10.0}
"""Of the kernels."""


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_sets(tmp_path)


def test_subsets_have_the_size_of_the_smallest_set(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    third = make_pictures(tmp_path / "third", 17, 2)
    found = here("compute", *sets, third, *KID)
    of_subsets = {"subsets": 100, "subset_size": 1000, "seed": 0}
    assert found.json["settings"]["kid"] == {**of_subsets, "kernel": "poly", **PARAMETERS}
    sizes = [
        value
        for each in found.json["results"]
        for name, value in each["metrics"].items()
        if "size" in name
    ]
    assert sizes == [COUNT, 17]
    for each, count in (sets[0], COUNT), (third, 17):
        assert (
            f"{each} (only {count} images): KID draws subsets of {count} images instead of 1000\n"
            in found.stderr
        )
    explicit = here("compute", *sets, third, *KID, "--kid-subset-size", 17)
    values = [[*each.json["results"][1]["metrics"].values()] for each in (found, explicit)]
    assert values[0][:2] == values[1]
    assert "instead of" not in explicit.stderr
    assert (
        "(only 17 images): KID draws subsets of 17 images instead of 20"
        in here("compute", *sets, third, *KID, "--kid-subset-size", 20).stderr
    )


def test_a_subset_that_is_all_of_both_sets_has_no_spread(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
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
    explicit = here(
        "compute", sets[0], same, *KID, "--kid-subset-size", COUNT, "--report", "report.html"
    )
    assert explicit.metrics == {name: value}
    assert f">{value:.3f}</span>" in (tmp_path / "report.html").read_text()


def test_another_kernel_is_in_title_and_record(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    run = ("compute", *sets, *KID[:-1], "--kid-subset-size", 20, "--kid-kernel", "rbf")
    usual = here(*run[:-2], "--json", "-o", "usual.json")
    found = here(*run, "--json", "-o", "rbf.json")
    assert found.metrics.keys() == usual.metrics.keys()
    assert found.metrics != usual.metrics
    of_subsets = {"subsets": 100, "subset_size": 20, "seed": 0}
    assert found.json["settings"]["kid"] == {**of_subsets, "kernel": "rbf", **PARAMETERS}
    assert found.json["run"]["config"]["kid_kernel"] == "rbf"
    assert here(*run, "--kid-sigma", 10).stdout.startswith(f"KID-rbf ({TINY}): ")
    assert here(*run[:-2], "--kid-gamma", 0.5).stdout.startswith(f"KID-poly ({TINY}): ")
    assert here(*run, "--kid-sigma", 3, "--json").metrics != found.metrics
    assert here("table", "rbf.json", "usual.json").stdout.splitlines()[1].split()[1:3] == [
        "KID-rbf",
        "±",
    ]
    tried = fidtool.compute(
        *sets, extractor=TINY, metrics=[fidtool.KID(subset_size=20, kernel="rbf")]
    )
    assert dict(tried.results[0].metrics) == found.metrics


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kid-kernel", "rbf", "--kid-sigma", 0), "--kid-sigma must be at least 1e-09, not 0"),
        (("--kid-kernel", "rbf", "--kid-sigma", -1), "--kid-sigma must be at least 1e-09, not -1"),
        (
            ("--kid-sigma", 3),
            "--kid-sigma is not a setting of KID's kernel poly: omit it, or pass another "
            "--kid-kernel",
        ),
        (
            ("--kid-kernel", "rbf", "--kid-degree", 2),
            "--kid-degree is not a setting of KID's kernel rbf: omit it",
        ),
    ],
)
def test_refused_kernels(
    here: Run, sets: tuple[Path, Path], arguments: tuple[object, ...], words: str
) -> None:
    refused = here("compute", *sets, *KID[:-1], *arguments)
    assert refused.status == 2
    assert words in refused.error


def test_iterables_are_compared_with_their_own_sizes(
    sets: tuple[Path, Path], environment: dict[str, str]
) -> None:
    from PIL import Image

    def some(count: int) -> fidtool.Images:
        return fidtool.Images(
            iter([Image.open(file) for file in sorted(sets[1].iterdir())[:count]])
        )

    kid = {"extractor": TINY, "metrics": "kid", "cache": False}
    found = fidtool.compute(sets[0], [some(20), some(10)], **kid)  # type: ignore[arg-type]
    assert [each.value("kid_subset_size") for each in found.results] == [20, 10]
    with pytest.raises(
        fidtool.InputError, match=r"KID needs at least 2 images in a set, but .* has 1"
    ):
        fidtool.compute(sets[0], [some(20), some(1)], **kid)  # type: ignore[arg-type]
