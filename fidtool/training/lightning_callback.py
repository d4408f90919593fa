"""FID in a Lightning training: the same value on every rank, where ModelCheckpoint and EarlyStopping look for it."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from fidtool.api import compute_statistics
from fidtool.errors import InputError, warn_program
from fidtool.features.network import Network
from fidtool.seeds import sample_seed
from fidtool.statistics.statistics_file import Statistics
from fidtool.training.feature_extractor import PathLike
from fidtool.training.group import ranks_of
from fidtool.training.metric import FrechetInceptionDistance

Generate = Callable[[int, int], torch.Tensor]
_PURPOSE = "FIDCallback's reference"
_FAST_SAMPLES = 16
"""Images that a fast_dev_run generates: it tries everything out, and its numbers do not count."""


def _callback_class() -> type:
    """Lightning's ``Callback``, under the name by which the program imports it."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).Callback  # type: ignore[no-any-return]
    raise InputError("FIDCallback needs Lightning:", "pip install 'fidtool[lightning]'")


if TYPE_CHECKING:
    Base = object
else:
    Base = _callback_class()


class FIDCallback(Base):
    """Computes FID at the end of every k-th epoch and logs it on every rank.

    The samples are cut into batches before they are dealt to the ranks, each with a seed of its own: the FID is the
    same at any number of ranks. It is computed before ModelCheckpoint and EarlyStopping look, in the validation of the
    epoch, else at the end of its training. The model is in evaluation mode meanwhile, without gradients, and the
    training's random numbers are not touched.

    Args:
        generate: gives ``n`` images for a ``seed``, by the model as it is: a function ``generate(n, seed)``, or the
            name of such a method of the LightningModule. It returns a tensor of shape (n, 3, height, width), uint8 or
            floats in 0..1; torch's generators are seeded when it is called.
        reference: folder of real images, statistics file (.npz), or `fidtool.Statistics`.
        num_samples: images to generate, over all ranks.
        every_n_epochs: k; epochs k, 2k, 3k, … counted from 1, as ModelCheckpoint has it.
        seed: of all samples; each evaluation uses the same ones.
        batch_size: images that ``generate`` is asked for at once.
        name: of the logged value.
        feature, protocol, weights, sync_timeout: see `FrechetInceptionDistance`; ``feature`` may also be
            ``path/to/file.py:factory``.

    Attributes:
        fid: the last value; None before the first.

    Raises:
        fidtool.InputError: a setting out of range, or a ModelCheckpoint or EarlyStopping that looks at other epochs.
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
        feature: int | str | Network = 2048,
        protocol: str | None = None,
        weights: PathLike | None = None,
        sync_timeout: float = 600.0,
    ) -> None:
        super().__init__()
        for what, value, least in (("num_samples", num_samples, 2), ("every_n_epochs", every_n_epochs, 1)):
            if value < least:
                raise InputError(f"{what} must be at least {least}, not {value}")
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}")
        self.generate, self.reference, self.name = generate, reference, name
        self.num_samples, self.every_n_epochs = num_samples, every_n_epochs
        self.seed, self.batch_size, self.sync_timeout = seed, batch_size, sync_timeout
        self._feature, self._protocol, self._weights = feature, protocol, weights
        self.fid: float | None = None
        self._measured, self._measured_epoch = False, -1
        self._fingerprint: str | None = None
        self._metric: FrechetInceptionDistance | None = None

    # Lightning's hooks.

    @property
    def state_key(self) -> str:
        """Under which the checkpoint keeps it: two callbacks of different names can stand in one trainer."""
        return f"FIDCallback[{self.name}]"

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuses callbacks that would look where there is no value, and measures the reference."""
        for callback in trainer.callbacks:
            if getattr(callback, "monitor", None) == self.name:
                self._check_schedule(callback)
        if isinstance(self.generate, str) and not callable(getattr(pl_module, self.generate, None)):
            raise InputError(f"{type(pl_module).__name__} has no method {self.generate!r} to generate with")
        self._prepare(pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """What was measured in an earlier epoch, or in another training, does not count for this one."""
        self._measured = False

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Where a validation runs, ModelCheckpoint and EarlyStopping look right after it."""
        fitting = trainer.state.fn == "fit"
        if not trainer.sanity_checking and (not fitting or self._due(trainer)):
            self._measure(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Without one in this epoch, they look here."""
        if self._due(trainer) and not self._measured:
            self._measure(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """``trainer.test`` gives the FID too."""
        self._measure(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: the last value and what it was measured against."""
        return {"fid": self.fid, "epoch": self._measured_epoch, "reference": self._fingerprint}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint."""
        self.fid, self._measured_epoch = state_dict["fid"], state_dict["epoch"]
        self._fingerprint = state_dict["reference"]

    # Measuring.

    def _due(self, trainer: Any) -> bool:
        return bool((trainer.current_epoch + 1) % self.every_n_epochs == 0)

    def _check_schedule(self, callback: Any) -> None:
        kind, every = type(callback).__name__, self.every_n_epochs
        looks = getattr(callback, "every_n_epochs", None)
        if looks is not None and looks % every:
            raise InputError(
                f"{kind}(monitor={self.name!r}) looks every {looks} epochs and the FID comes every {every}: what it "
                "saved would not be what was measured",
                f"pass every_n_epochs={every} to {kind} too",
            )
        steps = getattr(callback, "_every_n_train_steps", 0) or getattr(callback, "_train_time_interval", None)
        if steps:
            raise InputError(
                f"{kind}(monitor={self.name!r}) saves between the ends of epochs, where the FID is that of an earlier "
                "model:",
                f"pass every_n_epochs={every} in the place of every_n_train_steps or train_time_interval",
            )
        if every > 1 and getattr(callback, "strict", False):
            raise InputError(
                f"{kind}(monitor={self.name!r}) looks at every epoch and the FID comes every {every}:",
                f"pass strict=False to {kind}, whose patience counts epochs, or every_n_epochs=1 to FIDCallback",
            )
        if every > 1 and getattr(callback, "patience", every) < every:
            raise InputError(
                f"{kind}(monitor={self.name!r}) counts every epoch in which the FID is not better, and the FID comes "
                f"every {every}: a patience of {callback.patience} would end the training between two of them",
                f"give {every} for each evaluation that may be worse",
            )

    def _prepare(self, pl_module: Any) -> FrechetInceptionDistance:
        if self._metric is None:
            reference = self._statistics(pl_module)
            self._metric = FrechetInceptionDistance(
                self._feature,
                protocol=self._protocol,
                weights=self._weights,
                real_statistics=reference,
                sync_timeout=self.sync_timeout,
                name=f"of FIDCallback {self.name!r}",
            )
            fingerprint = self._metric.reference_digest
            if self._fingerprint not in (None, fingerprint):
                warn_program(
                    f"the checkpoint's {self.name} was measured against another reference, protocol or network: values "
                    "before and after it cannot be compared"
                )
            self._fingerprint = fingerprint
        return self._metric

    def _statistics(self, pl_module: Any) -> PathLike | Statistics:
        """The reference's statistics, the same on every rank."""
        if isinstance(self.reference, Statistics) or not os.path.isdir(self.reference):
            return self.reference
        if isinstance(self._feature, Network):
            raise InputError(
                "a folder as FIDCallback's reference needs a network that can be named:",
                "pass feature='file.py:factory', or the statistics that `fidtool stats` makes of the folder",
            )
        named = isinstance(self._feature, str)
        statistics = compute_statistics(
            self.reference,
            extractor=str(self._feature) if named else "inception",
            dims=None if named else int(self._feature),
            protocol=self._protocol,
            weights=self._weights,
            device=str(pl_module.device),
        )
        ranks = ranks_of()
        ranks.exchange(_PURPOSE, {}, self.sync_timeout, "every rank must run the trainer")
        with ranks.world(_PURPOSE) as world:
            found = world.broadcast(statistics)
        assert found is not None
        return found

    def _measure(self, trainer: Any, pl_module: Any) -> None:
        metric = self._prepare(pl_module).to(pl_module.device)
        metric.reset()
        try:
            with _evaluating(pl_module):
                few = min(self.num_samples, _FAST_SAMPLES)
                self._fill(metric, pl_module, few if getattr(trainer, "fast_dev_run", 0) else self.num_samples)
        except Exception as error:
            metric.abandon(f"{type(error).__name__}: {error}")
            raise
        value = metric.compute()
        metric.reset()
        self.fid, self._measured, self._measured_epoch = float(value), True, trainer.current_epoch
        # The value is the same on every rank, and so the maximum over them.
        pl_module.log(self.name, value, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max", prog_bar=True)

    def _fill(self, metric: FrechetInceptionDistance, pl_module: Any, samples: int) -> None:
        """Generates this rank's part of so many samples."""
        ranks = ranks_of()
        generate: Generate = getattr(pl_module, self.generate) if isinstance(self.generate, str) else self.generate
        starts = range(0, samples, self.batch_size)
        for start in starts[ranks.group_rank :: ranks.size]:
            count, seed = min(self.batch_size, samples - start), sample_seed(self.seed, start)
            torch.manual_seed(seed)
            images = generate(count, seed)
            if not isinstance(images, torch.Tensor) or len(images) != count:
                gave = f"{len(images)} images" if isinstance(images, torch.Tensor) else type(images).__name__
                raise InputError(f"generate({count}, …) must give a tensor of {count} images, and gave {gave}")
            metric.normalize = images.is_floating_point()
            metric.update(images, real=False)


@contextlib.contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, and a random state that is put back afterwards, as the modes are."""
    modes = {child: child.training for child in module.modules()}
    device = next(iter(module.parameters()), torch.zeros(0)).device
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for child, mode in modes.items():
            child.training = mode
