"""The networks of a run, the same on all ranks, and the definitions of their features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from fidtool.distributed.world import find_differences, tensor_hashes
from fidtool.errors import InputError, ResultWarning, RunError, on_every_rank, option
from fidtool.features.extractor import HALVES, Extractor, ForwardPasses, fixed_batch
from fidtool.features.models.families import NetworkChoice
from fidtool.features.models.inception import Weights, inception_extractor, load_weights, packs
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION_DIMS,
    SPATIAL,
    Definition,
    inception_definition,
    protocol_named,
    spatial_definition,
)
from fidtool.run.context import RunContext
from fidtool.run.sets import FAKE, REAL, set_needs
from fidtool.settings.settings import Settings

if TYPE_CHECKING:
    from fidtool.features.network import State


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
    """

    def __init__(
        self,
        run: RunContext,
        settings: Settings,
        batch_size: int,
        classifier: bool,
        used: bool,
        given: Mapping[str, NetworkChoice],
    ) -> None:
        self._run, self._world, self._device, self._settings = run, run.world, run.device, settings
        self._batch_size = batch_size
        of_inception = settings.network.extractor == "inception"
        self._protocol = protocol_named(
            (of_inception and settings.network.protocol) or DEFAULT_PROTOCOL
        )
        half = HALVES.get(settings.precision, torch.float32)
        packed = of_inception and run.device.torch_device.type == "cpu" and packs(half)
        self.kernels = "oneDNN, packed" if packed else "torch"
        self.warnings: list[ResultWarning] = []
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
                _check_matrix_products(settings, run.device.torch_device)
            if of_inception:
                del own[FEATURES]
                features = inception_definition(
                    self._protocol, settings.network.dims or max(INCEPTION_DIMS)
                )
                self.definitions[FEATURES] = features
                if SPATIAL in set_needs(settings, REAL, FAKE).layers:
                    self.definitions[SPATIAL] = spatial_definition(features)
                find = partial(load_weights, settings.network.weights, run.console.say, classifier)
                self.weights = self._world.only_on_rank_zero(find)
            states = self._world.only_on_rank_zero(lambda: self._fetched(own)) or {}
            for layer, network in own.items():
                local = given[layer].given if layer in given else None
                self._build_own(
                    layer,
                    replace(network, given=local),
                    self._world.broadcast(states.pop(layer, None)),
                )

    def _fetched(self, networks: Mapping[str, NetworkChoice]) -> dict[str, State | None]:
        """The weights of networks by layer. If some cannot be obtained, the error names all of
        these. On rank zero.
        """
        from fidtool.features.building import fetch_state  # not needed for Inception

        failed = dict[str, RunError]()
        found: dict[str, State | None] = {}
        for layer, choice in networks.items():
            if choice.extractor == "inception":
                named, same = (
                    choice.option("extractor", "inception"),
                    option("extractor", "inception"),
                )
                raise InputError(
                    f"{named} uses the features of {same}:",
                    f"give both the same {option('weights')} and no other setting",
                    "choose a different network",
                    setting=choice.named("extractor"),
                )
            try:
                found[layer] = fetch_state(choice, self._run.console.say)
            except RunError as error:
                failed[choice.extractor] = error
        if failed:
            (_, first), *others = failed.items()
            if others:
                first.append(
                    f"; nor are there weights for {' and '.join(name for name, _ in others)}"
                )
            raise first
        return found

    def _build_own(self, layer: str, choice: NetworkChoice, state: State | None) -> None:
        """Every rank builds a network. Raises if the ranks' networks differ. A collective."""
        from fidtool.features.building import custom_extractor  # not needed for Inception

        with self._world.together():
            shared = self._settings.shared_protocol if layer in self._settings.further else None
            extractor = custom_extractor(
                choice, state, self._device, self._settings.precision, layer, shared
            )
        self.probes[layer] = self._checked(extractor, choice)
        self._built[layer], self.definitions[layer] = extractor, extractor.definition

    def networks(self, layers: Collection[str]) -> tuple[Extractor, ...]:
        """Returns the networks that compute these layers, of which Inception is built on the first
        call. A collective.

        Ranks that compute different bits are reported once.
        """
        lacking = FEATURES not in self._built and not {FEATURES, SPATIAL}.isdisjoint(layers)
        if lacking or self.probe is None:
            with self._run.clock("weights"):
                if lacking:
                    self._build_inception()
                probes = [*self.probes.values()]
                self.probe = (
                    probes[0]
                    if len(probes) == 1
                    else hashlib.sha256("".join(probes).encode()).hexdigest()
                )
                first, *others = self._world.gather((self.probe, self._device.name))
                unequal = [
                    (rank, other) for rank, other in enumerate(others, 1) if other[0] != first[0]
                ]
                for rank, (_, device) in unequal[:1]:
                    text = (
                        f"rank {rank} ({device}) computes different bits than rank 0 "
                        f"({first[1]}): the last digits depend on how the images are distributed "
                        "over the ranks; use one kind of device for reproducible values"
                    )
                    self.warnings.append(ResultWarning("", text))
        return tuple(
            each for each in self._built.values() if not each.definitions.keys().isdisjoint(layers)
        )

    def _build_inception(self) -> None:
        weights = self._world.broadcast(self.weights)
        assert weights is not None
        definitions = {
            layer: each for layer, each in self.definitions.items() if layer not in self._built
        }
        precision = self._settings.precision
        with self._world.together():
            network = inception_extractor(
                self._protocol, definitions, weights.state, self._device, precision
            )
        self.probes = {FEATURES: self._checked(network, self._settings.network), **self.probes}
        self._built = {FEATURES: network, **self._built}

    def _checked(self, extractor: Extractor, choice: NetworkChoice) -> str:
        """Returns the SHA-256 of the features of a fixed batch, equal on two ranks that compute the
        same bits.

        A collective. Raises an InputError if definition, parameters or buffers are not the same on
        every rank.
        """
        differences: list[str] = []
        if self._world.size > 1:
            differences = find_differences(tensor_hashes(extractor.tensors()), self._world)
            first, *others = self._world.gather(extractor.definition)
            for rank, other in enumerate(others, 1):
                differences += [f"{each} on rank {rank}" for each in first.differences(other)]
        if differences:
            problem = (
                "the ranks built different networks for "
                f"{choice.option('extractor', choice.extractor)}"
            )
            remedies = "seed its random weights", "load them from a file"
            setting = choice.named("extractor")
            raise on_every_rank(
                InputError(f"{problem} ({'; '.join(differences)}):", *remedies, setting=setting)
            )
        place = self._device.torch_device
        # On a GPU kernels depend on the batch's shape. On the CPU they do not, and a full batch
        # takes almost a second.
        size = 1 if place.type == "cpu" else self._batch_size
        # As the batches of the run, because torch's modes are per thread and select kernels.
        threads = self._device.forward_threads
        passes: ForwardPasses[int] = ForwardPasses(
            [extractor], threads, lambda count: nullcontext([fixed_batch(count, place)])
        )
        with self._world.together():
            ((_, (features,)),) = passes.run(iter([size]))
            found = (each.cpu().contiguous().numpy().tobytes() for each in features.values())
            return hashlib.sha256(b"".join(found)).hexdigest()


def _check_matrix_products(settings: Settings, device: torch.device) -> None:
    """Refuses cuBLAS's environment variable, which changes its kernels, for networks with matrix
    products.

    Inception has none, only convolutions.
    """
    value, networks = os.environ.get("CUBLAS_WORKSPACE_CONFIG"), settings.networks.values()
    if value and device.type == "cuda" and any(each.extractor != "inception" for each in networks):
        raise InputError(
            f"CUBLAS_WORKSPACE_CONFIG is set ({value}), which may change the last digits of this "
            "network's features:",
            "unset it for this run",
            "run fidtool in a separate process without it",
        )
