"""The collection of awkward files, and what must be said of each."""

from __future__ import annotations

from fidtool.images.decode import DecodeError, decode
from support.places import CONFORMANCE, TINY

AWKWARD = CONFORMANCE / "awkward"
SETTINGS = ["--extractor", TINY.replace(":network", ":colours"), "--no-cache", "--json", "--quiet"]


def refused(name: str) -> bool:
    """Whether `decode`, which tests of its own compare with the manifest, cannot read the file."""
    try:
        decode((AWKWARD / name).read_bytes())
    except DecodeError:
        return True
    return False
