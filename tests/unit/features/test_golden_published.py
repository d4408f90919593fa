"""Published networks: calls of their libraries, and fingerprints of the features.

Stand-in modules with the functions that fidtool calls replace the libraries, so that no weights are
needed and the versions of the libraries have no effect.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fidtool.features.models import clip, dinov2
from fidtool.metrics.cmmd import CMMD
from support.goldens import Golden
from support.inside import definition_of

Calls = list[str]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
TIMM = {
    "centre": {
        "input_size": (3, 224, 224),
        "interpolation": "bicubic",
        "crop_mode": "center",
        "crop_pct": 0.9,
    },
    "whole.tag": {
        "input_size": (3, 64, 64),
        "interpolation": "bilinear",
        "crop_mode": "center",
        "crop_pct": 1.0,
    },
    "squashed": {
        "input_size": (3, 48, 48),
        "interpolation": "bicubic",
        "crop_mode": "squash",
        "crop_pct": 1.0,
    },
    "cut": {
        "input_size": (3, 48, 48),
        "interpolation": "bilinear",
        "crop_mode": "squash",
        "crop_pct": 0.75,
    },
}
"""Data configurations by name of the model."""


class Quarters(nn.Module):
    """The maximum of each quarter and channel, multiplied by a parameter."""

    pretrained_cfg: dict[str, Any] = {}  # noqa: RUF012
    image_size = (32, 32)
    image_mean, image_std = (0.25, 0.5, 0.75), (0.5, 0.5, 0.25)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_max_pool2d(x, 2).flatten(1) * self.scale


def install(patch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(contents)
    patch.setitem(sys.modules, name, module)


def call(name: str, *arguments: object, **settings: object) -> str:
    words = [repr(each) for each in arguments] + [
        f"{key}={value!r}" for key, value in settings.items()
    ]
    return f"{name}({', '.join(words)})"


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A weights file in the current folder."""
    monkeypatch.chdir(tmp_path)
    torch.save(Quarters("").state_dict(), "weights.pth")
    return "weights.pth"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    """The calls of timm, torch.hub and open_clip."""
    made: Calls = []

    def of_timm(name: str, **settings: object) -> Quarters:
        made.append(call("timm.create_model", name, **settings))
        return Quarters(name)

    def of_hub(source: str, folder: Path, sha256: str = "") -> Path:
        made.append(call("kept_file", source, sha256))
        file = tmp_path / "downloaded.pth"
        torch.save(Quarters("").state_dict(), file)
        return file

    def of_clip(name: str, **settings: object) -> torch.nn.Module:
        made.append(call("open_clip.create_model", name, **settings))
        model = torch.nn.Module()
        model.visual = Quarters(name)
        return model

    def published(name: str, tag: str) -> dict[str, Any]:
        made.append(call("open_clip.get_pretrained_cfg", name, tag))
        return {
            "url": "https://published",
            "quick_gelu": True,
            "mean": (0.5, 0.25, 0.125),
            "std": (0.25, 0.5, 0.5),
        }

    def read(path: str, weights_only: bool) -> Any:
        return torch.load(path, weights_only=weights_only)

    install(monkeypatch, "timm", create_model=of_timm, is_model=TIMM.__contains__)
    install(
        monkeypatch,
        "timm.data",
        resolve_model_data_config=lambda model: TIMM[model.name] | IMAGENET,
    )
    install(monkeypatch, "timm.models", load_state_dict=read)
    install(
        monkeypatch,
        "open_clip",
        create_model=of_clip,
        list_models=lambda: ["ViT-L-14-336-quickgelu", "ViT-L-14", "RN50", "RN50-quickgelu"],
        get_model_config=lambda name: {"text_cfg": {}, "quick_gelu": name.endswith("-quickgelu")},
        list_pretrained_tags_by_model=lambda name: ["openai", "other"],
        get_pretrained_cfg=published,
    )
    monkeypatch.setattr(dinov2, "kept_file", of_hub)
    monkeypatch.setattr(clip, "kept_file", of_hub)
    monkeypatch.delenv("FIDTOOL_DINOV2_URL", raising=False)
    return made


def shown(calls: Calls, spec: str, weights: str | None = None) -> dict[str, Any]:
    """Return the calls, and the definition with its fingerprint."""
    calls.clear()
    definition = definition_of(spec, weights=weights)
    return {
        "asked": list(calls),
        "known by": json.loads(definition.to_json()),
        "sha256": definition.fingerprint,
    }


def test_fingerprints_of_timm(golden: Golden, calls: Calls, weights: str) -> None:
    """Each framing with each interpolation."""
    golden(
        "features/timm_fingerprints", {name: shown(calls, f"timm:{name}", weights) for name in TIMM}
    )


def test_fingerprints_of_dinov2(golden: Golden, calls: Calls, weights: str) -> None:
    """Every architecture with a download, and the default one also with a file."""
    names = ["dinov2", *(f"dinov2:{name}" for name in ("vits14", "vitb14", "vitl14", "vitg14"))]
    found = {name: shown(calls, name) for name in names} | {
        "a file": shown(calls, "dinov2", weights)
    }
    golden("features/dinov2_fingerprints", found)


def test_fingerprints_of_clip(golden: Golden, calls: Calls, weights: str) -> None:
    """CMMD's network, the default of ``clip``, a named model, and a weights file, whose mean and
    deviation differ.
    """
    found = {"CMMD's own": shown(calls, CMMD.extractor), "clip": shown(calls, "clip")}
    found |= {
        "by name": shown(calls, "clip:RN50-quickgelu", "other"),
        "a file": shown(calls, "clip:RN50", weights),
    }
    golden("features/clip_fingerprints", found)
