"""Everything that a metric has seen: real and generated images as exact sums, merged, compared, saved and restored."""

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
from numpy.typing import NDArray

from fidtool.diagnose.doubts import set_warnings
from fidtool.distances.frechet import frechet_distance
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank
from fidtool.features.device import device_of
from fidtool.features.extractor import Extractor
from fidtool.features.protocol import Definition
from fidtool.features.torch_state import repeatable
from fidtool.statistics.gaussian import MeanCovariance
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.store import Statistics, read_statistics
from fidtool.training.checks import SharedImages, find_shared_images, image_hashes
from fidtool.training.feature_extractor import PathLike, SharedExtractor, this_launch

_FEWEST = 2
_SHARE, _DEFINITION = "share", "definition"
ALL = -1
"""In the place of a rank: these are the images of all ranks."""
_SIDES = ("real", "fake")
TOTALS = ("count", "largest", "bits", "sum", "low", "high", "marks")
"""What `ImageSums.totals` may hold."""
STATE_NAMES = {_SHARE, _DEFINITION, *(f"{side}_{name}" for side in _SIDES for name in TOTALS)}
"""What `MetricSums.state` may hold."""

Totals = dict[str, torch.Tensor]
State = dict[str, torch.Tensor]


class ImageSums:
    """What a metric has seen so far of one kind of images: exact sums, and images that wait for a full batch.

    The network always sees batches of one size, padded at the end: kernels are chosen by the batch's shape, so a
    feature has the same bits however the images came.

    Args:
        definition: what defines the features.
        hashed: keep a hash of each image, so that ranks can compare them.
        device: where the sums live.
    """

    def __init__(self, definition: Definition, hashed: bool, device: torch.device) -> None:
        self._moments = ExactMoments(definition.dims, definition.feature_step, device)
        self._standard = definition.standard
        self._hashed = hashed
        self._waiting: list[torch.Tensor] = []
        self._hashes: list[torch.Tensor] = []

    @property
    def count(self) -> int:
        """Number of images so far."""
        return self._moments.count + len(self._waiting)

    @property
    def refused(self) -> str:
        """Why a feature was not taken in, and the sums are of no use; empty where all is well."""
        return self._moments.refused

    def add(self, images: torch.Tensor, extractor: Extractor, batch_size: int) -> None:
        """Takes images in; full batches go through the network now. Where that fails, none of them was taken in.

        Args:
            images: uint8 tensor of shape (n, 3, height, width) on the extractor's device.
        """
        hashes = [image_hashes(images)] if self._hashed else []
        new = images.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
        waiting = [*self._waiting, *new]
        # As many batches as run side by side.
        at_once = batch_size * extractor.device.lanes
        ready = len(waiting) // at_once * at_once
        if ready:
            self._extract(waiting[:ready], extractor, batch_size)
        self._waiting = waiting[ready:]
        self._hashes += hashes

    def flush(self, extractor: Extractor, batch_size: int) -> None:
        """Sends what waits through the network, the last batch filled up with black."""
        if self._waiting:
            self._extract(self._waiting, extractor, batch_size)
            self._waiting = []
        self._moments.flush()

    def _extract(self, images: list[torch.Tensor], extractor: Extractor, batch_size: int) -> None:
        batches = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]

        def filled(batch: list[torch.Tensor]) -> list[torch.Tensor]:
            return batch + [torch.zeros_like(batch[0])] * (batch_size - len(batch))

        with repeatable():
            if extractor.device.lanes == 1:
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

    def to(self, sums: torch.device, device: torch.device) -> None:
        """Moves the sums, and the images that wait."""
        self._moments.to(sums)
        self._waiting = [image.to(device) for image in self._waiting]

    def merged(self, world: World) -> ImageSums:
        """The images of all ranks; this object stays as it is. A collective after `flush`."""
        other = copy.copy(self)
        with world.together():  # memory may run out on one rank
            other._moments = copy.deepcopy(self._moments)
        other._moments.merge(world)
        if self._hashed:
            other._hashes = [torch.from_numpy(hashes) for hashes in world.gather(self.hashes().numpy())]
        return other

    def mean_covariance(self, ddof: int) -> MeanCovariance:
        """See `ExactMoments.mean_covariance`."""
        if not self._standard:
            self._moments.check_precision()
        return self._moments.mean_covariance(ddof)

    def hashes_by_rank(self) -> list[NDArray[np.int64]]:
        """Every image's hash, an array a rank, where this was `merged`."""
        return [hashes.numpy() for hashes in self._hashes]

    def hashes(self) -> torch.Tensor:
        """Every image's hash, int64 of shape (count,), in the order of their coming."""
        return torch.cat(self._hashes) if self._hashes else torch.zeros(0, dtype=torch.int64, device="cpu")

    def totals(self) -> Totals:
        """The sums as tensors on the CPU, after `flush`; of symmetric matrices the upper triangle."""
        kept = {name: torch.from_numpy(np.array(values)) for name, values in self._moments.totals().items()}
        return {**kept, "marks": self.hashes()} if self._hashed else kept

    def absorb(self, totals: Totals) -> None:
        """Adds what `totals` gave.

        Raises:
            InputError: these are sums of something else.
        """
        try:
            arrays = {name: values.cpu().numpy() for name, values in totals.items()}
            self._moments.absorb(arrays)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"these are not the sums of this metric's features: {error}") from None
        if self._hashed and "marks" in totals:
            self._hashes.append(totals["marks"].cpu())


@dataclass(frozen=True)
class Found:
    """A distance, with the number of images behind it and what is doubtful about it."""

    fid: float
    real: int | None
    fake: int
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What the last ``compute`` gave.

    Attributes:
        fid: the distance.
        real, fake: number of images behind it; real is None where a statistics file does not say.
        scope: ``all 4 ranks``, or ``rank 1 of 4 alone`` without ``sync_on_compute``.
    """

    fid: float
    real: int | None
    fake: int
    scope: str


class MetricSums:
    """The images of one metric on one rank, or merged over all.

    Args:
        features: the network.
        fixed: statistics, or a file of them, in the place of real images.
        batch_size: images in a forward pass; None is the device's default.

    """

    def __init__(self, features: SharedExtractor, fixed: PathLike | Statistics | None, batch_size: int | None) -> None:
        self._features, self._batch_size = features, batch_size
        self._fixed: tuple[str, Statistics] | None = None
        self._device = torch.device("cpu")
        self._sides = {side: self._empty(side) for side in _SIDES}
        self._lost: set[str] = set()
        if fixed is not None:
            named = ("real_statistics", fixed) if isinstance(fixed, Statistics) else _read(os.fspath(fixed))
            self._check_fixed(*named)
            self._fixed = named

    def _empty(self, side: str) -> ImageSums:
        sums = device_of(self._device, this_launch()).exact_sums
        return ImageSums(self._features.definition, hashed=side == "fake", device=sums)

    def _check_fixed(self, name: str, statistics: Statistics) -> None:
        mine, theirs = self._features.definition, statistics.definition
        if statistics.dims != mine.dims:
            raise InputError(f"{name} has features of {statistics.dims} dimensions and the metric of {mine.dims}")
        if theirs is not None and (differences := theirs.differences(mine)):
            raise InputError(
                f"{name} and the metric follow different protocols ({', '.join(differences)}): give the metric the "
                "feature, protocol and weights that the file was made with"
            )

    @property
    def fixed_name(self) -> str:
        """What the statistics in the place of real images are called; empty without."""
        return "" if self._fixed is None else self._fixed[0]

    @property
    def lost(self) -> bool:
        """Whether images that belong to the run were lost when a checkpoint was read."""
        return bool(self._lost)

    def add(self, pixels: torch.Tensor, real: bool) -> None:
        """Takes images in; see `ImageSums.add`."""
        extractor = self._features.extractor(self._device)
        size = self._batch_size or extractor.device.default_batch_size
        side = "real" if real else "fake"
        with self._explaining_refusals(side):
            self._sides[side].add(pixels, extractor, size)

    def flush(self) -> None:
        """Sends everything that waits for a full batch through the network."""
        for side, sums in self._sides.items():
            extractor = self._features.extractor(self._device)
            with self._explaining_refusals(side):
                sums.flush(extractor, self._batch_size or extractor.device.default_batch_size)

    @contextlib.contextmanager
    def _explaining_refusals(self, side: str) -> Iterator[None]:
        """A feature that was refused is missing from the sums for good."""
        try:
            yield
        except RunError as error:
            if not self._sides[side].refused:
                raise
            kind, how = ("real images", " with reset_real_features=True") if side == "real" else ("fakes", "")
            raise RunError(f"{error}. Some {kind} are missing since: there is no FID before reset(){how}") from error

    def forget(self, real: bool) -> None:
        """Starts anew, with new real images too where ``real`` says so."""
        for side in _SIDES if real else ("fake",):
            self._sides[side] = self._empty(side)
            self._lost.discard(side)

    def to(self, device: torch.device) -> None:
        """Moves everything."""
        if device != self._device:
            self._device = device
            for sums in self._sides.values():
                sums.to(device_of(device, this_launch()).exact_sums, device)

    # All ranks together.

    def settings(self) -> dict[str, Any]:
        """What must be the same on every rank."""
        real = "their own images"
        if self._fixed is not None:
            statistics = self._fixed[1]
            digest = hashlib.sha256(statistics.mu.tobytes() + statistics.sigma.tobytes()).hexdigest()
            real = f"statistics with SHA-256 {digest[:12]}"
        return {"definition": self._features.definition.to_json(), "real": real}

    def merged(self, world: World) -> MetricSums:
        """The images of all ranks; this object stays as it is. A collective after `flush`."""
        other = copy.copy(self)
        other._sides = {side: sums.merged(world) for side, sums in self._sides.items()}
        return other

    def alike(self, ranks: Sequence[int]) -> SharedImages | None:
        """Generated images that several ranks have, of sums that were `merged`."""
        return find_shared_images(self._sides["fake"].hashes_by_rank(), ranks)

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

    def distance(self) -> Found:
        """The FID.

        Raises:
            InputError: fewer than two real or two generated images.
        """
        definition = self._features.definition
        real, fake = self._statistics("real", definition), self._statistics("fake", definition)
        fid = frechet_distance(real.mu, real.sigma, fake.mu, fake.sigma, count1=real.count, count2=fake.count)
        real_name = self.fixed_name or "the set of real images"
        doubts = set_warnings(real_name, real) + set_warnings("the set of fakes", fake)
        assert fake.count is not None
        return Found(fid, real.count, fake.count, tuple(doubts))

    def _statistics(self, side: str, definition: Definition) -> Statistics:
        if side == "real" and self._fixed is not None:
            return self._fixed[1]
        sums = self._sides[side]
        if sums.count < _FEWEST:
            kind = "real images" if side == "real" else "fakes"
            call = f"update(images, real={side == 'real'})"
            raise InputError(f"FID needs {_FEWEST} {kind} at least, and there are {sums.count}: {call} adds some")
        gaussian = sums.mean_covariance(definition.ddof)
        return Statistics.of(gaussian.mu, gaussian.sigma, gaussian.count, definition)

    # Checkpoints.

    def state(self, place: int, size: int) -> State:
        """Everything as tensors on the CPU; nothing where no image was seen.

        Args:
            place: whose images these are, of ``size`` ranks; `ALL` where they are everybody's.
        """
        self.flush()
        seen = {side: sums for side, sums in self._sides.items() if sums.count}
        state = {f"{side}_{name}": value for side, sums in seen.items() for name, value in sums.totals().items()}
        if not state:
            return {}
        definition = bytearray(self._features.definition.to_json().encode())
        state[_DEFINITION] = torch.frombuffer(definition, dtype=torch.uint8)
        return {**state, _SHARE: torch.tensor([place, size], device="cpu")}

    def restore(self, state: State, place: int, size: int) -> str:
        """Puts what `state` gave in the place of everything, each image on one rank only.

        Args:
            state: from any rank, at any number of ranks.
            place, size: this rank's place now.

        Returns:
            What is wrong, to be told; empty if nothing is.

        Raises:
            InputError: the sums of another metric.
        """
        was, of = self._share(state)
        self.forget(real=True)
        if was == ALL or of == 1:
            if place:
                return ""  # the first rank has them
        elif (was, of) != (place, size):
            sides = ("fake",) if self._fixed else _SIDES
            self._lost = {side for side in sides if f"{side}_count" in state}
            return (
                f"rank {place} of {size} was given the images of rank {was} of {of}, which are not its own, and starts "
                "without: save the metric inside `with metric.sync_context():`, or on every rank"
            )
        for side, sums in self._sides.items():
            own = {name.removeprefix(f"{side}_"): value for name, value in state.items() if name.startswith(f"{side}_")}
            if own:
                sums.absorb(own)
        return ""

    def _share(self, state: State) -> tuple[int, int]:
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


def _read(path: str) -> tuple[str, Statistics]:
    return path, read_statistics(path, features_of=())


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
            raise on_every_rank(InputError(f"{message}: make them with the same arguments"))
