"""``--uncertainty``: error bars, comparisons of FAKEs, and the reasons why there may be none."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import fidtool as package
from support import degenerate
from support.command_line import Run, bars_of, frechet, messages
from support.degenerate import FLAGS, make_sets
from support.places import FD, SMALL_NETWORK, TINY

NEIGHBOURS = "<figcaption>distance "
"""Text that a report has where it shows nearest real images."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path, Path]:
    return make_sets(tmp_path_factory.mktemp("sets"))


def test_an_interval_beside_the_value(here: Run, sets: tuple[Path, ...]) -> None:
    real, bad, *_ = sets
    outcome = here("compute", real, bad, *FLAGS, "--json")
    (result,) = outcome.json["results"]
    found = bars_of(result)
    corrected, fid = found["corrected"], frechet(result)
    assert (found["withheld"], found["real"], found["level"]) == ("", "fixed", 0.95)
    assert found["bias"] == pytest.approx(fid - corrected["value"], rel=1e-12)
    assert 0 < found["bias"] < fid
    assert corrected["low"] < corrected["value"] < corrected["high"]
    assert corrected["error"] > 0
    counts, fids = zip(*found["curve"], strict=True)
    assert counts == (50, 100, 150, 200)
    assert fids[-1] == pytest.approx(fid, rel=1e-9)
    assert outcome.json["differences"] == []
    line = here("compute", real, bad, *FLAGS, "--quiet").stdout.splitlines()[1]
    interval = f"95 %: {corrected['low']:.4f} to {corrected['high']:.4f}, REAL taken as fixed"
    assert (
        line
        == f"bias-corrected {FD}: {corrected['value']:.4f} ± {corrected['error']:.4f} ({interval})"
    )


def test_comparison_of_two_fakes(here: Run, sets: tuple[Path, ...]) -> None:
    _, bad, good, again = sets
    outcome = here("compute", *sets, *FLAGS, "--json")
    verdicts = {(each["first"], each["second"]): each for each in outcome.json["differences"]}
    assert list(verdicts) == [
        (str(bad), str(good)),
        (str(bad), str(again)),
        (str(good), str(again)),
    ]
    assert verdicts[str(bad), str(good)]["verdict"] == f"{good} is better than {bad}"
    assert (
        verdicts[str(good), str(again)]["verdict"] == f"{good} and {again} cannot be distinguished"
    )
    results = {result["fake"]: bars_of(result)["corrected"] for result in outcome.json["results"]}
    for (first, second), each in verdicts.items():
        expected = results[first]["value"] - results[second]["value"]
        assert each["interval"]["value"] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    text = here("compute", *sets, *FLAGS, "--quiet").stdout
    assert f"{FD} of {bad} minus that of {good}: +" in text
    assert text.splitlines()[-1].endswith(f"): {good} and {again} cannot be distinguished")


def test_too_few_images_have_a_curve_and_no_interval(here: Run, sets: tuple[Path, ...]) -> None:
    real, bad, *_ = sets
    outcome = here("compute", real, bad, *FLAGS, "--num", 60, "--json")
    assert outcome.status == 0
    (result,) = outcome.json["results"]
    found = bars_of(result)
    assert (found["bias"], found["corrected"]) == (None, None)
    assert "at least" in found["withheld"]
    perfect = "there are only 60; a perfect generator would have about 0."
    assert perfect in found["withheld"]
    assert found["withheld"].endswith(
        ", the distance between samples of 60 and 60 images from one distribution"
    )
    assert [count for count, _ in found["curve"]] == [15, 30, 45, 60]
    (line,) = (line for line in messages(result) if "no error bars" in line)
    assert f" (distance by number of images: {found['curve'][0][1]:.4g} for 15, " in line


def test_fewer_than_five_images_per_dimension_have_an_interval(
    here: Run, sets: tuple[Path, ...]
) -> None:
    """200 images and 64 dimensions; the FAKEs are compared, too."""
    flags = ("--extractor", SMALL_NETWORK, "--uncertainty", "--json")
    document = here("compute", *sets[:3], *flags).json
    for result in document["results"]:
        found = bars_of(result)
        corrected, fid = found["corrected"], frechet(result)
        assert found["withheld"] == ""
        assert found["bias"] == pytest.approx(fid - corrected["value"], rel=1e-12)
        assert corrected["low"] < corrected["value"] < corrected["high"]
        assert found["bias"] > 0.0
        assert [count for count, _ in found["curve"]] == [50, 100, 150, 200]
    (difference,) = document["differences"]
    assert difference["verdict"] == f"{sets[2]} is better than {sets[1]}"
    few = here("compute", *sets[:2], "--num", 199, *flags).json["results"][0]
    assert (
        "at least 200 images are needed for features of 64 dimensions" in bars_of(few)["withheld"]
    )


def test_sets_that_depend_on_real_have_no_interval(
    here: Run, sets: tuple[Path, ...], tmp_path: Path
) -> None:
    real, bad, *_ = sets
    mixed = shutil.copytree(bad, tmp_path / "mixed")
    for number in range(10):
        shutil.copy(real / f"{number:05}.png", mixed / f"real-{number}.png")
    copies = degenerate.same_seed_on_ranks(
        tmp_path / "copies", 4, 50, lambda rank, i: f"rank{rank}_{i}.png"
    )
    outcome = here("compute", real, real, mixed, copies, *FLAGS, "--json")
    reasons = [bars_of(result)["withheld"] for result in outcome.json["results"]]
    assert "this set is REAL itself" in reasons[0]
    assert "10 of 210 images are also in REAL" in reasons[1]
    assert "150 of 200 images are duplicates" in reasons[2]
    assert [bars_of(result)["curve"] for result in outcome.json["results"]] == [[], [], []]
    assert outcome.json["differences"] == []


def test_no_interval_without_the_diagnosis(here: Run, sets: tuple[Path, ...]) -> None:
    real, bad, *_ = sets
    kept = ("--extractor", TINY, "--metrics", "fid,kid", "--no-diagnosis")
    assert here("stats", bad, "-o", "bad.npz", *kept).status == 0
    (result,) = here("compute", real, "bad.npz", *FLAGS, "--json").json["results"]
    assert "were not checked for duplicates" in bars_of(result)["withheld"]


@pytest.mark.parametrize(("real_count", "fake_count"), [(1, 60), (60, 1)])
def test_very_small_sets_have_an_fid(
    here: Run, tmp_path: Path, real_count: int, fake_count: int
) -> None:
    real = degenerate.distinct(tmp_path / "real", real_count, first=50_000)
    fake = degenerate.distinct(tmp_path / "fake", fake_count)
    plain = here("compute", real, fake, "--extractor", TINY, "--json").fid
    outcome = here("compute", real, fake, *FLAGS, "--influence", "--json")
    assert outcome.status == 0, outcome.stderr
    (result,) = outcome.json["results"]
    assert frechet(result) == plain
    assert result["influence"]["most_harmful"] == []
    assert result["influence"]["doubt"] != ""
    assert f"{fake}: it is unknown which images raise the {FD}" in outcome.stderr


class TestReport:
    """``--report`` and ``--plot`` write the results; the contents of the page are tested
    elsewhere.
    """

    @pytest.fixture(autouse=True)
    def _extra(self) -> None:
        for library in ("jinja2", "matplotlib"):
            pytest.importorskip(library, reason="needs fidtool[report]")

    def test_page_with_all_sections(self, here: Run, sets: tuple[Path, ...]) -> None:
        flags = ("--influence", "--report", "report.html", "--plot", "sweep.png", "--json")
        document = here("compute", *sets[:3], *FLAGS, *flags).json
        page = Path("report.html").read_text()
        for result in document["results"]:
            assert f"&#34;: {frechet(result)!r}" in page, "all digits"
            assert Path(result["influence"]["most_harmful"][0]["file"]).name in page
        assert document["differences"][0]["verdict"].split("/")[-1] in page
        assert page.count("data:image/") > 40
        assert NEIGHBOURS in page
        assert page.count("Random images of REAL") == 2, "beside those of each FAKE"
        assert Path("sweep.png").read_bytes().startswith(b"\x89PNG")

    def test_a_failed_page_does_not_lose_the_result(
        self,
        sets: tuple[Path, ...],
        monkeypatch: pytest.MonkeyPatch,
        environment: dict[str, str],
        tmp_path: Path,
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("fidtool.report.outputs.write_report_file", full)
        with pytest.warns(RuntimeWarning, match=r"page\.html could not be written: No space left"):
            evaluation = package.compute(*sets[:2], extractor=TINY, report=tmp_path / "page.html")
        assert evaluation.frechet_distance > 0

    def test_a_page_from_the_cache_names_what_is_missing(
        self, here: Run, sets: tuple[Path, ...], tmp_path: Path
    ) -> None:
        time.sleep(0.08)  # younger files are not cached
        assert here("compute", *sets[:2], "--extractor", TINY).status == 0
        pages = []
        for flags in ([], ["--no-cache"]):
            page = tmp_path / f"{len(pages)}.html"
            outcome = here(
                "compute", *sets[:2], "--extractor", TINY, "--report", page, "--json", *flags
            )
            assert outcome.json["run"]["images_computed"] == (500 if flags else 0)
            pages.append(page.read_text())
        assert [NEIGHBOURS in page for page in pages] == [False, True]
        assert ["Pass --no-cache" in page for page in pages] == [True, False]
        place = pages[0][pages[0].index('id="fake-neighbours"') :].partition("</section>")[0]
        assert "Pass --no-cache to compute them." in place
        assert "by number of images:" not in pages[1], "four more distances for --uncertainty alone"
