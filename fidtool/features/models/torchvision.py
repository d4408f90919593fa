"""``--extractor torchvision:NAME[:node]``: torchvision's classifiers with the preparation of their weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fidtool.errors import InputError, ResultWarning
from fidtool.features.extractor import channels_last
from fidtool.features.models.families import NetworkChoice
from fidtool.features.network import (
    Network,
    State,
    downloading,
    hub_folder,
    kept_file,
    load_strictly,
    read_tensors,
)
from fidtool.features.resize import PILLOW_RESIZES, Preparation
from fidtool.names import suggestion


def fetch(choice: NetworkChoice, say: Callable[[str], None]) -> State:
    """Read a file, or download an entry of the model's weights (``IMAGENET1K_V1``), or else the default entry."""
    from torchvision.models import get_model

    model, weights = choice.model.partition(":")[0], choice.weights
    entries = _entries(model)
    listed = ", ".join(entries.__members__)
    if weights is not None and os.path.isfile(weights):
        tensors, file = read_tensors(Path(weights)), Path(weights).name
        for entry in entries:
            if Path(entry.url).name == file:
                return State(tensors, weights, entry.name)
        text = (
            f"{weights}: images are prepared as for {entries.DEFAULT.name}, one of {listed}; to use the transform of "
            "another, give the file the name of the published one"
        )
        return State(tensors, weights, entries.DEFAULT.name, ResultWarning("", text) if len(entries) > 1 else None)
    if weights not in (None, *entries.__members__):
        problem = f"is neither a file nor one of the weights of {model}: {listed}"
        raise choice.refused("weights", f"{choice.option('weights', weights)} {problem}")
    entry = entries[weights or "DEFAULT"]
    _preset(model, entry)  # refused before anything is downloaded
    with downloading(choice, entry.url, say):
        kept_file(entry.url, hub_folder(), torch.hub.HASH_REGEX.findall(entry.url)[-1])
        return State(get_model(model, weights=entry, progress=False).state_dict(), entry.url, entry.name)


def build(choice: NetworkChoice, state: State) -> Network:
    """Build the network: its features are the output of the node, or else the input of the last Linear layer."""
    model, _, node = choice.model.partition(":")
    preset = _preset(model, _entries(model)[state.entry])
    module = _architecture(model, preset.crop_size[0]).eval()
    tensors = copy(state.tensors)  # with the version numbers of its modules, which some models use
    # Auxiliary outputs of googlenet and inception_v3 are used only in training.
    unused = ["aux1.", "aux2.", "AuxLogits."]
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    classifier = linear[-1] if linear else ""
    weight = tensors.get(f"{classifier}.weight")
    if not node:
        if not linear:
            raise InputError(
                f"torchvision:{model} has no Linear layer whose input could be used as features:",
                f"name a node, as in torchvision:{model}:features",
            )
        unused.append(f"{classifier}.")
        _replace(module, classifier, nn.Identity())
    elif linear and weight is not None and weight.ndim == 2:
        # A network that was fine-tuned on other classes differs only in the classifier.
        width, bias = module.get_submodule(classifier).in_features, f"{classifier}.bias" in tensors
        _replace(module, classifier, nn.Linear(width, len(weight), bias))
    for name in [name for name in tensors if name.startswith(tuple(unused))]:
        del tensors[name]
    load_strictly(module, tensors, choice, state.origin)
    return Network(
        _at_node(module, model, node) if node else module,
        preset.crop_size[0],
        preset.mean,
        preset.std,
        preparation=Preparation(PILLOW_RESIZES[preset.interpolation.value], "shorter edge", preset.resize_size[0]),
    )


def _entries(model: str) -> Any:
    from torchvision.models import get_model_weights, list_models

    known = list_models()
    if model not in known:
        raise InputError(f"torchvision has no model {model!r}{suggestion(model, known)}")
    if model.startswith("quantized_"):
        raise InputError(f"torchvision:{model} computes in 8 bits", f"use {model.removeprefix('quantized_')}")
    return get_model_weights(model)


def _preset(model: str, entry: Any) -> Any:
    preset = entry.transforms()
    if type(preset).__name__ != "ImageClassification":
        raise InputError(
            f"torchvision:{model} is not an image classifier (its weights come with {type(preset).__name__}):",
            "choose one of torchvision's classification models",
            "wrap it in a custom factory (FILE.py:NAME)",
        )
    if preset.interpolation.value not in PILLOW_RESIZES:
        raise InputError(f"torchvision:{model} needs {preset.interpolation.value} resizing, which is not supported")
    return preset


def _architecture(model: str, size: int) -> Any:
    """The model without weights, as torchvision builds it for its published weights."""
    from torchvision.models import get_model

    settings: dict[str, object] = {}
    if model in ("googlenet", "inception_v3"):
        settings = {"transform_input": True, "aux_logits": False, "init_weights": False}
    elif model.startswith("vit_"):
        settings = {"image_size": size}
    return get_model(model, weights=None, **settings)


def _replace(module: Any, name: str, other: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, other)


class _AtNode(nn.Module):
    """Returns the output of one node, with the channels of a map first (swin's maps have them last)."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.graph(x)["features"]
        return output.movedim(3, 1) if channels_last(output) else output


def _at_node(module: nn.Module, model: str, node: str) -> nn.Module:
    from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

    names = get_graph_node_names(module)[1]
    # The name of a module stands for its last node.
    known = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
    if node not in known:
        raise InputError(f"torchvision:{model} has no node {node!r}{suggestion(node, sorted(known))}")
    return _AtNode(create_feature_extractor(module, {node: "features"}))
