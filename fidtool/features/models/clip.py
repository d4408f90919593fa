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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fidtool.errors import InputError
from fidtool.features.device import computing_on
from fidtool.features.models.families import NetworkChoice
from fidtool.features.network import (
    HUB_MIRROR,
    Network,
    State,
    digest_of,
    downloading,
    frozen,
    kept_file,
    load_strictly,
    sha256_of,
    silent_logging,
    unreadable,
)
from fidtool.features.resize import Preparation
from fidtool.names import suggestion
from fidtool.system.local_files import open_regular

_CACHE = Path("~/.cache/clip").expanduser()
"""The folder to which open_clip downloads weights that are not on the Hugging Face Hub."""
_FEATURE_STEP = 22
"""Entries of a unit vector are below 1, and about 0.03 on average: with this step they have about
17 bits and a range up to 2.
"""


def fetch(choice: NetworkChoice, say: Callable[[str], None], text: bool = False) -> State:
    """Read the image tower's weights, or with ``text`` all others, from a file, or let open_clip
    download them.
    """
    import open_clip

    name, weights = choice.model, choice.weights
    # Not one in a folder (local-dir:) or on the hub (hf-hub:), whose configuration open_clip would
    # read or download.
    config = open_clip.get_model_config(name) if name in open_clip.list_models() else None
    if config is None:
        raise choice.refused(
            "extractor",
            f"open_clip has no model {name!r}{suggestion(name, open_clip.list_models())}",
        )
    if "hf_model_name" in config["text_cfg"] or (
        choice.protocol and "hf_tokenizer_name" in config["text_cfg"]
    ):
        raise choice.refused(
            "extractor",
            f"clip:{name} would download a text network or a tokenizer of another project:",
            "choose a different model",
        )
    if weights is not None and os.path.isfile(weights):
        try:
            tensors = _openai(Path(weights), choice)
            if tensors is not None:
                return State(_part(tensors, text), weights, "openai")
            return State(_part(_model(name, weights).state_dict(), text), weights)
        except InputError:
            raise
        except Exception as error:
            raise unreadable(weights, error) from None
    tags = open_clip.list_pretrained_tags_by_model(name)
    tag = weights or "openai"
    if tag not in tags:
        listed = f" with one of {', '.join(tags)}, or a file" if tags else ""
        raise choice.refused(
            "weights",
            f"there are no weights {tag!r} for clip:{name}:",
            f"pass {choice.option('weights', None if tags else ...)}{listed}",
        )
    published = open_clip.get_pretrained_cfg(name, tag)
    url = published.get("url")
    hub = published.get("hf_hub")  # preferred by open_clip
    source = f"https://huggingface.co/{hub.rstrip('/')}" if hub else url or f"open_clip's {tag}"
    with downloading(choice, source, HUB_MIRROR, say):
        if url and not hub:
            kept_file(url, _CACHE)
        return State(_part(_model(name, tag).state_dict(), text), tag, tag)


def on_disk(choice: NetworkChoice) -> bool:
    """Whether OpenAI's weights of a model are in open_clip's caches, so that `fetch` downloads
    nothing.
    """
    import open_clip

    published = open_clip.get_pretrained_cfg(choice.model, "openai")
    if hub := published.get("hf_hub"):
        from huggingface_hub import try_to_load_from_cache

        repository, _, file = hub.rpartition("/")
        usual = [
            "open_clip_model.safetensors",
            "open_clip_pytorch_model.bin",
        ]  # those that open_clip looks for
        names = [file, f"{Path(file).stem}.safetensors"] if file else usual
        return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)
    file = published.get("url", "").rpartition("/")[2]
    return bool(file) and Path(_CACHE, file).is_file()


def build(choice: NetworkChoice, state: State) -> Network:
    """Build the image tower, whose features are its embedding divided by the Euclidean norm."""
    visual = _model(choice.model, None).visual
    load_strictly(visual, state.tensors, choice, state.origin)
    mean, std = _colours(choice.model, state.entry, visual)
    size = visual.image_size
    side = size[0] if isinstance(size, tuple) else size
    preparation = Preparation(
        "pillow-bicubic", "shorter edge" if choice.protocol else "largest square"
    )
    return Network(_Unit(visual), side, mean, std, _FEATURE_STEP, preparation)


def _colours(name: str, entry: str, visual: Any) -> tuple[Any, Any]:
    """Mean and standard deviation with which the published weights were trained; for a file, those
    of the model.
    """
    import open_clip

    trained = open_clip.get_pretrained_cfg(name, entry) if entry else {}
    if trained.get("quick_gelu", False) and not open_clip.get_model_config(name).get(
        "quick_gelu", False
    ):
        raise InputError(
            f"the weights {entry} of {name} were trained with QuickGELU, which this model does "
            "not have:",
            f"use clip:{name}-quickgelu",
        )
    if (
        trained.get("interpolation", "bicubic") not in ("", "bicubic")
        or trained.get("resize_mode", "") == "squash"
    ):
        raise InputError(
            f"clip:{name} with the weights {entry} resizes images differently from CMMD and CLIP"
        )
    return trained.get("mean") or visual.image_mean, trained.get("std") or visual.image_std


def _openai(file: Path, choice: NetworkChoice) -> dict[str, torch.Tensor] | None:
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
            problem = (
                f"the weights file {file} is a TorchScript program, which can run code, and not "
                "OpenAI's file of"
            )
            raise choice.refused(
                "weights",
                f"{problem} {choice.full}:",
                "if you trust it, save its state_dict with torch.save and pass that file",
            )
    state = torch.jit.load(str(file), map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
    facts = {"input_resolution", "context_length", "vocab_size"}
    return {name: each.float() for name, each in state.items() if name not in facts}


def _part(
    tensors: Mapping[str, torch.Tensor], text: bool, image: str = "visual."
) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(image): each
        for name, each in tensors.items()
        if name.startswith(image) != text
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.visual(x), dim=-1)


class TextTower:
    """CLIP's text network with open_clip's tokenizer, from what `fetch` returned with ``text``, and
    its hash.
    """

    def __init__(self, choice: NetworkChoice, state: State, device: torch.device) -> None:
        import open_clip

        self._tokenize, model, self._device = (
            open_clip.get_tokenizer(choice.model),
            _model(choice.model, None),
            device,
        )
        del model.visual
        load_strictly(model, state.tensors, choice, state.origin)
        self._model, self.sha256 = frozen(model.to(device)), digest_of(model.state_dict())
        self.length: int = self._tokenize.context_length

    def __call__(self, texts: Sequence[str]) -> tuple[torch.Tensor, int]:
        """Return unit vectors, float32 of shape (texts, dims), and how many texts have more than
        ``length`` tokens.

        These are cut, and their last token is that of the end, as with ``truncate=True`` in
        OpenAI's code.
        """
        tokens = self._tokenize([*texts]).to(self._device)
        longer = self._tokenize([*texts], self.length + 1)[
            :, -1
        ].count_nonzero()  # shorter texts end with zeros
        with torch.inference_mode(), computing_on(self._device):
            return self._model.encode_text(tokens, normalize=True).cpu(), int(longer)  # type: ignore[operator]
