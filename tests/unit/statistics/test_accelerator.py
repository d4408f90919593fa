"""Statistics on an accelerator: the host does not wait for it while batches are added, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from fidtool.console import Console
from fidtool.errors import RunError
from fidtool.features.definition import Definition
from fidtool.features.protocol import EMBEDDING, FEATURES
from fidtool.features.readback import Readback
from fidtool.images.decode import ImageProperties
from fidtool.images.records import RECORD
from fidtool.pipeline.run import open_run
from fidtool.settings import Settings
from fidtool.statistics import partial as partial_module
from fidtool.statistics import precision
from fidtool.statistics.checkpoint import Checkpoint
from fidtool.statistics.moments import ExactMoments, check_exact_products
from fidtool.statistics.partial import Layer, PartialStatistics
from fidtool.statistics.precision import INTEGER_BITS, FeatureSizes
from fidtool.training.sums import ImageSums
from support.feature_sets import alone

DIMS = 4
DEFINITION = Definition("made up", "", DIMS, 18, 8, "", "bilinear", "pillow", 1)
SIZES = (3, 3, 0, 3, 2, 3, 3, 1)


# --- per-image features ----------------------------------------------------------------------------------------------


class Accelerator:
    """Replaces `read_back` by copies that arrive when `arrived` says so, and logs when the host waits for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[int] = []
        self.arrived = 0
        self.started = 0
        outer = self

        class Slow(Readback):
            def __init__(self, source: torch.Tensor) -> None:
                super().__init__(source.clone())
                self.number = outer.started
                outer.started += 1

            def ready(self) -> bool:
                return self.number < outer.arrived

            def tensor(self) -> torch.Tensor:
                if not self.ready():
                    outer.waits.append(self.number)
                return super().tensor()

        monkeypatch.setattr(partial_module, "read_back", Slow)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    return Accelerator(monkeypatch)


def rows_of(batch: int) -> torch.Tensor:
    return torch.arange(SIZES[batch] * DIMS).view(-1, DIMS) / 64.0 + batch + 1


def partial_of(batches: range) -> PartialStatistics:
    layers = {FEATURES: Layer(DEFINITION, with_features=True), EMBEDDING: Layer(DEFINITION)}
    partial = PartialStatistics(np.arange(len(SIZES), dtype=np.uint64), layers, SIZES, inspected=True)
    for batch in batches:
        add(partial, batch)
    return partial


def add(partial: PartialStatistics, batch: int) -> None:
    rows = rows_of(batch)
    features = {FEATURES: rows, EMBEDDING: -rows} if len(rows) else None
    partial.add(batch, features, ImageProperties(), np.zeros(SIZES[batch], dtype=RECORD), [])


def stored(partial: PartialStatistics) -> list[int]:
    return np.flatnonzero(partial.buffers[FEATURES].counts >= 0).tolist()


def assert_complete(partial: PartialStatistics, batches: range) -> None:
    assert stored(partial) == list(batches)
    for batch in batches:
        assert np.array_equal(partial.buffers[FEATURES].rows(batch), rows_of(batch).numpy())


def test_rows_are_read_after_the_next_batch_was_added(accelerator: Accelerator) -> None:
    partial = partial_of(range(2))
    assert (stored(partial), accelerator.waits) == ([], [])
    accelerator.arrived = 1
    add(partial, 2)
    assert (stored(partial), accelerator.waits) == ([0], []), "the host does not wait"
    accelerator.arrived = 3
    add(partial, 3)
    assert (stored(partial), accelerator.waits) == ([0, 1, 2], []), "a batch without images has arrived at once"
    partial.flush()
    assert_complete(partial, range(4))
    assert accelerator.waits == [3]


def test_few_batches_are_on_the_way_at_once(accelerator: Accelerator) -> None:
    """Their page-locked memory is bounded, even if nothing arrives."""
    partial = partial_of(range(len(SIZES)))
    assert stored(partial) == [0, 1, 2, 3]
    assert partial.done.all()
    partial.flush()
    assert_complete(partial, range(len(SIZES)))


def test_on_the_cpu_rows_are_stored_at_once() -> None:
    partial = partial_of(range(2))
    assert_complete(partial, range(2))


def test_a_new_plan_and_the_whole_set_have_all_rows(accelerator: Accelerator) -> None:
    partial = partial_of(range(3))
    partial.replan([*SIZES[:4], 5])
    assert_complete(partial, range(3))
    partial = partial_of(range(len(SIZES)))
    partial.merge(alone(), "set")
    assert_complete(partial, range(len(SIZES)))


def test_a_checkpoint_has_all_rows(accelerator: Accelerator, tmp_path: Path) -> None:
    def checkpoint(attempt: str) -> Checkpoint:
        made = Checkpoint(str(tmp_path), 0.0, 100, said.append)
        made.join("run", attempt, 0)
        return made

    said: list[str] = []
    checkpoint("a").save(0, partial_of(range(4)))
    loaded = partial_of(range(0))
    checkpoint("b").load(0, loaded, lambda skipped: "")
    assert said == []
    assert_complete(loaded, range(4))
    assert loaded.count == sum(SIZES[:4])


@pytest.mark.parametrize("interrupted", ["add", "flush"])
def test_statistics_are_not_saved_if_an_exception_interrupts_the_wait(
    interrupted: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a worker dies, an exception may be raised anywhere in the main thread."""
    partial = partial_of(range(4))
    with monkeypatch.context() as patch:
        patch.setattr(Readback, "tensor", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            partial.flush() if interrupted == "flush" else add(partial, 4)
    assert partial.to_arrays() is None
    partial.flush()
    assert partial.to_arrays() is None, "the sums may lack some rows"


def test_an_exception_between_two_batches_loses_no_rows(accelerator: Accelerator) -> None:
    partial = partial_of(range(3))
    arrays = partial.to_arrays()
    assert arrays is not None
    assert_complete(partial, range(3))
    assert partial.to_arrays() is not None


# --- sums ------------------------------------------------------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Counts operations that launch kernels or wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not call.is_view and call.namespace == "aten":
            self.counts[call.overloadpacket.__name__] += 1
        return call(*args, **kwargs or {})


class Never:
    """A copy that has not arrived when the next one is due; its contents are then read."""

    def __init__(self, source: torch.Tensor) -> None:
        Never.made += 1

    made = 0

    def ready(self) -> bool:
        return False

    def tensor(self) -> Any:
        return SimpleNamespace(item=lambda: 1.0)


def test_adding_features_takes_few_launches_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was 70 launches, and one wait per 32 Gram matrices, at which this test would raise an exception."""
    monkeypatch.setattr(precision, "read_back", Never)
    Never.made = 0
    blocks = 300  # more than fit into one limb
    with FakeTensorMode():
        moments = ExactMoments(2048, 18, "cuda")
        batch = torch.zeros(64, 2048, device="cuda")
        with Operations() as operations:
            for _ in range(2 * blocks):
                moments.add(batch)
    assert Never.made == (blocks - 1) // 32
    assert "_local_scalar_dense" not in operations.counts
    assert operations.counts["mm"] == blocks - 1
    assert operations.counts.total() / blocks < 20, operations.counts


def test_sizes_are_counted_alike_on_the_host_and_on_an_accelerator() -> None:
    here, there = FeatureSizes("cpu"), FeatureSizes("cpu")
    there.on_host = False
    powers = 2.0 ** torch.arange(-149, INTEGER_BITS, dtype=torch.float64)
    below = torch.nextafter(powers, torch.zeros(()).double())
    rows = torch.cat([powers, below, -powers, torch.zeros(3), torch.tensor([2.0**23 - 1, -1.5, 0.3])])
    for sizes in (here, there):
        sizes.add(rows[:, None])
        sizes.add(torch.randn(50, 20, generator=torch.Generator().manual_seed(0)).double() * 1e4)
    assert here.array().tolist() == there.array().tolist()
    assert here.array().sum() == len(rows) - 3 + 1000


@pytest.mark.parametrize("blocks", [32, 40])
def test_a_feature_out_of_range_is_reported_when_its_copy_has_arrived(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or by `flush`, also if all blocks are in that copy."""

    class Arriving(Readback):
        def ready(self) -> bool:
            return arrived

    arrived = False
    monkeypatch.setattr(precision, "read_back", Arriving)

    def added() -> ExactMoments:
        moments = ExactMoments(DIMS, 18)
        moments._sizes.on_host = False
        moments.add(block * 40.0)
        for _ in range(blocks - 1):
            moments.add(block)
        return moments

    block = torch.ones(128, DIMS)
    in_time, late = added(), added()
    arrived = True
    with pytest.raises(RunError, match="a feature of size 40"):
        in_time.add(block), in_time.add(block)
    for _ in range(2):
        with pytest.raises(RunError, match="a feature of size 40"):
            late.flush()


# --- exact products --------------------------------------------------------------------------------------------------


def test_products_are_exact_here() -> None:
    check_exact_products(torch.device("cpu"))


@pytest.mark.parametrize("wrong", [0, 1], ids=["Gram matrix", "inner products"])
def test_one_wrong_product_is_reported(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    product, made = torch.Tensor.__matmul__, []

    def perturbed(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        result = product(one, other)
        if result.is_floating_point():
            made.append(1)
            result[5, 7] += len(made) == wrong + 1
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", perturbed)
    with pytest.raises(RunError, match=r"not exact.*unset CUBLAS_EMULATE_DOUBLE_PRECISION.*device='cpu'"):
        check_exact_products(torch.device("cpu"))


@pytest.mark.parametrize("name", ["addmm", "bmm"])
def test_each_kind_of_product_is_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product = getattr(torch, name)

    def perturbed(*args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = product(*args, **kwargs)
        result.view(-1)[7] += 1
        return result

    monkeypatch.setattr(torch, name, perturbed)
    with pytest.raises(RunError, match="not exact"):
        check_exact_products(torch.device("cpu"))


def test_emulated_products_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of float64 from four products of float32 have about 48 bits."""
    product = torch.Tensor.__matmul__

    def emulated(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if not one.is_floating_point():
            return product(one, other)
        halves = [(each.float(), (each - each.float().double()).float()) for each in (one, other)]
        return sum(product(a, b).double() for a in halves[0] for b in halves[1])  # type: ignore[return-value]

    monkeypatch.setattr(torch.Tensor, "__matmul__", emulated)
    with pytest.raises(RunError, match="not exact"):
        check_exact_products(torch.device("cpu"))


def test_products_on_an_accelerator_are_as_large_as_those_of_a_run() -> None:
    """cuBLAS emulates only large ones."""

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if call is torch.ops.aten.mm.default and args[0].dtype == torch.float64:
                shapes.append((*args[0].shape, args[1].shape[1]))
            return call(*args, **kwargs or {})

    shapes: list[tuple[int, ...]] = []
    with FakeTensorMode(), Shapes(), pytest.raises(DataDependentOutputException):
        check_exact_products(torch.device("cuda"))
    assert shapes == [(2048, 128, 2048), (2048, 2048, 2048)]


def test_runs_and_metrics_check_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(device: torch.device) -> None:
        raise RunError(f"no exact products on {device}")

    monkeypatch.setattr("fidtool.pipeline.run.check_exact_products", refused)
    with pytest.raises(RunError, match="products on cpu"), open_run(["a", "b"], Settings(), Console()):
        raise AssertionError("the run must not start")
    monkeypatch.setattr("fidtool.training.sums.check_exact_products", refused)
    sums = ImageSums(SimpleNamespace(definition=DEFINITION), "real", None)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="products on meta"):
        sums.to(torch.device("meta"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_has_the_same_bits_as_the_cpu() -> None:
    cuda = torch.device("cuda")
    check_exact_products(cuda)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(700, 64, generator=generator)
    here, there = ExactMoments(64, 18), ExactMoments(64, 18, cuda)
    for batch in features.split(50):
        here.add(batch)
        there.add(batch.to(cuda))
    ours, theirs = ({name: each.tolist() for name, each in sums.totals().items()} for sums in (here, there))
    assert ours == theirs
