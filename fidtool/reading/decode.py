"""Decodes contents to RGB pixels: files with Pillow, as other tools do; arrays are used directly.

The pixels may then be cropped, see `fidtool.sources.crops`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features
from PIL import __version__ as pillow_version
from PIL.ExifTags import Base

from fidtool.errors import format_message, option
from fidtool.sources.arrays import UnknownRangeError, to_pixels
from fidtool.sources.contents import Frame, Pixels, Read, ValueRange, pillow_defaults
from fidtool.sources.crops import Crop
from fidtool.sources.kinds import AVIF, HEIF, JPEG_2000, WEBP, describe_foreign, detect_format
from fidtool.validation import MAX_PIXELS

ONE_IMAGE_FORMATS = frozenset({"MPO", "PSD"})
"""Formats whose further frames are not independent images, but a camera's previews or an editor's
layers.
"""
# Not far beyond it, the bits of a row overflow Pillow's integers, which it reports as a lack of
# memory.
_MAX_SIDE = 2**24
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_SIXTEEN_BIT_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_DEEP_MODES = frozenset({"I", *_SIXTEEN_BIT_MODES})
# Formats that Pillow can be built without, with Pillow's names for their decoders.
_OPTIONAL_FORMATS = {AVIF: "avif", JPEG_2000: "jpg_2000", WEBP: "webp"}
# Metadata in which Pillow finds an orientation. Reading it is slow, and most files have none of
# these.
_ORIENTED_BY = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
_COLOUR_PFM = re.compile(rb"PF\s+(\d+)")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class DecodeError(Exception):
    """The bytes are not an image that Pillow can decode; the message says why."""


class NeedsRangeError(DecodeError):
    """The image contains floats, and the run has no value range: an option is missing, so it is not
    skipped.
    """


@dataclass(frozen=True)
class ImageProperties:
    """Number of images with each property. For a single image, each number is 0 or 1.

    Attributes:
        lossy: the file format is lossy (JPEG, AVIF, lossy WebP, JPEG or WebP inside TIFF).
        alpha: some pixels were transparent; the alpha channel was dropped.
        deep: the image had integers of 9 to 16 bits, which were scaled to 8 bits; Pillow clips
            those of one channel.
        animated: the file has several frames or pages, of which the first was used.
        rotated: the file's EXIF or XMP metadata specifies a rotation or reflection, which was not
            applied.
        clipped: floats were outside the specified value range and were clipped to it.
        bands: there were bands besides colour and transparency, which were dropped.
        most_bands: the largest number of bands of such an image, not a number of images.
    """

    lossy: int = 0
    alpha: int = 0
    deep: int = 0
    animated: int = 0
    rotated: int = 0
    clipped: int = 0
    bands: int = 0
    most_bands: int = 0

    @classmethod
    def total(cls, parts: Iterable[ImageProperties]) -> ImageProperties:
        rows = [tuple(vars(part).values()) for part in parts]
        if not rows:
            return cls()
        *counts, bands = zip(*rows, strict=True)
        totals = [*map(sum, counts), max(bands)]
        return cls(*totals)


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image.

    Attributes:
        pixels: uint8 array of shape (height, width, 3), RGB, framed if requested; it may be
            read-only.
        format: Pillow's name of the file's format; ``array`` for pixels that were passed as an
            array.
        mode: Pillow's name of the file's mode, with the number of further bands, such as ``RGB+1``.
        quality: quality of a JPEG, 1 to 100 on libjpeg's scale, estimated from its quantisation
            tables; otherwise 0.
    """

    pixels: NDArray[np.uint8]
    properties: ImageProperties
    format: str
    mode: str
    quality: int


@dataclass(frozen=True)
class DecodeOptions:
    """Options for decoding batches. Without ``floats``, images of floats are an error."""

    skip: bool = False
    max_pixels: int = MAX_PIXELS
    records: bool = False
    pixels: bool = True
    crop: Crop | None = None
    floats: ValueRange | None = None


def decode(content: Read, options: DecodeOptions = DecodeOptions()) -> DecodedImage:
    """Decode the first frame of an image to RGB as Pillow's ``convert("RGB")`` does.

    Grayscale is repeated over the channels, palettes are looked up, CMYK is converted without a
    colour profile, and alpha is dropped, so that the colours stored in transparent pixels become
    visible. EXIF orientation is not applied, as in other tools, except in TIFFs, where Pillow
    applies it. 16-bit grayscale, which ``convert`` would clip to white, keeps its high byte.
    Floats, signed and 32-bit integers become bytes as those of arrays, see
    `fidtool.sources.arrays.to_pixels`. Only one thread of a process can decode at a time.

    Raises:
        Exception: the content itself, if it is one.
        DecodeError: if the data is empty, truncated, corrupt or of unknown format, or has more than
            ``max_pixels``, which is found before memory is allocated for them.
        MemoryError: if Python or Pillow cannot allocate memory. If a C decoder cannot, Pillow does
            not distinguish that from damaged data, and a `DecodeError` is raised.
    """
    with pillow_defaults(options.max_pixels):
        return decode_content(content, options)


def decode_content(content: Read, options: DecodeOptions) -> DecodedImage:
    """Decode an image as `decode` does, within `pillow_defaults`, which several images can
    share.
    """
    if isinstance(content, Exception):
        raise content.with_traceback(None)  # of a file with many images, it is raised for each
    if isinstance(content, Pixels):
        image = _from_pixels(content, options)
    else:
        image = _from_pillow(content, options)
    crop = options.crop
    if crop is None:
        return image
    height, width, _ = image.pixels.shape
    # A very long image could become so large that it fills the memory.
    _check_size(crop.scaled(width, height), options.max_pixels, f"resized for {crop}, ")
    return replace(image, pixels=crop.apply(image.pixels))


def _from_pixels(image: Pixels, options: DecodeOptions) -> DecodedImage:
    values = image.values
    height, width, channels = values.shape
    if not values.size:
        raise DecodeError(f"it has {width} x {height} pixels")
    _check_size((width, height), options.max_pixels)
    mode = _MODES[channels]
    properties = ImageProperties(deep=image.deep, clipped=image.clipped)
    if channels == 4:
        alpha = values[..., 3]
        if _may_be_alpha(alpha):
            properties = replace(properties, alpha=int(alpha.min() < 255))
        else:
            properties = replace(properties, bands=1, most_bands=4)
            mode = "RGB+1"
    return DecodedImage(_to_three_channels(values), properties, "array", mode, 0)


def _from_pillow(content: bytes | Frame | Image.Image, options: DecodeOptions) -> DecodedImage:
    """Decode a file with Pillow, or an image that a program has opened with it."""
    file, frame = content if isinstance(content, Frame) else (content, None)
    is_object = isinstance(file, Image.Image)
    data = b"" if isinstance(file, Image.Image) else file
    colour = _COLOUR_PFM.match(data)
    if colour is not None:
        # Pillow reads PFM in grayscale only: three channels are three times as wide.
        gray = b"Pf\n%d" % (3 * int(colour[1])) + data[colour.end() :]
        wide = _from_pillow(gray, replace(options, max_pixels=3 * options.max_pixels))
        return replace(wide, pixels=wide.pixels[..., 0].reshape(len(wide.pixels), -1, 3))
    try:
        image = file if isinstance(file, Image.Image) else Image.open(io.BytesIO(file))
        if frame:
            image.seek(frame)
        if image.format == "EPS" and not is_object:
            # Pillow would run it in Ghostscript, which may never finish.
            raise DecodeError("it is an EPS file, which is a program and not an image")
        if image.format == "TIFF" and not is_object:
            _check_tiff(image)
        _check_size(image.size, options.max_pixels)
        image.load()
        return _to_rgb(image, data, options, single_frame=frame is not None)
    except (DecodeError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\d+ pixels", str(error))
        has = pixels[0] if pixels else "pixels"
        raise DecodeError(f"it has {has}, more than {_format_limit(options.max_pixels)}") from None
    except Exception as error:  # Pillow's plugins raise struct.error, IndexError and many others
        problem = format_message(error) if is_object else _explain_failure(error, data)
        raise DecodeError(problem) from None


def _explain_failure(error: Exception, data: bytes) -> str:
    """Return what is wrong with a file that Pillow cannot decode."""
    name = detect_format(data)
    if name == HEIF and HEIF not in Image.OPEN:
        return (
            "it is a HEIF image (HEIC), which Pillow cannot decode: convert it to PNG, for "
            "example with pillow-heif"
        )
    if name in _OPTIONAL_FORMATS and not features.check(_OPTIONAL_FORMATS[name]):
        return (
            f"it is in the format {name}, whose decoder is not included in this Pillow "
            f"({pillow_version}): install a recent Pillow (pip install --upgrade --force-reinstall "
            "pillow), or convert the image to PNG"
        )
    foreign = describe_foreign(data)
    if foreign:
        return f"it is {foreign}"
    if not isinstance(error, UnidentifiedImageError):
        return format_message(error)
    start = f"it begins with {data[:12]!r}"
    if name:
        start = f"it begins like {name} but is damaged or truncated"
    if name == "TIFF":
        start += (
            ", has more bands than Pillow reads (save 3 as RGB), or has floats of a kind that "
            "Pillow cannot read (save an array, .npy)"
        )
    return f"not an image that Pillow can read ({start})"


# --- limits ---------------------------------------------------------------------------------------


def _check_size(size: tuple[int, int], max_pixels: int, when: str = "") -> None:
    width, height = size
    pixels = width * height
    has = f"{when}it has {width} x {height}"
    if pixels > max_pixels:
        raise DecodeError(f"{has} = {pixels} pixels, more than {_format_limit(max_pixels)}")
    if max(size) > _MAX_SIDE:
        raise DecodeError(f"{has} pixels; Pillow supports at most {_MAX_SIDE} per side")


def _format_limit(max_pixels: int) -> str:
    return (
        f"the limit of {max_pixels} that protects against decompression bombs; "
        f"{option('max_pixels')} raises it"
    )


def _tag(image: Image.Image, tag: int, missing: int) -> int:
    """Return the number in a tag of a TIFF, the first one if it has several; ``missing`` if it has
    no such tag.
    """
    value = getattr(image, "tag_v2", {}).get(tag, missing)
    return int(value[0] if isinstance(value, tuple) else value)


def _check_tiff(image: Image.Image) -> None:
    """Refuse files that Pillow would decode incorrectly without an error."""
    if image.info.get("compression") == "raw":
        deep_or_inverted = (
            _tag(image, Base.BitsPerSample, 1) > 8
            or _tag(image, Base.PhotometricInterpretation, 1) == 0
        )
        if _tag(image, Base.PlanarConfiguration, 1) == 2 and deep_or_inverted:
            # From a mode such as "RGB;16L" or "L;I", Pillow uses one letter per plane and ignores
            # the rest.
            raise DecodeError(
                "Pillow misreads TIFFs of this kind with one plane per channel: save it "
                "interleaved or compressed"
            )
        return
    native = b"II" if sys.byteorder == "little" else b"MM"
    if image.mode in ("I", "F") and image.tag_v2.prefix != native:  # type: ignore[attr-defined]
        # libtiff has already swapped the bytes, and Pillow swaps them again.
        raise DecodeError(
            "Pillow misreads compressed TIFFs with signed, 32-bit or float values in non-native "
            "byte order: save it uncompressed"
        )


# --- pixels ---------------------------------------------------------------------------------------


def _to_rgb(
    image: Image.Image, data: bytes, options: DecodeOptions, single_frame: bool = False
) -> DecodedImage:
    bands, mode = _count_bands(image)
    has_alpha = image.mode in _ALPHA_MODES or "transparency" in image.info
    decoded = _read_gray(image, options)
    if decoded is None:
        decoded = Pixels(np.asarray(image if image.mode == "RGB" else image.convert("RGB")))
    properties = ImageProperties(
        lossy=_is_lossy(image, data),
        alpha=has_alpha and mode.startswith(image.mode) and _is_transparent(image),
        deep=decoded.deep,
        clipped=decoded.clipped,
        rotated=_is_rotated(image),
        bands=bands > 0,
        most_bands=bands,
        # last, because it seeks to the second frame
        animated=not single_frame and has_frame(image, 1),
    )
    pixels = _to_three_channels(decoded.values)
    return DecodedImage(pixels, properties, image.format or "", mode, _jpeg_quality(image))


def _to_three_channels(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if values.shape[2] == 1:
        return np.repeat(values, 3, axis=2)
    return np.ascontiguousarray(values[..., :3])


def _read_gray(image: Image.Image, options: DecodeOptions) -> Pixels | None:
    """Return the brightness of an image that Pillow would clip, shape (height, width, 1); None for
    others.

    If the kind of image does not say which of its values is white, they are those of an array.
    """
    # Zero is white: Pillow inverts only images of up to 8 bits.
    is_inverted = _tag(image, Base.PhotometricInterpretation, 1) == 0
    values = _read_raw_values(image)
    if values is not None:
        read = to_pixels(values[..., None], options.floats)
        if isinstance(read, UnknownRangeError):
            raise NeedsRangeError(format_message(read))
        if isinstance(read, Exception):
            raise DecodeError(format_message(read))
        return replace(read, values=255 - read.values) if is_inverted else read
    if image.mode not in _DEEP_MODES:
        return None
    # The high byte. Pillow scales JPEG 2000, PNG and PPM to 16 bits, but leaves 12-bit TIFFs in the
    # range 0..4095.
    bits = _tag(image, Base.BitsPerSample, 16)
    values = np.asarray(image)[..., None]
    if is_inverted:
        values = 2**bits - 1 - values
    return Pixels((values >> (bits - 8)).clip(0, 255).astype(np.uint8), deep=True)


def _read_raw_values(image: Image.Image) -> NDArray[Any] | None:
    """Return the values of an image whose kind does not say which of them is white; None for other
    images.
    """
    bits = _tag(image, Base.BitsPerSample, 0)
    is_signed = _tag(image, Base.SampleFormat, 1) == 2
    if image.mode == "F":
        return np.asarray(image)
    if image.mode == "L" and is_signed:
        return np.asarray(image).view(np.int8)
    if image.mode in _SIXTEEN_BIT_MODES and image.format in ("TIFF", None) and bits in (0, 16):
        values = np.asarray(image)
        return values if 0 < values.max() < 256 else None  # may be bytes
    if image.mode == "I" and image.format not in ("PNG", "PPM"):
        if bits == 16:
            return np.asarray(image).astype(np.int16)
        return np.asarray(image).view(np.uint32 if bits == 32 and not is_signed else np.int32)
    return None


def _count_bands(image: Image.Image) -> tuple[int, str]:
    """Return the number of bands of an image that has some besides colour and transparency, else
    0; and its mode.
    """
    mode = "RGB" if image.mode == "RGBX" else image.mode
    used = Image.getmodebands(mode)
    stored = _tag(image, Base.SamplesPerPixel, 0)
    if stored > used:
        return stored, f"{mode}+{stored - used}"
    # A last channel in other formats than these is always transparency.
    may_be_other = mode in _ALPHA_MODES and image.format in ("TIFF", "JPEG2000", None)
    if not may_be_other or _may_be_alpha(np.asarray(image.getchannel(mode[-1]))):
        return 0, image.mode
    return used, f"{mode[:-1]}+1"


def _may_be_alpha(values: NDArray[np.uint8]) -> bool:
    """Whether a channel may be transparency: most of it is almost opaque or invisible, or it has
    only a few values.
    """
    counts = np.bincount(values.reshape(-1), minlength=256)[16:240]
    return bool(2 * counts.sum() <= values.size or np.count_nonzero(counts) <= 16)


def _is_transparent(image: Image.Image) -> bool:
    if image.mode not in _ALPHA_MODES:
        if image.mode not in ("1", "L", "P", "RGB"):
            return True  # Pillow cannot determine which pixels are transparent
        image = image.convert("RGBA")
    return bool(np.asarray(image.getchannel(image.mode[-1])).min() < 255)


def _is_rotated(image: Image.Image) -> bool:
    # Pillow has applied the orientation of TIFFs.
    if image.format == "TIFF" or image.info.keys().isdisjoint(_ORIENTED_BY):
        return False
    with contextlib.suppress(Exception):  # damaged EXIF data has no orientation
        return image.getexif().get(Base.Orientation) in range(2, 9)
    return False


def _is_lossy(image: Image.Image, data: bytes) -> bool:
    if image.format == "TIFF":
        return image.info.get("compression") in ("jpeg", "tiff_jpeg", "webp")
    if image.format != "WEBP":
        return image.format in ("JPEG", "MPO", "AVIF")
    # The name of the first chunk with pixels, lossy or lossless.
    chunk = re.search(rb"VP8[ L]", data)
    return chunk is not None and chunk[0] == b"VP8 "


def has_frame(image: Image.Image, number: int) -> bool:
    """Whether there is a frame with this number. Seeks to it without decoding it, so call this
    last.
    """
    if image.format in ONE_IMAGE_FORMATS:
        return False
    if type(image).seek is Image.Image.seek:  # a copy, see `copy_image`
        return getattr(image, "is_animated", False)
    try:
        image.seek(number)
    except Exception:  # EOFError if there is none; any other exception if it is damaged
        return False
    return True


# --- quality of a JPEG ----------------------------------------------------------------------------

# ITU-T T.81, table K.1, which libjpeg scales by the quality. Only the sums of scaled tables are
# compared, because the order of the entries differs between versions of Pillow.
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


def _jpeg_quality(image: Image.Image) -> int:
    """Return the libjpeg quality whose luminance table is most similar to the first table of a
    JPEG; else 0.
    """
    tables = getattr(image, "quantization", None)
    if not tables:
        return 0
    return int(_QUALITIES[np.abs(_SUMS - sum(tables[min(tables)])).argmin()])
