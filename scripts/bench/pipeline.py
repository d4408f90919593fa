"""Everything around the network, also compared with another version of fidtool: the command
``pipeline``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image

from bench.images import ImageSets, Recipe, make_sets, photograph
from bench.process import measure, other_version
from bench.report import AGAINST, MIB, header, json_option, publish, table

_PROGRAMS = str(Path(__file__).with_name("pipeline_programs.py"))
_FEATURES = str(Path(__file__).with_name("programs.py"))
_PHOTO = (4000, 3000)
_PHOTOS_DISTINCT = 2
_DIMS = 2048
OWN, OTHER = "this version", "other version"


@dataclass(frozen=True)
class Row:
    """One measured quantity.

    Attributes:
        name: what is measured.
        unit: its unit. Of units per second more is better, of others less.
        values: the measured values by version, in the order of the runs.
    """

    name: str
    unit: str
    values: dict[str, list[float]]

    def median(self, version: str) -> float:
        """Return the median of a version's values."""
        return statistics.median(self.values[version])

    @property
    def gain(self) -> float | None:
        """How many times as good this version is as the other one; None without another version."""
        if OTHER not in self.values:
            return None
        own, other = self.median(OWN), self.median(OTHER)
        return own / other if self.unit.endswith("/s") else other / own

    def to_dict(self) -> dict[str, Any]:
        """Return the values for the JSON output."""
        medians = {version: self.median(version) for version in self.values}
        return {
            "name": self.name,
            "unit": self.unit,
            "values": self.values,
            "medians": medians,
            "gain": self.gain,
        }


@dataclass(frozen=True)
class Amounts:
    """How much work each measurement does: images, workers, images per batch, and feature
    vectors.
    """

    small: int
    medium: int
    photos: int
    features: int
    workers: int
    batch_size: int


Found = dict[str, tuple[str, float]]
"""Unit and value by name."""
Part = Callable[["Versions", Path, Amounts], None]


class Versions:
    """Runs each measurement with this version, and alternately with another one if there is one.

    Args:
        against: the other version, a wheel or a folder; None measures this version only.
        unpacked: empty folder into which a wheel is unpacked.
        repeats: number of runs with each version.

    Attributes:
        rows: the finished measurements.
        places: the folder of each version's package.
    """

    def __init__(self, against: Path | None, unpacked: Path, repeats: int) -> None:
        self._environments: dict[str, dict[str, str]] = {OWN: {}}
        if against is not None:
            self._environments[OTHER] = other_version(against, unpacked)
        self._repeats = repeats
        self.rows: list[Row] = []
        self.places = {
            name: _asked(["version"], each)["fidtool"] for name, each in self._environments.items()
        }
        if len(set(self.places.values())) < len(self.places):
            raise click.UsageError(
                f"--against: {against} is the same version, in {self.places[OWN]}"
            )

    def compare(
        self,
        arguments: list[str],
        found: Callable[[dict[str, Any], int], Found],
        used: bool = False,
    ) -> None:
        """Run a program with each version and print its values.

        Args:
            arguments: name and arguments of the program in `bench.pipeline_programs`.
            found: returns the values from the program's JSON and its peak memory in bytes.
            used: measure the peak memory.
        """
        rows: dict[str, Row] = {}
        names = list(self._environments)
        for repeat in range(self._repeats):
            for name in names if repeat % 2 == 0 else reversed(names):
                measured = measure(
                    [sys.executable, _PROGRAMS, *arguments], self._environments[name], used
                )
                values = found(json.loads(measured.stdout), measured.peak_used_bytes or 0)
                for what, (unit, value) in values.items():
                    row = rows.setdefault(what, Row(what, unit, {each: [] for each in names}))
                    row.values[name].append(value)
        for row in rows.values():
            self.add(row)

    def add(self, row: Row) -> None:
        """Print a finished measurement and append it to ``rows``."""
        self.rows.append(row)
        versions = ", ".join(f"{name} {_shown(row, name)}" for name in row.values)
        gain = "" if row.gain is None else f": {row.gain:.2f} times as good"
        click.echo(f"  {row.name}: {versions} {row.unit}{gain}", err=True)


def _asked(arguments: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a program of `bench.pipeline_programs` without measuring it, and return its JSON."""
    command = [sys.executable, _PROGRAMS, *arguments]
    asked = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    if asked.returncode:
        raise click.ClickException(
            (asked.stderr.strip().splitlines() or [f"{arguments[0]} failed"])[-1]
        )
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


def _sets(folder: Path, count: int, side: int, suffix: str) -> ImageSets:
    return make_sets(folder / f"{suffix}-{side}-{count}", Recipe(count // 2, side, suffix))


def _decode(versions: Versions, folder: Path, amounts: Amounts) -> None:
    """Decoding with the records of the diagnosis, processor time of the main process, and Pillow
    alone.
    """
    options = ["--workers", str(amounts.workers)]
    for count, side, suffix in ((amounts.small, 32, "png"), (amounts.medium, 256, "jpg")):
        sets, name = _sets(folder, count, side, suffix), f"{side}x{side} {suffix}"
        both = [str(sets.real), str(sets.fake)]
        alone = _asked(["pillow", *both, *options])

        def found(result: dict[str, Any], _: int, name: str = name) -> Found:
            return {
                f"decoding {name}": ("images/s", result["images_per_second"]),
                f"main process, per {name}": ("µs", 1e6 * result["main_process"]),
            }

        versions.compare(
            ["extract", *both, *options, "--batch-size", str(amounts.batch_size)], found
        )
        versions.add(Row(f"Pillow alone, {name}", "images/s", {OWN: [alone["images_per_second"]]}))


def _memory(versions: Versions, folder: Path, amounts: Amounts) -> None:
    """Peak memory of photos of 12 megapixels."""
    sets = _photos(folder / f"photos-{amounts.photos}", amounts.photos)
    arguments = ["extract", str(sets.real), str(sets.fake), "--workers", str(amounts.workers)]

    def found(result: dict[str, Any], peak: int) -> Found:
        return {
            f"memory, {amounts.photos} photos of 12 megapixels": ("MiB", peak / MIB),
            f"decoding, {amounts.photos} photos of 12 megapixels": (
                "images/s",
                result["images_per_second"],
            ),
        }

    versions.compare([*arguments, "--batch-size", str(amounts.batch_size)], found, used=True)


def _photos(folder: Path, count: int) -> ImageSets:
    """Write a few photos, and links to them."""
    for number in range(count):
        file = folder / ("real" if number % 2 else "fake") / f"{number:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        first = folder / f"{number % _PHOTOS_DISTINCT}.jpg"
        if not first.exists():
            Image.fromarray(photograph(np.random.RandomState(number), *_PHOTO)).save(
                first, quality=90
            )
        if not file.exists():
            file.hardlink_to(first)
    return ImageSets(folder / "real", folder / "fake", count)


def _iterable(versions: Versions, folder: Path, amounts: Amounts) -> None:
    """Images of 256x256 from an iterable."""
    sets = _sets(folder, amounts.medium, 256, "jpg")
    for form, described in (
        ("arrays", "arrays"),
        ("batches", "batches of tensors"),
        ("encoded", "JPEGs in memory"),
    ):
        arguments = ["iterable", form, str(sets.real), "--count", str(amounts.medium)]
        versions.compare(
            [
                *arguments,
                "--workers",
                str(amounts.workers),
                "--batch-size",
                str(amounts.batch_size),
            ],
            lambda found, _, name=described: {
                f"iterable of {name}": ("images/s", found["images_per_second"])
            },  # type: ignore[misc]
        )


def _metrics(versions: Versions, folder: Path, amounts: Amounts) -> None:
    """FID, KID, precision, recall, density and coverage of features."""
    files = [folder / f"features-{seed}-{amounts.features}.npz" for seed in range(2)]
    for seed, file in enumerate(files):
        if not file.exists():
            command = [
                sys.executable,
                _FEATURES,
                "features",
                str(file),
                str(amounts.features),
                str(_DIMS),
                str(seed),
            ]
            subprocess.run(command, check=True)
    size = str(min(1000, amounts.features))

    def found(result: dict[str, Any], _: int) -> Found:
        phases = {name: result["seconds"][name] for name in ("distance", "kid", "prdc")}
        return {
            f"{name}, 2 x {amounts.features} features": ("s", seconds)
            for name, seconds in phases.items()
        }

    versions.compare(["metrics", *map(str, files), "--subset-size", size], found)


PARTS: dict[str, Part] = {
    "decode": _decode,
    "memory": _memory,
    "iterable": _iterable,
    "metrics": _metrics,
}


@click.command()
@click.option(
    "--part",
    "parts",
    type=click.Choice(list(PARTS)),
    multiple=True,
    default=tuple(PARTS),
    help="Repeatable.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, path_type=Path),
    help=AGAINST,
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the files here for later runs.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=2,
    help="Runs with each version; medians are reported.",
)
@click.option("--small", type=click.IntRange(2), default=10000, help="PNGs of 32x32.")
@click.option(
    "--medium",
    type=click.IntRange(2),
    default=4000,
    help="JPEGs of 256x256, and images of an iterable.",
)
@click.option("--photos", type=click.IntRange(4), default=200, help="Photos of 12 megapixels.")
@click.option("--features", type=click.IntRange(12), default=5000, help="Feature vectors per set.")
@click.option(
    "--workers", type=click.IntRange(1), help="Decoding workers.  [default: the number of cores]"
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=64,
    help="Images per forward pass; 64 as on a GPU.",
)
@json_option
def pipeline(
    parts: tuple[str, ...],
    against: Path | None,
    folder: Path | None,
    repeats: int,
    small: int,
    medium: int,
    photos: int,
    features: int,
    workers: int | None,
    batch_size: int,
    json_file: Path | None,
) -> None:
    """Decoding, memory, iterables and metrics without the cost of a network.

    Runs on the CPU, with a network that averages pixels. With --against, each measurement runs
    alternately with two versions of fidtool, and the ratio is printed: above 1 means that this
    version is better.
    """
    machine = header("cpu", f"pipeline: {', '.join(parts)}, {repeats} run(s) each")
    amounts = Amounts(small, medium, photos, features, workers or machine.cores, batch_size)
    with tempfile.TemporaryDirectory(prefix="fidtool-bench-") as temporary:
        versions = Versions(against, Path(temporary) / "unpacked", repeats)
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        for part in parts:
            PARTS[part](versions, place, amounts)
    heads = ("measurement", "unit", *versions.places, *(["gain"] if against else []))
    table(heads, [_cells(row, versions) for row in versions.rows])
    for name, place in versions.places.items():
        click.echo(f"{name}: {place}")
    results = {"rows": [row.to_dict() for row in versions.rows], "places": versions.places}
    publish(
        json_file,
        machine,
        "pipeline",
        {"parts": list(parts), **vars(amounts), "repeats": repeats},
        results,
    )


def _shown(row: Row, version: str) -> str:
    return f"{row.median(version):,.{2 if row.unit == 's' else 0}f}"


def _cells(row: Row, versions: Versions) -> list[str]:
    cells = [_shown(row, name) if name in row.values else "" for name in versions.places]
    gain = [] if OTHER not in versions.places else ["" if row.gain is None else f"{row.gain:.2f}"]
    return [row.name, row.unit, *cells, *gain]
