"""Results do not depend on the calling program's torch settings, which are restored afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

import fidtool
from fidtool.features.device import Device, device_of
from fidtool.features.extractor import Extractor, Networks
from fidtool.features.network import output_dims
from fidtool.features.preparation import Preparation
from fidtool.features.runner import Arithmetic, Runner
from fidtool.features.torch_state import computing_on, repeatable
from fidtool.pipeline.networks import _check_matrix_products
from fidtool.settings import Settings
from fidtool.training import FeatureExtractor
from fidtool.training.sums import ImageSums
from support.caller_states import NETWORK, default_device, make_place, metrics, pixels_of, setting
from support.command_line import Run
from support.fake_cuda import FakeCuda
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


# --- GPU streams, with mocks -----------------------------------------------------------------------------------------


FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def test_the_network_uses_the_default_stream_and_the_caller_its_own(cuda: FakeCuda) -> None:
    """Also if the caller's current device is another one, which the run does not initialise."""
    own = torch.cuda.Stream(SECOND, "own")  # type: ignore[no-untyped-call, call-arg]
    cuda.streams[1] = own

    def now() -> tuple[int, str]:
        return cuda.current, repr(torch.cuda.current_stream(SECOND))

    def joined(log: list[str]) -> list[str]:
        return [line for line in log if "waits" in line]

    with repeatable() as torch_settings:
        torch_settings.use(SECOND)
        assert now() == (1, "default:1")
        assert joined(cuda.log) == ["default:1 waits for own:1"]
        with torch_settings.paused():
            assert now() == (0, "own:1")
            assert joined(cuda.log)[1:] == ["own:1 waits for default:1"]
        assert now() == (1, "default:1")
        assert joined(cuda.log)[2:] == ["default:1 waits for own:1"]
    assert now() == (0, "own:1")
    assert joined(cuda.log)[3:] == ["own:1 waits for default:1"]
    assert cuda.initialized == {1}, "a context on the caller's device takes half a gigabyte"


def test_a_run_that_fails_restores_the_device_and_the_stream(cuda: FakeCuda) -> None:
    cuda.streams[1] = torch.cuda.Stream(SECOND, "own")  # type: ignore[no-untyped-call, call-arg]

    def run() -> None:
        with repeatable() as torch_settings:
            torch_settings.use(SECOND)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert (cuda.current, repr(torch.cuda.current_stream(SECOND))) == (0, "own:1")
    assert cuda.log[-1] == "own:1 waits for default:1"
    assert cuda.initialized == {1}


class Watching(torch.nn.Module):
    """Records the thread, device, stream and autocast of each call. Its features are the means of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, int, str, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        here = threading.current_thread() is threading.main_thread()
        stream = repr(torch.cuda.current_stream(SECOND))
        self.seen.append((here, torch.cuda.current_device(), stream, torch.is_autocast_enabled("cuda")))
        return x.mean((2, 3))


GPU = Device(SECOND, "a GPU", 1)


class Shared:
    """A `SharedExtractor` of a network on the second GPU, whose tensors are fake; and the loss's module around it."""

    def __init__(self, module: torch.nn.Module, loss: FeatureExtractor) -> None:
        self.definition, self.loss = loss.definition, loss
        loss._features, loss._anchor = self, torch.empty(0, device=SECOND)  # type: ignore[assignment]
        runner, black, white = Runner(module, SECOND, Arithmetic()), (0.0,) * 3, (1.0,) * 3
        self._extractor = Extractor(runner, {"": self.definition}, Preparation("bilinear"), black, white, GPU)

    def extractor(self, device: torch.device) -> Extractor:
        return self._extractor


def in_a_run(shared: Shared, images: torch.Tensor) -> None:
    with repeatable() as torch_settings:
        torch_settings.use(SECOND)
        networks, pixels = Networks({"": shared.extractor(SECOND)}), list(images.permute(0, 2, 3, 1))
        list(networks.run(iter([0]), lambda _: pixels, lambda _: True, lambda: False, contextlib.nullcontext, False))


def in_the_metric(shared: Shared, images: torch.Tensor) -> None:
    sums: Any = ImageSums(shared, "real", batch_size=4)  # type: ignore[arg-type]
    sums._moments = SimpleNamespace(add=lambda features: None, count=0)
    sums.add(images)


def in_the_loss_extractor(shared: Shared, images: torch.Tensor) -> None:
    assert shared.loss(images).requires_grad


def directly(shared: Shared, images: torch.Tensor) -> None:
    shared.extractor(SECOND).layers(list(images.permute(0, 2, 3, 1)))


@contextlib.contextmanager
def program_state(cuda: FakeCuda, current: int) -> Iterator[None]:
    """A program with autocast, a stream of its own on the second GPU, and a current device."""
    cuda.current = current
    cuda.streams[1] = torch.cuda.Stream(SECOND, "own")  # type: ignore[no-untyped-call, call-arg]
    with setting(lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on), True):
        yield
        assert torch.is_autocast_enabled("cuda")
    assert (cuda.current, repr(torch.cuda.current_stream(SECOND))) == (current, "own:1")


class Arithmetics(TorchFunctionMode):
    """Records the device and autocast of each operation whose result is floating-point."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, bool]] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.is_cuda:
            self.seen.add((torch.cuda.current_device(), torch.is_autocast_enabled("cuda")))
        return result


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize(
    ("call", "stream"),
    [(in_a_run, "default:1"), (in_the_metric, "own:1"), (in_the_loss_extractor, "own:1"), (directly, "own:1")],
)
def test_a_network_on_a_gpu_runs_on_its_device(
    cuda: FakeCuda, call: Callable[[Shared, torch.Tensor], None], stream: str, current: int
) -> None:
    """In training code, in order with the program's work; always in the calling thread and without autocast."""
    module, loss = Watching(), FeatureExtractor(fidtool.Network(torch.nn.AvgPool2d(8), input_size=8))
    with FakeTensorMode(allow_non_fake_inputs=True):
        shared = Shared(module, loss)
        images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8, device=SECOND)
        prepared = images.float().requires_grad_() if call is in_the_loss_extractor else images
        with program_state(cuda, current), Arithmetics() as arithmetics:
            call(shared, prepared)
    assert module.seen == [(True, 1, stream, False)]
    if call is not directly:
        assert arithmetics.seen == {(1, False)}, "the images are not resized under the program's autocast"
    assert cuda.initialized == {1}


def test_the_probes_of_a_new_network_run_on_its_device(cuda: FakeCuda) -> None:
    module = Watching()
    with FakeTensorMode(allow_non_fake_inputs=True), program_state(cuda, 0):
        output_dims(fidtool.Network(module, input_size=8), GPU)
        assert module.seen == [(True, 1, "own:1", False)]


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
