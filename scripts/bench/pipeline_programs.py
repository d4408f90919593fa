"""Programs that `bench.pipeline` runs in subprocesses: ``python scripts/bench/pipeline_programs.py
NAME …``.

Each prints JSON. They use only fidtool's public API, so that they also run with an earlier version
of it, which is selected through PYTHONPATH.
"""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image

_NETWORK = f"{Path(__file__).with_name('networks.py')}:pooled"
_DISTINCT = 64
"""Images in memory, which are repeated."""
_WARM_UP = 128


@click.group()
def cli() -> None:
    """Programs that the benchmark ``pipeline`` runs in subprocesses."""


def _report(**values: Any) -> None:
    import fidtool

    print(json.dumps({"fidtool": str(Path(fidtool.__file__).parent), **values}))


@cli.command()
def version() -> None:
    """Print only where fidtool is."""
    _report()


@cli.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--workers", type=int, default=1)
def pillow(folders: tuple[str, ...], workers: int) -> None:
    """Read and decode all images of FOLDERS with Pillow alone."""
    files = [str(file) for folder in folders for file in sorted(Path(folder).iterdir())]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.map(_decode, files[: 8 * workers], 1)
        started = time.perf_counter()
        for _ in pool.imap_unordered(_decode, files, 64):
            pass
        seconds = time.perf_counter() - started
    print(json.dumps({"images": len(files), "images_per_second": len(files) / seconds}))


def _decode(file: str) -> None:
    np.asarray(Image.open(io.BytesIO(Path(file).read_bytes())).convert("RGB"))


@cli.command()
@click.argument("real")
@click.argument("fake")
@click.option("--workers", type=int, default=1)
@click.option("--batch-size", type=int, default=64)
def extract(real: str, fake: str, workers: int, batch_size: int) -> None:
    """Extract the features of two folders with a network that costs next to nothing."""
    import fidtool

    def run(**settings: Any) -> Any:
        return fidtool.compute(
            real,
            fake,
            extractor=_NETWORK,
            device="cpu",
            num_workers=workers,
            batch_size=batch_size,
            cache=False,
            **settings,
        ).run

    import scipy.spatial  # noqa: F401  # not format_count: the diagnosis of large sets imports it, that of small ones not

    run(num=2)  # imports all else
    before = time.process_time()
    found = run()
    main_process = (time.process_time() - before) / found.images_computed
    _report(
        images_per_second=found.images_per_second,
        main_process=main_process,
        extraction=found.extraction,
        seconds=found.seconds,
    )


@cli.command()
@click.argument("form", type=click.Choice(["arrays", "batches", "encoded"]))
@click.argument("folder")
@click.option("--count", type=int, default=4000)
@click.option("--workers", type=int, default=1)
@click.option("--batch-size", type=int, default=64)
def iterable(form: str, folder: str, count: int, workers: int, batch_size: int) -> None:
    """Compute the statistics of COUNT images from an iterable, with the network that costs next to
    nothing.
    """
    import fidtool

    files = [file.read_bytes() for file in sorted(Path(folder).iterdir())[:_DISTINCT]]

    def seconds(number: int) -> float:
        started = time.perf_counter()
        fidtool.compute_statistics(
            _images(form, files, number),
            extractor=_NETWORK,
            device="cpu",
            num_workers=workers,
            batch_size=batch_size,
        )
        return time.perf_counter() - started

    seconds(_WARM_UP)
    _report(images_per_second=count / seconds(count))


def _images(form: str, files: list[bytes], count: int) -> Iterator[Any]:
    """Yield ``count`` images as files in memory, as uint8 arrays (height, width, 3), or in batches
    of tensors.
    """
    if form == "encoded":
        yield from itertools.islice(itertools.cycle(files), count)
        return
    arrays = [np.array(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]
    if form == "arrays":
        yield from itertools.islice(itertools.cycle(arrays), count)
        return
    import torch

    batch = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()
    for start in range(0, count, len(batch)):
        yield batch[: count - start]


@cli.command()
@click.argument("real")
@click.argument("fake")
@click.option("--subset-size", type=int, default=1000)
def metrics(real: str, fake: str, subset_size: int) -> None:
    """Compute FID, KID, precision etc. from two statistics files with features."""
    import fidtool

    found = fidtool.compute(
        real, fake, metrics=["fid", fidtool.KID(subset_size=subset_size), "prdc"], device="cpu"
    )
    _report(seconds=found.run.seconds, metrics=found.results[0].metrics)


if __name__ == "__main__":
    cli()
