"""Runs a frozen version of fidtool and the working tree on the same commands, and reports every visible difference.

    python scripts/compare --frozen REV

Both versions are built as wheels and installed into separate folders. Each case (see --list) runs with both versions,
in the same empty folder and on the same images. The comparison covers exit statuses, stdout, stderr, JSON values to
the last digit, and written files, arrays bit by bit. It masks what differs between any two runs (see --masks).

A case is conclusive only if the frozen version exits with the status that the case expects. The exit status is 0 if
all cases are equal and conclusive, and 1 otherwise.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import click

from compare import masks
from compare.case import FEW, JSON, REAL, SETS, SMALL, Case, Facts, fidtool
from compare.cases import table_of, uncovered
from compare.sides import Side, Step, export_sources, install, run_quietly
from compare.speed import race

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OLD = (
    f"stats {REAL} -o real.npz {SMALL} --metrics fid,kid",
    f"compute {SETS} {SMALL} --json",
    f"compute {SETS} {SMALL} {JSON} --batch-size 2 --checkpoint kept",
)
"""Commands with which the frozen version writes files that the other version must be able to read."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print no log of requests."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP for the duration of a ``with`` block; yields the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Bench:
    """Runs cases with both versions.

    Args:
        place: an empty folder.
        sides: the frozen version and the other version.

    Attributes:
        statuses: exit statuses of the last case, by version, step and rank.
    """

    def __init__(self, place: Path, sides: Sequence[Side]) -> None:
        self._place, self.sides = place, sides
        self._work = place / "work"
        self.statuses: list[list[list[int | None]]] = []

    def prepare(self) -> None:
        """Create the inputs, some of them with the frozen version."""
        inputs, frozen = self._place / "inputs", self.sides[0]
        (self._place / "home" / "matplotlib").mkdir(parents=True)
        run_quietly([sys.executable, HERE / "inputs.py", inputs])
        self._must(frozen, [fidtool(line) for line in OLD])
        shutil.move(self._work, inputs / "old")
        self._must(frozen, [fidtool(f"stats {FEW} -o few.npz --dims 64")])
        for name in ("kept", "classifier", "damaged"):
            shutil.copytree(self._work / "cache" / "weights", inputs / name / "weights")
        run_quietly([sys.executable, HERE / "inputs.py", inputs, "weights"])

    def _must(self, side: Side, steps: Sequence[Step]) -> str:
        """Run steps that must succeed, in an empty folder, and return the stdout of the last one."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        output = self._place / "preparing"
        for step in steps:
            statuses = side.run(step, output)
            if any(statuses):
                raise click.ClickException(
                    f"{step.text}: exit status {statuses}: {Path(f'{output}-0.err').read_text()}"
                )
        return Path(f"{output}-0.out").read_text()

    def facts(self, side: Side) -> Facts:
        """Return the commands and options of a version, and the names in its messages about unknown names."""
        flags = json.loads(self._must(side, [Step((str(HERE / "facts.py"),))]))
        listed = {}
        for flag in ("protocol", "metrics"):
            output = self._place / "asking"
            side.run(fidtool(f"compute {SETS} {SMALL} --{flag} nonsense"), output)
            listing = re.search(
                r"(?:[Tt]here are|[Cc]hoose from) (.*?)(;|$)", Path(f"{output}-0.err").read_text().strip()
            )
            if listing is None:
                raise click.ClickException(f"the version {side.name} does not list the values of --{flag}")
            listed[flag] = re.findall(r"[\w-]+", listing[1])
        return Facts(list(flags), flags, listed["protocol"], listed["metrics"])

    def differences(self, case: Case) -> list[masks.Difference]:
        """Run a case with both versions and return the differences."""
        found: list[masks.Difference] = []
        self.statuses = [self._run(side, case) for side in self.sides]
        one_place, other_place = places = [self._place / "results" / side.name for side in self.sides]
        for number, step in enumerate(case.steps):
            for rank, (one, other) in enumerate(zip(*(each[number] for each in self.statuses), strict=True)):
                where = f"{step.text}, rank {rank}" if step.ranks > 1 else step.text
                if None in (one, other) or one != other:
                    found.append(masks.Difference(f"{where}: exit status", str(one), str(other)))
                found += self._printed(case, places, f"{number}-{rank}", where)
        keys = (*masks.KEYS, *case.keys)
        replaced = {str(side.site): "<site>" for side in self.sides}
        found += masks.folder_differences(one_place / "work", other_place / "work", keys, replaced, case.names)
        return found

    def _run(self, side: Side, case: Case) -> list[list[int | None]]:
        """Run a case, move its files to the version's results, and return the exit statuses by step and rank."""
        results = self._place / "results" / side.name
        for folder in (self._work, results):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        if not case.bare:
            (self._work / "cache").mkdir()
            (self._work / "cache" / "weights").symlink_to(self._place / "inputs" / "kept" / "weights")
        statuses = [side.run(step, results / str(number)) for number, step in enumerate(case.steps)]
        shutil.move(self._work, results / "work")
        return statuses

    def _printed(self, case: Case, places: Sequence[Path], name: str, where: str) -> Iterator[masks.Difference]:
        """Yield the differences between the stdout and stderr of a process."""
        keys = (*masks.KEYS, *case.keys)
        for kind in ("out", "err"):
            texts = [masks.text_of(place / f"{name}.{kind}") for place in places]
            if kind == "err" or case.timed:
                replaced = {str(side.site): "<site>" for side in self.sides}
                texts = [masks.masked(text, replaced) for text in texts]
            if kind == "err" and case.unordered:
                texts = [masks.own_lines(text) for text in texts]
            for each in masks.text_differences(texts[0], texts[1], keys):
                yield masks.Difference(f"{where}: std{kind}: {each.what}", each.first, each.second)


def chosen(cases: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of the patterns; all names if there are no patterns."""
    return [name for name in cases if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def statuses_text(statuses: Sequence[Sequence[int | None]]) -> str:
    """Format the exit statuses of all steps and their ranks."""
    return " ".join(",".join(map(str, ranks)) for ranks in statuses if ranks)


def unproven(case: Case, statuses: Sequence[Sequence[int | None]]) -> str | None:
    """Return a message if the frozen version's exit statuses are not the expected ones, otherwise None."""
    if [list(ranks) for ranks in statuses] == case.expected:
        return None
    return f"{case.name} (status {statuses_text(statuses)}, expected {statuses_text(case.expected)})"


def compare(bench: Bench, patterns: Sequence[str]) -> bool:
    """Run all cases and return whether all are equal and conclusive."""
    tables, differing, inconclusive = [], 0, []
    for side in bench.sides:
        facts = bench.facts(side)
        tables.append(table_of(facts))
        for flag in uncovered(tables[-1], facts):
            click.echo(f"note: no case uses {flag} of the version {side.name}")
    counts: Counter[str] = Counter()
    for name in chosen(list(tables[0] | tables[1]), patterns):
        started = time.monotonic()
        if name in tables[0] and name in tables[1]:
            found = bench.differences(tables[0][name])
            inconclusive += [why for why in [unproven(tables[0][name], bench.statuses[0])] if why]
        else:
            found = [masks.Difference("whether the case exists", *(str(name in table) for table in tables))]
        counts[name.partition("/")[0]] += 1
        differing += bool(found)
        for difference in found:
            click.echo(f"DIFFERS {name!r}: {difference}")
        statuses = statuses_text(bench.statuses[0]) if bench.statuses else ""
        verdict = ": differs" if found else ""
        click.echo(f"{time.monotonic() - started:6.1f} s  {name!r} (status {statuses}){verdict}", err=True)
    if inconclusive:
        click.echo(f"{len(inconclusive)} inconclusive cases: {'; '.join(inconclusive)}")
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    verdict = f"{differing} DIFFER" if differing else "all equal"
    more = f", {len(inconclusive)} INCONCLUSIVE" if inconclusive else ""
    click.echo(f"{sum(counts.values())} cases ({kinds}): {verdict}{more}")
    return not differing and not inconclusive


def show_masks() -> None:
    """Print what is not compared."""
    click.echo("JSON values: " + ", ".join(masks.KEYS))
    timings = f"lines of stderr and HTML that match {masks.TIMINGS.pattern}", (masks.SECONDS,)
    for what, patterns in (timings, ("stderr and HTML", masks.TEXT), ("file names", masks.NAMES)):
        click.echo(f"{what}: " + ", ".join(f"{pattern.pattern} -> {new}" for pattern, new in patterns))


def masks_alone(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Callback of `--masks`: print what is not compared, and exit."""
    if asked:
        show_masks()
        context.exit()


@click.command(help=__doc__)
@click.option("--frozen", metavar="REV", required=True, help="The reference version: a git revision, or a folder.")
@click.option(
    "--tree",
    metavar="PATH|REV",
    default=str(ROOT),
    help="The version to check: a folder, or a git revision.  [default: this repository]",
)
@click.option("--only", metavar="PATTERN", multiple=True, help="Run only these cases, e.g. 'sources/*'. Repeatable.")
@click.option("--list", "listed", is_flag=True, help="Print the names and the commands of the cases.")
@click.option(
    "--masks", is_flag=True, is_eager=True, expose_value=False, callback=masks_alone, help="Print what is not compared."
)
@click.option("--speed", is_flag=True, help="Compare the speed instead. Times never cause a failure.")
@click.option("--repeats", default=3, show_default=True, help="Pairs of runs for --speed.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Work in this folder, and keep the files of the last case."
)
def main(
    frozen: str,
    tree: str,
    only: tuple[str, ...],
    listed: bool,
    speed: bool,
    repeats: int,
    folder: Path | None,
) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="compare-") as temporary:
        place = (folder or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        with serving(place / "inputs") as web:
            sides = [Side(name, place / name / "site", place, web) for name in ("frozen", "tree")]
            for side, version in zip(sides, (frozen, tree), strict=True):
                export_sources(version, ROOT, place / side.name / "sources")
                install(place / side.name / "sources", side.site)
            bench = Bench(place, sides)
            try:
                bench.prepare()
                if listed:
                    show_cases(bench, only)
                elif speed:
                    race(sides, place, repeats)
                else:
                    sys.exit(0 if compare(bench, only) else 1)
            finally:
                for side in sides:
                    side.close()


def show_cases(bench: Bench, patterns: Sequence[str]) -> None:
    """Print the cases for the version to check."""
    table = table_of(bench.facts(bench.sides[1]))
    for name in chosen(list(table), patterns):
        click.echo(repr(name)[1:-1])
        for step in table[name].steps:
            click.echo(f"    {'' if step.ranks == 1 else f'{step.ranks} ranks: '}{step.text}")
