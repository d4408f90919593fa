"""Images per second of Inception on a GPU: the command ``gpu``.

``python -m pytest -m gpu`` checks that the numbers of a GPU are right, and ``end-to-end --device
cuda`` measures whole runs together with the limits of the hardware.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from bench.process import measure
from bench.report import PRECISIONS, header, json_option, mib, publish, table

_PROGRAM = str(Path(__file__).with_name("programs.py"))


@click.command()
@click.option("--device", help="cuda, cuda:1 or cpu.  [default: the first CUDA device]")
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(PRECISIONS),
    multiple=True,
    default=PRECISIONS,
    help="Repeatable.",
)
@click.option(
    "--batch-size",
    "sizes",
    type=click.IntRange(1),
    multiple=True,
    default=(64, 128, 256),
    help="Repeatable.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    help="Duration of each measurement.",
)
@json_option
def gpu(
    device: str | None,
    precisions: tuple[str, ...],
    sizes: tuple[int, ...],
    seconds: float,
    json_file: Path | None,
) -> None:
    """Images/s of the network by precision and batch size, on tensors that are on the device.

    Each measurement is a process of its own, so that one that fails does not affect the others.
    """
    machine = header(device, f"gpu: Inception on tensors on the device, {seconds:g} s each")
    if device is None and machine.device == "cpu":
        raise click.ClickException(
            "torch finds no GPU on this machine: --device cpu tries the command"
        )
    results, rows = [], []
    for precision in precisions:
        for size in sizes:
            options = [
                "--device",
                machine.device,
                "--precision",
                precision,
                "--batch-size",
                str(size),
            ]
            entry = {
                "precision": precision,
                "batch_size": size,
                **_rate([*options, "--seconds", str(seconds)]),
            }
            results.append(entry)
            rows.append(
                [
                    precision,
                    str(size),
                    _shown(entry.get("images_per_second")),
                    mib(entry.get("peak_bytes")),
                ]
            )
            if "error" in entry:
                click.echo(f"{precision}, batches of {size}: {entry['error']}", err=True)
    table(("precision", "batch size", "images/s", "MiB on the GPU"), rows)
    settings = {"precisions": list(precisions), "batch_sizes": list(sizes), "seconds": seconds}
    publish(json_file, machine, "gpu", settings, results)
    sys.exit(1 if any("error" in entry for entry in results) else 0)


def _rate(options: list[str]) -> dict[str, Any]:
    """Return the images/s and the peak memory of the device in bytes, or the error."""
    try:
        measured = measure([sys.executable, _PROGRAM, "network", *options])
    except click.ClickException as error:  # for example, too little memory on the device
        return {"error": error.message.strip().splitlines()[-1]}
    return {**json.loads(measured.stdout), "peak_bytes": measured.peak_device_bytes}


def _shown(rate: float | str | None) -> str:
    return f"{rate:,.1f}" if isinstance(rate, float) else "failed"
