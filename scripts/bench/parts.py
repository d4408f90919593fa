"""Single parts of a run, measured in this process: the commands ``distance``, ``decoders`` and ``profile``.

torch and fidtool are imported inside the functions, because the other commands must not import them in this process.
"""

from __future__ import annotations

import importlib
import io
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.images import ImageSets, Recipe, image_sets
from bench.report import header, json_option, publish, relative_difference, table

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
Gaussian = tuple[NDArray[np.float64], NDArray[np.float64]]
Pixels = NDArray[np.uint8]
_SHOWN = 8
"""Operations in the table of `profile`."""


@click.command()
@click.option("--dims", type=click.IntRange(2), default=2048, help="Dimensions of the features.")
@click.option("--samples", type=click.IntRange(3), default=6000, help="Feature vectors behind each covariance.")
@click.option("--repeats", type=click.IntRange(1), default=3, help="Runs of each; median times are reported.")
@json_option
def distance(dims: int, samples: int, repeats: int, json_file: Path | None) -> None:
    """Speed of the Fréchet distance, compared with pytorch-fid.

    Both get the same full-rank covariances. pytorch-fid uses SciPy's sqrtm.
    """
    if samples <= dims:
        raise click.UsageError(f"--samples must be more than --dims ({dims}), or the covariances are singular")
    machine = header("cpu", f"distance: D = {dims}, {samples} samples, {repeats} run(s) each")
    results = compare_distances(dims, samples, repeats)
    rows = []
    for tool in results["tools"]:
        numbers = [f"{tool['median_seconds']:.3f}", f"{tool['busy_cores']:.1f}"]
        rows.append([tool["tool"], *numbers, repr(tool["distance"])])
    table(("tool", "seconds", "busy cores", "distance"), rows)
    ours, theirs = results["tools"]
    results["speed_ratio"] = theirs["median_seconds"] / ours["median_seconds"]
    results["relative_difference"] = relative_difference(ours["distance"], theirs["distance"])
    click.echo(
        f"fidtool ({results['fidtool_threads']} threads) is {results['speed_ratio']:.2f} times as fast as pytorch-fid; "
        f"relative difference of the values: {results['relative_difference']:.1e}"
    )
    publish(json_file, machine, "distance", {"dims": dims, "samples": samples, "repeats": repeats}, results)


class Timed:
    """A function with its latest value, the wall times of its calls, and the number of cores that it kept busy."""

    def __init__(self, function: Callable[[], float]) -> None:
        self._function = function
        self.value = 0.0
        self.seconds: list[float] = []
        self._cpu_seconds = 0.0

    def run(self) -> None:
        """Call the function and record its time."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.value = self._function()
        self.seconds.append(time.perf_counter() - wall)
        self._cpu_seconds += time.process_time() - cpu

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements for the JSON output. ``busy_cores`` is processor time divided by wall time."""
        return {
            "seconds": self.seconds,
            "median_seconds": statistics.median(self.seconds),
            "busy_cores": self._cpu_seconds / sum(self.seconds),
            "distance": self.value,
        }


def compare_distances(dims: int, samples: int, repeats: int) -> dict[str, Any]:
    """Run both tools alternately, ``repeats`` times, on full-rank covariances.

    Returns:
        The measurements of each tool, and fidtool's number of threads. SciPy's BLAS chooses its own number of threads:
        see ``busy_cores``.
    """
    from fidtool.distances.frechet import frechet_distance
    from fidtool.distances.parallel import linear_algebra_threads

    peer = importlib.import_module("pytorch_fid.fid_score").calculate_frechet_distance
    real, fake = _gaussians(dims, samples)
    timed = {
        "fidtool": Timed(lambda: frechet_distance(*real, *fake, count1=samples, count2=samples)),
        "pytorch-fid": Timed(lambda: float(peer(*real, *fake))),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy deprecates sqrtm(disp=...)
        for _ in range(repeats):
            for contender in timed.values():
                contender.run()
    return {
        "tools": [{"tool": name, **contender.to_dict()} for name, contender in timed.items()],
        "fidtool_threads": linear_algebra_threads(),
    }


def _gaussians(dims: int, samples: int) -> tuple[Gaussian, Gaussian]:
    """Fit two Gaussians to samples whose spectrum decays from 1 to 1e-5, like that of features, on rotated axes."""
    rng = np.random.RandomState(0)
    spread = 10.0 ** np.linspace(0.0, -2.5, dims)
    axes, _ = np.linalg.qr(rng.standard_normal((dims, dims)))
    fitted = []
    for shift in (0.0, 0.02):
        points = (rng.standard_normal((samples, dims)) * spread) @ axes.T + shift
        fitted.append((points.mean(axis=0), np.cov(points, rowvar=False)))
        axes, _ = np.linalg.qr(axes + 0.3 * rng.standard_normal((dims, dims)) / dims**0.5)
    return fitted[0], fitted[1]


@click.command()
@click.option("--count", type=click.IntRange(2), default=100, help="Number of images.")
@click.option("--side", type=click.IntRange(0), default=256, help="Width and height of the images; 0: mixed sizes.")
@click.option("--format", "suffix", type=click.Choice(["jpg", "png", "webp"]), default="jpg", help="Image format.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=3.0, help="Duration of each measurement.")
@json_option
def decoders(count: int, side: int, suffix: str, seconds: float, json_file: Path | None) -> None:
    """Speed of Pillow and of other image decoders.

    Runs all decoders that are installed, and checks whether their pixels equal Pillow's.
    """
    recipe = Recipe(count, side, suffix)
    machine = header("cpu", f"decoders: {recipe}")
    with image_sets(None, recipe) as sets:
        results = compare_decoders(sets, seconds)
    table(("decoder", "ms per image", "threads", "processes", "Pillow's pixels"), _decoder_rows(results))
    publish(json_file, machine, "decoders", {"count": count, "side": side, "format": suffix}, results)


def _pillow(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _torchvision(data: bytes) -> Pixels:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    pixels: Pixels = decode_image(encoded, ImageReadMode.RGB).permute(1, 2, 0).contiguous().numpy()
    return pixels


def _opencv(data: bytes) -> Pixels:
    cv2 = importlib.import_module("cv2")
    pixels: Pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    return pixels


def _simplejpeg(data: bytes) -> Pixels:
    pixels: Pixels = importlib.import_module("simplejpeg").decode_jpeg(data)
    return pixels


def _imagecodecs(data: bytes) -> Pixels:
    pixels: Pixels = np.ascontiguousarray(importlib.import_module("imagecodecs").imread(data)[..., :3])
    return pixels


_DECODERS: dict[str, Callable[[bytes], Pixels]] = {
    "Pillow": _pillow,
    "torchvision.io": _torchvision,
    "opencv": _opencv,
    "simplejpeg": _simplejpeg,
    "imagecodecs": _imagecodecs,
}


def compare_decoders(sets: ImageSets, seconds: float) -> list[dict[str, Any]]:
    """Decode the images of a set with each decoder that is installed and supports their format.

    Returns:
        For each decoder: the milliseconds per image in one thread, the speed-up with one thread or one process per
        core, and the share of images whose pixels all equal Pillow's.
    """
    data = [file.read_bytes() for file in sorted(sets.real.iterdir())]
    expected = [_pillow(each) for each in data]
    found: list[dict[str, Any]] = []
    for name, decode in _DECODERS.items():
        try:
            equal = [np.array_equal(decode(each), pixels) for each, pixels in zip(data, expected, strict=True)]
        except Exception as error:  # not installed, or the format is not supported
            found.append({"decoder": name, "fails": f"{type(error).__name__}: {error}"[:80]})
            continue
        one = _rate(decode, data, seconds)
        spread = {
            kind: _spread(kind, decode, data, seconds) / one for kind in (ThreadPoolExecutor, ProcessPoolExecutor)
        }
        speed_ups = dict(zip(("threads", "processes"), spread.values(), strict=True))
        found.append({"decoder": name, "milliseconds": 1e3 / one, **speed_ups, "equal": float(np.mean(equal))})
    return found


def _decoder_rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for entry in found:
        if "fails" in entry:
            rows.append([entry["decoder"], entry["fails"], "", "", ""])
            continue
        speed_ups = [f"{entry[kind]:.2f}x" for kind in ("threads", "processes")]
        rows.append([entry["decoder"], f"{entry['milliseconds']:.2f}", *speed_ups, f"{entry['equal']:.0%}"])
    return rows


def _rate(decode: Callable[[bytes], Pixels], data: Sequence[bytes], seconds: float) -> float:
    """Return the images/s in the calling thread."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for each in data:
            decode(each)
        count += len(data)
    return count / (time.perf_counter() - started)


def _spread(kind: type[Executor], decode: Callable[[bytes], Pixels], data: Sequence[bytes], seconds: float) -> float:
    """Return the images/s with one thread or process per core."""
    cores = os.cpu_count() or 1
    with kind(cores) as pool:  # type: ignore[call-arg]
        return sum(pool.map(partial(_rate, decode, seconds=seconds), [data] * cores))


@click.command()
@click.option("--device", help="cpu, cuda or cuda:1.  [default: chosen by fidtool]")
@click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", help="As in `fidtool compute`.")
@click.option("--compile", "compiled", is_flag=True, help="As in `fidtool compute`.")
@click.option("--passes", type=click.IntRange(1), default=20, help="Number of batches to profile.")
@json_option
def profile(device: str | None, precision: str, compiled: bool, passes: int, json_file: Path | None) -> None:
    """Slowest operations of the Inception network.

    Measured with torch.profiler.
    """
    machine = header(device, f"profile: {passes} batches, {precision}{', compiled' if compiled else ''}")
    results = operations(machine.device, precision, compiled, passes)
    rows = []
    for each in results["operations"][:_SHOWN]:
        share = each["milliseconds"] / results["milliseconds"]
        rows.append([each["operation"], f"{share:.1%}", f"{each['milliseconds']:.2f}", f"{each['calls']:g}"])
    table(("operation", "share", "ms per batch", "calls per batch"), rows)
    rate = 1e3 * results["batch_size"] / results["milliseconds"]
    click.echo(
        f"{results['milliseconds']:.1f} ms per batch of {results['batch_size']}, one batch at a time: "
        f"{rate:.1f} images/s"
    )
    publish(json_file, machine, "profile", {"precision": precision, "compiled": compiled, "passes": passes}, results)


def operations(name: str, precision: str, compiled: bool, passes: int) -> dict[str, Any]:
    """Profile forward passes of full batches, one after the other, on tensors that are already on the device.

    Args:
        name: value of ``--device``.
        precision, compiled: as in `fidtool.compute`.
        passes: number of profiled passes, after two that are not profiled.

    Returns:
        ``batch_size``; ``milliseconds`` per batch; and ``operations``: for each its own milliseconds and its calls per
        batch, the longest first. On a GPU the operations are kernels.
    """
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    from fidtool.distributed.launch import Launch
    from fidtool.features.device import choose_device
    from fidtool.features.models.inception import Inception
    from fidtool.features.models.inception_weights import load_weights
    from fidtool.features.runner import Arithmetic, Runner
    from fidtool.features.torch_state import repeatable

    device = choose_device(name, Launch())
    place, size = device.torch_device, device.default_batch_size
    with repeatable(precision == "tf32"), torch.inference_mode():
        arithmetic = Arithmetic(precision, compiled, size)
        runner = Runner(Inception(load_weights(None, print).state), place, arithmetic, standard=True)
        x = torch.rand(size, 3, 299, 299, device=place).mul(2).sub(1).contiguous(memory_format=torch.channels_last)
        for _ in range(2):
            runner(x)
        cuda = place.type == "cuda"
        with profiler(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiled:
            for _ in range(passes):
                runner(x)
            if cuda:
                torch.cuda.synchronize()
    own = "self_device_time_total" if cuda else "self_cpu_time_total"
    found = [
        {"operation": each.key, "milliseconds": getattr(each, own) / 1e3 / passes, "calls": each.count / passes}
        for each in profiled.key_averages()
    ]
    found.sort(key=lambda each: -each["milliseconds"])
    whole = sum(each["milliseconds"] for each in found)
    return {"batch_size": size, "milliseconds": whole, "operations": [each for each in found if each["milliseconds"]]}
