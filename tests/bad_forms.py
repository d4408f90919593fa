"""Files that are damaged or hostile, and what must be said of each."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from source_forms import names_in, pixels_in, write_parquet, write_tar, write_zip

GIB = 1 << 30


class Evil:
    """Whoever unpickles it leaves a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["FIDTOOL_TEST_TRACE"],)


def pixels(place: Path) -> NDArray[np.uint8]:
    return pixels_in(place / "images")


def zipped(place: Path, name: str = "bad.zip", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A good archive's bytes."""
    write_zip(place / name, place / "images", names_in(place / "images"), method)
    return (place / name).read_bytes()


def tarred(place: Path, name: str = "bad.tar", mode: str = "w") -> bytes:
    write_tar(place / name, place / "images", names_in(place / "images"), mode)
    return (place / name).read_bytes()


def encrypted(data: bytes) -> bytes:
    """The same with every member marked as encrypted."""
    bits = bytearray(data)
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            bits[at + offset] |= 1
    return bytes(bits)


def of_method(data: bytes, method: int) -> bytes:
    bits = bytearray(data)
    for signature, offset in ((b"PK\1\2", 10), (b"PK\3\4", 8)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            bits[at + offset : at + offset + 2] = struct.pack("<H", method)
    return bytes(bits)


def twice_zip(place: Path) -> None:
    with zipfile.ZipFile(place / "bad.zip", "w") as archive:
        archive.write(place / "images/000.png", "a.png")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.write(place / "images/000.png", "a.png")


def twice_tar(place: Path) -> None:
    with tarfile.open(place / "bad.tar", "w") as archive:
        for _ in range(3):
            archive.add(place / "images/000.png", "a.png")


def sparse(file: Path, size: int, head: bytes = b"") -> None:
    with open(file, "wb") as handle:
        handle.write(head)
        handle.truncate(size)


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def claimed_safetensors(shape: list[int], end: int) -> bytes:
    header = f'{{"x":{{"dtype":"U8","shape":{shape},"data_offsets":[0,{end}]}}}}'.encode()
    return struct.pack("<Q", len(header)) + header


Make = Callable[[Path], object]
REFUSED: dict[str, tuple[str, Make, list[str]]] = {
    "an encrypted zip": (
        "bad.zip",
        lambda p: (p / "bad.zip").write_bytes(encrypted(zipped(p))),
        ["encrypted", "password"],
    ),
    "a zip cut off": ("bad.zip", lambda p: (p / "bad.zip").write_bytes(zipped(p)[:-40]), ["damaged or cut off"]),
    "a zip without its beginning": ("bad.zip", lambda p: (p / "bad.zip").write_bytes(zipped(p)[900:]), ["damaged"]),
    "a zip of a rare method": ("bad.zip", lambda p: (p / "bad.zip").write_bytes(of_method(zipped(p), 14)), ["lzma"]),
    "a name twice in a zip": ("bad.zip", twice_zip, ["2 members named a.png"]),
    "an empty zip": ("bad.zip", lambda p: zipfile.ZipFile(p / "bad.zip", "w").close(), ["no images", "empty"]),
    "a zip that is none": ("bad.zip", lambda p: (p / "bad.zip").write_text("<html>"), ["not a zip file"]),
    "10 GiB of holes as a zip": ("bad.zip", lambda p: sparse(p / "bad.zip", 10 * GIB), ["not a zip file"]),
    "a name twice in a tar": ("bad.tar", twice_tar, ["3 members named a.png"]),
    "a tar cut off in a member": ("bad.tar", lambda p: (p / "bad.tar").write_bytes(tarred(p)[:3000]), ["cut off"]),
    "a tar cut off between members": (
        "bad.tar",
        lambda p: (p / "bad.tar").write_bytes(tarred(p).rstrip(b"\0") + b"\0" * (-len(tarred(p).rstrip(b"\0")) % 512)),
        ["cut off", "end mark"],
    ),
    "a tar damaged in the middle": (
        "bad.tar",
        lambda p: (p / "bad.tar").write_bytes(damaged_header(tarred(p))),
        ["damaged", "no tar at byte"],
    ),
    "two tars joined by cat": ("bad.tar", lambda p: (p / "bad.tar").write_bytes(2 * tarred(p)), ["joined"]),
    "an empty tar": ("bad.tar", lambda p: tarfile.open(p / "bad.tar", "w").close(), ["no images", "empty"]),
    "no bytes as a tar": ("bad.tar", lambda p: (p / "bad.tar").touch(), ["bad.tar"]),
    "a tar that is none": ("bad.tar", lambda p: (p / "bad.tar").write_text("<html>" * 200), ["bad.tar"]),
    "10 GiB of holes as a tar": ("bad.tar", lambda p: sparse(p / "bad.tar", 10 * GIB), ["no images", "empty"]),
    "a tar.gz cut off": (
        "bad.tar.gz",
        lambda p: (p / "bad.tar.gz").write_bytes(tarred(p, "bad.tar.gz", "w:gz")[:-100]),
        ["damaged or cut off"],
    ),
    "a tar.gz with another checksum": (
        "bad.tar.gz",
        lambda p: (p / "bad.tar.gz").write_bytes(tarred(p, "bad.tar.gz", "w:gz")[:-8] + b"\1" * 8),
        ["CRC"],
    ),
    "10 GiB of zeros as a tar.gz": (
        "bad.tar.gz",
        lambda p: (p / "bad.tar.gz").write_bytes(gzip.compress(bytes(1 << 22)) * 2560),
        ["no images"],
    ),
    "pickled objects in an npz": (
        "bad.npz",
        lambda p: np.savez(p / "bad.npz", np.array([Evil()] * 3, dtype=object)),
        ["pickled", "never loaded"],
    ),
    "pickled objects in an npy": (
        "bad.npy",
        lambda p: np.save(p / "bad.npy", np.array([Evil()] * 3, dtype=object), allow_pickle=True),
        ["pickled", "never loaded"],
    ),
    "a pickle as an npy": ("bad.npy", lambda p: (p / "bad.npy").write_bytes(pickle.dumps(Evil())), ["bad.npy"]),
    "a pickle as a pt": ("bad.pt", lambda p: (p / "bad.pt").write_bytes(pickle.dumps(Evil())), ["torch.save"]),
    "objects in a pt": ("bad.pt", lambda p: torch.save([Evil()], p / "bad.pt"), ["posix.mkdir", "can run code"]),
    "a list of tensors in a pt": ("bad.pt", lambda p: torch.save([torch.zeros(3)], p / "bad.pt"), ["a list"]),
    "a program as a pt": (
        "bad.pt",
        lambda p: torch.jit.save(torch.jit.script(torch.nn.Identity()), p / "bad.pt"),
        ["a program"],
    ),
    "Fortran order": ("bad.npy", lambda p: np.save(p / "bad.npy", np.asfortranarray(pixels(p))), ["Fortran order"]),
    "Fortran order in an npz": (
        "bad.npz",
        lambda p: np.savez_compressed(p / "bad.npz", np.asfortranarray(pixels(p))),
        ["Fortran order"],
    ),
    "integers of 8 bytes": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p).astype(int)), ["int64", "uint8"]),
    "big-endian integers": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p).astype(">u2")), ["uint16", "uint8"]),
    "floats without a range": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p) / 255), ["float64", "--value-r"]),
    "halves without a range": (
        "bad.pt",
        lambda p: torch.save(torch.zeros(4, 8, 8, 3, dtype=torch.bfloat16), p / "bad.pt"),
        ["float32", "--value-range"],
    ),
    "an ambiguous shape": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((9, 3, 8, 3), "u1")), ["NHWC or NCHW"]),
    "a single image": ("bad.npy", lambda p: np.save(p / "bad.npy", pixels(p)[0]), ["array[None]"]),
    "five channels": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((9, 8, 8, 5), "u1")), ["1, 3 or 4"]),
    "no images": ("bad.npy", lambda p: np.save(p / "bad.npy", np.zeros((0, 8, 8, 3), "u1")), ["no images"]),
    "an npy cut off": ("bad.npy", lambda p: (p / "bad.npy").write_bytes(npy_header((9, 8, 8, 3))), ["cut off"]),
    "an npz of no images": ("bad.npz", lambda p: np.savez(p / "bad.npz", labels=np.arange(9)), ["no mu", "labels"]),
    "an npz of two": (
        "bad.npz",
        lambda p: np.savez(p / "bad.npz", a=pixels(p), b=pixels(p)),
        ["bad.npz:NAME", "a (uint8", "b (uint8"],
    ),
    "an npz cut off": ("bad.npz", lambda p: (p / "bad.npz").write_bytes(saved(p)[:5000]), ["bad.npz"]),
    "safetensors cut off": ("bad.safetensors", lambda p: (p / "bad.safetensors").write_bytes(b"\x30"), ["damaged"]),
    "safetensors that say too much": (
        "bad.safetensors",
        lambda p: (p / "bad.safetensors").write_bytes(claimed_safetensors([9, 8, 8, 3], 9 * 192)),
        ["cut off"],
    ),
    "safetensors that contradict themselves": (
        "bad.safetensors",
        lambda p: (p / "bad.safetensors").write_bytes(claimed_safetensors([9, 8, 8, 3], 5)),
        ["damaged", "5 bytes"],
    ),
    "a Parquet file cut off": ("bad.parquet", lambda p: (p / "bad.parquet").write_bytes(table(p)[:-9]), ["damaged"]),
    "an empty list": ("bad.txt", lambda p: (p / "bad.txt").write_text("\n\n"), ["names no image"]),
    "a list with a line twice": (
        "bad.txt",
        lambda p: (p / "bad.txt").write_text("images/000.png\n" * 2),
        ["images/000.png 2 times"],
    ),
    "a list that is an image": ("bad.txt", lambda p: (p / "bad.txt").write_bytes(b"\x89PNG\0\0"), ["no list of paths"]),
    "10 GiB of holes as a list": ("bad.txt", lambda p: sparse(p / "bad.txt", 10 * GIB), ["no list of paths"]),
}


def damaged_header(data: bytes) -> bytes:
    """Of the third member: tarfile by itself would take it for the end."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        offset = archive.getmembers()[2].offset
    return data[:offset] + b"?" * 512 + data[offset + 512 :]


def saved(place: Path) -> bytes:
    np.savez(place / "bad.npz", pixels(place))
    return (place / "bad.npz").read_bytes()


def table(place: Path) -> bytes:
    write_parquet(place / "bad.parquet", place / "images", names_in(place / "images"))
    return (place / "bad.parquet").read_bytes()
