"""The same pictures in every form that fidtool reads, and a server that has them, for the benchmarks."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
from PIL import Image

FOLDER = "folder"
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
_SHARDS = 4
_S3_SERVER = Path(__file__).with_name("s3_server.py")


def make_sources(folder: Path) -> dict[str, str]:
    """Writes the pictures of a folder in every form, next to it; the path of each."""
    import pyarrow
    from pyarrow import parquet

    place, files = folder.parent, sorted(folder.iterdir())
    for name, method in (("stored.zip", zipfile.ZIP_STORED), ("deflated.zip", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(place / name, "w", method) as archive:
            for file in files:
                archive.write(file, file.name)
    for name, mode in (("images.tar", "w"), ("images.tar.gz", "w:gz")):
        _write_tar(place / name, files, mode)
    for shard in range(_SHARDS):
        part = slice(len(files) * shard // _SHARDS, len(files) * (shard + 1) // _SHARDS)
        _write_tar(place / f"shard-{shard:03}.tar", files[part], "w")
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    np.savez(place / "images.npz", pixels)
    np.savez_compressed(place / "packed.npz", pixels)
    np.save(place / "images.npy", pixels)
    rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    parquet.write_table(pyarrow.table({"image": rows}), place / "images.parquet", row_group_size=100)
    (place / "images.txt").write_text("".join(f"{folder.name}/{file.name}\n" for file in files))
    names = ("stored.zip", "deflated.zip", "images.tar", "images.tar.gz", "images.npz", "packed.npz", "images.npy")
    found = {name: str(place / name) for name in (*names, "images.parquet", "images.txt")}
    return {FOLDER: str(folder), **found, "shards": str(place / f"shard-{{000..{_SHARDS - 1:03}}}.tar")}


def _write_tar(file: Path, files: list[Path], mode: str) -> None:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]
        for each in files:
            archive.add(each, each.name)


@contextlib.contextmanager
def s3_server(place: Path, folder: str) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """An S3-compatible server with all of a place in it: variables that lead there, and sources.

    Args:
        place: what is served.
        folder: the pictures in it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(_S3_SERVER), str(port), str(place)]
    environment = {**os.environ, **_CREDENTIALS}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    if not any(line == "ready\n" for line in server.stdout):
        raise click.ClickException("the S3 server did not start: is moto[server] installed?")
    try:
        sources = {f"s3 {name}": f"s3://bucket/{name}" for name in (f"{folder}/", "stored.zip", "images.tar.gz")}
        yield {**_CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}, sources
    finally:
        server.kill()
        server.wait()


def write_tiny(folder: Path, count: int) -> None:
    """Bitmaps of one pixel, 58 bytes each."""
    head = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\1\0\0\0\1\0\0\0\1\0\x18\0" + bytes(24)
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:08}.bmp").write_bytes(head + (number % 2**24).to_bytes(4, "little"))
