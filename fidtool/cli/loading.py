"""Imports of torch, as fast as they go."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For a ``with`` block of imports: without the garbage collector, which finds nothing among modules.

    It looked through them again and again, for an eighth of the time that importing torch takes; it leaves them alone
    afterwards, too.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.enable()
