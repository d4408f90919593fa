"""The networks of a run: what defines their features, and the networks themselves, equal on all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

from fidtool.distributed.replicas import combined_hash, find_differences, tensor_hashes
from fidtool.errors import InputError, on_every_rank, option
from fidtool.features.catalogue import (
    custom_extractor,
    fetch_state,
    inception_definition,
    inception_extractor,
    spatial_definition,
)
from fidtool.features.definition import Definition
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor, Networks
from fidtool.features.models.families import NetworkChoice
from fidtool.features.models.inception_weights import TENSORS_SHA256, Weights, cached_weights, load_weights
from fidtool.features.protocol import DEFAULT_PROTOCOL, FEATURES, INCEPTION_DIMS, SPATIAL, Protocol, protocol_named
from fidtool.features.runner import Arithmetic, kernels
from fidtool.metrics.cmmd import CMMD
from fidtool.pipeline.needs import set_needs
from fidtool.pipeline.run import RunContext
from fidtool.settings import Settings

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class RunNetworks:
    """The networks of a run, built when the first set needs them: a run that finds all in the cache builds none.

    Networks of the user's own are built at once, since nothing else tells what they are. Made by a collective.

    Args:
        run: the run.
        batch_size: images in a full forward pass.
        classifier: whether Inception's weights must have the classifier.

    Attributes:
        definitions: what defines the features, by layer; the same on every rank.
        probes: SHA-256 of the features of a fixed batch, of networks of the user's own: their file's hash and their
            tensors do not cover the code that they import or the files that they read; their features do.
        probe: the same of all networks; None until they are needed.
        weights: Inception's, on rank zero; None where it is not the extractor.
        kernels: see `fidtool.features.runner.kernels`.
        warnings: what may be wrong with the weights; on rank zero.
    """

    def __init__(self, run: RunContext, batch_size: int, classifier: bool) -> None:
        self._run, self._world, self._device = run, run.world, run.device
        self._batch_size, self._classifier = batch_size, classifier
        settings = run.settings
        self._arithmetic = Arithmetic(settings.precision, settings.compiled, batch_size)
        self._protocol = protocol_named(settings.protocol or DEFAULT_PROTOCOL)
        standard = settings.network.extractor == "inception"
        self.kernels = kernels(run.device.torch_device, self._arithmetic, standard)
        self.warnings: list[str] = []
        self.weights: Weights | None = None
        self._read_ahead: Weights | None = None
        self.probe: str | None = None
        self.probes: dict[str, str] = {}
        self.definitions: dict[str, Definition] = {}
        self._own: dict[str, Extractor] = {}
        self._networks: Networks | None = None
        with run.clock("weights"):
            self._define(settings)

    def _define(self, settings: Settings) -> None:
        with self._world.together():
            _check_matrix_products(settings, self._device)
        if settings.network.extractor != "inception":
            self._build_own(FEATURES, settings.network, None if settings.protocol is None else self._protocol)
        else:
            if self._world.rank and settings.weights is None:
                self._read_ahead = cached_weights()  # while rank zero reads its own
            self.definitions |= self._world.on_rank_zero(lambda: self._define_inception(settings))
        for layer, network in settings.metric_networks.items():
            if network.extractor == "inception":
                raise on_every_rank(_refused_inception(network))
            if settings.network.extractor.partition(":")[0] == network.extractor == CMMD.extractor:
                same = f"{network.option('extractor', settings.extractor)}, with weights and a step as the extractor's"
                news = f"CMMD has its authors' network, and not that of {option('extractor')}: {same}, takes the same"
                self._run.console.say(news)
            self._build_own(layer, network, None)
        if self.weights is not None and self.weights.sha256 != TENSORS_SHA256:
            self.warnings.append(
                f"{self.weights.origin} holds other weights than FID's (tensors' SHA-256 {self.weights.sha256}): "
                "the number compares with nobody else's; see `fidtool weights --verify`"
            )

    def _define_inception(self, settings: Settings) -> dict[str, Definition]:
        """What defines Inception's layers, once its weights are found. On rank zero."""
        dims = settings.dims or max(INCEPTION_DIMS)
        inception_definition(self._protocol, dims, "")  # wrong dims are refused before anything is downloaded
        self.weights = weights = load_weights(settings.network.weights, self._run.console.say, self._classifier)
        features = inception_definition(self._protocol, dims, weights.sha256)
        spatial = SPATIAL in set_needs(settings, real=True, fake=True).layers
        return {FEATURES: features} | ({SPATIAL: spatial_definition(features)} if spatial else {})

    def _build_own(self, layer: str, choice: NetworkChoice, protocol: Protocol | None) -> None:
        """Rank zero finds the weights, every rank builds the network; all must build the same one."""
        state = self._world.on_rank_zero(lambda: fetch_state(choice, self._run.console.say))
        if state is not None and state.warning:
            self.warnings.append(state.warning)
        with self._world.together():
            self._own[layer] = custom_extractor(choice, state, protocol, self._device, self._arithmetic, layer)
        extractor = self._own[layer]
        self._check_in_sync(extractor, choice)
        first, *others = self._world.gather(extractor.definition)
        for rank, other in enumerate(others, 1):
            if differences := first.differences(other):
                named = choice.option("extractor", choice.extractor)
                built = f"{named} built another network on rank {rank} than on rank 0"
                raise on_every_rank(_unequal_error(f"{built} ({', '.join(differences)}):", choice))
        self.definitions[layer] = first
        self.probes[layer] = self._probe_of(extractor)

    def networks(self, warn: Callable[[str], None]) -> Networks:
        """The networks, built where they were not yet. A collective.

        Args:
            warn: takes a warning where ranks compute different bits.
        """
        if self._networks is None:
            with self._run.clock("weights"):
                standard = {} if FEATURES in self._own else {FEATURES: self._inception()}
                self._networks = Networks(standard | self._own)
                self._check_probe(self._networks, warn)
        return self._networks

    def _inception(self) -> Extractor:
        weights = self._weights_on_every_rank()
        definitions = {layer: each for layer, each in self.definitions.items() if layer not in self._own}
        with self._world.together():
            built = inception_extractor(self._protocol, definitions, weights, self._device, self._arithmetic)
        self._check_in_sync(built, self._run.settings.network)
        return built

    def _weights_on_every_rank(self) -> Weights:
        """Rank zero's weights: from each machine's cache if all are there, else sent. A collective."""
        wanted = self._world.broadcast(None if self.weights is None else self.weights.key)
        mine = self.weights or self._read_ahead
        if mine is None or mine.key != wanted:
            mine = cached_weights()  # rank zero may have put them there
        if not all(self._world.gather(mine is not None and mine.key == wanted)):
            mine = self._world.broadcast(self.weights)
        assert mine is not None
        self._read_ahead = None
        return mine

    def _check_in_sync(self, extractor: Extractor, choice: NetworkChoice) -> None:
        """Refuses networks whose parameters or buffers are not the same on every rank. A collective."""
        if self._world.size == 1:
            return
        tensors = extractor.tensors()
        hashes = tensor_hashes(tensors)
        if len(set(self._world.gather(combined_hash(hashes)))) == 1:
            return
        if drift := find_differences(tensors, hashes, self._world):
            built = f"the ranks built different networks for {choice.option('extractor', choice.extractor)}"
            raise on_every_rank(_unequal_error(f"{built} ({'; '.join(drift)}):", choice))

    def _probe_of(self, network: Extractor | Networks) -> str:
        # Kernels depend on the batch's shape on a GPU, not on the CPU, where a full batch would take most of a second.
        one = self._device.torch_device.type == "cpu" and not self._arithmetic.compiled
        size = 1 if one else self._batch_size
        with self._world.together():
            probe = network.probe(size)
        return probe

    def _check_probe(self, networks: Networks, warn: Callable[[str], None]) -> None:
        """Runs the same batch on every rank and says where the bits differ (promise: the same bits at any size)."""
        self.probe = self._probe_of(networks)
        ranks = self._world.gather((self.probe, self._device.name, networks.unrecorded))
        first = ranks[0]
        for rank, (probe, name, _) in enumerate(ranks):
            if probe != first[0]:
                warn(
                    f"rank {rank} ({name}) computes other bits than rank 0 ({first[1]}): the last digits "
                    "depend on how the images were dealt; use one kind of device to have them repeatable"
                )
                break
        for rank, (_, name, reason) in enumerate(ranks):
            if reason:
                where = f"on rank {rank} ({name}) CUDA could not record the network's kernels"
                self._run.console.warn(f"{where}, which now start one by one: slower, with the same result ({reason})")
                break


def _unequal_error(problem: str, choice: NetworkChoice) -> InputError:
    """The error for a network that is not the same on every rank."""
    return InputError(problem, "seed it", "load its weights from a file", setting=choice.named("extractor"))


def _refused_inception(network: NetworkChoice) -> InputError:
    """The error for Inception as a metric's own network."""
    named, extractor = network.option("extractor", network.extractor), option("extractor", network.extractor)
    others = f"{network.option('input_size')} and {network.option('feature_step')}"
    return InputError(
        f"{named} takes the features of {extractor}:",
        f"leave out {option('extractor')}, {others}, and give {network.option('weights')} what {option('weights')} has",
        "name another network",
        setting=network.named("extractor"),
    )


def _check_matrix_products(settings: Settings, device: Device) -> None:
    """cuBLAS may choose other kernels under its variable. Inception has no matrix products, only convolutions."""
    if device.torch_device.type != "cuda" or not os.environ.get(_CUBLAS):
        return
    if settings.network.extractor != "inception" or settings.metric_networks:
        raise InputError(
            f"{_CUBLAS} is set ({os.environ[_CUBLAS]}), with which a GPU may compute other digits of this network's "
            "features:",
            "unset it for this run",
            "run fidtool in a process without it",
        )
