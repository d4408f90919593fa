"""Damaged or hostile files, and what is said about those whose message is not in the goldens."""

from __future__ import annotations

import gzip
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from support.damage import (
    GIB,
    Evil,
    claimed_safetensors,
    claimed_tar,
    damaged_header,
    encrypted,
    endless_pt,
    jumping_tar,
    npy_header,
    overwritten,
    paths_table,
    pixels,
    reaching_pt,
    saved,
    sparse,
    table,
    tar_offset,
    tarred,
    torch_saved,
    twice_tar,
    twice_zip,
    write_claimed,
    write_members,
    zipped,
)

Make = Callable[[Path], object]


def make_bad(place: Path, name: str, make: Make) -> None:
    """Write a file of the tables below, whose makers write the file or return its contents."""
    if isinstance(data := make(place), bytes):
        (place / name).write_bytes(data)


PINNED: dict[str, tuple[str, Make]] = {
    "an encrypted zip": ("bad.zip", lambda p: encrypted(zipped(p))),
    "a name twice in a zip": ("bad.zip", twice_zip),
    "a zip of several images a sample": (
        "bad.zip",
        lambda p: write_members(
            p / "bad.zip", [f"{n}.{kind}.png" for n in range(20) for kind in ("x", "y")][:-1]
        ),
    ),
    "a zip of zips": ("bad.zip", lambda p: write_members(p / "bad.zip", ["a.zip"])),
    "an empty zip": ("bad.zip", lambda p: zipfile.ZipFile(p / "bad.zip", "w").close()),
    "a name twice in a tar": ("bad.tar", twice_tar),
    "a tar cut off between members": (
        "bad.tar",
        lambda p: tarred(p).rstrip(b"\0") + b"\0" * (-len(tarred(p).rstrip(b"\0")) % 512),
    ),
    "two tars joined by cat": ("bad.tar", lambda p: 2 * tarred(p)),
    "an empty tar": ("bad.tar", lambda p: tarfile.open(p / "bad.tar", "w").close()),
    "pickled objects in an npz": (
        "bad.npz",
        lambda p: np.savez(p / "bad.npz", np.array([Evil()] * 3, dtype=object)),
    ),
    "pickled objects in an npy": (
        "bad.npy",
        lambda p: np.save(p / "bad.npy", np.array([Evil()] * 3, dtype=object), allow_pickle=True),
    ),
    "a list of tensors in a pt": ("bad.pt", lambda p: torch.save([torch.zeros(3)], p / "bad.pt")),
    "Fortran order": ("bad.npy", lambda p: np.save(p / "bad.npy", np.asfortranarray(pixels(p)))),
    "integers of 8 bytes": (
        "bad.npy",
        lambda p: np.save(p / "bad.npy", pixels(p).astype(int) * 16),
    ),
    "floats without a range": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p) / 255)),
    "an ambiguous shape": (
        "bad.npy",
        lambda p: np.save(p / "bad.npy", np.zeros((9, 3, 8, 3), "u1")),
    ),
    "a single image": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p)[0])),
    "five channels": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((9, 8, 8, 5), "u1"))),
    "no images": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((0, 8, 8, 3), "u1"))),
    "an npz of no images": ("bad.npz", lambda p: np.savez(p / "bad.npz", labels=np.arange(9))),
    "an npz of two": ("bad.npz", lambda p: np.savez(p / "bad.npz", a=pixels(p), b=pixels(p))),
    "an npz cut off": ("bad.npz", lambda p: saved(p)[:5000]),
    "an empty list": ("bad.txt", lambda p: b"\n\n"),
    "a list with a line twice": ("bad.txt", lambda p: b"images/000.png\n" * 2),
    "a tar named zip": ("bad.zip", lambda p: tarred(p)),
    "a pattern of folders": ("imag*", lambda p: None),
}
"""Name and maker of each file whose message is in a golden."""

REFUSED: dict[str, tuple[str, Make, list[str]]] = {
    "a zip cut off": ("bad.zip", lambda p: zipped(p)[:-40], ["damaged or truncated"]),
    "a zip of a rare method": (
        "bad.zip",
        lambda p: zipped(p, method=zipfile.ZIP_LZMA),
        ["method 14"],
    ),
    "a tar cut off in a member": ("bad.tar", lambda p: tarred(p)[:3000], ["truncated"]),
    "a tar damaged in the middle": (
        "bad.tar",
        lambda p: damaged_header(tarred(p)),
        ["damaged", "zero bytes and nothing"],
    ),
    "a tar of which half was downloaded": (
        "bad.tar",
        lambda p: sparse(p / "bad.tar", 10 * GIB, tarred(p)[: tar_offset(p, 9)]),
        ["damaged or truncated", "zero bytes and nothing"],
    ),
    "a tar that jumps back": ("bad.tar", lambda p: jumping_tar(p), ["damaged"]),
    "a tar whose words fill the memory": (
        "bad.tar",
        lambda p: sparse(p / "bad.tar", 10 * GIB, claimed_tar(p, b"x", 8 * GIB)),
        ["damaged", f"size of {8 * GIB} bytes"],
    ),
    "a tar.gz cut off": (
        "bad.tar.gz",
        lambda p: tarred(p, "bad.tar.gz", "w:gz")[:-100],
        ["damaged or truncated"],
    ),
    "10 GiB of zeros as a tar.gz": (
        "bad.tar.gz",
        lambda p: gzip.compress(bytes(1 << 22)) * 2560,
        ["zero bytes and nothing"],
    ),
    "a pickle as a pt": ("bad.pt", lambda p: pickle.dumps(3), ["torch.save"]),
    "objects in a pt": (
        "bad.pt",
        lambda p: torch.save([Evil()], p / "bad.pt"),
        ["posix.mkdir", "can run code"],
    ),
    "a program as a pt": (
        "bad.pt",
        lambda p: torch.jit.save(torch.jit.script(torch.nn.Identity()), p / "bad.pt"),
        ["a TorchScript program"],
    ),
    "10 GiB of holes with a header of 3 GiB": (
        "bad.npy",
        lambda p: sparse(p / "bad.npy", 10 * GIB, b"\x93NUMPY\2\0" + struct.pack("<I", 3 * GIB)),
        ["header", f"{3 * GIB} bytes"],
    ),
    "a packed npz that claims more than it has": (
        "bad.npz",
        lambda p: write_claimed(p / "bad.npz", (10**12, 24, 32, 3)),
        ["truncated"],
    ),
    "a tensor that is repeated too often": (
        "bad.pt",
        lambda p: torch.save(
            torch.zeros(1, 8, 8, 3, dtype=torch.uint8).expand(10**12, 8, 8, 3), p / "bad.pt"
        ),
        ["contains 1000000000000 images"],
    ),
    "a pt that takes forever": (
        "bad.pt",
        lambda p: endless_pt(p),
        ["a dict with a key of type tuple"],
    ),
    "a tensor that reaches out of its storage": (
        "bad.pt",
        lambda p: reaching_pt(p),
        ["damaged", "negative offset"],
    ),
    "a pt whose words were damaged": (
        "bad.pt",
        lambda p: overwritten(torch_saved(p), b"ByteStorage"),
        ["bad.pt is damaged", "checksum"],
    ),
    "an npy cut off": ("bad.npy", lambda p: npy_header((9, 8, 8, 3)), ["truncated"]),
    "a table of paths": (
        "bad.parquet",
        lambda p: paths_table(p),
        ["image (string)", "none contains image bytes"],
    ),
    "safetensors that say too much": (
        "bad.safetensors",
        lambda p: claimed_safetensors([9, 8, 8, 3], 9 * 192),
        ["truncated"],
    ),
    "a Parquet file cut off": ("bad.parquet", lambda p: table(p)[:-9], ["damaged"]),
    "10 GiB of holes as an image": (
        "bad.txt",
        lambda p: (sparse(p / "bad.png", 10 * GIB), (p / "bad.txt").write_text("bad.png")),
        [f"bad.png: it has {10 * GIB} bytes"],
    ),
    "10 GiB of holes as a list": (
        "bad.txt",
        lambda p: sparse(p / "bad.txt", 10 * GIB),
        ["is not a list of paths"],
    ),
}
"""Name, maker and words of the message of further files."""
