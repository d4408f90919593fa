"""``--extractor clip`` against open_clip's model and CMMD's preparation."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fidtool.errors import InputError
from fidtool.features.choice import NetworkChoice
from fidtool.features.models import clip
from fidtool.features.weights import State
from support.command_line import Run
from support.published_networks import (
    batches,
    built,
    distance,
    features,
    make_sets,
    randomised,
    refused_extractor,
)

open_clip = pytest.importorskip("open_clip", reason="needs open_clip, of the extra 'clip'")

TINY = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 56, "layers": 2, "width": 64, "head_width": 16, "patch_size": 14},
    "text_cfg": {"context_length": 8, "vocab_size": 100, "width": 32, "heads": 2, "layers": 1},
}


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """Two sets, and a small open_clip model with a file of its weights."""
    make_sets(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fidtool-tiny.json").write_text(json.dumps(TINY))
    from open_clip import factory

    known = dict(factory._MODEL_CONFIGS)
    paths = list(factory._MODEL_CONFIG_PATHS)
    open_clip.add_model_config(tmp_path / "configs")
    torch.manual_seed(0)
    model = randomised(open_clip.create_model("fidtool-tiny"), gain=1.5)
    torch.save(model.state_dict(), tmp_path / "tiny.pt")
    yield tmp_path
    factory._MODEL_CONFIGS.clear()
    factory._MODEL_CONFIGS.update(known)
    factory._MODEL_CONFIG_PATHS[:] = paths


def transform(picture: Image.Image) -> torch.Tensor:
    """CMMD's preparation: the largest centre square, Pillow's bicubic in 8 bits, CLIP's mean and
    standard deviation.
    """
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize(
        (56, 56), Image.Resampling.BICUBIC
    )
    mean, std = (
        torch.tensor(values)[:, None, None]
        for values in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
    )
    return (torch.from_numpy(np.array(square)).permute(2, 0, 1) / 255 - mean) / std


def embedding(model: Any) -> Any:
    def unit(x: torch.Tensor) -> torch.Tensor:
        embedded = model.encode_image(x)
        return embedded / torch.linalg.norm(embedded, dim=-1, keepdim=True)

    return unit


def test_features_match_open_clip_with_cmmds_preparation(here: Run, place: Path) -> None:
    model = open_clip.create_model("fidtool-tiny", pretrained=str(place / "tiny.pt")).eval()
    expected = [features(place / name, transform, embedding(model)) for name in ("real", "fake")]
    extractor = built("clip:fidtool-tiny", place / "tiny.pt")
    (images,) = batches(place / "real")
    embeddings = extractor.extract(images).double()
    # Unit vectors. One float32 pass per image is compared with one of the whole batch, whose
    # kernels round differently.
    torch.testing.assert_close(embeddings, expected[0], rtol=0, atol=2e-6)
    # Each entry of a float32 vector has a relative rounding error of up to 6e-8.
    torch.testing.assert_close(
        embeddings.norm(dim=1), torch.ones(len(embeddings)).double(), rtol=0, atol=1e-6
    )
    arguments = ("--extractor", "clip:fidtool-tiny", "--weights", "tiny.pt", "--json", "--quiet")
    outcome = here("compute", "real", "fake", *arguments)
    assert outcome.status == 0, outcome.stderr
    assert outcome.fid == pytest.approx(distance(*expected), rel=1e-3)
    protocol = outcome.json["protocol"]
    assert [
        protocol[key] for key in ("extractor", "resize", "input_size", "dims", "feature_step")
    ] == [
        "clip:fidtool-tiny",
        "centre square, pillow-bicubic to 56",
        56,
        32,
        22,
    ]


@pytest.mark.parametrize(
    ("spec", "weights", "texts"),
    [
        ("clip:ViT-L-15", None, ["unknown clip model 'ViT-L-15'", "did you mean", "ViT-L-14"]),
        (
            "clip:fidtool-tiny",
            None,
            ["no weights 'openai' for clip:fidtool-tiny", "--weights FILE"],
        ),
        (
            "clip:fidtool-tiny",
            "other.pt",
            ["other.pt cannot be read", "Error(s) in loading state_dict"],
        ),
        (
            "clip:xlm-roberta-base-ViT-B-32",
            None,
            ["text network or a tokenizer from another project"],
        ),
    ],
)
def test_mistakes_are_reported(
    here: Run, place: Path, spec: str, weights: str | None, texts: list[str]
) -> None:
    torch.save({"a": torch.zeros(1)}, place / "other.pt")
    refused_extractor(here, spec, weights, texts)


def test_weights_for_another_activation_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = {**TINY, "quick_gelu": False}
    (place / "configs" / "fidtool-plain.json").write_text(json.dumps(configuration))
    open_clip.add_model_config(place / "configs")
    published = {"url": "https://example.org/plain.pt", "quick_gelu": True}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "fidtool-plain", {"openai": published})
    tensors = open_clip.create_model("fidtool-plain").visual.state_dict()
    state = State(tensors, "made up", "openai")
    with pytest.raises(InputError, match=r"trained with QuickGELU.*use clip:fidtool-plain-quickg"):
        clip.build(NetworkChoice("clip:fidtool-plain"), state)


def test_cmmd_shares_the_extractor_if_the_weights_are_the_same(here: Run, place: Path) -> None:
    torch.manual_seed(1)
    torch.save(
        randomised(open_clip.create_model("fidtool-tiny"), gain=1.2).state_dict(),
        place / "others.pt",
    )
    run = ("compute", "real", "fake", "--metrics", "cmmd", "--json", "--quiet")
    run += ("--cmmd-extractor", "clip:fidtool-tiny@weights=tiny.pt")
    main = ("--extractor", "clip:fidtool-tiny", "--weights")
    same, other = here(*run, *main, "tiny.pt"), here(*run, *main, "others.pt")
    assert same.json["layers"] == {}
    assert list(other.json["layers"]) == ["embedding"]
    values = [outcome.metrics["cmmd_clip_fidtool_tiny"] for outcome in (same, other)]
    assert values[0] == values[1] > 0


class Writes(torch.nn.Module):
    """A program that writes a file while it is loaded."""

    def __init__(self, target: Path) -> None:
        super().__init__()
        self.target = str(target)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return (self.target, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.target = state[0]
        self.training = state[1]
        torch.save(torch.zeros(1), self.target)


def saved_script(module: torch.nn.Module, file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch deprecate TorchScript
        torch.jit.save(torch.jit.script(module), str(file))


def test_a_program_for_weights_is_not_loaded(here: Run, place: Path) -> None:
    saved_script(Writes(place / "written"), place / "program.pt")
    problem = "program.pt is a TorchScript program, which can run code, and is not OpenAI's file"
    refused_extractor(here, "clip:fidtool-tiny", "program.pt", [problem])
    assert not (place / "written").exists()


@pytest.mark.parametrize("name", ["local-dir:.", "hf-hub:a/b"])
def test_open_clips_models_have_plain_names(here: Run, place: Path, name: str) -> None:
    (place / "open_clip_config.json").write_text(json.dumps(TINY))
    refused_extractor(here, f"clip:{name}", None, [f"unknown clip model '{name}'"])


def test_openais_original_file_is_read(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a TorchScript archive of the whole model in float16."""
    model = open_clip.create_model("fidtool-tiny", pretrained=str(place / "tiny.pt")).eval().half()

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.visual = torch.nn.Module()
            for name, tensor in model.visual.state_dict().items():
                owner, (*path, last) = self.visual, name.split(".")
                for part in path:
                    if not hasattr(owner, part):
                        owner.add_module(part, torch.nn.Module())
                    owner = getattr(owner, part)
                owner.register_buffer(last, tensor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    saved_script(Whole(), place / "archive.pt")
    digest = hashlib.sha256((place / "archive.pt").read_bytes()).hexdigest()
    published = {"url": f"https://openaipublic.azureedge.net/clip/models/{digest}/archive.pt"}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "fidtool-tiny", {"openai": published})
    # The file counts as the tag "openai", with its activation: only OpenAI publishes such archives.
    assert (
        clip.fetch(NetworkChoice("clip:fidtool-tiny", str(place / "archive.pt")), print).entry
        == "openai"
    )
    ours = built("clip:fidtool-tiny", place / "archive.pt")
    for name, tensor in model.visual.state_dict().items():
        assert torch.equal(ours.module.state_dict()[f"visual.{name}"], tensor.float())
    outcome = here(
        "stats",
        "real",
        "--extractor",
        "clip:fidtool-tiny",
        "--weights",
        "archive.pt",
        "-o",
        "a.npz",
    )
    assert outcome.status == 0
    assert "Warning" not in outcome.stderr


def test_a_failed_download_for_cmmd_does_not_suggest_inception(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from open_clip import factory

    from support.places import TINY

    def offline(*_: object, **__: object) -> str:
        raise OSError("no route to huggingface.co")

    monkeypatch.setattr(factory, "download_pretrained", offline)
    outcome = here("compute", "real", "fake", "--extractor", TINY, "--metrics", "cmmd", "--quiet")
    assert outcome.status == 1
    for text in (
        "CMMD's network: no weights for clip:ViT-L-14-336-quickgelu",
        "--cmmd-extractor clip@weights=...",
    ):
        assert text in outcome.error
    assert "inception" not in outcome.error
