"""The state of a metric: exact sums over real and generated images, merged over ranks, saved and restored."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fidtool.diagnose.warnings import set_warnings
from fidtool.distances.frechet import frechet_distance
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank
from fidtool.features.definition import Definition
from fidtool.features.extractor import Extractor
from fidtool.features.torch_state import repeatable
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.statistics_file import Statistics, read_statistics
from fidtool.training.checks import image_hashes, shared_images_warning
from fidtool.training.feature_extractor import PathLike, SharedExtractor, device_here

_FEWEST = 2
_SHARE, _DEFINITION = "share", "definition"
ALL = -1
"""Instead of a rank: the images are those of all ranks."""
_SIDES = {"real": "real images", "fake": "fakes"}
_TOTALS = ("count", "largest", "bits", "sum", "low", "high", "marks")
"""What `ImageSums.totals` may hold."""
STATE_NAMES = {_SHARE, _DEFINITION, *(f"{side}_{name}" for side in _SIDES for name in _TOTALS)}
"""What `MetricSums.state` may hold."""

State = dict[str, torch.Tensor]


class ImageSums:
    """What a metric has seen so far of the real or of the generated images: exact sums, and a batch that is not full.

    The network always sees batches of one size, padded at the end: kernels are chosen by the batch's shape, so a
    feature has the same bits however the images came. Of generated images a hash is kept, so that ranks can compare
    them.

    Args:
        features: the network.
        side: ``real`` or ``fake``.
        batch_size: images in a forward pass; None is the device's default.
    """

    def __init__(self, features: SharedExtractor, side: str, batch_size: int | None) -> None:
        self._features, self._side, self._batch_size = features, side, batch_size
        self._device = torch.device("cpu")
        self.clear()

    def clear(self) -> None:
        """Forgets all images."""
        definition = self._features.definition
        device, setting = device_here(self._device).exact_sums, None if definition.standard else "feature_step"
        self._moments = ExactMoments(definition.dims, definition.feature_step, device, setting)
        self._waiting: list[torch.Tensor] = []
        self._hashes: list[torch.Tensor] = []

    @property
    def count(self) -> int:
        """Number of images so far."""
        return self._moments.count + len(self._waiting)

    def add(self, images: torch.Tensor) -> None:
        """Takes images in; full batches go through the network now. Where that fails, none of them was taken in.

        Args:
            images: uint8 tensor of shape (n, 3, height, width) on the device.

        Raises:
            RunError: the network failed, or a feature is not finite.
        """
        hashes = [image_hashes(images)] if self._side == "fake" else []
        new = images.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
        waiting = [*self._waiting, *new]
        extractor, batch_size = self._network()
        # As many batches as run side by side.
        at_once = batch_size * extractor.device.forward_threads
        ready = len(waiting) // at_once * at_once
        with self._explaining_refusal():
            if ready:
                self._extract(waiting[:ready], extractor, batch_size)
        self._waiting = waiting[ready:]
        self._hashes += hashes

    def flush(self) -> None:
        """Sends what waits through the network, the last batch filled up with black."""
        with self._explaining_refusal():
            if self._waiting:
                self._extract(self._waiting, *self._network())
                self._waiting = []
            self._moments.flush()

    def _network(self) -> tuple[Extractor, int]:
        """The network on its device, and the number of images in its batches."""
        extractor = self._features.extractor(self._device)
        return extractor, self._batch_size or extractor.device.default_batch_size

    def _extract(self, images: list[torch.Tensor], extractor: Extractor, batch_size: int) -> None:
        batches = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]

        def filled(batch: list[torch.Tensor]) -> list[torch.Tensor]:
            return batch + [torch.zeros_like(batch[0])] * (batch_size - len(batch))

        with repeatable():
            if extractor.device.forward_threads == 1:
                # In the caller's thread, and so on the stream of a GPU that it works on.
                with torch.amp.autocast(extractor.device.torch_device.type, enabled=False):
                    pairs = [(batch, extractor.features(filled(batch))) for batch in batches]
            else:
                pairs = [
                    (batch, features)
                    for batch, features in extractor.run(iter(batches), filled, lambda: False)
                    if features is not None
                ]
        for batch, features in pairs:
            self._moments.add(features[: len(batch)])

    @contextlib.contextmanager
    def _explaining_refusal(self) -> Iterator[None]:
        """A feature that was refused is missing from the sums for good."""
        try:
            yield
        except RunError as error:
            if not self._moments.refused:
                raise
            how = " with reset_real_features=True" if self._side == "real" else ""
            missing = f"Some {_SIDES[self._side]} are missing since: there is no FID before reset(){how}"
            raise error.noted(f". {missing}") from error

    def to(self, device: torch.device) -> None:
        """Moves the sums, and the images that wait."""
        if device != self._device:
            self._device = device
            self._moments.to(device_here(device).exact_sums)
            self._waiting = [image.to(device) for image in self._waiting]

    def merged(self, world: World) -> ImageSums:
        """The images of all ranks; this object stays as it is. A collective after `flush`."""
        other = copy.copy(self)
        with world.together():  # memory may run out on one rank
            other._moments = copy.deepcopy(self._moments)
        other._moments.merge(world)
        if self._side == "fake":
            other._hashes = [torch.from_numpy(hashes) for hashes in world.gather(self._joined_hashes().numpy())]
        return other

    def shared_images_warning(self, ranks: Sequence[int]) -> str:
        """See `fidtool.training.checks.shared_images_warning`; of sums that were `merged`."""
        return shared_images_warning([hashes.numpy() for hashes in self._hashes], ranks)

    def statistics(self) -> Statistics:
        """Mean and covariance.

        Raises:
            InputError: fewer than two images.
            RunError: the features' step leaves them too few bits.
        """
        if self.count < _FEWEST:
            call = f"update(images, real={self._side == 'real'})"
            few = f"FID needs {_FEWEST} {_SIDES[self._side]} at least, and there are {self.count}"
            raise InputError(f"{few}: {call} adds some")
        definition = self._features.definition
        if not definition.standard:
            self._moments.check_precision()
        gaussian = self._moments.mean_covariance(definition.ddof)
        return Statistics.of(gaussian.mu, gaussian.sigma, gaussian.count, definition)

    def totals(self) -> State:
        """The sums as tensors on the CPU, after `flush`; of symmetric matrices the upper triangle."""
        totals = {name: torch.from_numpy(np.array(values)) for name, values in self._moments.totals().items()}
        return {**totals, "marks": self._joined_hashes()} if self._side == "fake" else totals

    def _joined_hashes(self) -> torch.Tensor:
        """int64 of shape (count,), in the order in which the images came."""
        return torch.cat(self._hashes) if self._hashes else torch.zeros(0, dtype=torch.int64, device="cpu")

    def absorb(self, totals: State) -> None:
        """Adds what `totals` gave.

        Raises:
            InputError: these are sums of something else.
        """
        try:
            arrays = {name: values.cpu().numpy() for name, values in totals.items()}
            self._moments.absorb(arrays)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"these are not the sums of this metric's features: {error}") from None
        if self._side == "fake" and "marks" in totals:
            self._hashes.append(totals["marks"].cpu())


@dataclass(frozen=True)
class Result:
    """What the last ``compute`` gave.

    Attributes:
        fid: the distance.
        real, fake: number of images behind it; real is None where a statistics file does not say.
        scope: ``all 4 ranks``, or ``rank 1 of 4 alone`` without ``sync_on_compute``.
        warnings: about the number of images.
    """

    fid: float
    real: int | None
    fake: int
    scope: str = "this process"
    warnings: tuple[str, ...] = ()


class MetricSums:
    """The images of one metric on one rank, or merged over all.

    Args:
        features: the network.
        fixed: statistics, or a file of them, in the place of real images.
        batch_size: images in a forward pass; None is the device's default.

    Attributes:
        fixed_name: what the statistics in the place of real images are called; empty without.

    Raises:
        InputError: the fixed statistics cannot be read, or were made in another way.
    """

    def __init__(self, features: SharedExtractor, fixed: PathLike | Statistics | None, batch_size: int | None) -> None:
        self._features = features
        self._sides = {side: ImageSums(features, side, batch_size) for side in _SIDES}
        self._lost: set[str] = set()
        self._fixed: Statistics | None = None
        self.fixed_name = ""
        if fixed is not None:
            self.fixed_name = "real_statistics" if isinstance(fixed, Statistics) else os.fspath(fixed)
            self._fixed = fixed if isinstance(fixed, Statistics) else read_statistics(self.fixed_name, features_of=())
            self._check_fixed(self._fixed)

    def _check_fixed(self, statistics: Statistics) -> None:
        mine, theirs, name = self._features.definition, statistics.definition, self.fixed_name
        if statistics.dims != mine.dims:
            raise InputError(f"{name} has features of {statistics.dims} dimensions and the metric of {mine.dims}")
        if theirs is not None and (differences := theirs.differences(mine)):
            raise InputError(
                f"{name} and the metric follow different protocols ({', '.join(differences)}): give the metric the "
                "feature, protocol and weights that the file was made with"
            )

    @property
    def lost(self) -> bool:
        """Whether images that belong to the run were lost when a checkpoint was read."""
        return bool(self._lost)

    @property
    def has_real_images(self) -> bool:
        """Whether there are real images, or statistics in their place."""
        return self._fixed is not None or self._sides["real"].count > 0

    def add(self, pixels: torch.Tensor, real: bool) -> None:
        """Takes images in; see `ImageSums.add`."""
        self._sides["real" if real else "fake"].add(pixels)

    def flush(self) -> None:
        """Sends everything that waits for a full batch through the network."""
        for sums in self._sides.values():
            sums.flush()

    def forget(self, real: bool) -> None:
        """Forgets the generated images, and the real ones too if ``real``."""
        for side in _SIDES if real else ("fake",):
            self._sides[side].clear()
            self._lost.discard(side)

    def to(self, device: torch.device) -> None:
        """Moves everything."""
        for sums in self._sides.values():
            sums.to(device)

    # All ranks together.

    def settings(self) -> dict[str, Any]:
        """What must be the same on every rank."""
        real = "their own images"
        if self._fixed is not None:
            digest = hashlib.sha256(self._fixed.mu.tobytes() + self._fixed.sigma.tobytes()).hexdigest()
            real = f"statistics with SHA-256 {digest[:12]}"
        return {"definition": self._features.definition.to_json(), "real": real}

    def merged(self, world: World) -> MetricSums:
        """The images of all ranks; this object stays as it is. A collective after `flush`."""
        other = copy.copy(self)
        other._sides = {side: sums.merged(world) for side, sums in self._sides.items()}
        return other

    def shared_images_warning(self, ranks: Sequence[int]) -> str:
        """See `ImageSums.shared_images_warning`."""
        return self._sides["fake"].shared_images_warning(ranks)

    def absorb(self, other: MetricSums) -> None:
        """Adds another's images.

        Raises:
            InputError: they were measured in another way.
        """
        check_same_settings([self.settings(), other.settings()], ("this", "the other"))
        self.flush()
        other.flush()
        for side, sums in self._sides.items():
            sums.absorb(other._sides[side].totals())

    # The distance.

    def distance(self) -> Result:
        """The FID.

        Raises:
            InputError: fewer than two real or two generated images.
        """
        real = self._sides["real"].statistics() if self._fixed is None else self._fixed
        fake = self._sides["fake"].statistics()
        fid = frechet_distance(real.mu, real.sigma, fake.mu, fake.sigma, count1=real.count, count2=fake.count)
        warnings = set_warnings(self.fixed_name or "the set of real images", real)
        warnings += set_warnings("the set of fakes", fake)
        return Result(fid, real.count, self._sides["fake"].count, warnings=tuple(warnings))

    # Checkpoints.

    def state(self, group_rank: int, size: int) -> State:
        """Everything as tensors on the CPU; nothing where no image was seen.

        Args:
            group_rank: the rank whose images these are, of ``size`` ranks; `ALL` if they are those of all ranks.
        """
        self.flush()
        seen = {side: sums for side, sums in self._sides.items() if sums.count}
        state = {f"{side}_{name}": value for side, sums in seen.items() for name, value in sums.totals().items()}
        if not state:
            return {}
        definition = bytearray(self._features.definition.to_json().encode())
        state[_DEFINITION] = torch.frombuffer(definition, dtype=torch.uint8)
        return {**state, _SHARE: torch.tensor([group_rank, size], device="cpu")}

    def restore(self, state: State, group_rank: int, size: int) -> str:
        """Replaces everything by what `state` gave, each image on one rank only.

        Args:
            state: from any rank, at any number of ranks.
            group_rank, size: this rank and the number of ranks now.

        Returns:
            A warning; empty if nothing is wrong.

        Raises:
            InputError: the sums of another metric.
        """
        was, of = self._owner(state)
        self.forget(real=True)
        if was == ALL or of == 1:
            if group_rank:
                return ""  # the first rank has them
        elif (was, of) != (group_rank, size):
            sides = ("fake",) if self._fixed is not None else tuple(_SIDES)
            self._lost = {side for side in sides if f"{side}_count" in state}
            return (
                f"rank {group_rank} of {size} was given the images of rank {was} of {of}, which are not its own, "
                "and starts without: save the metric inside `with metric.sync_context():`, or on every rank"
            )
        for side, sums in self._sides.items():
            own = {name.removeprefix(f"{side}_"): value for name, value in state.items() if name.startswith(f"{side}_")}
            if own:
                sums.absorb(own)
        return ""

    def _owner(self, state: State) -> tuple[int, int]:
        """Whose images a checkpoint holds."""
        try:
            definition = Definition.from_json(bytes(state[_DEFINITION].tolist()).decode())
            was, of = state[_SHARE].tolist()
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the checkpoint does not say how its features were made: it is no metric's") from error
        if differences := definition.differences(self._features.definition):
            raise InputError(
                f"the checkpoint and the metric follow different protocols ({', '.join(differences)}): give the metric "
                "the feature, protocol and weights with which the checkpoint was made"
            )
        return was, of


def check_same_settings(settings: Sequence[dict[str, Any]], ranks: Sequence[object]) -> None:
    """Refuses ranks whose metrics differ.

    Args:
        settings: `MetricSums.settings` of each.
        ranks: what they are called.

    Raises:
        InputError: on every rank alike, with the first difference.
    """
    first = Definition.from_json(settings[0]["definition"])
    for rank, each in zip(ranks, settings, strict=True):
        differences = first.differences(Definition.from_json(each["definition"]))
        if each["real"] != settings[0]["real"]:
            differences.append(f"{settings[0]['real']} against {each['real']}")
        if differences:
            message = f"the metrics of {ranks[0]} and {rank} differ ({', '.join(differences)})"
            raise on_every_rank(InputError(f"{message}:", "make them with the same arguments"))
