"""Findings about the images of one set: faults that change a distance without being visible in
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fidtool.diagnose.measures import Flags, Measures
from fidtool.errors import SEVERITIES, Severity, option
from fidtool.names import counted
from fidtool.reading.records import FLAGS, NOISE, ImageRecords
from fidtool.sources.contents import BadFile

_UNSCALED = 2
"""Largest pixel value of an image that is black or unscaled: values in [0, 1] saved as bytes are 0
or 1, and lossy compression may change them a little.
"""
_PALE = 120
"""Smallest pixel value of a pale image: (x + 1) / 2 maps [0, 1] to 127..255, and lossy compression
may lower that a little.
"""
_NOISE_CONTRAST = 25.0
_FAINT = 12.0
"""Least contrast of noise, in grey levels: in dark images, and in images whose mean brightness is
at least `_DARK`. Rough images of less contrast are photos of something dark, or flat, with the
noise of the sensor.
"""
_DARK = 64
"""In grey levels: an image is dark if no value is larger (it uses a quarter of the range); for
noise, if its mean brightness is below this.
"""
_CLIPPED_CONTRAST = 30.0
"""Least contrast, in grey levels, of an image with values clipped at 0: dark images of less
contrast may have many zeros anyway.
"""
_BLACK_SHARE = 0.3
_MOSTLY_BLACK = 0.85
"""Shares of values at 0 between which an image may have been clipped there: with more, it is an
image on black.
"""
_TORN = 0.03
"""Least share of values at 0 in pixels that are not black: clipping sets single channels to 0,
whereas all three are 0 in a black background.
"""
_NEGATIVE = 0.35
"""Share of images clipped at 0 that is reported. Half of the photos that were clipped this way are
recognised; of photos that were not, 5 % look clipped, and 20 % of those with high contrast.
"""
_SATURATED = 0.2
_EACH_END = 0.02
_CLIPPED = 0.3
"""An image is clipped at both ends if more than 20 % of its values are 0 or 255, and more than 2 %
are at each end. It is reported if more than 30 % of the images are.
"""
_STRONG = 65
"""JPEG artefacts change every image below this quality."""
_ODD_ONES = 0.02
"""Share of nearly black images that must have values above 0 for the set to be unscaled rather than
black.
"""
_OTHER_SIZES = 0.2
"""Up to this share of images of a different size is reported as odd; with more, the sizes vary."""
_FEW = 2
"""Noise is reported for more images than this or half of the set, and more than 1 % of the set;
dark and gray images for more than this, as some photos are.
"""
_MIXED = 0.05
"""Up to this share, images of a different kind (dark, grayscale, lossy) are not reported, nor do
white values count against clipping at 0.
"""
_MOST = 0.9
"""Share that counts as nearly all images, or nearly all values of an image."""
ALWAYS_UNUSUAL = ("unscaled", "black", "pale")
"""Findings that are reported even if both sets have them, because one faulty program may have
written both. Noise is not one of them, as some textures are noisy.
"""

_TEXTS = {
    "unscaled": f"have no pixel value above {_UNSCALED}: values in [0, 1] were saved as bytes "
    "without scaling; multiply them by 255",
    "black": "are black: they are failed samples (NaN becomes 0), images blanked by a filter, or "
    "values below 1 saved as bytes; check what the generator returns",
    "constant": "have a single colour: remove them, or generate them again if they are samples",
    "noise": "look like noise (neighbouring pixels are unrelated): the generator is untrained or "
    "has diverged, too few sampling steps were used, or values overflowed when they were "
    "converted to bytes",
    "negative": f"have more than {_BLACK_SHARE:.0%} of their values at 0, often in a single "
    "channel: it looks as if values in [-1, 1] had been clipped to [0, 1]; convert them with (x "
    "+ 1) / 2",
    "pale": f"have no pixel value below {_PALE}: it looks as if values in [0, 1] had been "
    "converted as if they were in [-1, 1]; omit (x + 1) / 2",
    "clipped": f"have more than {_SATURATED:.0%} of their values at 0 or 255: unless they are "
    "drawings in pure colours, values of a wider range, such as normalised ones, were clipped "
    "when they were converted to bytes",
    "dark": f"have no pixel value above {_DARK}: they show something dark, or their values were "
    "scaled down twice",
    "odd size": "are not {} pixels like the others: check that they belong to the set",
    "gray": "are grayscale and the others are in colour",
    "strong compression": f"are JPEGs of quality below {_STRONG} (the median is {{}}): "
    "compression artefacts change the distance; compress less, or both sets alike",
    "mixed formats": "are in a lossy format (JPEG, lossy WebP) and the others are not, so only "
    "some have compression artefacts: save all in the same format",
}
"""What is said of the images of a finding, by its code. ``{}`` is replaced by a detail."""


About = Literal["fake", "real", "pair"]
"""What a finding is about: FAKE, REAL, or FAKE compared with REAL."""
UNREADABLE = "unreadable"
"""Code of the finding about files that cannot be read."""


@dataclass(frozen=True)
class Finding:
    """Something that is, or may be, wrong with a set of images.

    Attributes:
        code: identifier for scripts, such as ``noise``.
        severity: effect on the distance: ``high`` means that it says little about the generator,
            ``medium`` that it changes noticeably, ``low`` that it may change.
        count: number of images concerned.
        example: path of one of these images; empty if the finding is about the set as a whole.
        message: a sentence with what was found, how many images, the probable cause and the remedy.
        set: what it is about: FAKE, REAL, or FAKE compared with REAL.
    """

    code: str
    severity: Severity
    count: int
    example: str
    message: str
    set: About = "fake"


_Found = tuple[str, Severity, Flags, str]
"""Code, severity, which images are concerned, and what replaces ``{}`` in the text."""


def set_findings(images: ImageRecords) -> list[Finding]:
    """Returns the findings about the images of one set, the most severe first."""
    found = list[Finding]()
    measures = Measures(images.records)
    for code, severity, which, detail in (*_values(measures), *_mixtures(measures)):
        message = f"{which.sum()} of {len(images)} images {_TEXTS[code].format(detail)}"
        found.append(_finding(code, severity, images, which, message))
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _finding(
    code: str, severity: Severity, images: ImageRecords, which: Flags, message: str
) -> Finding:
    return Finding(code, severity, int(which.sum()), images.file(int(which.argmax())), message)


def unreadable_findings(files: Sequence[BadFile]) -> list[Finding]:
    """Returns the finding about the files of a set that cannot be read, if there are any."""
    if not files:
        return []
    number = counted(len(files), "file")
    message = (
        f"{number} cannot be read (for example: {files[0].reason}): fix or remove unreadable files"
    )
    return [Finding(UNREADABLE, "high", len(files), files[0].file, message)]


def property_warnings(counts: Mapping[str, int]) -> dict[str, str]:
    """Returns warnings about images with a property, given the attributes of an
    `ImageProperties`.
    """
    value_range = option("value_range")
    most_bands = counts["most_bands"]
    texts = {
        "alpha": "with transparent pixels: transparency is dropped, and the colours stored in "
        "these pixels are used; composite the images onto a background first if you do not want "
        "that",
        "deep": "with 9 to 16 bits per channel, which were scaled to 8 bits; other tools clip them "
        "to white",
        "animated": "with several frames, of which only the first is used; to use all, pass "
        f"{option('frames', 'all')}",
        "bands": f"with bands besides colour and transparency (up to {most_bands} in all): the "
        "first 3 are used as RGB, 4 as CMYK, or 1 as gray; to use others, save them as RGB",
        "rotated": "with an EXIF orientation, which is not applied, as in the tools that the "
        "protocols are named after: the pixels are used as stored; rotate the images first if "
        "you do not want that",
        "clipped": f"with values outside {value_range}, which were clipped to it: check that the "
        "range is right",
    }
    return {
        name: f"{counted(counts[name], 'image')} {text}"
        for name, text in texts.items()
        if counts[name]
    }


def property_findings(images: ImageRecords) -> list[Finding]:
    """Returns the `property_warnings` as findings; `set_findings` lacks them, as `fidtool stats`
    gives them anyway.
    """
    modes = (mode.decode().partition("+") for mode in np.unique(images.records["mode"]).tolist())
    most_bands = max((len(mode) + int(more) for mode, _, more in modes if more), default=0)
    which = {name: images.records["flags"] >> bit & 1 == 1 for name, bit in FLAGS.items()}
    counts = {name: int(some.sum()) for name, some in which.items()}
    texts = property_warnings(counts | {"most_bands": most_bands})
    return [_finding(name, "low", images, which[name], text) for name, text in texts.items()]


def _values(images: Measures) -> Iterator[_Found]:
    low = images.records["low"]
    high = images.records["high"]
    constant = low == high
    unscaled = high <= _UNSCALED
    if unscaled.mean() > 0.5:
        yield (
            "unscaled" if (high[unscaled] > 0).mean() > _ODD_ONES else "black",
            "high",
            unscaled,
            "",
        )
    elif constant.any():
        yield "constant", "high" if constant.mean() > 0.01 else "low", constant, ""
    noise = _noise(images)
    if noise.sum() > max(min(_FEW, len(images) // 2), 0.01 * len(images)):
        yield "noise", "high", noise, ""
    torn = images.torn > _TORN
    ends = images.zeros + images.full
    negative = (
        torn
        & (images.zeros > _BLACK_SHARE)
        & (images.zeros < _MOSTLY_BLACK)
        & (images.full < _MIXED)
    )
    negative &= images.contrast >= _CLIPPED_CONTRAST
    pale = (low >= _PALE) & ~constant
    if negative.mean() > _NEGATIVE:
        yield "negative", "medium", negative, ""
        return
    if pale.mean() > _MOST:
        yield "pale", "high", pale, ""
        return
    clipped = (
        torn
        & (np.minimum(images.zeros, images.full) > _EACH_END)
        & (ends > _SATURATED)
        & (ends < _MOST)
    )
    if clipped.mean() > _CLIPPED:
        yield "clipped", "high", clipped, ""
    dark = (high <= _DARK) & (high > _UNSCALED) & ~constant
    if dark.mean() > _MIXED and dark.sum() > _FEW:
        yield "dark", "low", dark, ""


def _noise(images: Measures) -> Flags:
    two_valued = images.records["bins"][:, [0, -1]].sum(axis=1) > _MOST * images.records["values"]
    strong = (images.contrast >= _NOISE_CONTRAST) | (
        (images.contrast >= _FAINT) & (images.light >= _DARK)
    )
    return np.asarray((images.records["roughness"] >= NOISE) & strong & ~two_valued)


def _mixtures(images: Measures) -> Iterator[_Found]:
    odd = images.odd_sized
    if 0 < odd.sum() <= _OTHER_SIZES * len(images):
        usual = images.records[odd.argmin()]
        yield "odd size", "low", odd, f"{usual['width']} x {usual['height']}"
    gray = images.gray & (images.records["low"] < images.records["high"])
    if _MIXED < gray.mean() <= 0.5 and gray.sum() > _FEW:
        yield "gray", "low", gray, ""
    quality = images.records["quality"]
    if len(images.qualities) and (median := np.median(images.qualities)) < _STRONG:
        yield "strong compression", "medium", (quality > 0) & (quality < _STRONG), f"{median:.0f}"
    if _MIXED < images.lossy.mean() < 1 - _MIXED:
        yield "mixed formats", "low", images.lossy, ""
