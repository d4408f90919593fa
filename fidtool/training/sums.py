"""The state of a metric: exact statistics of real and generated images, merged over ranks, saved and restored."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import feature_settings
from fidtool.distributed.launch import Launch
from fidtool.distributed.rendezvous import listed_ranks
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError, as_fidtool_error, on_every_rank, own_exceptions, renamed, warn_program
from fidtool.features.device import computing_on, repeatable
from fidtool.features.extractor import ForwardPasses
from fidtool.features.protocol import FEATURES, Definition
from fidtool.metrics.metric import Metric
from fidtool.statistics.layouts import inception_doubts
from fidtool.statistics.moments import ExactMoments, check_exact_products
from fidtool.statistics.set_statistics import SUMS, Statistics
from fidtool.statistics.statistics_file import read_statistics
from fidtool.training.feature_extractor import PathLike, SharedExtractor, image_hashes
from fidtool.training.group import Ranks

SHARE, _DEFINITION, _FLOOR = "share", "definition", "floor"
EVALUATED = "evaluated"
"""In a state of which `compute` has covered all generated images or pairs."""
ALL = -1
"""In place of a rank: the images are those of all ranks."""
SIDES = {"real": "real images", "fake": "generated images"}
_TOTALS = (*SUMS, "marks", "samples", "different", "held")
"""Possible keys of `ImageSums.totals`."""
_REMEDY = (
    "call it on every rank, outside `if rank == 0` and @rank_zero_only; or create the metric with "
    "sync_on_compute=False to compute the value of this rank only"
)

State = dict[str, torch.Tensor]
Kept = TypeVar("Kept", bound="MetricState")
UNKNOWN = -1
"""In place of the number of a sample."""
_HELD_ROWS = 1024
"""Number of the latest images whose features are kept out of the sums. Samplers repeat samples in a rank's last batch,
and these are left out if another rank has them."""

PADDED = (
    "a sampler repeats samples so that all ranks have equally many (DistributedSampler, which Lightning inserts, or "
    "accelerate's even_batches): pass the numbers of the samples to update(…, index=), and each counts once"
)
"""Why several ranks have the same samples."""


_SEEN = np.dtype([("hash", np.int64), ("sample", np.int64), ("restored", np.bool_)])
"""What is known of an image: its hash, the number of its sample or `UNKNOWN`, and whether it is from a checkpoint."""
_Waiting = tuple[torch.Tensor, Any]
"""The pixels of an image, and a row of `_SEEN`."""


class KnownSamples:
    """The samples that a rank has added, by their numbers, with hashes of their images.

    Attributes:
        different: number of images that were left out although the image that was added with their number is another.
    """

    def __init__(self) -> None:
        self._hashes: dict[int, int] = {}
        self.different = 0

    def find_new(self, samples: NDArray[np.int64], hashes: NDArray[np.int64]) -> tuple[list[int], int]:
        """Returns the places of the images to add, and how many of the others are not the image of their number."""
        places, new, different = [], dict[int, int](), 0
        for place, (sample, mark) in enumerate(zip(samples.tolist(), hashes.tolist(), strict=True)):
            earlier = self._hashes.get(sample, new.get(sample))
            if sample == UNKNOWN or earlier is None:
                places.append(place)
                new[sample] = mark
            else:
                different += earlier != mark
        return places, different

    def add(self, samples: NDArray[np.int64], hashes: NDArray[np.int64], different: int) -> None:
        known = samples != UNKNOWN
        self._hashes.update(zip(samples[known].tolist(), hashes[known].tolist(), strict=True))
        self.different += different


def left_out(different: int, noun: str, reset: str = "call reset()") -> Iterator[str]:
    """Warns about images that were left out although they are not repeated ones."""
    if different:
        yield (
            f"{different} {noun} were left out, because other ones have the same index: {reset} before the next epoch "
            "and after loading a checkpoint, and give each sample of all ranks and data sets a number of its own (if a "
            "sampler repeated samples whose images are random, none is missing)"
        )


def check_lengths(lengths: Iterable[int]) -> None:
    """Checks the lengths of feature vectors, of which 0 is unknown."""
    known = sorted(set(lengths) - {0})
    if len(known) > 1:
        raise InputError(
            f"the network returns features of different lengths, {' and '.join(map(str, known))}:",
            "it must return as many for each image on every rank",
        )


@dataclass(eq=False)
class ImageSums:
    """A metric's state of the real or of the generated images: their features, and the images of a partial batch.

    The network always gets batches of one size; the last is padded. Kernels depend on the batch's shape, so features
    are bit-identical regardless of how the images were passed. A hash of each image is stored to detect images that
    several ranks have, and those that are added again after a checkpoint that has them was restored.

    With ``per_image`` all features are held, otherwise those of the latest samples, and the exact sums of those before.
    ``fixed`` are statistics in place of images. ``lost``: images were lost when a checkpoint was loaded. After a merge,
    ``of_ranks`` are each rank's images, and ``different`` were left out because another rank has another image with
    their number.
    """

    network: SharedExtractor
    side: str
    batch_size: int | None
    per_image: bool = False
    fixed: Statistics | None = None

    def __post_init__(self) -> None:
        self._device = torch.device("cpu")
        made = " of a metric made with reset_real_features=True" if self.side == "real" else ""
        self._reset = f"call reset(){made}"
        self.clear()

    def clear(self) -> None:
        self._moments: ExactMoments | None = None  # a plain module's first output shows the length of a vector
        self._held = deque[torch.Tensor]()  # features of the last images of `_seen`, which are not in the sums
        self._waiting: list[_Waiting] = []
        self._seen: list[NDArray[np.void]] = []
        self._samples = KnownSamples()
        self.lost, self.different, self.of_ranks = False, 0, list[NDArray[np.void]]()

    def _empty(self, dims: int) -> ExactMoments:
        definition = self.network.definition
        setting = "" if self.network.choice.given else self.network.choice.step_setting
        return ExactMoments(dims, definition.feature_step, self._device, None if definition.standard else setting)

    @property
    def count(self) -> int | None:
        """Number of images; None if the statistics file does not have it."""
        if self.fixed is not None:
            return self.fixed.count
        return sum(map(len, self._seen)) + len(self._waiting)

    @property
    def length(self) -> int:
        """Length of a feature vector; 0 if it is not known yet."""
        if self._moments is not None:
            return self._moments.dims
        return self._held[0].shape[1] if self._held else 0

    @property
    def seen(self) -> NDArray[np.void]:
        """What is known of the images that went through the network, an array of `_SEEN`."""
        return np.concatenate([np.empty(0, _SEEN), *self._seen])

    def _features(self) -> torch.Tensor:
        """The features that are held, shape (n, D)."""
        return torch.cat([*self._held]) if self._held else torch.zeros(0, 0, device="cpu")

    def add(self, images: torch.Tensor, samples: NDArray[np.int64] | None = None) -> None:
        """Adds images and runs the network on full batches. If the network fails, none of the images are added.

        An image whose number in ``samples`` was added before is left out.
        """
        seen = np.zeros(len(images), _SEEN)
        seen["hash"] = image_hashes(images).numpy()
        seen["sample"] = UNKNOWN if samples is None else samples
        new, different = self._samples.find_new(seen["sample"], seen["hash"])
        images, seen = images[new], seen[new]
        laid_out = images if self.network.plain else images.permute(0, 2, 3, 1)
        pixels = laid_out.clone(memory_format=torch.contiguous_format)
        self._waiting = self._extract([*self._waiting, *zip(pixels, seen, strict=True)], partial=False)
        self._samples.add(seen["sample"], seen["hash"], different)

    def flush(self) -> None:
        """Runs the network on the waiting images; the last batch is padded with black images."""
        self._waiting = self._extract(self._waiting, partial=True)
        with self._explaining_refusal():
            if self._moments is not None:
                self._moments.flush()
            if not all(torch.isfinite(features).all() for features in self._held):
                raise RunError("the network returned a feature that is NaN or infinite:", "check its weights and input")

    def _extract(self, waiting: list[_Waiting], partial: bool) -> list[_Waiting]:
        """Adds the features of images, and returns those of a partial batch, which are only added if ``partial``."""
        extractor = self.network.extractor(self._device)
        batch_size = self.batch_size or extractor.device.default_batch_size
        at_once = batch_size * max(1, extractor.device.forward_threads)  # batches that run in parallel
        ready = len(waiting) if partial else len(waiting) // at_once * at_once
        if not ready:
            return waiting
        alike: dict[object, list[_Waiting]] = {}
        for image, row in waiting[:ready]:
            alike.setdefault((image.shape, image.dtype) if self.network.plain else (), []).append((image, row))
        batches = [part[at : at + batch_size] for part in alike.values() for at in range(0, len(part), batch_size)]
        seen = np.array([row for batch in batches for _, row in batch], dtype=_SEEN)

        def filled(batch: list[_Waiting]) -> list[list[torch.Tensor]]:
            pixels = [image for image, _ in batch]
            return [pixels + [torch.zeros_like(pixels[0])] * (batch_size - len(batch))]

        def compute() -> torch.Tensor:
            with own_exceptions(), repeatable():
                passes = ForwardPasses([extractor], extractor.device.forward_threads, filled)
                found = list(passes.run(iter(batches)))
            parts = [layers[FEATURES][: len(batch)] for batch, (layers,) in found]
            check_lengths(part.shape[1] for part in parts)
            return torch.cat(parts)

        with computing_on(extractor.device.torch_device):
            features = self.network.once(self.side, (self._device, batch_size, seen["hash"].tolist()), compute)
            check_lengths((self.length, features.shape[1]))
            if self.per_image:
                self._held.append(features.to("cpu", torch.float32))
            elif self._held or (seen["sample"] != UNKNOWN).any():
                self._held.append(features)
            else:
                self._sum(features)
            self._sum_earlier()
        self._seen.append(seen)
        return waiting[ready:]

    def _sum(self, features: torch.Tensor) -> None:
        self._moments = self._moments or self._empty(features.shape[1])
        with self._explaining_refusal():
            self._moments.add(features)

    def _sum_earlier(self) -> None:
        """Adds features to the sums as long as those of the latest images remain."""
        if self.per_image:
            return
        while self._held and sum(map(len, self._held)) - len(self._held[0]) >= _HELD_ROWS:
            self._sum(self._held.popleft())

    @contextlib.contextmanager
    def _explaining_refusal(self) -> Iterator[None]:
        """Adds the consequence to the error if a feature was refused, since it is missing from the sums until reset."""
        try:
            yield
        except RunError as error:
            error.append(f". The statistics lack some {SIDES[self.side]}; {self._reset} before compute()")
            raise

    def to(self, device: torch.device) -> None:
        if device != self._device and device.type != "meta":  # temporarily, before `to_empty`
            check_exact_products(device)
            self._device = device
            if self._moments is not None:
                self._moments.to(device)
            if not self.per_image:
                self._held = deque(features.to(device) for features in self._held)
            self._waiting = [(image.to(device), row) for image, row in self._waiting]

    def merged(self, world: World) -> ImageSums:
        """Returns the statistics of all ranks, without changing this object. A collective; call `flush` first.

        An image of whose sample several ranks have a copy counts once.
        """
        other, seen, held = copy.copy(self), self.seen, self._features()
        every = world.gather((self.length, self.lost, self._samples.different, len(held), seen))
        lengths, of_lost, of_different, of_held, of_seen = zip(*every, strict=True)
        check_lengths(lengths)
        samples, hashes = ([seen[name] for seen in of_seen] for name in ("sample", "hash"))
        kept, other.different = each_once(samples, hashes, of_held)
        held = held[torch.from_numpy(kept[world.rank][len(seen) - len(held) :]).to(held.device)]
        other._held = deque()
        if self.per_image:
            other._held.extend(torch.from_numpy(rows) for rows in world.gather(held.numpy()) if len(rows))
        elif any(lengths) and (world.size > 1 or self._held):
            with world.together():  # memory may run out on one rank, or a feature may be out of range
                other._moments = copy.deepcopy(self._moments) or self._empty(max(lengths))
                if len(held):
                    with self._explaining_refusal():
                        other._moments.add(held)
                        other._moments.flush()
            other._moments.merge(world)
        other.lost = any(of_lost)
        other._samples = KnownSamples()
        other._samples.different = sum(of_different)
        other.of_ranks = [seen[own] for seen, own in zip(of_seen, kept, strict=True)]
        other._seen = other.of_ranks
        return other

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        """Warnings about images that are missing, count twice, or that several of the ``ranks`` have."""
        if self.lost:
            yield f"{SIDES[self.side]} from before the checkpoint are missing from the value"
        seen = self.seen
        if again := added_again(*(seen["hash"][seen["restored"] == old] for old in (False, True))):
            yield (
                f"{again} {SIDES[self.side]} that were added after a checkpoint was loaded are in it too and count "
                f"twice: {self._reset} after loading it, or omit persistent(True)"
            )
        known = seen["sample"][seen["sample"] != UNKNOWN]
        if twice := len(known) - len(np.unique(known)):
            yield (
                f"{twice} of {self.count} {SIDES[self.side]} count again, because several ranks or merged metrics have "
                f"the same samples, more than {_HELD_ROWS} before their last: give each its own, or {self._reset} "
                "before the next epoch, whose shuffled samples are on other ranks"
            )
        # Random reconstructions of a sample that a sampler gives to several ranks differ.
        allowed = max(3, min((self.count or 0) // 2, _HELD_ROWS)) if self.side == "fake" else 0
        across = self.different if self.different > allowed else 0
        yield from left_out(self._samples.different + across, SIDES[self.side], self._reset)
        yield from self._shared(ranks)

    def _shared(self, ranks: Sequence[int]) -> Iterator[str]:
        """Warns about equal images on several ranks. Real ones of known samples are equal in the data set."""
        numbered = all((seen["sample"] != UNKNOWN).all() for seen in self.of_ranks)
        if numbered and self.side == "real":
            return
        shared, on = on_several([seen["hash"] for seen in self.of_ranks], ranks)
        if not shared:
            return
        causes = [] if numbered else [PADDED]
        if self.side == "fake":
            causes.append(
                "all ranks generate with the same seed: seed sample i with fidtool.sample_seed(seed, i), where i "
                "counts the samples of all ranks"
            )
            causes.append("the generator produces few distinct images")
        problem = f"{shared} of {self.count} {SIDES[self.side]} are on more than one rank ({on})"
        meaning = "the value is computed from fewer distinct images than it appears"
        yield f"{problem}: {meaning}. Probably {'; or '.join(causes)}"

    def statistics(self) -> Statistics:
        if self.fixed is not None:
            return self.fixed
        definition = self.network.definition
        if self._moments is None:
            rows, settings = self.rows(), feature_settings(definition, self._device, World(Launch()))
            gaussian = settings.gaussian(rows, np.arange(len(rows)))
        else:
            if not definition.standard:
                self._moments.check_precision()
            gaussian = self._moments.mean_covariance(definition.ddof)
        return Statistics.of(gaussian.mu, gaussian.sigma, gaussian.count, definition)

    def rows(self) -> NDArray[np.float32]:
        """The features of each image, in the order of the images' hashes, which is pseudo-random."""
        if self.fixed is not None:
            assert self.fixed.features is not None
            return self.fixed.features
        rows: NDArray[np.float32] = self._features().numpy()
        return rows[np.argsort(self.seen["hash"], kind="stable")]

    def totals(self) -> State:
        """The sums as CPU tensors, for symmetric matrices the upper triangle. Call `flush` first."""
        seen = self.seen
        totals: dict[str, Any] = {} if self._moments is None else self._moments.totals()
        totals["marks"] = seen["hash"]
        if (seen["sample"] != UNKNOWN).any():
            totals |= {"samples": seen["sample"], "different": self._samples.different}
        state = {name: torch.from_numpy(np.array(values)) for name, values in totals.items()}
        return state | ({"held": self._features().cpu()} if self._held else {})

    def absorb(self, totals: State, restored: bool = False) -> None:
        """Adds the sums that `totals` returned, ``restored`` from a checkpoint or of another metric."""
        try:
            arrays = {name: values.cpu().numpy() for name, values in totals.items()}
            seen = np.zeros(len(arrays["marks"]), _SEEN)
            samples = arrays.get("samples", np.full(len(seen), UNKNOWN))
            seen["hash"], seen["sample"], seen["restored"] = arrays["marks"], samples, restored
            summed, different = int(arrays.get("count", 0)), int(arrays.get("different", 0))
            held = totals.get("held", torch.zeros(0, 0, device="cpu"))
            if not len(samples) == len(seen) == summed + len(held):
                raise ValueError("their numbers of images differ")
            dims = {self.network.definition.dims, self.length, len(arrays.get("sum", ())), held.shape[1]} - {0}
            if len(dims) > 1:
                raise ValueError("their features have another length")
            moments = self._moments
            if "count" in arrays:
                moments = self._moments or self._empty(*dims)
                moments.absorb(arrays)
        except (AttributeError, ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"the statistics to add are not those of this metric's features: {error}") from None
        self._moments = moments
        self._seen = [seen[:summed], *self._seen, seen[summed:]]
        if len(held):
            self._held.append(held.to("cpu" if self.per_image else self._device))
            self._sum_earlier()
        self._samples.add(samples, seen["hash"], different)


def each_once(
    samples: Sequence[NDArray[np.int64]], marks: Sequence[NDArray[np.int64]], free: Sequence[int]
) -> tuple[list[NDArray[np.bool_]], int]:
    """Returns which images of each rank to keep, so that each sample remains once: bool arrays of these shapes.

    Also returns how many of the others have another mark than the one that is kept of their sample. Of each rank only
    the last ``free`` images can be left out. Images whose sample is unknown remain.
    """
    bound = [np.arange(len(own)) < len(own) - last for own, last in zip(samples, free, strict=True)]
    every, hashes = (np.concatenate(of_ranks) for of_ranks in (samples, marks))
    must = np.concatenate(bound)
    order = np.lexsort((~must, every))  # those that must remain come first, then those of the first rank
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = np.diff(every[order]) != 0
    keep = must | (every == UNKNOWN)
    keep[order[starts]] = True
    kept = order[starts][np.cumsum(starts) - 1]  # of the sample of each image in this order
    different = int(((hashes[kept] != hashes[order]) & ~keep[order]).sum())
    return np.split(keep, np.cumsum([len(own) for own in samples])[:-1]), different


def added_again(added: NDArray[np.int64], restored: NDArray[np.int64]) -> int:
    """Returns how many of the hashes a checkpoint had as well; 0 if they can be those of duplicates."""
    again = len(np.intersect1d(added, restored))
    return again if again > max(3, min(len(restored), len(added)) // 4) else 0


def on_several(of_ranks: Sequence[NDArray[np.int64]], ranks: Sequence[int]) -> tuple[int, str]:
    """Returns how many of the hashes of each of the ``ranks`` are on another one too, and which ranks these are."""
    every = np.concatenate([np.empty(0, np.int64), *map(np.unique, of_ranks)])
    hashes, owners = np.unique(every, return_counts=True)
    shared = [int(np.isin(own, hashes[owners > 1]).sum()) for own in of_ranks]
    return sum(shared), listed_ranks([rank for rank, number in zip(ranks, shared, strict=False) if number])


@dataclass(frozen=True)
class Result:
    """Result of a metric's ``compute``.

    ``values`` are those of the metric by the names that they have in the results of ``fidtool compute``, such as
    ``kid`` and ``kid_std``, or ``fid_64`` for the feature 64. ``real`` and ``fake`` are numbers of images; ``real`` is
    None if it is unknown, or if the metric does not use real images. ``scope`` is ``all 4 ranks``, or ``rank 1 of 4
    alone`` if ``sync_on_compute`` is False. ``warnings`` are those of the value, the same on every rank that it covers;
    rank zero also issues them.
    """

    values: Mapping[str, float]
    real: int | None
    fake: int
    scope: str = "this process"
    warnings: tuple[str, ...] = ()

    @property
    def fid(self) -> float | None:
        """The FID; None if this is another metric's result, or the features are not Inception's 2048."""
        return self.values.get("fid")


class MetricState(ABC):
    """The state of one metric, on one rank or merged over all ranks.

    Attributes:
        names: possible keys of `state`.
        counted: how many images or pairs were added, with the noun.
        noun: the noun.
        added: number of generated images, or of pairs.
        evaluated: how many of these the last ``compute`` covered.
        stale: how many of these come from a checkpoint that was saved after their ``compute``.
    """

    names: ClassVar[frozenset[str]]
    noun: ClassVar[str] = "images"
    evaluated = 0
    stale = 0

    @property
    @abstractmethod
    def counted(self) -> str: ...

    @property
    @abstractmethod
    def added(self) -> int: ...

    def clear(self) -> None:
        self.evaluated = 0
        self.stale = 0

    @abstractmethod
    def emptied(self: Kept) -> Kept:
        """Returns a state with the same settings to which nothing was added."""

    @abstractmethod
    def to(self, device: torch.device) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Finishes the work on what was added."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that must be the same on every rank."""

    @abstractmethod
    def merged(self: Kept, world: World) -> Kept:
        """Returns the state of all ranks, without changing this object. A collective; call `flush` first."""

    @abstractmethod
    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        """Warnings about what is missing, counts twice, or is on several of the ``ranks``."""

    def mixed(self) -> Iterator[str]:
        """Warns if one evaluation was saved and another is added to it."""
        if 0 < self.stale < self.added:
            yield (
                f"the value also covers {self.stale} {self.noun} from the checkpoint that was loaded, which had been "
                "evaluated before it was saved: call reset() after loading it"
            )

    @contextlib.contextmanager
    def of_all(self: Kept, ranks: Ranks, purpose: str, seconds: float) -> Iterator[tuple[Kept, World]]:
        """The state of all ranks, once all have flushed theirs and their settings are the same. A collective."""
        try:
            self.flush()
        except Exception as error:  # any error, such as out of memory, must be reported to the other ranks
            ranks.abandon(purpose, as_fidtool_error(error).text, seconds)
            raise
        counts = {"evaluated": self.evaluated, "stale": self.stale}
        payloads = ranks.exchange(purpose, {**self.settings(), **counts}, seconds, _REMEDY)
        check_same_settings(payloads, [f"the metric of rank {rank}" for rank in ranks.ranks])
        with ranks.world(purpose) as world:
            merged = self.merged(world)
            merged.evaluated = sum(payload["evaluated"] for payload in payloads)
            merged.stale = sum(payload["stale"] for payload in payloads)
            yield merged, world

    @abstractmethod
    def absorb(self: Kept, other: Kept) -> None:
        """Adds the state of another metric, whose settings must be the same."""

    # Checkpoints.

    @abstractmethod
    def state(self, group_rank: int, size: int) -> State:
        """Returns the state as CPU tensors; empty if nothing was added. ``group_rank`` is `ALL` after a merge."""

    def restore(self, state: State, group_rank: int, size: int) -> str:
        """Replaces the state by one that `state` returned, on any rank and with any number of ranks.

        Each image is restored on one rank only. Returns a warning if this rank's images are not restored.
        """
        try:
            saved, (was, of) = self._saved_settings(state), state[SHARE].tolist()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                "the checkpoint has no valid definition of its features: this metric did not save it"
            ) from error
        check_same_settings([saved, self.settings()], ("the checkpoint", "this metric"))
        if (was == ALL or of == 1) and group_rank:
            self.clear()
            return ""  # the first rank restores them
        if was != ALL and of > 1 and (was, of) != (group_rank, size):
            self.clear()
            self._lose(state)
            return (
                f"rank {group_rank} of {size} loaded the state of rank {was} of {of}, whose {self.noun} belong to "
                "another rank and were not restored: save the metric within `with metric.sync_context():`, or save the "
                "state of every rank"
            )
        fresh = self.emptied()
        fresh._take(state)
        fresh.stale = fresh.added if EVALUATED in state else 0
        fresh.evaluated = fresh.stale  # also in a state that is saved before the next update
        vars(self).update(vars(fresh))  # only if the state is valid
        return ""

    @abstractmethod
    def _saved_settings(self, state: State) -> dict[str, Any]:
        """The `settings` of the metric that returned a state."""

    @abstractmethod
    def _lose(self, state: State) -> None:
        """Notes what is missing, because it belongs to another rank."""

    @abstractmethod
    def _take(self, state: State) -> None:
        """Adds what a state has."""


class MetricSums(MetricState):
    """The state of a metric of sets of images.

    ``fixed`` are statistics or a statistics file, instead of real images. ``float_to_byte`` is how floats become the
    bytes that are added; None is as for ``fixed``, or as the protocol's tool does.
    """

    _of_sides = (f"{side}_{name}" for side in SIDES for name in _TOTALS)
    names = frozenset([SHARE, EVALUATED, _DEFINITION, _FLOOR, *_of_sides])

    def __init__(
        self,
        features: SharedExtractor,
        metric: Metric,
        fixed: PathLike | Statistics | None,
        batch_size: int | None,
        float_to_byte: str | None,
    ) -> None:
        self.network, self._metric, per_image = features, metric, metric.fake_features
        self.float_to_byte = features.rounding(float_to_byte)
        self.fixed_name, statistics = "", None
        self._doubts = list(features.warnings)
        if fixed is not None:
            self.fixed_name = "real_statistics" if isinstance(fixed, Statistics) else os.fspath(fixed)
            own = {FEATURES: features.choice}  # of a file of several networks
            if isinstance(fixed, Statistics):
                statistics = replace(fixed, layers=fixed.layers_of(own))
            else:
                statistics = read_statistics(self.fixed_name, (FEATURES,) if per_image else (), networks=own)
            mine, theirs = features.definition, statistics.whole(self.fixed_name).definition
            if mine.dims and statistics.dims != mine.dims:
                dims = f"{statistics.dims} dimensions, but the metric's have {mine.dims}"
                raise InputError(f"{self.fixed_name} has features of {dims}")
            with renamed("extractor", "feature"):
                alerts = inception_doubts(self.fixed_name, statistics.layers[FEATURES], features.choice.extractor)
            doubts = [*map(str, alerts)]
            if theirs is not None:
                both = [{"definition": each.to_json()} for each in (theirs, mine)]
                check_same_settings(both, (self.fixed_name, "this metric"))
            stated = (statistics.config or {}).get("float_to_byte", self.float_to_byte)
            if float_to_byte is None:
                self.float_to_byte = features.rounding(stated)
            elif stated != self.float_to_byte:
                doubts.append(f"{self.fixed_name} was made with float_to_byte={stated!r}, and this metric has another")
            if per_image and statistics.features is None:
                problem = f"{self.fixed_name} has no features of each image, which this metric needs:"
                remedy = "write the file with `fidtool stats REAL --metrics fid,kid -o FILE`"
                if layer := features.choice.dims:
                    remedy = f"write the file with `fidtool stats REAL --dims D --metrics fid,kid -o FILE`, D={layer}"
                raise InputError(problem, remedy)
            for doubt in doubts:
                warn_program(doubt)
            self._doubts += doubts
        self.sides = {
            side: ImageSums(features, side, batch_size, per_image, statistics if side == "real" else None)
            for side in SIDES
        }
        self._rounding = "" if self.float_to_byte == features.rounding(None) else self.float_to_byte

    @property
    def counted(self) -> str:
        return f"{self.added} generated images"

    @property
    def added(self) -> int:
        return self.sides["fake"].count or 0

    def clear(self, sides: Iterable[str] = SIDES) -> None:
        super().clear()
        for side in sides:
            self.sides[side].clear()

    def emptied(self) -> MetricSums:
        other = copy.copy(self)
        other.sides = {side: copy.copy(sums) for side, sums in self.sides.items()}
        other.clear()
        return other

    def flush(self) -> None:
        for sums in self.sides.values():
            sums.flush()

    def to(self, device: torch.device) -> None:
        for sums in self.sides.values():
            sums.to(device)

    # Synchronisation of all ranks.

    def settings(self) -> dict[str, Any]:
        real, fixed = "their own images", self.sides["real"].fixed
        if fixed is not None:
            digest = hashlib.sha256(fixed.mu.tobytes() + fixed.sigma.tobytes()).hexdigest()
            real = f"statistics with SHA-256 {digest[:12]}"
        found = {"definition": self.network.definition.to_json(), "real": real}
        found |= {"float_to_byte": self._rounding, "own": repr(self._metric) if self._metric.fake_features else ""}
        return {name: value for name, value in found.items() if value}  # without the usual ones

    def merged(self, world: World) -> MetricSums:
        other = copy.copy(self)
        other.sides = {side: sums.merged(world) for side, sums in self.sides.items()}
        return other

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        yield from self._doubts
        for sums in self.sides.values():
            yield from sums.warnings(ranks)

    def absorb(self, other: MetricSums) -> None:
        check_same_settings([self.settings(), other.settings()], ("this metric", "the other metric"))
        self.flush()
        other.flush()
        sides = [(sums, other.sides[side]) for side, sums in self.sides.items() if sums.fixed is None]
        for pair in sides:
            check_lengths(sums.length for sums in pair)
        for mine, theirs in sides:
            mine.lost |= theirs.lost
            if theirs.count:
                mine.absorb(theirs.totals())

    # Checkpoints.

    def state(self, group_rank: int, size: int) -> State:
        self.flush()
        seen = {side: sums for side, sums in self.sides.items() if sums.fixed is None and sums.count}
        state = {f"{side}_{name}": value for side, sums in seen.items() for name, value in sums.totals().items()}
        if not state:
            return {}
        definition = bytearray(self.network.definition.to_json().encode())
        state[_DEFINITION] = torch.frombuffer(definition, dtype=torch.uint8)
        if self._rounding:
            state[_FLOOR] = torch.tensor(self._rounding == "floor", device="cpu")
        return {**state, SHARE: torch.tensor([group_rank, size], device="cpu")}

    def _saved_settings(self, state: State) -> dict[str, Any]:
        definition = Definition.from_json(bytes(state[_DEFINITION].tolist()).decode())
        rounding = "" if _FLOOR not in state else "floor" if state[_FLOOR] else "round"
        return {**self.settings(), "definition": definition.to_json(), "float_to_byte": rounding}

    def _lose(self, state: State) -> None:
        for side, sums in self.sides.items():
            sums.lost = sums.fixed is None and f"{side}_marks" in state

    def _take(self, state: State) -> None:
        for side, sums in self.sides.items():
            own = {name.removeprefix(f"{side}_"): value for name, value in state.items() if name.startswith(f"{side}_")}
            if own:
                sums.absorb(own, restored=True)


def check_same_settings(settings: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Checks that `MetricSums.settings`, of which some may be unknown, are the same everywhere."""
    first = settings[0]
    for name, other in zip(names, settings, strict=True):
        differences = []
        if "definition" in first:  # a metric of pairs has none
            mine, theirs = (Definition.from_json(each["definition"]) for each in (first, other))
            differences += mine.differences(theirs)
        for key in ("real", "float_to_byte", "own"):
            values = [each.get(key) or "as usual" for each in (first, other)]
            if len({*values}) > 1:
                differences.append(f"{key}: {' against '.join(values)}")
        if differences:
            problem = f"{names[0]} and {name} differ ({', '.join(differences)}):"
            raise on_every_rank(InputError(problem, "make them with the same arguments"))
