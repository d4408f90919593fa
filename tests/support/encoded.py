"""Encoded images."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def noise(channels: int = 3, height: int = 23, width: int = 31, seed: int = 0) -> Image.Image:
    """Return uniform noise with 1 (L), 2 (LA), 3 (RGB) or 4 (RGBA) channels."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8))


def encoded(image: Image.Image | NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    """Encode an image or its pixels."""
    buffer = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(
        buffer, kind, **options
    )
    return buffer.getvalue()


def raw_tiff(
    planes: list[bytes], *, order: str = "<", zipped: bool = False, **tags: int | list[int]
) -> bytes:
    """Return a TIFF of 50 x 40 pixels; ``planes`` are its channels, or one plane of interleaved
    channels.
    """
    bodies = [zlib.compress(plane) for plane in planes] if zipped else planes
    starts = [8 + sum(map(len, bodies[:number])) for number in range(len(bodies))]
    fields: dict[int, int | list[int]] = {
        256: 50,
        257: 40,
        258: tags["bits"],
        259: 8 if zipped else 1,
    }
    fields |= {262: tags.get("photometric", 1), 273: starts, 277: tags.get("channels", 1), 278: 40}
    fields |= {
        279: [len(body) for body in bodies],
        284: tags.get("planar", 1),
        339: tags.get("format", 1),
    }
    entries, far, far_start = b"", b"", starts[-1] + len(bodies[-1])
    for tag, value in fields.items():
        values = value if isinstance(value, list) else [value]
        packed = struct.pack(f"{order}{len(values)}I", *values)
        if len(values) > 1:
            packed, far = struct.pack(f"{order}I", far_start + len(far)), far + packed
        entries += struct.pack(f"{order}HHI", tag, 4, len(values)) + packed
    header = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(
        f"{order}I", far_start + len(far)
    )
    return (
        header + b"".join(bodies) + far + struct.pack(f"{order}H", len(fields)) + entries + bytes(4)
    )


def exif_rotated() -> bytes:
    """Return a JPEG whose EXIF orientation is a rotation by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(noise(), "JPEG", exif=exif)


def animated() -> bytes:
    """Return a GIF of three different frames."""
    frames = [noise(seed=seed).quantize(32) for seed in range(3)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


def files() -> dict[str, bytes]:
    """Return one file of each common format and mode."""
    photo = noise()
    return {
        "PNG": encoded(photo, "PNG"),
        "grayscale PNG": encoded(noise(1), "PNG"),
        "1-bit PNG": encoded(noise(1).convert("1"), "PNG"),
        "palette PNG": encoded(photo.quantize(64), "PNG"),
        "palette PNG with transparency": encoded(photo.quantize(64), "PNG", transparency=3),
        "palette PNG with alphas": encoded(
            photo.quantize(64), "PNG", transparency=bytes(range(64))
        ),
        "RGBA PNG": encoded(noise(4), "PNG"),
        "LA PNG": encoded(noise(2), "PNG"),
        "transparent-colour PNG": encoded(photo, "PNG", transparency=photo.getpixel((3, 4))),
        "opaque RGB-and-A PNG": encoded(photo.convert("RGBA"), "PNG"),
        "opaque L-and-A PNG": encoded(noise(1).convert("LA"), "PNG"),
        "1-bit transparent-colour PNG": encoded(noise(1).convert("1"), "PNG", transparency=0),
        "grayscale transparent-colour PNG": encoded(
            noise(1), "PNG", transparency=noise(1).getpixel((3, 4))
        ),
        "PNG without a pixel of its key colour": encoded(photo, "PNG", transparency=(1, 2, 3)),
        "JPEG": encoded(photo, "JPEG", quality=90),
        "grayscale JPEG": encoded(noise(1), "JPEG"),
        "CMYK JPEG": encoded(photo.convert("CMYK"), "JPEG"),
        "progressive JPEG": encoded(photo, "JPEG", progressive=True, subsampling=2),
        "EXIF-rotated JPEG": exif_rotated(),
        "lossy WebP": encoded(photo, "WEBP", quality=70),
        "lossless WebP": encoded(photo, "WEBP", lossless=True),
        "RGBA WebP": encoded(noise(4), "WEBP", lossless=True, exact=True),
        "BMP": encoded(photo, "BMP"),
        "GIF": encoded(photo.quantize(32), "GIF"),
        "animated GIF": animated(),
        "PPM": encoded(photo, "PPM"),
        "PGM": encoded(noise(1), "PPM"),
        "TIFF": encoded(photo, "TIFF"),
        "LZW TIFF": encoded(photo, "TIFF", compression="tiff_lzw"),
        "JPEG TIFF": encoded(photo, "TIFF", compression="jpeg"),
        "CMYK TIFF": encoded(photo.convert("CMYK"), "TIFF"),
        "LAB TIFF": encoded(Image.frombytes("LAB", photo.size, photo.tobytes()), "TIFF"),
    }


FILES = files()


def tiff(values: NDArray[Any], extra: Sequence[int] = (), photometric: int = 2) -> bytes:
    """Return an uncompressed TIFF of any number of bands, shape (height, width, bands), which
    Pillow does not write.

    ``extra`` has 0 for each further band, 1 for premultiplied and 2 for other transparency.
    """
    height, width, bands = values.shape
    pixels = values.astype(values.dtype.newbyteorder("<")).tobytes()
    body, entries = struct.pack("<4sI", b"II*\0", 0) + pixels, b""
    tags = {
        **{
            256: [width],
            257: [height],
            258: [8 * values.itemsize] * bands,
            259: [1],
            262: [photometric],
            273: [8],
        },
        **{277: [bands], 278: [height], 279: [len(pixels)], 338: extra},
    }
    for tag, numbers in tags.items():
        place = struct.pack(f"<{len(numbers)}I", *numbers)
        if len(numbers) > 1:
            place, body = struct.pack("<I", len(body)), body + place
        entries += struct.pack("<HHI", tag, 4, len(numbers)) + place if numbers else b""
    directory = struct.pack("<H", len(entries) // 12) + entries + bytes(4)
    return body[:4] + struct.pack("<I", len(body)) + body[8:] + directory


def claim(width: int, height: int) -> bytes:
    """Return a short RGB PNG that claims this size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )
