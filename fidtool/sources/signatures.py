"""Detects image formats by the first bytes of a file."""

from __future__ import annotations

import re

HEAD = 64
"""Number of bytes that `format_of` needs."""
AVIF, HEIF, JPEG_2000, WEBP = "AVIF", "HEIF", "JPEG 2000", "WebP"
_SIGNATURES = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
    WEBP: rb"RIFF.{4}WEBP",
    JPEG_2000: rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    # The major brand may be one that AVIF and HEIF share; then the compatible brands decide.
    AVIF: rb".{4}ftyp(?:avif|avis|(?:mif1|msf1).{4}(?:.{4})*?(?:avif|avis))",
    HEIF: rb".{4}ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)",
}
_PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _SIGNATURES.items()}


def format_of(head: bytes) -> str:
    """Returns the image format of a file by its first `HEAD` bytes; empty if it is none of those listed here.

    Pillow's plugins also detect formats, but they depend on how Pillow was built, and some check only two letters,
    with which a text file may begin as well.
    """
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(head[:HEAD])), "")
