"""``--extractor fdr:NAME``: the networks of FD-Loss (arXiv 2604.28190) besides Inception. Needs the
extra ``timm``.

timm's models, as in FD-Loss' evaluation (cwhoaon/FD-Loss, eval_all_fds.py). Images in 0..1 are
squashed to the side of the input by torch's antialiased bicubic filter in float, whose result is
not clamped; an image of that side stays as it is. The features are the class token of
``forward_features``; SigLIP, which has none, pools by attention, and ConvNeXt's map is averaged
before the norm of its classifier.

FD-Loss runs these networks in bfloat16 (autocast), and fidtool in float32: ``--precision bf16`` is
close to it. Its statistics of ImageNet are of images that ADM's crop made 256 x 256.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from torch import nn

from fidtool.errors import Say
from fidtool.features.choice import NetworkChoice
from fidtool.features.models.timm import fetch_weights
from fidtool.features.network import Network
from fidtool.features.resize import Preparation
from fidtool.features.weights import State, load_strictly
from fidtool.names import unknown_name_error


class _Model(NamedTuple):
    """timm's name, the side of the input, and the feature step."""

    name: str
    side: int
    step: int = 16


MODELS = {
    "convnext": _Model("convnextv2_base.fcmae_ft_in22k_in1k", 224, 14),
    "dinov2": _Model("vit_large_patch14_dinov2.lvd142m", 256),
    "mae": _Model("vit_large_patch16_224.mae", 224),
    "siglip": _Model("vit_so400m_patch16_siglip_256.v2_webli", 224),
    "clip": _Model("vit_large_patch14_clip_224.openai", 256),
}
"""The models by their names. The range of the features, 128 and for ConvNeXt 512, is an estimate:
their largest values were not measured.
"""


def fetch(choice: NetworkChoice, say: Say) -> State:
    """Read a .pth or .safetensors file, or let timm download its own weights."""
    if choice.model not in MODELS:
        raise unknown_name_error("fdr model", choice.model, MODELS, setting=choice.setting)
    return fetch_weights(choice, say, _creator(choice.model))


def build(choice: NetworkChoice, state: State) -> Network:
    """Build the network, whose features are those of the whole image."""
    from timm.data import resolve_model_data_config

    model = MODELS[choice.model]
    module = _creator(choice.model)(pretrained=False)
    load_strictly(module, state, choice)
    config = resolve_model_data_config(module)
    if choice.model == "convnext":
        module.head = nn.Identity()  # fidtool averages the map
    preparation = Preparation("bicubic-antialias-unclamped")
    return Network(module, model.side, config["mean"], config["std"], model.step, preparation)


def _creator(model: str) -> partial[Any]:
    """timm's function that creates the model, whose table of positions is resampled for each size
    of input.
    """
    import timm

    create = partial(timm.create_model, MODELS[model].name, num_classes=0)
    if model == "convnext":  # takes any size
        return create
    return partial(create, dynamic_img_size=True, dynamic_img_pad=True)
