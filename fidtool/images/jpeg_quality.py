"""How strongly a JPEG was compressed, read off its quantisation tables. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

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
