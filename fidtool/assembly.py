"""The networks of a run: what defines them, and the networks themselves, on all ranks alike."""

from __future__ import annotations

import os
from collections.abc import Callable

from fidtool.distributed.replicas import combined_hash, find_differences, tensor_hashes
from fidtool.errors import InputError, on_every_rank
from fidtool.features.catalogue import (
    custom_extractor,
    fetch_state,
    inception_definition,
    inception_extractor,
    spatial_definition,
)
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor, Networks
from fidtool.features.flags import extractor_flag, told_of
from fidtool.features.models.inception_weights import TENSORS_SHA256, Weights, cached_weights, load_weights
from fidtool.features.models.published import State
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION_DIMS,
    SPATIAL,
    Definition,
    NetworkChoice,
    Protocol,
    protocol_named,
)
from fidtool.features.runner import Arithmetic, kernels
from fidtool.metrics.cmmd import CMMD
from fidtool.needs import networks_of, set_needs
from fidtool.session import Session
from fidtool.settings import Settings

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class Assembly:
    """Networks that are loaded when the first folder needs them: a run that finds all in the cache does without.

    Networks of the user's own are built at once, since nothing else tells what they are.

    Args:
        session: the run.
        batch_size: images in a full forward pass.
        classifier: Inception's weights must have it.

    Attributes:
        definitions: what defines the features, by layer; the same on every rank.
        probes: SHA-256 of the features of a fixed batch, of networks of the user's own: the file's hash and the
            tensors' miss what the code imports or reads; what it computes does not.
        probe: the same of all networks; None until they were needed.
        weights: Inception's, on rank zero; None where it is not the extractor.
        kernels: see `fidtool.features.runner.kernels`.
    """

    def __init__(self, session: Session, batch_size: int, classifier: bool) -> None:
        self._world, self._device, self._config = session.world, session.device, session.config
        self._console, self._clock = session.console, session.clock
        self._batch_size, self._classifier = batch_size, classifier
        self._arithmetic = Arithmetic(self._config.precision, self._config.compiled, batch_size)
        self._protocol = protocol_named(self._config.protocol or DEFAULT_PROTOCOL)
        standard = self._config.network.extractor == "inception"
        self.kernels = kernels(session.device.torch_device, self._arithmetic, standard)
        self._layers = set_needs(self._config, real=True, fake=True).layers
        self._own: dict[str, Extractor] = {}
        self._networks: Networks | None = None
        self._doubts: list[str] = []
        self.weights: Weights | None = None
        self._read_ahead: Weights | None = None
        self.probe: str | None = None
        self.probes: dict[str, str] = {}
        self.definitions: dict[str, Definition] = {}
        with self._clock("weights"):
            self._define()

    def _define(self) -> None:
        config = self._config
        with self._world.together():
            _check_matrix_products(config, self._device)
        if config.network.extractor != "inception":
            self._build_own(FEATURES, config.network, None if config.protocol is None else self._protocol)
        else:
            if self._world.rank and config.weights is None:
                self._read_ahead = cached_weights()  # while rank zero reads its own
            self.definitions |= self._world.on_rank_zero(self._define_inception)
        for layer, network in networks_of(config).items():
            if network.extractor == "inception":
                raise on_every_rank(
                    InputError(
                        "--cmmd-extractor inception takes the features of --extractor inception: leave out --extractor "
                        "and CMMD's other flags (but give --cmmd-weights what --weights has), or name another network"
                    )
                )
            if config.network.extractor.partition(":")[0] == network.extractor == CMMD.extractor:
                own = f"--cmmd-extractor {config.extractor}, with weights and a step as the extractor's, takes the same"
                self._console.say(f"CMMD has its authors' network, and not that of --extractor: {own}")
            self._build_own(layer, network, None)

    def _define_inception(self) -> dict[str, Definition]:
        """What defines Inception's layers, once its weights are found. On rank zero."""
        dims = self._config.dims or max(INCEPTION_DIMS)
        inception_definition(self._protocol, dims, "")  # a wrong --dims is said before anything is downloaded
        self.weights = load_weights(self._config.network.weights, self._console.say, self._classifier)
        features = inception_definition(self._protocol, dims, self.weights.sha256)
        return {FEATURES: features} | ({SPATIAL: spatial_definition(features)} if SPATIAL in self._layers else {})

    def doubts(self) -> list[str]:
        """What is doubtful about the weights. On rank zero."""
        if self.weights is None or self.weights.sha256 == TENSORS_SHA256:
            return list(self._doubts)
        return [
            *self._doubts,
            f"{self.weights.origin} holds other weights than FID's (tensors' SHA-256 {self.weights.sha256}): "
            "the number compares with nobody else's; see `fidtool weights --verify`",
        ]

    def _build_own(self, layer: str, choice: NetworkChoice, protocol: Protocol | None) -> None:
        """Rank zero finds the weights, every rank builds the network; all must build the same one."""
        named = f"{extractor_flag(layer)} {choice.extractor}"

        def fetch() -> State | None:
            with told_of(layer):
                state = fetch_state(choice, self._console.say)
            if state is not None and state.doubt:
                self._doubts.append(state.doubt)
            return state

        state = self._world.on_rank_zero(fetch)
        with self._world.together(), told_of(layer):
            self._own[layer] = custom_extractor(choice, state, protocol, self._device, self._arithmetic, layer)
        extractor = self._own[layer]
        self._check_in_sync(extractor, named)
        first, *others = self._world.gather(extractor.definition)
        for rank, other in enumerate(others, 1):
            if differences := first.differences(other):
                built = f"{named} built another network on rank {rank} than on rank 0"
                advice = "seed it, or load its weights from a file"
                raise on_every_rank(InputError(f"{built} ({', '.join(differences)}): {advice}"))
        self.definitions[layer] = first
        self.probes[layer] = self._probe_of(extractor)

    def networks(self, complain: Callable[[str], None]) -> Networks:
        """The networks, built where they were not yet. A collective.

        Args:
            complain: takes a line where ranks compute different bits.
        """
        if self._networks is None:
            with self._clock("weights"):
                standard = {} if FEATURES in self._own else {FEATURES: self._inception()}
                self._networks = Networks(standard | self._own)
                self._check_probe(self._networks, complain)
        return self._networks

    def _inception(self) -> Extractor:
        weights = self._spread_weights()
        definitions = {layer: each for layer, each in self.definitions.items() if layer not in self._own}
        with self._world.together():
            built = inception_extractor(self._protocol, definitions, weights, self._device, self._arithmetic)
        self._check_in_sync(built, f"--extractor {self._config.network.extractor}")
        return built

    def _spread_weights(self) -> Weights:
        """Rank zero's weights on every rank: from each machine's cache if all are there, else sent. A collective."""
        wanted = self._world.broadcast(None if self.weights is None else self.weights.key)
        mine = self.weights or self._read_ahead
        if mine is None or mine.key != wanted:
            mine = cached_weights()  # rank zero may have put them there
        if not all(self._world.gather(mine is not None and mine.key == wanted)):
            mine = self._world.broadcast(self.weights)
        assert mine is not None
        self._read_ahead = None
        return mine

    def _check_in_sync(self, extractor: Extractor, named: str) -> None:
        """Refuses networks whose parameters or buffers are not the same on every rank. A collective."""
        if self._world.size == 1:
            return
        tensors = extractor.tensors()
        hashes = tensor_hashes(tensors)
        if len(set(self._world.gather(combined_hash(hashes)))) == 1:
            return
        if drift := find_differences(tensors, hashes, self._world):
            built = f"the ranks built different networks for {named}"
            raise on_every_rank(InputError(f"{built} ({'; '.join(drift)}): seed it, or load its weights from a file"))

    def _probe_of(self, network: Extractor | Networks) -> str:
        # Kernels depend on the batch's shape on a GPU, not on the CPU, where a full batch would take most of a second.
        one = self._device.torch_device.type == "cpu" and not self._arithmetic.compiled
        size = 1 if one else self._batch_size
        with self._world.together():
            probe = network.probe(size)
        return probe

    def _check_probe(self, networks: Networks, complain: Callable[[str], None]) -> None:
        """Runs the same batch on every rank and says where the bits differ (promise: the same bits at any size)."""
        self.probe = self._probe_of(networks)
        seen = self._world.gather((self.probe, self._device.name, networks.unrecorded))
        first = seen[0]
        for rank, (probe, name, _) in enumerate(seen):
            if probe != first[0]:
                complain(
                    f"rank {rank} ({name}) computes other bits than rank 0 ({first[1]}): the last digits "
                    "depend on how the images were dealt; use one kind of device to have them repeatable"
                )
                break
        for rank, (_, name, reason) in enumerate(seen):
            if reason:
                where = f"on rank {rank} ({name}) CUDA could not record the network's kernels"
                self._console.warn(f"{where}, which now start one by one: slower, with the same result ({reason})")
                break


def _check_matrix_products(config: Settings, device: Device) -> None:
    """cuBLAS may choose other kernels under its variable. Inception has no matrix products, only convolutions."""
    if device.torch_device.type != "cuda" or not os.environ.get(_CUBLAS):
        return
    if config.network.extractor != "inception" or networks_of(config):
        raise InputError(
            f"{_CUBLAS} is set ({os.environ[_CUBLAS]}), with which a GPU may compute other digits of this network's "
            "features: unset it for this run, or run fidtool in a process without it"
        )
