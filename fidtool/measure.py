"""Statistics of image folders: from the cache, or by all ranks through the network."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import features as pillow_features

from fidtool.clock import Clock
from fidtool.config import Config
from fidtool.console import Console
from fidtool.distributed.in_sync import find_drift, fingerprints, summary
from fidtool.distributed.world import World
from fidtool.errors import InputError, on_every_rank
from fidtool.extraction import Extraction
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor, custom_extractor, inception_definition, inception_extractor
from fidtool.features.protocol import DEFAULT_PROTOCOL, INCEPTION_DIMS, Definition, protocol_named
from fidtool.features.weights import TENSORS_SHA256, Weights, load_weights
from fidtool.images.plan import cut_batches
from fidtool.images.source import ImageFolder
from fidtool.statistics.cache import StatisticsCache
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.share import Share
from fidtool.statistics.store import Statistics


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
        images_resumed: images whose work was in the checkpoint.
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
        self.images_computed = self.forward_passes = self.images_resumed = 0
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
        self._checkpoint: Checkpoint | None = None
        if config.checkpoint is not None:
            every, limit = config.checkpoint_every, config.max_pixels
            self._checkpoint = Checkpoint(config.checkpoint, every, limit, self._complain)
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
            message = "--weights is for Inception; your own network's factory loads its weights itself"
            raise on_every_rank(InputError(message))
        with self._world.together():
            self._extractor = custom_extractor(self._config.extractor, self._protocol, self._device)
        assert self._extractor is not None
        self._check_in_sync(self._extractor)
        first, *others = self._world.gather(self._extractor.definition)
        for rank, other in enumerate(others, 1):
            if differences := first.differences(other):
                built = f"--extractor {self._config.extractor} built another network on rank {rank} than on rank 0"
                advice = "seed it, or load its weights from a file"
                raise on_every_rank(InputError(f"{built} ({', '.join(differences)}): {advice}"))
        self._check_probe(self._extractor)
        return first

    def open_checkpoint(self, folders: Sequence[ImageFolder]) -> None:
        """Makes the checkpoint folder this run's, or takes up its work. A collective.

        Args:
            folders: all sets that will be measured, in their order, on rank zero.

        Raises:
            InputError: it belongs to another run.
        """
        checkpoint = self._checkpoint
        if checkpoint is None:
            return

        def claim() -> tuple[str, str]:
            order = {"num": self._config.num, "seed": self._config.seed}
            sets = [
                {"path": os.path.realpath(folder.path), "count": len(folder), "identity": folder.identity()}
                for folder in folders
            ]
            definition = asdict(self.definition)
            whole = {"definition": definition, "arithmetic": self.arithmetic, "order": order, "sets": sets}
            return checkpoint.claim(whole), uuid.uuid4().hex[:12]

        checkpoint.join(*self._world.on_rank_zero(claim), self._world.rank)

    def kept(self) -> str:
        """What to tell the user of finished work, should the run fail."""
        if self._checkpoint is None or not self._checkpoint.kept:
            return ""
        return f"; finished work is kept in {self._config.checkpoint}: the same command goes on from there"

    def statistics(self, number: int, folder: ImageFolder | None) -> Statistics | None:
        """Statistics of one folder. A collective.

        Args:
            number: which of the run's folders it is, counted from 0.
            folder: the images in canonical order, on rank zero; None on the others.

        Returns:
            The statistics on rank zero, None on the others.

        Raises:
            FidtoolError: an image cannot be read, a rank was lost, a feature is out of range.
        """
        known: list[Statistics] = []  # on rank zero, once there is something to know

        def look_up() -> tuple[ImageFolder, NDArray[np.uint64]] | None:
            """The folder as the other ranks need it and its batches' marks, or None where the cache has it."""
            assert folder is not None
            found = self._cache.get(self._key(folder)) if self._config.cache else None
            if found is None:
                return folder.without_stamps(), folder.marks(cut_batches(len(folder), self.batch_size))
            self._console.say(f"{folder.path}: statistics of {len(folder)} images from the cache")
            self.cached.append(folder.path)
            known.append(found)
            return None

        def finish() -> None:
            assert folder is not None
            known.append(self._finished(folder, share))

        shared = self._world.on_rank_zero(look_up)
        if shared is not None:
            network = self._network()
            share, work = self._extraction().measure(number, *shared, network)
            self.images_computed += work.images
            self.forward_passes += work.forward_passes
            self.images_resumed += work.resumed
            self._share_complaints()
            self._world.on_rank_zero(finish)
        return known[0] if known else None

    def _extraction(self) -> Extraction:
        return Extraction(
            self._world,
            self._device,
            self._config,
            self._console,
            self._clock,
            self.batch_size,
            self.num_workers,
            self._checkpoint,
            self._complain,
        )

    def _complain(self, line: str) -> None:
        if line not in self.warnings:
            self.warnings.append(line)
            self._console.warn(line)

    def _share_complaints(self) -> None:
        """What another rank met is said as well, once. A collective."""
        for line in itertools.chain.from_iterable(self._world.gather(self.warnings)):
            self._complain(line)

    def _key(self, folder: ImageFolder) -> str:
        return self._cache.key(folder, self.definition, self.arithmetic)

    def _finished(self, folder: ImageFolder, share: Share) -> Statistics:
        gaussian = share.moments.mean_covariance(self.definition.ddof)
        result = Statistics(
            gaussian.mu,
            gaussian.sigma,
            gaussian.count,
            self.definition,
            self.arithmetic,
            share.traits,
            tuple(share.skipped),
        )
        changed = folder.changed()
        if changed:
            self.warnings.append(
                f"{len(changed)} files of {folder.path} changed while they were being read, {changed[0]} among them: "
                "the number may be of a mixture; run it again"
            )
        elif self._config.cache and not share.skipped:  # what could not be read today may be mended tomorrow
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
                self._check_in_sync(self._extractor)
                self._check_probe(self._extractor)
        return self._extractor

    def _check_in_sync(self, extractor: Extractor) -> None:
        """Refuses networks whose parameters or buffers are not the same on every rank. A collective."""
        if self._world.size == 1:
            return
        tensors = extractor.tensors()
        prints = fingerprints(tensors)
        if len(set(self._world.gather(summary(prints)))) > 1 and (drift := find_drift(tensors, prints, self._world)):
            built = f"the ranks built different networks for --extractor {self._config.extractor}"
            raise on_every_rank(InputError(f"{built} ({'; '.join(drift)}): seed it, or load its weights from a file"))

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
