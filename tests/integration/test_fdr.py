"""FDr and FDr6 of FD-Loss, from its pickle of six networks' statistics."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from fidtool.errors import InputError
from fidtool.metrics.fdr import DENOMINATORS
from fidtool.references.catalogue import FD_LOSS
from fidtool.settings.presets import PRESETS
from fidtool.settings.settings import Settings
from support.command_line import Run

DIMS = {"": 2048, "fdr_siglip": 24}
NETWORKS = str(PRESETS["fdr6"].settings["extractor"])


def gaussians(seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Return statistics of the six networks as FD-Loss pickles them, and of one that is not among
    them.
    """
    rng = np.random.default_rng(seed)
    layers = {}
    for entry, layer in {**FD_LOSS, "jit_in256_stats.npz": ""}.items():
        dims = DIMS.get(layer, 16)
        layers[entry] = {
            "mu": np.abs(rng.normal(size=dims)),
            "sigma": np.diag(rng.uniform(0.5, 2.0, dims)),
        }
    return layers


@pytest.fixture
def files(tmp_path: Path) -> tuple[dict[str, dict[str, np.ndarray]], ...]:
    sets = gaussians(0), gaussians(1)
    for name, features in zip(("real.pkl", "fake.pkl"), sets, strict=True):
        (tmp_path / name).write_bytes(pickle.dumps(features))
    return sets


def expected(files: tuple[dict[str, dict[str, np.ndarray]], ...]) -> dict[str, float]:
    """Return the ratios by network: the covariances are diagonal."""
    ratios = {}
    for entry, layer in FD_LOSS.items():
        one, other = files[0][entry], files[1][entry]
        roots = [np.sqrt(statistics["sigma"].diagonal()) for statistics in (one, other)]
        distance = ((one["mu"] - other["mu"]) ** 2).sum() + ((roots[0] - roots[1]) ** 2).sum()
        network = layer.replace("_", ":") or "inception"
        ratios[network] = float(distance / DENOMINATORS[network])
    return ratios


def test_the_preset_gives_the_mean_of_six_ratios(
    here: Run, files: tuple[dict[str, dict[str, np.ndarray]], ...]
) -> None:
    outcome = here("compute", "real.pkl", "fake.pkl", "--preset", "fdr6", "--json")
    ratios = expected(files)
    metrics = outcome.metrics
    assert metrics["fdr6"] == pytest.approx(np.mean([*ratios.values()]), rel=1e-9)
    for network, ratio in ratios.items():
        suffix = "" if network == "inception" else f"_{network.replace(':', '_')}"
        assert metrics[f"fdr{suffix}"] == pytest.approx(ratio, rel=1e-9)
        assert metrics[f"{'fid' if network == 'inception' else 'fd'}{suffix}"] == pytest.approx(
            ratio * DENOMINATORS[network], rel=1e-9
        )
    assert outcome.json["settings"]["fdr"] == DENOMINATORS
    assert (
        "FDr6: "
        in here("compute", "real.pkl", "fake.pkl", "--preset", "fdr6", "--format", "lines").stdout
    )


def test_fewer_networks_have_no_mean(here: Run, files: object) -> None:
    networks = "inception,fdr:mae"
    outcome = here(
        "compute", "real.pkl", "fake.pkl", "--extractor", networks, "--metrics", "fdr6", "--json"
    ).metrics
    assert [*outcome] == ["fdr", "fdr_fdr_mae"]


def test_the_mean_is_listed(here: Run) -> None:
    assert (
        "FDr6 (lower is better): mean of FDr over the six networks" in here("metrics", "fdr").stdout
    )


def test_fdr_is_not_one_of_all(here: Run, files: object) -> None:
    outcome = here("compute", "real.pkl", "fake.pkl", "--metrics", "all", "--json")
    assert "fdr" not in outcome.metrics
    assert "--preset fdr6" in outcome.not_computed["fdr"]


def test_other_networks_and_protocols_are_refused() -> None:
    with pytest.raises(InputError, match=r"networks of FD-Loss .*, not dinov2: pass preset='fdr6'"):
        Settings(extractor="inception,dinov2", metrics="fdr")


def test_weights_that_cannot_be_obtained_are_named_before_any_image_is_read(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("real", "fake"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "broken.png").write_bytes(b"no image")
    # The variable is read when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("fidtool.system.download.FIRST_DELAY", 0.01)
    monkeypatch.setenv("FIDTOOL_DINOV2_URL", "http://127.0.0.1:9/dinov2.pth")
    outcome = here(
        "compute",
        "real",
        "fake",
        "--extractor",
        "dinov2:vits14,timm:vit_tiny_patch16_224,dinov2:vitb14",
    )
    assert outcome.status == 1
    assert "no weights for dinov2:vits14" in outcome.error
    assert outcome.error.endswith(
        "there are no weights for timm:vit_tiny_patch16_224 and dinov2:vitb14 either"
    )
