"""Findings about the images of one set: faults that move a distance, and that it does not name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import option
from fidtool.images.decode import is_decoded
from fidtool.images.records import BRIGHTNESS, FLAGS, NOISE, ImageRecords, RecordArray
from fidtool.sources.census import WITHOUT_SUFFIX, PassedOver

_UNSCALED = 2
_PALE = 120
"""(x + 1) / 2 leaves 127 and more, of which an encoder takes a little."""
_NOISE_CONTRAST, _FAINT = 25.0, 12.0
"""Grey levels: what is rough and fainter is a picture of something dark, with its sensor's noise; of something bright
only if it is fainter still."""
_DARK = 64
"""The brightest value of a picture that makes use of a quarter of the range, and the brightness of a dark one."""
_CLIPPED_CONTRAST = 30.0
_BLACK_SHARE, _MOSTLY_BLACK = 0.3, 0.85
_TORN = 0.03
_NEGATIVE = 0.35
"""Of photos clipped so every other one has the signs, of proper ones 5 %, of those of much contrast 20 %."""
_SATURATED, _EACH_END, _CLIPPED = 0.2, 0.02, 0.3
_STRONG = 65
"""JPEG qualities below this show in every picture."""
_TIMES_USUAL = 2.0
_ODD_ONES = 0.02
_OTHER_SIZES = 0.2
_FEW = 2
_MIXED = 0.05
_MOST = 0.9
PASSED_OVER = "passed over"
_ALWAYS_UNUSUAL = (PASSED_OVER, "unscaled", "black", "pale")
"""Never usual, even if both sets have it: one program has written both. Noise is, as there are noisy textures."""

Severity = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The most severe first."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or may be, with a set of images.

    Attributes:
        code: a name for scripts, such as ``noise``.
        severity: how much it can matter: ``high`` means that the number says little about the generator, ``medium``
            that it is moved noticeably, ``low`` that it may be.
        count: number of images concerned.
        example: path of one of them; empty if the finding is about the set as a whole.
        message: what it is, what causes it and what to do, in a sentence with the numbers.
    """

    code: str
    severity: Severity
    count: int
    example: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """The finding for the JSON."""
        return asdict(self)


def set_findings(pictures: ImageRecords, passed_over: PassedOver | None = None) -> list[Finding]:
    """What is wrong with the images of one set, the most severe first.

    Args:
        pictures: the images.
        passed_over: what their source holds beside them; None if unknown.
    """
    found = [*passed_over_findings(passed_over), *_values(pictures), *_mixtures(pictures)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def passed_over_findings(passed_over: PassedOver | None) -> list[Finding]:
    """A finding if a source holds images whose suffixes are not those of images, which do not count."""
    if passed_over is None or not passed_over.images:
        return []
    least = "at least " if passed_over.at_least else ""
    one = passed_over.images == 1
    files = "1 file is an image" if one else f"{passed_over.images} files are images"
    message = (
        f"{least}{files} by {'its' if one else 'their'} first bytes and not by {'its name' if one else 'their names'}, "
        f"and {'does' if one else 'do'} not count: {_how_to_count(passed_over.formats, 'it' if one else 'them')}"
    )
    return [Finding(PASSED_OVER, "medium", passed_over.images, passed_over.example, message)]


def _how_to_count(formats: Collection[str], them: str) -> str:
    """What to do with images of other suffixes; renaming is of no use where Pillow lacks the decoder."""
    foreign = sorted(name for name in formats if name in WITHOUT_SUFFIX or not is_decoded(name))
    if not foreign:
        return f"rename {them} (.png, .jpg, .webp …), or give the paths of all images in a .txt list"
    names = " and ".join(foreign)
    if len(foreign) == len(formats):
        return f"convert {them} to PNG (from {names})"
    return f"convert those in {names} to PNG, and rename the others (.png, .jpg, .webp …)"


def property_warnings() -> dict[str, str]:
    """What is said of images with a property, after their number, by the flag of their records."""
    value_range = option("value_range")
    return {
        "alpha": "images have transparency, which is dropped: the colours stored under transparent pixels count; "
        "flatten them onto a background first if that is not what you want",
        "deep": "images have more than 8 bits a channel: integers of 9 to 16 bits were scaled to 8, which other tools "
        "clip to white; floats and 32-bit integers were clipped to 0..255, as other tools do",
        "animated": "files hold several frames, of which the first one counts",
        "rotated": "images have an EXIF orientation, which is not applied, as in the tools that the protocols are "
        "named after: they count as stored; turn them first if that is not what you want",
        "clipped": f"images hold values outside {value_range}, which were clipped to it: check that it is the right "
        "range",
    }


def property_findings(pictures: ImageRecords) -> list[Finding]:
    """A finding for each of `property_warnings` that some images call for; a run that measures the set warns anyway."""
    found = []
    for name, words in property_warnings().items():
        places = np.flatnonzero(pictures.records["flags"] >> FLAGS[name] & 1)
        if len(places):
            example = pictures.file(int(places[0]))
            found.append(Finding(name, "low", len(places), example, f"{len(places)} {words}"))
    return found


def _finding(pictures: ImageRecords, code: str, severity: Severity, which: NDArray[np.bool_], message: str) -> Finding:
    """A finding about the images ``which``, of which there are some; ``{}`` in the message becomes their number."""
    places = np.flatnonzero(which)
    number = f"{len(places)} of {len(which)} images"
    return Finding(code, severity, len(places), pictures.file(int(places[0])), message.format(number))


def _values(pictures: ImageRecords) -> Iterator[Finding]:
    records, finding = pictures.records, partial(_finding, pictures)
    constant, unscaled = records["low"] == records["high"], records["high"] <= _UNSCALED
    if unscaled.mean() > 0.5 and (records["high"][unscaled] > 0).mean() > _ODD_ONES:
        yield finding(
            "unscaled",
            "high",
            unscaled,
            f"{{}} have no value above {_UNSCALED}: values from 0 to 1 were written as bytes; multiply them by 255",
        )
    elif unscaled.mean() > 0.5:
        yield finding(
            "black",
            "high",
            unscaled,
            "{} are black: samples that failed (NaN becomes 0), that a filter has blanked, or values below 1 that were "
            "written as bytes; look at what the generator returns",
        )
    elif constant.any():
        severity: Severity = "high" if constant.mean() > 0.01 else "low"
        yield finding(
            "constant", severity, constant, "{} have one colour throughout: if they are samples, draw them anew"
        )
    two_valued = records["bins"][:, [0, -1]].sum(axis=1) > _MOST * records["values"]
    spread = contrast(records)
    strong = (spread >= _NOISE_CONTRAST) | ((spread >= _FAINT) & (brightness(records) >= _DARK))
    noise = (records["roughness"] >= NOISE) & strong & ~two_valued
    if noise.sum() > max(_FEW, 0.01 * len(noise)):
        yield finding(
            "noise",
            "high",
            noise,
            "{} look like noise, neighbouring pixels being unrelated: the generator is untrained or diverged, too few "
            "steps were sampled, or values overflowed as they became bytes",
        )
    yield from _ranges(pictures)


def _ranges(pictures: ImageRecords) -> Iterator[Finding]:
    """Values of a range that was taken for another one, and images that use a part of theirs."""
    records, finding = pictures.records, partial(_finding, pictures)
    zeros, full = (records[name] / records["values"] for name in ("zeros", "full"))
    # On a black background all channels of a pixel are 0; clipping takes them one by one.
    torn = (records["zeros"] - 3.0 * records["black"]) / records["values"] > _TORN
    black = (zeros > _BLACK_SHARE) & (zeros < _MOSTLY_BLACK) & (full < _MIXED) & torn
    black &= contrast(records) >= _CLIPPED_CONTRAST
    if black.mean() > _NEGATIVE:
        yield finding(
            "negative",
            "medium",
            black,
            f"{{}} have more than {_BLACK_SHARE:.0%} of their values at 0, one channel without the others: it looks as "
            "if values from -1 to 1 had been clipped as if they were from 0 to 1; write (x + 1) / 2",
        )
        return
    pale = (records["low"] >= _PALE) & (records["high"] > records["low"])
    if pale.mean() > _MOST:
        yield finding(
            "pale",
            "high",
            pale,
            f"{{}} have no value below {_PALE}: values from 0 to 1 were taken for values from -1 to 1; leave out the "
            "(x + 1) / 2",
        )
        return
    ends = zeros + full
    clipped = torn & (np.minimum(zeros, full) > _EACH_END) & (ends > _SATURATED) & (ends < _MOST)
    if clipped.mean() > _CLIPPED:
        yield finding(
            "clipped",
            "high",
            clipped,
            f"{{}} have more than {_SATURATED:.0%} of their values at 0 or 255: values of another range, normalised "
            "ones for instance, were clipped as they became bytes, unless these are drawings in pure colours",
        )
    dark = (records["high"] <= _DARK) & (records["high"] > _UNSCALED) & (records["high"] > records["low"])
    if dark.mean() > _MIXED:
        yield finding(
            "dark",
            "low",
            dark,
            f"{{}} have no value above {_DARK}: pictures of something dark, or values that were scaled twice",
        )


def _mixtures(pictures: ImageRecords) -> Iterator[Finding]:
    records, finding = pictures.records, partial(_finding, pictures)
    # A camera that was turned makes no other size.
    sides = np.sort(np.stack([records["width"], records["height"]], axis=1).astype(np.int64), axis=1)
    sizes = sides[:, 0] << 32 | sides[:, 1]
    kinds, counts = np.unique(sizes, return_counts=True)
    usual = kinds[counts.argmax()]
    if len(kinds) > 1 and counts.max() >= (1 - _OTHER_SIZES) * len(sizes):
        one = int(np.flatnonzero(sizes == usual)[0])
        name = f"{records['width'][one]} x {records['height'][one]}"
        yield finding(
            "odd size",
            "low",
            sizes != usual,
            f"{{}} are not {name} pixels as the others are: do they belong here?",
        )
    gray = (records["gray"] == 1) & (records["low"] < records["high"])
    if _MIXED < gray.mean() < 0.5:
        yield finding("gray", "low", gray, "{} are grayscale among coloured ones")
    quality = records["quality"]
    jpeg = quality > 0
    lossy = (records["flags"] >> FLAGS["lossy"] & 1).astype(np.bool_)
    if jpeg.any() and np.median(quality[jpeg]) < _STRONG:
        yield finding(
            "strong compression",
            "medium",
            jpeg & (quality < _STRONG),
            f"{{}} are JPEGs of a quality below {_STRONG} (median {np.median(quality[jpeg]):.0f}): the artefacts count "
            "towards the distance; compress less, or both sets alike",
        )
    if _MIXED < lossy.mean() < 1 - _MIXED:
        yield finding(
            "mixed formats",
            "low",
            lossy,
            "{} are in a lossy format (JPEG, lossy WebP) and the others are not: artefacts tell the two kinds apart",
        )


def usual_size(records: RecordArray) -> tuple[int, int] | None:
    """Width and height of nearly all images; None if they vary."""
    pairs, counts = np.unique(np.stack([records["width"], records["height"]], axis=1), axis=0, return_counts=True)
    width, height = pairs[counts.argmax()]
    return (int(width), int(height)) if counts.max() >= _MOST * len(records) else None


def contrast(records: RecordArray) -> NDArray[np.float64]:
    """Standard deviation of each image's values, from their histogram, in grey levels: float64 of shape (images,)."""
    shares = records["bins"] / records["values"][:, None]
    levels = 16.0 * np.arange(shares.shape[1])
    mean = shares @ levels
    result: NDArray[np.float64] = np.sqrt(np.maximum(shares @ levels**2 - mean**2, 0.0))
    return result


def unusual_findings(found: list[Finding], images: int, other: list[Finding], others: int) -> list[Finding]:
    """The findings that images of this kind do not call for anyway, as another set of them shows.

    Args:
        found: findings about one set.
        images: number of its images.
        other: findings about the other set.
        others: number of its images.
    """
    usual = {finding.code: finding.count / others for finding in other}
    return [
        each
        for each in found
        if each.code in _ALWAYS_UNUSUAL or each.count / images > _TIMES_USUAL * usual.get(each.code, 0.0)
    ]


def brightness(records: RecordArray) -> NDArray[np.float64]:
    """Mean brightness of each image, 0 to 255: float64 array of shape (images,)."""
    result: NDArray[np.float64] = records["thumb"][:, :BRIGHTNESS].mean(axis=1)
    return result
