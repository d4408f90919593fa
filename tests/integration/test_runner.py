"""Execution of networks: precision, kernels, and imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fidtool
from fidtool.features.extractor import Extractor
from support.command_line import Run
from support.offline import needs_weights
from support.pictures import make_pictures
from support.places import TINY


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return tuple(
        str(make_pictures(tmp_path / name, 9, seed)) for seed, name in enumerate(("real", "fake"))
    )  # type: ignore[return-value]


@needs_weights
def test_half_precision_changes_the_value_and_is_recorded(pair: tuple[str, str]) -> None:
    exact = fidtool.compute(*pair, dims=64)
    half = fidtool.compute(*pair, dims=64, precision="bf16")
    assert half.frechet_distance == pytest.approx(exact.frechet_distance, rel=0.02)
    assert half.frechet_distance != exact.frechet_distance
    assert not half.run.cached, "precisions do not share the cache"
    assert half.run.precision == "bf16"
    assert half.definition == exact.definition, "precision is not part of the protocol"


@needs_weights
def test_statistics_of_another_precision_give_a_warning(
    here: Run, pair: tuple[str, str], tmp_path: Path
) -> None:
    real, fake = pair
    file = tmp_path / "real.npz"
    assert here("stats", real, "-o", file, "--dims", "64", "--precision", "bf16").status == 0
    outcome = here("compute", file, fake, "--dims", "64")
    assert outcome.status == 0
    assert "precision bf16 against fp32): part of the distance is due to this" in outcome.stderr
    alone = here("compute", file, file, "--json").json
    assert alone["run"]["precision"] == "", "no network ran"


def test_tf32_switches_are_set_during_a_run(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested on the CPU, where the switches have no effect. Without --precision tf32 they are
    off.
    """
    monkeypatch.setattr("fidtool.run.context.check_tf32", lambda device: None)
    seen: list[tuple[bool, bool]] = []
    run = Extractor.forward_layers

    def noted(self: Extractor, inputs: Any) -> Any:
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return run(self, inputs)

    monkeypatch.setattr(Extractor, "forward_layers", noted)
    for precision, on in (("tf32", True), ("fp32", False)):
        seen.clear()
        fidtool.compute(*pair, extractor=TINY, cache=False, precision=precision)
        assert set(seen) == {(on, on)}


@needs_weights
def test_a_run_does_not_import_torchvision(tmp_path: Path, environment: dict[str, str]) -> None:
    """The import takes longer than processing 40 images."""
    folder = str(make_pictures(tmp_path / "set", 2))
    code = (
        "import sys, fidtool; fidtool.compute(*sys.argv[1:], dims=64, cache=False); assert "
        "'torch' in sys.modules;print([name for name in ('torchvision', 'scipy.stats', "
        "'matplotlib') if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, folder, folder],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "[]\n"
