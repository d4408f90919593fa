"""Arithmetic and devices: strict float32 regardless of the caller's settings, and the device of each rank."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from fidtool.distributed.launch import Launch
from fidtool.errors import InputError
from fidtool.features.device import choose_device
from fidtool.features.torch_state import repeatable
from fidtool.pipeline.run import shared_accelerator


def test_settings_are_restored_after_an_error() -> None:
    torch.backends.cudnn.benchmark = True
    threads = torch.get_num_threads()
    try:
        with contextlib.suppress(ValueError), repeatable():
            assert not torch.backends.cudnn.benchmark
            assert torch.get_num_threads() == 1
            raise ValueError
        assert torch.backends.cudnn.benchmark
        assert torch.get_num_threads() == threads
    finally:
        torch.backends.cudnn.benchmark = False


def test_the_cpu_is_shared_among_the_ranks() -> None:
    alone, fourth = choose_device("cpu", Launch()), choose_device("cpu", Launch("env", 3, 4, 3, 4))
    assert alone.forward_threads >= fourth.forward_threads >= 1
    assert alone.identity == ""


@pytest.mark.parametrize(("cores", "ranks", "workers"), [(2, 1, 0), (15, 1, 0), (64, 1, 4), (64, 8, 0)])
def test_cores_are_divided_into_forward_threads_and_workers(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, workers: int
) -> None:
    monkeypatch.setattr("fidtool.features.device.available_cores", lambda: cores)
    launch = Launch("env", 0, ranks, 0, ranks)
    device = choose_device("cpu", launch)
    assert device.forward_threads == cores // ranks
    assert device.default_workers(launch) == workers


@pytest.mark.parametrize("name", ["nonsense", "cuda:99", "meta"])
def test_a_missing_device_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="device"):
        choose_device(name, Launch())


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that torch sees two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"GPU-{index}"))


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_assigned_by_local_rank() -> None:
    """Ranks on one GPU have the same identity, so that the run can find them."""
    crowded = [choose_device("cuda", Launch("env", rank, 3, rank, 3)) for rank in range(3)]
    assert [str(device.torch_device) for device in crowded] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [device.identity for device in crowded] == ["GPU-0", "GPU-1", "GPU-0"]
    named = choose_device("cuda:1", Launch("env", 0, 2, 0, 2))
    assert str(named.torch_device) == "cuda:1"
    assert named.identity == "GPU-1"


@pytest.mark.usefixtures("two_gpus")
def test_a_program_without_a_launcher_has_chosen_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, one that starts its processes with torch.multiprocessing.spawn."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert str(choose_device(None, Launch()).torch_device) == "cuda:1"
    assert str(choose_device("cuda:0", Launch()).torch_device) == "cuda:0"
    assert str(choose_device("cuda", Launch("env", 0, 2, 0, 2)).torch_device) == "cuda:0"


@pytest.mark.usefixtures("two_gpus")
def test_without_uuids_the_index_identifies_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in torch 2.4."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace())
    assert [choose_device("cuda", Launch("env", rank, 2, rank, 2)).identity for rank in (0, 1)] == ["0", "1"]


@pytest.mark.parametrize(("uuids", "shared"), [(("GPU-a", "GPU-b"), ""), (("GPU-a", "GPU-a"), "ranks 0 and 1 share")])
def test_one_visible_gpu_per_rank(
    monkeypatch: pytest.MonkeyPatch, two_gpus: None, uuids: tuple[str, str], shared: str
) -> None:
    """SLURM can hide the other tasks' GPUs: each rank then sees one, with the index 0."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    places = []
    for rank, uuid in enumerate(uuids):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index, uuid=uuid: SimpleNamespace(uuid=uuid))
        device = choose_device(None, Launch("slurm", rank, 2, rank, 2))
        assert str(device.torch_device) == "cuda:0"
        places.append(("node1", device.identity))
    assert shared_accelerator(places).startswith(shared)
    assert bool(shared_accelerator(places)) == bool(shared)


def test_shared_accelerators() -> None:
    """Of machines without UUIDs, the same index is another GPU; CPUs are no accelerators."""
    assert shared_accelerator([("node1", "0"), ("node2", "0"), ("node1", ""), ("node1", "")]) == ""
    assert shared_accelerator([("a", "0"), ("b", "1"), ("b", "1"), ("b", "1")]) == "ranks 1, 2 and 3 share a GPU on b"
