"""The networks of a run, the same on all ranks, and the definitions of their features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fidtool.distributed.world import find_differences
from fidtool.errors import InputError, ResultWarning, RunError, mark_agreed, option
from fidtool.features.choice import NetworkChoice
from fidtool.features.extractor import HALVES, PROBE_SIZE, Extractor
from fidtool.features.hashes import tensor_hashes
from fidtool.features.models.inception import (
    Weights,
    has_packed_convolutions,
    inception_extractor,
    load_weights,
)
from fidtool.features.network import preserve
from fidtool.features.passes import ForwardPasses
from fidtool.features.plain import INPUT
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION_DIMS,
    SPATIAL,
    Definition,
    find_protocol,
    inception_definition,
    spatial_definition,
)
from fidtool.features.resize import ImageTensors
from fidtool.run.context import RunContext
from fidtool.run.probe import Probe
from fidtool.run.sets import FAKE, REAL, set_needs
from fidtool.settings.settings import Settings
from fidtool.statistics.moments import choose_step

if TYPE_CHECKING:
    from fidtool.features.weights import State


class RunNetworks:
    """The networks of a run, which has none unless they are ``used``. The constructor is a
    collective.

    Inception is built when the first set needs it; never if all statistics are in the cache. Other
    networks are built immediately, for the definitions of their features. ``probes`` has the
    SHA-256 of their features of a fixed batch: the hashes of a custom network's file and tensors do
    not cover what its code imports and reads.

    Args:
        given: the networks by the layers of their features, with those that this rank's program
            passed.
        probe: what decides on the steps of features that nobody states; of rank 0.

    Attributes:
        notes: what is said about the networks, on rank 0.
    """

    def __init__(
        self,
        run: RunContext,
        settings: Settings,
        batch_size: int,
        classifier: bool,
        used: bool,
        given: Mapping[str, NetworkChoice],
        probe: Probe,
    ) -> None:
        self._run = run
        self._world = run.world
        self._device = run.device
        self._settings = settings
        self._batch_size = batch_size
        place = run.device.torch_device
        network = settings.network
        of_inception = network.extractor == "inception"
        protocol = network.protocol if of_inception else None
        self._protocol = find_protocol(protocol or DEFAULT_PROTOCOL)
        self.kernels = "torch"
        half = HALVES.get(settings.precision, torch.float32)
        if of_inception and place.type == "cpu" and has_packed_convolutions(half):
            self.kernels = "oneDNN, packed"
        self.warnings: list[ResultWarning] = []
        self.notes: list[str] = []
        self._probing = probe
        self.weights: Weights | None = None
        self.probe: str | None = None
        self.probes: dict[str, str] = {}
        self.definitions: dict[str, Definition] = {}
        self._built: dict[str, Extractor] = {}
        if not used:
            return
        own = dict(settings.networks)
        with run.clock("weights"):
            with self._world.together():
                check_matrix_products(settings, place)
            if of_inception:
                del own[FEATURES]
                features = inception_definition(self._protocol, network.dims or max(INCEPTION_DIMS))
                self.definitions[FEATURES] = features
                if SPATIAL in set_needs(settings, REAL, FAKE).layers:
                    self.definitions[SPATIAL] = spatial_definition(features)
                self.weights = self._world.only_on_rank_zero(
                    lambda: load_weights(network.weights, run.console.say, classifier)
                )
            states = self._world.only_on_rank_zero(lambda: self._fetch_states(own)) or {}
            for layer, choice in own.items():
                # What a program passed is this rank's own.
                local = given[layer].given if layer in given else None
                state = self._world.broadcast(states.pop(layer, None))
                self._build_own(layer, replace(choice, given=local), state)

    def _fetch_states(self, networks: Mapping[str, NetworkChoice]) -> dict[str, State | None]:
        """The weights of networks by layer. If some cannot be obtained, the error names all of
        these. On rank 0.
        """
        from fidtool.features.building import fetch_state  # not needed for Inception

        failed = {}
        states = {}
        for layer, choice in networks.items():
            if choice.extractor == "inception":
                inception = option("extractor", "inception")
                raise InputError(
                    f"{choice.option('extractor', 'inception')} uses the features of {inception}:",
                    f"give both the same {option('weights')} and no other setting",
                    "choose a different network",
                )
            # What is said of a file of weights, which is not downloaded, is a note of the run.
            say = self._say if choice.tuned else self._run.console.say
            try:
                states[layer] = fetch_state(choice, say)
            except RunError as error:
                failed[choice.extractor] = error
        if failed:
            first, *others = failed
            if others:
                failed[first].note += f"; there are no weights for {' and '.join(others)} either"
            raise failed[first]
        return states

    def _build_own(self, layer: str, choice: NetworkChoice, state: State | None) -> None:
        """Every rank builds a network. Raises if the ranks' networks differ. A collective."""
        from fidtool.features.building import build_extractor  # not needed for Inception

        settings = self._settings
        world = self._world
        size = world.on_rank_zero(lambda: self._probe_size(choice))
        given = choice.given
        if given is not None:
            module = given if isinstance(given, nn.Module) else given.module
            self._run.exits.enter_context(preserve(module))
        with world.together():
            shared = settings.shared_protocol if layer in settings.other_networks else None
            extractor = build_extractor(
                choice, state, self._device, settings.precision, layer, shared, size
            )
        step = world.on_rank_zero(lambda: self._find_step(extractor, choice, layer))
        extractor.define(feature_step=step)
        self.probes[layer] = self._check(extractor, choice)
        self._built[layer] = extractor
        self.definitions[layer] = extractor.definition

    def _probe_size(self, choice: NetworkChoice) -> tuple[int, int]:
        """Say what a plain module gets, and return the size of the images with which a network is
        tried. On rank 0.
        """
        if not isinstance(choice.given, nn.Module):
            return PROBE_SIZE
        self._say(f"{choice.extractor} gets {INPUT}")
        for image in self._first_images:
            height, width, _ = image.shape
            return height, width
        return PROBE_SIZE

    @cached_property
    def _first_images(self) -> Sequence[Tensor]:
        return self._probing.read()

    def _find_step(self, extractor: Extractor, choice: NetworkChoice, layer: str) -> int:
        """The step of a network's features: stated, that of statistics, or one that suits the
        features of the first images. On rank 0.
        """
        stated = extractor.definition.feature_step
        if not extractor.open_step:
            return stated
        if layer in self._probing.steps:
            return self._probing.steps[layer]
        place = self._device.torch_device
        largest = 0.0
        # Noise can have features of another scale: it counts only if the images say nothing.
        for images in (self._first_images, extractor.probe_images(1)):
            if len(images) and largest == 0.0:
                on_device = [image.to(place) for image in images]
                (vectors,) = self._extract(extractor, on_device).values()
                largest = vectors.abs().max().item()
        step = choose_step(largest)
        if step != stated:
            setting = choice.step_setting
            same = option(setting, step) if setting else f"feature_step={step}"
            self._say(
                f"{extractor.definition.network}: its features are rounded to multiples of "
                f"2^{-step}, which suits the features of the first images, as with {same}"
            )
        return step

    def _say(self, line: str) -> None:
        self.notes.append(line)
        self._run.console.say(line)

    def get_extractors(self, layers: Collection[str]) -> tuple[Extractor, ...]:
        """Return the networks that compute these layers, of which Inception is built on the first
        call. A collective.

        Ranks that compute different bits are reported once.
        """
        lacks_inception = FEATURES not in self._built and not {FEATURES, SPATIAL}.isdisjoint(layers)
        if lacks_inception or self.probe is None:
            with self._run.clock("weights"):
                if lacks_inception:
                    self._build_inception()
                self._compare_probes()
        return tuple(
            extractor
            for extractor in self._built.values()
            if not extractor.definitions.keys().isdisjoint(layers)
        )

    def _compare_probes(self) -> None:
        probes = [*self.probes.values()]
        self.probe = probes[0]
        if len(probes) > 1:
            self.probe = hashlib.sha256("".join(probes).encode()).hexdigest()
        first, *others = self._world.gather((self.probe, self._device.name))
        for rank, (probe, device) in enumerate(others, 1):
            if probe != first[0]:
                text = (
                    f"rank {rank} ({device}) computes different bits than rank 0 ({first[1]}): the "
                    "last digits depend on how the images are distributed over the ranks; use one "
                    "kind of device for reproducible values"
                )
                self.warnings.append(ResultWarning("", text))
                break

    def _build_inception(self) -> None:
        weights = self._world.broadcast(self.weights)
        assert weights is not None
        definitions = {
            layer: definition
            for layer, definition in self.definitions.items()
            if layer not in self._built
        }
        with self._world.together():
            network = inception_extractor(
                self._protocol,
                definitions,
                weights.state,
                self._device,
                self._settings.precision,
            )
        self.probes = {FEATURES: self._check(network, self._settings.network), **self.probes}
        self._built = {FEATURES: network, **self._built}

    def _check(self, extractor: Extractor, choice: NetworkChoice) -> str:
        """Return the SHA-256 of the features of a fixed batch, equal on two ranks that compute the
        same bits.

        A collective. Raises an InputError if definition, parameters or buffers are not the same on
        every rank.
        """
        if self._world.size > 1:
            differences = find_differences(tensor_hashes(extractor.module), self._world)
            first, *others = self._world.gather(extractor.definition)
            for rank, other in enumerate(others, 1):
                for difference in first.differences(other):
                    differences.append(f"{difference} on rank {rank}")
            if differences:
                name = choice.option("extractor", choice.extractor)
                differing = "; ".join(differences)
                raise mark_agreed(
                    InputError(
                        f"the ranks built different networks for {name} ({differing}):",
                        "seed its random weights",
                        "load them from a file",
                        setting=choice.named("extractor"),
                    )
                )
        place = self._device.torch_device
        # On a GPU kernels depend on the batch's shape. On the CPU they do not, and a full batch
        # takes almost a second.
        size = 1 if place.type == "cpu" else self._batch_size
        with self._world.together():
            features = self._extract(extractor, extractor.probe_images(size))
            digest = hashlib.sha256()
            for vectors in features.values():
                digest.update(vectors.cpu().contiguous().numpy().tobytes())
            return digest.hexdigest()

    def _extract(self, extractor: Extractor, images: ImageTensors) -> Mapping[str, Tensor]:
        """The features of a batch as in the run, because torch's modes are per thread and select
        kernels.
        """
        passes: ForwardPasses[ImageTensors] = ForwardPasses(
            [extractor], self._device.forward_threads, lambda batch: nullcontext([batch])
        )
        ((_, (features,)),) = passes.run(iter([images]))
        return features


def check_matrix_products(settings: Settings, device: torch.device) -> None:
    """Refuse cuBLAS's environment variable, which changes its kernels, for networks with matrix
    products.

    Inception has none, only convolutions.
    """
    value = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    extractors = {network.extractor for network in settings.networks.values()}
    if value and device.type == "cuda" and extractors != {"inception"}:
        raise InputError(
            f"CUBLAS_WORKSPACE_CONFIG is set ({value}), which may change the last digits of this "
            "network's features:",
            "unset it for this run",
            "run fidtool in a separate process without it",
        )
