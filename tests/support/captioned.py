"""A small CLIP with a random text network, images with captions, and a custom metric of captions.

`Words` is a value of ``--metrics``: this file then makes the CLIP known to open_clip in every rank.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch

from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, Number

CONFIG = Path(__file__).with_name("clip-words.json")
NAME = f"clip:{CONFIG.stem}"
"""Value of ``--clip-score-extractor``."""
KEY, SPREAD = "clip_score_clip_clip_words", "clip_score_std_clip_clip_words"
CUT = "clip_score_cut_clip_clip_words"
WORDS = f"{__file__}:Words"
THINGS = (
    "a red cat",
    "two dogs on a bench",
    "the sea at night",
    "a bowl of fruit",
    "an old train",
    "snow",
)

open_clip.add_model_config(CONFIG)


@dataclass(frozen=True, kw_only=True)
class Words(Metric):
    """Mean number of characters of the captions."""

    name = "words"
    numbers = (Number("words", "Words", "", "mean number of characters of the captions"),)
    fake_features = captions = True

    def compute(
        self, real: FeatureSet, fake: FeatureSet, context: MetricContext
    ) -> Mapping[str, float]:
        assert fake.captions is not None
        assert real.captions is None
        assert len(fake.captions) == len(fake.rows)
        return {"words": sum(map(len, fake.captions)) / len(fake.captions)}


@contextlib.contextmanager
def configs_restored() -> Iterator[None]:
    """Context manager that forgets models which its block makes known to open_clip."""
    from open_clip import factory

    known, paths = dict(factory._MODEL_CONFIGS), list(factory._MODEL_CONFIG_PATHS)
    open_clip.add_model_config(CONFIG)
    try:
        yield
    finally:
        factory._MODEL_CONFIGS.clear()
        factory._MODEL_CONFIGS.update(known)
        factory._MODEL_CONFIG_PATHS[:] = paths


def save_weights(file: Path, seed: int = 0, opposite: bool = False) -> Any:
    """Write weights and return the model. Its cosines are above 0 for most images, or
    ``opposite``.
    """
    torch.manual_seed(seed)
    model = open_clip.create_model(CONFIG.stem).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.1)
        # Towards a direction in which the image embeddings lie.
        grey = model.encode_image(torch.zeros(1, 3, 56, 56), normalize=True)
        text = model.encode_text(open_clip.get_tokenizer(CONFIG.stem)(["a"]), normalize=True)
        turned = torch.linalg.qr(torch.cat([text, torch.randn(31, 32, generator=generator)]).T)[0]
        target = torch.linalg.qr(torch.cat([grey, torch.randn(31, 32, generator=generator)]).T)[0]
        turned[:, 0], target[:, 0] = text[0], grey[0] * (-1 if opposite else 1)
        model.text_projection.copy_(model.text_projection @ turned @ target.T)
    torch.save(model.state_dict(), file)
    return model


def captions_for(names: list[str]) -> dict[str, str]:
    """Return a caption per image, no two alike."""
    return {name: f"{THINGS[number % len(THINGS)]} {number}" for number, name in enumerate(names)}


def write_table(file: Path, captions: Mapping[str, str], column: str = "caption") -> Path:
    """Write a .csv, .tsv or .jsonl with paths and captions."""
    if file.suffix == ".jsonl":
        rows = [json.dumps({"file_name": name, column: text}) for name, text in captions.items()]
    else:
        mark = "\t" if file.suffix == ".tsv" else ","
        rows = [mark.join(row) for row in (("path", column), *captions.items())]
    file.write_text("\n".join(rows) + "\n")
    return file
