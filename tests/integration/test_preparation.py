"""A custom network with a custom preparation of the images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

import fidtool
from support.preparations import BLANK, noise


def test_a_custom_network_with_a_custom_preparation(here: Any, tmp_path: Path) -> None:
    """The features are those of torchvision's transform. --protocol cannot be combined with a
    preparation.
    """
    source = (
        "import fidtool, torch\nclass Colours(torch.nn.Module):\n    def forward(self, x):\n     "
        "   return x.flatten(1)[:, ::7]\ndef network():\n    preparation = "
        "fidtool.Preparation('pillow-bilinear', 'shorter edge', 10)\n    return "
        "fidtool.Network(Colours(), 8, (0.0,) * 3, (1.0,) * 3, preparation=preparation)\n"
    )
    (tmp_path / "own.py").write_text(source)
    (tmp_path / "set").mkdir()
    pictures = [noise(20 + n, 20 + 3 * n) for n in range(40)]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / "set" / f"{number}.png")
    outcome = here("stats", "set", "--extractor", "own.py:network", "-o", "set.npz", "--quiet")
    assert outcome.status == 0, outcome.stderr
    transform = ImageClassification(
        crop_size=8, resize_size=10, interpolation=InterpolationMode.BILINEAR, **BLANK
    )
    expected = torch.stack([transform(picture).flatten()[::7] for picture in pictures]).double()
    statistics = fidtool.read_statistics(tmp_path / "set.npz")
    # Features are rounded to multiples of 2 ** -18, so the error is at most 1.9e-6.
    np.testing.assert_allclose(statistics.mu, expected.mean(0).numpy(), atol=2e-6)
    np.testing.assert_allclose(statistics.sigma, np.cov(expected.numpy(), rowvar=False), atol=2e-6)
    assert statistics.definition is not None
    assert statistics.definition.resize == "pillow-bilinear, shorter edge 10, centre 8"
    assert (statistics.definition.ddof, statistics.definition.protocol_name) == (1, None)
    refused = here(
        "compute", "set", "set", "--extractor", "own.py:network", "--protocol", "clean", "--quiet"
    )
    assert refused.status == 2
    assert (
        "--protocol clean cannot be combined with --extractor own.py:network, which"
        in refused.error
    )
    assert "pillow-bilinear, shorter edge 10, centre 8" in refused.error
