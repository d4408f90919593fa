"""``--extractor timm:NAME[:POOL]``: timm's models with the preparation of their data config. Needs
the extra ``timm``.

``POOL`` is timm's ``global_pool``, such as ``token`` or ``avg``; by default it is that of the
model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from fidtool.errors import InputError, message_of
from fidtool.features.models.families import NetworkChoice
from fidtool.features.network import (
    HUB_MIRROR,
    Network,
    State,
    downloading,
    hub_folder,
    kept_file,
    load_strictly,
    unreadable,
    weights_file,
)
from fidtool.features.resize import PILLOW_RESIZES, Framing, Preparation
from fidtool.names import suggestion

_FRAMINGS: dict[str, Framing] = {"center": "shorter edge", "squash": "squash"}


def fetch(choice: NetworkChoice, say: Callable[[str], None]) -> State:
    """Read a .pth or .safetensors file, or let timm download its own weights."""
    network = _architecture(choice)  # refused before anything is downloaded
    return fetched(choice, say, _creates(choice), network.module)


def build(choice: NetworkChoice, state: State) -> Network:
    """Build the network, whose features are the input of timm's classifier."""
    network = _architecture(choice)
    load_strictly(network.module, state.tensors, choice, state.origin)
    return network


def fetched(
    choice: NetworkChoice,
    say: Callable[[str], None],
    create: partial[Any],
    model: Any | None = None,
) -> State:
    """Read or download the weights of a ``model``, or else of that which
    ``create(pretrained=False)`` returns.
    """
    import timm

    if choice.weights is not None:
        # A large model takes seconds to create.
        return State(
            _read(choice, create(pretrained=False) if model is None else model), choice.weights
        )
    config = timm.get_pretrained_cfg(create.args[0], allow_unregistered=True)
    source = config and (config.hf_hub_id or config.url)
    if not source:
        raise choice.refused(
            "weights",
            f"timm has no weights for {choice.model}:",
            f"pass {choice.option('weights', ...)}",
            "choose a different model",
        )
    with downloading(choice, source, HUB_MIRROR, say):
        if not config.hf_hub_id:
            kept_file(source, hub_folder())
        return State(create(pretrained=True).state_dict(), source)


def _creates(choice: NetworkChoice) -> partial[Any]:
    """timm's function that creates the model."""
    import timm

    name, _, pool = choice.model.partition(":")
    if not timm.is_model(name):
        raise choice.refused(
            "extractor", f"timm has no model {name!r}{suggestion(name, timm.list_models())}"
        )
    return partial(
        timm.create_model, name, num_classes=0, **({"global_pool": pool} if pool else {})
    )


def _architecture(choice: NetworkChoice) -> Network:
    """The model without weights, with the preparation of its evaluation transform."""
    from timm.data import resolve_model_data_config

    create, name = _creates(choice), choice.model
    try:
        model = create(pretrained=False)
    except (RuntimeError, AssertionError, TypeError) as error:  # an unknown tag or pooling
        raise choice.refused(
            "extractor", f"timm cannot build {name}: {message_of(error)[:200]}"
        ) from None
    config = resolve_model_data_config(model)
    size, preparation = config["input_size"][1], preparation_of(name, config)
    return Network(model, size, config["mean"], config["std"], preparation=preparation)


def preparation_of(name: str, config: Mapping[str, Any]) -> Preparation:
    """The preparation of timm's evaluation transform (create_transform with the model's data
    config).
    """
    channels, height, width = config["input_size"]
    resize, framing = (
        PILLOW_RESIZES.get(config["interpolation"]),
        _FRAMINGS.get(config["crop_mode"]),
    )
    if (channels, height) != (3, width) or resize is None or framing is None:
        raise InputError(
            f"timm:{name} needs input {channels}x{height}x{width}, interpolation "
            f"{config['interpolation']} and crop mode {config['crop_mode']}; fidtool supports "
            "square RGB, bilinear and bicubic, center and squash"
        )
    return Preparation(resize, framing, math.floor(height / config["crop_pct"]))


def _read(choice: NetworkChoice, model: Any) -> dict[str, torch.Tensor]:
    """The file's tensors by the model's names, without the classifier's."""
    from timm.models import load_state_dict

    path = weights_file(choice)
    try:
        tensors: dict[str, torch.Tensor] = dict(load_state_dict(str(path), weights_only=True))
    except Exception as error:
        raise unreadable(path, error) from None
    classifiers = model.pretrained_cfg.get("classifier") or ()
    prefixes = tuple(
        f"{each}." for each in ((classifiers,) if isinstance(classifiers, str) else classifiers)
    )
    wanted = set(model.state_dict())

    def without_classifier(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            key: value
            for key, value in tensors.items()
            if key in wanted or not key.startswith(prefixes)
        }

    kept = without_classifier(tensors)
    # timm's loaders convert other projects' names with this function in the model's module.
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is not None and set(kept) != wanted:
        kept = without_classifier(dict(convert(tensors, model)))
    return kept
