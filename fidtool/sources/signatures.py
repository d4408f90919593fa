"""Which format a file is in, by its first bytes. Imports no torch.

Pillow's plugins tell formats apart as well, but which of them there are depends on how Pillow was built, and some are
content with two letters that a text may begin with.
"""

from __future__ import annotations

import re

HEAD = 64
"""So many first bytes tell."""
AVIF, HEIF, JPEG_2000, WEBP = "AVIF", "HEIF", "JPEG 2000", "WebP"
WITHOUT_SUFFIX = frozenset({"JPEG XL", "QOI", "PSD"})
"""No suffix that makes a file an image means these."""

_BMP_HEADERS = rb"[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0"
"""Sizes of the header that follows the file's own."""
_PPM_SPACE = rb"\s+(?:#[^\n]*\n\s*)*"
"""Between the numbers of a PPM's header there may be comments."""
_PPM_SIZES = _PPM_SPACE + rb"\d+" + _PPM_SPACE + rb"\d+"
_SIGNATURES = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
    "BMP": rb"BM.{4}.{4}.{4}" + _BMP_HEADERS,
    WEBP: rb"RIFF.{4}WEBP",
    # A caption, too, may begin with P2: only two colours leave out the largest value, which is the third number.
    "PPM": rb"P1" + _PPM_SIZES + rb"\s+[01]|P4" + _PPM_SIZES + rb"\s|P[2356]" + _PPM_SIZES + _PPM_SPACE + rb"\d+\s",
    JPEG_2000: rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": rb"\0\0\0\x0cJXL \r\n\x87\n",  # a bare codestream has two bytes, as other files may
    "QOI": rb"qoif",
    "PSD": rb"8BPS\0\x01",
    # A container's first brand may be one that both have; then the others tell.
    AVIF: rb".{4}ftyp(?:avif|avis|(?:mif1|msf1).{4}(?:.{4})*?(?:avif|avis))",
    HEIF: rb".{4}ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)",
}
_PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _SIGNATURES.items()}


def format_of(head: bytes) -> str:
    """The image format that a file with these first bytes, `HEAD` of them, is in; empty if it is none of these."""
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(head[:HEAD])), "")
