"""The definition of a feature's value: statistics can be compared if their definitions are equal."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields

from fidtool.features.protocol import INCEPTION, PROTOCOLS, SPATIAL_EXTRACTOR


@dataclass(frozen=True)
class Definition:
    """Everything that defines a feature's value. Values with equal definitions can be compared.

    Attributes:
        extractor: name of the network; for a user's file, with the start of the file's SHA-256.
        weights_sha256: SHA-256 over the network's tensors in a fixed order. It does not depend on the file that they
            are stored in.
        dims: length of a feature vector.
        feature_step: features are rounded to multiples of 2 ** -feature_step before they are summed.
        input_size: side of the network's square input in pixels.
        normalization: the map from a pixel value in 0..255 to the network's input.
        resize: how images are cropped and resized, see `Preparation.describe`.
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
        """Return canonical JSON with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def network(self) -> str:
        """The extractor without the start of a file's SHA-256, which changes with each edit of the file."""
        return re.sub("@[0-9a-f]{12}$", "", self.extractor)

    @property
    def standard(self) -> bool:
        """Whether the network is Inception, whose ``feature_step`` is fixed."""
        return self.extractor in (INCEPTION, SPATIAL_EXTRACTOR)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Definition:
        """Parse the result of `to_json`."""
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
        """Return one phrase per difference, such as ``dims 2048 against 768``."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{name} {mine[name]} against {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    @property
    def protocol_name(self) -> str | None:
        """Name of the protocol with this resize and ddof; None if there is none."""
        for protocol in PROTOCOLS.values():
            if (self.resize, self.ddof) == (protocol.resize, protocol.ddof):
                return protocol.name
        return None


_FIELD_TYPES = {each.name: {"int": int, "str": str}[str(each.type)] for each in fields(Definition)}
