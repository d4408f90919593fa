"""FID and other metrics as a Lightning callback: logs the same values on every rank, for
ModelCheckpoint and others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from fidtool.api import compute_statistics
from fidtool.distributed.seeds import sample_seed
from fidtool.errors import InputError, short_repr, summarize_error, warn_program
from fidtool.features.network import Network
from fidtool.features.protocol import ProtocolName
from fidtool.metrics.fid import FID
from fidtool.metrics.kid import KID
from fidtool.result.values import FeatureSource
from fidtool.settings.settings import StatisticsSettings
from fidtool.sources.memory import eval_mode
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.torch_internals import find_averaging_callback, swap_weights
from fidtool.training.feature_extractor import PathLike, choose_network, features_of_network
from fidtool.training.group import ranks_of
from fidtool.training.inception_metrics import FrechetInceptionDistance, ImageMetric
from fidtool.validation import Setting

Generate = Callable[[int, int], Tensor]
ModelWeights = Literal["averaged", "raw"]
_NUM_SAMPLES = Setting(10_000, least=2, name="num_samples", kind=int)
_EVERY_N_EPOCHS = Setting(1, least=1, name="every_n_epochs", kind=int)
_MODEL_WEIGHTS = Setting("averaged", choices=get_args(ModelWeights), name="model_weights", kind=str)
_PURPOSE = "FIDCallback's reference"
# The word in a name, such as that of ``val_fid`` and ``fid50k``, but not of ``confident``.
_FID = re.compile("(?<![A-Za-z0-9])fid(?![A-Za-z])")

if TYPE_CHECKING:
    import lightning.pytorch
    import pytorch_lightning
    from lightning.pytorch.utilities import rank_zero_info as _say_on_rank_zero

    class Base(lightning.pytorch.Callback, pytorch_lightning.Callback):  # type: ignore[misc]
        """For type checkers, which accept it in the Trainer of either package."""
else:
    _PACKAGES = ("lightning.pytorch", "pytorch_lightning")
    # From the package that the program has imported.
    for _package in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ImportError):
            Base = importlib.import_module(_package).Callback
            _say_on_rank_zero = importlib.import_module(f"{_package}.utilities").rank_zero_info
            break
    else:
        raise InputError("FIDCallback needs Lightning:", "pip install 'fidtool[lightning]'")


class FIDCallback(Base):
    """Compute the FID at the end of every k-th epoch and log it on every rank.

    The samples are split into batches, each with its own seed, before the batches are distributed
    over the ranks, so the FID is the same at any number of ranks. It is logged before
    ModelCheckpoint and EarlyStopping read it: in the epoch's validation, or at the end of the
    training epoch if there is no validation. The model is in evaluation mode without gradients, and
    the random state of the training is restored afterwards.

    The samples are generated at the first batch of the validation, so that the place of this
    callback among other callbacks has no effect: the weights are those that the validation uses,
    even if another callback replaces them for the validation.

    Args:
        generate: function ``generate(n, seed)``, or the name of such a method of the
            LightningModule, that generates ``n`` images with the current model. It returns a tensor
            of shape (n, 3, height, width), uint8 or floats in 0..1. torch's generators are seeded
            before each call.
        reference: folder of real images, statistics file (.npz), or `fidtool.Statistics`.
        num_samples: number of images to generate, over all ranks.
        every_n_epochs: number k. The epochs k, 2k, 3k, … are evaluated, counted from 1, as in
            ModelCheckpoint, which needs the same k.
        seed: seed of the samples; every evaluation uses the same seeds.
        batch_size: number of images per call of ``generate``.
        name: name of the logged Fréchet distance. For other values, their name replaces the word
            ``fid`` in it, as in ``val_fid`` and ``val_kid``, or is appended if there is no such
            word. None logs the names in the results of ``fidtool compute``, such as ``fid``,
            ``kid_std``, and ``fid_64`` for the feature 64.
        metrics: one or several classes of `fidtool.training`, or functions that create such
            metrics, for example ``functools.partial(KernelInceptionDistance, subset_size=500)``.
            The metrics share a network and the samples.
        model_weights: with Lightning's ``WeightAveraging`` or ``EMAWeightAveraging``, ``averaged``
            generates with the averaged weights, which ModelCheckpoint saves as ``state_dict``, and
            ``raw`` generates with the trained weights. Without such a callback, both are the same.
        feature: see `FrechetInceptionDistance`; None is the default of each metric.
        protocol, float_to_byte, weights, feature_step, sync_timeout: see
            `FrechetInceptionDistance`.

    Attributes:
        frechet_distance: the last Fréchet distance, for any network; None before the first
            evaluation, or if it is not among the metrics.

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
        name: str | None = None,
        metrics: Callable[..., ImageMetric[Any]]
        | Sequence[Callable[..., ImageMetric[Any]]] = FrechetInceptionDistance,
        model_weights: ModelWeights = "averaged",
        feature: int | str | Network | nn.Module | None = None,
        protocol: ProtocolName | None = None,
        float_to_byte: str | None = None,
        weights: PathLike | None = None,
        feature_step: int | None = None,
        sync_timeout: float = 600.0,
    ) -> None:
        super().__init__()
        # The metrics, which check some of these as well, are only made when training starts.
        StatisticsSettings(float_to_byte=float_to_byte, batch_size=batch_size)  # type: ignore[arg-type]
        if weights in get_args(ModelWeights):
            raise InputError(
                "weights must be a file for the network that computes the features, not "
                f"{weights!r}:",
                f"pass model_weights={weights!r} for the model's weights",
                setting="weights",
            )
        if not isinstance(reference, (str, os.PathLike, Statistics)):
            raise InputError(
                "reference must be a folder, a statistics file or statistics, not "
                f"{type(reference).__name__}:",
                "pass fidtool.compute_statistics(images)",
            )
        self._network = choose_network(
            "inception" if feature is None else feature, protocol, weights
        )
        self.generate = generate
        self.reference = reference
        self.num_samples = _NUM_SAMPLES.check(num_samples)
        self.every_n_epochs = _EVERY_N_EPOCHS.check(every_n_epochs)
        self.seed = seed
        self.batch_size = batch_size
        self.name = name
        self.metrics = _check_metric_classes(metrics)
        self.model_weights: ModelWeights = _MODEL_WEIGHTS.check(model_weights)
        self._called = name or FID.name
        options = {
            "feature": feature,
            "protocol": protocol,
            "float_to_byte": float_to_byte,
            "weights": weights,
            "feature_step": feature_step,
            "sync_timeout": sync_timeout,
            "name": f"of FIDCallback {self._called!r}",
        }
        # None would replace what a functools.partial in `metrics` passes.
        self._options: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        self.frechet_distance: float | None = None
        self._values: dict[str, Tensor] = {}
        self._measured = False
        self._measured_epoch = -1
        self._fingerprint: str | None = None
        self._measures = ""
        self._metrics: list[ImageMetric[Any]] = []

    @property
    def fid(self) -> float | None:
        """The last FID; None if there is none, or the features are not Inception's 2048."""
        if features_of_network(self._network, self._network.extractor) != FeatureSource():
            return None
        return self.frechet_distance

    # Lightning's hooks.

    @property
    def state_key(self) -> str:
        """Key of this callback in checkpoints. Callbacks with different names can be used in one
        trainer.
        """
        return f"FIDCallback[{self._called}]"

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Prepare the reference statistics."""
        if isinstance(self.generate, str) and not callable(getattr(pl_module, self.generate, None)):
            raise InputError(
                f"{type(pl_module).__name__} has no method {self.generate!r}, which FIDCallback "
                "needs as generate"
            )
        averaging = find_averaging_callback(trainer.callbacks)
        if averaging is not None:
            kind = type(averaging).__name__
            self._measures = f"averaged weights of {kind}"
            if self.model_weights == "raw":
                self._measures = f"trained weights, not the averages of {kind}"
            _say_on_rank_zero(f"{self.state_key} measures the {self._measures}")
        self._prepare(pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Discard the value of an earlier epoch or of another training."""
        self._measured = False

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Compute the FID: every callback has replaced the weights that it replaces, and none has
        restored them.
        """
        if batch_idx == dataloader_idx == 0 and self._is_due_in_validation(trainer):
            self._measure(trainer, pl_module, "averaged")

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the FID before ModelCheckpoint and EarlyStopping read it, which is right after the
        validation.
        """
        if not self._is_due_in_validation(trainer):
            return
        if not self._values:  # a rank without a batch
            current: ModelWeights = "averaged"
            earlier = takewhile(lambda callback: callback is not self, trainer.callbacks)
            # An averaging callback that comes first has swapped back.
            if find_averaging_callback([*earlier]) is not None:
                current = "raw"
            self._measure(trainer, pl_module, current)
        self._log(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log the FID if the epoch had no validation."""
        if not self._is_due(trainer) or self._measured:
            return
        averaging = find_averaging_callback(trainer.callbacks)
        if averaging is not None:
            # It updates the average, only once an epoch.
            averaging.on_train_epoch_end(trainer, pl_module)
        self._measure(trainer, pl_module, "raw")
        self._log(pl_module)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log the FID in ``trainer.test``."""
        self._measure(trainer, pl_module, self.model_weights)
        self._log(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return the last value, its epoch and a fingerprint of the reference."""
        return {
            "fid": self.frechet_distance,
            "epoch": self._measured_epoch,
            "reference": self._fingerprint,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.frechet_distance = state_dict["fid"]
        self._measured_epoch = state_dict["epoch"]
        self._fingerprint = state_dict["reference"]

    # Measuring.

    def _is_due(self, trainer: Any) -> bool:
        return bool((trainer.current_epoch + 1) % self.every_n_epochs == 0)

    def _is_due_in_validation(self, trainer: Any) -> bool:
        return not trainer.sanity_checking and (trainer.state.fn != "fit" or self._is_due(trainer))

    def _prepare(self, pl_module: Any) -> list[ImageMetric[Any]]:
        if self._metrics:
            return self._metrics
        real = self._statistics(pl_module)
        metrics = [metric(real_statistics=real, **self._options) for metric in self.metrics]
        names = set[str]()
        for metric in metrics:
            least, setting = metric._least
            if least > self.num_samples:
                raise InputError(
                    f"{metric._title} needs at least {least} images{setting}:",
                    f"raise num_samples, which is {self.num_samples}",
                    setting="num_samples",
                )
            own = {self._logged_name(metric, number.name) for number in metric._metric.numbers}
            if again := names & own:
                raise InputError(
                    f"two metrics of FIDCallback would be logged as {', '.join(sorted(again))}:",
                    "pass each to a FIDCallback with its own name",
                )
            names |= own
        fingerprint = f"{metrics[0].reference_digest} {self._measures}".rstrip()
        if self._fingerprint not in (None, fingerprint):
            warn_program(
                f"the {self._called} in the checkpoint was computed with a different reference, "
                "protocol, network, float_to_byte or model_weights: values from before and after "
                "the checkpoint are not comparable"
            )
        self._fingerprint = fingerprint
        self._metrics = metrics
        return metrics

    def _statistics(self, pl_module: Any) -> PathLike | Statistics:
        if isinstance(self.reference, Statistics) or not os.path.isdir(self.reference):
            return self.reference
        if isinstance(self._options.get("feature"), (Network, nn.Module)):
            raise InputError(
                "a folder as FIDCallback's reference needs a network that is specified by name:",
                "pass feature='FILE.py:NAME', or the statistics file that `fidtool stats` writes "
                "for the folder",
            )
        # KID needs the features of each image.
        only_fid = self.metrics == (FrechetInceptionDistance,)
        statistics = compute_statistics(
            self.reference,
            extractor=self._network,
            metrics=[FID() if only_fid else KID()],
            device=str(pl_module.device),
        )
        ranks = ranks_of()
        ranks.exchange(
            _PURPOSE, {}, self._options["sync_timeout"], "every rank must run the trainer"
        )
        with ranks.world(_PURPOSE) as world:
            return world.broadcast(statistics)

    def _measure(self, trainer: Any, pl_module: Any, current: ModelWeights) -> None:
        """Compute the values. The model has the ``current`` weights; a callback has the others."""
        samples = self.num_samples
        metrics = self._prepare(pl_module)
        if trainer.fast_dev_run:  # it only exercises the code, and its FID is meaningless
            samples = min(samples, 16)
            metrics = [metric for metric in metrics if metric._least[0] <= samples]
        for metric in metrics:
            metric.to(pl_module.device).reset()
        averaging = (
            find_averaging_callback(trainer.callbacks) if current != self.model_weights else None
        )
        try:
            with swap_weights(averaging, pl_module), eval_mode(pl_module):
                self._fill(metrics, pl_module, samples)
        except Exception as error:
            for metric in metrics[:1]:  # whose value the other ranks compute first
                metric.abandon(summarize_error(error, None))
            raise
        self.frechet_distance = None
        self._measured = True
        self._measured_epoch = trainer.current_epoch
        self._values = {}
        for metric in metrics:
            for name, value in metric._compute_by_name().items():
                self._values[self._logged_name(metric, name)] = value
                if isinstance(metric, FrechetInceptionDistance):
                    self.frechet_distance = float(value)
            metric.reset()

    def _logged_name(self, metric: ImageMetric[Any], name: str) -> str:
        if self.name is None:
            return metric._key(name)
        if isinstance(metric, FrechetInceptionDistance):
            return self.name
        replaced, words = _FID.subn(name, self.name, count=1)
        return replaced if words else f"{self.name}_{name}"

    def _log(self, pl_module: Any) -> None:
        # The values are the same on every rank, and so are their maxima over the ranks.
        pl_module.log_dict(
            self._values,
            on_step=False,
            on_epoch=True,
            sync_dist=True,
            reduce_fx="max",
            prog_bar=True,
        )
        self._values = {}

    def _fill(self, metrics: list[ImageMetric[Any]], pl_module: Any, samples: int) -> None:
        generate = self.generate
        if isinstance(generate, str):
            generate = getattr(pl_module, generate)
        ranks = ranks_of()
        starts = range(0, samples, self.batch_size)
        for start in starts[ranks.group_rank :: ranks.size]:
            numbers = range(start, min(start + self.batch_size, samples))
            seed = sample_seed(self.seed, start)
            torch.manual_seed(seed)
            images = generate(len(numbers), seed)
            returned = type(images).__name__
            if isinstance(images, Tensor):
                returned = f"{len(images)} images"
            wanted = f"{len(numbers)} images"
            if returned != wanted:
                raise InputError(
                    f"generate({len(numbers)}, …) must return a tensor of {wanted}, not {returned}"
                )
            for metric in metrics:
                metric.normalize = images.is_floating_point()
                metric.update(images, real=False, index=numbers)


def _check_metric_classes(metrics: Any) -> tuple[Callable[..., ImageMetric[Any]], ...]:
    """Validate ``metrics`` of `FIDCallback`."""
    if isinstance(metrics, str) or callable(metrics):
        metrics = [metrics]
    classes = tuple(metrics or [None])
    for metric in classes:
        # Such as torchmetrics'.
        foreign = isinstance(metric, type) and not issubclass(metric, ImageMetric)
        if foreign or isinstance(metric, nn.Module) or not callable(metric):
            raise InputError(
                "metrics takes classes such as fidtool.training.KernelInceptionDistance, not "
                f"{short_repr(metric)}"
            )
    return classes
