"""Files of given pixels, and what is recorded of them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from fidtool.images.decode import decode
from fidtool.images.inspection import Records, inspect
from support.degenerate import Pixels


def encoded(pixels: Pixels, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def records_of(files: Sequence[bytes]) -> Records:
    return np.concatenate([inspect(decode(data)) for data in files])
