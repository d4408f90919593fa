"""--num, --num-real, --num-fake and --sample: which images of each set are used, and what remembers
it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import fidtool
from support.command_line import Run, messages
from support.pictures import make_pictures
from support.places import TINY
from support.source_forms import make_forms, make_pair, pixels_in

COUNT = 24
BASE = ("--extractor", TINY, "--batch-size", "8")
SETTINGS: dict[str, Any] = {"extractor": TINY, "batch_size": 8, "cache": False}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_pair(tmp_path_factory.mktemp("sampling"), COUNT)
    time.sleep(0.08)  # younger files are not cached
    return place


def test_the_first_images_of_every_form(here: Run, place: Path) -> None:
    """They are those of other programs' ``sorted(files)[:num]`` and ``array[:num]``."""
    for path in make_forms(place / "images").values():
        whole = here("check", path, "--list", "--value-range", "0,1").stdout.splitlines()
        first = here(
            "check", path, "--list", "--value-range", "0,1", "--num", 9, "--sample", "first"
        )
        assert sorted(first.stdout.splitlines()) == sorted(whole[:9])
        assert len(whole) == COUNT


def test_the_first_images_in_memory(place: Path, environment: dict[str, str]) -> None:
    pixels = pixels_in(place / "images")
    (sliced,) = fidtool.compute(place / "real", pixels[:9], **SETTINGS).results
    for given in (pixels, iter(pixels), place / "images"):
        evaluation = fidtool.compute(place / "real", given, num_fake=9, sample="first", **SETTINGS)
        (result,) = evaluation.results
        assert result.metrics == sliced.metrics
        assert (result.real.count, result.fake.count) == (COUNT, 9)
        assert "instead of a random" not in "".join(map(str, evaluation.run.warnings))


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        (["--num-real", 20], (20, COUNT)),
        (["--num-fake", 20], (COUNT, 20)),
        (["--num", 18, "--num-fake", 20], (18, 20)),
        (["--num-images", 18, "--num-real", 9, "--sample", "first"], (9, 18)),
    ],
)
def test_a_number_of_each_set(
    here: Run, place: Path, flags: list[object], counts: tuple[int, int]
) -> None:
    found = here("compute", place / "real", place / "images", *BASE, *flags, "--json").json
    (result,) = found["results"]
    assert tuple(result["count"].values()) == counts
    assert [each["found"] for each in result["sets"].values()] == [COUNT, COUNT]
    config = {
        name: found["run"]["config"].get(name) for name in ("num", "num_real", "num_fake", "sample")
    }
    values = [value for value in config.values() if value is not None]
    assert sorted(values, key=str) == sorted(flags[1::2], key=str)


def test_caches_and_checkpoints_know_the_sample(here: Run, place: Path) -> None:
    command = [
        "compute",
        place / "real",
        place / "images",
        *BASE,
        "--num",
        9,
        "--checkpoint",
        "kept",
        "--json",
    ]
    again = [*command, "--sample", "first"]
    random = here(*command).json
    assert "sample was random and is now first" in here(*again).error
    again[again.index("kept")] = "other"
    first = here(*again).json
    assert (random["run"]["images_computed"], first["run"]["images_computed"]) == (18, 18)
    assert random["results"][0]["metrics"] != first["results"][0]["metrics"]
    assert here(*again).json["run"]["images_computed"] == 0
    refused = here(*command, "--num-fake", 12)
    assert f"count of {place / 'images'} was 9 and is now 12" in refused.error


def test_statistics_files_know_the_sample(here: Run, place: Path, tmp_path: Path) -> None:
    made = here("stats", place / "real", "-o", "real.npz", *BASE, "--num", 9, "--sample", "first")
    assert made.status == 0
    config = fidtool.read_statistics(tmp_path / "real.npz").config
    assert config == {"extractor": TINY, "batch_size": 8, "num": 9, "sample": "first"}
    used = here(
        "compute", "real.npz", place / "images", *BASE, "--num-real", 5, "--num-fake", 20, "--json"
    ).json
    (result,) = used["results"]
    assert [line for line in messages(result) if "does not apply" in line] == [
        "real.npz has statistics: --num-real does not apply to it"
    ]
    assert used["results"][0]["count"] == {"real": 9, "fake": 20}


@pytest.mark.parametrize("preset", ["stylegan", "adm", "pytorch-fid"])
def test_a_preset_wants_all_real_images(here: Run, place: Path, preset: str) -> None:
    command = ("compute", place / "real", place / "images", *BASE, "--json")
    for flags, outcome in (
        (["--num-real", 20], (False, f"20 of {COUNT}")),
        (["--num-fake", 20], (None, f"{COUNT}")),
    ):
        document = here(*command, *flags).json
        (verdict,) = fidtool.verify(document, preset)
        (item,) = (item for item in verdict.items if item.name == "images of REAL")
        assert (None if item.verdict == "not known" else False, item.found) == outcome
        document["results"][0] |= {"count": {"real": 20, "fake": 20}}
        document["results"][0]["skipped"] = [
            {"set": str(place / "real"), "file": "a", "reason": "b"}
        ] * (COUNT - 20)
        assert "images of REAL" in fidtool.verify(document, preset)[0].names_with("not known"), (
            "unreadable, not left out"
        )


def test_refusals(here: Run, place: Path) -> None:
    real, images = str(place / "real"), str(place / "images")
    for flags, message in {
        ("--num-real", 25): f"--num-real asks for 25 images but {real} has {COUNT}",
        ("--num-fake", 25, "--num", 3): f"--num-fake asks for 25 images but {images} has {COUNT}",
        ("--num", 25): f"--num asks for 25 images but {real} has {COUNT}",
        ("--num-fake", 0): "--num-fake must be at least 1, not 0",
        ("--sample", "first"): "--sample first needs the number of images: pass --num N",
    }.items():
        refused = here("compute", real, images, *BASE, *flags)
        assert (refused.status, refused.error) == (2, f"error: {message}")
    more = make_pictures(place / "more", 25)
    advised = here("compute", real, more, *BASE, "--num", 25).error
    assert (
        advised
        == f"error: --num asks for 25 images but {real} has {COUNT}; pass --num-fake 25 instead"
    )
    twice = here("compute", real, images, real, *BASE, "--num-real", 9, "--num", 12, "--json").json[
        "results"
    ][1]
    assert twice["count"] == {"real": 9, "fake": 12}
    few = [line for line in messages(twice) if "too few" in line]
    assert [line.partition(":")[0] for line in few] == [
        f"{real} as REAL (only 9 images)",
        f"{real} as FAKE (only 12 images)",
    ]
    alone = f"error: --num asks for 25 images but {real} has {COUNT}"
    for other in (("check",), ("stats", "-o", "a.npz")):
        assert here(*other, real, "--num", 25).error == alone
    with pytest.raises(fidtool.InputError, match=f"has {COUNT}; pass num_fake=25 instead"):
        fidtool.compute(real, more, num=25, **SETTINGS)
    with pytest.raises(fidtool.InputError, match="yielded 9; pass num_real=15 instead"):
        fidtool.compute(images, iter(pixels_in(place / "real")[:9]), num=15, **SETTINGS)
    with pytest.raises(fidtool.InputError, match="num_real asks for 25 images"):
        fidtool.compute(iter(pixels_in(place / "real")), images, num_real=25, **SETTINGS)


def test_torchrun_takes_the_flags() -> None:
    """Its parser also reads the options of the command, and rejects beginnings of several of its
    own.
    """
    from torch.distributed.run import get_args_parser

    command = [
        "compute",
        "real",
        "fake",
        "--num-images",
        "5",
        "--num-real",
        "5",
        "--num-fake=5",
        "--sample",
        "first",
    ]
    assert get_args_parser().parse_args(["-m", "fidtool", *command]).training_script_args == command
