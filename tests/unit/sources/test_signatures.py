"""Image formats are detected by first bytes, and text files are not mistaken for images."""

from __future__ import annotations

from typing import Any

import pytest

from fidtool.sources.census import format_of
from support.source_forms import encoded


@pytest.mark.parametrize(
    ("file_format", "settings", "expected"),
    [
        *((name, {}, name) for name in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM")),
        ("WEBP", {}, "WebP"),
        ("JPEG2000", {}, "JPEG 2000"),
        ("JPEG2000", {"no_jp2": True}, "JPEG 2000"),
        ("AVIF", {}, "AVIF"),
    ],
)
def test_formats_are_detected_by_their_first_bytes(file_format: str, settings: dict[str, Any], expected: str) -> None:
    try:
        data = encoded(file_format, **settings)
    except (OSError, KeyError):
        pytest.skip(f"this Pillow cannot write {file_format}")
    assert format_of(data) == expected


@pytest.mark.parametrize(
    "head", [b"", b"BM is what they call it, for a reason nobody remembers", b"Python", b"P5", b"\0\0\0\x18ftypisom"]
)
def test_texts_and_videos_are_not_images(head: bytes) -> None:
    assert format_of(head) == ""


@pytest.mark.parametrize(
    "text",
    [b"P2 3 people", b"P1: the first", b"P6 24 hours on 3 days", b"P1 10 20 things", b"P5 # a caption", b"\xff\x0a"],
)
def test_texts_have_no_image_format(text: bytes) -> None:
    assert format_of(text) == ""


@pytest.mark.parametrize(
    "header", [b"P6\n# made by hand\n3 4\n255\n", b"P5 3 4 65535 ", b"P1\n2 2\n0 1\n1 0", b"P4\n8 1\n\xff"]
)
def test_headers_of_ppm(header: bytes) -> None:
    assert format_of(header) == "PPM"
