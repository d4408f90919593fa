"""Versions of what touches the numbers."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version

from PIL import features as pillow_features


def versions() -> dict[str, str]:
    """Versions of what touches the numbers: Python, the libraries, and the JPEG decoder inside Pillow."""
    found = {"python": platform.python_version()}
    for name in ("fidtool", "torch", "torchvision", "numpy", "scipy", "pillow"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    found["libjpeg"] = libjpeg()
    return found


def libjpeg() -> str:
    """Version of the JPEG decoder inside Pillow."""
    return pillow_features.version("libjpeg_turbo") or pillow_features.version("jpg") or "none"
