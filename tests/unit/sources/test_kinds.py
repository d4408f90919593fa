"""Image formats are detected by first bytes, and text files are not mistaken for images."""

from __future__ import annotations

from typing import Any

import pytest

from fidtool.sources.kinds import describe_foreign, detect_format
from support.encoded import encoded, noise


@pytest.mark.parametrize(
    ("file_format", "settings", "expected"),
    [
        *((name, {}, name) for name in ("PNG", "JPEG", "GIF", "TIFF")),
        ("WEBP", {}, "WebP"),
        ("JPEG2000", {}, "JPEG 2000"),
        ("JPEG2000", {"no_jp2": True}, "JPEG 2000"),
        ("AVIF", {}, "AVIF"),
    ],
)
def test_formats_are_detected_by_their_first_bytes(
    file_format: str, settings: dict[str, Any], expected: str
) -> None:
    try:
        data = encoded(noise(), file_format, **settings)
    except (OSError, KeyError):
        pytest.skip(f"this Pillow cannot write {file_format}")
    assert detect_format(data) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"BM is what they call it, for a reason nobody remembers",
        b"Python",
        b"\0\0\0\x18ftypisom",
    ],
)
def test_texts_and_videos_are_not_images(head: bytes) -> None:
    assert detect_format(head) == ""


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("<!DOCTYPE html>".encode("utf-16"), "a web page or XML in UTF-16"),
        ("<html>".encode("utf-16-be"), "a web page or XML in UTF-16"),
        ("images/0.png".encode("utf-16"), "text in UTF-16"),
        ("Größe\n".encode() * 99, "plain text"),
        (b"MATLAB 5.0 MAT-file, Platform: GLNXA64", "a MATLAB file"),
    ],
)
def test_foreign_contents(head: bytes, kind: str) -> None:
    assert describe_foreign(head).startswith(kind)
    assert describe_foreign(bytes(range(32, 256)) * 4) == "", "pixels without a header are not text"
