"""The CLIP score against torchmetrics, with one random network on both sides."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fidtool
from fidtool.sources.image_set import canonical_order
from support.places import TINY
from support.published_networks import make_sets

pytest.importorskip("open_clip", reason="needs open_clip, of the extra 'clip'")
pytest.importorskip("torchmetrics", reason="needs torchmetrics, of the extra 'test'")
import open_clip
from torchmetrics.functional.multimodal.clip_score import clip_score

from support.captioned import (
    CONFIG,
    KEY,
    NAME,
    SPREAD,
    captions_for,
    configs_restored,
    save_weights,
)

COUNT = 70
"""More than the captions of one forward pass."""


@pytest.fixture
def place(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Sets of wide images of several sizes."""
    monkeypatch.chdir(tmp_path)
    make_sets(tmp_path, COUNT)
    with configs_restored():
        yield tmp_path


def computed(captions: list[str], **settings: Any) -> fidtool.Evaluation:
    metric = fidtool.CLIPScore(extractor=f"{NAME}@weights=words.pt")
    return fidtool.compute(
        "real", "fake", metrics=["fid", metric], captions=captions, extractor=TINY, **settings
    )


def of_images(found: fidtool.Evaluation) -> NDArray[np.float64]:
    """Return the values of single images in the order of their names."""
    values = found.results[0].of_images.values[KEY]
    in_order = np.empty_like(values)
    in_order[canonical_order(len(values))] = values
    return in_order


class Peer:
    """The network as torchmetrics uses it, with open_clip's own transform and tokenizer."""

    config = SimpleNamespace()

    def __init__(self, model: Any) -> None:
        self.model, self.tokenize = model, open_clip.get_tokenizer(CONFIG.stem)
        self.transform = open_clip.image_transform(
            56, is_train=False, mean=model.visual.image_mean, std=model.visual.image_std
        )

    def to(self, device: object) -> Peer:
        return self

    def __call__(
        self, images: Any = None, text: Any = None, **_: object
    ) -> dict[str, torch.Tensor]:
        if text is not None:
            return {"input_ids": self.tokenize(text), "attention_mask": torch.ones(1)}
        pictures = (Image.fromarray(each.permute(1, 2, 0).numpy()) for each in images)
        return {"pixel_values": torch.stack([self.transform(each) for each in pictures])}

    def get_image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model.encode_image(pixels)
        return found

    def get_text_features(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model.encode_text(tokens)
        return found

    def score(self, images: list[torch.Tensor], captions: list[str]) -> float:
        with torch.inference_mode():
            return float(clip_score(images, captions, lambda: (self, self)))


def images_of(folder: Path) -> list[torch.Tensor]:
    files = sorted(folder.iterdir())
    return [
        torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1)
        for file in files
    ]


def test_the_score_equals_torchmetrics(place: Path) -> None:
    peer, images = Peer(save_weights(place / "words.pt")), images_of(place / "fake")
    captions = [*captions_for([f"{number}" for number in range(COUNT)]).values()]
    found = computed(captions)
    metrics, singles = found.results[0].metrics, of_images(found)
    expected = [peer.score([image], [text]) for image, text in zip(images, captions, strict=True)]
    assert np.ptp(expected) > 1
    # Relative to the scale of the scores, 100: a cosine near 0 has no relative error.
    np.testing.assert_allclose(singles, expected, rtol=0, atol=1e-5 * max(expected))
    assert min(expected) > 0  # torchmetrics clips the mean, and not the values of images
    assert metrics[KEY] == pytest.approx(peer.score(images, captions), rel=1e-5)
    assert metrics[KEY] == pytest.approx(np.mean(expected), rel=1e-5)
    assert metrics[SPREAD] == pytest.approx(np.std(expected, ddof=1), rel=1e-4)
    # Captions of other images have other scores.
    assert of_images(computed(captions[::-1])) != pytest.approx(singles, abs=1e-3)


def test_cosines_below_zero_count_as_zero(place: Path) -> None:
    peer, images = Peer(save_weights(place / "words.pt", opposite=True)), images_of(place / "fake")
    captions = [*captions_for([f"{number}" for number in range(COUNT)]).values()]
    found = computed(captions)
    expected = [peer.score([image], [text]) for image, text in zip(images, captions, strict=True)]
    assert 0.0 in expected
    # Some scores are 0: 1e-4 is 1e-6 of the scale, 100.
    np.testing.assert_allclose(of_images(found), expected, rtol=0, atol=1e-4)
    assert found.results[0].metrics[KEY] == pytest.approx(np.mean(expected), abs=1e-4)


def test_long_captions_are_cut_as_openai_does(place: Path) -> None:
    """The context of this network has 12 tokens, of which two are the start and the end."""
    peer, images = Peer(save_weights(place / "words.pt")), images_of(place / "fake")
    captions = ["one two three four five six seven eight nine ten"] * (COUNT - 2)
    captions += ["one two three four five six seven eight nine ten eleven", "a cat " * 20]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        singles = of_images(computed(captions))
    said = [f"{each.message}" for each in caught]
    assert (
        "fake: 2 of 70 captions have more than the 12 tokens that CLIP reads, and are truncated"
        in said
    )
    # Scores of random networks are about 80, so that 1e-4 is 1e-6 of them.
    np.testing.assert_allclose(
        singles[-3:],
        [
            peer.score([image], [text])
            for image, text in zip(images[-3:], captions[-3:], strict=True)
        ],
        atol=1e-4,
    )
    same = peer.score(images[-2:-1], [captions[0]])
    assert singles[-2] == pytest.approx(same, abs=1e-4)
