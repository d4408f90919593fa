"""Diagnosis of bad scores: degenerate sets are recognised in every run, and clean sets give no warnings."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fidtool as package
from support import degenerate
from support.command_line import Run, frechet
from support.degenerate import RANKS, compared, make_real
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return make_real(tmp_path)


@pytest.mark.parametrize(("names", "apart"), [("blocks", "40 files apart"), ("in turn", "next to each other")])
def test_the_same_seed_on_four_ranks(here: Run, real: Path, tmp_path: Path, names: str, apart: str) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS[names])
    result, line, outcome = compared(here, real, fake)
    assert outcome.status == 0
    found = result["diagnosis"]["duplicates"]["fake"]
    assert (found["images"], found["unique"], found["unique_fraction"]) == (160, 40, 0.25)
    assert (found["exact"], found["near"], found["multiplicities"]) == (120, 0, {"4": 40})
    assert "120 of 160 images (75%) are exact duplicates: " in line
    for word in [f"4 times each, {apart}", "as if 4 processes had used the same random seed", "fidtool.sample_seed"]:
        assert word in line
    assert line in outcome.stderr
    assert len(found["examples"]) == 8
    group = found["examples"][0]
    assert len({Path(file).read_bytes() for file in group}) == 1
    assert len(set(group)) == 4


def test_distinct_seeds_lower_the_fid_of_a_toy_generator(here: Run, real: Path, tmp_path: Path) -> None:
    same = degenerate.same_seed_on_ranks(tmp_path / "same", 8, 20, lambda rank, i: f"rank{rank}_{i}.png")

    def own_seeds(rank: int, i: int) -> tuple[str, degenerate.Pixels]:
        return f"rank{rank}_{i}.png", degenerate.sample(package.sample_seed(0, rank * 20 + i))

    mended = degenerate.write(tmp_path / "mended", (own_seeds(rank, i) for rank in range(8) for i in range(20)))
    before, line, _ = compared(here, real, same)
    after, silence, _ = compared(here, real, mended)
    assert "as if 8 processes had used the same random seed" in line
    assert silence == ""
    assert after["diagnosis"]["duplicates"]["fake"]["unique"] == 160
    assert frechet(after) < 0.7 * frechet(before)


def test_the_same_seed_re_encoded(here: Run, real: Path, tmp_path: Path) -> None:
    result, line, _ = compared(here, real, degenerate.recompressed(tmp_path / "fake", 4, 40))
    found = result["diagnosis"]["duplicates"]["fake"]
    assert (found["unique"], found["exact"], found["near"]) == (40, 0, 120)
    assert "120 of 160 images (75%) are near duplicates: " in line
    assert "40 files apart" in line


def test_a_handful_of_images_repeated(here: Run, real: Path, tmp_path: Path) -> None:
    result, line, _ = compared(here, real, degenerate.handful(tmp_path / "fake", 64, 5))
    found = result["diagnosis"]["duplicates"]["fake"]
    assert (found["images"], found["unique"], found["multiplicities"]) == (320, 64, {"5": 64})
    assert found["pattern"] is None
    assert "64 different images, 64 of them repeated; if these are generated samples" in line


def test_a_noise_generator(here: Run, real: Path, tmp_path: Path) -> None:
    result, line, outcome = compared(here, real, degenerate.noise(tmp_path / "fake", 120))
    assert line == ""
    (finding,) = (each for each in result["diagnosis"]["findings"] if each["code"] == "noise")
    assert (finding["severity"], finding["count"]) == ("high", 120)
    assert Path(finding["example"]).exists()
    assert "120 of 120 images look like noise" in outcome.stderr


def test_real_images_in_fake_are_reported_as_a_leak(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.distinct(tmp_path / "fake", 60)
    for number in range(3):
        Image.open(real / f"{number:05}.png").save(fake / f"learnt-{number}.bmp")
    result, line, outcome = compared(here, real, fake)
    assert line == ""
    shared = result["diagnosis"]["shared"]
    assert shared["count"] == 3
    for one, other in shared["examples"]:
        assert np.array_equal(np.asarray(Image.open(one)), np.asarray(Image.open(other)))
        assert Path(one).stem == f"learnt-{int(Path(other).stem)}"
    assert "3 of 63 images" in outcome.stderr
    assert "has memorised training images" in outcome.stderr


def test_a_leak_is_found_in_statistics_files(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.distinct(tmp_path / "fake", 60)
    shutil.copy(real / "00007.png", fake / "x.png")
    assert here("stats", real, "-o", "real.npz", "--extractor", TINY).status == 0
    assert here("stats", fake, "-o", "fake.npz", "--extractor", TINY).status == 0
    for arguments in (("real.npz", fake), ("real.npz", "fake.npz")):
        outcome = here("compute", *arguments, "--extractor", TINY, "--json")
        (result,) = outcome.json["results"]
        assert result["diagnosis"]["shared"]["count"] == 1
        assert result["diagnosis"]["shared"]["examples"][0][1] == str(real / "00007.png")


class TestGate:
    def test_too_many_duplicates_are_status_3(self, here: Run, real: Path, tmp_path: Path) -> None:
        fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS["blocks"])
        outcome = here("compute", real, fake, "--extractor", TINY, "--max-duplicates", "0.5", "--json")
        assert outcome.status == 3
        assert outcome.json["exit"] == {
            "code": 3,
            "reason": f"gate missed: 75.00% of {fake} are duplicates, above 50.00%",
        }
        assert outcome.json["exit"]["reason"] in outcome.stderr
        assert here("compute", real, fake, "--extractor", TINY, "--max-duplicates", "0.75").status == 0

    def test_both_gates(self, here: Run, real: Path, tmp_path: Path) -> None:
        fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 2, 40, RANKS["blocks"])
        flags = ("--extractor", TINY, "--max-duplicates", 0, "--fail-above", 0, "--json")
        reason = here("compute", real, fake, *flags).json["exit"]["reason"]
        assert reason.startswith("gate missed: ")
        assert "above 0;" in reason
        assert "50.00%" in reason

    def test_one_duplicate_exceeds_a_limit_of_zero(self, here: Run, real: Path) -> None:
        clean = ("compute", real, real, "--extractor", TINY, "--max-duplicates", 0)
        assert here(*clean).status == 0
        shutil.copy(real / "00000.png", real / "copy.png")
        assert here(*clean).status == 3

    def test_files_without_image_records_are_refused(self, here: Run, real: Path, tmp_path: Path) -> None:
        np.savez(tmp_path / "other.npz", mu=np.zeros(16), sigma=np.eye(16))
        outcome = here("compute", real, "other.npz", "--extractor", TINY, "--max-duplicates", 0.1)
        assert outcome.status == 2
        assert "other.npz" in outcome.error
        assert "pass the images" in outcome.error

    def test_the_gate_needs_the_diagnosis(self, here: Run, real: Path) -> None:
        flags = ("--extractor", TINY, "--max-duplicates", 0.1, "--no-diagnosis")
        outcome = here("compute", real, real, *flags)
        assert outcome.status == 2
        assert "--no-diagnosis does not look for them" in outcome.error


def test_the_diagnosis_can_be_left_out(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS["blocks"])
    result, line, outcome = compared(here, real, fake, "--no-diagnosis")
    assert (result["diagnosis"], line) == (None, "")
    assert "diagnosis" not in outcome.json["run"]["seconds"]
    assert result["metrics"] == compared(here, real, fake)[0]["metrics"]


def test_one_image_repeated(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 50, 1, lambda rank, i: f"{rank}.png")
    _, line, _ = compared(here, real, fake)
    assert "the same image 50 times; if these are generated samples" in line


def test_re_encoded_duplicates_in_real_are_reported(here: Run, real: Path, tmp_path: Path) -> None:
    copied = degenerate.recompressed(tmp_path / "copied", 4, 30)
    _, line, _ = compared(here, copied, real)
    assert "90 of 120 images (75%) are near duplicates: " in line
    assert "90 of 120 images" in here("stats", copied, "-o", "copied.npz", "--extractor", TINY).stderr


def test_a_set_against_itself_is_no_leak(here: Run, tmp_path: Path) -> None:
    real = make_pictures(tmp_path / "real", 40)
    (tmp_path / "link").symlink_to(real)
    for spelled in (real, tmp_path / "link"):
        result, _, _ = compared(here, real, spelled)
        assert result["fake"] == str(real)
    assert result["diagnosis"]["shared"] is None
    assert [line for line in result["warnings"] if "as REAL" in line or "pixel-identical" in line] == [
        f"{real} is the same set as REAL: the values say nothing about a generator"
    ]
