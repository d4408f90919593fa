"""Cases: commands to run with both versions. Paths are relative to the folder in which a case runs."""

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
"""Image sources."""
EXPECTED = {"usage": 2, "failures": 2}
"""Expected exit status by kind of case; 0 for all other kinds."""


@dataclass(frozen=True)
class Facts:
    """What a version offers, according to its command line.

    Attributes:
        commands: names of the commands.
        flags: for each command, its flags and whether they take a value.
        protocols, metrics: names of the protocols and metrics.
    """

    commands: Sequence[str]
    flags: Mapping[str, Mapping[str, bool]]
    protocols: Sequence[str]
    metrics: Sequence[str]


@dataclass(frozen=True)
class Case:
    """Commands to run one after the other in an empty folder.

    Attributes:
        name: ``kind/what``.
        steps: the commands.
        keys: paths of JSON values that may differ, in addition to `compare.masks.KEYS`.
        names: patterns of parts of file names that may differ. The contents of such files are not compared.
        timed: stdout contains times.
        unordered: lines of stderr may be in any order.
        statuses: expected exit statuses, one per step or one for all steps; a tuple has one per rank. If empty, the
            status of the kind is expected.
    """

    name: str
    steps: tuple[Step, ...]
    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    timed: bool = False
    unordered: bool = False
    statuses: tuple[int | tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.statuses) in (0, 1, len(self.steps)), (
            f"{self.name}: the number of statuses is not that of steps"
        )

    @property
    def kind(self) -> str:
        """First part of the name."""
        return self.name.partition("/")[0]

    @property
    def bare(self) -> bool:
        """Whether the cache is empty at the start, without even the converted weights."""
        return self.kind in ("weights", "launchers") or any(step.words[::2] == ("copy", "cache") for step in self.steps)

    @property
    def expected(self) -> list[list[int | None]]:
        """Expected exit statuses by step and rank. Copies and removals have none."""
        statuses = self.statuses or (EXPECTED.get(self.kind, 0),)
        pairs = zip(self.steps, statuses * len(self.steps) if len(statuses) == 1 else statuses, strict=True)
        return [[] if step.arranges else _by_rank(status, step.ranks) for step, status in pairs]


def _by_rank(status: int | tuple[int, ...], ranks: int) -> list[int | None]:
    found = (status,) * ranks if isinstance(status, int) else status
    assert len(found) == ranks, f"{found}: statuses of {ranks} ranks expected"
    return list(found)


def fidtool(line: str, ranks: int = 1, fresh: bool = False, stdin: str = "", **environment: str) -> Step:
    """Return the step ``fidtool LINE``."""
    return Step(("-m", "fidtool", *shlex.split(line)), ranks, fresh, stdin, environment)


def torchrun(ranks: int, line: str) -> Step:
    """Return the step ``torchrun … -m fidtool LINE``."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", "fidtool")
    return Step((*launcher, *shlex.split(line)), fresh=True)


def program(name: str, ranks: int = 1) -> Step:
    """Return a step that runs one of `compare.programs`."""
    return Step((f"{I}/modules/programs.py", name), ranks)


def other(what: str, *names: str) -> Step:
    """Return the step ``copy FROM TO`` or ``remove PATTERN``."""
    return Step((what, *names))


@dataclass
class Table:
    """Cases by name, in order."""

    cases: dict[str, Case] = field(default_factory=dict)

    def add(self, name: str, *steps: str | Step, **settings: object) -> None:
        """Add a case. Strings are arguments of ``fidtool``."""
        assert name not in self.cases, name
        made = tuple(fidtool(step) if isinstance(step, str) else step for step in steps)
        self.cases[name] = Case(name, made, **settings)  # type: ignore[arg-type]

    def add_all(self, kind: str, lines: Mapping[str, str]) -> None:
        """Add cases of one command each."""
        for name, line in lines.items():
            self.add(f"{kind}/{name}", line)
