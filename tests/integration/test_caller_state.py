"""Results do not depend on the calling program's torch settings, which are restored afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.features.device import Device, device_of
from fidtool.features.torch_state import computing_on, repeatable
from fidtool.pipeline.networks import _check_matrix_products
from fidtool.settings import Settings
from support.caller_states import NETWORK, default_device, make_place, metrics, pixels_of, setting
from support.command_line import Run
from support.places import TINY


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def pixels(place: Path) -> list[NDArray[np.uint8]]:
    return pixels_of(place)


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, tuple[dict[str, float], str | None]]:
    networks = {"convolution": TINY, "attention": f"{place / 'attention.py'}:network"}
    return {name: metrics(place, place / "fake", spec) for name, spec in networks.items()}


def flag(place: Any, name: str, value: object) -> AbstractContextManager[None]:
    return setting(lambda: getattr(place, name), lambda each: setattr(place, name, each), value)


def only_plain_attention() -> AbstractContextManager[None]:
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


@contextlib.contextmanager
def other_libraries() -> Iterator[None]:
    """Settings that only affect a GPU; on the CPU only their restoration is checked."""
    cuda = torch.backends.cuda
    library = torch._C._BlasBackend.Cublaslt
    sdp = cuda.cudnn_sdp_enabled()
    with (
        setting(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, not sdp),
        setting(cuda.preferred_blas_library, cuda.preferred_blas_library, library),
    ):
        yield


def denying_determinism(warn_only: bool) -> AbstractContextManager[None]:
    def write(value: bool) -> None:
        torch.use_deterministic_algorithms(value, warn_only=warn_only)

    return setting(torch.are_deterministic_algorithms_enabled, write, True)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bfloat16 by autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64 by default": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "bfloat16 by default": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.bfloat16),
    "a default device": lambda: setting(
        default_device, lambda to: torch.set_default_device(None if to.type == "cpu" else to), torch.device("meta")
    ),
    "a device's context": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "three threads": lambda: setting(torch.get_num_threads, torch.set_num_threads, 3),
    "deterministic algorithms": lambda: denying_determinism(False),
    "deterministic algorithms, or a warning": lambda: denying_determinism(True),
    "no oneDNN": lambda: flag(torch.backends.mkldnn, "enabled", False),
    "plain attention": only_plain_attention,
    "no fast path": lambda: setting(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False
    ),
    "other libraries on a GPU": other_libraries,
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_the_callers_state_does_not_change_results(
    place: Path, pixels: list[NDArray[np.uint8]], expected: dict[str, Any], environment: dict[str, str], name: str
) -> None:
    with STATES[name]():
        assert metrics(place, place / "fake", TINY) == expected["convolution"]
        assert metrics(place, iter(pixels), f"{place / 'attention.py'}:network") == expected["attention"]


def test_these_states_would_change_results_or_fail_without_protection() -> None:
    """Checks that the states of the test above are effective."""
    x = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    scope: dict[str, Any] = {}
    with repeatable(), torch.no_grad():
        exec(NETWORK.replace("assert", "# assert"), scope)
        with repeatable():
            module = scope["network"]().module.eval()
        strict = module(x)
    moved = set()
    for name, state in STATES.items():
        with state(), torch.no_grad():
            try:
                same = torch.equal(module(x), strict)
            except RuntimeError:
                same = False
        moved |= set() if same else {name}
    assert moved >= {
        "bfloat16 by autocast",
        "float64 by default",
        "a default device",
        "no oneDNN",
        "plain attention",
        "no fast path",
    }


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_autocast_is_off_where_a_device_has_it(kind: str) -> None:
    """Some versions of torch have none for MPS, and refuse to switch it."""
    with torch.autocast("cpu", torch.bfloat16), computing_on(torch.device(kind)):
        assert torch.is_autocast_enabled("cpu") is (kind != "cpu")


def test_a_cublas_workspace_setting_is_refused_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device(torch.device("cuda"), "a GPU", 1)
    cpu = device_of(torch.device("cpu"), fidtool.distributed.launch.Launch())
    vit, inception = Settings(extractor="dinov2"), Settings()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    _check_matrix_products(vit, gpu)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for config, device in ((inception, gpu), (vit, cpu), (Settings(metrics=("cmmd",)), cpu)):
        _check_matrix_products(config, device)
    for config in (vit, Settings(metrics=("fid", "cmmd"))):
        with pytest.raises(fidtool.InputError, match=r"CUBLAS_WORKSPACE_CONFIG is set \(:4096:8\).*unset it"):
            _check_matrix_products(config, gpu)


def test_the_distance_does_not_depend_on_omp_num_threads(program: Run) -> None:
    """torchrun sets OMP_NUM_THREADS=1. The distance is the same, and torch's number of threads is left unchanged."""
    code = (
        "import numpy as np, torch, fidtool; rng = np.random.RandomState(0);"
        "a, b = rng.randn(900, 400), rng.rand(900, 400);"
        "before = torch.get_num_threads();"
        "print(before, fidtool.frechet_distance(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T)).hex());"
        "assert torch.get_num_threads() == before"
    )
    ended = [program(code, OMP_NUM_THREADS=threads) for threads in ("1", "2")]
    assert [each.status for each in ended] == [0, 0], ended
    threads, bits = zip(*(each.stdout.split() for each in ended), strict=True)
    assert threads == ("1", "2")
    assert len(set(bits)) == 1
