"""Statistics of image folders: from the cache, or by all ranks through the network."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch
from PIL import features as pillow_features

from fidtool.config import Config
from fidtool.console import Console
from fidtool.distributed.world import World
from fidtool.errors import InputError, RunError
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor, custom_extractor, inception_definition, inception_extractor
from fidtool.features.protocol import DEFAULT_PROTOCOL, INCEPTION_DIMS, Definition, protocol_named
from fidtool.features.weights import TENSORS_SHA256, Weights, load_weights
from fidtool.images.loader import DecodedBatch, load, worker_deaths_explained
from fidtool.images.plan import cut_batches, deal
from fidtool.images.source import ImageFolder
from fidtool.statistics.cache import StatisticsCache
from fidtool.statistics.moments import ExactMoments
from fidtool.statistics.store import Statistics, Traits


class Clock:
    """Wall time of the phases of a run, in seconds."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started

    def snapshot(self) -> dict[str, float]:
        """Seconds by phase so far, and ``total`` since the clock was made."""
        return {**self._seconds, "total": time.perf_counter() - self._started}


class Measurer:
    """Turns folders into statistics, on all ranks together.

    The network is loaded when the first folder needs it: a run that finds everything in the cache does without.

    Args:
        world: the ranks.
        device: this rank's device.
        config: settings of the run.
        console: rank zero's voice, mute on the others.
        clock: takes the phases' times.

    Attributes:
        definition: what defines the features; the same on every rank.
        arithmetic: what decides their bits beyond the definition.
        batch_size, num_workers: the settings, or the device's defaults.
        images_computed, forward_passes: work done through the network so far, over all ranks.
        cached: paths whose statistics came from the cache.
        probe: see `Extractor.probe`; None until the network was needed.
        warnings: doubts about the run as a whole.
    """

    def __init__(self, world: World, device: Device, config: Config, console: Console, clock: Clock) -> None:
        self._world, self._device, self._config = world, device, config
        self._console, self._clock = console, clock
        self._protocol = protocol_named(config.protocol or DEFAULT_PROTOCOL)
        self._weights: Weights | None = None
        self._extractor: Extractor | None = None
        self._cache = StatisticsCache(console.warn)
        # Rank zero's default: another device on another rank must not lead to another plan.
        self.batch_size = world.broadcast(config.batch_size or device.default_batch_size)
        default_workers = device.default_workers(world.launch)
        self.num_workers = default_workers if config.num_workers is None else config.num_workers
        self.images_computed = self.forward_passes = 0
        self.cached: list[str] = []
        self.probe: str | None = None
        self.warnings: list[str] = []
        with clock("weights"):
            self.definition = self._define()
        self.arithmetic: dict[str, str | int] = {
            "device": device.name,
            "precision": config.precision,
            "torch": torch.__version__,
            "pillow": version("pillow"),
            "libjpeg": _libjpeg(),
            "batch_size": self.batch_size,
            "fidtool": versions().get("fidtool", ""),
        }
        if self._config.extractor != "inception":
            # The file's hash and the tensors' miss what the code imports or reads; what it computes does not.
            self.arithmetic["probe"] = self.probe or ""

    def _define(self) -> Definition:
        if self._config.extractor != "inception":
            return self._define_custom()

        def on_rank_zero() -> Definition:
            dims = self._config.dims or max(INCEPTION_DIMS)
            inception_definition(self._protocol, dims, "")  # a wrong --dims is said before anything is downloaded
            self._weights = load_weights(self._config.weights, self._console.say)
            if self._weights.sha256 != TENSORS_SHA256:
                self.warnings.append(
                    f"{self._weights.origin} holds other weights than FID's (tensors' SHA-256 {self._weights.sha256}): "
                    "the number compares with nobody else's; see `fidtool weights --verify`"
                )
            return inception_definition(self._protocol, dims, self._weights.sha256)

        return self._world.on_rank_zero(on_rank_zero)

    def _define_custom(self) -> Definition:
        """Every rank runs the factory; all must build the same network."""
        if self._config.weights is not None:
            raise InputError("--weights is for Inception; your own network's factory loads its weights itself")
        with self._world.together():
            self._extractor = custom_extractor(self._config.extractor, self._protocol, self._device)
        assert self._extractor is not None
        mine = self._extractor.definition
        for rank, other in enumerate(self._world.gather(mine)):
            if mine.differences(other):
                raise InputError(
                    f"--extractor {self._config.extractor} built another network on rank {rank} than on rank "
                    f"{self._world.rank} ({', '.join(mine.differences(other))}): seed it, or load its weights from a "
                    "file"
                )
        self._check_probe(self._extractor)
        return mine

    def statistics(self, folder: ImageFolder | None) -> Statistics | None:
        """Statistics of one folder. A collective.

        Args:
            folder: the images in canonical order, on rank zero; None on the others.

        Returns:
            The statistics on rank zero, None on the others.

        Raises:
            FidtoolError: an image cannot be read, a rank was lost, a feature is out of range.
        """
        known: list[Statistics] = []  # on rank zero, once there is something to know

        def look_up() -> ImageFolder | None:
            """The folder as the other ranks need it, or None where the cache has its statistics."""
            assert folder is not None
            found = self._cache.get(self._key(folder)) if self._config.cache else None
            if found is None:
                return folder.without_stamps()
            self._console.say(f"{folder.path}: statistics of {len(folder)} images from the cache")
            self.cached.append(folder.path)
            known.append(found)
            return None

        def finish() -> None:
            assert folder is not None
            known.append(self._finished(folder, moments, traits))

        shared = self._world.on_rank_zero(look_up)
        if shared is not None:
            moments, traits = self._measure(shared, self._network())
            self._world.on_rank_zero(finish)
        return known[0] if known else None

    def _key(self, folder: ImageFolder) -> str:
        return self._cache.key(folder, self.definition, self.arithmetic)

    def _finished(self, folder: ImageFolder, moments: ExactMoments, traits: Traits) -> Statistics:
        gaussian = moments.mean_covariance(self.definition.ddof)
        result = Statistics(gaussian.mu, gaussian.sigma, len(folder), self.definition, self.arithmetic, traits)
        changed = folder.changed()
        if changed:
            self.warnings.append(
                f"{len(changed)} files of {folder.path} changed while they were being read, {changed[0]} among them: "
                "the number may be of a mixture; run it again"
            )
        elif self._config.cache:
            self._cache.put(self._key(folder), folder, result)
        return result

    def _network(self) -> Extractor:
        if self._extractor is None:
            with self._clock("weights"):
                weights = self._world.broadcast(self._weights)
                with self._world.together():
                    assert weights is not None
                    self._extractor = inception_extractor(self._protocol, self.definition, weights, self._device)
                self._weights = None
                assert self._extractor is not None
                self._check_probe(self._extractor)
        return self._extractor

    def _check_probe(self, extractor: Extractor) -> None:
        """Runs the same batch on every rank and warns where the bits differ (promise: the same bits at any size)."""
        # Kernels depend on the batch's shape on a GPU, not on the CPU, where a full batch would take seconds.
        size = 2 if self._device.torch_device.type == "cpu" else self.batch_size
        with self._world.together():
            self.probe = extractor.probe(size)
        seen = self._world.gather((self.probe, self._device.name))
        for rank, (probe, name) in enumerate(seen):
            if probe != seen[0][0]:
                self.warnings.append(
                    f"rank {rank} ({name}) computes other bits than rank 0 ({seen[0][1]}): the last digits of this FID "
                    "depend on how the images were dealt; use one kind of device to have them repeatable"
                )
                break

    def _measure(self, folder: ImageFolder, extractor: Extractor) -> tuple[ExactMoments, Traits]:
        world = self._world
        moments = ExactMoments(self.definition.dims, self.definition.feature_step, self._device.exact_sums)
        batches = cut_batches(len(folder), self.batch_size)
        mine = deal(batches, world.rank, world.size)
        traits, places = Traits(), 0
        progress = self._console.progress(folder.path, sum(map(len, mine)))
        with self._clock("extract"), world.together(), worker_deaths_explained(), progress:
            pin = self._device.torch_device.type == "cuda"
            stream = _readable(load(folder, mine, self.num_workers, pin))
            for batch, features in extractor.run(stream, lambda item: item.images(self._device.torch_device)):
                moments.add(features)
                traits += Traits(batch.lossy, batch.alpha, batch.deep)
                places += sum((place + 1) ** 2 for place in batch.indices)
                progress.advance(len(batch.sizes))
                if world.peer_failed():
                    break
            moments.flush()
        with self._clock("merge"):
            moments.merge(world)
            shares = world.gather((traits, places))
        traits = sum((share for share, _ in shares), Traits())
        # The squares tell one image counted twice and another dropped from all counted once.
        if sum(places for _, places in shares) != sum((place + 1) ** 2 for place in range(len(folder))):
            raise RunError(f"not every image of {folder.path} was counted exactly once; please report this")
        self.images_computed += moments.count
        self.forward_passes += len(batches)
        return moments, traits


def _readable(batches: Iterator[DecodedBatch]) -> Iterator[DecodedBatch]:
    for batch in batches:
        if batch.failure is not None:
            raise InputError(f"{batch.failure}; mend or remove the file")
        yield batch


def versions() -> dict[str, str]:
    """Versions of what touches the numbers: Python, the libraries, and the JPEG decoder inside Pillow."""
    found = {"python": platform.python_version()}
    for name in ("fidtool", "torch", "torchvision", "numpy", "scipy", "pillow"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    found["libjpeg"] = _libjpeg()
    return found


def _libjpeg() -> str:
    return pillow_features.version("libjpeg_turbo") or pillow_features.version("jpg") or "none"
