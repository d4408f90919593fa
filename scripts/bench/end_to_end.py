"""Whole runs of fidtool and of its peers on the same pictures, and what the hardware allows. Imports no torch."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from bench_output import mib, relative_difference, table
from bench_pictures import PictureSets
from bench_process import Measured, measure
from PIL import Image

SCRIPTS = Path(__file__).resolve().parent
IDLE_CORES = 0.2
"""Times are doubtful where the rest of the machine kept more cores busy than this."""
PEERS = {"pytorch-fid": "pytorch_fid", "torch-fidelity": "torch_fidelity", "torchmetrics": "torchmetrics"}
PEERS["clean-fid"] = "cleanfid"
"""Modules by the tools' names."""
OURS = "fidtool"


def fidtool_command(sets: PictureSets, *options: str) -> list[str]:
    """``fidtool compute`` on both sets, without the cache."""
    folders = [str(sets.real), str(sets.fake)]
    return [sys.executable, "-m", "fidtool", "compute", *folders, "--no-cache", "--json", "--quiet", *options]


def fidtool_fid(stdout: str) -> float:
    """The one number asked for: the FID, or the Fréchet distance of another network."""
    (value,) = json.loads(stdout)["results"][0]["metrics"].values()
    return float(value)


def _peer_fid(stdout: str) -> float:
    (line,) = (line for line in stdout.splitlines() if line.startswith("FID:"))
    return float(line.split()[1])


@dataclass
class Contender:
    """A tool with its settings, and its runs so far."""

    name: str
    command: list[str]
    read_fid: Callable[[str], float]
    environment: dict[str, str] = field(default_factory=dict)
    runs: list[Measured] = field(default_factory=list)

    def run(self) -> None:
        """Once more."""
        self.runs.append(measure(self.command, self.environment))
        click.echo(f"  {self.name}: {self.runs[-1].seconds:.1f} s", err=True)

    @property
    def tool(self) -> str:
        """Its name without the settings."""
        return self.name.partition(",")[0]

    @property
    def seconds(self) -> float:
        """The median of its runs."""
        return statistics.median(run.seconds for run in self.runs)

    @property
    def fids(self) -> list[float]:
        """What each run gave."""
        return [self.read_fid(run.stdout) for run in self.runs]

    def to_dict(self, images: int) -> dict[str, Any]:
        """The measurements for the JSON."""
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
    sets: PictureSets, device: str, precisions: Sequence[str], compiled: bool, ranks: Sequence[int]
) -> list[Contender]:
    """fidtool with its defaults first, then in other precisions, compiled, and under torchrun."""
    base = ["--device", device]
    found = [Contender(OURS, fidtool_command(sets, *base), fidtool_fid)]
    for precision in precisions:
        if precision != "fp32":
            command = fidtool_command(sets, *base, "--precision", precision)
            found.append(Contender(f"{OURS}, {precision}", command, fidtool_fid))
    if compiled:
        found.append(Contender(f"{OURS}, --compile", fidtool_command(sets, *base, "--compile"), fidtool_fid))
    for number in ranks:
        python, *rest = fidtool_command(sets, *base)
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}", *rest]
        found.append(Contender(f"{OURS}, torchrun, {number} ranks", torchrun, fidtool_fid))
    return found


def peers(
    names: Sequence[str], sets: PictureSets, device: str, workers: Sequence[int], batch_size: int, torch_home: str
) -> list[Contender]:
    """Each peer that is installed, with each number of workers; pictures of mixed sizes go one by one."""
    size = batch_size if _of_one_size(sets) else 1
    found = []
    for name in names:
        if find_spec(PEERS[name]) is None:
            click.echo(f"{name} is not installed: left out", err=True)
            continue
        program = [sys.executable, str(SCRIPTS / "bench_peers.py"), name, str(sets.real), str(sets.fake)]
        program += ["--device", device, "--batch-size", str(size), "--num-workers"]
        home = {"TORCH_HOME": torch_home}
        found += [Contender(f"{name}, {n} workers", [*program, str(n)], _peer_fid, home) for n in workers]
    return found


def _of_one_size(sets: PictureSets) -> bool:
    sizes = set()
    for folder in (sets.real, sets.fake):
        for file in folder.iterdir():
            with Image.open(file) as picture:
                sizes.add(picture.size)
    return len(sizes) == 1


def race(
    contenders: list[Contender], repeats: int, limit: Callable[[], dict[str, Any]]
) -> tuple[list[Contender], list[dict[str, Any]]]:
    """Runs all in turn, there and back; of a peer with several settings the better one goes on after the first round.

    Args:
        contenders: the tools.
        repeats: rounds.
        limit: what the hardware allows, which is asked before each round and after the last.

    Returns:
        Those that ran to the end, and the limits.
    """
    allowed = [limit()]
    for repeat in range(repeats):
        # There and back, so that a machine that slows down as it warms up favours nobody.
        for contender in contenders if repeat % 2 == 0 else list(reversed(contenders)):
            contender.run()
        allowed.append(limit())
        if repeat == 0 and repeats > 1:
            best = {each.tool: each for each in sorted(contenders, key=lambda each: -each.seconds)}
            contenders = [each for each in contenders if each.tool == OURS or best[each.tool] is each]
    return contenders, allowed


def limits(sets: PictureSets, device: str, precisions: Sequence[str], seconds: float) -> dict[str, Any]:
    """What the hardware allows, see `bench_limits`."""
    program = [sys.executable, str(SCRIPTS / "bench_limits.py"), str(sets.real), str(sets.fake), "--device", device]
    program += ["--seconds", str(seconds)]
    chosen = [word for precision in precisions for word in ("--precision", precision)]
    found: dict[str, Any] = json.loads(measure([*program, *chosen]).stdout)
    return found


def compared(contenders: Sequence[Contender], images: int, allowed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Prints the table and the ratios.

    Args:
        contenders: those that ran, fidtool's first.
        images: in both sets.
        allowed: the limits, as often as they were measured.
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
        rows.append([contender.name, *numbers, *memory, f"{entry['fid']:.6f}", _difference(entry, contender is ours)])
    heads = ("tool", "seconds", "images/s", "fidtool's gain", "MiB process", "MiB tree", "MiB GPU", "FID", "differs by")
    table(heads, rows)
    for entry in tools:
        if (entry["others_busy_cores"] or 0.0) > IDLE_CORES:
            click.echo(f"NOT IDLE: {entry['others_busy_cores']:.1f} cores worked for others beside {entry['tool']}")
    # Their phases, batch sizes and threads.
    runs = {each.name: json.loads(each.runs[0].stdout)["run"] for each in contenders if each.tool == OURS}
    for contender in contenders:
        if contender.name in runs:
            _print_phases(contender, runs[contender.name])
    results = {"images": images, "tools": tools, "limits": list(allowed), "fidtool_runs": runs}
    results["share_of_limits"] = _print_limits(tools, allowed)
    best = min((each for each in contenders if each.tool != OURS), key=lambda each: each.seconds, default=None)
    if best is not None:
        results |= {"best_peer": best.name, "speed_ratio": best.seconds / ours.seconds}
        click.echo(f"{OURS} : the best peer ({best.name}) = {results['speed_ratio']:.2f} : 1 in images/s")
    return results


def _difference(entry: dict[str, Any], is_ours: bool) -> str:
    return "" if is_ours else f"{entry['fidtool_relative_difference']:.1e}"


def _print_phases(ours: Contender, run: dict[str, Any]) -> None:
    rest = ours.runs[0].seconds - run["seconds"]["total"]
    phases = {"start, report and end": rest, **run["seconds"]}
    click.echo(
        f"seconds of the first run of {ours.name}: "
        + ", ".join(f"{name} {value:.2f}" for name, value in phases.items())
    )
    parts = ", ".join(f"{name} {value:.2f}" for name, value in run["extraction"].items())
    click.echo(f"of extract, side by side: {parts}")


def _print_limits(tools: Sequence[dict[str, Any]], allowed: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The limits, and which share of them each of fidtool's runs reached: of the network's, and of the slower one."""
    network = {name: statistics.median(each["network"][name] for each in allowed) for name in allowed[0]["network"]}
    decode = statistics.median(each["decode"] for each in allowed)
    rates = ", ".join(f"{name} {rate:.2f}" for name, rate in network.items())
    click.echo(f"limits: network alone {rates} images/s, decoding alone on all cores {decode:.1f} images/s,")
    copies = ", ".join(f"{name} {rate:.1f} GB/s" for name, rate in allowed[0]["copy_gigabytes"].items())
    click.echo(f"        float32 matrix product {allowed[0]['matmul_gflops']:.0f} GFLOP/s, copies: {copies}")
    shares = {}
    for entry in tools:
        tool, _, setting = entry["tool"].partition(", ")
        if tool == OURS:
            own = network.get(setting, network["fp32"])
            slower = "decoding" if decode < own else "network"
            rate = entry["images_per_second"]
            shares[entry["tool"]] = {"of_network": rate / own, "of_slower": rate / min(own, decode)}
            click.echo(
                f"{entry['tool']}: {rate / own:.1%} of the network's limit and {rate / min(own, decode):.1%} of the "
                f"slower one's ({slower}), start and end included"
            )
    return shares


def draw(file: Path, results: dict[str, Any], title: str) -> None:
    """A bar for each tool, with the network's limit.

    Raises:
        click.ClickException: matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise click.ClickException("--plot needs matplotlib, which fidtool[report] brings") from None
    tools = results["tools"][::-1]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.4 * len(tools)), layout="constrained")
    colours = ["tab:blue" if tool["tool"].startswith(OURS) else "tab:gray" for tool in tools]
    axes.barh([tool["tool"] for tool in tools], [tool["images_per_second"] for tool in tools], color=colours)
    for precision, rate in results["limits"][0]["network"].items():
        axes.axvline(rate, linestyle="--", color="black", linewidth=1)
        axes.text(rate, len(tools) - 0.5, f"network alone, {precision}", ha="right", va="bottom", fontsize=8)
    axes.set_xlabel("images/s, whole runs")
    axes.set_title(title, pad=18)
    figure.savefig(file)
