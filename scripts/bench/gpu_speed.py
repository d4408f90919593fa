"""The parts of the command ``gpu`` that mainly measure: see `bench.gpu.PARTS`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from bench.end_to_end import PEERS
from bench.gpu import Findings, Situation, Skipped
from bench.gpu_checks import (
    ALLOWED,
    cause_in,
    compute,
    inception,
    inputs,
    metrics_of,
    precisions_of,
    run_settings,
    runner_of,
    small_pair,
)
from bench.images import ImageSets, photograph
from bench.report import relative_difference

_HERE = Path(__file__).resolve().parent
_PROGRAMS, _PEERS = str(_HERE / "programs.py"), str(_HERE / "peers.py")
_POOLED = f"{_HERE / 'networks.py'}:pooled"
_LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
_DEFAULT = ("NHWC", 64)
_BASES, _BASE_SIDE = 40, 640
_DECODING_SECONDS = 12.0
_PROTOCOLS = ("pytorch-fid", "clean", "tensorflow")
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")

Pixels = NDArray[np.uint8]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Many different images, in seconds


_bases: list[Pixels] = []
"""Images that the processes of a pool inherit."""


def write_sets(folder: Path, count: int, side: int, suffixes: tuple[str, str]) -> ImageSets:
    """Write two folders of ``count`` different images each, or reuse them.

    They are parts of a few large images, moved, mirrored, and with exchanged colours.

    Args:
        folder: for both folders.
        count: images per folder.
        side: width and height; 0: mixed sizes.
        suffixes: file formats of the two sets.
    """
    sets = ImageSets(folder / "real", folder / "fake", 2 * count)
    if folder.exists():
        return sets
    for kind, (place, suffix) in enumerate(zip((sets.real, sets.fake), suffixes, strict=True)):
        place.mkdir(parents=True)
        largest = side or _BASE_SIDE
        numbers = range(min(count, _BASES))
        _bases[:] = [photograph(np.random.RandomState([kind, number]), largest, largest) for number in numbers]
        with multiprocessing.get_context("fork").Pool(_cores()) as pool:
            pool.map(partial(_write, place, side, suffix), range(count), 32)
    return sets


def _write(place: Path, side: int, suffix: str, number: int) -> None:
    rng = np.random.RandomState(number)
    pixels = _bases[number % len(_bases)]
    pixels = np.roll(pixels, rng.randint(0, len(pixels), 2), (0, 1))[:, :: rng.choice([-1, 1]), rng.permutation(3)]
    if not side:
        height, width = rng.randint(_BASE_SIDE // 4, _BASE_SIDE + 1, 2)
        pixels = pixels[:height, :width]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.save(place / f"{number:06}.{suffix}", quality=90, compress_level=1)


# The network alone


def forward_rate(situation: Situation, module: nn.Module, precision: str, x: torch.Tensor, compiled: bool) -> float:
    """Return the images/s of a network on tensors on the device, one batch at a time."""
    with run_settings(precision):
        runner = runner_of(module, situation, precision, len(x), compiled)
        for _ in range(1 if situation.small else 5):
            runner(x)
        passes, seconds = 1, 0.0
        while seconds < (0.01 if situation.small else 1.0):
            passes = max(2 * passes, int(1.2 * passes / seconds) if seconds else 0)
            seconds = _seconds_of(situation, partial(_repeat, runner, x, passes))
    return passes * len(x) / seconds


def _repeat(run: Any, x: torch.Tensor, passes: int) -> None:
    for _ in range(passes):
        run(x)


def _seconds_of(situation: Situation, work: Any) -> float:
    """Return how long work takes, by the device's clock on a CUDA device."""
    if not situation.cuda:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def table(situation: Situation, findings: Findings) -> None:
    """Measure the network by layout, precision and batch size, and compiled."""
    module, rates = inception(), {}
    sizes = (2,) if situation.small else (64, 128, 256)
    for precision in (each for each in precisions_of(situation) if each != "fp16"):
        for layout, form in _LAYOUTS.items():
            for size in sizes:
                check = f"{layout} {precision} batch {size}"
                with findings.attempt(check), _memory_to_spare():
                    x = inputs(situation, size, 0).contiguous(memory_format=form)
                    shaped = module.to(memory_format=form)
                    rate = forward_rate(situation, shaped, precision, x, compiled=False)
                    rates[precision, layout, size] = rate
                    findings.measured(check, f"{rate:,.0f} images/s", images_per_second=rate)
        _report_best(findings, precision, rates)
    module.to(memory_format=torch.channels_last)
    for precision in ("fp32", "bf16"):
        with findings.attempt(f"compiled {precision}"), _memory_to_spare():
            _measure_compiled(situation, findings, module, precision, sizes[0])


@contextlib.contextmanager
def _memory_to_spare() -> Iterator[None]:
    """Skip a measurement for which the device has too little memory."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise Skipped("not enough memory on the device") from error


def _report_best(findings: Findings, precision: str, rates: dict[tuple[str, str, int], float]) -> None:
    own = {(layout, size): rate for (name, layout, size), rate in rates.items() if name == precision}
    if not own:
        return
    best = max(own, key=lambda key: own[key])
    default = own.get(_DEFAULT)
    compared = "" if default is None else f"; the defaults, NHWC and 64, have {default / own[best]:.2f} times its speed"
    findings.measured(
        f"best {precision}", f"{best[0]} batch {best[1]}, {own[best]:,.0f} images/s{compared}", best=[*best]
    )


def _measure_compiled(situation: Situation, findings: Findings, module: nn.Module, precision: str, size: int) -> None:
    if situation.small:
        raise Skipped("compiling takes a minute; omit --small")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise Skipped("there is no C++ compiler (CXX, else g++)")
    x, started = inputs(situation, size, 0), time.perf_counter()
    with run_settings(precision):
        runner_of(module, situation, precision, size, compiled=True)(x)
        if situation.cuda:
            torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    rate = forward_rate(situation, module, precision, x, compiled=True)
    findings.measured(
        f"compiled {precision} NHWC batch {size}",
        f"{rate:,.0f} images/s, compiled in {seconds:.0f} s",
        images_per_second=rate,
        compile_seconds=seconds,
    )


# Whole runs


def speed(situation: Situation, findings: Findings) -> None:
    """Measure decoding alone, the network alone, and whole runs."""
    count = _images_to_decode(situation) // 2
    side = 64 if situation.small else 256
    sets = write_sets(situation.folder / "speed", count, side, ("jpg", "png"))
    workers = max(1, min(16, _cores() - 1))
    decoding = _decoding(findings, sets, workers, side)
    with findings.attempt("without the network"):
        run = compute(situation, sets, extractor=_POOLED, dims=None).run
        findings.measured(
            "a run with a network that costs nothing", _rate(run), images_per_second=run.images_per_second
        )
    module = inception()
    for precision in precisions_of(situation):
        with findings.attempt(f"whole run, {precision}"):
            network = forward_rate(situation, module, precision, inputs(situation, _batch(situation), 0), False)
            run = compute(situation, sets, precision=precision, dims=2048).run
            own = run.images_per_second or 0.0
            slower = min(network, decoding)
            findings.measured(
                f"whole run, {precision}",
                f"{_rate(run)}, {own / slower:.2f} times the slower of decoding ({decoding:,.0f}) and the network "
                f"({network:,.0f}); seconds: {_phases(run.extraction)}; whole: {_phases(run.seconds)}",
                images_per_second=own,
                decoding=decoding,
                network=network,
                share=own / slower,
                seconds=run.seconds,
                extraction=run.extraction,
            )


def _batch(situation: Situation) -> int:
    return 2 if situation.small else 64 if situation.device != "cpu" else 8


def _rate(run: Any) -> str:
    return f"{run.images_per_second:,.0f} images/s ({run.images_computed} images)"


def _phases(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())


def _images_to_decode(situation: Situation) -> int:
    """Return the number of images, so that this machine decodes them in a few seconds."""
    if situation.small:
        return 8
    encoded = io.BytesIO()
    Image.fromarray(photograph(np.random.RandomState(0), 256, 256)).save(encoded, "png", compress_level=1)
    started = time.perf_counter()
    for _ in range(20):
        np.asarray(Image.open(io.BytesIO(encoded.getvalue())))
    seconds = (time.perf_counter() - started) / 20
    return int(min(situation.images, max(1000, _DECODING_SECONDS * _cores() / seconds))) // 2 * 2


def _decoding(findings: Findings, sets: ImageSets, workers: int, side: int) -> float:
    """Measure reading and decoding with the workers of a run; returns the images/s over both sets."""
    images = seconds = 0.0
    for folder, name in ((sets.real, "JPEG"), (sets.fake, "PNG")):
        command = [sys.executable, _PROGRAMS, "read", str(folder), str(workers)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(cause_in(done.stderr))
        found = json.loads(done.stdout)
        rate = found["images"] / found["seconds"]
        check = f"decoding alone, {name} {side}x{side}, {workers} workers"
        findings.measured(check, f"{rate:,.0f} images/s ({found['images']} images)", images_per_second=rate)
        images, seconds = images + found["images"], seconds + found["seconds"]
    return images / seconds


def sizes(situation: Situation, findings: Findings) -> None:
    """Measure images of mixed sizes in three protocols."""
    count = 4 if situation.small else 1500
    sets = write_sets(situation.folder / "sizes", count, 0, ("jpg", "jpg"))
    for protocol in _PROTOCOLS:
        with findings.attempt(protocol):
            run = compute(situation, sets, protocol=protocol).run
            detail = f"{_rate(run)}; seconds: {_phases(run.extraction)}"
            findings.measured(protocol, detail, images_per_second=run.images_per_second, extraction=run.extraction)
        with findings.attempt(f"{protocol}, launches"):
            _count_launches(situation, findings, sets, protocol)


def _count_launches(situation: Situation, findings: Findings, sets: ImageSets, protocol: str) -> None:
    situation.need_cuda()
    from torch.profiler import ProfilerActivity, profile

    number = 4 if situation.small else 256
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run = compute(situation, sets, protocol=protocol, num=number, diagnose=False).run
    counts = {each.key: each.count for each in profiled.key_averages()}
    launches = {name: counts[name] for name in _LAUNCHES if name in counts}
    found = sum(launches.values()) / run.images_computed
    findings.measured(
        f"{protocol}, launches", f"{found:.1f} per image in a run of {run.images_computed}", launches=launches
    )


# Metrics


def metrics(situation: Situation, findings: Findings) -> None:
    """Measure KID and precision, recall etc. with FID and without, and compare their values with the CPU's."""
    count = 12 if situation.small else 5000
    sets = write_sets(situation.folder / "metrics", count, 32, ("png", "png"))
    options: dict[str, Any] = {"kid_subset_size": min(1000, count)}
    for names in ("fid", "fid,kid,prdc"):
        with findings.attempt(names):
            run = compute(situation, sets, metrics=names, **(options if "kid" in names else {})).run
            findings.measured(f"{names}, 2 x {count} images", f"seconds: {_phases(run.seconds)}", seconds=run.seconds)
    with findings.attempt("values compared with the CPU"):
        if situation.device == "cpu":
            raise Skipped("the device is the CPU")
        few = small_pair(situation)
        size = min(1000, few.total // 2)
        chosen = {"metrics": "fid,kid,prdc", "kid_subset_size": size}
        here, there = (metrics_of(compute(situation, few, device, **chosen)) for device in ("cpu", situation.device))
        for name, value in here.items():
            difference = relative_difference(there[name], value)
            findings.verdict(
                f"{name} compared with the CPU",
                difference <= ALLOWED,
                f"{there[name]:.7g}, on the CPU {value:.7g}, relative difference {difference:.1e}, limit {ALLOWED:g}",
            )


# Other tools


def peers(situation: Situation, findings: Findings) -> None:
    """Run other FID tools on the same images and device."""
    count = 2 if situation.small else 1000
    sets = write_sets(situation.folder / "peers", count, 256, ("jpg", "jpg"))
    home = situation.folder / "torch-home"
    subprocess.run([sys.executable, _PEERS, "weights", str(home)], check=True, capture_output=True)
    ours, seconds = _own_run(situation, sets)
    findings.measured("fidtool", f"{sets.total / seconds:,.0f} images/s, FID {ours:.6f}", seconds=seconds, fid=ours)
    # The others' matrix square roots take up to 20 s each on the CPU.
    for name in ["torchmetrics"] if situation.small else PEERS:
        with findings.attempt(name):
            if importlib.util.find_spec(PEERS[name]) is None:
                raise Skipped("not installed")
            value, theirs = _peer_run(situation, sets, name, home)
            findings.measured(
                name,
                f"{sets.total / theirs:,.0f} images/s, FID {value:.6f}, relative difference "
                f"{relative_difference(ours, value):.1e}; fidtool is {theirs / seconds:.2f} times as fast",
                seconds=theirs,
                fid=value,
            )


def _timed(command: list[str], environment: dict[str, str] | None = None) -> tuple[str, float]:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode:
        raise RuntimeError(cause_in(done.stderr))
    return done.stdout, time.perf_counter() - started


def _own_run(situation: Situation, sets: ImageSets) -> tuple[float, float]:
    command = [sys.executable, "-m", "fidtool", "compute", str(sets.real), str(sets.fake), "--no-cache", "--json"]
    stdout, seconds = _timed([*command, "--quiet", "--device", situation.device])
    (value,) = json.loads(stdout)["results"][0]["metrics"].values()
    return float(value), seconds


def _peer_run(situation: Situation, sets: ImageSets, name: str, home: Path) -> tuple[float, float]:
    command = [sys.executable, _PEERS, "fid", name, str(sets.real), str(sets.fake), "--device", situation.device]
    command += ["--batch-size", str(min(64, sets.total // 2)), "--num-workers", str(min(8, _cores()))]
    stdout, seconds = _timed(command, {"TORCH_HOME": str(home)})
    (line,) = (line for line in stdout.splitlines() if line.startswith("FID:"))
    return float(line.split()[1]), seconds
