"""From ``--extractor`` to a network, its weights and the extractor that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fidtool.errors import InputError, about, option
from fidtool.features.device import Device, repeatable
from fidtool.features.extractor import Extractor
from fidtool.features.models.families import MODEL_FAMILIES, NetworkChoice, check_extractor, is_program
from fidtool.features.models.inception import Inception, SpatialInception
from fidtool.features.models.inception_weights import Weights
from fidtool.features.network import Network, check_repeatable, frozen, module_digest, output_dims
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
    Definition,
    Protocol,
    protocol_named,
)
from fidtool.features.resize import Preparation
from fidtool.images.decode import DECODER

if TYPE_CHECKING:
    from fidtool.features.models.published import PublishedModels, State


def fetch_state(choice: NetworkChoice, say: Callable[[str], None]) -> State | None:
    """Read or download the tensors of a network. Called on rank zero only, for all ranks."""
    with about(choice.subject):
        check_extractor(choice)
        if choice.input_size is not None and not is_program(choice.extractor):
            size = choice.option("input_size")
            problem = f"{size} is for exported programs; the input size of {choice.extractor} is known"
            raise InputError(problem, setting=choice.named("input_size"))
        library = _published(choice)
        if library is not None:
            with repeatable():
                return library.fetch(choice, say)
        if choice.weights is not None:
            named = choice.option("weights")
            problem = f"{named} is for Inception and published networks; a custom network comes with its weights"
            raise InputError(problem, setting=choice.named("weights"))
        return None


def build_network(choice: NetworkChoice, state: State | None) -> tuple[Network, str]:
    """Build the network. Called on every rank, with the same result."""
    library = _published(choice)
    if library is not None:
        assert state is not None
        with repeatable():
            network, name = library.build(choice, state)
    else:
        from fidtool.features.models.user_networks import from_factory, from_program

        network, name = from_program(choice) if is_program(choice.extractor) else from_factory(choice)
    network.module.eval()
    if choice.feature_step is not None:
        network = replace(network, feature_step=choice.feature_step)
    return network, name


def _published(choice: NetworkChoice) -> PublishedModels | None:
    """The module of the network's family; None if it belongs to none."""
    kind = choice.extractor.partition(":")[0]
    if kind not in MODEL_FAMILIES:
        return None
    module: Any = import_module(f"fidtool.features.models.{kind}")
    return module  # type: ignore[no-any-return]


def inception_definition(protocol: Protocol, dims: int, weights_sha256: str, setting: str = "dims") -> Definition:
    """Return the definition of Inception's features under ``protocol``."""
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
    """Return the definition of the spatial features of the network that ``inception`` defines."""
    if inception.dims < 768:
        problem = f"sFID needs Inception up to Mixed_6d: {option('dims', 768)} or 2048, not {inception.dims}"
        raise InputError(problem, setting="dims")
    return replace(inception, extractor=SPATIAL_EXTRACTOR, dims=SPATIAL_DIMS)


def inception_extractor(
    protocol: Protocol, definitions: Mapping[str, Definition], weights: Weights, device: Device, precision: str = "fp32"
) -> Extractor:
    """Return Inception's extractor under ``protocol``, for the layers in ``definitions``: `FEATURES` and `SPATIAL`."""
    kind = SpatialInception if SPATIAL in definitions else Inception
    module = kind(weights.state, definitions[FEATURES].dims)
    offset, scale = (protocol.offset,), (protocol.scale,)
    return Extractor(module, definitions, Preparation(protocol.resize), offset, scale, device, precision)


def custom_extractor(
    choice: NetworkChoice,
    state: State | None,
    protocol: Protocol | None,
    device: Device,
    precision: str = "fp32",
    layer: str = FEATURES,
) -> Extractor:
    """Return the extractor of a network that is not Inception. Runs the file of a factory."""
    with about(choice.subject):
        named = choice.named("extractor")
        return network_extractor(*build_network(choice, state), protocol, device, precision, layer, named)


def network_extractor(
    network: Network,
    name: str,
    protocol: Protocol | None,
    device: Device,
    precision: str = "fp32",
    layer: str = FEATURES,
    setting: str = "extractor",
) -> Extractor:
    """Return the extractor of a network that is not Inception.

    Puts its module into evaluation mode and disables the gradients of its parameters.

    Args:
        network: the network. If it has its own preparation, that determines the resize, and the covariance's ddof is 1.
        protocol: determines resize and ddof of a network without its own preparation; None is the default protocol.

    Raises:
        InputError: if a protocol is requested for a network with its own preparation.
        RunError: if the network fails on a probe image, or its features are not repeatable.
    """
    if network.preparation is not None and protocol is not None:
        raise InputError(
            f"{option('protocol', protocol.name)} cannot be combined with {option(setting, name)}, which prepares the "
            f"images with its own transform ({network.preparation.describe(network.input_size)}):",
            f"omit {option('protocol')}",
            setting="protocol",
        )
    standard = protocol or protocol_named(DEFAULT_PROTOCOL)
    preparation = network.preparation or Preparation(standard.resize)
    network = replace(network, module=frozen(network.module))
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
    extractor = Extractor(network.module, {layer: definition}, preparation, offset, scale, device, precision)
    check_repeatable(extractor.features, name, device)
    return extractor
