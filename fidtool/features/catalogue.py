"""Which network an ``--extractor`` names, where its weights come from, and the extractor that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from fidtool.errors import InputError, about, option
from fidtool.features.definition import Definition
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor
from fidtool.features.models.families import MODEL_FAMILIES, NAMED_EXTRACTORS, NetworkChoice
from fidtool.features.models.inception import Inception, SpatialInception
from fidtool.features.models.inception_weights import Weights
from fidtool.features.models.published import PublishedModels, State
from fidtool.features.models.user_networks import from_factory, from_program, is_program
from fidtool.features.network import Network, check_repeatable, module_digest, output_dims
from fidtool.features.preparation import Preparation
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION,
    INCEPTION_DIMS,
    INCEPTION_FEATURE_STEP,
    INCEPTION_INPUT_SIZE,
    SPATIAL,
    SPATIAL_DIMS,
    SPATIAL_EXTRACTOR,
    Protocol,
    protocol_named,
)
from fidtool.features.runner import Arithmetic, Runner
from fidtool.features.torch_state import repeatable
from fidtool.images.decode import DECODER
from fidtool.user_code import is_place_in_code

_PLAIN = Arithmetic()


def fetch_state(choice: NetworkChoice, say: Callable[[str], None]) -> State | None:
    """The network's tensors from a file or a download: on rank zero alone, for all.

    Args:
        choice: the network.
        say: takes a line of news for the user.

    Returns:
        The tensors, or None for a network that brings its own: a factory's or a program's.

    Raises:
        InputError: there is no such network, its package is missing, or there are no such weights to be had.
    """
    with about(choice.subject):
        if choice.input_size is not None and not is_program(choice.extractor):
            size = choice.option("input_size")
            problem = f"{size} is for exported programs; {choice.extractor} knows the size of its input"
            raise InputError(problem, setting=choice.named("input_size"))
        library = _published(choice)
        if library is not None:
            with repeatable():
                return library.fetch(choice, say)
        if choice.weights is not None:
            named = choice.option("weights")
            problem = f"{named} is for Inception and published networks; your own network comes with its weights"
            raise InputError(problem, setting=choice.named("weights"))
        return None


def build_network(choice: NetworkChoice, state: State | None) -> tuple[Network, str]:
    """The network; on every rank, which all get the same.

    Args:
        choice: the network.
        state: what `fetch_state` gave.

    Returns:
        The network, in evaluation mode, and its name for the fingerprint.

    Raises:
        InputError: there is no such network, or the weights are those of another.
    """
    network, name = _built(choice, state)
    network.module.eval()
    if choice.feature_step is not None:
        network = replace(network, feature_step=choice.feature_step)
    return network, name


def _built(choice: NetworkChoice, state: State | None) -> tuple[Network, str]:
    library = _published(choice)
    if library is not None:
        assert state is not None
        with repeatable():
            return library.build(choice, state)
    if is_program(choice.extractor):
        return from_program(choice)
    if is_place_in_code(choice.extractor):
        return from_factory(choice)
    raise InputError(
        f"unknown extractor {choice.extractor!r}; there are {NAMED_EXTRACTORS}, FILE.pt2 or TorchScript FILE.pt, and "
        "path/to/file.py:factory or package.module:factory for your own network",
        setting=choice.named("extractor"),
    )


def _published(choice: NetworkChoice) -> PublishedModels | None:
    """The module of the network's family, if it is of one."""
    kind, colon, name = choice.extractor.partition(":")
    family = MODEL_FAMILIES.get(kind)
    if family is None or (bool(colon) != bool(name)):
        return None
    if not name and not family.default:
        problem = f"{choice.option('extractor', kind)} needs the name of a model, as in {kind}:resnet50"
        raise InputError(problem, setting=choice.named("extractor"))
    module: Any = import_module(f"fidtool.features.models.{kind}")
    return module  # type: ignore[no-any-return]


def inception_definition(protocol: Protocol, dims: int, weights_sha256: str, setting: str = "dims") -> Definition:
    """What defines Inception's features under ``protocol``.

    Args:
        protocol: the protocol.
        dims: length of a feature vector.
        weights_sha256: see `Definition`.
        setting: what chose ``dims``.

    Raises:
        InputError: Inception has no layer with that many channels.
    """
    if dims not in INCEPTION_DIMS:
        known = ", ".join(map(str, INCEPTION_DIMS))
        raise InputError(f"{option(setting, dims)}: Inception has features of {known} dimensions", setting=setting)
    return Definition(
        extractor=INCEPTION,
        weights_sha256=weights_sha256,
        dims=dims,
        feature_step=INCEPTION_FEATURE_STEP,
        input_size=INCEPTION_INPUT_SIZE,
        normalization=protocol.normalization,
        resize=protocol.resize,
        decoder=DECODER,
        ddof=protocol.ddof,
    )


def spatial_definition(inception: Definition) -> Definition:
    """What defines the spatial features beside those that ``inception`` defines.

    Raises:
        InputError: the network ends before their layer.
    """
    if inception.dims < 768:
        problem = f"sFID needs Inception up to Mixed_6d: {option('dims', 768)} or 2048, not {inception.dims}"
        raise InputError(problem, setting="dims")
    return replace(inception, extractor=SPATIAL_EXTRACTOR, dims=SPATIAL_DIMS)


def inception_extractor(
    protocol: Protocol,
    definitions: Mapping[str, Definition],
    weights: Weights,
    device: Device,
    arithmetic: Arithmetic = _PLAIN,
) -> Extractor:
    """The standard network under ``protocol``, for the layers that ``definitions`` names: `FEATURES`, and `SPATIAL`."""
    kind = SpatialInception if SPATIAL in definitions else Inception
    module = kind(weights.state, definitions[FEATURES].dims)
    runner = Runner(module, device.torch_device, arithmetic, standard=True)
    return Extractor(runner, definitions, Preparation(protocol.resize), (protocol.offset,), (protocol.scale,), device)


def custom_extractor(
    choice: NetworkChoice,
    state: State | None,
    protocol: Protocol | None,
    device: Device,
    arithmetic: Arithmetic = _PLAIN,
    layer: str = FEATURES,
) -> Extractor:
    """The network behind ``--extractor``, if it is not Inception; a factory's file is run.

    Args:
        choice: the network.
        state: what `fetch_state` gave on rank zero.
        protocol: the one that was asked for, if any.
        device: where it runs.
        arithmetic: how.
        layer: what its features are called.

    Raises:
        InputError: see `build_network` and `network_extractor`.
        RunError: the network fails on a probe image.
    """
    with about(choice.subject):
        named = choice.named("extractor")
        return network_extractor(*build_network(choice, state), protocol, device, arithmetic, layer, named)


def network_extractor(
    network: Network,
    name: str,
    protocol: Protocol | None,
    device: Device,
    arithmetic: Arithmetic = _PLAIN,
    layer: str = FEATURES,
    setting: str = "extractor",
) -> Extractor:
    """A network other than Inception.

    Its module is put into evaluation mode and its parameters need no gradients any more.

    Args:
        network: the network, with everything but the resize and the covariance's ddof; if it has a preparation of its
            own, that is its resize, and ddof is 1.
        name: for the fingerprint.
        protocol: gives those two otherwise; None is the default protocol.
        device: where it runs.
        arithmetic: how.
        layer: what its features are called.
        setting: what chose it.

    Raises:
        InputError: a protocol was asked for, and the network has a preparation of its own.
        RunError: the network fails on a probe image, or gives other features for it each time.
    """
    if network.preparation is not None and protocol is not None:
        raise InputError(
            f"{option('protocol', protocol.name)} does not go with {option(setting, name)}, whose own transform "
            f"prepares the images ({network.preparation.describe(network.input_size)}):",
            f"leave {option('protocol')} out",
            setting="protocol",
        )
    standard = protocol or protocol_named(DEFAULT_PROTOCOL)
    preparation = network.preparation or Preparation(standard.resize)
    network.module.eval().requires_grad_(False)
    offset = tuple(255.0 * value for value in network.mean)
    scale = tuple(255.0 * value for value in network.std)
    definition = Definition(
        extractor=name,
        weights_sha256=module_digest(network.module),
        dims=output_dims(network, device),
        feature_step=network.feature_step,
        input_size=network.input_size,
        normalization=network.normalization,
        resize=preparation.describe(network.input_size),
        decoder=DECODER,
        ddof=1 if network.preparation else standard.ddof,
    )
    runner = Runner(network.module, device.torch_device, arithmetic)
    extractor = Extractor(runner, {layer: definition}, preparation, offset, scale, device)
    check_repeatable(extractor.features, name, device)
    return extractor
