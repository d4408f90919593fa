"""A case: commands that are run with both versions. Paths are as seen from the folder in which it runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compare.sides import Step

I = "../inputs"  # noqa: E741
REAL, FAKE, FEW, LESS = f"{I}/real", f"{I}/fake", f"{I}/few", f"{I}/less"
SETS = f"{REAL} {FAKE}"
NETWORKS = f"{I}/modules/networks.py"
SMALL = f"--extractor {NETWORKS}:network"
COLOURS = f"--extractor {NETWORKS}:colours"
FAULTY = f"--extractor {NETWORKS}:faulty --batch-size 2 --num-workers 0"
JSON = "--json --no-cache"
SHUFFLENET = "torchvision:shufflenet_v2_x0_5"
KID = "--kid-subset-size 8 --kid-subsets 5"
FORMS = (
    *("images.zip", "stored.zip", "samples.zip:output.png", "images.tar", "images.tar.gz", "images.tar.xz"),
    *("images.tar.bz2", "shard-{000..002}.tar", "shard-*.tar", "images.txt", "images.parquet", "images.parquet:image"),
    *("images.npz", "packed.npz", "two.npz:images", "images.npy", "planes.npy", "gray.npy", "images.pt", "several.pt"),
    *("several.pt:images", "images.safetensors", "deep", "odd"),
)
"""Sources of images."""
EXPECTED = {"usage": 2, "failures": 2}
"""Exit statuses that the commands of a kind are expected to have. Of all others it is 0."""


@dataclass(frozen=True)
class Facts:
    """What a version offers, as it says itself.

    Attributes:
        commands: names of the commands.
        flags: of each command, each with whether it takes a value.
        protocols, metrics: their names.
    """

    commands: Sequence[str]
    flags: Mapping[str, Mapping[str, bool]]
    protocols: Sequence[str]
    metrics: Sequence[str]


@dataclass(frozen=True)
class Case:
    """Commands that are run one after the other in an empty folder.

    Attributes:
        name: ``kind/what``.
        steps: the commands.
        keys: paths in JSON whose values may differ, beside the usual ones.
        names: patterns of what may differ in names of files, whose contents are not compared then, either.
        timed: stdout tells seconds, too.
        unordered: lines of stderr come in any order.
        statuses: the exit statuses that are expected, of each step or one for all; a tuple has one per rank. Without
            any, the kind's own is expected.
    """

    name: str
    steps: tuple[Step, ...]
    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    timed: bool = False
    unordered: bool = False
    statuses: tuple[int | tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.statuses) in (0, 1, len(self.steps)), f"{self.name}: statuses of other steps"

    @property
    def kind(self) -> str:
        """What the case is about."""
        return self.name.partition("/")[0]

    @property
    def bare(self) -> bool:
        """Whether the cache has nothing in it when the case begins, not even weights that were converted before."""
        return self.kind in ("weights", "launchers") or any(step.words[::2] == ("copy", "cache") for step in self.steps)

    @property
    def expected(self) -> list[list[int | None]]:
        """The exit statuses that are expected, by step and rank. Copies and removals have none."""
        given = self.statuses or (EXPECTED.get(self.kind, 0),)
        pairs = zip(self.steps, given * len(self.steps) if len(given) == 1 else given, strict=True)
        return [[] if step.arranges else _by_rank(status, step.ranks) for step, status in pairs]


def _by_rank(status: int | tuple[int, ...], ranks: int) -> list[int | None]:
    found = (status,) * ranks if isinstance(status, int) else status
    assert len(found) == ranks, f"{found} of {ranks} ranks"
    return list(found)


def fidtool(line: str, ranks: int = 1, fresh: bool = False, stdin: str = "", **environment: str) -> Step:
    """``fidtool LINE``."""
    return Step(("-m", "fidtool", *shlex.split(line)), ranks, fresh, stdin, environment)


def torchrun(ranks: int, line: str) -> Step:
    """``torchrun … -m fidtool LINE``."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", "fidtool")
    return Step((*launcher, *shlex.split(line)), fresh=True)


def program(name: str, ranks: int = 1) -> Step:
    """One of `compare.programs`."""
    return Step((f"{I}/modules/programs.py", name), ranks)


def other(what: str, *names: str) -> Step:
    """``copy FROM TO`` or ``remove PATTERN``."""
    return Step((what, *names))


@dataclass
class Table:
    """Cases by their names, in order."""

    cases: dict[str, Case] = field(default_factory=dict)

    def add(self, name: str, *steps: str | Step, **settings: object) -> None:
        """A case; texts are lines of `fidtool`."""
        assert name not in self.cases, name
        made = tuple(fidtool(step) if isinstance(step, str) else step for step in steps)
        self.cases[name] = Case(name, made, **settings)  # type: ignore[arg-type]

    def add_all(self, kind: str, lines: Mapping[str, str]) -> None:
        """Cases of one line each."""
        for name, line in lines.items():
            self.add(f"{kind}/{name}", line)
