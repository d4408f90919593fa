"""Unusual but valid files."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from support.damage import pixels, zipped
from support.source_forms import names_in


def climbing_zip(place: Path) -> str:
    with zipfile.ZipFile(place / "odd.zip", "w") as archive:
        for name in names_in(place / "images"):
            archive.write(place / "images" / name, f"../../escaped/{name}")
    return "odd.zip"


def climbing_tar(place: Path) -> str:
    with tarfile.open(place / "odd.tar", "w") as archive:
        for name in names_in(place / "images"):
            member = tarfile.TarInfo(f"/escaped/../{name}")
            member.size = (place / "images" / name).stat().st_size
            archive.addfile(member, io.BytesIO((place / "images" / name).read_bytes()))
    return "odd.tar"


def linked_tar(place: Path) -> str:
    """Write an archive whose first image has a name without a suffix, and a hard and a symbolic link to it."""
    names = names_in(place / "images")
    with tarfile.open(place / "odd.tar", "w") as archive:
        archive.add(place / "images" / names[0], "blob")
        archive.add(place / "images" / names[1], "blobs/other")
        for name, kind, target in (("a.png", tarfile.LNKTYPE, "blob"), ("x/b.png", tarfile.SYMTYPE, "../blobs/other")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            archive.addfile(link)
        for name in names[2:]:
            archive.add(place / "images" / name, f"./{name}")
    return "odd.tar"


def prefixed_zip(place: Path) -> str:
    """Write a self-extracting archive, which starts with a program."""
    (place / "odd.zip").write_bytes(b"#!/bin/sh\n" * 50 + zipped(place, "plain.zip"))
    return "odd.zip"


def big_endian(place: Path) -> str:
    np.save(place / "odd.npy", (pixels(place) / 255).astype(">f4"))
    return "odd.npy"


def strided(place: Path) -> str:
    """Write every second image and column of a larger tensor; torch.save stores the whole tensor."""
    whole = torch.zeros(2 * len(names_in(place / "images")), 24, 48, 3, dtype=torch.uint8)
    whole[::2, :, ::2] = torch.from_numpy(pixels(place))
    torch.save(whole[::2, :, ::2], place / "odd.pt")
    return "odd.pt"


def with_hidden_members(place: Path) -> str:
    with zipfile.ZipFile(place / "odd.zip", "w") as archive:
        for name in names_in(place / "images"):
            archive.write(place / "images" / name, name)
            archive.writestr(f"__MACOSX/._{name}", b"resource fork")
            archive.writestr(f".cache/{name}", b"hidden")
    return "odd.zip"


def with_long_fields(place: Path) -> str:
    """Write an archive like zipalign's, in which members start at page boundaries."""
    with zipfile.ZipFile(place / "odd.zip", "w") as archive:
        for name in names_in(place / "images"):
            info = zipfile.ZipInfo(name)
            info.extra = struct.pack("<HH", 0xD935, 60_000) + bytes(60_000)
            archive.writestr(info, (place / "images" / name).read_bytes())
    return "odd.zip"


def with_remains(place: Path) -> str:
    """Write an archive that still contains a deleted member between others."""
    with zipfile.ZipFile(place / "odd.zip", "w") as archive:
        for number, name in enumerate(names_in(place / "images")):
            archive.write(place / "images" / name, name)
            archive.writestr(f"gone{number}", bytes(300_000))
        archive.filelist = [info for info in archive.filelist if not info.filename.startswith("gone")]
    return "odd.zip"


def without_checksums(place: Path) -> str:
    import torch.serialization as serialization

    if not hasattr(serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")  # the setting exists since torch 2.6
    serialization.set_crc32_options(False)
    torch.save(torch.from_numpy(pixels(place)), place / "odd.pt")
    serialization.set_crc32_options(True)
    return "odd.pt"


def beside_a_number(place: Path) -> str:
    torch.save({"images": torch.from_numpy(pixels(place)), "step": torch.tensor(5)}, place / "odd.pt")
    return "odd.pt"


def numbered_tar(place: Path) -> str:
    """Write an archive whose names contain dots, but no samples of several images."""
    with tarfile.open(place / "odd.tar", "w") as archive:
        for number, name in enumerate(names_in(place / "images")):
            archive.add(place / "images" / name, f"{'cat' if number % 2 else 'dog'}.{number // 2}.png")
    return "odd.tar"


def picked_of_a_zip(place: Path) -> str:
    with zipfile.ZipFile(place / "odd.zip", "w") as archive:
        for number, name in enumerate(names_in(place / "images")):
            archive.write(place / "images" / name, f"{number:03}.output.png")
            archive.writestr(f"{number:03}.input.png", b"no image")
    return "odd.zip:output.png"


RIGHT = (
    *(climbing_zip, climbing_tar, linked_tar, prefixed_zip, big_endian, strided, with_hidden_members),
    *(with_long_fields, with_remains, without_checksums, beside_a_number, picked_of_a_zip),
)
