"""Functions that damage files or write hostile ones."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.source_forms import names_in, pixels_in, write_parquet, write_tar, write_zip

GIB = 1 << 30


class Evil:
    """An object that leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["FIDTOOL_TEST_TRACE"],)


def pixels(place: Path) -> NDArray[np.uint8]:
    return pixels_in(place / "images")


def zipped(place: Path, name: str = "bad.zip", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return the bytes of a valid archive."""
    write_zip(place / name, place / "images", names_in(place / "images"), method)
    return (place / name).read_bytes()


def tarred(place: Path, name: str = "bad.tar", mode: str = "w") -> bytes:
    write_tar(place / name, place / "images", names_in(place / "images"), mode)
    return (place / name).read_bytes()


def encrypted(data: bytes) -> bytes:
    """Mark every member of an archive as encrypted."""
    bits = bytearray(data)
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            bits[at + offset] |= 1
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


def npy_header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def claimed_safetensors(shape: list[int], end: int) -> bytes:
    header = f'{{"x":{{"dtype":"U8","shape":{shape},"data_offsets":[0,{end}]}}}}'.encode()
    return struct.pack("<Q", len(header)) + header


def tar_offset(place: Path, number: int) -> int:
    """Return the offset of a member's header in the tar archive."""
    with tarfile.open(place / "bad.tar") as archive:
        return archive.getmembers()[number].offset


def claimed_tar(place: Path, kind: bytes, size: int) -> bytes:
    """Return an archive whose second member claims a size."""
    first = tarred(place)[: tar_offset(place, 1)]
    info = tarfile.TarInfo("b.png")
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (size + (128 << 88)).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return first + bytes(header) + bytes(1024)


def with_path(place: Path, path: str, size: str = "") -> bytes:
    """Return an archive of one member whose extended header contains a path or a size."""
    with tarfile.open(place / "bad.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = archive.gettarinfo(place / "images/000.png", "a.png")
        info.pax_headers = {"path": path, **({"size": size} if size else {})}
        archive.addfile(info, open(place / "images/000.png", "rb"))  # noqa: SIM115
    return (place / "bad.tar").read_bytes()


def jumping_tar(place: Path) -> None:
    """Write an archive in which the size of the second member, in its extended header, leads back
    to the first.
    """
    first = with_path(place, "a.png").rstrip(b"\0")
    first += bytes(-len(first) % 512)
    (place / "bad.tar").write_bytes(first + with_path(place, "b.png", str(-len(first) - 1536)))


def torch_saved(place: Path) -> bytes:
    torch.save(torch.from_numpy(pixels(place)), place / "bad.pt")
    return (place / "bad.pt").read_bytes()


def reaching_pt(place: Path) -> None:
    """Write a tensor whose strides point to memory before its storage."""
    stride, negative = struct.pack("<cH", b"M", 24 * 3), struct.pack("<ci", b"J", -24 * 3)
    with (
        zipfile.ZipFile(io.BytesIO(torch_saved(place))) as good,
        zipfile.ZipFile(place / "bad.pt", "w") as bad,
    ):
        for info in good.infolist():
            data = good.read(info)
            assert not info.filename.endswith("data.pkl") or stride in data or b"KH" in data
            bad.writestr(
                info.filename,
                data.replace(b"KH", negative) if info.filename.endswith(".pkl") else data,
            )


def overwritten(data: bytes, part: bytes) -> bytes:
    """Flip the last bits of a part of the data."""
    at = data.index(part) + len(part) - 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damaged_header(data: bytes) -> bytes:
    """Damage the header of the third member, which tarfile alone would take for the end of the
    archive.
    """
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        offset = archive.getmembers()[2].offset
    return data[:offset] + b"?" * 512 + data[offset + 512 :]


def saved(place: Path) -> bytes:
    np.savez(place / "bad.npz", pixels(place))
    return (place / "bad.npz").read_bytes()


def paths_table(place: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"image": names_in(place / "images")}), place / "bad.parquet")


def table(place: Path) -> bytes:
    write_parquet(place / "bad.parquet", place / "images", names_in(place / "images"))
    return (place / "bad.parquet").read_bytes()


def write_claimed(file: Path, shape: tuple[int, ...]) -> None:
    """Write a compressed array of a few bytes that claims a shape."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", npy_header(shape) + bytes(9000))


def write_members(file: Path, names: Sequence[str]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")


def endless_pt(place: Path) -> None:
    """Write a dict whose key is a tuple of two tuples and so on, 45 levels deep, each written
    once.
    """
    key = b")" + b"2\x86" * 45
    with (
        zipfile.ZipFile(io.BytesIO(torch_saved(place))) as good,
        zipfile.ZipFile(place / "bad.pt", "w") as bad,
    ):
        for info in good.infolist():
            pickled = info.filename.endswith(".pkl")
            bad.writestr(
                info.filename, b"\x80\x02}" + key + b"K\x01s." if pickled else good.read(info)
            )
