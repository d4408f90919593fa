"""``fidtool check`` reports the composition of a set and findings about it, without a network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool as package
from support import degenerate
from support.command_line import Outcome, Run
from support.places import TINY


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return degenerate.distinct(tmp_path / "clean", 80)


def codes(outcome: Outcome) -> dict[str, str]:
    """Return the severities, by code, of the findings about the set and its differences from the other set."""
    found = outcome.json["images"]["findings"] + outcome.json["between"]
    return {each["code"]: each["severity"] for each in found}


def test_a_clean_set_is_one_line(here: Run, clean: Path) -> None:
    outcome = here("check", clean)
    assert outcome.status == 0
    assert outcome.stdout == f"{clean}: 80 images, PNG; RGB; 32x32 pixels: no findings\n"
    assert outcome.stderr == ""
    assert here("check", clean, "--strict").status == 0


def test_composition_of_a_set(here: Run, tmp_path: Path) -> None:
    degenerate.write(tmp_path / "mixed", ((f"{i}.png", degenerate.sample(i, 48)) for i in range(30)))
    degenerate.write(tmp_path / "mixed", ((f"{i}.jpg", degenerate.sample(i + 99, 64)) for i in range(10)), quality=88)
    health = here("check", tmp_path / "mixed", "--json").json["images"]
    assert health["images"] == 40
    assert health["formats"] == {"PNG": 30, "JPEG": 10}
    assert health["modes"] == {"RGB": 40}
    assert health["sizes"] == {"48x48": 30, "64x64": 10}
    assert health["aspect_ratios"] == [1.0, 1.0, 1.0]
    assert health["jpeg_quality"] == [88, 88, 88]
    pixels = [np.asarray(Image.open(file).convert("RGB")) for file in (tmp_path / "mixed").iterdir()]
    means = [float((x @ [0.299, 0.587, 0.114]).mean()) for x in pixels]
    assert health["brightness"] == pytest.approx([np.mean(means), np.std(means)], abs=0.6)
    assert sum(health["histogram"]) == pytest.approx(1)
    assert len(health["histogram"]) == 16


@pytest.mark.parametrize(
    ("fault", "code", "severity"),
    [
        ("copies", "copies", "high"),
        ("noise", "noise", "high"),
        ("constant", "constant", "high"),
        ("unreadable", "unreadable", "high"),
        ("unscaled", "unscaled", "high"),
        ("clipped", "clipped", "high"),
        ("odd size", "odd size", "low"),
        ("gray", "gray", "low"),
        ("strong compression", "strong compression", "medium"),
        ("alpha", "alpha", "low"),
        ("deep", "deep", "low"),
    ],
)
def test_each_fault_is_the_only_finding(here: Run, tmp_path: Path, fault: str, code: str, severity: str) -> None:
    """The finding has the number of images and an example."""
    folder, count = broken(tmp_path / "set", fault)
    outcome = here("check", folder, "--json")
    assert outcome.status == 0
    assert codes(outcome) == {code: severity}
    (finding,) = outcome.json["images"]["findings"]
    assert finding["count"] == count
    assert Path(finding["example"]).parent == folder
    assert str(count) in finding["message"]
    text = here("check", folder, "--strict")
    assert text.status == 3
    assert f"{severity}: {folder}: " in text.stdout
    assert text.stderr == "gate missed: 1 finding\n"


def broken(folder: Path, fault: str) -> tuple[Path, int]:
    """Write a set of about 60 images with one fault. Return the folder and the number of images with the fault."""
    if fault in WHOLE:
        return WHOLE[fault](folder)
    degenerate.distinct(folder, 50)
    if fault in OTHERS:
        pictures = OTHERS[fault]()
        return degenerate.write(folder, pictures), len(pictures)
    for i in range(10):
        if fault == "copies":
            shutil.copy(folder / f"{i:05}.png", folder / f"x{i}.png")
        else:
            (folder / f"x{i}.png").write_bytes(b"no image")
    return folder, 10


def _odd_one(folder: Path) -> tuple[Path, int]:
    degenerate.distinct(folder, 59)
    return degenerate.write(folder, [("odd.png", degenerate.sample(500, 40))]), 1


def _strong(folder: Path) -> tuple[Path, int]:
    return degenerate.write(folder, ((f"{i}.jpg", degenerate.sample(i)) for i in range(60)), quality=40), 60


def _unscaled(folder: Path) -> tuple[Path, int]:
    rng = np.random.default_rng(0)
    ones = (rng.integers(0, 2, (32, 32, 3)).astype(np.uint8).repeat(8, 0).repeat(8, 1) for _ in range(60))
    return degenerate.write(folder, ((f"{i}.png", each) for i, each in enumerate(ones))), 60


def _gray(seed: int) -> degenerate.Pixels:
    return np.asarray(Image.fromarray(degenerate.sample(seed)).convert("L"))


def _noise(seed: int) -> degenerate.Pixels:
    return np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def _more(make: Callable[[int], np.ndarray[Any, Any]], suffix: str = "png", count: int = 10) -> list[tuple[str, Any]]:
    return [(f"x{i}.{suffix}", make(i + 300)) for i in range(count)]


def _clipped(folder: Path) -> tuple[Path, int]:
    rng = np.random.default_rng(0)
    values = (255 * (rng.normal(0.5, 1, (9, 9, 3)).clip(0, 1)) for _ in range(60))
    pictures = (np.kron(each, np.ones((4, 4, 1))).astype(np.uint8) for each in values)
    return degenerate.write(folder, ((f"{i}.png", each) for i, each in enumerate(pictures))), 60


WHOLE = {
    "odd size": _odd_one,
    "strong compression": _strong,
    "unscaled": _unscaled,
    "clipped": _clipped,
}
"""Faults that affect a whole set."""

OTHERS: dict[str, Callable[[], list[tuple[str, Any]]]] = {
    "noise": lambda: _more(_noise),
    "constant": lambda: _more(lambda i: np.full((32, 32, 3), 20 * (i - 300) + 9, dtype=np.uint8)),
    "gray": lambda: _more(_gray),
    "alpha": lambda: _more(lambda i: np.dstack([degenerate.sample(i), np.full((32, 32), 9, np.uint8)])),
    # These are grayscale as well, but too few for a finding.
    "deep": lambda: _more(lambda i: degenerate.sample(i)[..., 0].astype(np.uint16) * 257, count=2),
}
"""Faulty images to add to a clean set."""


def test_a_leak(here: Run, clean: Path, tmp_path: Path) -> None:
    fake = degenerate.distinct(tmp_path / "fake", 60, first=1000)
    shutil.copy(clean / "00003.png", fake / "x.png")
    outcome = here("check", fake, "--against", clean, "--json")
    assert codes(outcome) == {"leak": "high"}
    text = here("check", fake, "--against", clean).stdout
    assert text.count("for example") == 1
    assert "1 of 61 images" in text
    assert "00003.png" in text


def test_portrait_and_landscape_photos_count_as_one_size(here: Run, tmp_path: Path) -> None:
    for i in range(60):
        pixels = degenerate.sample(i, 48)[:32]
        degenerate.write(tmp_path / "set", [(f"{i}.png", pixels if i % 8 else pixels.swapaxes(0, 1))])
    assert here("check", tmp_path / "set").stdout.endswith("no findings\n")


def test_drawings_in_pure_colours_are_not_reported_as_clipped(here: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(60):
        drawing = np.full((48, 48, 3), 255, dtype=np.uint8)
        for _ in range(6):
            y, x = rng.integers(0, 32, 2)
            drawing[y : y + 16, x : x + 16] = rng.integers(0, 2, 3) * 255
        degenerate.write(tmp_path / "set", [(f"{i}.png", drawing)])
    assert here("check", tmp_path / "set").stdout.endswith("no findings\n")


def test_findings_that_only_real_has_do_not_fail_the_gate(here: Run, clean: Path, tmp_path: Path) -> None:
    degenerate.write(tmp_path / "real", ((f"{i}.png", degenerate.sample(2000 + i)) for i in range(60)))
    degenerate.write(tmp_path / "real", ((f"{i}-large.png", degenerate.sample(i, 40)) for i in range(3000, 3005)))
    outcome = here("check", clean, "--against", tmp_path / "real", "--strict")
    assert "low: " in outcome.stdout
    assert outcome.status == 0
    assert here("check", tmp_path / "real", "--against", clean, "--strict").status == 3


def test_a_set_cannot_be_checked_against_itself(here: Run, clean: Path) -> None:
    outcome = here("check", clean, "--against", f"{clean}/")
    assert outcome.status == 2
    assert "are the same" in outcome.error


def test_against_a_statistics_file(here: Run, clean: Path, tmp_path: Path) -> None:
    assert here("stats", clean, "-o", "clean.npz", "--extractor", TINY).status == 0
    fake = degenerate.write(tmp_path / "fake", ((f"{i}.png", degenerate.sample(i, 64)) for i in range(60)))
    assert codes(here("check", fake, "--against", "clean.npz", "--json")) == {"other size": "medium"}
    np.savez(tmp_path / "other.npz", mu=np.zeros(4), sigma=np.eye(4))
    outcome = here("check", fake, "--against", "other.npz")
    assert outcome.status == 2
    assert "has no records of its images" in outcome.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clean", "--against", "nothing-here"], "no such file or folder: nothing-here"),
        (["clean", "--num", "81"], "--num asks for 81 images"),
        (["broken"], "no file in broken can be read"),
    ],
)
def test_refusals(here: Run, clean: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "broken").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "broken" / name).write_bytes(b"x")
    outcome = here("check", *arguments)
    assert outcome.status == 2
    assert words in outcome.error


def test_from_python(here: Run, clean: Path, tmp_path: Path) -> None:
    fake = degenerate.distinct(tmp_path / "fake", 60, first=1000)
    shutil.copy(clean / "00003.png", fake / "x.png")
    checkup = package.check(fake, clean)
    assert [finding.code for _, finding in checkup.findings] == ["leak"]
    assert json.loads(json.dumps(checkup.to_dict())) == here("check", fake, "--against", clean, "--json").json
    with pytest.raises(package.InputError, match="no such file or folder"):
        package.check("nothing-here")


def test_a_sample_can_be_checked(here: Run, clean: Path) -> None:
    assert here("check", clean, "--num", 30, "--json").json["images"]["images"] == 30


def test_it_needs_no_weights(clean: Path, empty_cache: Path, tmp_path: Path) -> None:
    program = "import fidtool.cli.main as m, sys; m.main(['check', sys.argv[1], '--json'])"
    done = subprocess.run([sys.executable, "-c", program, str(clean)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"]["images"] == 80
    assert not (empty_cache / "weights").exists()
