"""The record of a run: it is sufficient to repeat the run, and contains no secrets."""

from __future__ import annotations

import html
import json
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.metrics.registry import METRIC_SETTINGS
from support.command_line import Outcome, Run
from support.degenerate import sample
from support.http_store import http_store
from support.pictures import make_pictures
from support.places import TINY

COUNT = 40

SECRETS = ("pa55word", "Signature", "abc123")

QUERY = "X-Amz-Signature=abc123/x%2F&part=1"


@pytest.fixture
def sets(tmp_path: Path, environment: dict[str, str]) -> tuple[Path, Path]:
    """REAL and a FAKE, old enough for the cache."""
    folders = make_pictures(tmp_path / "real", COUNT, 0), make_pictures(tmp_path / "fake", COUNT, 1)
    time.sleep(0.08)
    return folders


@pytest.fixture
def store(sets: tuple[Path, Path], tmp_path: Path) -> Iterator[str]:
    """Address with a password at which REAL and FAKE are served as archives; FAKE has an image that
    cannot be read.
    """
    for folder in sets:
        with zipfile.ZipFile(tmp_path / f"{folder.name}.zip", "w") as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, file.name)
            if folder.name == "fake":
                archive.writestr("broken.png", b"no image")
    with http_store(tmp_path) as serving:
        yield serving.url.replace("//", "//pa55word:pa55word@")


def recorded(outcome: Outcome) -> dict[str, Any]:
    """Return the `run` object of the JSON of a successful run."""
    assert outcome.status == 0, outcome.stderr
    found: dict[str, Any] = outcome.json["run"]
    return found


def test_the_record_is_sufficient_to_repeat_the_run(here: Run, sets: tuple[Path, Path]) -> None:
    floats = sets[0].parent / "floats.npy"
    np.save(
        floats, np.random.RandomState(0).uniform(-0.9, 0.9, (COUNT, 32, 32, 3)).astype(np.float32)
    )
    first = here(
        *(
            "compute",
            sets[0],
            floats,
            "--extractor",
            TINY,
            "--num",
            30,
            "--seed",
            3,
            "--value-range",
            "-1,1",
            "--json",
        ),
        *(
            "--metrics",
            "fid,kid,prdc",
            "--kid-subset-size",
            9,
            "--kid-seed",
            5,
            "--nearest-k",
            2,
            "--batch-size",
            4,
        ),
    )
    record = first.json
    program, *arguments = recorded(first)["command"]
    assert program == "fidtool"
    assert here(*arguments, "--no-cache").metrics == first.metrics, (
        "repeated from the recorded command"
    )
    (result,) = record["results"]
    of_metrics = record["settings"]
    metrics = ["fid", fidtool.KID(**of_metrics["kid"]), fidtool.PRDC(**of_metrics["prdc"])]
    config = {
        name: value
        for name, value in record["run"]["config"].items()
        if name not in METRIC_SETTINGS
    }
    again = fidtool.compute(
        result["real"], result["fake"], **{**config, "metrics": metrics, "cache": False}
    )
    assert again.results[0].metrics == first.metrics, "repeated from the recorded settings"


def test_the_timeline_has_the_steps_in_their_order(here: Run, sets: tuple[Path, Path]) -> None:
    command = ("compute", *sets, "--extractor", TINY, "--json")
    first, cached = (recorded(here(*command))["timeline"] for _ in range(2))
    steps = [
        "import",
        "list",
        "weights",
        "first_batch",
        "extract",
        "merge",
        "distance",
        "diagnosis",
        "end",
    ]
    assert [*first] == steps
    assert list(first.values()) == sorted(first.values())
    assert first["import"] > 0
    assert [*cached] == ["import", "list", "weights", "distance", "diagnosis", "end"], (
        "no image was read"
    )
    called = fidtool.compute(*sets, extractor=TINY, cache=False).run
    assert [*called.timeline] == steps[1:], "a call of a program begins when it is called"
    assert called.timeline["end"] == pytest.approx(called.seconds["total"], abs=0.5)


def test_the_timeline_is_no_difference_between_results(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Nor is it needed: results of earlier versions have none."""
    document = here("compute", *sets, "--extractor", TINY, "--json").json
    files = []
    for name, timeline in (
        ("one", {"end": 1.5}),
        ("other", {"import": 9.0, "end": 99.0}),
        ("earlier", None),
    ):
        document["run"] |= {"timeline": timeline, "advice": name}
        if timeline is None:
            del document["run"]["timeline"], document["run"]["advice"]
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(document))
    for file in files[1:]:
        (change,) = here("diff", files[0], file, "--json").json["changes"]
        assert change["besides"] == {}
    assert here("table", *files).status == 0


def test_a_plain_run_of_small_sets_imports_no_scipy(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """It would take a third of a second. REAL has near duplicates, and FAKE is darker."""
    for name, light in (("real", 1.0), ("fake", 0.2)):
        folder = tmp_path / name
        folder.mkdir()
        for seed in range(15):
            image = Image.fromarray((light * sample(seed)).astype(np.uint8))
            image.save(folder / f"{seed}.png")
            image.save(folder / f"{seed}.jpg", quality=95)
    code = (
        "import sys\nfrom fidtool.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print([name for name in sys.modules if name.partition('.')[0] == 'scipy'])"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "compute",
        "real",
        "fake",
        "--extractor",
        TINY,
        "--device",
        "cpu",
    ]
    finished = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert "near duplicates" in finished.stderr
    assert "darker" in finished.stderr
    assert finished.stdout.splitlines()[-1] == "[]"


def test_the_record_has_the_number_of_images_found_in_memory(sets: tuple[Path, Path]) -> None:
    pictures = [np.full((8, 8, 3), shade, dtype=np.uint8) for shade in range(0, 200, 5)]
    evaluation = fidtool.compute(
        sets[0], [sets[1], fidtool.Images(iter(pictures))], extractor=TINY, num=30
    )
    assert [result.fake.found for result in evaluation.results] == [COUNT, None], (
        "the length of an iterable is unknown"
    )
    whole = fidtool.compute(sets[0], iter(pictures), extractor=TINY)
    assert (whole.results[0].fake.count, whole.results[0].fake.found) == (40, 40)


def test_statistics_files_record_their_settings(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    # Settings that do not affect the file.
    ways = (
        "--no-cache",
        "--timeout",
        99,
        "--checkpoint",
        "kept",
    )
    made = here(
        "stats", sets[0], "-o", "r.npz", "--extractor", TINY, "--num", 30, "--seed", 4, *ways
    )
    assert made.status == 0, made.stderr
    statistics = fidtool.read_statistics(tmp_path / "r.npz")
    assert (statistics.count, statistics.found) == (30, COUNT)
    assert statistics.config == {"extractor": TINY, "num": 30, "seed": 4}
    (result,) = here("compute", "r.npz", sets[1], "--extractor", TINY, "--json").json["results"]
    real, fake = result["sets"]["real"], result["sets"]["fake"]
    assert result["count"] == {"real": 30, "fake": COUNT}
    assert (real["found"], fake["found"]) == (COUNT, COUNT)
    assert (real["made_with"], fake["made_with"]) == (statistics.config, None)


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ({}, (None, None)),
        (
            {"found": 50, "config": {"num": 3, "later": {"than": "this"}, "metrics": ["fid"]}},
            (50, ("later", "metrics", "num")),
        ),
        ({"found": 50, "config": {"num": {"of": "another form"}}}, (50, ("num",))),
    ],
)
def test_files_of_other_versions_are_read(
    here: Run,
    sets: tuple[Path, Path],
    tmp_path: Path,
    added: dict[str, Any],
    expected: tuple[Any, Any],
) -> None:
    """Such files may lack these keys, or have more of them."""
    assert here("stats", sets[0], "-o", "r.npz", "--extractor", TINY).status == 0
    with np.load(tmp_path / "r.npz") as archive:
        arrays = dict(archive)
    run = json.loads(str(arrays["run"]))
    del run["found"], run["config"]
    np.savez(tmp_path / "other.npz", **{**arrays, "run": np.array(json.dumps(run | added))})
    statistics = fidtool.read_statistics(tmp_path / "other.npz")
    assert (statistics.found, statistics.config and tuple(sorted(statistics.config))) == expected
    assert here("compute", "other.npz", sets[1], "--extractor", TINY, "--json").status == 0


@pytest.mark.parametrize(
    ("arguments", "reason", "config"),
    [
        (["nowhere", "--seed", "7"], "no such file or folder: nowhere", {"seed": 7}),
        (
            ["fake", "--dims", "64", "--metrics", "is"],
            "the Inception Score needs Inception's 2048 features, not 64",
            None,
        ),
    ],
)
def test_a_failed_run_has_a_record(
    here: Run,
    sets: tuple[Path, Path],
    arguments: list[str],
    reason: str,
    config: dict[str, Any] | None,
) -> None:
    failed = here("compute", "real", *arguments, "--json")
    run = failed.json["run"]
    assert failed.status == 2
    assert reason in failed.json["exit"]["reason"]
    assert run["command"] == ["fidtool", "compute", "real", *arguments, "--json"]
    assert (run["config"], run["host"]) == (config, socket.gethostname())
    assert run["date"].endswith("Z")


def test_the_page_shows_the_record(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="needs fidtool[report]")
    pytest.importorskip("matplotlib", reason="needs fidtool[report]")
    arguments = (
        "compute",
        "real",
        "fake",
        "--extractor",
        TINY,
        "--num",
        30,
        "--report",
        "page.html",
        "--json",
    )
    run = recorded(here(*arguments))
    page = (tmp_path / "page.html").read_text()
    for words in (
        f"fidtool compute real fake --extractor {TINY} --num 30 --report page.html --json",
        run["host"],
        run["date"],
        '"num": 30',
        f'"extractor": "{TINY}"',
        f"real (30 of {COUNT} images",
        f"fake (30 of {COUNT} images",
    ):
        assert words in html.unescape(page), words


def test_the_record_has_no_secrets(here: Run, store: str, tmp_path: Path) -> None:
    """This applies to JSON, page, statistics file and printed text. The names of images remain."""
    pytest.importorskip("jinja2", reason="needs fidtool[report]")
    real, fake = f"{store}real.zip?{QUERY}", f"{store}fake.zip?{QUERY}"
    flags = ("--extractor", TINY, "--on-error", "skip", "--max-skip", 0.1, "--json")
    files = ("--report", "page.html", "--plot", "plot.png", "--output", "out.json")
    run = here("compute", real, fake, fake, "--influence", *flags, *files)
    assert run.status == 0, run.stderr
    made = here("stats", fake, "-o", "fake.npz", *flags[:-1])
    assert made.status == 0, made.stderr
    again = here("compute", "real", "fake.npz", *flags)
    failed = here("compute", real, f"{store}none.zip?{QUERY}", *flags)
    checked = here("check", fake, "--json")
    (tmp_path / "list.txt").write_text(f"{store}real/00000.png?{QUERY}\n")
    sources = (fake, f"{store}list.txt?{QUERY}")
    listed = [
        here("check", each, "--list", *more) for each in sources for more in ((), ("--json",))
    ]
    assert [each.status for each in listed] == [0] * len(listed)
    written = [(tmp_path / name).read_text() for name in ("page.html", "out.json")]
    for outcome in (run, made, again, failed, checked, *listed):
        written += [outcome.stdout, outcome.stderr]
    both = here("stats", f"{store}{{real,fake}}.zip?{QUERY}", "-o", "both.npz", *flags[:-1])
    assert both.status == 0, both.stderr
    for name in ("fake.npz", "both.npz"):
        with np.load(tmp_path / name) as archive:
            written += [
                array.tobytes().decode("latin-1").replace("\0", "")
                for array in dict(archive).values()
            ]
    assert [(secret, text) for secret in SECRETS for text in written if secret in text] == []
    shown = store.replace("pa55word:pa55word@", "")
    first = run.json["results"][0]
    assert (first["real"], first["fake"]) == (f"{shown}real.zip", f"{shown}fake.zip")
    assert run.json["run"]["command"][2] == f"{shown}real.zip"
    assert first["skipped"][0]["file"] == f"{shown}fake.zip/broken.png"
    assert first["influence"]["most_harmful"][0]["file"].endswith(".png")
    assert f"{shown}fake.zip/" in written[0]
    assert failed.json["exit"]["reason"] == f"{shown}none.zip cannot be read: it does not exist"
    assert again.json["results"][0]["skipped"][0]["file"] == f"{shown}fake.zip/broken.png"
