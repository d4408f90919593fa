"""The features of the real or of the generated images of a metric: exact sums, and those that are
kept themselves.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fidtool.distances.exact import FeatureSettings
from fidtool.distributed.world import World
from fidtool.errors import InputError, ResultWarning, RunError, unwrap_program_errors
from fidtool.features.device import deterministic_mode, device_context
from fidtool.features.extractor import Extractor
from fidtool.features.passes import ForwardPasses
from fidtool.features.protocol import FEATURES
from fidtool.statistics.moments import ExactMoments, check_exact_products, not_finite_error
from fidtool.statistics.set_statistics import SUMS, Statistics
from fidtool.training.feature_extractor import SharedExtractor
from fidtool.training.inputs import image_hashes
from fidtool.training.rows import (
    LEFT_OUT,
    PADDED,
    UNKNOWN,
    Mask,
    Numbers,
    SampleRows,
    State,
    count_shared,
    find_new_samples,
)

SIDES = {"real": "real images", "fake": "generated images"}
HELD_ROWS = 1024
"""Number of the latest images whose features are kept out of the sums. Samplers repeat samples in a
rank's last batch, and these are left out if another rank has them.
"""

# The pixels of images, and what is known of each.
_Batch = list[tuple[Tensor, np.void]]


def check_lengths(lengths: Iterable[int]) -> None:
    """Check the lengths of feature vectors, of which 0 is unknown."""
    known = sorted(set(lengths) - {0})
    if len(known) > 1:
        raise InputError(
            f"features of different lengths, {' and '.join(map(str, known))}, cannot be added up:",
            "the network must return equally many features for each image on every rank",
        )


@dataclass(eq=False)
class ImageSums(SampleRows):
    """A metric's state of the real or of the generated images: their features, and the images of a
    partial batch.

    The network always gets batches of one size; the last is padded. Kernels depend on the batch's
    shape, so features are bit-identical regardless of how the images were passed. A hash of each
    image is stored to detect images that several ranks have, and those that are added again after a
    checkpoint that has them was restored.

    With ``per_image`` all features are held, otherwise those of the latest samples, and the exact
    sums of those before.
    """

    network: SharedExtractor
    side: str
    batch_size: int | None
    per_image: bool = False

    def __post_init__(self) -> None:
        self.noun = SIDES[self.side]
        if self.side == "real":
            self.reset += " of a metric made with reset_real_features=True"
        self.clear()

    def clear(self) -> None:
        super().clear()
        # The first output of a plain module shows the length of a vector.
        self._moments: ExactMoments | None = None
        # On the CPU: features of the last images of `seen`, which are not in the sums.
        self._held = deque[Tensor]()
        self._waiting: _Batch = []

    def _empty_moments(self, dims: int) -> ExactMoments:
        definition = self.network.definition
        setting = None if definition.standard else self.network.step_setting
        return ExactMoments(dims, definition.feature_step, self._device, setting)

    @property
    def count(self) -> int:
        """Number of images."""
        return super().count + len(self._waiting)

    @property
    def length(self) -> int:
        """Length of a feature vector; 0 if it is not known yet."""
        if self._moments is not None:
            return self._moments.dims
        return self._held[0].shape[1] if self._held else 0

    def _held_features(self) -> Tensor:
        """The features that are held, shape (n, D)."""
        none = torch.zeros(0, self.length, dtype=torch.float32, device="cpu")
        return torch.cat([none, *self._held])

    def add(self, images: Tensor, samples: int | Numbers) -> None:
        """Add images and run the network on full batches. If the network fails, none of the
        images are added.

        An image whose number in ``samples`` was added before is left out.
        """
        seen = self._blank(len(images))
        seen["hash"] = image_hashes(images).numpy()
        seen["sample"] = samples
        new_samples = find_new_samples(seen, "hash", self._hashes)
        images = images[torch.from_numpy(new_samples.new)]
        if not self.network.plain:
            images = images.permute(0, 2, 3, 1)
        pixels = images.clone(memory_format=torch.contiguous_format)
        added = zip(pixels, seen[new_samples.new], strict=True)
        self._waiting = self._extract([*self._waiting, *added], partial=False)
        self._record_samples(new_samples)

    def flush(self) -> None:
        """Run the network on the waiting images; the last batch is padded with black images."""
        self._waiting = self._extract(self._waiting, partial=True)
        with self._explain_missing_features():
            if self._moments is not None:
                self._moments.flush()
            if not all(torch.isfinite(features).all() for features in self._held):
                raise not_finite_error()

    def _extract(self, waiting: _Batch, partial: bool) -> _Batch:
        """Add the features of images, and return those of a partial batch, which are only added
        if ``partial``.
        """
        extractor = self.network.extractor(self._device)
        batch_size = self.batch_size or extractor.device.default_batch_size
        ready = len(waiting)
        if not partial:
            ready -= ready % (batch_size * max(1, extractor.device.forward_threads))
        if not ready:
            return waiting
        batches = self._batches(waiting[:ready], batch_size)
        seen = np.stack([row for batch in batches for _, row in batch])
        images = self._device, batch_size, seen["hash"].tolist()
        with device_context(self._device):
            parts = self.network.compute_once(
                self.side, images, lambda: _extract_features(batches, extractor, batch_size)
            )
            check_lengths([self.length, *(part.shape[1] for part in parts)])
            features = torch.cat(parts)
            if self.per_image or self._held or (seen["sample"] != UNKNOWN).any():
                self._hold(features)
            else:
                self._sum(features)
        self.parts.append(seen)
        return waiting[ready:]

    def _batches(self, waiting: _Batch, batch_size: int) -> list[_Batch]:
        """Divide images into batches; a plain module gets images of one shape at a time."""
        alike: dict[object, _Batch] = {}
        for image, row in waiting:
            kind = (image.shape, image.dtype) if self.network.plain else None
            alike.setdefault(kind, []).append((image, row))
        batches = []
        for images in alike.values():
            for start in range(0, len(images), batch_size):
                batches.append(images[start : start + batch_size])
        return batches

    def _sum(self, features: Tensor) -> None:
        if self._moments is None:
            self._moments = self._empty_moments(features.shape[1])
        with self._explain_missing_features():
            self._moments.add(features)
            self._moments.check_range()

    def _hold(self, features: Tensor) -> None:
        """Hold features, and unless all are held sums earlier ones, as long as those of the latest
        images remain.
        """
        self._held.append(features.cpu())
        while not self.per_image and sum(map(len, self._held)) - len(self._held[0]) >= HELD_ROWS:
            self._sum(self._held.popleft())

    @contextlib.contextmanager
    def _explain_missing_features(self) -> Iterator[None]:
        """Add the consequence to the error if a feature was refused, since it is missing from the
        sums until reset.
        """
        try:
            yield
        except RunError as error:
            error.note += f". The statistics lack some {self.noun}; {self.reset} before compute()"
            raise

    def to(self, device: torch.device) -> None:
        if device == self._device:
            return
        check_exact_products(device)
        self._device = device
        if self._moments is not None:
            self._moments.to(device)
        self._waiting = [(image.to(device), row) for image, row in self._waiting]

    def merge_ranks(self, world: World) -> ImageSums:
        lengths = world.gather(self.length)
        check_lengths(lengths)
        held = self._held_features()
        other, remain = self._merge_rows(world, len(held))
        held = held[torch.from_numpy(remain)]
        if self.per_image:
            for features in world.gather(held.numpy()):
                if len(features):
                    other._held.append(torch.from_numpy(features))
        elif any(lengths):
            # Memory may run out on one rank, or a feature may be out of range.
            with world.together():
                other._moments = copy.deepcopy(self._moments) or self._empty_moments(max(lengths))
                other._sum(held)
                other.flush()
            other._moments.merge(world)
        return other

    def _most_random_copies(self) -> int:
        """Random reconstructions of a sample that a sampler gives to several ranks differ."""
        return max(3, min(self.count // 2, HELD_ROWS)) if self.side == "fake" else 0

    def warnings(self, ranks: Sequence[int]) -> Iterator[ResultWarning]:
        yield from super().warnings(ranks)
        numbers = self.seen["sample"]
        known = numbers[numbers != UNKNOWN]
        if twice := len(known) - len(np.unique(known)):
            yield ResultWarning(
                "",
                f"{twice} of {self.count} {self.noun} count more than once, because several ranks "
                f"or merged metrics have the same samples, which are not among their latest "
                f"{HELD_ROWS} images: give each rank or metric its own samples, or {self.reset} "
                "before the next epoch, in which shuffled samples are on other ranks",
            )
        numbered = len(known) == len(numbers)
        # Real images of known samples are equal in the dataset.
        if self.side == "fake" or not numbered:
            yield from self._warnings_of_equal_images(ranks, numbered)

    def _warnings_of_equal_images(
        self, ranks: Sequence[int], numbered: bool
    ) -> Iterator[ResultWarning]:
        shared, names = count_shared(self.parts, ranks)
        if not shared:
            return
        causes = [] if numbered else [PADDED]
        if self.side == "fake":
            causes += [
                "all ranks generate with the same seed: seed sample i with "
                "fidtool.sample_seed(seed, i), where i counts the samples of all ranks",
                "the generator produces few distinct images",
            ]
        yield ResultWarning(
            "",
            f"{shared} of {self.count} {self.noun} are on more than one rank ({names}): the value "
            "is computed from fewer distinct images than it appears. Probably "
            + "; or ".join(causes),
        )

    def statistics(self) -> Statistics:
        definition = self.network.definition
        if self._moments is None:
            settings = FeatureSettings(definition.feature_step, definition.ddof, self._device)
            gaussian = settings.gaussian(self._held_features().numpy(), np.arange(self.count))
        else:
            if not definition.standard:
                self._moments.check_precision()
            gaussian = self._moments.mean_covariance(definition.ddof)
        return Statistics.of(gaussian.mu, gaussian.sigma, gaussian.count, definition)

    def rows(self) -> NDArray[np.float32]:
        """The features of each image, in the order of the images' hashes, which is
        pseudo-random.
        """
        rows: NDArray[np.float32] = self._held_features().numpy()
        return rows[np.argsort(self.seen["hash"], kind="stable")]

    def totals(self) -> State:
        """Also the sums, of which symmetric matrices are the upper triangle, and the features that
        are held.
        """
        totals = super().totals()
        if self._moments is not None:
            for name, values in self._moments.totals().items():
                totals[name] = torch.from_numpy(np.array(values))
        if self._held:
            totals["held"] = self._held_features()
        return totals

    def absorb(self, totals: State, restored: bool | Mask) -> None:
        """Keep all images: of a sample that is there twice, one is left out when the ranks are
        merged.
        """
        seen = self._make_rows(totals, restored)
        sums = {name: totals[name].cpu().numpy() for name in SUMS if name in totals}
        held = totals.get("held", torch.zeros(0, 0, device="cpu")).cpu()
        summed = len(seen) - len(held)
        if summed != sums.get("count", 0):
            raise ValueError("their numbers of images differ")
        lengths = [
            self.network.definition.dims,
            self.length,
            len(sums.get("sum", ())),
            held.shape[1],
        ]
        check_lengths(lengths)
        if sums:
            self._moments = self._moments or self._empty_moments(max(lengths))
            self._moments.absorb(sums)
        self.parts = [seen[:summed], *self.parts, seen[summed:]]
        if len(held):
            self._hold(held)
        self.left_out += int(totals[LEFT_OUT])
        self._hashes |= find_new_samples(seen, "hash", {}).added


def _extract_features(batches: list[_Batch], extractor: Extractor, batch_size: int) -> list[Tensor]:
    """Return the features of each batch. A partial batch is padded with black images."""

    def pad(batch: _Batch) -> contextlib.AbstractContextManager[list[list[Tensor]]]:
        pixels = [image for image, _ in batch]
        pixels += [torch.zeros_like(pixels[0])] * (batch_size - len(batch))
        return contextlib.nullcontext([pixels])

    with unwrap_program_errors(), deterministic_mode():
        passes = ForwardPasses([extractor], extractor.device.forward_threads, pad)
        return [layers[FEATURES][: len(batch)] for batch, (layers,) in passes.run(iter(batches))]
