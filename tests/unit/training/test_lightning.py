"""FIDCallback without a Trainer: its settings, and beside which callbacks it works."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

import fidtool
from fidtool.training import FIDCallback
from support.tiny_network import network


class Trainer(SimpleNamespace):
    """As much of a trainer as the schedule's check looks at."""


def started(callback: FIDCallback, *others: Any) -> None:
    callback.on_fit_start(Trainer(callbacks=[callback, *others]), SimpleNamespace(device=torch.device("cpu")))


REAL = fidtool.Statistics(torch.zeros(16).double().numpy(), torch.eye(16).double().numpy(), 99)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (ModelCheckpoint(monitor="fid"), r"ModelCheckpoint\(monitor='fid'\) looks every 1 epochs.*every_n_epochs=2 to"),
        (ModelCheckpoint(monitor="fid", every_n_epochs=3), "looks every 3 epochs and the FID comes every 2"),
        (EarlyStopping("fid"), r"EarlyStopping\(monitor='fid'\) looks at every epoch.*pass strict=False"),
        (ModelCheckpoint(monitor="fid", every_n_train_steps=3), "saves between the ends of epochs.*every_n_epochs=2"),
        (ModelCheckpoint(monitor="fid", train_time_interval=timedelta(1)), "saves between the ends of epochs"),
        (EarlyStopping("fid", strict=False, patience=1), "a patience of 1 would end the training between two of them"),
    ],
)
def test_callbacks_that_look_at_other_epochs(other: Any, text: str) -> None:
    """Refused before the first epoch, where Lightning would fail after it or keep the wrong checkpoint."""
    with pytest.raises(fidtool.InputError, match=text):
        started(FIDCallback(lambda n, seed: torch.zeros(n, 3, 8, 8), REAL, feature=network(), every_n_epochs=2), other)


def test_callbacks_that_fit() -> None:
    callback = FIDCallback(lambda n, seed: torch.zeros(n, 3, 8, 8), REAL, feature=network(), every_n_epochs=2)
    fitting = [ModelCheckpoint(monitor="fid", every_n_epochs=4), EarlyStopping("fid", strict=False)]
    callback.load_state_dict({"fid": 1.5, "epoch": 3, "reference": "something else"})
    with pytest.warns(fidtool.FidtoolWarning, match="another reference, protocol or network"):
        started(callback, *fitting, ModelCheckpoint(monitor="loss"), ModelCheckpoint())
    assert callback.fid == 1.5


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_samples": 1}, "num_samples must be at least 2"),
        ({"every_n_epochs": 0}, "every_n_epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, int], text: str) -> None:
    with pytest.raises(fidtool.InputError, match=text):
        FIDCallback("generate", REAL, **settings)  # type: ignore[arg-type]


def test_a_folder_needs_a_network_with_a_name(tmp_path: Path) -> None:
    with pytest.raises(fidtool.InputError, match=r"feature='file.py:factory'"):
        started(FIDCallback(lambda n, seed: None, tmp_path, feature=network()))
    with pytest.raises(fidtool.InputError, match="no statistics file"):
        started(FIDCallback(lambda n, seed: None, tmp_path / "none.npz", feature=network()))
