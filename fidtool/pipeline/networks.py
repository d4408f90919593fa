"""The networks of a run, the same on all ranks, and the definitions of their features."""

from __future__ import annotations

import os
from collections.abc import Callable

from fidtool.distributed.replicas import combined_hash, find_differences, tensor_hashes
from fidtool.errors import InputError, on_every_rank, option
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor, probe_of
from fidtool.features.models.families import NetworkChoice
from fidtool.features.models.inception import inception_extractor, kernels
from fidtool.features.models.inception_weights import Weights, load_weights
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION_DIMS,
    INCEPTION_SHA256,
    SPATIAL,
    Definition,
    Protocol,
    inception_definition,
    protocol_named,
    spatial_definition,
)
from fidtool.metrics.cmmd import CMMD
from fidtool.pipeline.run import RunContext
from fidtool.pipeline.sets import set_needs
from fidtool.settings import Settings

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class RunNetworks:
    """The networks of a run. The constructor is a collective.

    Inception is built when the first set needs it; never if all statistics are in the cache. Other networks are built
    immediately, because only the built network gives the definition of its features. ``probes`` has the SHA-256 of
    their features of a fixed batch, because the hashes of a custom network's file and tensors do not cover the code
    that it imports or the files that it reads.
    """

    def __init__(self, run: RunContext, settings: Settings, batch_size: int, classifier: bool) -> None:
        self._run, self._world, self._device, self._settings = run, run.world, run.device, settings
        self._batch_size, self._classifier = batch_size, classifier
        self._precision = settings.precision
        self._protocol = protocol_named(settings.protocol or DEFAULT_PROTOCOL)
        standard = settings.network.extractor == "inception"
        self.kernels = kernels(run.device.torch_device, self._precision, standard)
        self.warnings: list[str] = []
        self.weights: Weights | None = None
        self.probe: str | None = None
        self.probes: dict[str, str] = {}
        self.definitions: dict[str, Definition] = {}
        self._own: dict[str, Extractor] = {}
        self._networks: tuple[Extractor, ...] | None = None
        with run.clock("weights"):
            self._define(settings)

    def _define(self, settings: Settings) -> None:
        with self._world.together():
            _check_matrix_products(settings, self._device)
        if settings.network.extractor != "inception":
            self._build_own(FEATURES, settings.network, None if settings.protocol is None else self._protocol)
        else:
            self.definitions |= self._world.on_rank_zero(lambda: self._define_inception(settings))
        for layer, network in settings.metric_networks.items():
            if network.extractor == "inception":
                named, same = network.option("extractor", "inception"), option("extractor", "inception")
                remedies = f"give both the same {option('weights')} and no other setting", "choose a different network"
                problem = f"{named} uses the features of {same}:"
                raise on_every_rank(InputError(problem, *remedies, setting=network.named("extractor")))
            if settings.network.extractor.partition(":")[0] == network.extractor == CMMD.extractor:
                other = f"CMMD uses its authors' network, not the one of {option('extractor')}"
                same = f"{network.option('extractor', settings.extractor)} with the same weights and feature step"
                self._run.console.say(f"{other}: pass {same} to use one network for both")
            self._build_own(layer, network, None)
        if self.weights is not None and self.weights.sha256 != INCEPTION_SHA256:
            self.warnings.append(
                f"{self.weights.origin} does not have the standard FID weights (SHA-256 of the tensors "
                f"{self.weights.sha256}): the values are not comparable with published ones; see "
                "`fidtool weights --verify`"
            )

    def _define_inception(self, settings: Settings) -> dict[str, Definition]:
        dims = settings.dims or max(INCEPTION_DIMS)
        inception_definition(self._protocol, dims, "")  # refuses invalid dims before the weights are downloaded
        self.weights = weights = load_weights(settings.network.weights, self._run.console.say, self._classifier)
        features = inception_definition(self._protocol, dims, weights.sha256)
        spatial = SPATIAL in set_needs(settings, real=True, fake=True).layers
        return {FEATURES: features} | ({SPATIAL: spatial_definition(features)} if spatial else {})

    def _build_own(self, layer: str, choice: NetworkChoice, protocol: Protocol | None) -> None:
        """Rank zero loads the weights and every rank builds the network. Raises if the ranks' networks differ."""
        from fidtool.features.network import custom_extractor, fetch_state  # not needed for Inception

        state = self._world.on_rank_zero(lambda: fetch_state(choice, self._run.console.say))
        if state is not None and state.warning:
            self.warnings.append(state.warning)
        with self._world.together():
            self._own[layer] = custom_extractor(choice, state, protocol, self._device, self._precision, layer)
        extractor = self._own[layer]
        self._check_in_sync(extractor, choice)
        first, *others = self._world.gather(extractor.definition)
        for rank, other in enumerate(others, 1):
            if differences := first.differences(other):
                named = choice.option("extractor", choice.extractor)
                built = f"{named} built a different network on rank {rank} than on rank 0"
                raise on_every_rank(_unequal_error(f"{built} ({', '.join(differences)}):", choice))
        self.definitions[layer] = first
        self.probes[layer] = self._probe_of(extractor)

    def networks(self, warn: Callable[[str], None]) -> tuple[Extractor, ...]:
        """Returns the networks and builds them on the first call. A collective."""
        if self._networks is None:
            with self._run.clock("weights"):
                standard = {} if FEATURES in self._own else {FEATURES: self._inception()}
                self._networks = tuple((standard | self._own).values())
                self._check_probe(self._networks, warn)
        return self._networks

    def _inception(self) -> Extractor:
        weights = self._world.broadcast(self.weights)
        assert weights is not None
        definitions = {layer: each for layer, each in self.definitions.items() if layer not in self._own}
        with self._world.together():
            built = inception_extractor(self._protocol, definitions, weights.state, self._device, self._precision)
        self._check_in_sync(built, self._settings.network)
        return built

    def _check_in_sync(self, extractor: Extractor, choice: NetworkChoice) -> None:
        """Raises an InputError if the parameters or buffers are not the same on every rank. A collective."""
        if self._world.size == 1:
            return
        hashes = tensor_hashes(extractor.tensors())
        if len(set(self._world.gather(combined_hash(hashes)))) == 1:
            return
        if differences := find_differences(hashes, self._world):
            built = f"the ranks built different networks for {choice.option('extractor', choice.extractor)}"
            raise on_every_rank(_unequal_error(f"{built} ({'; '.join(differences)}):", choice))

    def _probe_of(self, *networks: Extractor) -> str:
        # On a GPU kernels depend on the batch's shape. On the CPU they do not, and a full batch takes almost a second.
        size = 1 if self._device.torch_device.type == "cpu" else self._batch_size
        with self._world.together():
            return probe_of(networks, size)

    def _check_probe(self, networks: tuple[Extractor, ...], warn: Callable[[str], None]) -> None:
        """Runs the same batch on every rank and warns if the features' bits differ."""
        self.probe = self._probe_of(*networks)
        ranks = self._world.gather((self.probe, self._device.name))
        first = ranks[0]
        for rank, (probe, name) in enumerate(ranks):
            if probe != first[0]:
                warn(
                    f"rank {rank} ({name}) computes different bits than rank 0 ({first[1]}): the last digits depend on "
                    "how the images are distributed over the ranks; use one kind of device for reproducible values"
                )
                break


def _unequal_error(problem: str, choice: NetworkChoice) -> InputError:
    return InputError(problem, "seed its random weights", "load them from a file", setting=choice.named("extractor"))


def _check_matrix_products(settings: Settings, device: Device) -> None:
    """Refuses cuBLAS's environment variable, which changes its kernels, for networks with matrix products.

    Inception has none, only convolutions.
    """
    if device.torch_device.type != "cuda" or not os.environ.get(_CUBLAS):
        return
    if settings.network.extractor != "inception" or settings.metric_networks:
        raise InputError(
            f"{_CUBLAS} is set ({os.environ[_CUBLAS]}), which may change the last digits of this network's features:",
            "unset it for this run",
            "run fidtool in a separate process without it",
        )
