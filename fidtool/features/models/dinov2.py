"""``--extractor dinov2[:ARCH]``: DINOv2 as in FD-DINOv2 (Stein et al. 2023, dgm-eval). Needs the
extra ``timm``.

timm's VisionTransformer with the weights that facebookresearch/dinov2 publishes (Oquab et al. 2023,
Apache-2.0). The features are the class token after the final norm. Images are resized to 224 x 224,
without keeping the aspect ratio: with Pillow's bicubic filter on 8 bits, or with the protocol
``torch`` as EDM2 does by default.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fidtool.errors import Say
from fidtool.features.choice import NetworkChoice
from fidtool.features.network import Network, own_preparation
from fidtool.features.protocol import USUAL_STEP
from fidtool.features.weights import (
    State,
    StateDict,
    explain_download_errors,
    hub_folder,
    kept_file,
    load_strictly,
    read_tensors,
    weights_file,
)
from fidtool.names import unknown_name_error
from fidtool.system.variables import DINOV2_URL

# timm's names of the models.
_ARCHITECTURES = {
    "vits14": "vit_small_patch14_dinov2",
    "vitb14": "vit_base_patch14_dinov2",
    "vitl14": "vit_large_patch14_dinov2",
    "vitg14": "vit_giant_patch14_dinov2",
}
HASHES = {
    "vits14": "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9",
    "vitb14": "0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73",
    "vitl14": "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428",
    "vitg14": "baf8467e50af277596bbbafa06887c177ee899ab46033649c383577d7e9309d3",
}
"""SHA-256 of the published files."""
_PUBLISHED = "https://dl.fbaipublicfiles.com/dinov2/dinov2_{0}/dinov2_{0}_pretrain.pth"
_MIRROR = f"{DINOV2_URL.name} to the address of a mirror"
_SIZE = 224
_PATCH = 14
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


def fetch(choice: NetworkChoice, say: Say) -> State:
    """Read a file, or the published one from torch.hub's folder or a download."""
    name = choice.model
    if name not in _ARCHITECTURES:
        raise unknown_name_error("dinov2 model", name, _ARCHITECTURES, setting=choice.setting)
    if choice.weights is not None:
        return State(read_tensors(weights_file(choice)), choice.weights)
    source = DINOV2_URL.value or _PUBLISHED.format(name)
    with explain_download_errors(choice, source, _MIRROR, say):
        file = kept_file(source, hub_folder(), HASHES[name])
    return State(read_tensors(file), source)


def build(choice: NetworkChoice, state: State) -> Network:
    """Build the network, whose features are the class token after the final norm."""
    import timm

    module = timm.create_model(
        _ARCHITECTURES[choice.model], pretrained=False, img_size=_SIZE, num_classes=0
    )
    tensors: StateDict = {}
    for key, value in state.tensors.items():
        if key == "pos_embed":
            value = position_embedding(value, _SIZE // _PATCH)
        # Only the SwiGLU layers of vitg14 have different names in timm.
        key = key.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.")
        if key != "mask_token":
            tensors[key] = value
    load_strictly(module, State(tensors, state.origin), choice)
    return Network(module, _SIZE, _MEAN, _STD, USUAL_STEP, own_preparation(choice))


def position_embedding(table: Tensor, side: int) -> Tensor:
    """Return the learned positions of the class token and of ``side`` x ``side`` patches, shape (1,
    1 + side ** 2, D).

    The published model interpolates by the factor (side + 0.1) / grid instead of to a size, and
    without antialiasing. timm's own conversion does neither and leads to different features.
    """
    grid = math.isqrt(table.shape[1] - 1)
    if grid == side or grid * grid != table.shape[1] - 1:
        return table
    patches = table[:, 1:].float().reshape(1, grid, grid, -1).permute(0, 3, 1, 2)
    scale = (side + 0.1) / grid
    resized = F.interpolate(patches, scale_factor=(scale, scale), mode="bicubic", antialias=False)
    return torch.cat([table[:, :1].float(), resized.flatten(2).transpose(1, 2)], 1)
