"""The environment variables of fidtool: what each sets, and what applies without it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fidtool.errors import InputError


@dataclass(frozen=True)
class Variable:
    """An environment variable. An empty one counts as not set.

    Attributes:
        name: name, which begins with ``FIDTOOL_``.
        about: what it sets, as one or more sentences for the guide.
        default: what applies if it is not set: a phrase for the guide, or a number of bytes.
    """

    name: str
    about: str
    default: str | int

    @property
    def value(self) -> str:
        """The value; empty if it is not set."""
        return os.environ.get(self.name, "")

    def byte_limit(self) -> int:
        """Return the value of a limit in bytes.

        Raises:
            InputError: if it is not an integer of at least 0.
        """
        value = self.value
        if not value:
            return int(self.default)
        if not (value.isascii() and value.isdecimal()):
            raise InputError(
                f"{self.name} must be a number of bytes such as {self.default}, not {value!r}"
            )
        return int(value)


CACHE = Variable(
    "FIDTOOL_CACHE",
    "Folder of the cache. It is created when something is stored.",
    "`$XDG_CACHE_HOME/fidtool`, or `~/.cache/fidtool` if that variable is not set",
)
CACHE_BYTES = Variable(
    "FIDTOOL_CACHE_BYTES",
    "Largest size of the statistics in the cache, in bytes: about 40 sets with 2048 dimensions by "
    "default. The least recently used statistics are deleted first.",
    2 << 30,
)
FEATURE_BYTES = Variable(
    "FIDTOOL_FEATURE_BYTES",
    "Largest size, in bytes, of one set's per-image features that are kept in memory. Larger "
    "features are kept in an unnamed file in the cache folder.",
    1 << 28,
)
REMOTE_BYTES = Variable(
    "FIDTOOL_REMOTE_BYTES",
    "Largest size of the copies of remote files in the cache, in bytes. The least recently used "
    "copies are deleted first.",
    10 << 30,
)
WEIGHTS = Variable(
    "FIDTOOL_WEIGHTS",
    "File with the published Inception weights. If it is set, no other location is searched. "
    "`--weights` overrides it.",
    "the first location that has them, see [weights](weights.md)",
)
WEIGHTS_URL = Variable(
    "FIDTOOL_WEIGHTS_URL",
    "Address from which the Inception weights are downloaded.",
    "the release of pytorch-fid on GitHub",
)
DINOV2_URL = Variable(
    "FIDTOOL_DINOV2_URL",
    "Address from which the weights of DINOv2 are downloaded.",
    "the address that Meta publishes",
)
REFERENCES_URL = Variable(
    "FIDTOOL_REFERENCES_URL",
    "Address of a mirror of the published references, such as `https://mirror` or "
    "`file:///folder`. Host and path of the published address are appended to it.",
    "the published addresses",
)
VARIABLES = (
    CACHE,
    CACHE_BYTES,
    FEATURE_BYTES,
    REMOTE_BYTES,
    WEIGHTS,
    WEIGHTS_URL,
    DINOV2_URL,
    REFERENCES_URL,
)
"""All of them."""


def check_variables() -> None:
    """Raise an InputError if a limit is invalid, before any work is done."""
    for variable in VARIABLES:
        if isinstance(variable.default, int):
            variable.byte_limit()
