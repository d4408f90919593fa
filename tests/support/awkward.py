"""The collection of awkward files, and the message expected for each."""

from __future__ import annotations

from fidtool.images.decode import DecodeError, decode
from support.places import CONFORMANCE, TINY

AWKWARD = CONFORMANCE / "awkward"
SETTINGS = ["--extractor", TINY.replace(":network", ":colours"), "--no-cache", "--json", "--quiet"]


def refused(name: str) -> bool:
    """Return whether `decode` rejects the file. Other tests compare `decode` with the manifest."""
    try:
        decode((AWKWARD / name).read_bytes())
    except DecodeError:
        return True
    return False
