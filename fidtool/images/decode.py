"""Encoded bytes to RGB pixels, by Pillow: the decoder that the peers use. Imports no torch."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

DECODER = "pillow"
"""Name of the decoder in the protocol's fingerprint: another decoder moves a feature vector by about 5 %."""
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_KEYED_MODES = frozenset({"1", "L", "P", "RGB"})
_LOSSY_FORMATS = frozenset({"JPEG", "MPO", "AVIF"})
_SIXTEEN_BIT_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


class DecodeError(Exception):
    """The bytes are no image that Pillow can decode; the message says why."""


@dataclass(frozen=True)
class DecodedImage:
    """One image as the protocols see it.

    Attributes:
        pixels: uint8 array of shape (height, width, 3), RGB.
        lossy: the file format threw information away (JPEG, lossy WebP, JPEG inside TIFF).
        alpha: some pixels were transparent; that was dropped.
        deep: the file had more than 8 bits a channel in a mode that Pillow clips. 16-bit integers were scaled instead;
            floats and 32-bit integers, whose range is anybody's guess, were clipped to 0..255 as Pillow does.
    """

    pixels: NDArray[np.uint8]
    lossy: bool
    alpha: bool
    deep: bool


def decode(data: bytes) -> DecodedImage:
    """Decodes the first frame of an image to RGB as Pillow's ``convert("RGB")`` does.

    Grayscale is repeated over the channels, palettes are looked up, CMYK is converted without a colour profile, and
    alpha is dropped: the colour stored under transparent pixels shows. EXIF orientation is not applied, as in the
    peers. 16-bit grayscale, which ``convert`` would clip to white, keeps its high byte.

    Raises:
        DecodeError: empty, truncated, corrupt or unknown data, or more pixels than Pillow's bomb limit allows.
    """
    if not data:
        raise DecodeError("the file is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            # Pillow's own remarks about size and palettes; what matters of them is reported by our own means.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return _to_rgb(image, data)
    except UnidentifiedImageError:
        raise DecodeError(f"not an image that Pillow can read (it starts with {data[:12]!r})") from None
    except Exception as error:  # Pillow's plugins let struct.error, IndexError and many others through
        message = " ".join(str(error).split()) or type(error).__name__
        raise DecodeError(message) from None


def _to_rgb(image: Image.Image, data: bytes) -> DecodedImage:
    sixteen_bit = image.mode in _SIXTEEN_BIT_MODES or (image.mode == "I" and image.format in ("PNG", "PPM"))
    deep = sixteen_bit or image.mode in ("I", "F")
    alpha = _is_transparent(image)
    if sixteen_bit:
        high_byte = (np.asarray(image).astype(np.int32) >> 8).clip(0, 255).astype(np.uint8)
        pixels = np.repeat(high_byte[:, :, None], 3, axis=2)
    else:
        pixels = np.array(image if image.mode == "RGB" else image.convert("RGB"))
    return DecodedImage(pixels, _is_lossy(image, data), alpha, deep)


def _is_transparent(image: Image.Image) -> bool:
    if image.mode not in _ALPHA_MODES and "transparency" not in image.info:
        return False
    if image.mode not in _ALPHA_MODES:
        if image.mode not in _KEYED_MODES:
            return True  # Pillow cannot tell which pixels
        image = image.convert("RGBA")
    return bool(np.asarray(image.getchannel(image.mode[-1])).min() < 255)


def _is_lossy(image: Image.Image, data: bytes) -> bool:
    if image.format == "WEBP":
        return _webp_is_lossy(data)
    if image.format == "TIFF":
        return image.info.get("compression") in ("jpeg", "tiff_jpeg", "webp")
    return image.format in _LOSSY_FORMATS


def _webp_is_lossy(data: bytes) -> bool:
    """Whether the first frame's bitstream is lossy: walks the RIFF chunks to the one named "VP8 " or "VP8L".

    Frames of an animation (ANMF) hold such a chunk after 16 bytes of their own.
    """
    position = 12
    while position + 8 <= len(data):
        name, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "little")
        if name in (b"VP8 ", b"VP8L"):
            return name == b"VP8 "
        position += 8 + (16 if name == b"ANMF" else size + size % 2)
    return False
