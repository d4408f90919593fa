"""Runs a frozen version of fidtool and the working tree on the same commands, and says what users would see change.

python scripts/compare_versions.py --frozen REV

Both are built as wheels and installed into folders of their own. Each case of the table (``--list``) is run by both in
the same empty folder, on the same images. Compared are exit statuses, stdout and stderr, the values of JSON to the last
digit, and the files that are left, arrays to the bit. Not compared is what differs between any two runs: ``--masks``
tells. A case proves something only where the frozen version ends with the exit status that the case expects.
The exit status is 0 where everything is equal and every case proves something, and 1 where not.
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

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
OLD = (
    f"stats {REAL} -o real.npz {SMALL} --metrics fid,kid",
    f"compute {SETS} {SMALL} --json",
    f"compute {SETS} {SMALL} {JSON} --batch-size 2 --checkpoint kept",
)
"""With these the frozen version makes what the other must be able to read."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves a folder over HTTP; the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Bench:
    """Both versions beside each other, and the folder in which they work.

    Args:
        place: an empty folder.
        sides: the frozen version and the other.

    Attributes:
        statuses: of the last case, by version, step and rank.
    """

    def __init__(self, place: Path, sides: Sequence[Side]) -> None:
        self._place, self.sides = place, sides
        self._work = place / "work"
        self.statuses: list[list[list[int | None]]] = []

    def prepare(self) -> None:
        """Makes the inputs, some of them with the frozen version."""
        inputs, frozen = self._place / "inputs", self.sides[0]
        (self._place / "home" / "matplotlib").mkdir(parents=True)
        run_quietly([sys.executable, SCRIPTS / "compare" / "inputs.py", inputs])
        self._must(frozen, [fidtool(line) for line in OLD])
        shutil.move(self._work, inputs / "old")
        self._must(frozen, [fidtool(f"stats {FEW} -o few.npz --dims 64")])
        for name in ("kept", "classifier", "damaged"):
            shutil.copytree(self._work / "cache" / "weights", inputs / name / "weights")
        run_quietly([sys.executable, SCRIPTS / "compare" / "inputs.py", inputs, "weights"])

    def _must(self, side: Side, steps: Sequence[Step]) -> str:
        """Runs steps that must go well in an empty folder; the last one's stdout."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        output = self._place / "preparing"
        for step in steps:
            statuses = side.run(step, output)
            if any(statuses):
                raise click.ClickException(f"{step.text}: status {statuses}: {Path(f'{output}-0.err').read_text()}")
        return Path(f"{output}-0.out").read_text()

    def facts(self, side: Side) -> Facts:
        """What a version offers: by its command line, and by what it says of names that it does not know."""
        flags = json.loads(self._must(side, [Step((str(SCRIPTS / "compare" / "facts.py"),))]))
        listed = {}
        for flag in ("protocol", "metrics"):
            output = self._place / "asking"
            side.run(fidtool(f"compute {SETS} {SMALL} --{flag} nonsense"), output)
            said = re.search(r"there are (.*?)(;|$)", Path(f"{output}-0.err").read_text().strip())
            if said is None:
                raise click.ClickException(f"{side.name} does not say which {flag} there are")
            listed[flag] = re.findall(r"[\w-]+", said[1])
        return Facts(list(flags), flags, listed["protocol"], listed["metrics"])

    def differences(self, case: Case) -> list[masks.Difference]:
        """Runs a case by both; what they differ in."""
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
        """The exit statuses of each step and rank; what is left goes to the folder of the version's results."""
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
        """What a process's stdout and stderr differ in."""
        keys = (*masks.KEYS, *case.keys)
        for kind in ("out", "err"):
            texts = [masks.text_of(place / f"{name}.{kind}") for place in places]
            if kind == "err" or case.timed:
                places_of = {str(side.site): "<site>" for side in self.sides}
                texts = [masks.masked(text, places_of) for text in texts]
            if kind == "err" and case.unordered:
                texts = [masks.own_lines(text) for text in texts]
            for each in masks.text_differences(texts[0], texts[1], keys):
                yield masks.Difference(f"{where}: std{kind}: {each.what}", each.first, each.second)


def chosen(cases: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that one of the patterns means, or all."""
    return [name for name in cases if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def statuses_text(statuses: Sequence[Sequence[int | None]]) -> str:
    """Exit statuses of steps, and of the ranks of each."""
    return " ".join(",".join(map(str, ranks)) for ranks in statuses if ranks)


def unproven(case: Case, statuses: Sequence[Sequence[int | None]]) -> str | None:
    """Why a case proves nothing, though both versions are equal: the frozen one ends otherwise than is expected."""
    if [list(ranks) for ranks in statuses] == case.expected:
        return None
    return f"{case.name} (status {statuses_text(statuses)}, expected {statuses_text(case.expected)})"


def compare(bench: Bench, patterns: Sequence[str]) -> bool:
    """Runs all cases; whether all are equal, and all prove something."""
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
            found = [masks.Difference("whether there is such a case", *(str(name in table) for table in tables))]
        counts[name.partition("/")[0]] += 1
        differing += bool(found)
        for difference in found:
            click.echo(f"DIFFERS {name!r}: {difference}")
        statuses = statuses_text(bench.statuses[0]) if bench.statuses else ""
        verdict = ": differs" if found else ""
        click.echo(f"{time.monotonic() - started:6.1f} s  {name!r} (status {statuses}){verdict}", err=True)
    if inconclusive:
        click.echo(f"{len(inconclusive)} cases prove nothing: {'; '.join(inconclusive)}")
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    verdict = f"{differing} DIFFER" if differing else "all equal"
    more = f", {len(inconclusive)} PROVE NOTHING" if inconclusive else ""
    click.echo(f"{sum(counts.values())} cases ({kinds}): {verdict}{more}")
    return not differing and not inconclusive


def show_masks() -> None:
    """Prints what is not compared."""
    click.echo("values in JSON: " + ", ".join(masks.KEYS))
    timings = f"lines of stderr and pages with {masks.TIMINGS.pattern}", (masks.SECONDS,)
    for what, patterns in (timings, ("texts of stderr and pages", masks.TEXT), ("names of files", masks.NAMES)):
        click.echo(f"{what}: " + ", ".join(f"{pattern.pattern} -> {new}" for pattern, new in patterns))


def masks_alone(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """For `--masks`: prints what is not compared, and ends."""
    if asked:
        show_masks()
        context.exit()


@click.command(help=__doc__)
@click.option("--frozen", metavar="REV", required=True, help="The version that is known to be right.")
@click.option(
    "--tree", metavar="PATH|REV", default=str(ROOT), help="The other: a folder, or a revision. [default: this]"
)
@click.option("--only", metavar="PATTERN", multiple=True, help="Cases by name, as in 'sources/*'. May be repeated.")
@click.option("--list", "listed", is_flag=True, help="Print the names of the cases, and the commands of each.")
@click.option(
    "--masks", is_flag=True, is_eager=True, expose_value=False, callback=masks_alone, help="Print what is not compared."
)
@click.option("--speed", is_flag=True, help="Compare how quick they are instead. No time is ever a failure.")
@click.option("--repeats", default=3, show_default=True, help="Of --speed.")
@click.option("--folder", type=click.Path(path_type=Path), help="Work there, and leave what the last case left.")
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
    """Prints the cases of the version that is compared."""
    table = table_of(bench.facts(bench.sides[1]))
    for name in chosen(list(table), patterns):
        click.echo(repr(name)[1:-1])
        for step in table[name].steps:
            click.echo(f"    {'' if step.ranks == 1 else f'{step.ranks} ranks: '}{step.text}")


if __name__ == "__main__":
    main()
