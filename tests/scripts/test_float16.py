"""The script that measures the effect of ADM's float16 distances."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from support import adm_evaluator
from support.feature_sets import mixture
from support.places import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from parity import float16

    yield float16
    for name in [name for name in sys.modules if name.partition(".")[0] == "parity"]:
        del sys.modules[name]


def test_integers_are_exact(script: Any) -> None:
    real, fake = (
        np.random.RandomState(seed).randint(0, 5, (60, 8)).astype(np.float32) for seed in (0, 1)
    )
    found = script.float16_precision_recall(torch.from_numpy(real), torch.from_numpy(fake))
    assert found == pytest.approx(adm_evaluator.precision_recall(real, fake), abs=1e-12)


def test_command(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, name in enumerate(("real", "fake")):
        features = mixture(50, 64, seed)
        mean, covariance = adm_evaluator.gaussian(features)
        fidtool.write_statistics(
            tmp_path / f"{name}.npz", fidtool.Statistics.of(mean, covariance, 50, None, features)
        )
    script.main([str(tmp_path / "real.npz"), str(tmp_path / "fake.npz")], standalone_mode=False)
    first, *values = capsys.readouterr().out.splitlines()
    assert first == "50 real and 50 generated images, k = 3"
    assert [line.partition(":")[0] for line in values] == ["precision", "recall"]
