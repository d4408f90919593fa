"""``--extractor timm:NAME`` against timm's transform and model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file  # a dependency of timm
from timm.data import create_transform, resolve_model_data_config

from fidtool.errors import InputError
from fidtool.features.choice import SHORT_NAMES, NetworkChoice, parse_networks
from fidtool.features.models.timm import fetch, make_preparation
from support.command_line import Run
from support.published_networks import distance, features, make_sets, randomised, refused_extractor

timm = pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    make_sets(tmp_path)
    return tmp_path


def transform_of(model: Any) -> Any:
    return create_transform(**resolve_model_data_config(model))


@pytest.mark.parametrize(
    ("name", "suffix"), [("test_resnet", ".pth"), ("test_vit", ".safetensors")]
)
def test_features_are_the_input_of_the_classifier(
    here: Run, place: Path, name: str, suffix: str
) -> None:
    """The file includes the classifier. Covers bicubic and bilinear resizing, with and without a
    cropped margin.
    """
    torch.manual_seed(0)
    model: Any = randomised(timm.create_model(name, pretrained=False), gain=1.5)
    file = place / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": model.state_dict(), "epoch": 3}, file)
    else:
        save_file(model.state_dict(), file)
    outcome = here(
        "compute",
        "real",
        "fake",
        "--extractor",
        f"timm:{name}",
        "--weights",
        file,
        "--json",
        "--quiet",
    )
    assert outcome.status == 0, outcome.stderr
    model.reset_classifier(0)
    sets = (features(place / folder, transform_of(model), model) for folder in ("real", "fake"))
    assert outcome.fid == pytest.approx(distance(*sets), rel=1e-5)
    protocol = outcome.json["protocol"]
    config = resolve_model_data_config(model)
    assert protocol["extractor"] == f"timm:{name}"
    assert protocol["resize"].startswith(f"pillow-{config['interpolation']}, shorter edge ")
    assert protocol["input_size"] == config["input_size"][1]


@pytest.mark.parametrize(
    ("name", "pool", "small", "dims"),
    [
        (
            "vit_large_patch16_dinov3.lvd1689m",
            "",
            {"embed_dim": 48, "depth": 2, "num_heads": 3},
            48,
        ),
        (
            "vit_large_patch16_dinov3.lvd1689m",
            ":token",
            {"embed_dim": 48, "depth": 2, "num_heads": 3},
            48,
        ),
        ("vit_large_patch16_dinov3.sat493m", "", {"embed_dim": 48, "depth": 2, "num_heads": 3}, 48),
        (
            "vit_so400m_patch16_siglip_256.v2_webli",
            "",
            {"embed_dim": 48, "depth": 2, "num_heads": 3},
            48,
        ),
        (
            "vit_base_patch16_siglip_gap_224.v2_webli",
            "",
            {"embed_dim": 48, "depth": 2, "num_heads": 3},
            48,
        ),
        (
            "convnextv2_base.fcmae_ft_in22k_in1k",
            "",
            {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
            32,
        ),
        (
            "convnext_tiny.fb_in22k_ft_in1k_384",
            "",
            {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
            32,
        ),
        (
            "convnext_tiny.dinov3_lvd1689m",
            "",
            {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
            32,
        ),
        ("vit_large_patch16_224.mae", "", {"embed_dim": 48, "depth": 2, "num_heads": 3}, 48),
    ],
)
def test_networks_of_papers(
    here: Run,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    pool: str,
    small: dict[str, Any],
    dims: int,
) -> None:
    """Models of the published kind with few and narrow layers; a pool is timm's ``global_pool``."""
    made = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *names, **settings: made(*names, **settings, **small)
    )
    torch.manual_seed(0)
    model: Any = randomised(timm.create_model(name, pretrained=False, num_classes=0), gain=4.0)
    torch.save(model.state_dict(), place / "weights.pth")
    extractor = f"timm:{name}{pool}@weights=weights.pth,step=20"
    outcome = here("compute", "real", "fake", "--extractor", extractor, "--json", "--quiet")
    assert outcome.status == 0, outcome.stderr

    def pooled(x: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = model.forward_features(x)
        return tokens[:, 0] if pool else model.forward_head(tokens, pre_logits=True)

    sets = (features(place / folder, transform_of(model), pooled) for folder in ("real", "fake"))
    assert outcome.fid == pytest.approx(distance(*sets), rel=1e-5)
    protocol, config = outcome.json["protocol"], resolve_model_data_config(model)
    assert protocol["extractor"] == f"timm:{name.partition('.')[0]}{pool}"
    mean, std = (list(config[name]) for name in ("mean", "std"))
    assert (protocol["dims"], protocol["normalization"]) == (dims, f"(x/255-{mean})/{std}")


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_short_names_are_published_networks(name: str) -> None:
    (choice,) = parse_networks(name.upper())
    assert str(choice) == name
    model, _, pool = choice.model.partition(":")
    with torch.device("meta"):  # without values, which would take gigabytes
        network = timm.create_model(model, num_classes=0)
    assert network.pretrained_cfg["hf_hub_id"] == f"timm/{model}"
    make_preparation(model, resolve_model_data_config(network))
    assert pool == "token" * (name == "dinov3")
    assert choice.made(f"timm:{model.partition('.')[0]}{':' * bool(pool)}{pool}")
    assert not choice.made("dinov2:vitl14")


def test_a_short_name_is_that_of_the_values(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, small = timm.create_model, {"embed_dim": 48, "depth": 1, "num_heads": 3}
    monkeypatch.setattr(
        timm, "create_model", lambda *names, **settings: made(*names, **settings, **small)
    )
    torch.save(
        timm.create_model("vit_large_patch16_224.mae", num_classes=0).state_dict(),
        place / "mae.pth",
    )
    for extractor in ("mae@weights=mae.pth", "timm:vit_large_patch16_224.mae@weights=mae.pth"):
        outcome = here("stats", "real", "--extractor", extractor, "-o", f"{extractor[:4]}.npz")
        assert outcome.status == 0, outcome.stderr
    outcome = here("compute", "timm.npz", "mae@.npz", "--extractor", "MAE", "--json")
    assert outcome.metrics == {"fd_mae": pytest.approx(0, abs=1e-9)}


def test_a_checkpoint_of_another_project(place: Path) -> None:
    """DINOv2's checkpoint has different tensor names, which timm's model converts."""
    choice = NetworkChoice("timm:vit_small_patch14_dinov2", str(place / "dinov2.pth"))
    model = timm.create_model("vit_small_patch14_dinov2", pretrained=False, num_classes=0)
    tensors = {**model.state_dict(), "mask_token": torch.zeros(1, 384)}
    torch.save(tensors, place / "dinov2.pth")
    assert fetch(choice, print).tensors.keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("spec", "weights", "texts"),
    [
        ("timm:resnet10", None, ["unknown timm model 'resnet10'", "did you mean", "resnet10t"]),
        (
            "timm:test_vit",
            "other.pth",
            ["other.pth does not contain the weights of timm:test_vit", "Missing key"],
        ),
        ("timm:test_vit", "text.pth", ["text.pth is plain text"]),
        ("timm:test_vit.no_such_tag", None, ["test_vit"]),
        ("timm:mnasnet_050", None, ["timm has no weights for mnasnet_050: pass --weights"]),
        ("timm:test_vit:middle", None, ["timm cannot build test_vit:middle"]),
    ],
)
def test_mistakes_are_reported(
    here: Run, place: Path, spec: str, weights: str | None, texts: list[str]
) -> None:
    """timm itself would silently load a part of one of these files."""
    torch.save(timm.create_model("test_resnet", pretrained=False).state_dict(), place / "other.pth")
    (place / "text.pth").write_text("no weights")
    refused_extractor(here, spec, weights, texts)


def test_an_unsupported_transform_is_refused() -> None:
    config = {
        "input_size": (3, 64, 64),
        "interpolation": "bicubic",
        "crop_mode": "border",
        "crop_pct": 1.0,
    }
    with pytest.raises(InputError, match="crop mode border; fidtool supports"):
        make_preparation("any", config)


@pytest.mark.parametrize(
    ("spec", "package", "extra"), [("dinov2", "timm", "timm"), ("clip", "open_clip", "clip")]
)
def test_a_missing_extra_is_named(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch, spec: str, package: str, extra: str
) -> None:
    monkeypatch.setattr(
        "fidtool.features.building.find_spec", lambda name: None if name == package else name
    )
    outcome = here("compute", "real", "fake", "--extractor", spec, "--quiet")
    assert outcome.status == 2
    assert f"needs the package {package}: pip install 'fidtool[{extra}]'" in outcome.error
