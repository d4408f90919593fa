"""Unusual image files: deep TIFFs, animations, orientations, and files that Pillow misreads."""

from __future__ import annotations

import io
import struct
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps, PngImagePlugin, features

from fidtool.reading.decode import DecodeError, DecodeOptions, decode
from fidtool.validation import MAX_PIXELS
from support.encoded import claim, encoded, noise, raw_tiff

DEEP = np.linspace(0, 65535, 40 * 50).astype(np.uint16).reshape(40, 50)
"""Values over the whole range of 16 bits."""

DEEP_RGB = np.stack([DEEP, DEEP[::-1], DEEP[:, ::-1]], axis=2)


def gray_tiff(
    order: str, zipped: bool, values: NDArray[Any] = DEEP, kind: str = "u2", **tags: int
) -> bytes:
    return raw_tiff(
        [values.astype(order + kind).tobytes()], order=order, zipped=zipped, bits=16, **tags
    )


def twelve_bits(zipped: bool) -> bytes:
    """Returns a TIFF with 12 bits per pixel: two pixels in three bytes."""
    first, second = (DEEP.astype(np.uint32) >> 4).reshape(-1, 2).T
    triples = (first << 12 | second).astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
    return raw_tiff([triples.tobytes()], zipped=zipped, bits=12)


GRAY = {
    "PNG": encoded(Image.fromarray(DEEP), "PNG"),
    **{
        f"{order} TIFF, zipped: {zipped}": gray_tiff(order, zipped)
        for order in "<>"
        for zipped in (False, True)
    },
    "plain 12-bit TIFF": twelve_bits(zipped=False),
    "zipped 12-bit TIFF": twelve_bits(zipped=True),
    "white-is-zero TIFF": gray_tiff("<", False, 65535 - DEEP, photometric=0),
    "JPEG 2000": encoded(Image.fromarray(DEEP), "JPEG2000") if features.check("jpg_2000") else b"",
    "PGM": b"P5 50 40 65535\n" + DEEP.astype(">u2").tobytes(),
    "PGM up to 1023": b"P5 50 40 1023\n" + (DEEP >> 6).astype(">u2").tobytes(),
    "PGM in digits": b"P2 50 40 65535\n" + " ".join(map(str, DEEP.ravel())).encode(),
}


@pytest.mark.parametrize("name", GRAY)
def test_deep_grayscale_keeps_its_high_bits(name: str) -> None:
    if not GRAY[name]:
        pytest.skip("this Pillow has been built without JPEG 2000")
    found = decode(GRAY[name])
    assert (found.properties.lossy, found.properties.alpha, found.properties.deep) == (
        False,
        False,
        True,
    )
    # Pillow scales 1023 to 65535 with different rounding.
    tolerance = 1 if "1023" in name else 0
    assert np.abs(found.pixels.astype(int) - (DEEP >> 8)[:, :, None]).max() <= tolerance


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["plain", "zipped", "zipped planes"])
def test_deep_colours_keep_their_high_bytes(order: str, kind: str) -> None:
    values = DEEP_RGB.astype(f"{order}u2")
    planes = (
        [values[:, :, channel].tobytes() for channel in range(3)]
        if "planes" in kind
        else [values.tobytes()]
    )
    tags = {
        "bits": [16] * 3,
        "photometric": 2,
        "channels": 3,
        "planar": 2 if "planes" in kind else 1,
    }
    found = decode(raw_tiff(planes, order=order, zipped="zipped" in kind, **tags))
    np.testing.assert_array_equal(found.pixels, DEEP_RGB >> 8)


MISREAD = {
    "planes of 16 bits": raw_tiff(
        [DEEP.tobytes()] * 3, bits=[16] * 3, photometric=2, channels=3, planar=2
    ),
    "a white-is-zero plane": raw_tiff(
        [DEEP.astype(np.uint8).tobytes()], bits=8, photometric=0, planar=2
    ),
    "zipped signed TIFF in foreign byte order": gray_tiff(">", True, kind="i2", format=2),
    "zipped floats in foreign byte order": raw_tiff(
        [DEEP.astype(">f4").tobytes()], order=">", zipped=True, bits=32, format=3
    ),
}
"""Files that Pillow 13 decodes to noise without an error."""


@pytest.mark.skipif(
    sys.byteorder != "little", reason="the test files assume a little-endian machine"
)
@pytest.mark.parametrize("name", MISREAD)
def test_files_that_pillow_misreads_are_refused(name: str) -> None:
    with pytest.raises(DecodeError, match="Pillow misreads"):
        decode(MISREAD[name])


FRAMES = [noise(seed=seed) for seed in range(3)]

ANIMATIONS = {
    "GIF": encoded(
        FRAMES[0].quantize(32),
        "GIF",
        save_all=True,
        append_images=[f.quantize(32) for f in FRAMES[1:]],
    ),
    **{
        kind: encoded(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:])
        for kind in ("PNG", "TIFF", "WEBP", "AVIF", "MPO")
        if kind != "AVIF" or features.check("avif")
    },
}


@pytest.mark.parametrize("kind", ANIMATIONS)
def test_the_first_frame_is_used_and_the_others_are_reported(kind: str) -> None:
    found = decode(ANIMATIONS[kind])
    np.testing.assert_array_equal(
        found.pixels, np.asarray(Image.open(io.BytesIO(ANIMATIONS[kind])).convert("RGB"))
    )
    # Its further frames are a camera's previews.
    assert found.properties.animated == (kind != "MPO")


def turned(orientation: object, kind: str, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(noise(), kind, exif=exif, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF"])
@pytest.mark.parametrize("orientation", [0, 1, 2, 6, 8, 9])
def test_an_orientation_is_reported_and_not_applied(kind: str, orientation: int) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has been built without AVIF")
    found, plain = decode(turned(orientation, kind)), decode(encoded(noise(), kind))
    np.testing.assert_array_equal(found.pixels, plain.pixels)
    assert (found.properties.rotated, plain.properties.rotated) == (2 <= orientation <= 8, False)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_pillow_rotates_a_tiff_itself(compression: str, orientation: int) -> None:
    expected = noise()
    expected.getexif()[0x0112] = orientation
    found = decode(turned(orientation, "TIFF", compression=compression))
    np.testing.assert_array_equal(found.pixels, np.asarray(ImageOps.exif_transpose(expected)))
    assert not found.properties.rotated


def test_an_orientation_in_xmp_is_reported() -> None:
    text = '<rdf:Description tiff:Orientation="6"/>'
    chunk = PngImagePlugin.PngInfo()
    chunk.add_itxt("XML:com.adobe.xmp", text)
    assert decode(encoded(noise(), "PNG", pnginfo=chunk)).properties.rotated
    assert decode(encoded(noise(), "WEBP", xmp=text.encode())).properties.rotated


@pytest.mark.parametrize("size", [(2**24 + 1, 1), (1, MAX_PIXELS)])
def test_a_side_too_long_for_pillow_is_a_decode_error(size: tuple[int, int]) -> None:
    """For some of these, Pillow raises a MemoryError although memory is sufficient."""
    with pytest.raises(
        DecodeError,
        match=f"{size[0]} x {size[1]} pixels; Pillow supports at most 16777216 per side",
    ):
        decode(claim(*size))


def test_the_limit_applies_to_images_inside_icons_too(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = encoded(noise(3, 80, 90), "PNG")
    icon = struct.pack("<3H4B2H2I", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(picture), 22) + picture
    assert decode(icon, DecodeOptions(max_pixels=80 * 90)).pixels.shape == (80, 90, 3)
    loaded: list[object] = []
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load_prepare", loaded.append)
    with pytest.raises(
        DecodeError, match=r"it has 7200 pixels, more than the limit of 7199 .*max_pixels"
    ):
        decode(icon, DecodeOptions(max_pixels=80 * 90 - 1))
    assert loaded == []


def test_a_program_is_not_an_image() -> None:
    with pytest.raises(DecodeError, match="EPS file"):
        decode(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nnewpath\nshowpage\n"
        )
