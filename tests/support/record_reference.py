"""A plain implementation of `fidtool.reading.records.make_records`, one image at a time and without
vectorised tricks.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fidtool.reading.decode import DecodedImage
from fidtool.reading.records import BINS, FLAGS, RECORD, SIDE, RecordArray


def reference_record(image: DecodedImage) -> RecordArray:
    """Return the record of one image, an array of shape (1,)."""
    height, width, _ = image.pixels.shape
    record = np.zeros(1, dtype=RECORD)
    one = record[0]
    sha = hashlib.sha1(b"%d %d\0" % (height, width) + image.pixels.tobytes())
    one["digest"] = int.from_bytes(sha.digest()[:8], "little")
    one["height"], one["width"], one["quality"] = height, width, image.quality
    one["flags"] = sum(getattr(image.properties, name) << bit for name, bit in FLAGS.items())
    one["format"], one["mode"] = image.format.encode()[:8], image.mode.encode()[:6]
    down, right = max(1, height // 64), max(1, width // 64)
    sample = image.pixels[::down, ::right].astype(np.int64)
    one["low"], one["high"], one["values"] = sample.min(), sample.max(), sample.size
    one["zeros"], one["full"] = (sample == 0).sum(), (sample == 255).sum()
    one["bins"] = [(sample // (256 // BINS) == number).sum() for number in range(BINS)]
    one["black"] = (sample.sum(axis=2) == 0).sum()
    one["gray"] = all(len(set(pixel)) == 1 for pixel in sample.reshape(-1, 3).tolist())
    one["roughness"] = _roughness(
        sample[..., 1], image.pixels[::down, 1::right, 1].astype(np.int64)
    )
    one["thumb"] = _thumb(sample)
    one["lowest"], one["highest"] = image.pixels.min(), image.pixels.max()
    if min(width, height) >= 16:
        left, top = max(0, (width - 256) // 2), max(0, (height - 256) // 2)
        both = [
            image.pixels[:: -(-height // 32), left : left + 256, 1].astype(int).tolist(),
            image.pixels[top : top + 256, :: -(-width // 32), 1].T.astype(int).tolist(),
        ]
        one["bands"] = [
            min(65504.0, *(_detail(rows, band) for rows in both)) for band in range(1, 9)
        ]
        one["repeats"] = max(map(_repeats, both))
    return record


def _detail(rows: list[list[int]], band: int) -> float:
    starts = [(len(rows[0]) - 16) * number // 7 for number in range(8)]
    found = []
    for wave in (math.cos, math.sin) if band < 8 else (math.sin,):
        places = [number - 7.5 for number in range(16)]
        taps = [
            round(2047 * math.cos(math.pi * place / 16) ** 2 * wave(math.pi * band / 8 * place))
            for place in places
        ]
        taps[7], taps[8] = (taps[middle] - sum(taps) // 2 for middle in (7, 8))
        values = [
            sum(map(int.__mul__, taps, row[start : start + 16])) for row in rows for start in starts
        ]
        found.append(
            sum(value**2 for value in values) / (len(values) * sum(tap**2 for tap in taps))
        )
    return sum(found) / len(found)


def _repeats(rows: list[list[int]]) -> int:
    steps = [sum(abs(row[x + 1] - row[x]) for row in rows) for x in range(len(rows[0]) - 1)]
    pairs = [sorted(pair) for pair in itertools.pairwise(steps)]
    return 100 * sum(4 * less < more and more >= len(rows) for less, more in pairs) // len(pairs)


def _roughness(green: NDArray[np.int64], neighbours: NDArray[np.int64]) -> int:
    steps = neighbours - green[:, : neighbours.shape[1]]
    variance = (
        Fraction(int((green**2).sum()), green.size) - Fraction(int(green.sum()), green.size) ** 2
    )
    if not variance or not steps.size:
        return 0
    return min(255, int(100 * Fraction(int((steps**2).sum()), steps.size) / (2 * variance)))


def _thumb(sample: NDArray[np.int64]) -> list[int]:
    for axis in (0, 1):
        if sample.shape[axis] < SIDE:
            sample = np.repeat(sample, -(-SIDE // sample.shape[axis]), axis)
    cells = [[_cell(sample, row, column) for column in range(SIDE)] for row in range(SIDE)]
    brightness = [_nearest(_luma(cell), 1000 * len(cell)) for row in cells for cell in row]
    half = SIDE // 2
    quarters = [
        np.concatenate(
            [cell for row in cells[top : top + half] for cell in row[left : left + half]]
        )
        for top in (0, half)
        for left in (0, half)
    ]
    colours = [
        _nearest(1000 * int(cell[:, channel].sum()) - _luma(cell), 2000 * len(cell)) + 128
        for channel in (2, 0)
        for cell in quarters
    ]
    return brightness + colours


def _cell(sample: NDArray[np.int64], row: int, column: int) -> NDArray[np.int64]:
    height, width, _ = sample.shape
    rows = slice(row * height // SIDE, (row + 1) * height // SIDE)
    columns = slice(column * width // SIDE, (column + 1) * width // SIDE)
    return sample[rows, columns].reshape(-1, 3)


def _luma(pixels: NDArray[np.int64]) -> int:
    red, green, blue = pixels.sum(axis=0).tolist()
    return int(299 * red + 587 * green + 114 * blue)


def _nearest(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
