"""Diagnosis of bad scores: degenerate sets are recognised in every run, and clean sets give no
warnings.
"""

from __future__ import annotations

import html
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.reading import records
from support import degenerate
from support.command_line import Run, messages
from support.degenerate import RANKS, compared, make_real
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return make_real(tmp_path)


def test_the_same_seed_on_four_ranks(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS["blocks"])
    result, line, outcome = compared(here, real, fake)
    assert outcome.status == 0
    found = result["diagnosis"]["duplicates"]["fake"]
    assert (found["images"], found["unique"], found["unique_fraction"]) == (160, 40, 0.25)
    assert (found["exact"], found["near"], found["multiplicities"]) == (120, 0, {"4": 40})
    assert "120 of 160 images (75%) are exact duplicates: " in line
    assert "4 times each, 40 files apart" in line
    assert "as if 4 processes used the same random seed" in line
    assert line in outcome.stderr
    assert len(found["examples"]) == 8
    group = found["examples"][0]
    assert len({Path(file).read_bytes() for file in group}) == 1
    assert len(set(group)) == 4


def test_the_same_seed_re_encoded(here: Run, real: Path, tmp_path: Path) -> None:
    result, line, _ = compared(here, real, degenerate.recompressed(tmp_path / "fake", 4, 40))
    found = result["diagnosis"]["duplicates"]["fake"]
    assert (found["unique"], found["exact"], found["near"]) == (40, 0, 120)
    assert "120 of 160 images (75%) are near duplicates: " in line
    assert "40 files apart" in line


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
    (result,) = here("compute", "real.npz", "fake.npz", "--extractor", TINY, "--json").json[
        "results"
    ]
    assert result["diagnosis"]["shared"]["count"] == 1
    assert result["diagnosis"]["shared"]["examples"][0][1] == str(real / "00007.png")


def test_too_many_duplicates_are_status_3(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS["blocks"])
    outcome = here("compute", real, fake, "--extractor", TINY, "--max-duplicates", "0.5", "--json")
    assert outcome.status == 3
    reason = f"gate missed: 75.00% of the images in {fake} are duplicates, above 50.00%"
    assert outcome.json["exit"] == {"code": 3, "reason": reason}
    assert outcome.json["results"][0]["missed"] == [reason.removeprefix("gate missed: ")]
    assert reason in outcome.stderr
    assert here("compute", real, fake, "--extractor", TINY, "--max-duplicates", "0.75").status == 0


def test_one_duplicate_exceeds_a_limit_of_zero(here: Run, real: Path) -> None:
    clean = ("compute", real, real, "--extractor", TINY, "--max-duplicates", 0)
    assert here(*clean).status == 0
    shutil.copy(real / "00000.png", real / "copy.png")
    assert here(*clean).status == 3


def test_the_diagnosis_can_be_left_out(here: Run, real: Path, tmp_path: Path) -> None:
    fake = degenerate.same_seed_on_ranks(tmp_path / "fake", 4, 40, RANKS["blocks"])
    result, line, outcome = compared(here, real, fake, "--no-diagnosis")
    assert (result["diagnosis"], line) == (None, "")
    assert "diagnosis" not in outcome.json["run"]["seconds"]
    assert result["metrics"] == compared(here, real, fake)[0]["metrics"]


def test_the_worst_findings_are_on_the_page(here: Run, real: Path, tmp_path: Path) -> None:
    """Images of REAL in FAKE, and duplicates in both sets: they are warnings, so they are
    findings.
    """
    fake = make_pictures(tmp_path / "fake", 40, 7)
    for number in range(4):
        shutil.copy(real / f"{number:05}.png", fake / f"copy{number}.png")
        for folder in (real, fake):
            shutil.copy(folder / "00005.png", folder / f"again{number}.png")
    outcome = here("compute", real, fake, "--extractor", TINY, "--report", "page.html", "--json")
    result = outcome.json["results"][0]
    found = {(each["set"], each["code"]): each for each in result["diagnosis"]["findings"]}
    assert {("pair", "leak"), ("fake", "copies"), ("real", "copies")} <= found.keys()
    for (about, _), each in found.items():
        path = result["real" if about == "real" else "fake"]
        assert (each["severity"] == "low") != (f"{path}: {each['message']}" in messages(result))
    assert found["pair", "leak"]["severity"] == "high"
    page = html.unescape((tmp_path / "page.html").read_text())
    section = page.partition('id="fake-findings"')[2].partition("</section>")[0]
    assert [each["message"] for each in found.values() if each["message"] not in section] == []
    assert here("compute", real, fake, "--extractor", TINY, "-o", "r.json").status == 0
    assert here("report", "r.json", "-o", "again.html").status == 0
    again = html.unescape((tmp_path / "again.html").read_text())
    assert (
        "pixel-identical to images in"
        in again.partition('id="fake-findings"')[2].partition("</section>")[0]
    )


def test_what_is_no_warning_is_a_finding_as_well(here: Run, real: Path, tmp_path: Path) -> None:
    """Unreadable files, which another warning counts, and near duplicates that REAL alone has, but
    not unnaturally.
    """
    fake = make_pictures(tmp_path / "fake", 40, 7)
    (fake / "broken.png").write_bytes(b"no image")
    for number in range(12):
        Image.open(real / f"{number:05}.png").save(real / f"again{number}.webp", quality=95)
    outcome = here(
        "compute",
        real,
        fake,
        "--extractor",
        TINY,
        "--on-error",
        "skip",
        "--max-skip",
        0.1,
        "--json",
    )
    result = outcome.json["results"][0]
    found = {(each["set"], each["code"]): each for each in result["diagnosis"]["findings"]}
    assert {("fake", "unreadable"), ("real", "copies")} <= found.keys()
    for name in (("fake", "unreadable"), ("real", "copies")):
        assert not any(found[name]["message"] in warning for warning in messages(result))
    assert any("1 unreadable file skipped" in warning for warning in messages(result))
    checked = here("check", fake, "--against", real, "--json").json
    assert "unreadable" in {each["code"] for each in checked["images"]["findings"]}
    assert "copies" in {each["code"] for each in checked["against"]["findings"]}


def test_a_set_against_itself_is_no_leak(here: Run, tmp_path: Path) -> None:
    real = make_pictures(tmp_path / "real", 40)
    (tmp_path / "link").symlink_to(real)
    for spelled in (real, tmp_path / "link"):
        result, _, _ = compared(here, real, spelled)
        assert result["fake"] == str(real)
    assert result["diagnosis"]["shared"] is None
    assert [
        line for line in messages(result) if " same set" in line or "pixel-identical" in line
    ] == [
        f"{real} is the same set as REAL: the values say nothing about a generator",
        f"{real} and {tmp_path / 'link'} are the same set",
    ]
    sampled, _, _ = compared(here, real, real, "--num-fake", 30)
    assert [
        line for line in messages(sampled) if " same set" in line or "pixel-identical" in line
    ] == [f"{real} is the same set as REAL: the values say nothing about a generator"]


def test_fakes_under_several_spellings_are_named(here: Run, tmp_path: Path) -> None:
    make_pictures(tmp_path / "real", 40)
    fake = make_pictures(tmp_path / "fake", 40, 1)
    (tmp_path / "link").symlink_to(fake)
    other = make_pictures(tmp_path / "other", 40, 2)
    outcome = here(
        "compute", "real", "fake", "./fake", other, "link", fake, "--extractor", TINY, "--json"
    )
    assert outcome.status == 0
    lines = [line for line in messages(outcome.json["results"][0]) if "same set" in line]
    assert lines == [f"fake, ./fake, link and {fake} are the same set"]


def test_a_set_under_a_url(here: Run, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), np.uint8)
    np.save(tmp_path / "x.npy", images)
    np.savez(tmp_path / "two.npz", images=images, more=images[:2])
    url = f"file://{tmp_path}/x.npy"
    sets = (url, "x.npy", "two.npz:images", "two.npz:more")
    result = here("compute", *sets, "--extractor", TINY, "--json").json["results"][0]
    assert [line for line in messages(result) if " same set" in line] == [
        f"{url} is the same set as REAL: the values say nothing about a generator",
        f"{url} and x.npy are the same set",
    ]
    assert f"{url} and x.npy are the same: " in here("check", url, "--against", "x.npy").error


@pytest.mark.parametrize("workers", [0, 2])
def test_the_detail_of_an_iterable_is_that_of_a_sample(
    environment: dict[str, str], tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of its first images, which are hardly a random sample. How many there are is known at the
    end.
    """
    monkeypatch.setattr(records, "DETAILED", 30)
    files = sorted(make_pictures(tmp_path / "fake", 150).iterdir())
    settings = {"extractor": TINY, "batch_size": 16, "num_workers": workers}
    found = fidtool.compute_statistics((file.read_bytes() for file in files), **settings)
    assert found is not None
    assert found.pictures is not None
    measured = found.pictures.records["highest"] > 0
    assert measured.tolist() == [records.is_detailed(name, 150) for name in found.pictures.names]
    places = [
        int(name[1:-1]) for name, each in zip(found.pictures.names, measured, strict=True) if each
    ]
    assert min(places) < 50
    assert max(places) > 100
    assert 15 < len(places) < 60
