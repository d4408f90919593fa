"""The state of a metric: exact statistics of real and generated images, merged over ranks, saved and restored."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import FeatureSettings
from fidtool.distributed.launch import Launch
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, on_every_rank, option, own_exceptions, warn_program
from fidtool.features.device import computing_on, repeatable
from fidtool.features.extractor import ForwardPasses
from fidtool.features.protocol import FEATURES, Definition
from fidtool.statistics.moments import ExactMoments, check_exact_products
from fidtool.statistics.set_statistics import Statistics
from fidtool.statistics.statistics_file import read_statistics
from fidtool.training.checks import image_hashes
from fidtool.training.feature_extractor import PathLike, SharedExtractor, device_here

_SHARE, _DEFINITION, _FLOOR = "share", "definition", "floor"
ALL = -1
"""In place of a rank: the images are those of all ranks."""
SIDES = {"real": "real images", "fake": "generated images"}
_TOTALS = ("count", "largest", "sizes", "bits", "sum", "low", "high", "marks", "rows", "order")
"""Possible keys of `ImageSums.totals`; ``bits`` was written by earlier versions."""
STATE_NAMES = {_SHARE, _DEFINITION, _FLOOR, *(f"{side}_{name}" for side in SIDES for name in _TOTALS)}
"""Possible keys of `MetricSums.state`."""

State = dict[str, torch.Tensor]
_Image = tuple[torch.Tensor, int]
"""Pixels and their hash."""
_NO_ROWS = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class _Seen:
    """Images that went through the network: int64 hashes of shape (n,), and their features if these are needed.

    ``restored`` is whether they come from a checkpoint.
    """

    hashes: NDArray[np.int64]
    rows: NDArray[np.float32] | None = None
    restored: bool = False


class ImageSums:
    """A metric's state of the real or of the generated images: their features, and the images of a partial batch.

    The network always gets batches of one size; the last is padded. Kernels depend on the batch's shape, so features
    are bit-identical regardless of how the images were passed. A hash of each image is stored to detect images that
    several ranks generated, and those that are added again after a checkpoint that has them was restored.

    Args:
        per_image: whether the features themselves are needed; otherwise their exact sums are.
    """

    def __init__(self, features: SharedExtractor, side: str, batch_size: int | None, per_image: bool = False) -> None:
        self._features, self._side, self._batch_size, self._per_image = features, side, batch_size, per_image
        self._device = torch.device("cpu")
        self.clear()

    def clear(self) -> None:
        self._moments: ExactMoments | None = None  # a plain module's first output shows the length of a vector
        self._waiting: list[_Image] = []
        self._seen: list[_Seen] = []
        self.of_ranks: list[NDArray[np.int64]] = []  # hashes of each rank's images, after a merge

    def _empty(self, dims: int) -> ExactMoments:
        definition = self._features.definition
        device, setting = device_here(self._device).exact_sums, None if definition.standard else "feature_step"
        return ExactMoments(dims, definition.feature_step, device, setting)

    @property
    def count(self) -> int:
        seen = sum(len(each.hashes) for each in self._seen) if self._moments is None else self._moments.count
        return seen + len(self._waiting)

    def add(self, images: torch.Tensor) -> None:
        """Adds images and runs the network on full batches. If the network fails, none of the images are added."""
        laid_out = images if self._features.plain else images.permute(0, 2, 3, 1)
        new = laid_out.clone(memory_format=torch.contiguous_format)
        waiting = [*self._waiting, *zip(new, image_hashes(images).tolist(), strict=True)]
        self._waiting = self._extract(waiting, partial=False)

    def flush(self) -> None:
        """Runs the network on the waiting images; the last batch is padded with black images."""
        self._waiting = self._extract(self._waiting, partial=True)
        with self._explaining_refusal():
            if self._moments is not None:
                self._moments.flush()
            elif not all(np.isfinite(each.rows).all() for each in self._seen if each.rows is not None):
                problem = "the network returned a feature that is NaN or infinite:"
                raise RunError(problem, "check its weights and input")

    def _extract(self, images: list[_Image], partial: bool) -> list[_Image]:
        """Adds the features of images, and returns those of a partial batch, which are only added if ``partial``."""
        extractor = self._features.extractor(self._device)
        batch_size = self._batch_size or extractor.device.default_batch_size
        at_once = batch_size * extractor.device.forward_threads  # batches that run in parallel
        ready = len(images) if partial else len(images) // at_once * at_once
        if not ready:
            return images
        images, left = images[:ready], images[ready:]
        kinds = [(image.shape, image.dtype) if self._features.plain else () for image, _ in images]
        alike = [
            [each for each, own in zip(images, kinds, strict=True) if own == kind] for kind in dict.fromkeys(kinds)
        ]
        batches = [part[start : start + batch_size] for part in alike for start in range(0, len(part), batch_size)]
        marks = [mark for batch in batches for _, mark in batch]

        def filled(batch: list[_Image]) -> list[torch.Tensor]:
            pixels = [image for image, _ in batch]
            return pixels + [torch.zeros_like(pixels[0])] * (batch_size - len(batch))

        def compute() -> torch.Tensor:
            with own_exceptions(), repeatable():
                pairs = list(ForwardPasses([extractor], filled).run(iter(batches)))
            return torch.cat([layers[FEATURES][: len(batch)] for batch, layers in pairs if layers is not None])

        with computing_on(extractor.device.torch_device):
            features = self._features.once(self._side, (self._device, batch_size, marks), compute)
            rows = features.to("cpu", torch.float32).numpy() if self._per_image else None
            if rows is None:
                self._moments = self._moments or self._empty(features.shape[1])
                with self._explaining_refusal():
                    self._moments.add(features)
        self._seen.append(_Seen(np.array(marks, dtype=np.int64), rows))
        return left

    @contextlib.contextmanager
    def _explaining_refusal(self) -> Iterator[None]:
        """Adds the consequence to the error if a feature was refused, since it is missing from the sums until reset."""
        try:
            yield
        except RunError as error:
            missing = f"The statistics lack some {SIDES[self._side]}; call reset(){self._how_to_reset} before compute()"
            error.note += f". {missing}"
            raise

    @property
    def _how_to_reset(self) -> str:
        return " with reset_real_features=True" if self._side == "real" else ""

    def to(self, device: torch.device) -> None:
        if device != self._device and device.type != "meta":  # temporarily, before `to_empty`
            sums_device = device_here(device).exact_sums
            check_exact_products(sums_device)
            self._device = device
            if self._moments is not None:
                self._moments.to(sums_device)
            self._waiting = [(image.to(device), mark) for image, mark in self._waiting]

    def merged(self, world: World) -> ImageSums:
        """Returns the statistics of all ranks, without changing this object. A collective; call `flush` first."""
        other = copy.copy(self)
        dims = max(world.gather(0 if self._moments is None else self._moments.dims))
        with world.together():  # memory may run out on one rank
            other._moments = (copy.deepcopy(self._moments) or self._empty(dims)) if dims else None
        if other._moments is not None:
            other._moments.merge(world)
        everyone = world.gather(self._seen)
        other._seen = [each for seen in everyone for each in seen]
        other.of_ranks = [_hashes(seen) for seen in everyone]
        return other

    def added_again_warning(self) -> str:
        """A warning about images that were restored and then added; empty if these are as few as duplicates can be."""
        restored, added = (_hashes(each for each in self._seen if each.restored == old) for old in (True, False))
        again = len(np.intersect1d(added, restored))
        if again <= max(3, min(len(restored), len(added)) // 4):
            return ""
        return (
            f"{again} {SIDES[self._side]} that were added after a checkpoint was loaded are in it too and count twice: "
            f"call reset(){self._how_to_reset} after loading it, or persistent(False) before saving it"
        )

    def statistics(self) -> Statistics:
        """Mean and covariance of the features."""
        definition = self._features.definition
        if self._moments is None:
            rows, settings = self.rows(), FeatureSettings.of(definition, device_here(self._device).exact_sums)
            gaussian = settings.gaussian(rows, np.arange(len(rows)), World(Launch()))
        else:
            if not definition.standard:
                self._moments.check_precision()
            gaussian = self._moments.mean_covariance(definition.ddof)
        return Statistics.of(gaussian.mu, gaussian.sigma, gaussian.count, definition)

    def rows(self) -> NDArray[np.float32]:
        """The features of each image, in the order of the images' hashes, which is pseudo-random."""
        rows = [each.rows for each in self._seen if each.rows is not None]
        return np.concatenate(rows)[np.argsort(_hashes(self._seen), kind="stable")] if rows else _NO_ROWS

    def totals(self) -> State:
        """The sums as CPU tensors, for symmetric matrices the upper triangle. Call `flush` first."""
        marks = _hashes(self._seen)
        kept = {"count": np.array(self.count), "rows": self.rows(), "order": np.sort(marks)}
        totals = kept if self._moments is None else self._moments.totals()
        return {name: torch.from_numpy(np.array(values)) for name, values in {**totals, "marks": marks}.items()}

    def absorb(self, totals: State, restored: bool = False) -> None:
        """Adds the sums that `totals` returned, ``restored`` from a checkpoint or of another metric."""
        try:
            arrays = {name: values.cpu().numpy() for name, values in totals.items()}
            if self._per_image:
                seen = _Seen(arrays["order"], arrays["rows"], restored)
            else:
                moments = self._moments or self._empty(self._features.definition.dims or len(arrays["sum"]))
                moments.absorb(arrays)
                self._moments = moments
                # Earlier versions have no hashes of real images.
                seen = _Seen(arrays.get("marks", np.zeros(0, np.int64)), None, restored)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the statistics to add are not those of this metric's features: {error}") from None
        self._seen.append(seen)


def _hashes(seen: Iterable[_Seen]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, dtype=np.int64), *(each.hashes for each in seen)])


@dataclass(frozen=True)
class Result:
    """Result of a metric's ``compute``.

    ``values`` are those of the metric by name, such as ``kid`` and ``kid_std``; ``fid`` is that of the FID. ``real``
    and ``fake`` are numbers of images; ``real`` is None if it is unknown, or if the metric does not use real images.
    ``scope`` is ``all 4 ranks``, or ``rank 1 of 4 alone`` if ``sync_on_compute`` is False. ``warnings`` are about the
    numbers of images.
    """

    values: Mapping[str, float]
    real: int | None
    fake: int
    scope: str = "this process"
    warnings: tuple[str, ...] = ()

    @property
    def fid(self) -> float:
        """The FID."""
        return self.values["fid"]


class MetricSums:
    """The state of one metric, on one rank or merged over all ranks.

    ``fixed`` are statistics or a statistics file, instead of real images; with ``per_image`` they have the features of
    each image. ``float_to_byte`` is how floats become the bytes that are added; None is as for ``fixed``, or as the
    protocol's tool does. ``own_settings`` are further settings that must be the same on every rank.
    """

    def __init__(
        self,
        features: SharedExtractor,
        fixed: PathLike | Statistics | None,
        batch_size: int | None,
        float_to_byte: str | None,
        per_image: bool = False,
        own_settings: str = "",
    ) -> None:
        self.network, self._own_settings, self.float_to_byte = features, own_settings, features.rounding(float_to_byte)
        self.sides = {side: ImageSums(features, side, batch_size, per_image) for side in SIDES}
        self.lost: set[str] = set()  # the sides whose images were lost when a checkpoint was loaded
        self._fixed: Statistics | None = None
        self.fixed_name = ""
        if fixed is not None:
            self.fixed_name = "real_statistics" if isinstance(fixed, Statistics) else os.fspath(fixed)
            wanted = (FEATURES,) if per_image else ()
            self._fixed = fixed if isinstance(fixed, Statistics) else read_statistics(self.fixed_name, wanted)
            mine, theirs = features.definition, self._fixed.definition
            if mine.dims and self._fixed.dims != mine.dims:
                dims = f"{self._fixed.dims} dimensions, but the metric's have {mine.dims}"
                raise InputError(f"{self.fixed_name} has features of {dims}")
            if theirs is not None:
                _check_same_protocol(theirs, mine, self.fixed_name, "the statistics")
            stated = (self._fixed.config or {}).get("float_to_byte", self.float_to_byte)
            if float_to_byte is None:
                self.float_to_byte = features.rounding(stated)
            elif stated != self.float_to_byte:
                warn_program(f"{self.fixed_name} was made with float_to_byte={stated!r}, and this metric has another")
            if per_image and self._fixed.features is None:
                problem = f"{self.fixed_name} has no features of each image, which this metric needs:"
                raise InputError(problem, "write the file with `fidtool stats REAL --metrics kid -o FILE`")
        self._rounding = "" if self.float_to_byte == features.rounding(None) else self.float_to_byte

    def flush(self) -> None:
        for sums in self.sides.values():
            sums.flush()

    def forget(self, real: bool) -> None:
        """Discards the generated images, and also the real ones if ``real``."""
        for side in SIDES if real else ("fake",):
            self.sides[side].clear()
            self.lost.discard(side)

    def to(self, device: torch.device) -> None:
        for sums in self.sides.values():
            sums.to(device)

    # Synchronisation of all ranks.

    def settings(self) -> dict[str, Any]:
        """The settings that must be the same on every rank."""
        real = "their own images"
        if self._fixed is not None:
            digest = hashlib.sha256(self._fixed.mu.tobytes() + self._fixed.sigma.tobytes()).hexdigest()
            real = f"statistics with SHA-256 {digest[:12]}"
        found = {"definition": self.network.definition.to_json(), "real": real}
        further = {"float_to_byte": self._rounding, "own": self._own_settings}  # those that are not the usual ones
        return found | {name: value for name, value in further.items() if value}

    def merged(self, world: World) -> MetricSums:
        """Returns the statistics of all ranks, without changing this object. A collective; call `flush` first."""
        other = copy.copy(self)
        other.sides = {side: sums.merged(world) for side, sums in self.sides.items()}
        return other

    def absorb(self, other: MetricSums) -> None:
        """Adds the images of another metric."""
        check_same_settings([self.settings(), other.settings()], ("this metric", "the other metric"))
        self.flush()
        other.flush()
        for side, sums in self.sides.items():
            if other.sides[side].count:
                sums.absorb(other.sides[side].totals())

    # What the metrics are computed from.

    def count(self, side: str) -> int | None:
        """Number of real or generated images; None if the statistics file does not have it."""
        return self._fixed.count if side == "real" and self._fixed is not None else self.sides[side].count

    def statistics(self, side: str) -> Statistics:
        """Mean and covariance of the real or of the generated images."""
        return self._fixed if side == "real" and self._fixed is not None else self.sides[side].statistics()

    def rows(self, side: str) -> NDArray[np.float32]:
        """Features of each of the real or of the generated images, shape (n, D)."""
        if side == "real" and self._fixed is not None:
            assert self._fixed.features is not None
            return self._fixed.features
        return self.sides[side].rows()

    def listed(self, side: str) -> list[torch.Tensor]:
        """`rows` in a list, which is empty if there are none."""
        self.flush()
        rows = self.rows(side)
        return [torch.from_numpy(rows)] if len(rows) else []

    # Checkpoints.

    def state(self, group_rank: int, size: int) -> State:
        """Returns the state as CPU tensors; empty if there are no images. ``group_rank`` is `ALL` after a merge."""
        self.flush()
        seen = {side: sums for side, sums in self.sides.items() if sums.count}
        state = {f"{side}_{name}": value for side, sums in seen.items() for name, value in sums.totals().items()}
        if not state:
            return {}
        definition = bytearray(self.network.definition.to_json().encode())
        state[_DEFINITION] = torch.frombuffer(definition, dtype=torch.uint8)
        if self._rounding:
            state[_FLOOR] = torch.tensor(self._rounding == "floor", device="cpu")
        return {**state, _SHARE: torch.tensor([group_rank, size], device="cpu")}

    def restore(self, state: State, group_rank: int, size: int) -> str:
        """Replaces the state by one that `state` returned, on any rank and with any number of ranks.

        Each image is restored on one rank only. Returns a warning if this rank's images are not restored.
        """
        try:
            definition = Definition.from_json(bytes(state[_DEFINITION].tolist()).decode())
            was, of = state[_SHARE].tolist()
        except (KeyError, TypeError, ValueError) as error:
            problem = "the checkpoint has no valid definition of its features: this metric did not save it"
            raise InputError(problem) from error
        _check_same_protocol(definition, self.network.definition, "the checkpoint", "the checkpoint")
        if (_FLOOR in state) != bool(self._rounding):
            theirs = "that of its protocol" if _FLOOR not in state else "floor" if state[_FLOOR] else "round"
            problem = f"{option('float_to_byte')} of the metric in the checkpoint is {theirs}:"
            raise InputError(problem, "create this metric in the same way", setting="float_to_byte")
        self.forget(real=True)
        if was == ALL or of == 1:
            if group_rank:
                return ""  # the first rank restores them
        elif (was, of) != (group_rank, size):
            sides = ("fake",) if self._fixed is not None else tuple(SIDES)
            self.lost = {side for side in sides if f"{side}_count" in state}
            return (
                f"rank {group_rank} of {size} loaded the state of rank {was} of {of}, whose images belong to another "
                "rank and were not restored: save the metric within `with metric.sync_context():`, or save the state "
                "of every rank"
            )
        for side, sums in self.sides.items():
            own = {name.removeprefix(f"{side}_"): value for name, value in state.items() if name.startswith(f"{side}_")}
            if own:
                sums.absorb(own, restored=True)
        return ""


def _check_same_protocol(theirs: Definition, mine: Definition, name: str, owner: str) -> None:
    if differences := theirs.differences(mine):
        raise InputError(
            f"{name} and the metric use different protocols ({', '.join(differences)}): create the metric with the "
            f"feature, protocol and weights of {owner}"
        )


def check_same_settings(settings: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Checks that all metrics have the same `MetricSums.settings`."""
    first = Definition.from_json(settings[0]["definition"])
    for name, each in zip(names, settings, strict=True):
        differences = first.differences(Definition.from_json(each["definition"]))
        for value in ("real", "float_to_byte", "own"):
            if each.get(value) != settings[0].get(value):
                differences.append(f"{settings[0].get(value)} against {each.get(value)}")
        if differences:
            message = f"{names[0]} and {name} differ ({', '.join(differences)})"
            raise on_every_rank(InputError(f"{message}:", "create them with the same arguments"))
