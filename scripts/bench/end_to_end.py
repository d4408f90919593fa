"""Whole runs of fidtool and of other tools on the same images, and what the hardware allows."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from PIL import Image

from bench.images import ImageSets, Recipe, existing_sets, image_sets
from bench.process import Measured, measure, other_version
from bench.report import (
    AGAINST,
    PRECISIONS,
    TargetFile,
    header,
    json_option,
    mib,
    publish,
    relative_difference,
    table,
)

HERE = Path(__file__).resolve().parent
IDLE_CORES = 0.2
"""Times are not reliable if other processes kept more cores busy than this."""
PEERS = {
    "pytorch-fid": "pytorch_fid",
    "torch-fidelity": "torch_fidelity",
    "torchmetrics": "torchmetrics",
    "clean-fid": "cleanfid",
}
"""Names of the other tools, with their modules."""
OURS = "fidtool"


@click.command("end-to-end")
@click.option("--count", type=click.IntRange(8), default=1000, help="Images in both sets together.")
@click.option(
    "--side",
    type=click.IntRange(0),
    default=256,
    help="Width and height of the images; 0: mixed sizes.",
)
@click.option(
    "--format",
    "suffix",
    type=click.Choice(["jpg", "png", "webp"]),
    default="jpg",
    help="Image format.",
)
@click.option(
    "--sets",
    nargs=2,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use the images in these two folders instead of generated ones.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Generate the images in this folder, and keep them for later runs.",
)
@click.option("--device", help="cpu, cuda or cuda:1, for all tools.  [default: chosen by fidtool]")
@click.option(
    "--tool",
    "tools",
    type=click.Choice([*PEERS, "none"]),
    multiple=True,
    default=tuple(PEERS),
    help="Other tools to run; none: fidtool only. Repeatable.",
)
@click.option(
    "--num-workers",
    type=click.IntRange(0),
    multiple=True,
    default=(0, 2),
    help="Workers of the other tools. Repeatable.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=50,
    help="Batch size of the other tools; 1 for mixed sizes.",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(PRECISIONS),
    multiple=True,
    default=("fp32",),
    help="Precisions of fidtool in addition to fp32. Repeatable.",
)
@click.option("--against", type=click.Path(exists=True, path_type=Path), help=AGAINST)
@click.option(
    "--ranks",
    type=click.IntRange(2),
    multiple=True,
    help="Also run fidtool with torchrun. Repeatable.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=1,
    help="Runs of each tool; median times are reported.",
)
@click.option(
    "--limit-seconds",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    help="Duration of each measurement of the hardware, before and after the runs.",
)
@click.option("--plot", type=TargetFile(), help="Write a bar chart of the speeds.")
@json_option
def end_to_end(
    count: int,
    side: int,
    suffix: str,
    sets: tuple[Path, Path] | None,
    folder: Path | None,
    device: str | None,
    tools: tuple[str, ...],
    num_workers: tuple[int, ...],
    batch_size: int,
    precisions: tuple[str, ...],
    against: Path | None,
    ranks: tuple[int, ...],
    repeats: int,
    limit_seconds: float,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    """Whole runs of fidtool and of other FID tools.

    Also measures what the hardware allows, and the share of it that fidtool reaches. fidtool runs
    with its defaults and without its cache. The other tools run with each value of --num-workers;
    after the first round only with the faster one. Times are of whole processes including start-up,
    with all files in the page cache.
    """
    if sets and folder:
        raise click.UsageError(
            "--folder generates images, and --sets uses existing ones: pass only one of them"
        )
    precisions = tuple(dict.fromkeys(("fp32", *precisions)))
    recipe = Recipe(count // 2, side, suffix)
    title = f"{sets[0]} against {sets[1]}" if sets else str(recipe)
    machine = header(device, f"end to end: {title}, {repeats} run(s) each")
    with (
        existing_sets(*sets) if sets else image_sets(folder, recipe) as images,
        tempfile.TemporaryDirectory(prefix="fidtool-bench-") as torch_home,
        tempfile.TemporaryDirectory(prefix="fidtool-bench-") as unpacked,
    ):
        measure([sys.executable, str(HERE / "peers.py"), "weights", torch_home])
        contenders = our_contenders(images, machine.device, precisions, ranks)
        if against is not None:
            command, variables = contenders[0].command, other_version(against, Path(unpacked))
            # In another folder, because the current one comes first on Python's path.
            contenders.insert(
                1, Contender(f"{OURS}, other version", command, fidtool_fid, variables, unpacked)
            )
        chosen = [tool for tool in tools if tool != "none"]
        contenders += peers(chosen, images, machine.device, num_workers, batch_size, torch_home)
        _warm_up(images)
        limit = partial(limits, images, machine.device, precisions, limit_seconds)
        contenders, allowed = race(contenders, repeats, limit)
    results = compared(contenders, images.total, allowed)
    settings = {
        "pictures": title,
        "batch_size": batch_size,
        "repeats": repeats,
        "num_workers": list(num_workers),
    }
    publish(json_file, machine, "end-to-end", settings, results)
    if plot is not None:
        draw(plot, results, f"{title}\n{machine.device_name}, {machine.cores} cores")


def _warm_up(sets: ImageSets) -> None:
    """Load the images and the libraries into the page cache, so that the first run is not
    slower.
    """
    for file in (*sets.real.iterdir(), *sets.fake.iterdir()):
        file.read_bytes()
    measure([sys.executable, "-c", "import fidtool.api, torchvision, scipy.linalg"])


def fidtool_command(sets: ImageSets, *options: str) -> list[str]:
    """Return the command ``fidtool compute`` on both sets, without the cache."""
    folders = [str(sets.real), str(sets.fake)]
    return [
        sys.executable,
        "-m",
        "fidtool",
        "compute",
        *folders,
        "--no-cache",
        "--json",
        "--quiet",
        *options,
    ]


def fidtool_fid(stdout: str) -> float:
    """Return the only metric in fidtool's JSON: the FID, or the Fréchet distance of another
    network.
    """
    (value,) = json.loads(stdout)["results"][0]["metrics"].values()
    return float(value)


def _peer_fid(stdout: str) -> float:
    (line,) = (line for line in stdout.splitlines() if line.startswith("FID:"))
    return float(line.split()[1])


@dataclass
class Contender:
    """A tool with its settings, and its runs so far.

    Attributes:
        name: name of the tool, a comma, and its settings.
        command: program and arguments.
        read_fid: finds the FID in the command's stdout.
        environment: environment variables to add.
        folder: current folder of the process; None is that of the benchmark.
        runs: finished runs.
    """

    name: str
    command: list[str]
    read_fid: Callable[[str], float]
    environment: dict[str, str] = field(default_factory=dict)
    folder: str | None = None
    runs: list[Measured] = field(default_factory=list)

    def run(self) -> None:
        """Run the command and append the result to ``runs``."""
        self.runs.append(measure(self.command, self.environment, folder=self.folder))
        click.echo(f"  {self.name}: {self.runs[-1].seconds:.1f} s", err=True)

    @property
    def tool(self) -> str:
        """Name without the settings."""
        return self.name.partition(",")[0]

    @property
    def seconds(self) -> float:
        """Median time of the runs."""
        return statistics.median(run.seconds for run in self.runs)

    @property
    def fids(self) -> list[float]:
        """FID of each run."""
        return [self.read_fid(run.stdout) for run in self.runs]

    def to_dict(self, images: int) -> dict[str, Any]:
        """Return the measurements for the JSON output.

        Args:
            images: number of images in both sets.
        """
        others = [run.others_busy_cores for run in self.runs if run.others_busy_cores is not None]
        trees = [run.peak_tree_bytes for run in self.runs if run.peak_tree_bytes is not None]
        devices = [run.peak_device_bytes for run in self.runs if run.peak_device_bytes is not None]
        return {
            "tool": self.name,
            "seconds": [run.seconds for run in self.runs],
            "median_seconds": self.seconds,
            "images_per_second": images / self.seconds,
            "cpu_seconds": [run.cpu_seconds for run in self.runs],
            "others_busy_cores": max(others, default=None),
            "peak_process_bytes": max(run.peak_process_bytes for run in self.runs),
            "peak_tree_bytes": max(trees, default=None),
            "peak_device_bytes": max(devices, default=None),
            "fid": self.fids[0],
            "same_fid_each_run": len(set(self.fids)) == 1,
        }


def our_contenders(
    sets: ImageSets, device: str, precisions: Sequence[str], ranks: Sequence[int]
) -> list[Contender]:
    """Return fidtool with its defaults, then in other precisions, and started by torchrun."""
    base = ["--device", device]
    found = [Contender(OURS, fidtool_command(sets, *base), fidtool_fid)]
    for precision in precisions:
        if precision != "fp32":
            command = fidtool_command(sets, *base, "--precision", precision)
            found.append(Contender(f"{OURS}, {precision}", command, fidtool_fid))
    for number in ranks:
        python, *rest = fidtool_command(sets, *base)
        torchrun = [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={number}",
            *rest,
        ]
        found.append(Contender(f"{OURS}, torchrun, {number} ranks", torchrun, fidtool_fid))
    return found


def peers(
    names: Sequence[str],
    sets: ImageSets,
    device: str,
    workers: Sequence[int],
    batch_size: int,
    torch_home: str,
) -> list[Contender]:
    """Return each other tool that is installed, once per number of workers. Mixed sizes need
    batches of one image.
    """
    size = batch_size if _of_one_size(sets) else 1
    found = []
    for name in names:
        if find_spec(PEERS[name]) is None:
            click.echo(f"{name} is not installed, and is skipped", err=True)
            continue
        program = [
            sys.executable,
            str(HERE / "peers.py"),
            "fid",
            name,
            str(sets.real),
            str(sets.fake),
        ]
        program += ["--device", device, "--batch-size", str(size), "--num-workers"]
        home = {"TORCH_HOME": torch_home}
        found += [
            Contender(f"{name}, {n} workers", [*program, str(n)], _peer_fid, home) for n in workers
        ]
    return found


def _of_one_size(sets: ImageSets) -> bool:
    sizes = set()
    for folder in (sets.real, sets.fake):
        for file in folder.iterdir():
            with Image.open(file) as image:
                sizes.add(image.size)
    return len(sizes) == 1


def race(
    contenders: list[Contender], repeats: int, limit: Callable[[], dict[str, Any]]
) -> tuple[list[Contender], list[dict[str, Any]]]:
    """Run all contenders in turn. After the first round, only the fastest setting of each other
    tool continues.

    Args:
        contenders: the tools.
        repeats: number of rounds.
        limit: measures what the hardware allows; called before each round and after the last.

    Returns:
        The contenders that ran in all rounds, and the limits.
    """
    allowed = [limit()]
    for repeat in range(repeats):
        # The order reverses each round, so that a machine that slows down as it warms up favours no
        # tool.
        for contender in contenders if repeat % 2 == 0 else list(reversed(contenders)):
            contender.run()
        allowed.append(limit())
        if repeat == 0 and repeats > 1:
            best = {each.tool: each for each in sorted(contenders, key=lambda each: -each.seconds)}
            contenders = [
                each for each in contenders if each.tool == OURS or best[each.tool] is each
            ]
    return contenders, allowed


def limits(
    sets: ImageSets, device: str, precisions: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Measure what the hardware allows: see ``limits`` of `bench.programs`."""
    program = [
        sys.executable,
        str(HERE / "programs.py"),
        "limits",
        str(sets.real),
        str(sets.fake),
        "--device",
        device,
    ]
    program += ["--seconds", str(seconds)]
    chosen = [word for precision in precisions for word in ("--precision", precision)]
    found: dict[str, Any] = json.loads(measure([*program, *chosen]).stdout)
    return found


def compared(
    contenders: Sequence[Contender], images: int, allowed: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Print the table and the ratios, and return the results.

    Args:
        contenders: tools that ran; the first is fidtool with its defaults.
        images: number of images in both sets.
        allowed: measurements of the limits.
    """
    ours = contenders[0]
    tools, rows = [], []
    for contender in contenders:
        entry = contender.to_dict(images)
        entry["fidtool_relative_difference"] = relative_difference(ours.fids[0], entry["fid"])
        entry["fidtool_is_faster_by"] = contender.seconds / ours.seconds
        tools.append(entry)
        numbers = [f"{entry['median_seconds']:.1f}", f"{entry['images_per_second']:.2f}"]
        numbers += [f"{entry['fidtool_is_faster_by']:.2f}"]
        memory = [mib(entry[f"peak_{part}_bytes"]) for part in ("process", "tree", "device")]
        differs = "" if contender is ours else f"{entry['fidtool_relative_difference']:.1e}"
        rows.append([contender.name, *numbers, *memory, f"{entry['fid']:.6f}", differs])
    heads = (
        "tool",
        "seconds",
        "images/s",
        "fidtool's gain",
        "MiB process",
        "MiB tree",
        "MiB GPU",
        "FID",
        "difference",
    )
    table(heads, rows)
    for entry in tools:
        if (entry["others_busy_cores"] or 0.0) > IDLE_CORES:
            click.echo(
                f"NOT IDLE: other processes kept {entry['others_busy_cores']:.1f} cores busy "
                f"during {entry['tool']}"
            )
    # The run records of fidtool: phases, batch sizes and threads.
    runs = {
        each.name: json.loads(each.runs[0].stdout)["run"]
        for each in contenders
        if each.tool == OURS
    }
    for contender in contenders:
        if contender.name in runs:
            _print_phases(contender, runs[contender.name])
    results = {"images": images, "tools": tools, "limits": list(allowed), "fidtool_runs": runs}
    results["share_of_limits"] = _print_limits(tools, allowed)
    best = min(
        (each for each in contenders if each.tool != OURS),
        key=lambda each: each.seconds,
        default=None,
    )
    if best is not None:
        results |= {"best_peer": best.name, "speed_ratio": best.seconds / ours.seconds}
        click.echo(
            f"{OURS} is {results['speed_ratio']:.2f} times as fast as the fastest other tool "
            f"({best.name})"
        )
    return results


def _print_phases(ours: Contender, run: dict[str, Any]) -> None:
    rest = ours.runs[0].seconds - run["seconds"]["total"]
    phases = {"start, report and exit": rest, **run["seconds"]}
    click.echo(
        f"seconds of the first run of {ours.name}: "
        + ", ".join(f"{name} {value:.2f}" for name, value in phases.items())
    )
    parts = ", ".join(f"{name} {value:.2f}" for name, value in run["extraction"].items())
    click.echo(f"parts of extract, which overlap: {parts}")


def _print_limits(
    tools: Sequence[dict[str, Any]], allowed: Sequence[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Print the limits, and the share that each run of fidtool reached: of the network's, and of
    the lowest limit.
    """
    network = {
        name: statistics.median(each["network"][name] for each in allowed)
        for name in allowed[0]["network"]
    }
    decode = statistics.median(each["decode"] for each in allowed)
    rates = ", ".join(f"{name} {rate:.2f}" for name, rate in network.items())
    click.echo(
        f"limits: network alone {rates} images/s, decoding alone on all cores {decode:.1f} "
        "images/s,"
    )
    copies = ", ".join(
        f"{name} {rate:.1f} GB/s" for name, rate in allowed[0]["copy_gigabytes"].items()
    )
    click.echo(
        f"        float32 matrix product {allowed[0]['matmul_gflops']:.0f} GFLOP/s, copies: "
        f"{copies}"
    )
    shares = {}
    for entry in tools:
        tool, _, setting = entry["tool"].partition(", ")
        if tool == OURS:
            own = network.get(setting, network["fp32"])
            slower = "decoding" if decode < own else "network"
            rate = entry["images_per_second"]
            shares[entry["tool"]] = {"of_network": rate / own, "of_slower": rate / min(own, decode)}
            click.echo(
                f"{entry['tool']}: {rate / own:.1%} of the network's limit, "
                f"{rate / min(own, decode):.1%} of the lower limit ({slower}), including start "
                "and exit"
            )
    return shares


def draw(file: Path, results: dict[str, Any], title: str) -> None:
    """Draw one bar per tool, and the limit of the network.

    Raises:
        click.ClickException: if matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise click.ClickException("--plot needs matplotlib: install fidtool[report]") from None
    tools = results["tools"][::-1]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.4 * len(tools)), layout="constrained")
    colours = ["tab:blue" if tool["tool"].startswith(OURS) else "tab:gray" for tool in tools]
    axes.barh(
        [tool["tool"] for tool in tools],
        [tool["images_per_second"] for tool in tools],
        color=colours,
    )
    for precision, rate in results["limits"][0]["network"].items():
        axes.axvline(rate, linestyle="--", color="black", linewidth=1)
        axes.text(
            rate,
            len(tools) - 0.5,
            f"network alone, {precision}",
            ha="right",
            va="bottom",
            fontsize=8,
        )
    axes.set_xlabel("images/s, whole runs")
    axes.set_title(title, pad=18)
    figure.savefig(file)
