"""Devices: the device of each rank, and torch's settings after an error."""

from __future__ import annotations

import contextlib

import pytest
import torch

from fidtool.distributed.launch import Launch
from fidtool.errors import InputError
from fidtool.features.device import choose_device, deterministic_mode


def test_settings_are_restored_after_an_error() -> None:
    torch.backends.cudnn.benchmark = True
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with contextlib.suppress(ValueError), deterministic_mode():
            assert not torch.backends.cudnn.benchmark
            assert torch.get_num_threads() == 1
            raise ValueError
        assert torch.backends.cudnn.benchmark
        assert torch.get_num_threads() == 3
    finally:
        torch.backends.cudnn.benchmark = False
        torch.set_num_threads(threads)


@pytest.mark.parametrize("grad", [True, False])
def test_the_programs_code_runs_in_its_own_grad_mode(grad: bool) -> None:
    """Also when torch's settings are suspended during a run."""
    with torch.set_grad_enabled(grad):
        with deterministic_mode() as settings, settings.suspend():
            assert torch.is_grad_enabled() == grad
        assert torch.is_grad_enabled() == grad


@pytest.mark.parametrize(
    ("cores", "ranks", "workers"), [(2, 1, 0), (15, 1, 0), (64, 1, 4), (64, 8, 0)]
)
def test_cores_are_divided_into_forward_threads_and_workers(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, workers: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for module in ("features.device", "distributed.launch"):
        monkeypatch.setattr(
            f"fidtool.{module}.available_cores", lambda ranks=1: max(1, cores // ranks)
        )
    launch = Launch(0, ranks, 0, ranks)
    device = choose_device("cpu", launch)
    assert device.forward_threads == cores // ranks
    assert device.default_workers == workers


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that torch sees two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["nonsense", "cuda:2", "meta"])
def test_a_missing_device_is_refused(name: str) -> None:
    with pytest.raises(
        InputError, match=f"device='{name}'.*[:;] use cpu or cuda or cuda:0 or cuda:1"
    ) as refused:
        choose_device(name, Launch())
    assert refused.value.setting == "device"


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_assigned_by_local_rank() -> None:
    crowded = [choose_device("cuda", Launch(rank, 3, rank, 3)) for rank in range(3)]
    assert [str(device.torch_device) for device in crowded] == ["cuda:0", "cuda:1", "cuda:0"]
    named = choose_device("cuda:1", Launch(0, 2, 0, 2))
    assert str(named.torch_device) == "cuda:1"


@pytest.mark.usefixtures("two_gpus")
def test_a_program_without_a_launcher_has_chosen_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, one that starts its processes with torch.multiprocessing.spawn."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert str(choose_device(None, Launch()).torch_device) == "cuda:1"
    assert str(choose_device("cuda:0", Launch()).torch_device) == "cuda:0"
    assert str(choose_device("cuda", Launch(0, 2, 0, 2)).torch_device) == "cuda:0"
