"""Damaged files of every format give either an image within the limit or a `DecodeError`.

The slow test tries different files in each run; ``--hypothesis-seed`` repeats a run.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from fidtool.errors import render
from fidtool.reading.decode import DecodeError, DecodeOptions, decode
from support.encoded import FILES, encoded, noise
from support.places import CONFORMANCE

MAX_PIXELS = (4_000_000, 712)
"""Limits to choose from; the undamaged images have 713 pixels."""
HEADROOM = 64 * max(MAX_PIXELS) + 256 * 2**20
"""Bytes that decoding may allocate. JPEG 2000 needs most, 30 bytes per pixel; malloc reserves 64 MB
or more at once.
"""


def seeds() -> dict[str, bytes]:
    """Returns small valid files, so that damage mostly affects their structure."""
    photo, gray = noise(), noise(1)
    frames = {"save_all": True, "append_images": [noise(seed=1), noise(seed=2)]}
    made = dict(FILES)
    made |= {
        f"{kind} TIFF": encoded(photo, "TIFF", compression=kind)
        for kind in ("tiff_adobe_deflate", "packbits")
    }
    made |= {
        f"{kind} TIFF": encoded(gray.convert("1"), "TIFF", compression=kind)
        for kind in ("group3", "group4")
    }
    Image.init()
    # Not in all versions.
    others = {"TGA", "ICO", "ICNS", "PCX", "SGI", "DDS", "QOI"} & set(Image.SAVE)
    made |= {kind: encoded(photo, kind) for kind in others}
    made |= {
        f"moving {kind}": encoded(photo, kind, **frames) for kind in ("PNG", "WEBP", "TIFF", "MPO")
    }
    made |= {"RLE TGA": encoded(photo, "TGA", compression="tga_rle")}
    made |= {
        "16-bit PNG": encoded(
            Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 99), "PNG"
        )
    }
    if features.check("jpg_2000"):
        made |= {
            "JP2": encoded(photo, "JPEG2000"),
            "tiled JP2": encoded(noise(4), "JPEG2000", tile_size=(16, 16)),
        }
    if features.check("avif"):
        made |= {"AVIF": encoded(photo, "AVIF"), "moving AVIF": encoded(photo, "AVIF", **frames)}
    awkward = CONFORMANCE / "awkward"
    if awkward.is_dir():
        made |= {
            path.name: path.read_bytes()
            for path in awkward.iterdir()
            if 0 < path.stat().st_size < 10_000
        }
    return made


SEEDS = seeds()
HUGE = (
    0,
    1,
    2**7,
    2**8 - 1,
    2**14,
    2**15,
    2**16 - 1,
    2**16,
    2**20,
    2**24,
    2**28,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
PACKINGS = ("<H", ">H", "<I", ">I", ">Q", "<Q")


def with_right_checksums(data: bytes) -> bytes:
    """Corrects the checksums of a damaged PNG; other files are returned unchanged."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    fixed, position = bytearray(data), 8
    while position + 12 <= len(data):
        end = position + 8 + int.from_bytes(data[position : position + 4], "big")
        fixed[end : end + 4] = (
            struct.pack(">I", zlib.crc32(data[position + 4 : end])) if end + 4 <= len(data) else b""
        )
        position = end + 4
    return bytes(fixed)


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """Draws a variant of ``data`` with one defect."""
    size = len(data)
    # Damage headers often, because they cause the most varied errors, but not the signature in the
    # first bytes.
    place = min(
        size, draw(st.one_of(st.integers(0, size), st.integers(3, 300), st.integers(12, 64)))
    )
    kind = draw(
        st.sampled_from(["flip", "flip", "field", "field", "cut", "drop", "repeat", "splice"])
    )
    if kind == "flip":
        return data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
    if kind == "field":
        packing = draw(st.sampled_from(PACKINGS))
        field = struct.pack(packing, draw(st.sampled_from(HUGE)) % 256 ** struct.calcsize(packing))
        return data[:place] + field + data[place + len(field) :]
    if kind == "cut":
        return data[: draw(st.integers(1, size))]
    end = min(size, place + draw(st.integers(1, 200)))
    if kind == "drop":
        return data[:place] + data[end:]
    if kind == "repeat":
        return data[:end] + data[place:end] * draw(st.integers(1, 9)) + data[end:]
    other = SEEDS[draw(st.sampled_from(sorted(SEEDS)))]
    return data[:place] + other[min(place, len(other)) :]


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    data = SEEDS[draw(st.sampled_from(sorted(SEEDS)))]
    for _ in range(draw(st.integers(1, 4))):
        data = draw(damage(data)) or b"\0"
    return with_right_checksums(data) if draw(st.integers(0, 3)) else data


@contextmanager
def short_of_memory() -> Iterator[None]:
    """Limits memory to `HEADROOM` more than the process uses now; beyond this, a MemoryError is
    raised.
    """
    if not sys.platform.startswith("linux"):
        yield  # other systems do not report the memory of a process, or do not enforce the limit
        return
    import resource

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + HEADROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(data: bytes, max_pixels: int) -> str:
    """Decodes some bytes, and checks that the result is either an image within the limit or a
    `DecodeError`.
    """
    before = Image.MAX_IMAGE_PIXELS
    try:
        with short_of_memory():
            image = decode(data, DecodeOptions(max_pixels=max_pixels))
    except DecodeError as error:
        message = str(error)
        assert message.strip()
        assert render(message).isprintable(), message
        assert "memory" not in message, message  # C decoders report a lack of memory in this way
        return re.sub(r"\d+|b['\"].*", "#", message)
    finally:
        assert before == Image.MAX_IMAGE_PIXELS
    height, width, channels = image.pixels.shape
    assert (image.pixels.dtype, channels) == (np.uint8, 3)
    assert 0 < height * width <= max_pixels
    return "decoded"


@pytest.mark.parametrize("examples", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_files_give_an_image_or_a_decode_error(examples: int) -> None:
    """The fast test tries the same few files each time, the slow one many different ones."""
    seen: Counter[str] = Counter()

    @settings(max_examples=examples, derandomize=examples == 150, deadline=None, database=None)
    @given(damaged_files(), st.sampled_from(MAX_PIXELS))
    def attempt(data: bytes, max_pixels: int) -> None:
        seen[outcome(data, max_pixels)] += 1

    attempt()
    # Both outcomes must occur, otherwise the damage is too slight or too severe for a useful test.
    assert seen.total() // 40 < seen["decoded"] < seen.total() * 39 // 40
