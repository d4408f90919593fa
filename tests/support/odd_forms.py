"""Unusual but valid files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from support.damage import pixels, zipped
from support.source_forms import names_in


def climbing_zip(place: Path) -> str:
    with zipfile.ZipFile(place / "odd.zip", "w") as archive:
        for name in names_in(place / "images"):
            archive.write(place / "images" / name, f"../../escaped/{name}")
    return "odd.zip"


def prefixed_zip(place: Path) -> str:
    """Write a self-extracting archive, which starts with a program."""
    (place / "odd.zip").write_bytes(b"#!/bin/sh\n" * 50 + zipped(place, "plain.zip"))
    return "odd.zip"


def big_endian(place: Path) -> str:
    np.save(place / "odd.npy", (pixels(place) / 255).astype(">f4"))
    return "odd.npy"


def strided(place: Path) -> str:
    """Write every second image and column of a larger tensor; torch.save stores the whole
    tensor.
    """
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


def picked_of_a_zip(place: Path) -> str:
    with zipfile.ZipFile(place / "odd.zip", "w") as archive:
        for number, name in enumerate(names_in(place / "images")):
            archive.write(place / "images" / name, f"{number:03}.output.png")
            archive.writestr(f"{number:03}.input.png", b"no image")
    return "odd.zip:output.png"


RIGHT = (climbing_zip, prefixed_zip, big_endian, strided, with_hidden_members, picked_of_a_zip)
