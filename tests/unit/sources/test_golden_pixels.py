"""Goldens of decoded pixels: a change in decoding or rounding changes all metric values
slightly.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from support.goldens import Golden
from support.inside import bytes_of_floats, decoded, trained_on

GRAY = np.array([[0, 1, 127], [128, 254, 255]], np.uint8)
COLOURS = np.stack([GRAY, GRAY[::-1] // 3, GRAY[:, ::-1] // 2], 2)
ALPHA = np.array([[0, 255, 7], [200, 128, 255]], np.uint8)
DEEP = np.array([[0, 127, 128, 255, 256], [383, 384, 32768, 65407, 65535]], "<u2")
"""Includes the first and last values that share a high byte, and the values halfway between high
bytes.
"""


def image(mode: str, values: NDArray[Any]) -> Image.Image:
    """Returns an image of an array of shape (height, width, …); for mode 1, an array of ones and
    zeros.
    """
    data = np.packbits(values, axis=1) if mode == "1" else values
    made = Image.frombytes(mode, values.shape[1::-1], data.tobytes())
    if mode == "P":
        made.putpalette([10, 20, 30, 250, 0, 5, 7, 200, 100, 0, 0, 255])
    return made


def file(mode: str, values: NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    """Returns the same image as an encoded file."""
    buffer = io.BytesIO()
    image(mode, values).save(buffer, kind, **options)
    return buffer.getvalue()


def turned() -> Image.Exif:
    """Returns the EXIF data of a camera held upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def files() -> dict[str, bytes]:
    """Returns lossless files by description."""
    clear, inks = np.dstack([COLOURS, ALPHA]), np.dstack([COLOURS[::-1], ALPHA // 2])
    indices = GRAY % 4
    frames = {"save_all": True, "append_images": [image("P", indices[::-1])]}
    wholes = np.array([[-5, 0, 1], [254, 255, 300]])
    return {
        "RGB in PNG": file("RGB", COLOURS),
        "gray in PNG": file("L", GRAY),
        "gray and alpha in PNG": file("LA", np.dstack([GRAY, ALPHA])),
        "RGB and alpha in PNG": file("RGBA", clear),
        "RGB and full alpha in PNG": file("RGBA", clear | np.array([0, 0, 0, 255], np.uint8)),
        "RGB with a transparent colour in PNG": file(
            "RGB", COLOURS, transparency=tuple(COLOURS[0, 0].tolist())
        ),
        "1 bit in PNG": file("1", GRAY % 2 == 1),
        "palette in PNG": file("P", indices),
        "palette with alphas in PNG": file("P", indices, transparency=bytes([0, 255, 128, 9])),
        "16 bits of gray in PNG": file("I;16", DEEP),
        "turned, in PNG": file("RGB", COLOURS, exif=turned()),
        "RGB in TIFF": file("RGB", COLOURS, "TIFF"),
        "RGB and alpha in TIFF": file("RGBA", clear, "TIFF"),
        "CMYK in TIFF": file("CMYK", inks, "TIFF"),
        "16 bits of gray in TIFF": file("I;16", DEEP, "TIFF"),
        "32 bits of gray in TIFF": file("I", wholes.clip(0, 255).astype(np.int32), "TIFF"),
        "floats in TIFF": file("F", wholes.astype(np.float32), "TIFF"),
        "turned, in TIFF": file("RGB", COLOURS, "TIFF", exif=turned()),
        "RGB in BMP": file("RGB", COLOURS, "BMP"),
        "RGB in PPM": file("RGB", COLOURS, "PPM"),
        "16 bits of gray in PGM": b"P5 5 2 65535\n" + DEEP.astype(">u2").tobytes(),
        "two frames in GIF": file("P", indices, "GIF", **frames),
    }


def test_files(golden: Golden) -> None:
    """Stores the RGB pixels and the properties of each file."""
    found = {}
    for name, data in files().items():
        pixels, remarks = decoded(data)
        found[name] = {"pixels": pixels.tolist(), "remarks": remarks}
    golden("sources/pixels_of_files", found)


RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (0.0, 510.0), (-0.5, 2.0))
STEPS = (
    *(-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5),
    *(126.5, 127.5, 128.5, 253.5, 254.25, 254.5, 255.0, 255.5),
)
"""Expected brightness before rounding, including halves and values out of range."""


def test_floats(golden: Golden) -> None:
    """Exact halves are rounded up."""
    found: dict[str, Any] = {"steps": list(STEPS)}
    for black, white in RANGES:
        for dtype in (np.float64, np.float32, np.float16):
            values = (np.array(STEPS) / 255 * (white - black) + black).astype(dtype)
            pixels, clipped = bytes_of_floats(values.reshape(3, 6, 1), (black, white))
            found[f"{dtype.__name__} of {black:g} to {white:g}"] = pixels.ravel().tolist()
            assert clipped
    edges = (-0.75, -0.5, 255.5, 255.75)
    found["out of range"] = [
        bytes_of_floats(np.full((1, 1, 1), edge), (0.0, 255.0))[1] for edge in edges
    ]
    golden("sources/pixels_of_floats", found)


def test_floats_in_training(golden: Golden) -> None:
    """Fractions are truncated on request."""
    steps = [each for each in STEPS if each > -1.0]
    found: dict[str, Any] = {"steps": steps}
    values = torch.tensor(steps, dtype=torch.float64).reshape(1, 1, 3, 6).expand(1, 3, 3, 6) / 255
    every = (torch.arange(256).reshape(1, 1, 16, 16).expand(1, 3, 16, 16) / 255).contiguous()
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        found[str(dtype).removeprefix("torch.")] = (
            trained_on(values.to(dtype), "floor")[0, 0].flatten().tolist()
        )
        for how in ("floor", "round"):
            assert trained_on(every.to(dtype), how)[0, 2].flatten().tolist() == list(range(256)), (
                "bytes are preserved"
            )
    golden("training/pixels", found)
