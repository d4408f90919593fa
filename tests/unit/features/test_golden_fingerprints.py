"""Fingerprints identify the features in statistics files and caches. Changing one would make those
files unusable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fidtool
from fidtool.features.models.inception import OFFICIAL_SHA256, OFFLINE_SHA256
from fidtool.features.protocol import (
    INCEPTION_DIMS,
    INCEPTION_SHA256,
    PROTOCOLS,
    Definition,
    spatial_definition,
)
from support.exact_sets import beside_network
from support.goldens import FOLDER, Golden
from support.inside import definition_of, inception


def shown(definition: Definition) -> dict[str, Any]:
    """Return a definition as stored in files, its hash, and the name of its protocol."""
    return {
        "json": definition.to_json(),
        "sha256": definition.fingerprint,
        "protocol": definition.protocol_name,
        "network": definition.network,
        "standard": definition.standard,
    }


def test_fingerprints_of_inception(golden: Golden) -> None:
    """Each protocol at all dimensions, and the spatial features of the same networks."""
    found: dict[str, Any] = {}
    for name in PROTOCOLS:
        definitions = {dims: inception(name, dims) for dims in INCEPTION_DIMS}
        found[name] = {str(dims): shown(definition) for dims, definition in definitions.items()}
        found[name] |= {
            f"spatial beside {dims}": shown(spatial_definition(definitions[dims]))
            for dims in (768, 2048)
        }
    golden("features/inception_fingerprints", found)


def test_protocols(golden: Golden) -> None:
    """Names and settings of all protocols."""
    found = {
        name: {
            "resize": protocol.resize,
            "offset": protocol.offset,
            "scale": protocol.scale,
            "ddof": protocol.ddof,
            "other_names": list(protocol.other_names),
        }
        for name, protocol in PROTOCOLS.items()
    }
    golden("features/protocols", found)


def test_weights(golden: Golden) -> None:
    golden(
        "features/weights",
        {"official": OFFICIAL_SHA256, "offline": OFFLINE_SHA256, "tensors": INCEPTION_SHA256},
    )


def torchscript(folder: Path) -> str:
    """Write a TorchScript program that contains its settings, and return its path."""
    script = torch.jit.script(
        torch.nn.Sequential(torch.nn.AdaptiveMaxPool2d(2), torch.nn.Flatten())
    )
    settings = {"input_size": 8, "mean": [0.5, 0.25, 0], "std": [0.5, 0.25, 1], "feature_step": 16}
    torch.jit.save(
        script, folder / "program.pt", _extra_files={"fidtool.json": json.dumps(settings)}
    )
    return str(folder / "program.pt")


def test_fingerprints_of_custom_networks(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factories in a file and in a module, with another feature step, and with each protocol."""
    monkeypatch.chdir(beside_network(tmp_path))
    (tmp_path / "golden_module.py").write_bytes((FOLDER / "network.py").read_bytes())
    found = {
        "file": shown(definition_of("network.py:network")),
        "module": shown(definition_of("golden_module:network")),
        "another step": shown(definition_of("network.py:network", feature_step=12)),
    }
    found |= {
        f"under {name}": shown(definition_of("network.py:network", name)) for name in PROTOCOLS
    }
    golden("features/own_fingerprints", found)


def test_fingerprints_of_programs(golden: Golden, tmp_path: Path) -> None:
    """A program is identified by the start of its file's SHA-256, which differs between versions of
    torch.
    """
    json_text = json.loads(definition_of(torchscript(tmp_path)).to_json())
    name, _, digest = json_text.pop("extractor").partition("@")
    assert len(digest) == 12
    golden("features/program_fingerprint", {"extractor": name, **json_text})


PREPARATIONS = {
    "squash": ("pillow-bicubic",),
    "squash and cut": ("pillow-bilinear", "squash", 20),
    "shorter edge": ("pillow-bicubic", "shorter edge", 20),
    "shorter edge of the square": ("pillow-bilinear", "shorter edge"),
    "largest square": ("bicubic-antialias", "largest square"),
    "largest square, cut": ("pillow-bicubic", "largest square", 20),
}


def test_descriptions_of_preparations(golden: Golden) -> None:
    """Descriptions of preparations, and the regions that they select from images of several
    shapes.
    """
    found: dict[str, Any] = {}
    for name, arguments in PREPARATIONS.items():
        preparation = fidtool.Preparation(*arguments)
        frames = {
            f"{height}x{width}": preparation.frame(height, width, 16)
            for height, width in ((30, 47), (64, 20))
        }
        found[name] = {
            "spelled": preparation.describe(16),
            "frames": {size: list(frame) for size, frame in frames.items()},
        }
    golden("features/preparations", found)


def test_description_of_the_normalisation(golden: Golden) -> None:
    """For several means and standard deviations."""
    module = torch.nn.Identity()
    found = [
        fidtool.Network(module, 8, mean, std).normalization
        for mean, std in (
            ((0, 0, 0), (1, 1, 1)),
            ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ((-0.0, 0.5, 1e-7), (0.5, 255, 1 / 3)),
        )
    ]
    golden("features/normalisation", found)
