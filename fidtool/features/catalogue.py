"""Which network an ``--extractor`` names, where its weights come from, and how it is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from fidtool.errors import InputError
from fidtool.features.exported import from_program, is_program
from fidtool.features.factories import from_factory
from fidtool.features.network import Network
from fidtool.features.protocol import NetworkChoice
from fidtool.features.published import State
from fidtool.features.torch_state import repeatable
from fidtool.user_code import is_place_in_code

KINDS = (
    "inception, torchvision:NAME[:node], timm:NAME, dinov2[:ARCH], clip[:MODEL], FILE.pt2 or TorchScript FILE.pt, and "
    "path/to/file.py:factory or package.module:factory for your own network"
)


_PUBLISHED = re.compile(r"torchvision:\w+(:[\w.]+)?|(timm|dinov2|clip):[\w.-]+")


def is_published(name: str) -> bool:
    """Whether a fingerprint's name is that of a library's own network: no path, no code, and no place on a hub."""
    return _PUBLISHED.fullmatch(name) is not None


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
    if choice.input_size is not None and not is_program(choice.extractor):
        raise InputError(f"--input-size is for exported programs; {choice.extractor} knows the size of its input")
    published = _published(choice.extractor)
    if published is not None:
        library, name = published
        with repeatable():
            state: State = library.fetch(name, choice.weights, say)
        return state
    if choice.weights is not None:
        raise InputError("--weights is for Inception and published networks; your own network comes with its weights")
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
    published = _published(choice.extractor)
    if published is not None:
        library, name = published
        assert state is not None
        with repeatable():
            built: tuple[Network, str] = library.build(name, state)
        return built
    if is_program(choice.extractor):
        return from_program(choice.extractor, choice.input_size)
    if is_place_in_code(choice.extractor):
        return from_factory(choice.extractor)
    raise InputError(f"unknown extractor {choice.extractor!r}; there are {KINDS}")


def _published(spec: str) -> tuple[ModuleType, str] | None:
    """The module that knows the network, with functions ``fetch`` and ``build``, and the network's name in it."""
    from fidtool.features import clip_models, dinov2, timm_models, torchvision_models

    kind, colon, name = spec.partition(":")
    library = {"torchvision": torchvision_models, "timm": timm_models, "dinov2": dinov2, "clip": clip_models}.get(kind)
    if library is None or (bool(colon) != bool(name)):
        return None
    if not name and library in (torchvision_models, timm_models):
        raise InputError(f"--extractor {kind} needs the name of a model, as in {kind}:resnet50")
    return library, name
