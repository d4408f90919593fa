"""Other tools' own code, from PyPI, on two folders of images. They find their "downloads" below
TORCH_HOME.

Each method runs a tool as its users do, or runs a part of it on features that the tool itself
extracted. The latter is needed where a tool draws random subsets: the comparison with fidtool needs
the same subsets. Extracted features are stored, so that no image goes through a network twice.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from bench.peers import pytorch_fid_state, write_weights
from fidtool.features.models.inception import load_weights
from fidtool.sources.listing import list_folder

Features = NDArray[np.float64]
Draws = list[tuple[NDArray[np.int64], NDArray[np.int64]]]

CLASSES = 1008
_CPU = torch.device("cpu")


def sorted_files(folder: str) -> list[str]:
    """Return the images of a folder in the order in which all tools read them."""
    listed = list_folder(folder)
    return [listed.file(index) for index in range(len(listed))]


def make_torch_home(folder: Path) -> dict[str, torch.Tensor]:
    """Write Inception's weights to where the tools' loaders look; a missing classifier gets random
    weights.

    Returns:
        The state dict that the tools load.
    """
    state = dict(load_weights(None, print).state)
    generator = torch.Generator().manual_seed(0)
    state.setdefault("fc.weight", torch.randn(CLASSES, 2048, generator=generator) / 10)
    state.setdefault("fc.bias", torch.randn(CLASSES, generator=generator))
    complete = pytorch_fid_state(state)
    write_weights(complete, folder)
    return complete


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output, warnings and progress bars of the tools."""
    nowhere = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        warnings.simplefilter("ignore")
        yield


def _pixels(file: str) -> torch.Tensor:
    """Return a uint8 tensor of shape (1, 3, height, width)."""
    return torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1)[None]


class PytorchFid:
    """pytorch-fid 0.3.0."""

    def fid(self, real: str, fake: str) -> tuple[float, Features, Features]:
        """Return its FID, and the features of both sets that its ``get_activations`` returned."""
        from pytorch_fid import fid_score

        extract = fid_score.get_activations
        found: list[Features] = []

        def extracted(*arguments: Any) -> Features:
            found.append(extract(*arguments))
            return found[-1]

        with mock.patch.object(fid_score, "get_activations", extracted):
            value = float(
                fid_score.calculate_fid_given_paths([real, fake], 1, "cpu", 2048, num_workers=0)
            )
        of_real, of_fake = found
        return value, of_real, of_fake

    def network(self) -> Any:
        """Return its network, without its resize and scaling."""
        from pytorch_fid.inception import InceptionV3

        return InceptionV3([3], resize_input=False, normalize_input=False).eval()


class CleanFid:
    """clean-fid 0.1.35. Its network needs a download: pytorch-fid's network gets the output of
    clean-fid's resize.
    """

    def __init__(self) -> None:
        network = PytorchFid().network()

        def extract(batch: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                features: torch.Tensor = (
                    network((batch.to(_CPU) - 128) / 128)[0].squeeze(3).squeeze(2)
                )
                return features

        self._extract = extract

    def fid(self, real: str, fake: str, mode: str) -> float:
        """Return its FID in one of its modes."""
        from cleanfid import fid

        own = self._extract if mode == "clean" else None
        # Fmt: skip.
        return float(
            fid.compute_fid(
                real,
                fake,
                mode=mode,
                device=_CPU,
                num_workers=0,
                use_dataparallel=False,
                verbose=False,
                custom_feat_extractor=own,
                batch_size=8,
            )
        )

    @staticmethod
    def kid(real: Features, fake: Features, subsets: int, size: int) -> tuple[float, Draws]:
        """Return its ``kernel_distance``, and the subsets that it drew from NumPy's generator."""
        from cleanfid.fid import kernel_distance

        np.random.seed(7)
        value = float(kernel_distance(real, fake, num_subsets=subsets, max_subset_size=size))
        draws: Draws = []
        rng = np.random.RandomState(7)
        for _ in range(subsets):
            of_fake = rng.choice(len(fake), size, replace=False)
            draws.append((rng.choice(len(real), size, replace=False), of_fake))
        return value, draws


@dataclass(frozen=True)
class Extracted:
    """Features of both sets: pooled, and spatial (the first 7 channels of Mixed_6d's 1x1
    branch).
    """

    real: Features
    fake: Features
    real_spatial: Features
    fake_spatial: Features


class TorchFidelity:
    """torch-fidelity 0.4.0."""

    def metrics(
        self, real: str, fake: str, subsets: int, size: int, splits: int
    ) -> tuple[dict[str, float], Extracted]:
        """Return its ``calculate_metrics``, which takes the generated images first, and the
        features of its network.
        """
        from torch_fidelity import metrics

        create = metrics.create_feature_extractor
        pooled: list[torch.Tensor] = []
        maps: list[torch.Tensor] = []

        def watched(*arguments: Any, **settings: Any) -> Any:
            network = create(*arguments, **settings)
            place = network.features_list.index("2048")
            network.register_forward_hook(
                lambda module, inputs, output: pooled.append(output[place])
            )
            network.Mixed_6d.branch1x1.register_forward_hook(
                lambda module, inputs, output: maps.append(output)
            )
            return network

        with mock.patch.object(metrics, "create_feature_extractor", watched):
            # Fmt: skip.
            found: dict[str, float] = metrics.calculate_metrics(
                input1=fake,
                input2=real,
                fid=True,
                kid=True,
                isc=True,
                cuda=False,
                cache=False,
                verbose=False,
                batch_size=1,
                kid_subsets=subsets,
                kid_subset_size=size,
                isc_splits=splits,
            )
        flat = [each[:, :7].permute(0, 2, 3, 1).flatten(1) for each in maps]
        features, spatial = (torch.cat(each).double().numpy() for each in (pooled, flat))
        fakes = len(sorted_files(fake))
        assert len(features) == len(spatial) == fakes + len(sorted_files(real)), "each image once"
        return found, Extracted(
            features[fakes:], features[:fakes], spatial[fakes:], spatial[:fakes]
        )

    def kid(self, real: Features, fake: Features, subsets: int, size: int) -> tuple[float, Draws]:
        """Return its ``kid_features_to_metric`` in float64, and the subsets that its seed gives."""
        from torch_fidelity.metric_kid import kid_features_to_metric

        pair = torch.from_numpy(fake), torch.from_numpy(real)
        found = kid_features_to_metric(
            *pair, kid_subsets=subsets, kid_subset_size=size, verbose=False
        )
        rng = np.random.RandomState(2020)
        draws: Draws = []
        for _ in range(subsets):
            of_fake = rng.choice(len(fake), size, replace=False)
            draws.append((rng.choice(len(real), size, replace=False), of_fake))
        return float(found["kernel_inception_distance_mean"]), draws

    def precision_recall(self, real: Features, fake: Features) -> dict[str, float]:
        """Return its ``prc_features_to_metric`` with 3 neighbours. By default the tool uses VGG
        features for it.
        """
        from torch_fidelity.metric_prc import prc_features_to_metric

        found: dict[str, float] = prc_features_to_metric(
            torch.from_numpy(fake), torch.from_numpy(real), verbose=False
        )
        return found

    def permutation(self, count: int) -> NDArray[np.int64]:
        """Return the order in which its Inception Score shuffles the images."""
        return np.random.RandomState(2020).permutation(count)


class Torchmetrics:
    """torchmetrics 1.9.0."""

    @staticmethod
    def distance(real: Features, fake: Features, ddof: int = 1) -> float:
        """Return its Fréchet distance of feature vectors in float64. It needs no matrix square
        root.
        """
        from torchmetrics.image.fid import _compute_fid

        moments = [(x.mean(0), np.cov(x, rowvar=False, ddof=ddof)) for x in (real, fake)]
        return float(_compute_fid(*(torch.from_numpy(part) for pair in moments for part in pair)))

    def fid(
        self, real: str, fake: str, antialias: bool
    ) -> tuple[float, list[torch.Tensor], list[torch.Tensor]]:
        """Return its FID, and the features of each image of both sets."""
        from torchmetrics.image.fid import FrechetInceptionDistance

        metric: Any = FrechetInceptionDistance(2048, antialias=antialias)
        found: list[torch.Tensor] = []
        metric.inception.register_forward_hook(lambda module, inputs, output: found.append(output))
        for folder, is_real in ((real, True), (fake, False)):
            for file in sorted_files(folder):
                metric.update(_pixels(file), real=is_real)
        reals = len(sorted_files(real))
        return float(metric.compute()), found[:reals], found[reals:]

    def kid(
        self,
        real: Sequence[torch.Tensor],
        fake: Sequence[torch.Tensor],
        file: str,
        subsets: int,
        size: int,
    ) -> tuple[float, Draws]:
        """Return its KID in float64, and the subsets that it drew from torch's generator.

        Args:
            real, fake: features of each image that FrechetInceptionDistance extracted.
            file: the first real image, for the check that this metric extracts the same features.
            subsets, size: number and size of the subsets.
        """
        from torchmetrics.image.kid import KernelInceptionDistance

        metric: Any = KernelInceptionDistance(2048, subsets=subsets, subset_size=size)
        metric.update(_pixels(file), real=True)
        assert torch.equal(metric.real_features[0], real[0]), (
            "both metrics have the same network and preprocessing"
        )
        metric.real_features = [part.double() for part in real]
        metric.fake_features = [part.double() for part in fake]
        counts = [sum(map(len, part)) for part in (metric.real_features, metric.fake_features)]
        torch.manual_seed(7)
        value = float(metric.compute()[0])
        torch.manual_seed(7)
        draws = [
            tuple(torch.randperm(count)[:size].numpy() for count in counts) for _ in range(subsets)
        ]
        return value, draws  # type: ignore[return-value]

    def inception_score(self, fake: str, splits: int) -> tuple[float, NDArray[np.int64]]:
        """Return its Inception Score in float64, and the order in which it shuffled the images."""
        from torchmetrics.image.inception import InceptionScore

        metric = InceptionScore("logits_unbiased", splits=splits)
        files = sorted_files(fake)
        for file in files:
            metric.update(_pixels(file))
        metric.features = [part.double() for part in metric.features]
        torch.manual_seed(7)
        value = float(metric.compute()[0])
        torch.manual_seed(7)
        return value, torch.randperm(len(files)).numpy()


def prdc(real: Features, fake: Features, nearest_k: int) -> dict[str, float]:
    """Return precision, recall, density and coverage of prdc 0.2."""
    from prdc import compute_prdc

    return {
        name: float(value) for name, value in compute_prdc(real, fake, nearest_k=nearest_k).items()
    }


def largest_divisor(count: int, candidates: Sequence[int] = (10, 8, 5, 4, 3, 2, 1)) -> int:
    """Return a number of splits of equal length: torchmetrics cuts unequal splits differently from
    other tools.
    """
    return next(number for number in candidates if count % number == 0)
