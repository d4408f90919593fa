"""``--extractor timm:NAME[:POOL]``: timm's models with the preparation of their data config. Needs
the extra ``timm``.

``POOL`` is timm's ``global_pool``, such as ``token`` or ``avg``; by default it is that of the
model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from fidtool.errors import InputError, Say, format_message
from fidtool.features.choice import NetworkChoice
from fidtool.features.network import Network
from fidtool.features.protocol import USUAL_STEP
from fidtool.features.resize import PILLOW_RESIZES, Framing, Preparation
from fidtool.features.weights import (
    HUB_MIRROR,
    State,
    StateDict,
    explain_download_errors,
    hub_folder,
    kept_file,
    load_strictly,
    unreadable_error,
    weights_file,
)
from fidtool.names import unknown_name_error

_FRAMINGS: dict[str, Framing] = {"center": "shorter edge", "squash": "squash"}


def fetch(choice: NetworkChoice, say: Say) -> State:
    """Read a .pth or .safetensors file, or let timm download its own weights."""
    network = _create_network(choice)  # refused before anything is downloaded
    return fetch_weights(choice, say, _creator(choice), network.module)


def build(choice: NetworkChoice, state: State) -> Network:
    """Build the network, whose features are the input of timm's classifier."""
    network = _create_network(choice)
    load_strictly(network.module, state, choice)
    return network


def fetch_weights(
    choice: NetworkChoice, say: Say, create: partial[Any], model: Any = None
) -> State:
    """Read or download the weights of a ``model``, or else of that which
    ``create(pretrained=False)`` returns.
    """
    import timm

    if choice.weights is not None:
        if model is None:  # a large one takes seconds to create
            model = create(pretrained=False)
        return State(_read_state_dict(choice, model), choice.weights)
    config = timm.get_pretrained_cfg(create.args[0], allow_unregistered=True)
    source = config and (config.hf_hub_id or config.url)
    if not source:
        raise choice.refused(
            "weights",
            f"timm has no weights for {choice.model}:",
            f"pass {choice.option('weights', ...)}",
            "choose a different model",
        )
    with explain_download_errors(choice, source, HUB_MIRROR, say):
        if not config.hf_hub_id:
            kept_file(source, hub_folder())
        return State(create(pretrained=True).state_dict(), source)


def _creator(choice: NetworkChoice) -> partial[Any]:
    """timm's function that creates the model."""
    import timm

    name, _, pool = choice.model.partition(":")
    if not timm.is_model(name):
        known = timm.list_models()
        raise unknown_name_error("timm model", name, known, "timm.list_models()", choice.setting)
    create = partial(timm.create_model, name, num_classes=0)
    return partial(create, global_pool=pool) if pool else create


def _create_network(choice: NetworkChoice) -> Network:
    """The model without weights, with the preparation of its evaluation transform."""
    from timm.data import resolve_model_data_config

    name = choice.model
    create = _creator(choice)
    try:
        model = create(pretrained=False)
    except (RuntimeError, AssertionError, TypeError) as error:  # an unknown tag or pooling
        raise choice.refused(
            "extractor", f"timm cannot build {name}: {format_message(error)[:200]}"
        ) from None
    config = resolve_model_data_config(model)
    size = config["input_size"][1]
    preparation = make_preparation(name, config)
    return Network(model, size, config["mean"], config["std"], USUAL_STEP, preparation)


def make_preparation(name: str, config: Mapping[str, Any]) -> Preparation:
    """The preparation of timm's evaluation transform (create_transform with the model's data
    config).
    """
    channels, height, width = config["input_size"]
    resize = PILLOW_RESIZES.get(config["interpolation"])
    framing = _FRAMINGS.get(config["crop_mode"])
    if (channels, height) != (3, width) or resize is None or framing is None:
        raise InputError(
            f"timm:{name} needs an input of {channels}x{height}x{width}, the interpolation "
            f"{config['interpolation']} and the crop mode {config['crop_mode']}; fidtool supports "
            "square RGB inputs, the interpolations bilinear and bicubic, and the crop modes center "
            "and squash"
        )
    return Preparation(resize, framing, math.floor(height / config["crop_pct"]))


def _read_state_dict(choice: NetworkChoice, model: Any) -> StateDict:
    """The file's tensors by the model's names, without the classifier's."""
    from timm.models import load_state_dict

    path = weights_file(choice)
    try:
        tensors: StateDict = dict(load_state_dict(str(path), weights_only=True))
    except Exception as error:
        raise unreadable_error(path, error) from None
    wanted = model.state_dict().keys()
    classifiers = model.pretrained_cfg.get("classifier") or ()
    if isinstance(classifiers, str):
        classifiers = (classifiers,)
    prefixes = tuple(f"{classifier}." for classifier in classifiers)

    def is_kept(name: str) -> bool:
        return name in wanted or not name.startswith(prefixes)

    # timm's loaders convert other projects' names with this function in the model's module.
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is not None and set(filter(is_kept, tensors)) != wanted:
        tensors = convert(tensors, model)
    return {name: tensor for name, tensor in tensors.items() if is_kept(name)}
