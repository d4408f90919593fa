"""What defines a number, written down: two statistics may be compared where their definitions are equal.

Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from fidtool.features.protocol import INCEPTION, PROTOCOLS, SPATIAL_EXTRACTOR


@dataclass(frozen=True)
class Definition:
    """Everything that defines a feature's value: equal definitions, comparable numbers.

    Attributes:
        extractor: name of the network; for a file of the user's with the start of the file's SHA-256.
        weights_sha256: SHA-256 over the network's tensors in a fixed order (not over a file, so that the same network
            from another file has the same one).
        dims: length of a feature vector.
        feature_step: features are rounded to multiples of 2 ** -feature_step before they are summed.
        input_size: side of the square that images are resized to, in pixels.
        normalization: how a pixel value in 0..255 enters the network.
        resize: how images are framed and resized, see `Preparation.describe`.
        decoder: what turned bytes into pixels.
        ddof: the covariance is divided by n - ddof.
    """

    extractor: str
    weights_sha256: str
    dims: int
    feature_step: int
    input_size: int
    normalization: str
    resize: str
    decoder: str
    ddof: int

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces to spare."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def network(self) -> str:
        """The extractor without the start of a file's SHA-256, which changes with each edit."""
        return re.sub("@[0-9a-f]{12}$", "", self.extractor)

    @property
    def standard(self) -> bool:
        """Whether it is of Inception, whose step belongs to the protocols and is not a choice to be judged."""
        return self.extractor in (INCEPTION, SPATIAL_EXTRACTOR)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Definition:
        """Reads `to_json` back.

        Raises:
            ValueError: the text is not a definition that this version understands.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict) or not set(_FIELD_TYPES) <= set(fields):
            raise ValueError(f"it should be a JSON object with {', '.join(_FIELD_TYPES)}")
        if unknown := set(fields) - set(_FIELD_TYPES):
            raise ValueError(f"a newer version wrote {', '.join(sorted(unknown))}")
        for name, kind in _FIELD_TYPES.items():
            if type(fields[name]) is not kind:
                raise ValueError(f"{name} is {fields[name]!r}, not of type {kind.__name__}")
        return cls(**fields)

    def differences(self, other: Definition) -> list[str]:
        """What differs, a phrase each: ``dims 2048 against 768``."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{name} {mine[name]} against {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    @property
    def protocol_name(self) -> str | None:
        """Name of the protocol with this resize and ddof, if there is one."""
        for protocol in PROTOCOLS.values():
            if (self.resize, self.ddof) == (protocol.resize, protocol.ddof):
                return protocol.name
        return None


_FIELD_TYPES = {
    "extractor": str,
    "weights_sha256": str,
    "dims": int,
    "feature_step": int,
    "input_size": int,
    "normalization": str,
    "resize": str,
    "decoder": str,
    "ddof": int,
}
