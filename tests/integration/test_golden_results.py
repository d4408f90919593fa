"""Output and exit status of commands: the JSON with its keys in order, and the text.

The network has bitwise the same features on every processor, so everything but the last digits of
distances is compared exactly. Versions, names, seconds and speeds, which differ between machines
and runs, are masked.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from support.command_line import Run
from support.documents import read_document
from support.exact_sets import NETWORK, bells, beside_network, make_exact_pictures, pixels
from support.goldens import Golden, masked, near, placed
from support.inside import inception, package_without_weights
from support.old_files import FILES, make_sets
from support.printed import CPU, DIGITS, record, shown

ORIENTATION = 0x0112
"""EXIF tag of the orientation."""


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    """The folder in which the commands run: two sets, the network, and statistics of other versions
    and tools.
    """
    beside_network(tmp_path)
    make_sets(tmp_path)
    make_exact_pictures(tmp_path / "other", 15, 3)
    time.sleep(0.08)  # younger files are not cached
    for name in ("own.npz", "features.npz", "bare.npz", "pytorch_fid.npz", "adm.npz", "layers.npz"):
        shutil.copy(FILES / name, tmp_path / name)
    return tmp_path


def test_one_pair(golden: Golden, here: Run, place: Path) -> None:
    """As JSON, as text with a JSON file, and from the cache."""
    first = shown(here("compute", "real", "fake", *CPU, "--json"), place)
    again = shown(here("compute", "real", "fake", *CPU, "--output", "out.json"), place)
    written = read_document(place / "out.json")
    result = near({"results": written["results"], "cached": written["run"]["cached"]}, DIGITS)
    golden("results/one_pair", {"first": first, "again": again, "written": result})
    assert (place / "out.json").read_text() == json.dumps(written, indent=2) + "\n"


def test_several_fakes_and_metrics(golden: Golden, here: Run, place: Path) -> None:
    metrics = (
        "--metrics",
        "fid,kid,prdc",
        "--kid-subset-size",
        9,
        "--kid-subsets",
        5,
        "--nearest-k",
        3,
    )
    arguments = ("compute", "real", "fake", "other", *CPU, *metrics, "--no-cache")
    text = shown(here(*arguments), place)
    golden("results/several", {"json": shown(here(*arguments, "--json"), place), "text": text})


def test_uncertainty_and_influence(golden: Golden, here: Run, place: Path) -> None:
    """Error bars, differences and influence, for arrays."""
    for name, seed, light in (("a.npy", 5, 0), ("b.npy", 6, 30), ("c.npy", 7, 40)):
        np.save(place / name, pixels(210, seed, light))
    arguments = (
        "compute",
        "a.npy",
        "b.npy",
        "c.npy",
        *CPU,
        "--uncertainty",
        "--influence",
        "--no-cache",
    )
    text = shown(here(*arguments), place)
    found = record(here(*arguments, "--json"))
    for result in found["results"]:
        for ends in ("most_harmful", "least_harmful"):  # the first three are enough
            result["influence"][ends] = [
                len(result["influence"][ends]),
                *result["influence"][ends][:3],
            ]
        # Sums and differences of many distances, most of which cancel: see the golden files of
        # error bars.
        result |= {name: near(result[name], 1e-9, 1e-12) for name in ("uncertainties", "influence")}
    found["differences"] = near(found["differences"], 1e-9, 1e-12)
    golden("results/beside", {"text": text, "json": near(found, DIGITS, 1e-12)})


def test_several_fakes_are_compared(golden: Golden, here: Run, place: Path) -> None:
    """Four are compared with the best one."""
    for name, seed, light in (("a", 5, 0), ("b", 6, 30), ("c", 7, 10), ("d", 8, 40), ("e", 9, 4)):
        np.save(place / f"{name}.npy", pixels(210, seed, light))
    outcome = here("compute", *(f"{name}.npy" for name in "abcde"), *CPU, "--uncertainty")
    golden("results/compared", shown(outcome, place))


def test_files_that_are_skipped(golden: Golden, here: Run, place: Path) -> None:
    """Names and reasons of skipped files, and the exit status."""
    (place / "fake" / "00002.png").write_bytes(b"no image")
    (place / "fake" / "notes.txt").write_text("a text")
    shutil.copy(place / "fake" / "00005.png", place / "fake" / "renamed.dat")
    skip = ("--on-error", "skip", "--max-skip", 0.1)
    found = {
        "skipped": shown(here("compute", "real", "fake", *CPU, *skip, "--json"), place),
        "too many": shown(here("compute", "real", "fake", *CPU, "--on-error", "skip"), place),
        "none": shown(here("compute", "real", "fake", *CPU), place),
    }
    golden("results/skipped", found)


def test_gates(golden: Golden, here: Run, place: Path) -> None:
    """Status 3 and its reason."""
    kid = ("--metrics", "kid,fid", "--kid-subset-size", 9, "--kid-subsets", 2)
    gates = {
        "missed": ("--fail-above", 0.5),
        "passed": ("--fail-above", 50),
        "on copies": ("--max-duplicates", 0.01),
        "both": ("--fail-above", 0.5, "--max-duplicates", 0.01, *kid),
    }
    found: dict[str, Any] = {}
    for name, options in gates.items():
        text = shown(here("compute", "real", "fake", *CPU, *options, "--output", "out.json"), place)
        found[name] = {**text, "exit": read_document(place / "out.json")["exit"]}
    golden("results/gates", found)


def test_statistics_files(golden: Golden, here: Run, place: Path) -> None:
    """Statistics files are written, compared with images and with each other, and refused."""
    metrics = ("--metrics", "fid,kid", "--kid-subset-size", 9)
    found = {
        "made": shown(
            here("stats", "real", "-o", "new.npz", *CPU, *metrics[:2], "--num", 20, "--seed", 3),
            place,
        ),
        "against images": shown(here("compute", "own.npz", "fake", *CPU), place),
        "with features": shown(
            here("compute", "features.npz", "new.npz", *metrics, "--json"), place
        ),
        "of unknown protocols": shown(
            here("compute", "pytorch_fid.npz", "bare.npz", "--json"), place
        ),
        "of ADM": shown(here("compute", "adm.npz", "adm.npz", "--metrics", "fid,sfid"), place),
        "of two networks": shown(here("compute", "own.npz", "layers.npz"), place),
        "of two protocols": shown(
            here("compute", "own.npz", "fake", *CPU, "--protocol", "clean"), place
        ),
        "all the same": shown(
            here("compute", "own.npz", "fake", *CPU, "--protocol", "stylegan", "--allow-mismatch"),
            place,
        ),
        "metrics that need more": shown(here("compute", "own.npz", "fake", *CPU, *metrics), place),
    }
    golden("results/statistics", found)
    with np.load(place / "new.npz") as new, np.load(FILES / "features.npz") as old:
        assert new["mu"].tobytes() == old["mu"].tobytes()
        assert new["features"].tobytes() == old["features"].tobytes()


def inception_file(file: Path, dims: int, seed: int, count: int) -> None:
    """Write statistics of Inception with features, of few images, so that the distance is computed
    quickly.
    """
    features = bells(count, dims, seed, shift=seed / 4)
    wholes = features.astype(np.float64)
    definition = inception("tensorflow", dims)
    sigma = np.cov(wholes.T)
    fidtool.write_statistics(
        file, fidtool.Statistics.of(wholes.mean(0), sigma, count, definition, features=features)
    )


def test_names_of_inception_metrics(golden: Golden, here: Run, place: Path) -> None:
    """With 2048 and with fewer dimensions, from statistics files whose settings are adopted."""
    metrics = (
        "--metrics",
        "fid,kid,prdc",
        "--kid-subset-size",
        2,
        "--kid-subsets",
        3,
        "--nearest-k",
        1,
    )
    for dims in (2048, 64):
        for name, seed in (("a", 1), ("b", 2)):
            inception_file(place / f"{name}{dims}.npz", dims, seed, 4)
    found = {
        "2048 dimensions": shown(
            here("compute", "a2048.npz", "b2048.npz", *metrics, "--fail-above", 1), place
        ),
        "64 dimensions": shown(here("compute", "a64.npz", "b64.npz", *metrics, "--json"), place),
        "together": shown(here("compute", "a2048.npz", "b64.npz"), place),
        "asked otherwise": shown(here("compute", "a64.npz", "b64.npz", "--dims", 192), place),
    }
    golden("results/inception", found)


def test_check(golden: Golden, here: Run, place: Path) -> None:
    """Composition, findings, status 3 with --strict, and lists of images."""
    broken = place / "broken"
    shutil.copytree(place / "fake", broken)
    (broken / "00002.png").write_bytes(b"no image")
    found = {
        "against": shown(here("check", "fake", "--against", "real", "--json", "--quiet"), place),
        "in words": shown(here("check", "real", "--quiet"), place),
        "strict": shown(
            here("check", "broken", "--against", "own.npz", "--strict", "--quiet"), place
        ),
        "listed": shown(here("check", "other", "--list", "--num", 3, "--seed", 1), place),
        "listed as JSON": shown(
            here("check", "other", "--list", "--num", 3, "--json", "--quiet"), place
        ),
    }
    golden("results/check", found)


def make_poor(folder: Path) -> None:
    """Write a set of images with many kinds of faults."""
    make_exact_pictures(folder, 30, 9)
    random = np.random.RandomState(3)
    for number in range(6):
        noise = random.randint(0, 256, (16, 16, 3)).astype(np.uint8)
        for name, values in (
            ("noise", noise),
            ("black", noise * 0),
            ("even", noise * 0 + 70 + number),
        ):
            Image.fromarray(values).save(folder / f"{name}{number}.png")
        shutil.copy(folder / f"0000{number}.png", folder / f"copy{number}.png")
    smooth = pixels(4, 10)
    Image.fromarray(smooth[0]).convert("L").save(folder / "gray.png")
    clear = np.concatenate([smooth[1], smooth[1, :, :, :1]], 2)
    Image.fromarray(clear).save(folder / "clear.png")
    Image.fromarray(smooth[3].repeat(3, axis=0)).save(folder / "long.png")


def test_findings(golden: Golden, here: Run, place: Path) -> None:
    make_poor(place / "poor")
    found = {
        "json": shown(here("check", "poor", "--against", "real", "--json", "--quiet"), place),
        "text": shown(here("check", "poor", "--quiet"), place),
        "computed": shown(here("compute", "real", "poor", *CPU, "--no-cache"), place),
    }
    golden("results/findings", found)


def make_odd(folder: Path) -> None:
    """Write images that are rotated, transparent, 16-bit or animated, as PNG files so that their
    pixels are exact.
    """
    make_exact_pictures(folder, 14, 11)
    smooth = [Image.fromarray(each) for each in pixels(9, 12)]
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    for number, picture in enumerate(smooth[:2]):
        picture.save(folder / f"rotated{number}.png", exif=exif)
    for number, picture in enumerate(smooth[2:5]):
        picture.putalpha(picture.getchannel("R"))
        picture.save(folder / f"clear{number}.png")
    for number in range(2):
        deep = np.asarray(smooth[5])[:, :, number].astype(np.uint16) * 257
        Image.fromarray(deep).save(folder / f"deep{number}.png")
    for number, picture in enumerate(smooth[6:8]):
        picture.save(folder / f"moving{number}.png", save_all=True, append_images=[smooth[8]])


def test_odd_images(golden: Golden, here: Run, place: Path) -> None:
    """Warnings about rotated, transparent, 16-bit and animated images, and about clipped values."""
    make_odd(place / "odd")
    np.save(place / "beyond.npy", pixels(18, 13).astype(np.float32) / np.float32(128))
    found = {
        "computed": shown(here("compute", "real", "odd", *CPU), place),
        "made": shown(here("stats", "odd", "-o", "odd.npz", *CPU), place),
        "checked": shown(here("check", "odd", "--quiet"), place),
        "clipped": shown(
            here("compute", "real", "beyond.npy", *CPU, "--value-range", "0,1"), place
        ),
    }
    golden("results/odd", found)


def test_cache(golden: Golden, here: Run, place: Path) -> None:
    """The list as text and as JSON, and the removal of the entries."""
    for name in ("real", "other", "fake"):
        assert here("stats", name, "-o", f"{name}.npz", *CPU).status == 0
    listed = here("cache", "--json").json
    masks = {re.escape(str(place)): "PLACE", r"^[0-9a-f]{12}(?=  )": "ID", r"\d\.\d of": "N of"}
    masks[r"\d{4}-\S+T\S+Z"] = "DATE"
    found: dict[str, Any] = {
        "json": masked(listed, "bytes", "entries.*.id", "entries.*.bytes", "entries.*.used")
    }
    found["listed"] = here("cache").stdout.splitlines()
    found |= {
        "two at once": shown(here("cache", "--clear", "--json"), place),
        "emptied": shown(here("cache", "--clear"), place),
        "empty": shown(here("cache"), place),
    }
    golden("results/cache", placed(found, masks))


def test_other_commands(
    golden: Golden, here: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocols, and the locations of the weights."""
    monkeypatch.syspath_prepend(package_without_weights(place / "packages"))
    monkeypatch.setenv("FIDTOOL_CACHE", str(place / "nothing"))
    found = {
        "protocols": shown(here("protocols"), place),
        "weights": shown(here("weights"), place),
        "weights that are named": shown(here("weights", "--weights", "nowhere.pth"), place),
    }
    golden("results/else", found)


def test_messages_without_quiet(golden: Golden, here: Run, place: Path) -> None:
    """stderr of a run without --quiet. Progress lines are left out, because they depend on time."""
    outcome = shown(
        here("compute", "real", "fake", "--device", "cpu", "--extractor", NETWORK, "--num", 12),
        place,
    )
    lines = [line for line in outcome["stderr"] if not re.match(r"(real|fake): \d", line)]
    golden("results/loud", {**outcome, "stderr": lines})
