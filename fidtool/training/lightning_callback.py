"""FID and other metrics as a Lightning callback: logs the same values on every rank, for ModelCheckpoint and others."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fidtool.api import compute_statistics
from fidtool.errors import InputError, brief, warn_program
from fidtool.features.network import Network
from fidtool.features.protocol import ProtocolName
from fidtool.seeds import sample_seed
from fidtool.settings import StatisticsSettings
from fidtool.sources.memory import evaluating
from fidtool.statistics.set_statistics import Statistics
from fidtool.training.feature_extractor import PathLike, chosen
from fidtool.training.group import ranks_of
from fidtool.training.inception_metrics import FrechetInceptionDistance
from fidtool.training.metric import ImageMetric

Generate = Callable[[int, int], torch.Tensor]
_PURPOSE = "FIDCallback's reference"


if TYPE_CHECKING:
    import lightning.pytorch
    import pytorch_lightning

    class Base(lightning.pytorch.Callback, pytorch_lightning.Callback):  # type: ignore[misc]
        """For type checkers, which accept it in the Trainer of either package."""
else:
    # From the package that the program has imported.
    for _package in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        with contextlib.suppress(ImportError):
            Base = importlib.import_module(_package).Callback
            break
    else:
        raise InputError("FIDCallback needs Lightning:", "pip install 'fidtool[lightning]'")


class FIDCallback(Base):
    """Computes the FID at the end of every k-th epoch and logs it on every rank.

    The samples are split into batches, each with its own seed, before the batches are distributed over the ranks, so
    the FID is the same at any number of ranks. It is computed before ModelCheckpoint and EarlyStopping read it: in the
    epoch's validation, or at the end of the training epoch if there is no validation. The model is in evaluation mode
    without gradients, and the random state of the training is restored afterwards.

    Args:
        generate: function ``generate(n, seed)``, or the name of such a method of the LightningModule, that generates
            ``n`` images with the current model. It returns a tensor of shape (n, 3, height, width), uint8 or floats in
            0..1. torch's generators are seeded before each call.
        reference: folder of real images, statistics file (.npz), or `fidtool.Statistics`.
        num_samples: number of images to generate, over all ranks.
        every_n_epochs: k; evaluates epochs k, 2k, 3k, … counted from 1, as in ModelCheckpoint, which needs the same k.
        seed: seed of the samples; every evaluation uses the same seeds.
        batch_size: number of images per call of ``generate``.
        name: name of the logged FID. In the names of other values, theirs replaces ``fid``: ``val_fid``, ``val_kid``.
        metrics: one or several classes of `fidtool.training`, or functions that create their objects, such as
            ``functools.partial(KernelInceptionDistance, subset_size=500)``. They share a network and the samples.
        feature: see `FrechetInceptionDistance`; None is the default of each metric.
        protocol, float_to_byte, weights, sync_timeout: see `FrechetInceptionDistance`.

    Attributes:
        fid: the last value; None before the first evaluation, or if it is not among the metrics.

    Raises:
        fidtool.InputError: if a setting is out of range.
    """

    def __init__(
        self,
        generate: Generate | str,
        reference: PathLike | Statistics,
        *,
        num_samples: int = 10_000,
        every_n_epochs: int = 1,
        seed: int = 0,
        batch_size: int = 64,
        name: str = "fid",
        metrics: Callable[..., ImageMetric[Any]] | Sequence[Callable[..., ImageMetric[Any]]] = FrechetInceptionDistance,
        feature: int | str | Network | nn.Module | None = None,
        protocol: ProtocolName | None = None,
        float_to_byte: str | None = None,
        weights: PathLike | None = None,
        sync_timeout: float = 600.0,
    ) -> None:
        super().__init__()
        # The metrics, which check some of these as well, are only made when training starts.
        StatisticsSettings(float_to_byte=float_to_byte, batch_size=batch_size)  # type: ignore[arg-type]
        self._network = chosen("inception" if feature is None else feature, protocol, weights)
        for what, value, least in (("num_samples", num_samples, 2), ("every_n_epochs", every_n_epochs, 1)):
            if value < least:
                raise InputError(f"{what} must be at least {least}, not {value}")
        if not isinstance(reference, (str, os.PathLike, Statistics)):
            problem = f"reference must be a folder, a statistics file or statistics, not {type(reference).__name__}:"
            raise InputError(problem, "pass fidtool.compute_statistics(images)")
        metrics = (metrics,) if isinstance(metrics, str) or callable(metrics) else tuple(metrics or ())
        for metric in metrics or (None,):
            other = isinstance(metric, type) and not issubclass(metric, ImageMetric)  # such as torchmetrics'
            if other or isinstance(metric, ImageMetric) or not callable(metric):
                problem = "metrics takes classes such as fidtool.training.KernelInceptionDistance"
                raise InputError(f"{problem}, not {brief(metric)}")
        self.generate, self.reference, self.name, self.metrics = generate, reference, name, metrics
        self.num_samples, self.every_n_epochs = num_samples, every_n_epochs
        self.seed, self.batch_size = seed, batch_size
        self._options: dict[str, Any] = {} if feature is None else {"feature": feature}
        self._options |= {"protocol": protocol, "float_to_byte": float_to_byte, "weights": weights}
        self._options |= {"sync_timeout": sync_timeout, "name": f"of FIDCallback {name!r}"}
        self.fid: float | None = None
        self._measured, self._measured_epoch = False, -1
        self._fingerprint: str | None = None
        self._metrics: list[ImageMetric[Any]] = []

    # Lightning's hooks.

    @property
    def state_key(self) -> str:
        """Key of this callback in checkpoints. Callbacks with different names can be used in one trainer."""
        return f"FIDCallback[{self.name}]"

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Prepares the reference statistics."""
        if isinstance(self.generate, str) and not callable(getattr(pl_module, self.generate, None)):
            raise InputError(f"{type(pl_module).__name__} has no method {self.generate!r}, the callback's generate")
        self._prepare(pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Discards the value of an earlier epoch or of another training."""
        self._measured = False

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Computes the FID before ModelCheckpoint and EarlyStopping read it, which is right after the validation."""
        fitting = trainer.state.fn == "fit"
        if not trainer.sanity_checking and (not fitting or self._due(trainer)):
            self._measure(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Computes the FID if the epoch had no validation."""
        if self._due(trainer) and not self._measured:
            self._measure(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Computes the FID in ``trainer.test``."""
        self._measure(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Returns the last value, its epoch and a fingerprint of the reference."""
        return {"fid": self.fid, "epoch": self._measured_epoch, "reference": self._fingerprint}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.fid, self._measured_epoch = state_dict["fid"], state_dict["epoch"]
        self._fingerprint = state_dict["reference"]

    # Measuring.

    def _due(self, trainer: Any) -> bool:
        return bool((trainer.current_epoch + 1) % self.every_n_epochs == 0)

    def _prepare(self, pl_module: Any) -> list[ImageMetric[Any]]:
        if self._metrics:
            return self._metrics
        real = self._statistics(pl_module)
        made = [metric(real_statistics=real, **self._options) for metric in self.metrics]
        logged = [number.name for metric in made for number in metric._metric.numbers]
        if again := {name for name in logged if logged.count(name) > 1}:
            problem = f"two metrics of FIDCallback would be logged as {', '.join(sorted(again))}:"
            raise InputError(problem, "pass each to a FIDCallback with its own name")
        for metric in made:
            if metric._least[0] > self.num_samples:
                needs = f"{metric._title} needs at least {metric._least[0]} images{metric._least[1]}:"
                raise InputError(needs, f"raise num_samples, which is {self.num_samples}", setting="num_samples")
        if self._fingerprint not in (None, made[0].reference_digest):
            warn_program(
                f"the {self.name} in the checkpoint was computed with a different reference, protocol, network or "
                "float_to_byte: values from before and after the checkpoint are not comparable"
            )
        self._metrics, self._fingerprint = made, made[0].reference_digest
        return made

    def _statistics(self, pl_module: Any) -> PathLike | Statistics:
        if isinstance(self.reference, Statistics) or not os.path.isdir(self.reference):
            return self.reference
        if isinstance(self._options.get("feature"), (Network, nn.Module)):
            raise InputError(
                "a folder as FIDCallback's reference needs a network that is specified by name:",
                "pass feature='FILE.py:NAME', or the statistics file that `fidtool stats` writes for the folder",
            )
        statistics = compute_statistics(
            self.reference,
            extractor=self._network,
            metrics="fid" if self.metrics == (FrechetInceptionDistance,) else "kid",  # with the features of each image
            device=str(pl_module.device),
        )
        ranks = ranks_of()
        ranks.exchange(_PURPOSE, {}, self._options["sync_timeout"], "every rank must run the trainer")
        with ranks.world(_PURPOSE) as world:
            found = world.broadcast(statistics)
        assert found is not None
        return found

    def _measure(self, trainer: Any, pl_module: Any) -> None:
        samples, metrics = self.num_samples, self._prepare(pl_module)
        if getattr(trainer, "fast_dev_run", 0):  # it only exercises the code, and its FID is meaningless
            samples = min(samples, 16)
            metrics = [metric for metric in metrics if metric._least[0] <= samples]
        for metric in metrics:
            metric.to(pl_module.device).reset()
        try:
            with evaluating(pl_module):
                self._fill(metrics, pl_module, samples)
        except Exception as error:
            for metric in metrics[:1]:  # whose value the other ranks compute first
                metric.abandon(f"{type(error).__name__}: {error}")
            raise
        self.fid, self._measured, self._measured_epoch = None, True, trainer.current_epoch
        for metric in metrics:
            values = metric._compute_by_name()
            metric.reset()
            for key, value in values.items():
                self.fid = float(value) if key == "fid" else self.fid
                name = self.name.replace("fid", key) if "fid" in self.name else f"{self.name}_{key}"
                # The value is the same on every rank, and so is its maximum over the ranks.
                settings = {"on_step": False, "on_epoch": True, "sync_dist": True, "reduce_fx": "max", "prog_bar": True}
                pl_module.log(self.name if key == "fid" else name, value, **settings)

    def _fill(self, metrics: list[ImageMetric[Any]], pl_module: Any, samples: int) -> None:
        ranks = ranks_of()
        generate: Generate = getattr(pl_module, self.generate) if isinstance(self.generate, str) else self.generate
        starts = range(0, samples, self.batch_size)
        for start in starts[ranks.group_rank :: ranks.size]:
            count, seed = min(self.batch_size, samples - start), sample_seed(self.seed, start)
            torch.manual_seed(seed)
            images = generate(count, seed)
            if not isinstance(images, torch.Tensor) or len(images) != count:
                got = f"{len(images)} images" if isinstance(images, torch.Tensor) else type(images).__name__
                raise InputError(f"generate({count}, …) must return a tensor of {count} images, not {got}")
            for metric in metrics:
                metric.normalize = images.is_floating_point()
                metric.update(images, real=False, index=range(start, start + count))
