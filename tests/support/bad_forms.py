"""Damaged or hostile files, and the message expected for each."""

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
    beyond_zip,
    claimed_safetensors,
    claimed_tar,
    damaged_header,
    encrypted,
    endless_pt,
    jumping_tar,
    npy_header,
    of_method,
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
    with_path,
    write_claimed,
    write_members,
    zipped,
)

Make = Callable[[Path], object]
REFUSED: dict[str, tuple[str, Make, list[str]]] = {
    "an encrypted zip": (
        "bad.zip",
        lambda p: (p / "bad.zip").write_bytes(encrypted(zipped(p))),
        ["encrypted member", "decrypt"],
    ),
    "a zip cut off": ("bad.zip", lambda p: (p / "bad.zip").write_bytes(zipped(p)[:-40]), ["damaged or truncated"]),
    "a zip of a rare method": ("bad.zip", lambda p: (p / "bad.zip").write_bytes(of_method(zipped(p), 14)), ["lzma"]),
    "a name twice in a zip": ("bad.zip", twice_zip, ["2 members named a.png"]),
    "a name twice in a zip, by two spellings": (
        "bad.zip",
        lambda p: write_members(p / "bad.zip", ["a.png", "./a.png"]),
        ["2 members named a.png"],
    ),
    "a zip of members beyond any disk": ("bad.zip", lambda p: beyond_zip(p), ["damaged", "impossible size"]),
    "a zip of several images a sample": (
        "bad.zip",
        lambda p: write_members(p / "bad.zip", [f"{n}.{kind}.png" for n in range(20) for kind in ("x", "y")][:-1]),
        ["each sample in bad.zip has 2 images", "bad.zip:x.png"],
    ),
    "a zip of zips": ("bad.zip", lambda p: write_members(p / "bad.zip", ["a.zip"]), ["archives inside an archive"]),
    "an empty zip": ("bad.zip", lambda p: zipfile.ZipFile(p / "bad.zip", "w").close(), ["no images", "empty"]),
    "10 GiB of holes as a zip": ("bad.zip", lambda p: sparse(p / "bad.zip", 10 * GIB), ["not a zip file"]),
    "a name twice in a tar": ("bad.tar", twice_tar, ["3 members named a.png"]),
    "a tar cut off in a member": ("bad.tar", lambda p: (p / "bad.tar").write_bytes(tarred(p)[:3000]), ["truncated"]),
    "a tar cut off between members": (
        "bad.tar",
        lambda p: (p / "bad.tar").write_bytes(tarred(p).rstrip(b"\0") + b"\0" * (-len(tarred(p).rstrip(b"\0")) % 512)),
        ["truncated", "end mark"],
    ),
    "a tar damaged in the middle": (
        "bad.tar",
        lambda p: (p / "bad.tar").write_bytes(damaged_header(tarred(p))),
        ["damaged", "invalid header at byte"],
    ),
    "two tars joined by cat": ("bad.tar", lambda p: (p / "bad.tar").write_bytes(2 * tarred(p)), ["joined"]),
    "an empty tar": ("bad.tar", lambda p: tarfile.open(p / "bad.tar", "w").close(), ["no images", "empty"]),
    "no bytes as a tar": ("bad.tar", lambda p: (p / "bad.tar").touch(), ["bad.tar"]),
    "10 GiB of holes as a tar": ("bad.tar", lambda p: sparse(p / "bad.tar", 10 * GIB), ["zero bytes follow"]),
    "a tar of which half was downloaded": (
        "bad.tar",
        lambda p: sparse(p / "bad.tar", 10 * GIB, tarred(p)[: tar_offset(p, 9)]),
        ["damaged or truncated", "zero bytes follow"],
    ),
    "a tar of a negative size": (
        "bad.tar",
        lambda p: (p / "bad.tar").write_bytes(claimed_tar(p, b"0", -512)),
        ["damaged", "-512 bytes"],
    ),
    "a tar that jumps back": ("bad.tar", lambda p: jumping_tar(p), ["damaged"]),
    "a tar whose words fill the memory": (
        "bad.tar",
        lambda p: sparse(p / "bad.tar", 10 * GIB, claimed_tar(p, b"x", 8 * GIB)),
        ["damaged", f"size of {8 * GIB} bytes"],
    ),
    "a tar with a zero in a name": (
        "bad.tar",
        lambda p: (p / "bad.tar").write_bytes(with_path(p, "a\0b.png")),
        ["damaged", "contains a null character"],
    ),
    "a tar.gz cut off": (
        "bad.tar.gz",
        lambda p: (p / "bad.tar.gz").write_bytes(tarred(p, "bad.tar.gz", "w:gz")[:-100]),
        ["damaged or truncated"],
    ),
    "a tar.gz with another checksum": (
        "bad.tar.gz",
        lambda p: (p / "bad.tar.gz").write_bytes(tarred(p, "bad.tar.gz", "w:gz")[:-8] + b"\1" * 8),
        ["CRC"],
    ),
    "10 GiB of zeros as a tar.gz": (
        "bad.tar.gz",
        lambda p: (p / "bad.tar.gz").write_bytes(gzip.compress(bytes(1 << 22)) * 2560),
        ["zero bytes follow"],
    ),
    "pickled objects in an npz": (
        "bad.npz",
        lambda p: np.savez(p / "bad.npz", np.array([Evil()] * 3, dtype=object)),
        ["pickled", "not loaded"],
    ),
    "pickled objects in an npy": (
        "bad.npy",
        lambda p: np.save(p / "bad.npy", np.array([Evil()] * 3, dtype=object), allow_pickle=True),
        ["pickled", "not loaded"],
    ),
    "a pickle as an npy": ("bad.npy", lambda p: (p / "bad.npy").write_bytes(pickle.dumps(Evil())), ["bad.npy"]),
    "a pickle as a pt": ("bad.pt", lambda p: (p / "bad.pt").write_bytes(pickle.dumps(Evil())), ["torch.save"]),
    "objects in a pt": ("bad.pt", lambda p: torch.save([Evil()], p / "bad.pt"), ["posix.mkdir", "can run code"]),
    "a list of tensors in a pt": ("bad.pt", lambda p: torch.save([torch.zeros(3)], p / "bad.pt"), ["a list"]),
    "a program as a pt": (
        "bad.pt",
        lambda p: torch.jit.save(torch.jit.script(torch.nn.Identity()), p / "bad.pt"),
        ["a TorchScript program"],
    ),
    "Fortran order": ("bad.npy", lambda p: np.save(p / "bad.npy", np.asfortranarray(pixels(p))), ["Fortran order"]),
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
        lambda p: torch.save(torch.zeros(1, 8, 8, 3, dtype=torch.uint8).expand(10**12, 8, 8, 3), p / "bad.pt"),
        ["contains 1000000000000 images"],
    ),
    "a pt that takes forever": ("bad.pt", lambda p: endless_pt(p), ["a dict with a key of type tuple"]),
    "images on the fastest axis of a tensor": (
        "bad.pt",
        lambda p: torch.save(torch.zeros(5, 5, 3, 200, dtype=torch.uint8).permute(3, 0, 1, 2), p / "bad.pt"),
        ["permuted", ".contiguous()"],
    ),
    "a tensor that reaches out of its storage": (
        "bad.pt",
        lambda p: reaching_pt(p),
        ["damaged", "negative offset"],
    ),
    "a pt whose words were damaged": (
        "bad.pt",
        lambda p: (p / "bad.pt").write_bytes(overwritten(torch_saved(p), b"ByteStorage")),
        ["bad.pt is damaged", "checksum"],
    ),
    "a negative side": ("bad.npy", lambda p: (p / "bad.npy").write_bytes(npy_header((-9, 8, 8, 3))), ["no images"]),
    "integers of 8 bytes": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p).astype(int)), ["int64", "uint8"]),
    "big-endian integers": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p).astype(">u2")), ["uint16", "uint8"]),
    "floats without a range": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p) / 255), ["float64", "--value-r"]),
    "an ambiguous shape": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((9, 3, 8, 3), "u1")), ["NHWC or NCHW"]),
    "a single image": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p)[0]), ["array[None]"]),
    "five channels": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((9, 8, 8, 5), "u1")), ["1, 3 or 4"]),
    "no images": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((0, 8, 8, 3), "u1")), ["no images"]),
    "an npy cut off": ("bad.npy", lambda p: (p / "bad.npy").write_bytes(npy_header((9, 8, 8, 3))), ["truncated"]),
    "an npz of no images": ("bad.npz", lambda p: np.savez(p / "bad.npz", labels=np.arange(9)), ["no mu", "labels"]),
    "an npz of two": (
        "bad.npz",
        lambda p: np.savez(p / "bad.npz", a=pixels(p), b=pixels(p)),
        ["bad.npz:NAME", "a (uint8", "b (uint8"],
    ),
    "an npz cut off": (
        "bad.npz",
        lambda p: (p / "bad.npz").write_bytes(saved(p)[:5000]),
        ["error: bad.npz cannot be read: it is damaged or truncated; copy"],
    ),
    "a table of paths": ("bad.parquet", lambda p: paths_table(p), ["image (string)", "none contains image bytes"]),
    "safetensors cut off": ("bad.safetensors", lambda p: (p / "bad.safetensors").write_bytes(b"\x30"), ["damaged"]),
    "safetensors that say too much": (
        "bad.safetensors",
        lambda p: (p / "bad.safetensors").write_bytes(claimed_safetensors([9, 8, 8, 3], 9 * 192)),
        ["truncated"],
    ),
    "safetensors that contradict themselves": (
        "bad.safetensors",
        lambda p: (p / "bad.safetensors").write_bytes(claimed_safetensors([9, 8, 8, 3], 5)),
        ["damaged", "5 bytes"],
    ),
    "safetensors before their own beginning": (
        "bad.safetensors",
        lambda p: (p / "bad.safetensors").write_bytes(claimed_safetensors([1, 8, 8, 3], 100, -92) + bytes(200)),
        ["damaged"],
    ),
    "a Parquet file cut off": ("bad.parquet", lambda p: (p / "bad.parquet").write_bytes(table(p)[:-9]), ["damaged"]),
    "an empty list": ("bad.txt", lambda p: (p / "bad.txt").write_text("\n\n"), ["the list bad.txt is empty"]),
    "a list with a line twice": (
        "bad.txt",
        lambda p: (p / "bad.txt").write_text("images/000.png\n" * 2),
        ["images/000.png 2 times"],
    ),
    "a list with a file twice": (
        "bad.txt",
        lambda p: (p / "bad.txt").write_text(f"images/000.png\nimages/003.png\n{p}/images/../images/000.png\n"),
        ["images/000.png 2 times"],
    ),
    "a list of find -print0": ("bad.txt", lambda p: (p / "bad.txt").write_text("a.png\0b.png\0"), ["-print0"]),
    "a tar named zip": (
        "bad.zip",
        lambda p: (p / "bad.zip").write_bytes(tarred(p)),
        ["but is a tar archive: rename it"],
    ),
    "a pattern of folders": ("imag*", lambda p: None, ["matches a folder, images,"]),
    "10 GiB of holes as a list": ("bad.txt", lambda p: sparse(p / "bad.txt", 10 * GIB), ["is not a list of paths"]),
}
