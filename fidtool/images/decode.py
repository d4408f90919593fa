"""Contents to RGB pixels: files are decoded by Pillow, as in the peers, and arrays are taken as they are."""

from __future__ import annotations

import io
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError, features
from PIL import __version__ as pillow_version

from fidtool.errors import option
from fidtool.sources.census import AVIF, HEIF, JPEG_2000, WEBP, format_of
from fidtool.sources.contents import Pixels, Read, pillow_defaults
from fidtool.validation import MAX_PIXELS

DECODER = "pillow"
"""Name of the decoder in the protocol's fingerprint: another decoder moves a feature vector by about 5 %."""
_LONGEST_SIDE = 2**24
"""Not far beyond, the bits of one row overflow Pillow's integers; it reports that as a lack of memory."""
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_KEYED_MODES = frozenset({"1", "L", "P", "RGB"})
_LOSSY_FORMATS = frozenset({"JPEG", "MPO", "AVIF"})
_ONE_IMAGE_FORMATS = frozenset({"MPO", "PSD"})
"""Their further frames are no images of their own, but a camera's previews or an editor's layers."""
_SIXTEEN_BIT_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_BITS_PER_SAMPLE, _PHOTOMETRIC, _PLANAR, _SAMPLE_FORMAT = 258, 262, 284, 339
"""TIFF tags."""
_NATIVE_PREFIX = b"II" if sys.byteorder == "little" else b"MM"
"""How a TIFF in this machine's byte order begins."""
_OPTIONAL = {AVIF: "avif", JPEG_2000: "jpg_2000", WEBP: "webp"}
"""Formats that Pillow can be built without, by its names for what decodes them."""
_ORIENTED_BY = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
"""Where Pillow finds an orientation: asking it is slow, and most files have none of these."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class DecodeError(Exception):
    """The bytes are no image that Pillow can decode; the message says why."""


@dataclass(frozen=True)
class ImageProperties:
    """How many of some images have a property; of a single image each is 0 or 1.

    Attributes:
        lossy: the file format threw information away (JPEG, lossy WebP, JPEG inside TIFF).
        alpha: some pixels were transparent; that was dropped.
        deep: the file had more than 8 bits a channel in a mode that Pillow clips. 16-bit integers were scaled instead;
            floats and 32-bit integers, whose range is unknown, were clipped to 0..255 as Pillow does.
        animated: the file has further frames or pages; the first was taken.
        rotated: the file's EXIF or XMP says that it should be turned or mirrored; that was not done.
        clipped: numbers in an array outside the range that was stated for them were brought to its ends.
    """

    lossy: int = 0
    alpha: int = 0
    deep: int = 0
    animated: int = 0
    rotated: int = 0
    clipped: int = 0

    def __add__(self, other: ImageProperties) -> ImageProperties:
        return ImageProperties(*map(operator.add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class DecodedImage:
    """One image as the protocols see it.

    Attributes:
        pixels: uint8 array of shape (height, width, 3), RGB.
        properties: what is true of the image or its file.
        format, mode: of the file, by Pillow's names.
        quality: of a JPEG, 1 to 100 on libjpeg's scale, estimated from its tables; else 0.
    """

    pixels: NDArray[np.uint8]
    properties: ImageProperties
    format: str
    mode: str
    quality: int


def decode_content(content: Read, max_pixels: int = MAX_PIXELS) -> DecodedImage:
    """The image in one content, as the protocols see it.

    Raises:
        DecodeError: see `decode`.
        MemoryError: likewise.
        Exception: the content is an exception, the reason why there is none; see `fidtool.sources.contents.Read`.
    """
    if isinstance(content, Exception):
        raise content
    if isinstance(content, bytes):
        return decode(content, max_pixels)
    return _from_pixels(content, max_pixels) if isinstance(content, Pixels) else _from_pillow(content, max_pixels)


def decode(data: bytes, max_pixels: int = MAX_PIXELS) -> DecodedImage:
    """Decodes the first frame of an image to RGB as Pillow's ``convert("RGB")`` does.

    Grayscale is repeated over the channels, palettes are looked up, CMYK is converted without a colour profile, and
    alpha is dropped: the colour stored under transparent pixels shows. EXIF orientation is not applied, as in the
    peers, except in TIFFs, which Pillow turns by itself. 16-bit grayscale, which ``convert`` would clip to white,
    keeps its high byte. One thread at a time can decode; processes do not wait for each other.

    Args:
        data: the file's content.
        max_pixels: an image with more is refused before there is memory for it, whatever Pillow's own limit is.

    Raises:
        DecodeError: empty, truncated, corrupt or unknown data, or more pixels than ``max_pixels``.
        MemoryError: Python, or Pillow where it makes an image, got no memory. Decoders written in C that get none say
            so by an error of their own, as they do of damaged data, and that is a `DecodeError`.
    """
    if not data:
        raise DecodeError("the file is empty (0 bytes)")
    with pillow_defaults(max_pixels):
        try:
            return _decode(data, max_pixels)
        except Image.DecompressionBombError as error:
            raise _too_many_pixels(_refused_size(error), max_pixels) from None


def _from_pillow(image: Image.Image, max_pixels: int) -> DecodedImage:
    """An image that a program has opened or made with Pillow, as `decode` gives it; further frames are not looked for.

    Raises:
        DecodeError, MemoryError: see `decode`.
    """
    with pillow_defaults(max_pixels):
        try:
            _check_size(image.size, max_pixels)
            image.load()
            return _to_rgb(image, b"", looked_through=True)
        except (DecodeError, MemoryError):
            raise
        except Exception as error:
            raise DecodeError(" ".join(str(error).split()) or type(error).__name__) from None


def _from_pixels(image: Pixels, max_pixels: int) -> DecodedImage:
    """RGB of pixels of 1, 3 or 4 channels, as `decode` gives it of a file: gray is repeated, alpha is dropped.

    Raises:
        DecodeError: more pixels than ``max_pixels``.
    """
    values = image.values
    height, width, channels = values.shape
    if not values.size:
        raise DecodeError(f"it has {width} x {height} pixels")
    _check_size((width, height), max_pixels)
    alpha = channels == 4 and bool(values[..., 3].min() < 255)
    pixels = np.repeat(values, 3, axis=2) if channels == 1 else np.ascontiguousarray(values[..., :3])
    return DecodedImage(pixels, ImageProperties(alpha=alpha, clipped=image.clipped), "array", _MODES[channels], 0)


def _decode(data: bytes, max_pixels: int) -> DecodedImage:
    try:
        if data[8:12] == b"WEBP":
            _check_size(_webp_size(data), max_pixels)  # older Pillows make its canvas before they ask for its size
        with Image.open(io.BytesIO(data)) as image:
            _check_format(image)
            _check_size(image.size, max_pixels)
            image.load()
            return _to_rgb(image, data)
    except (DecodeError, MemoryError, Image.DecompressionBombError):
        raise
    except Exception as error:  # Pillow's plugins let struct.error, IndexError and many others through
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            name = format_of(data)
            start = f"it starts as {name} does and is damaged or cut off" if name else f"it starts with {data[:12]!r}"
            message = f"not an image that Pillow can read ({start})"
        raise DecodeError(_no_decoder(data) or message) from None


def is_decoded(file_format: str) -> bool:
    """Whether a file that counts as an image by its name, and is in this format, can be decoded here.

    Args:
        file_format: as `fidtool.sources.census.format_of` names it.
    """
    if file_format == HEIF:
        return HEIF in Image.OPEN
    return file_format not in _OPTIONAL or bool(features.check(_OPTIONAL[file_format]))


def _no_decoder(data: bytes) -> str:
    """What to say where Pillow lacks the decoder of an image that may be a good one; empty where it has it."""
    name = format_of(data)
    if is_decoded(name):
        return ""
    if name == HEIF:
        return "it is a HEIF image (HEIC), which Pillow cannot decode: convert it to PNG, for instance with pillow-heif"
    return (
        f"it is an image in the format {name}, and this Pillow ({pillow_version}) was built without its decoder: "
        "install a recent Pillow from PyPI (pip install --upgrade --force-reinstall pillow), or convert it to PNG"
    )


# --- limits ----------------------------------------------------------------------------------------------------------


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    """Raises a DecodeError where an image of this (width, height) is too large."""
    if size[0] * size[1] > max_pixels:
        raise _too_many_pixels(size, max_pixels)
    if max(size) > _LONGEST_SIDE:
        raise DecodeError(f"it has {size[0]} x {size[1]} pixels; Pillow has no room for a side beyond {_LONGEST_SIDE}")


def _too_many_pixels(size: tuple[int, int] | None, max_pixels: int) -> DecodeError:
    raising = f"{option('max_pixels')} raises it"
    limit = f"the limit of {max_pixels} that guards against decompression bombs; {raising}"
    if size is None:
        return DecodeError(f"it has more pixels than {limit}")
    return DecodeError(f"it has {size[0]} x {size[1]} = {size[0] * size[1]} pixels, more than {limit}")


def _refused_size(error: BaseException) -> tuple[int, int] | None:
    """The width and height that Pillow found too large: an argument of the function that said so.

    Its message has their product only, and to open the file again without a limit could take the memory after all.
    """
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    size = step.tb_frame.f_locals.get("size") if step is not None else None
    return size if isinstance(size, tuple) and len(size) == 2 else None


def _check_format(image: Image.Image) -> None:
    """Refuses what Pillow would run, or read wrongly without a word."""
    if image.format == "EPS":
        # Ghostscript would take as long over it as it likes.
        raise DecodeError("it is an EPS file: a program that draws, not an image")
    if image.format != "TIFF":
        return
    tags: Any = getattr(image, "tag_v2", {})
    if image.info.get("compression") == "raw":
        if tags.get(_PLANAR) == 2 and (tags.get(_BITS_PER_SAMPLE, (1,))[0] > 8 or tags.get(_PHOTOMETRIC) == 0):
            # Of such a mode, "RGB;16L" or "L;I", Pillow keeps a letter for each plane and forgets the rest.
            raise DecodeError(
                "Pillow misreads TIFFs of this kind with one plane a channel; interleave or compress them"
            )
    elif image.mode in ("I", "F") and tags.prefix != _NATIVE_PREFIX:
        # libtiff has swapped the bytes, and Pillow swaps them back.
        raise DecodeError("Pillow misreads compressed TIFFs of such numbers in foreign byte order; uncompress them")


# --- pixels ----------------------------------------------------------------------------------------------------------


def _to_rgb(image: Image.Image, data: bytes, looked_through: bool = False) -> DecodedImage:
    alpha, lossy = _is_transparent(image), _is_lossy(image, data)
    file_format, mode, quality = image.format or "", image.mode, jpeg_quality(getattr(image, "quantization", None))
    deep = image.mode in _SIXTEEN_BIT_MODES or image.mode in ("I", "F")
    gray = _scaled_gray(image) if deep else None
    if gray is None:
        pixels = np.array(image if image.mode == "RGB" else image.convert("RGB"))
    else:
        pixels = np.repeat(gray[:, :, None], 3, axis=2)
    rotated = _is_rotated(image)
    animated = not looked_through and _is_animated(image)  # asked last: it moves on to the second frame
    properties = ImageProperties(lossy, alpha, deep, animated, rotated)
    return DecodedImage(pixels, properties, file_format, mode, quality)


def _scaled_gray(image: Image.Image) -> NDArray[np.uint8] | None:
    """The eight highest bits of grayscale integers of 9 to 16 bits, which Pillow would clip; None for other images."""
    tags: Any = getattr(image, "tag_v2", {})
    # JPEG 2000, PNG and PPM have been stretched to 16 bits by Pillow; 12-bit TIFFs reach 4095.
    bits = int(tags.get(_BITS_PER_SAMPLE, (16,))[0])
    signed = image.mode == "I" and bits == 16 and tags.get(_SAMPLE_FORMAT, (1,))[0] == 2
    wide = image.mode == "I" and image.format in ("PNG", "PPM")
    if image.mode not in _SIXTEEN_BIT_MODES and not signed and not wide:
        return None
    values: NDArray[Any] = np.asarray(image)
    if signed:
        values = values + 2**15  # the type's whole range, as Pillow itself does for JPEG 2000
    if tags.get(_PHOTOMETRIC) == 0:
        values = 2**bits - 1 - values  # white is zero: Pillow turns over images of up to 8 bits only
    return (values >> (bits - 8)).clip(0, 255).astype(np.uint8)


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


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        sides = int.from_bytes(data[21:25], "little")
        return 1 + (sides & 0x3FFF), 1 + (sides >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def _is_rotated(image: Image.Image) -> bool:
    # Pillow has turned the pixels of TIFFs by itself.
    if image.format == "TIFF" or image.info.keys().isdisjoint(_ORIENTED_BY):
        return False
    try:
        return image.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    except Exception:  # a damaged EXIF orders nothing
        return False


def _is_animated(image: Image.Image) -> bool:
    """Whether there is a second frame. Moves on to it, without decoding it: ask this last."""
    if image.format in _ONE_IMAGE_FORMATS:
        return False
    try:
        image.seek(1)
    except Exception:  # EOFError where there is none, anything where it is damaged
        return False
    return True


# --- quality of a JPEG -----------------------------------------------------------------------------------------------

# ITU-T T.81, table K.1: what libjpeg scales by the quality. Only the sum of a scaled table is compared, so that the
# order of its entries, in which versions of Pillow differ, does not matter.
_LUMINANCE = np.array(
    [
        *(16, 11, 10, 16, 24, 40, 51, 61),
        *(12, 12, 14, 19, 26, 58, 60, 55),
        *(14, 13, 16, 24, 40, 57, 69, 56),
        *(14, 17, 22, 29, 51, 87, 80, 62),
        *(18, 22, 37, 56, 68, 109, 103, 77),
        *(24, 35, 55, 64, 81, 104, 113, 92),
        *(49, 64, 78, 87, 103, 121, 120, 101),
        *(72, 92, 95, 98, 112, 100, 103, 99),
    ]
)
_QUALITIES = np.arange(1, 101)
_SCALES = np.where(_QUALITIES < 50, 5000 // _QUALITIES, 200 - 2 * _QUALITIES)
_SUMS = ((_LUMINANCE * _SCALES[:, None] + 50) // 100).clip(1, 255).sum(1)


def jpeg_quality(tables: Mapping[int, Sequence[int]] | None) -> int:
    """The quality of libjpeg's whose luminance table comes nearest, 1 to 100.

    Args:
        tables: a JPEG's quantisation tables, the first one that of luminance; None or empty of other files.

    Returns:
        The quality; 0 where there is no table.
    """
    if not tables:
        return 0
    first = tables[min(tables)]
    return int(_QUALITIES[np.abs(_SUMS - sum(first)).argmin()])
