"""Pillow as it comes, whatever a program has made of it: its settings are global. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator

from PIL import Image, ImageFile

_turn = threading.Lock()
"""Pillow's settings and Python's warning filters are global: threads that overlapped would restore each other's."""


def _renew_turn() -> None:
    global _turn
    _turn = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    # A process forked while another thread was decoding would wait for that thread, which it does not have.
    os.register_at_fork(after_in_child=_renew_turn)


@contextlib.contextmanager
def undisturbed(max_pixels: int | None = None) -> Iterator[None]:
    """One thread at a time has Pillow with fidtool's settings; afterwards the program's are back.

    Args:
        max_pixels: beyond this, Pillow refuses an image with an `Image.DecompressionBombError`; None leaves its limit.
    """
    with _turn, warnings.catch_warnings():
        # Pillow's remarks are about size and palettes; what matters of them is reported by our own means.
        warnings.simplefilter("ignore")
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        if max_pixels is not None:
            # Pillow warns beyond this and refuses beyond twice this; a half matters where the limit is odd.
            Image.MAX_IMAGE_PIXELS = max_pixels / 2  # type: ignore[assignment]
        ImageFile.LOAD_TRUNCATED_IMAGES = False  # training scripts like to set it: half an image would count as whole
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before
