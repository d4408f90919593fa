"""Sources in which every image is a file. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fidtool.sources.contents import Read, Reader
from fidtool.sources.files import Files


class WholeFiles(Reader):
    """Reads images that are a file each.

    Args:
        files: the files; image i is file i.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.at_once = files.at_once

    def read(self, items: Sequence[int]) -> list[Read]:
        return list(self._files.fetch([(int(item), 0, -1) for item in items]))

    def expecting(self, sizes: NDArray[np.int64]) -> WholeFiles:
        return WholeFiles(self._files.expecting(sizes))
