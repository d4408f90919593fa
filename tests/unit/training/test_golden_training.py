"""Goldens of training: states with the sums of an earlier version, values of the metric and the
loss, refusals.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.training import FeatureExtractor, FrechetLoss, gather_with_grad
from support.exact_sets import bells, beside_network
from support.goldens import Golden, near
from support.old_files import FILES, trained_metric

STATE = FILES / "metric_state.pt"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(beside_network(tmp_path))


def old_state() -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(STATE, weights_only=True)
    sums = {
        name: values
        for name, values in state.items()
        if not name.endswith(("_bits", "_marks", "definition", "share"))
    }
    settings = {"definition": bytes(state["definition"].tolist()).decode(), "float_to_byte": ""}
    header = {"settings": settings, "rank": 0, "size": 1}
    sums["header"] = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
    for side in ("real", "fake"):  # today's states have these, but no bits
        count = int(state[f"{side}_count"])
        sums[f"{side}_hash"] = state.get(f"{side}_marks", torch.arange(count))
        sums[f"{side}_sample"] = torch.full((count,), -1)
        sums[f"{side}_left_out"] = torch.tensor(0)
    return sums


def shown(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Descriptions of the tensors by name, in order."""
    found: dict[str, Any] = {}
    for name, tensor in state.items():
        kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        array = np.ascontiguousarray(tensor.numpy())
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        found[name] = {kind: bytes(array).decode() if name == "header" else tensor.tolist()}
        if tensor.numel() > 30 and name != "header":
            found[name] = {kind: digest}
    return found


def test_an_old_state_is_read(golden: Golden) -> None:
    """It has the sums that the same images have today, in one limb and without the sizes of the
    features.
    """
    from fidtool.training import FrechetInceptionDistance

    metric = FrechetInceptionDistance("network.py:network")
    metric.load_state_dict(old_state())
    metric.persistent(True)
    read = shown(metric.state_dict())
    value = float(metric.compute())
    assert metric.result is not None
    counts = {"real": metric.result.real, "fake": metric.result.fake, "scope": metric.result.scope}
    golden(
        "training/old_state",
        {"fid": near(value, 1e-12), **counts, "digest": metric.reference_digest},
    )
    today = shown(trained_metric().state_dict())
    assert set(read) == set(today)
    assert {name for name in read if read[name] != today[name]} == {
        "real_sizes",
        "fake_sizes",
        "real_hash",
    }


def test_a_new_state(golden: Golden) -> None:
    golden("training/state", shown(trained_metric().state_dict()))


def test_a_state_of_another_network_is_refused(golden: Golden) -> None:
    from fidtool.training import FrechetInceptionDistance

    metric = FrechetInceptionDistance("network.py:network", protocol="tensorflow")
    said = {}
    metric.persistent(True)
    metric.update(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), real=True)
    with pytest.raises(fidtool.InputError) as error:
        metric.load_state_dict(old_state())
    assert int(metric.state_dict()["real_count"]) == 2, "unchanged"
    said["another protocol"] = str(error.value)
    with pytest.raises(fidtool.InputError) as error:
        metric.load_state_dict(
            {name: each for name, each in old_state().items() if name != "header"}
        )
    said["no definition"] = str(error.value)
    state = trained_metric().state_dict()
    header = json.loads(bytes(state["header"].tolist()))
    del header["rank"]
    state["header"] = torch.tensor(list(json.dumps(header).encode()), dtype=torch.uint8)
    with pytest.raises(fidtool.InputError) as error:
        trained_metric().load_state_dict(state)
    assert str(error.value) == said["no definition"], "one without the rank that saved it"
    with pytest.raises(fidtool.InputError) as error:
        trained_metric().load_state_dict(
            {**old_state(), "fake_sum": torch.zeros(3, dtype=torch.int64)}
        )
    said["sums of another"] = str(error.value)
    golden("training/refused_states", said)


def test_against_statistics(golden: Golden, environment: dict[str, str]) -> None:
    """Statistics instead of real images, and a metric with too few images."""
    from fidtool.training import FrechetInceptionDistance

    metric = FrechetInceptionDistance("network.py:network", real_statistics=FILES / "own.npz")
    said = []
    with pytest.raises(fidtool.InputError) as error:
        metric.compute()
    said.append(str(error.value))
    with pytest.raises(fidtool.InputError) as error:
        metric.update(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), real=True)
    said.append(str(error.value).replace(str(FILES), "FILES"))
    for images in (
        torch.zeros(2, 8, 8),
        torch.zeros(2, 3, 8, 8),
        torch.zeros(2, 3, 8, 8, dtype=torch.int64),
    ):
        with pytest.raises(fidtool.InputError) as error:
            metric.update(images, real=False)
        said.append(str(error.value))
    images = (
        torch.arange(6 * 3 * 16 * 16).reshape(6, 3, 16, 16).mul(7).remainder(251).to(torch.uint8)
    )
    metric.update(images, real=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = float(metric.compute())
    messages = [
        str(each.message) for each in caught if issubclass(each.category, fidtool.FidtoolWarning)
    ]
    messages = [text.replace(str(FILES), "FILES") for text in messages]
    digest = metric.reference_digest
    golden(
        "training/against_statistics",
        {"fid": near(value, 1e-12), "said": said, "warnings": messages, "digest": digest},
    )


def test_loss(golden: Golden) -> None:
    """Value and gradient, in float64 and float32, with a queue and a projection."""
    fakes = torch.from_numpy(bells(30, 12, 1, 0.5)).double().requires_grad_()
    loss = FrechetLoss(FILES / "own.npz")(fakes)
    loss.backward()
    assert fakes.grad is not None
    found: dict[str, Any] = {"double": near([loss.item(), *fakes.grad[0, :4].tolist()], 1e-11)}
    queued = FrechetLoss(FILES / "own.npz", queue=10)
    values = [queued(fakes[start : start + 10].detach().float()).item() for start in (0, 10, 20)]
    found["single, with a queue of ten"] = near(values, 2e-6)
    projection = torch.nn.Linear(12, 3).double()
    with torch.no_grad():
        projection.weight.copy_(torch.from_numpy(bells(3, 12, 2)))
        projection.bias.copy_(torch.from_numpy(bells(1, 3, 3)[0]))
    projected = FrechetLoss(FILES / "own.npz", projection=projection)(fakes.detach())
    found["projected"] = near(projected.item(), 1e-11)
    found["state"] = {name: list(each.shape) for name, each in queued.state_dict().items()}
    golden("training/loss", found)


def test_features_with_gradients(golden: Golden) -> None:
    """Features of the exact test network."""
    extractor = FeatureExtractor("network.py:network")
    wholes = torch.arange(2 * 3 * 16 * 16).reshape(2, 3, 16, 16).mul(5).remainder(128)
    images = (wholes / 128).requires_grad_()
    features = extractor(images)
    features.sum().backward()
    assert images.grad is not None
    found = {
        "features": features.tolist(),
        "moved": int((images.grad != 0).sum()),
        "kept": len(extractor.state_dict()),
    }
    golden("training/features", near(found, 1e-6))


def test_gathering_with_a_single_rank() -> None:
    """Without other ranks the tensor is returned unchanged."""
    x = torch.arange(6.0).reshape(3, 2).requires_grad_()
    (gather_with_grad(x) * torch.tensor([1.0, 2.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 2.0]] * 3
    assert gather_with_grad(torch.tensor(3.0)) == 3.0, "one without dimensions too"
