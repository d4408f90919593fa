"""scripts/parity, which runs the code of every other tool from PyPI, on a small pair of sets."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.pictures import make_pictures
from support.places import SCRIPTS
from support.ranks import RankServer

SCRIPT = SCRIPTS / "parity"
PEERS = {
    "pytorch-fid": [
        "FID, `pytorch-fid`",
        "KID, `pytorch-fid`",
        "precision",
        "recall",
        "density",
        "coverage",
    ],
    "clean-fid": ["FID, `pytorch-fid`", "FID, `clean`"],
    "torch-fidelity": [
        "FID, `tensorflow`",
        "FID, `stylegan`",
        "sFID",
        "KID",
        "Inception Score",
        "precision",
        "recall",
    ],
    "torchmetrics": [
        "FID, `torchmetrics`",
        "FID, `tensorflow`",
        "KID, `torchmetrics`",
        "Inception Score",
    ],
    "networks": ["FD, `timm:test_vit`", "CMMD"],
}
MODULES = {
    "pytorch-fid": "prdc",
    "clean-fid": "cleanfid",
    "torch-fidelity": "torch_fidelity",
    "networks": "clip_mmd",
}


ALLOWED = {"FID": 1e-5, "FD": 1e-5, "sFID": 1e-5, "CMMD": 1e-5, "KID": 1e-6, "Inception": 1e-6}
"""Largest relative differences. All other metrics are counts, which must be equal."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Colour, grayscale and palette images, smaller and larger than the network's input; the fake
    ones are noisy.

    The sets differ clearly, because a KID near 0 would be the difference of much larger numbers.
    Nine is the smallest number with two grayscale images, two of each size, and more than one split
    of the Inception Score.
    """
    root, noise = tmp_path_factory.mktemp("pair"), np.random.RandomState(0)
    for name, seed in (("real", 1), ("fake", 2)):
        make_pictures(root / name, 9, seed, sides=(48, 320, 150, 420))
        for number, file in enumerate(sorted((root / name).iterdir())):
            image = Image.open(file).convert("RGB")
            if name == "fake":
                noisy = 0.9 * np.asarray(image) + noise.randint(
                    0, 25, (image.height, image.width, 3)
                )
                image = Image.fromarray(noisy.astype(np.uint8))
            if number % 5 == 3:
                image = image.convert("L")
            if number % 10 == 7:
                image = image.quantize(16)
            image.save(file)
    return root / "real", root / "fake"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, weights_cache: Path) -> Path:
    """A cache for fidtool's statistics, which tools with the same protocol share."""
    folder = tmp_path_factory.mktemp("parity-cache")
    (folder / "weights").symlink_to(weights_cache)
    return folder


RUNS = [
    pytest.param("pytorch-fid", ("--in-span",), id="pytorch-fid"),
    # Without --in-span, as users run the script: eigenvalues in 2048 dimensions, which takes
    # another quarter.
    pytest.param("torchmetrics", (), id="torchmetrics, whole", marks=pytest.mark.slow),
    # Each takes a quarter of a minute. The resizes of their protocols have unit tests.
    pytest.param("torch-fidelity", ("--in-span",), id="torch-fidelity", marks=pytest.mark.slow),
    pytest.param("clean-fid", ("--in-span",), id="clean-fid", marks=pytest.mark.slow),
    pytest.param("networks", ("--in-span",), id="networks", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("peer", "options"), RUNS)
def test_each_row_is_within_its_tolerance(
    peer: str,
    options: tuple[str, ...],
    pair: tuple[Path, Path],
    cache: Path,
    environment: dict[str, str],
    training_server: RankServer,
    tmp_path: Path,
) -> None:
    if find_spec(MODULES.get(peer, peer)) is None:
        pytest.skip(f"needs {peer}, from the extra 'test'")
    file = tmp_path / "rows.json"
    command = [SCRIPT, *pair, "--peer", peer, "--json", file, *options]
    started = training_server.launch(
        "script", command, {**environment, "FIDTOOL_CACHE": str(cache)}, tmp_path
    )
    done = started.outcome()
    assert done.status == 0, done.stderr
    rows = json.loads(file.read_text())
    for row, what in zip(rows, PEERS[peer], strict=True):
        assert row["what"].startswith(what)
        allowed = ALLOWED.get(what.partition(",")[0].split()[0], 1e-15)
        assert row["allowed"] == allowed
        assert row["difference"] <= allowed, row
        assert row["what"] in done.stdout
    values = [row["theirs"] for row in rows]
    assert all(value > 0 for value in values), "a value of 0 would not test anything"
    assert len(set(values)) >= len(values) - 2
