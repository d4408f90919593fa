"""``--extractor clip[:MODEL]``: CLIP's image embedding, prepared as in CMMD. Needs the extra
``clip`` (open_clip).

CMMD (Jayasumana et al. 2024; sayakpaul/cmmd-pytorch) crops the largest centre square, resizes it
with Pillow's bicubic filter on 8 bits, and divides the embedding by its norm. The protocol
``openai``, which the CLIP score uses, is CLIP's own transform: it resizes the shorter edge with the
same filter, and crops the centre.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidtool.errors import InputError, Say
from fidtool.features.choice import NetworkChoice
from fidtool.features.device import device_context
from fidtool.features.hashes import hash_state_dict
from fidtool.features.network import Network, freeze, own_preparation
from fidtool.features.weights import (
    HUB_MIRROR,
    State,
    StateDict,
    explain_download_errors,
    kept_file,
    load_strictly,
    silent_logging,
    unreadable_error,
)
from fidtool.names import unknown_name_error
from fidtool.system.local_files import open_regular, sha256_of

# The folder to which open_clip downloads weights that are not on the Hugging Face Hub.
_CACHE = Path("~/.cache/clip").expanduser()
# Entries of a unit vector are below 1, and about 0.03 on average: with this step they have about 17
# bits and a range up to 2.
_FEATURE_STEP = 22
# The image tower's part of the names of a model's tensors.
_IMAGE = "visual."


def fetch(choice: NetworkChoice, say: Say, text: bool = False) -> State:
    """Read the image tower's weights, or with ``text`` all others, from a file, or let open_clip
    download them.
    """
    _check_model(choice)
    if choice.weights is None or not os.path.isfile(choice.weights):
        return _download(choice, say, text)
    try:
        tensors = _read_openai(Path(choice.weights), choice)
        if tensors is not None:
            return State(_select_tower(tensors, text), choice.weights, "openai")
        tensors = _model(choice.model, choice.weights).state_dict()
    except InputError:
        raise
    except Exception as error:
        raise unreadable_error(choice.weights, error) from None
    return State(_select_tower(tensors, text), choice.weights)


def _check_model(choice: NetworkChoice) -> None:
    """Refuse a model whose configuration, text network or tokenizer open_clip would download."""
    import open_clip

    name = choice.model
    known = open_clip.list_models()
    if name not in known:
        raise unknown_name_error(
            "clip model", name, known, "open_clip.list_models()", choice.setting
        )
    text = open_clip.get_model_config(name)["text_cfg"]
    if "hf_model_name" in text or (choice.protocol and "hf_tokenizer_name" in text):
        raise choice.refused(
            "extractor",
            f"clip:{name} would download a text network or a tokenizer from another project:",
            "choose a different model",
        )


def _download(choice: NetworkChoice, say: Say, text: bool) -> State:
    import open_clip

    name = choice.model
    tag = choice.weights or "openai"
    tags = open_clip.list_pretrained_tags_by_model(name)
    if tag not in tags:
        remedy = f"pass {choice.option('weights', ...)}"
        if tags:
            remedy = f"pass {choice.option('weights')} with one of {', '.join(tags)}, or a file"
        raise choice.refused("weights", f"there are no weights {tag!r} for clip:{name}:", remedy)
    published = open_clip.get_pretrained_cfg(name, tag)
    url = published.get("url")
    hub = published.get("hf_hub")  # preferred by open_clip
    source = url or f"open_clip's {tag}"
    if hub:
        source = f"https://huggingface.co/{hub.rstrip('/')}"
    with explain_download_errors(choice, source, HUB_MIRROR, say):
        if url and not hub:
            kept_file(url, _CACHE)
        return State(_select_tower(_model(name, tag).state_dict(), text), tag, tag)


def is_downloaded(choice: NetworkChoice) -> bool:
    """Whether OpenAI's weights of a model are in open_clip's caches, so that `fetch` downloads
    nothing.
    """
    import open_clip

    published = open_clip.get_pretrained_cfg(choice.model, "openai")
    repository = published.get("hf_hub", "").rstrip("/")
    if not repository:
        return Path(_CACHE, os.path.basename(published.get("url", ""))).is_file()
    from huggingface_hub import try_to_load_from_cache

    # Those that open_clip looks for.
    names = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)


def build(choice: NetworkChoice, state: State) -> Network:
    """Build the image tower, whose features are its embedding divided by the Euclidean norm."""
    visual = _model(choice.model, None).visual
    load_strictly(visual, state, choice)
    mean, std = _colours(choice.model, state.entry, visual)
    size = visual.image_size
    side = size[0] if isinstance(size, tuple) else size
    return Network(_Unit(visual), side, mean, std, _FEATURE_STEP, own_preparation(choice))


def _colours(name: str, entry: str, visual: Any) -> tuple[Any, Any]:
    """Mean and standard deviation with which the published weights were trained; for a file, those
    of the model.
    """
    import open_clip

    trained = open_clip.get_pretrained_cfg(name, entry) if entry else {}
    quick = open_clip.get_model_config(name).get("quick_gelu", False)
    if trained.get("quick_gelu", False) and not quick:
        raise InputError(
            f"the weights {entry} of {name} were trained with QuickGELU, which this model does "
            "not have:",
            f"use clip:{name}-quickgelu",
        )
    bicubic = trained.get("interpolation", "bicubic") in ("", "bicubic")
    if not bicubic or trained.get("resize_mode") == "squash":
        raise InputError(
            f"clip:{name} with the weights {entry} resizes images differently from CMMD and CLIP, "
            "which fidtool does not support:",
            "choose other weights",
        )
    return trained.get("mean") or visual.image_mean, trained.get("std") or visual.image_std


def _read_openai(file: Path, choice: NetworkChoice) -> StateDict | None:
    """The tensors if this is a TorchScript file, which must be OpenAI's: loading one runs code in
    it.
    """
    import open_clip

    if not zipfile.is_zipfile(file):
        return None
    with zipfile.ZipFile(file) as archive:
        if not any(name.endswith("/constants.pkl") for name in archive.namelist()):
            return None
    # The address of OpenAI's file contains its SHA-256.
    address = open_clip.get_pretrained_cfg(choice.model, "openai").get("url", "")
    with open_regular(file) as handle:
        if f"/{sha256_of(handle)}/" not in address:
            raise choice.refused(
                "weights",
                f"the weights file {file} is a TorchScript program, which can run code, and is not "
                f"OpenAI's file for {choice.full}:",
                "if you trust it, save its state_dict with torch.save and pass that file",
            )
    state = torch.jit.load(str(file), map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
    for fact in ("input_resolution", "context_length", "vocab_size"):
        state.pop(fact, None)
    return {name: tensor.float() for name, tensor in state.items()}


def _select_tower(tensors: Mapping[str, Tensor], text: bool) -> StateDict:
    if text:
        return {name: tensors[name] for name in tensors if not name.startswith(_IMAGE)}
    return {
        name.removeprefix(_IMAGE): tensor
        for name, tensor in tensors.items()
        if name.startswith(_IMAGE)
    }


def _model(name: str, pretrained: str | None) -> Any:
    """The whole model. Without ``pretrained`` nothing is downloaded."""
    import open_clip

    with silent_logging():  # it warns about a model without weights
        return open_clip.create_model(name, pretrained=pretrained)


class _Unit(nn.Module):
    """Embeddings divided by their Euclidean norm."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.visual(x), dim=-1)


class TextTower:
    """CLIP's text network with open_clip's tokenizer, from what `fetch` returned with ``text``, and
    its hash.
    """

    def __init__(self, choice: NetworkChoice, state: State, device: torch.device) -> None:
        import open_clip

        self._device = device
        self._tokenize = open_clip.get_tokenizer(choice.model)
        self.length: int = self._tokenize.context_length
        model = _model(choice.model, None)
        del model.visual
        load_strictly(model, state, choice)
        self.sha256 = hash_state_dict(model.state_dict())
        self._model: Any = freeze(model.to(device))

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """Return unit vectors, float32 of shape (texts, dims), and how many texts have more than
        ``length`` tokens.

        These are cut, and their last token is that of the end, as with ``truncate=True`` in
        OpenAI's code.
        """
        tokens = self._tokenize([*texts]).to(self._device)
        # Shorter texts end with zeros.
        following = self._tokenize([*texts], self.length + 1)[:, -1]
        with torch.inference_mode(), device_context(self._device):
            vectors = self._model.encode_text(tokens, normalize=True)
        return vectors.cpu(), int(following.count_nonzero())
