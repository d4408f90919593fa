"""FIDCallback without a Trainer: its schedule and state."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.training import (
    FIDCallback,
    FrechetInceptionDistance,
    KernelInceptionDistance,
    PrecisionRecallDensityCoverage,
    inception_metrics,
)
from fidtool.training.feature_extractor import SharedExtractor, choose_network, shared_extractor
from support.exact_sets import NETWORK, beside_network
from support.goldens import Golden, near
from support.light_training import Model, Trainer
from support.old_files import FILES
from support.pictures import make_pictures
from support.tiny_network import network


def started(callback: FIDCallback) -> None:
    callback.on_fit_start(
        Trainer(callbacks=[callback]), SimpleNamespace(device=torch.device("cpu"))
    )


def test_a_folder_needs_a_network_with_a_name(tmp_path: Path) -> None:
    for feature in (network(), torch.nn.Flatten()):
        with pytest.raises(fidtool.InputError, match=r"feature='FILE.py:NAME'"):
            started(
                FIDCallback(
                    lambda n, seed: None,
                    tmp_path,
                    metrics=FrechetInceptionDistance,
                    feature=feature,
                )
            )
    with pytest.raises(
        fidtool.InputError,
        match=r"reference must be .* not Tensor: pass fidtool.compute_statistics",
    ):
        FIDCallback("generate", torch.zeros(2, 3, 8, 8))  # type: ignore[arg-type]
    with pytest.raises(fidtool.InputError, match="num_samples must be at least 2"):
        FIDCallback("generate", tmp_path, num_samples=1)
    with pytest.raises(fidtool.InputError, match="no statistics file"):
        started(FIDCallback(lambda n, seed: None, tmp_path / "none.npz", feature=network()))


def test_the_network_is_checked_when_the_callback_is_made() -> None:
    FIDCallback("generate", "real.npz", feature="dinov2", protocol="torch")  # type: ignore[arg-type]
    FIDCallback("generate", "real.npz", feature="dinov2@step=12,protocol=torch")
    for settings, text in (
        ({"feature": "nothing"}, "unknown network 'nothing'"),
        ({"feature": "dinov2", "protocol": "clean"}, "cannot be combined with feature='dinov2'"),
        ({"protocol": "cleen"}, "unknown protocol 'cleen'"),
    ):
        with pytest.raises(fidtool.InputError, match=text):
            FIDCallback("generate", "real.npz", **settings)  # type: ignore[arg-type]


def epoch_of(callback: FIDCallback, trainer: Trainer, model: Model, validation: bool) -> None:
    callback.on_train_epoch_start(trainer, model)
    if validation:
        for batch in range(2):
            callback.on_validation_batch_start(trainer, model, None, batch)
        callback.on_validation_epoch_end(trainer, model)
    callback.on_train_epoch_end(trainer, model)


def told(model: Model) -> dict[str, Any]:
    """The calls that the model has received since the last call of this method."""
    logged = [
        {"name": name, "value": near(float(value), 1e-11), "type": type(value).__name__, **settings}
        for name, value, settings in model.logged
    ]
    calls = {"asked": list(model.asked), "logged": logged}
    model.asked.clear()
    model.logged.clear()
    return calls


def test_golden_trainings(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When samples are generated, their number and seeds, the logged values, and the callback's
    state.
    """
    monkeypatch.chdir(beside_network(tmp_path))
    model = Model()
    callback = FIDCallback(
        "generate",
        FILES / "own.npz",
        num_samples=100,
        every_n_epochs=2,
        batch_size=40,
        seed=5,
        feature=NETWORK,
    )
    callback.on_fit_start(Trainer(callbacks=[callback]), model)
    record: dict[str, Any] = {
        "fitting starts": told(model),
        "key": callback.state_key,
        "state": callback.state_dict(),
    }
    callback.on_validation_epoch_end(Trainer(sanity_checking=True, current_epoch=1), model)
    record["a sanity check"] = told(model)
    for epoch, validation in enumerate((True, True, False, False)):
        epoch_of(callback, Trainer(current_epoch=epoch), model, validation)
        record[f"epoch {epoch}, {'a' if validation else 'no'} validation"] = told(model)
    record["its state"] = near(callback.state_dict(), 1e-11)
    epoch_of(callback, Trainer(current_epoch=1, fast_dev_run=1), model, True)
    record["a fast run"] = told(model)
    callback.on_validation_epoch_end(Trainer(state=SimpleNamespace(fn="validate")), model)
    record["validation alone"] = told(model)
    callback.on_test_epoch_end(Trainer(state=SimpleNamespace(fn="test")), model)
    record["a test"] = told(model)
    assert model.training
    golden("training/lightning", record)


def old_state() -> dict[str, Any]:
    """The state of all callbacks in a checkpoint of version 0.1.0."""
    states: dict[str, Any] = torch.load(FILES / "callback_state.pt", weights_only=True)
    return states


def test_an_old_state_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving it again gives the same state. Its reference is recognised, and a different one is
    detected.
    """
    monkeypatch.chdir(beside_network(tmp_path))
    callback = FIDCallback("generate", FILES / "own.npz", feature=NETWORK)
    state = old_state()[callback.state_key]
    callback.load_state_dict(state)
    assert callback.frechet_distance == state["fid"]
    assert callback.fid is None, "the network is not Inception"
    assert list(callback.state_dict().items()) == list(state.items())
    with warnings.catch_warnings():
        warnings.simplefilter("error", fidtool.FidtoolWarning)
        callback.on_fit_start(Trainer(callbacks=[callback]), Model())
    other = FIDCallback("generate", FILES / "skipped.npz", feature=NETWORK)
    other.load_state_dict(state)
    with pytest.warns(
        fidtool.FidtoolWarning,
        match="a different reference, protocol, network, float_to_byte or model_weights",
    ):
        other.on_fit_start(Trainer(callbacks=[other]), Model())


@pytest.mark.parametrize(
    ("name", "feature", "logged"),
    [
        (None, None, ["fid", "kid", "kid_std"]),
        (None, 64, ["fid_64", "kid_64", "kid_std_64"]),
        (None, "dinov2", ["fd_dinov2", "kid_dinov2", "kid_std_dinov2"]),
        ("fid", 64, ["fid", "kid", "kid_std"]),
        ("val/fid", None, ["val/fid", "val/kid", "val/kid_std"]),
        ("fid_fid50k", None, ["fid_fid50k", "kid_fid50k", "kid_std_fid50k"]),
        ("confident", None, ["confident", "confident_kid", "confident_kid_std"]),
    ],
)
def test_names_of_values(
    name: str | None,
    feature: Any,
    logged: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the results of ``fidtool compute``, or with the word fid of the given name
    replaced.
    """
    monkeypatch.chdir(beside_network(tmp_path))
    small = shared_extractor(NETWORK, None, None, None, None)

    def named(feature: Any, *_: Any) -> SharedExtractor:
        """The small network under the name of another one."""
        renamed = copy.copy(small)
        renamed.choice = choose_network(feature, None, None)
        return renamed

    monkeypatch.setattr(inception_metrics, "shared_extractor", named)
    real = fidtool.compute_statistics(
        make_pictures(tmp_path / "real", 12), extractor=NETWORK, metrics=[fidtool.KID()]
    )
    callback = FIDCallback(
        "generate",
        real,
        num_samples=10,
        name=name,
        metrics=[FrechetInceptionDistance, partial(KernelInceptionDistance, subset_size=8)],
        feature=feature,
    )
    model = Model()
    callback.on_fit_start(Trainer(callbacks=[callback]), model)
    epoch_of(callback, Trainer(), model, True)
    assert [value_name for value_name, *_ in model.logged] == logged


def test_weights_are_not_those_of_the_model() -> None:
    with pytest.raises(
        fidtool.InputError, match=r"weights must be a file for .*: pass model_weights='raw'"
    ):
        FIDCallback("generate", "real.npz", weights="raw")
    with pytest.raises(
        fidtool.InputError, match=r"model_weights must be averaged or raw, not 'ema'"
    ):
        FIDCallback("generate", "real.npz", model_weights="ema")  # type: ignore[arg-type]


def test_a_plain_module_whose_features_need_another_step() -> None:
    """The refusal of its features advises an argument that the callback has; one of a metric's own
    is kept.
    """
    real = fidtool.Statistics.of(np.zeros(3), np.eye(3), 9)
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    own = partial(FrechetInceptionDistance, feature_step=12)
    reference = own(module, real_statistics=real).reference_digest
    for settings in ({"feature_step": 12}, {"metrics": own}):
        callback = FIDCallback("generate", real, feature=module, **settings)  # type: ignore[arg-type]
        callback.on_fit_start(Trainer(callbacks=[callback]), Model())
        assert callback.state_dict()["reference"] == reference


def test_several_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All with one network and the same samples; the real features come from a folder."""
    monkeypatch.chdir(beside_network(tmp_path))
    make_pictures(tmp_path / "real", 12)
    model = Model()
    metrics = [
        FrechetInceptionDistance,
        partial(KernelInceptionDistance, subset_size=8),
        PrecisionRecallDensityCoverage,
    ]
    callback = FIDCallback(
        "generate",
        tmp_path / "real",
        num_samples=10,
        batch_size=4,
        name="val_fid",
        metrics=metrics,
        feature=NETWORK,
    )
    callback.on_fit_start(Trainer(callbacks=[callback]), model)
    epoch_of(callback, Trainer(), model, True)
    assert len(model.asked) == 3
    values = {name: float(value) for name, value, _ in model.logged}
    assert [*values] == [
        f"val_{name}"
        for name in (
            "fid",
            "kid",
            "kid_std",
            "precision",
            "recall",
            "density",
            "coverage",
            "f_score",
        )
    ]
    assert callback.frechet_distance == values["val_fid"]
    model.logged.clear()
    epoch_of(callback, Trainer(current_epoch=1, fast_dev_run=1), model, True)
    assert len(model.logged) == 8
    for wrong in ("kid", ["kid"], None, [], torch.nn.Flatten, [KernelInceptionDistance(network())]):
        with pytest.raises(
            fidtool.InputError,
            match=r"takes classes such as fidtool.training.KernelInception.*, not",
        ):
            FIDCallback("generate", tmp_path / "real", metrics=wrong)  # type: ignore[arg-type]
    given = FIDCallback("generate", tmp_path / "real", metrics=(each for each in metrics))
    assert given.metrics == tuple(metrics)
    twice = FIDCallback(
        "generate",
        tmp_path / "real",
        num_samples=10,
        metrics=[*metrics, metrics[1]],
        feature=NETWORK,
    )
    with pytest.raises(
        fidtool.InputError,
        match="would be logged as kid_network_py_network: pass each to a FIDCallback with its",
    ):
        twice.on_fit_start(Trainer(callbacks=[twice]), model)
    few = FIDCallback(
        "generate", tmp_path / "real", num_samples=5, metrics=metrics, feature=NETWORK
    )
    with pytest.raises(
        fidtool.InputError, match="KID needs at least 8 images for subset_size=8: raise num_samples"
    ):
        few.on_fit_start(Trainer(callbacks=[few]), model)
