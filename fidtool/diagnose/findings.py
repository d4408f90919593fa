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
from fidtool.names import format_count
from fidtool.reading.records import FLAGS, NOISE, ImageRecords
from fidtool.sources.contents import BadFile

# Largest pixel value of an image that is black or unscaled: values in [0, 1] saved as bytes are 0
# or 1, and lossy compression may change them a little.
_UNSCALED = 2
# Smallest pixel value of a pale image: (x + 1) / 2 maps [0, 1] to 127..255, and lossy compression
# may lower that a little.
_PALE = 120
# Least contrast of noise, in grey levels: in dark images, and in images whose mean brightness is at
# least `_DARK`. Rough images of less contrast are photos of something dark, or flat, with the noise
# of the sensor.
_NOISE_CONTRAST = 25.0
_FAINT = 12.0
# In grey levels: an image is dark if no value is larger (it uses a quarter of the range); for
# noise, if its mean brightness is below this.
_DARK = 64
# Least contrast, in grey levels, of an image with values clipped at 0: dark images of less contrast
# may have many zeros anyway.
_CLIPPED_CONTRAST = 30.0
# Shares of values at 0 between which an image may have been clipped there: with more, it is an
# image on black.
_BLACK_SHARE = 0.3
_MOSTLY_BLACK = 0.85
# Least share of values at 0 in pixels that are not black: clipping sets single channels to 0,
# whereas all three are 0 in a black background.
_TORN = 0.03
# Share of images clipped at 0 that is reported. Half of the photos that were clipped this way are
# recognised; of photos that were not, 5 % look clipped, and 20 % of those with high contrast.
_NEGATIVE = 0.35
# An image is clipped at both ends if more than 20 % of its values are 0 or 255, and more than 2 %
# are at each end. It is reported if more than 30 % of the images are.
_SATURATED = 0.2
_EACH_END = 0.02
_CLIPPED = 0.3
# JPEG artefacts change every image below this quality.
_STRONG = 65
# Share of nearly black images that must have values above 0 for the set to be unscaled rather than
# black.
_ODD_ONES = 0.02
# Up to this share of images of a different size is reported as odd; with more, the sizes vary.
_OTHER_SIZES = 0.2
# Noise is reported for more images than this or half of the set, and more than 1 % of the set; dark
# and gray images for more than this, as some photos are.
_MIN_COUNT = 2
# Up to this share, images of a different kind (dark, grayscale, lossy) are not reported, nor do
# white values count against clipping at 0.
_MAX_ODD_SHARE = 0.05
# Share that counts as nearly all images, or nearly all values of an image.
_NEARLY_ALL = 0.9
ALWAYS_UNUSUAL = ("unscaled", "black", "pale")
"""Findings that are reported even if both sets have them, because one faulty program may have
written both. Noise is not one of them, as some textures are noisy.
"""

TEXTS = {
    "unscaled": f"have no pixel value above {_UNSCALED}: values in [0, 1] were saved as bytes "
    "without scaling; multiply them by 255",
    "black": "are black: they are failed samples (NaN becomes 0), images blanked by a filter, or "
    "values below 1 saved as bytes; check what the generator returns",
    "constant": "have a single colour: remove them, or generate them again if they are samples",
    "noise": "look like noise (neighbouring pixels are unrelated): the generator is untrained or "
    "has diverged, too few sampling steps were used, or values overflowed when they were "
    "converted to bytes",
    "negative": f"have more than {_BLACK_SHARE:.0%} of their values at 0, often in a single "
    "channel: it looks as if values in [-1, 1] were clipped to [0, 1]; convert them with (x + 1) "
    "/ 2",
    "pale": f"have no pixel value below {_PALE}: it looks as if values in [0, 1] were converted "
    "as values in [-1, 1]; omit (x + 1) / 2",
    "clipped": f"have more than {_SATURATED:.0%} of their values at 0 or 255: unless they are "
    "drawings in pure colours, values of a wider range, such as normalised ones, were clipped "
    "when they were converted to bytes",
    "dark": f"have no pixel value above {_DARK}: they show something dark, or their values were "
    "scaled down twice",
    "odd size": "are not {} pixels like the others: check that they belong to the set",
    "gray": "are grayscale and the others are in colour",
    "strong compression": f"are JPEGs with a quality below {_STRONG} (the median is {{}}): "
    "compression artefacts change the distance; compress less, or compress both sets in the same "
    "way",
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
        severity: effect on the distance: ``high`` means that the distance says little about the
            generator, ``medium`` that it changes noticeably, ``low`` that it may change.
        count: number of images concerned.
        example: path of one of these images; empty if the finding is about the set as a whole.
        message: a sentence that states what was found in how many images, the probable cause and
            the remedy.
        set: what it is about: FAKE, REAL, or FAKE compared with REAL.
    """

    code: str
    severity: Severity
    count: int
    example: str
    message: str
    set: About = "fake"


def set_findings(images: ImageRecords) -> list[Finding]:
    """Return the findings about the images of one set, the most severe first."""
    return sorted(
        [*_value_findings(images), *_mixture_findings(images)],
        key=lambda finding: SEVERITIES.index(finding.severity),
    )


def _make_finding(
    images: ImageRecords, code: str, severity: Severity, which: Flags, message: str
) -> Finding:
    return Finding(code, severity, int(which.sum()), images.file(int(which.argmax())), message)


def _make_known_finding(
    images: ImageRecords, code: str, severity: Severity, which: Flags, detail: str = ""
) -> Finding:
    """Return a finding with the text of its code, in which ``detail`` replaces the braces."""
    message = f"{which.sum()} of {len(images)} images {TEXTS[code].format(detail)}"
    return _make_finding(images, code, severity, which, message)


def unreadable_findings(files: Sequence[BadFile]) -> list[Finding]:
    """Return the finding about the files of a set that cannot be read, if there are any."""
    if not files:
        return []
    message = (
        f"{format_count(len(files), 'file')} cannot be read (for example: {files[0].reason}): fix "
        "or remove unreadable files"
    )
    return [Finding(UNREADABLE, "high", len(files), files[0].file, message)]


def property_warnings(counts: Mapping[str, int]) -> dict[str, str]:
    """Return warnings about images with a property, given the attributes of an
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
        "first 3 are used as RGB, 4 as CMYK, or 1 as grey; to use others, save them as RGB",
        "rotated": "with an EXIF orientation, which is not applied, as in the tools that the "
        "protocols are named after: the pixels are used as stored; rotate the images first if "
        "you do not want that",
        "clipped": f"with values outside {value_range}, which were clipped to it: check that the "
        "range is right",
    }
    return {
        name: f"{format_count(counts[name], 'image')} {text}"
        for name, text in texts.items()
        if counts[name]
    }


def property_findings(images: ImageRecords) -> list[Finding]:
    """Return the `property_warnings` as findings; `set_findings` lacks them, as `fidtool stats`
    gives them anyway.
    """
    measures = Measures(images.records)
    counts = {name: int(measures.has_flag(name).sum()) for name in FLAGS}
    counts["most_bands"] = 0
    for mode in np.unique(images.records["mode"]).tolist():
        bands, _, more = mode.decode().partition("+")
        if more:
            counts["most_bands"] = max(counts["most_bands"], len(bands) + int(more))
    return [
        _make_finding(images, name, "low", measures.has_flag(name), text)
        for name, text in property_warnings(counts).items()
    ]


def _value_findings(images: ImageRecords) -> Iterator[Finding]:
    measures = Measures(images.records)
    low = images.records["low"]
    high = images.records["high"]
    constant = low == high
    unscaled = high <= _UNSCALED
    if unscaled.mean() > 0.5:
        has_values = (high[unscaled] > 0).mean() > _ODD_ONES
        yield _make_known_finding(images, "unscaled" if has_values else "black", "high", unscaled)
    elif constant.any():
        severity: Severity = "high" if constant.mean() > 0.01 else "low"
        yield _make_known_finding(images, "constant", severity, constant)
    noise = _is_noise(measures)
    if noise.sum() > max(min(_MIN_COUNT, len(images) // 2), 0.01 * len(images)):
        yield _make_known_finding(images, "noise", "high", noise)
    torn = measures.torn > _TORN
    zeros = measures.zeros
    full = measures.full
    negative = torn & (zeros > _BLACK_SHARE) & (zeros < _MOSTLY_BLACK) & (full < _MAX_ODD_SHARE)
    negative &= measures.contrast >= _CLIPPED_CONTRAST
    if negative.mean() > _NEGATIVE:
        yield _make_known_finding(images, "negative", "medium", negative)
        return
    pale = (low >= _PALE) & ~constant
    if pale.mean() > _NEARLY_ALL:
        yield _make_known_finding(images, "pale", "high", pale)
        return
    clipped = torn & (np.minimum(zeros, full) > _EACH_END)
    clipped &= (zeros + full > _SATURATED) & (zeros + full < _NEARLY_ALL)
    if clipped.mean() > _CLIPPED:
        yield _make_known_finding(images, "clipped", "high", clipped)
    dark = (high <= _DARK) & ~unscaled & ~constant
    if dark.mean() > _MAX_ODD_SHARE and dark.sum() > _MIN_COUNT:
        yield _make_known_finding(images, "dark", "low", dark)


def _is_noise(images: Measures) -> Flags:
    records = images.records
    two_valued = records["bins"][:, [0, -1]].sum(axis=1) > _NEARLY_ALL * records["values"]
    least_contrast = np.where(images.light >= _DARK, _FAINT, _NOISE_CONTRAST)
    rough = records["roughness"] >= NOISE
    return np.asarray(rough & (images.contrast >= least_contrast) & ~two_valued)


def _mixture_findings(images: ImageRecords) -> Iterator[Finding]:
    measures = Measures(images.records)
    odd = measures.odd_sized
    if 0 < odd.sum() <= _OTHER_SIZES * len(images):
        usual = images.records[odd.argmin()]
        size = f"{usual['width']} x {usual['height']}"
        yield _make_known_finding(images, "odd size", "low", odd, size)
    gray = measures.gray & (images.records["low"] < images.records["high"])
    if _MAX_ODD_SHARE < gray.mean() <= 0.5 and gray.sum() > _MIN_COUNT:
        yield _make_known_finding(images, "gray", "low", gray)
    quality = images.records["quality"]
    strong = (quality > 0) & (quality < _STRONG)
    if strong.any():
        median = np.median(measures.qualities)
        if median < _STRONG:
            yield _make_known_finding(
                images, "strong compression", "medium", strong, f"{median:.0f}"
            )
    if _MAX_ODD_SHARE < measures.lossy.mean() < 1 - _MAX_ODD_SHARE:
        yield _make_known_finding(images, "mixed formats", "low", measures.lossy)
