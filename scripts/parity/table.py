"""The table that compares fidtool's protocols and metrics with other tools' own code.

Needs the other tools of the ``test`` extra.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.distances.exact import FeatureSettings
from fidtool.distances.inception_score import inception_score
from fidtool.distances.kernel import kid
from fidtool.distances.neighbors import prdc as our_prdc
from fidtool.features.protocol import FEATURES, INCEPTION_FEATURE_STEP, SPATIAL, ProtocolName
from fidtool.metrics.prdc import Ties
from fidtool.sources.image_set import canonical_order
from parity.networks import clip_mmd, open_clip_vit, timm_vit
from parity.peers import (
    CleanFid,
    Draws,
    PytorchFid,
    TorchFidelity,
    Torchmetrics,
    largest_divisor,
    make_torch_home,
    prdc,
    quiet,
    sorted_files,
)
from parity.span import in_their_span

Rows = Iterator["Row"]
FID_ALLOWED, KID_ALLOWED, IS_ALLOWED = 1e-5, 1e-6, 1e-6
EQUAL = 1e-15
"""For metrics that are equal counts, divided in a different order."""


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        what: protocol or metric, with its settings.
        peer: the other tool.
        theirs, ours: values of the other tool and of fidtool.
        allowed: largest relative difference allowed.
    """

    what: str
    peer: str
    theirs: float
    ours: float
    allowed: float

    @property
    def difference(self) -> float:
        """Relative difference; 0 if both values are 0."""
        return abs(self.ours - self.theirs) / (abs(self.theirs) or 1.0)


@dataclass(frozen=True)
class Settings:
    """Settings of the metrics.

    Attributes:
        subsets, size: number and size of KID's subsets.
        classifier: weights of the Inception Score's classifier, shape (1008, 2048).
    """

    subsets: int
    size: int
    classifier: NDArray[np.float32]


class Ours:
    """fidtool's statistics of the two sets. Each set goes through the network once per protocol."""

    def __init__(self, real: str, fake: str) -> None:
        self.paths = real, fake
        self._known: dict[str, list[fidtool.Statistics]] = {}

    def statistics(self, protocol: ProtocolName) -> list[fidtool.Statistics]:
        """Return the statistics of both sets, with per-image features and the spatial features of
        sFID.
        """
        if protocol not in self._known:
            found = [
                fidtool.compute_statistics(path, protocol=protocol, metrics="kid,sfid")
                for path in self.paths
            ]
            self._known[protocol] = [each for each in found if each is not None]
        return self._known[protocol]

    def fid(self, protocol: ProtocolName, layer: str = FEATURES) -> float:
        """Return the Fréchet distance between the two sets in a layer."""
        (real, count1), (fake, count2) = [
            (each.layers[layer], each.count) for each in self.statistics(protocol)
        ]
        return fidtool.frechet_distance(
            real.mu, real.sigma, fake.mu, fake.sigma, count1=count1, count2=count2
        )

    def features(self, protocol: ProtocolName) -> list[NDArray[np.float32]]:
        """Return the features of both sets, in the order of the sorted file names."""
        ordered = []
        for each in self.statistics(protocol):
            assert each.features is not None
            rows = np.empty_like(each.features)
            rows[canonical_order(len(rows))] = each.features
            ordered.append(rows)
        return ordered

    def kid(self, protocol: ProtocolName, draws: Draws) -> float:
        """Return KID on the given subsets."""
        real, fake = self.features(protocol)
        return kid(real, fake, FeatureSettings(INCEPTION_FEATURE_STEP), draws=draws)[0]

    def prdc(self, protocol: ProtocolName, k: int, ties: Ties) -> dict[str, float]:
        """Return precision, recall, density and coverage by name."""
        (real, fake), step = self.features(protocol), INCEPTION_FEATURE_STEP
        return our_prdc(real, fake, FeatureSettings(step), k=k, ties=ties)[0]


def _pytorch_fid(ours: Ours, settings: Settings) -> Rows:
    theirs, real, fake = PytorchFid().fid(*ours.paths)
    yield Row(
        "FID, `pytorch-fid`", "pytorch-fid 0.3.0", theirs, ours.fid("pytorch-fid"), FID_ALLOWED
    )
    k = min(5, settings.size)
    mine = ours.prdc("pytorch-fid", k, "strict")
    theirs, draws = CleanFid.kid(real, fake, settings.subsets, settings.size)
    what = f"KID, `pytorch-fid`, {settings.subsets} x {settings.size}"
    name = "clean-fid 0.1.35 on pytorch-fid's features"
    yield Row(what, name, theirs, ours.kid("pytorch-fid", draws), KID_ALLOWED)
    for metric, theirs in prdc(real, fake, k).items():
        yield Row(
            f"{metric}, k = {k}, strict",
            "prdc 0.2 on pytorch-fid's features",
            theirs,
            mine[metric],
            EQUAL,
        )


def _clean_fid(ours: Ours, _: Settings) -> Rows:
    clean = CleanFid()
    theirs = clean.fid(*ours.paths, "legacy_pytorch")
    name = "clean-fid 0.1.35, `legacy_pytorch`"
    yield Row("FID, `pytorch-fid`", name, theirs, ours.fid("pytorch-fid"), FID_ALLOWED)
    yield Row(
        "FID, `clean`",
        "clean-fid 0.1.35, `clean`",
        clean.fid(*ours.paths, "clean"),
        ours.fid("clean"),
        FID_ALLOWED,
    )


def _torch_fidelity(ours: Ours, settings: Settings) -> Rows:
    peer, name = TorchFidelity(), "torch-fidelity 0.4.0"
    subsets, size = settings.subsets, settings.size
    features = ours.features("tensorflow")
    splits = largest_divisor(len(features[1]))
    found, extracted = peer.metrics(*ours.paths, subsets, size, splits)
    real, fake = extracted.real, extracted.fake
    yield Row(
        "FID, `tensorflow`",
        name,
        found["frechet_inception_distance"],
        ours.fid("tensorflow"),
        FID_ALLOWED,
    )
    distance = Torchmetrics.distance
    with_ddof_0 = f"{name}'s features, covariance by n"
    yield Row(
        "FID, `stylegan`",
        with_ddof_0,
        distance(real, fake, ddof=0),
        ours.fid("stylegan"),
        FID_ALLOWED,
    )
    spatial = ours.fid("tensorflow", SPATIAL)
    theirs = distance(extracted.real_spatial, extracted.fake_spatial)
    yield Row("sFID, `tensorflow`", f"{name}'s network", theirs, spatial, FID_ALLOWED)
    theirs, draws = peer.kid(real, fake, subsets, size)
    yield Row(f"KID, {subsets} x {size}", name, theirs, ours.kid("tensorflow", draws), KID_ALLOWED)
    shuffled = features[1][peer.permutation(len(fake))]
    score, *_ = inception_score(shuffled, settings.classifier, splits=splits)
    what = f"Inception Score, {splits} splits"
    yield Row(what, name, found["inception_score_mean"], score, IS_ALLOWED)
    mine, counted = ours.prdc("tensorflow", 3, "inclusive"), peer.precision_recall(real, fake)
    for metric in ("precision", "recall"):
        number = len(fake if metric == "precision" else real)
        theirs = round(counted[metric] * number) / number  # the count behind its float32
        yield Row(f"{metric}, k = 3, inclusive", name, theirs, mine[metric], EQUAL)


def _torchmetrics(ours: Ours, settings: Settings) -> Rows:
    peer, name = Torchmetrics(), "torchmetrics 1.9.0"
    subsets, size = settings.subsets, settings.size
    theirs, real, fake = peer.fid(*ours.paths, True)
    yield Row(
        "FID, `torchmetrics`",
        f"{name}, `antialias=True`",
        theirs,
        ours.fid("torchmetrics"),
        FID_ALLOWED,
    )
    theirs, *_ = peer.fid(*ours.paths, False)
    yield Row(
        "FID, `tensorflow`",
        f"{name}, `antialias=False`",
        theirs,
        ours.fid("tensorflow"),
        FID_ALLOWED,
    )
    theirs, draws = peer.kid(real, fake, sorted_files(ours.paths[0])[0], subsets, size)
    what = f"KID, `torchmetrics`, {subsets} x {size}"
    yield Row(what, name, theirs, ours.kid("torchmetrics", draws), KID_ALLOWED)
    features = ours.features("torchmetrics")[1]
    splits = largest_divisor(len(features))
    theirs, order = peer.inception_score(ours.paths[1], splits)
    score, *_ = inception_score(features[order], settings.classifier, splits=splits)
    yield Row(f"Inception Score, `torchmetrics`, {splits} splits", name, theirs, score, IS_ALLOWED)


def _networks(ours: Ours, _: Settings) -> Rows:
    with tempfile.TemporaryDirectory(prefix="fidtool-parity-") as folder:
        library = timm_vit(Path(folder))
        real, fake = (library.features(path) for path in ours.paths)
        found = fidtool.compute(*ours.paths, extractor=library.spec, weights=library.weights)
        (mine,) = found.results[0].metrics.values()
        name = "timm's transform and network, torchmetrics' distance"
        yield Row(
            f"FD, `{library.spec}`", name, Torchmetrics.distance(real, fake), mine, FID_ALLOWED
        )
        library = open_clip_vit(Path(folder))
        real, fake = (library.features(path) for path in ours.paths)
        network = f"{library.spec}@weights={library.weights}"
        found = fidtool.compute(*ours.paths, metrics=[fidtool.CMMD(extractor=network)])
        (mine,) = found.results[0].metrics.values()
        name = "clip-mmd 0.0.2 on open_clip's embeddings"
        yield Row(f"CMMD, `{library.spec}`", name, clip_mmd(real, fake), mine, FID_ALLOWED)


_PEERS = {
    "pytorch-fid": _pytorch_fid,
    "clean-fid": _clean_fid,
    "torch-fidelity": _torch_fidelity,
    "torchmetrics": _torchmetrics,
    "networks": _networks,
}


@click.command()
@click.argument("real", type=click.Path(exists=True, file_okay=False))
@click.argument("fake", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--peer",
    "peers",
    type=click.Choice(list(_PEERS)),
    multiple=True,
    help="Compare only with this tool. Repeatable.",
)
@click.option(
    "--in-span",
    is_flag=True,
    help="Compute the distances in the subspace that few images span. Much faster.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the rows as JSON.",
)
def main(
    real: str, fake: str, peers: tuple[str, ...], in_span: bool, json_file: Path | None
) -> None:
    """Compare fidtool with other tools on the images of two folders, with the same weights.

    Prints a table in Markdown, one row per protocol or metric. The exit status is 1 if a difference
    is larger than allowed.
    """
    rows = []
    # On a busy machine, two threads that wait for each other are ten times slower.
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):  # installed with scikit-learn, which prdc needs
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)  # the threads of NumPy and SciPy, for the same reason
    with (
        tempfile.TemporaryDirectory(prefix="fidtool-parity-") as home,
        in_their_span() if in_span else contextlib.nullcontext(),
    ):
        os.environ["TORCH_HOME"] = home
        state = make_torch_home(Path(home))
        click.echo(
            "| metric | other tool | its value | fidtool's value | relative difference "
            "|\n|---|---|---|---|---|"
        )
        settings = Settings(
            10,
            max(2, min(len(sorted_files(path)) for path in (real, fake)) // 2),
            state["fc.weight"].numpy(),
        )
        ours = Ours(real, fake)
        comparisons = itertools.chain.from_iterable(
            _PEERS[peer](ours, settings) for peer in peers or _PEERS
        )
        while True:
            with quiet():
                row = next(comparisons, None)
            if row is None:
                break
            rows.append(row)
            numbers = f"{row.theirs:.9g} | {row.ours:.9g} | {row.difference:.1e}"
            click.echo(f"| {row.what} | {row.peer} | {numbers.replace('0.0e+00', '0')} |")
    if json_file is not None:
        json_file.write_text(
            json.dumps([{**asdict(row), "difference": row.difference} for row in rows], indent=2)
        )
    far = [row for row in rows if row.difference > row.allowed]
    for row in far:
        click.echo(
            f"FAR: {row.what} ({row.peer}) differs by {row.difference:.1e}, more than the allowed "
            f"{row.allowed:g}",
            err=True,
        )
    sys.exit(1 if far else 0)
