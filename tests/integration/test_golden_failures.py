"""Exit statuses and error messages of each kind of failure, on which scripts and users rely.

Status 2 is bad usage or input, status 1 a failure at run time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bad_forms import PINNED, make_bad
from support.command_line import Run
from support.exact_sets import beside_network, pixels
from support.goldens import Golden
from support.old_files import FILES, make_sets
from support.printed import CPU, shown
from support.source_forms import make_squares

FACTORIES = """
import fidtool, torch


class Fixed(torch.nn.Module):
    def __init__(self, value, shape=(3,)):
        super().__init__()
        self.value, self.shape = value, shape

    def forward(self, x):
        return torch.full((len(x), *self.shape), self.value)


class Random(torch.nn.Module):
    def forward(self, x):
        return torch.rand(len(x), 3)


class Failing(torch.nn.Module):
    def forward(self, x):
        if float(x.sum()) != 0.0 and len(x) != 2:
            raise ArithmeticError("a fault on purpose")
        return x.mean((2, 3))


def large():
    return fidtool.Network(Fixed(100.0), 8, feature_step=18)


def small():
    return fidtool.Network(Fixed(1e-4), 8, feature_step=18)


def flat():
    return fidtool.Network(Fixed(1.0, ()), 8)


def random():
    return fidtool.Network(Random(), 8)


def failing():
    return fidtool.Network(Failing(), 8)


def number():
    return 3


def wrong():
    return fidtool.Network(Fixed(1.0), 0)


def raising():
    raise KeyError("no weights")
"""


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    """A folder with two valid sets, statistics, and several invalid files."""
    beside_network(tmp_path)
    make_sets(tmp_path)
    (tmp_path / "factories.py").write_text(FACTORIES)
    for name in ("empty", "texts/sub", "unreadable"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("texts/a.txt", "unreadable/a.png"):
        (tmp_path / name).write_text("no image")
    for name in ("notes.txt", "wrong.pth", "program.pt"):
        (tmp_path / name).write_bytes(b"something else")
    for name in ("own.npz", "bare.npz", "pytorch_fid.npz"):
        (tmp_path / name).write_bytes((FILES / name).read_bytes())
    np.save(tmp_path / "floats.npy", pixels(9, 1).astype(np.float32) / 255)
    np.save(tmp_path / "beyond.npy", pixels(9, 1).astype(np.float32))
    (tmp_path / "list.txt").write_text("real/00000.png\nreal/gone.png\n")
    (tmp_path / "a.zip").write_bytes(b"PK\3\4")
    return tmp_path


def own(spec: str) -> tuple[str, ...]:
    """Arguments of a run with one of the networks above."""
    return ("real", "fake", "--device", "cpu", "--quiet", "--extractor", f"factories.py:{spec}")


PAIR = ("real", "fake", *CPU)
INCEPTION = ("real", "fake", "--device", "cpu", "--quiet")
COMPUTE: dict[str, tuple[object, ...]] = {
    "REAL missing": ("nowhere", "fake"),
    "statistics missing": ("real", "nowhere.npz"),
    "an empty folder": ("real", "empty"),
    "a folder of other files": ("real", "texts"),
    "an image": ("real/00000.png", "fake"),
    "a text of other things": ("real", "notes.txt"),
    "a list with a gap": ("list.txt", "fake"),
    "no archive": ("real", "a.zip"),
    "standard input twice": ("-", "-"),
    "a pattern of nothing": ("real", "shard-{0..3}.tar"),
    "a key of a folder": ("real:key", "fake"),
    "floats without a range": ("floats.npy", "real", *CPU),
    "a range that is none": ("floats.npy", "real", *CPU, "--value-range", "1"),
    "a range upside down": ("floats.npy", "real", *CPU, "--value-range", "1,0"),
    "too large a --num": (*PAIR, "--num", 22),
    "another count than --expect": (*PAIR, "--expect", 7),
    "--expect of a file without a count": ("own.npz", "pytorch_fid.npz", "--expect", 20, *CPU[:2]),
    "an unknown protocol": (*PAIR, "--protocol", "inception"),
    "an unknown metric": (*PAIR, "--metrics", "fid,dists"),
    "no metric": (*PAIR, "--metrics", ","),
    "an unknown network": ("real", "fake", "--extractor", "resnet"),
    "a precision of GPUs": (*PAIR, "--precision", "tf32"),
    "dims of another network": (*PAIR, "--dims", 64),
    "a step for Inception": (*INCEPTION, "--feature-step", 3),
    "a size for Inception": (*INCEPTION, "--input-size", 64),
    "a size for a factory": (*PAIR, "--input-size", 64),
    "weights for a factory": (*PAIR, "--weights", "wrong.pth"),
    "weights that are missing": (*INCEPTION, "--weights", "nowhere.pth"),
    "sFID of another network": (*PAIR, "--metrics", "sfid"),
    "a score of another network": (*PAIR, "--metrics", "is"),
    "a score of few dims": (*INCEPTION, "--metrics", "is", "--dims", 64),
    "sFID of few dims": (*INCEPTION, "--metrics", "sfid", "--dims", 192),
    "a gate without a distance": (*PAIR, "--metrics", "kid", "--fail-above", 3),
    "a gate on copies without a look": (*PAIR, "--max-duplicates", 0.1, "--no-diagnosis"),
    "a gate on copies of a file": ("real", "bare.npz", *CPU, "--max-duplicates", 0.1),
    "error bars without a look": (*PAIR, "--uncertainty", "--no-diagnosis"),
    "influence without a distance": (*PAIR, "--influence", "--metrics", "kid"),
    "a protocol of another network": ("real", "fake", "--extractor", "clip", "--protocol", "clean"),
    "a preset of another network": ("real", "fake", "--extractor", "DINOv2", "--preset", "adm"),
    "an idle flag": (*PAIR, "--nearest-k", 3),
    "KID of one": (*PAIR, "--metrics", "kid", "--num", 1, "--kid-subset-size", 2),
    "precision of few": (*PAIR, "--metrics", "prdc", "--nearest-k", 18),
    "infinity of few": (*PAIR, "--metrics", "fid-infinity"),
    "a plot without a distance": (
        *PAIR,
        "--metrics",
        "kid",
        "--kid-subset-size",
        5,
        "--plot",
        "a.png",
    ),
    "--output into nowhere": (*PAIR, "--output", "no/out.json"),
    "--output onto a folder": (*PAIR, "--output", "empty"),
    "one file of two contents": (*PAIR, "--report", "same.html", "--output", "same.html"),
    "--output to an address": (*PAIR, "--output", "s3://bucket/out.json"),
    "a checkpoint that is a file": (*PAIR, "--checkpoint", "notes.txt"),
    "a checkpoint at an address": (*PAIR, "--checkpoint", "s3://bucket/kept"),
    "no file of a factory": ("real", "fake", "--extractor", "nowhere.py:network"),
    "no module": ("real", "fake", "--extractor", "no_such_module_here:network"),
    "no program": ("real", "fake", "--extractor", "nowhere.pt2"),
    "a factory of numbers": own("number"),
    "a factory of a wrong network": own("wrong"),
    "a factory that raises": own("raising"),
    "a network that is random": own("random"),
    "a network of no vectors": own("flat"),
    "a network of large features": own("large"),
    "a network of small features": own("small"),
    "a network that fails": own("failing"),
    "timm without a name": ("real", "fake", "--extractor", "timm"),
    "torchvision": ("real", "fake", "--extractor", "torchvision:resnet50"),
    "a file and images of two dims": (
        "own.npz",
        "real",
        "--device",
        "cpu",
        "--extractor",
        "factories.py:large",
    ),
    "files with nothing in common": (
        "own.npz",
        "bare.npz",
        "--metrics",
        "kid",
        "--kid-subset-size",
        5,
    ),
}
OTHERS: dict[str, tuple[object, ...]] = {
    "stats of a file that is there": ("stats", "real", "-o", "own.npz", *CPU),
    "stats into nowhere": ("stats", "real", "-o", "no/out.npz", *CPU),
    "stats of another name": ("stats", "real", "-o", "out.npy", *CPU),
    "stats of statistics": ("stats", "own.npz", "-o", "out.npz", *CPU),
    "stats of nothing": ("stats", "nowhere", "-o", "out.npz", *CPU),
    "check of nothing": ("check", "nowhere"),
    "check --list of statistics": ("check", "own.npz", "--list"),
    "check --list --strict": ("check", "real", "--list", "--strict"),
    "check against itself without images": ("check", "real", "--against", "bare.npz"),
    "check of an empty folder": ("check", "empty"),
    "check of unreadable images": ("check", "unreadable"),
    "cache --remove": ("cache", "--remove", "real"),
    "cache of two wishes": ("cache", "--clear", "--json"),
    "demo onto a file": ("demo", "--folder", "notes.txt"),
}
UNDER_A_LAUNCHER: dict[str, dict[str, str]] = {
    "a rank that is no number": {"RANK": "x", "WORLD_SIZE": "2"},
    "a rank beyond the others": {
        "RANK": "2",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    },
    "no address": {"RANK": "0", "WORLD_SIZE": "2"},
    "no world": {"RANK": "0"},
}


def failed(here: Run, place: Path, *arguments: object) -> dict[str, Any]:
    """Return status and stderr of a command that printed nothing to stdout."""
    found = shown(here(*arguments), place)
    assert found.pop("stdout") == [], arguments
    return found


def test_compute(golden: Golden, here: Run, place: Path) -> None:
    golden(
        "failures/compute",
        {name: failed(here, place, "compute", *given) for name, given in COMPUTE.items()},
    )


def test_other_commands(golden: Golden, here: Run, place: Path) -> None:
    golden("failures/others", {name: failed(here, place, *given) for name, given in OTHERS.items()})


def test_under_a_launcher(
    golden: Golden, here: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for name, variables in UNDER_A_LAUNCHER.items():
        with monkeypatch.context() as patch:
            for variable, value in variables.items():
                patch.setenv(variable, value)
            found[name] = failed(here, place, "compute", *PAIR)
    golden("failures/launchers", found)


def test_sources(
    golden: Golden, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archives, arrays, tables and lists that are damaged or ambiguous."""
    monkeypatch.setenv("FIDTOOL_TEST_TRACE", str(tmp_path / "trace"))
    make_squares(tmp_path / "images", 9)
    found = {}
    for name, (bad, make) in PINNED.items():
        make_bad(tmp_path, bad, make)
        found[name] = failed(here, tmp_path, "check", bad)
        for file in tmp_path.glob("bad.*"):
            file.unlink()
    golden("failures/sources", found)
    assert not (tmp_path / "trace").exists()
