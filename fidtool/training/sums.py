"""The state of a metric: exact statistics of real and generated images, merged over ranks, saved and restored."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distances.exact import feature_settings
from fidtool.distributed.launch import Launch
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
from fidtool.training.rows import PADDED, UNKNOWN, Rows, SampleRows, State, on_several

HEADER = "header"
"""Key of a JSON in a state: the settings, of which rank it is, and whether `compute` covered all images or pairs."""
ALL = -1
"""In place of a rank: the images are those of all ranks."""
SIDES = {"real": "real images", "fake": "generated images"}
_REMEDY = (
    "call it on every rank, outside `if rank == 0` and @rank_zero_only; or create the metric with "
    "sync_on_compute=False to compute the value of this rank only"
)

Kept = TypeVar("Kept", bound="MetricState[Any]")
_HELD_ROWS = 1024
"""Number of the latest images whose features are kept out of the sums. Samplers repeat samples in a rank's last batch,
and these are left out if another rank has them."""

_Waiting = tuple[torch.Tensor, Any]
"""The pixels of an image, and what is known of it."""


def check_lengths(lengths: Iterable[int]) -> None:
    """Checks the lengths of feature vectors, of which 0 is unknown."""
    known = sorted(set(lengths) - {0})
    if len(known) > 1:
        raise InputError(
            f"the network returns features of different lengths, {' and '.join(map(str, known))}:",
            "it must return as many for each image on every rank",
        )


@dataclass(eq=False)
class ImageSums(SampleRows):
    """A metric's state of the real or of the generated images: their features, and the images of a partial batch.

    The network always gets batches of one size; the last is padded. Kernels depend on the batch's shape, so features
    are bit-identical regardless of how the images were passed. A hash of each image is stored to detect images that
    several ranks have, and those that are added again after a checkpoint that has them was restored.

    With ``per_image`` all features are held, otherwise those of the latest samples, and the exact sums of those before.
    ``fixed`` are statistics in place of images.
    """

    network: SharedExtractor
    side: str
    batch_size: int | None
    per_image: bool = False
    fixed: Statistics | None = None

    def __post_init__(self) -> None:
        self.noun = SIDES[self.side]
        if self.side == "real":
            self.reset += " of a metric made with reset_real_features=True"
        self.clear()

    @property
    def names(self) -> tuple[str, ...]:
        return (*super().names, *SUMS, "held")

    def clear(self) -> None:
        super().clear()
        self._moments: ExactMoments | None = None  # a plain module's first output shows the length of a vector
        self._held = deque[torch.Tensor]()  # features of the last images of `seen`, which are not in the sums
        self._waiting: list[_Waiting] = []

    def _empty(self, dims: int) -> ExactMoments:
        definition = self.network.definition
        setting = "" if self.network.choice.given else self.network.choice.step_setting
        return ExactMoments(dims, definition.feature_step, self._device, None if definition.standard else setting)

    @property
    def count(self) -> int | None:
        """Number of images; None if the statistics file does not have it."""
        if self.fixed is not None:
            return self.fixed.count
        return sum(map(len, self._parts)) + len(self._waiting)

    @property
    def length(self) -> int:
        if self._moments is not None:
            return self._moments.dims
        return self._held[0].shape[1] if self._held else 0

    def _features(self) -> torch.Tensor:
        """The features that are held, shape (n, D)."""
        return torch.cat([*self._held]) if self._held else torch.zeros(0, 0, device="cpu")

    def add(self, images: torch.Tensor, samples: NDArray[np.int64] | None = None) -> None:
        """Adds images and runs the network on full batches. If the network fails, none of the images are added.

        An image whose number in ``samples`` was added before is left out.
        """
        seen = self._blank(len(images))
        seen["hash"] = image_hashes(images).numpy()
        seen["sample"] = UNKNOWN if samples is None else samples
        new, different = self._find_new(seen)
        images, seen = images[new], seen[new]
        laid_out = images if self.network.plain else images.permute(0, 2, 3, 1)
        pixels = laid_out.clone(memory_format=torch.contiguous_format)
        self._waiting = self._extract([*self._waiting, *zip(pixels, seen, strict=True)], partial=False)
        self._note(seen, different)

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
        seen = np.stack([row for batch in batches for _, row in batch])

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
        self._parts.append(seen)
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
            error.append(f". The statistics lack some {self.noun}; {self.reset} before compute()")
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
        lengths = world.gather(self.length)
        check_lengths(lengths)
        held = self._features()
        other, kept = self._merged_rows(world, len(held))
        held = held[torch.from_numpy(kept[len(kept) - len(held) :]).to(held.device)]
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
        return other

    def _most_random_copies(self) -> int:
        """Random reconstructions of a sample that a sampler gives to several ranks differ."""
        return max(3, min((self.count or 0) // 2, _HELD_ROWS)) if self.side == "fake" else 0

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        yield from super().warnings(ranks)
        numbers = self.seen["sample"]
        known = numbers[numbers != UNKNOWN]
        if twice := len(known) - len(np.unique(known)):
            yield (
                f"{twice} of {self.count} {self.noun} count again, because several ranks or merged metrics have "
                f"the same samples, more than {_HELD_ROWS} before their last: give each its own, or {self.reset} "
                "before the next epoch, whose shuffled samples are on other ranks"
            )
        yield from self._shared(ranks)

    def _shared(self, ranks: Sequence[int]) -> Iterator[str]:
        """Warns about equal images on several ranks. Real ones of known samples are equal in the data set."""
        numbered = all((seen["sample"] != UNKNOWN).all() for seen in self.of_ranks)
        if numbered and self.side == "real":
            return
        shared, on = on_several(self.of_ranks, ranks)
        if not shared:
            return
        causes = [] if numbered else [PADDED]
        if self.side == "fake":
            causes.append(
                "all ranks generate with the same seed: seed sample i with fidtool.sample_seed(seed, i), where i "
                "counts the samples of all ranks"
            )
            causes.append("the generator produces few distinct images")
        problem = f"{shared} of {self.count} {self.noun} are on more than one rank ({on})"
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
        """Also the sums, of which symmetric matrices are the upper triangle, and the features that are held."""
        sums = {} if self._moments is None else self._moments.totals()
        totals = super().totals() | {name: torch.from_numpy(np.array(values)) for name, values in sums.items()}
        return totals | ({"held": self._features().cpu()} if self._held else {})

    def absorb(self, totals: State, restored: bool = False) -> None:
        seen, different = self._rows_of(totals, restored)
        sums = {name: totals[name].cpu().numpy() for name in SUMS if name in totals}
        summed = int(sums.get("count", 0))
        held = totals.get("held", torch.zeros(0, 0, device="cpu"))
        if len(seen) != summed + len(held):
            raise ValueError("their numbers of images differ")
        dims = {self.network.definition.dims, self.length, len(sums.get("sum", ())), held.shape[1]} - {0}
        if len(dims) > 1:
            raise ValueError("their features have another length")
        if sums:
            self._moments = self._moments or self._empty(*dims)
            self._moments.absorb(sums)
        self._parts = [seen[:summed], *self._parts, seen[summed:]]
        if len(held):
            self._held.append(held.to("cpu" if self.per_image else self._device))
            self._sum_earlier()
        self._note(seen, different)


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


class MetricState(ABC, Generic[Rows]):
    """The state of one metric, on one rank or merged over all ranks.

    Attributes:
        sides: the sets of images, or the pairs, by the prefix of their keys in `state`. The last are those to evaluate.
        noun: what these are.
        saved: names of the settings that a state has.
        damaged: what a refused state is not.
        evaluated: how many of these the last ``compute`` covered.
        stale: how many of these come from a checkpoint that was saved after their ``compute``.
    """

    sides: dict[str, Rows]
    noun: ClassVar[str]
    saved: ClassVar[tuple[str, ...]]
    damaged: ClassVar[str]
    evaluated = 0
    stale = 0

    @property
    @abstractmethod
    def counted(self) -> str:
        """How many generated images or pairs were added, with the noun."""

    @property
    def added(self) -> int:
        """Number of generated images, or of pairs."""
        *_, evaluated = self.sides.values()
        return evaluated.count or 0

    @property
    def names(self) -> set[str]:
        """Possible keys of `state`."""
        of_sides = {f"{side}_{name}" for side, rows in self.sides.items() for name in rows.names}
        return {HEADER} | of_sides

    def clear(self, *kept: str) -> None:
        """Discards what was added, except that of the sides that are ``kept``."""
        self.evaluated = 0
        self.stale = 0
        for side, rows in self.sides.items():
            if side not in kept:
                rows.clear()

    def emptied(self: Kept) -> Kept:
        """Returns a state with the same settings to which nothing was added."""
        other = copy.copy(self)
        other.sides = {side: copy.copy(rows) for side, rows in self.sides.items()}
        other.clear()
        return other

    def to(self, device: torch.device) -> None:
        for rows in self.sides.values():
            rows.to(device)

    def flush(self) -> None:
        """Finishes the work on what was added."""
        for rows in self.sides.values():
            rows.flush()

    # Synchronisation of all ranks.

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that must be the same on every rank."""

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        """Warnings about what is missing, counts twice, or is on several of the ``ranks``."""
        for rows in self.sides.values():
            yield from rows.warnings(ranks)

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
            merged = copy.copy(self)
            merged.sides = {side: rows.merged(world) for side, rows in self.sides.items()}
            merged.evaluated = sum(payload["evaluated"] for payload in payloads)
            merged.stale = sum(payload["stale"] for payload in payloads)
            yield merged, world

    def absorb(self: Kept, other: Kept) -> None:
        """Adds the state of another metric, whose settings must be the same."""
        check_same_settings([self.settings(), other.settings()], ("this metric", "the other metric"))
        self.flush()
        other.flush()
        sides = [(rows, other.sides[side]) for side, rows in self.sides.items() if rows.fixed is None]
        for mine, theirs in sides:
            check_lengths((mine.length, theirs.length))
        for mine, theirs in sides:
            mine.join(theirs)

    # Checkpoints.

    def state(self, group_rank: int, size: int) -> State:
        """Returns the state as CPU tensors; empty if nothing was added. ``group_rank`` is `ALL` after a merge."""
        self.flush()
        filled = {side: rows for side, rows in self.sides.items() if rows.fixed is None and rows.count}
        if not filled:
            return {}
        state = {f"{side}_{name}": values for side, rows in filled.items() for name, values in rows.totals().items()}
        evaluated = self.evaluated >= self.added > 0
        header = {"settings": self._saved_settings(), "rank": group_rank, "size": size, "evaluated": evaluated}
        state[HEADER] = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        return state

    def _saved_settings(self) -> dict[str, Any]:
        settings = self.settings()
        return {name: settings.get(name, "") for name in self.saved}

    def restore(self, state: State, group_rank: int, size: int) -> str:
        """Replaces the state by one that `state` returned, on any rank and with any number of ranks.

        Each image is restored on one rank only. Returns a warning if this rank's images are not restored.
        """
        own = self._saved_settings()
        try:
            header = json.loads(bytes(state[HEADER].tolist()))
            saved, was, of = header["settings"], int(header["rank"]), int(header["size"])
            if saved.keys() != own.keys():
                raise ValueError(f"its settings are {saved.keys()}")
            if "definition" in saved:
                Definition.from_json(saved["definition"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                "the checkpoint has no valid definition of its features: this metric did not save it"
            ) from error
        check_same_settings([saved, own], ("the checkpoint", "this metric"))
        if (was == ALL or of == 1) and group_rank:
            self.clear()
            return ""  # the first rank restores them
        of_sides = {
            side: {
                name.removeprefix(f"{side}_"): values for name, values in state.items() if name.startswith(f"{side}_")
            }
            for side, rows in self.sides.items()
            if rows.fixed is None
        }
        if was != ALL and of > 1 and (was, of) != (group_rank, size):
            self.clear()
            for side, totals in of_sides.items():
                self.sides[side].lost = bool(totals)
            return (
                f"rank {group_rank} of {size} loaded the state of rank {was} of {of}, whose {self.noun} belong to "
                "another rank and were not restored: save the metric within `with metric.sync_context():`, or save the "
                "state of every rank"
            )
        fresh = self.emptied()
        try:
            for side, totals in of_sides.items():
                if totals:
                    fresh.sides[side].absorb(totals, restored=True)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.damaged}: {error}") from None
        fresh.stale = fresh.added if header.get("evaluated") else 0
        fresh.evaluated = fresh.stale  # also in a state that is saved before the next update
        vars(self).update(vars(fresh))  # only if the state is valid
        return ""


class MetricSums(MetricState[ImageSums]):
    """The state of a metric of sets of images.

    ``fixed`` are statistics or a statistics file, instead of real images. ``float_to_byte`` is how floats become the
    bytes that are added; None is as for ``fixed``, or as the protocol's tool does.
    """

    noun = "images"
    saved = ("definition", "float_to_byte")
    damaged = "the statistics to add are not those of this metric's features"

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

    def settings(self) -> dict[str, Any]:
        real, fixed = "their own images", self.sides["real"].fixed
        if fixed is not None:
            digest = hashlib.sha256(fixed.mu.tobytes() + fixed.sigma.tobytes()).hexdigest()
            real = f"statistics with SHA-256 {digest[:12]}"
        found = {"definition": self.network.definition.to_json(), "real": real}
        found |= {"float_to_byte": self._rounding, "own": repr(self._metric) if self._metric.fake_features else ""}
        return {name: value for name, value in found.items() if value}  # without the usual ones

    def warnings(self, ranks: Sequence[int]) -> Iterator[str]:
        yield from self._doubts
        yield from super().warnings(ranks)


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
