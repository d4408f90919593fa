"""The protocols, the names of feature layers, and the definition of a feature's value.

A protocol defines how pixels enter Inception and how the covariance is normalised. Together with
the network it defines the value of the distance: statistics can be compared if their definitions
are equal.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from fidtool.errors import InputError, option
from fidtool.names import fold, unknown_name_error

if TYPE_CHECKING:
    from fidtool.features.resize import Framing, Resize


class Protocol(NamedTuple):
    """The way in which one tool of the field computes the FID.

    Attributes:
        name: value of ``--protocol``.
        resize: see `Resize`. Images are resized to the network's square without keeping their
            aspect ratio.
        equals: tools that compute the same value.
        used_by: papers and code that report it.
        other_names: further names that ``--protocol`` accepts and the help lists.
        understood: further names that ``--protocol`` accepts and the help does not list. Each
            stands for exactly this arithmetic.
        offset, scale: a pixel value x in 0..255 enters Inception as (x - offset) / scale.
        ddof: the covariance is divided by n - ddof.
        float_to_byte: how the tool converts floats to bytes, a value of ``--float-to-byte``.
    """

    name: str
    resize: Resize
    equals: str
    used_by: str
    other_names: tuple[str, ...] = ()
    understood: tuple[str, ...] = ()
    offset: float = 128.0
    scale: float = 128.0
    ddof: int = 1
    float_to_byte: str = "round"


class OwnProtocol(NamedTuple):
    """A way in which one published network prepares images. The covariance is divided by n - 1.

    Attributes:
        name: value of ``--protocol``; empty if it is only a default.
        resize, framing: see `Preparation`.
        equals: tools that compute the same value.
    """

    name: str
    resize: Resize
    framing: Framing
    equals: str


ProtocolName = Literal[
    "pytorch-fid", "tensorflow", "adm", "edm", "clean", "torchmetrics", "stylegan"
]
"""The names of the protocols that the help lists, for type checkers. `find_protocol` understands
others as well.
"""
NAMED_PROTOCOLS: tuple[str, ...] = get_args(ProtocolName)
OwnProtocolName = Literal["pil", "torch", "openai"]
"""The names of the `OWN_PROTOCOLS`."""
DEFAULT_PROTOCOL: ProtocolName = "pytorch-fid"

DECODER = "pillow"
"""Name of the decoder in the fingerprint: a different decoder changes a feature vector by about
5 %.
"""

INCEPTION = "inception-2015-12-05"
INCEPTION_SHA256 = "c9ce7f36d5ee9536ecde7e5b5b679a59d152a85abff7981e0d6c0e5d706e3557"
"""SHA-256 over the convolutions' float32 tensors, sorted by name, each after its name. It is the
same for all files.
"""
INCEPTION_DIMS = (64, 192, 768, 2048)
INCEPTION_INPUT_SIZE = 299
INCEPTION_FEATURE_STEP = 18
"""Features are rounded to multiples of 2 ** -18 and must stay below 32. The largest value seen on
photos, noise and flat colours is 11.
"""
INCEPTION_SIZES = {
    64: (11.4, 39.3, 5.5),
    192: (22.7, 53.6, 10.2),
    768: (2.1, 3.5, 1.2),
    2048: (12.5, 21.1, 13.9),
}
"""By dimensions, of photos, noise, stripes and flat colours of many sizes: the smallest and the
largest length of the mean, and the largest spread, the square root of the covariance's trace.
Statistics that are several times outside are not Inception's: with random weights, the length of
2048 dimensions is 1e-6 or 1e11.
"""
FEATURE_STEPS = (-100, 100)
"""Limits of the ``feature_step`` of other networks."""
USUAL_STEP = 18
"""The ``feature_step`` of networks that state none, if it suits their features."""
FEATURES = "features"
"""The layer of the run's extractor."""
SPATIAL = "spatial"
"""The layer of Inception's spatial features, used by sFID."""
EMBEDDING = "embedding"
"""The layer of CMMD's network."""
PIXELS = "pixels"
"""In place of a layer: the value is of the images' pixels, and needs no features."""
PROBE = "probe"
"""End of the names, in the arithmetic of a run, of the bits of its networks on a probe batch."""


SPATIAL_CHANNELS = 7
SPATIAL_EXTRACTOR = f"{INCEPTION} Mixed_6d.branch1x1[:{SPATIAL_CHANNELS}]"
SPATIAL_DIMS = 17 * 17 * SPATIAL_CHANNELS
"""Length of a spatial feature vector (sFID)."""

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "pytorch-fid",
            "bilinear",
            "pytorch-fid 0.3.0; clean-fid mode='legacy_pytorch'",
            "papers that name pytorch-fid",
            understood=("legacy_pytorch",),
            offset=127.5,
            scale=127.5,
        ),
        Protocol(
            "tensorflow",
            "bilinear-tf1",
            "the 2015 TensorFlow graph: TTUR, ADM's evaluator, EDM and EDM2, torch-fidelity, "
            "torchmetrics with antialias=False",
            "TTUR and later papers with TensorFlow; ADM (guided-diffusion) and users of its "
            "evaluator, such as DiT and SiT; EDM, EDM2; torch-fidelity",
            ("adm", "edm"),
            ("tf", "ttur", "edm2", "guided-diffusion", "torch-fidelity", "legacy_tensorflow"),
        ),
        Protocol(
            "clean",
            "bicubic-antialias",
            "clean-fid 0.1.35 mode='clean'",
            "papers that name clean-fid, such as pix2pix-turbo and CycleGAN-turbo",
            understood=("clean-fid",),
        ),
        Protocol(
            "torchmetrics",
            "bilinear-antialias",
            "torchmetrics 1.9.0 FrechetInceptionDistance by default (antialias=True)",
            "training loops that log torchmetrics' FID",
            float_to_byte="floor",
        ),
        Protocol(
            "stylegan",
            "bilinear-tf1",
            "the metric fid50k_full of StyleGAN2-ADA and StyleGAN3, in PyTorch",
            "StyleGAN2-ADA, StyleGAN3, StyleGAN-XL and others built on their code",
            # Not stylegan2: the first StyleGAN2, in TensorFlow, divides the covariance by n - 1.
            understood=("stylegan2-ada", "stylegan2-ada-pytorch", "stylegan3", "stylegan-xl"),
            ddof=0,
        ),
    )
}
"""The protocols by name. EDM, EDM2 and ADM's evaluator are ``tensorflow``: they resize as
TensorFlow 1 does and divide the covariance by n - 1.
"""

OWN_PROTOCOLS = {
    "dinov2": (
        OwnProtocol(
            "pil",
            "pillow-bicubic",
            "squash",
            "FD-DINOv2 as its authors compute it (dgm-eval); EDM2 with resize_mode='pil'",
        ),
        OwnProtocol(
            "torch",
            "bicubic-antialias-unclamped",
            "squash",
            "EDM2's calculate_metrics.py by default (resize_mode='torch')",
        ),
    ),
    "clip": (
        OwnProtocol("", "pillow-bicubic", "largest square", "CMMD as its authors compute it"),
        OwnProtocol(
            "openai",
            "pillow-bicubic",
            "shorter edge",
            "CLIP's own transform in OpenAI's code; the metric clip-score uses it",
        ),
    ),
}
"""Protocols of other networks, by family; the first one is the default. Those of ``dinov2`` are the
values of ``resize_mode`` in EDM2's calculate_metrics.py.
"""
_ALL_NAMES = {
    name: protocol
    for protocol in PROTOCOLS.values()
    for name in (protocol.name, *protocol.other_names, *protocol.understood)
}
_BY_FOLDED_NAME = {fold(name): protocol for name, protocol in _ALL_NAMES.items()}
WRITTEN_LAYOUTS = {"adm": "fid,sfid", "clean-fid": "fid,kid", "edm": "fid", "pytorch-fid": "fid"}
"""Metrics that a statistics file for another project's evaluator serves, by its layout, which also
names a protocol.
"""


def find_protocol(name: str) -> Protocol:
    """Return the protocol with this name, or another name of it; case, hyphens and underscores do
    not matter.
    """
    protocol = _BY_FOLDED_NAME.get(fold(name))
    if protocol is None:
        for family, protocols in OWN_PROTOCOLS.items():
            if fold(name) in (own.name for own in protocols):
                problem = f"{option('protocol', name)} is a protocol of {family}, not of Inception:"
                raise InputError(problem, f"pass {option('extractor', family)}")
        listed = ", ".join(NAMED_PROTOCOLS)
        raise unknown_name_error("protocol", name, _ALL_NAMES, listed, "protocol")
    return protocol


# No number of a definition is larger.
_MAX_NUMBER = 1 << 31


@dataclass(frozen=True)
class Definition:
    """Everything that defines a feature's value. Values with equal definitions can be compared.

    Attributes:
        extractor: name of the network; for a user's file, with the start of the file's SHA-256.
        weights_sha256: SHA-256 over the network's tensors in a fixed order. It does not depend on
            the file that they are stored in.
        dims: length of a feature vector.
        feature_step: features are rounded to multiples of 2 ** -feature_step before they are
            summed.
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
        """The extractor without the start of a file's SHA-256, which changes with each edit of the
        file.
        """
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
        values = json.loads(text)
        types = {field.name: field.type for field in fields(cls)}
        if not isinstance(values, dict) or not types.keys() <= values.keys():
            raise ValueError(f"it should be a JSON object with {', '.join(types)}")
        for name, value in sorted(values.items()):
            if name not in types:
                raise ValueError(f"a newer version of fidtool wrote {name}")
            is_large = isinstance(value, int) and abs(value) > _MAX_NUMBER
            if type(value).__name__ != types[name] or is_large:
                raise ValueError(f"{name} cannot be {repr(value)[:80]}")
        return cls(**values)

    def differences(self, other: Definition) -> list[str]:
        """Return one phrase per difference, such as ``dims 2048 against 768``."""
        theirs = asdict(other)
        return [
            f"{name} {value} against {theirs[name]}"
            for name, value in asdict(self).items()
            if value != theirs[name]
        ]

    def round_like(self, other: Definition) -> Definition:
        """Return the definition with the rounding of another one. Features that differ only by
        their rounding are comparable.
        """
        return replace(self, feature_step=other.feature_step)

    @property
    def protocol_name(self) -> str | None:
        """Name of the protocol with this resize and ddof; None if there is none."""
        family = self.extractor.partition(":")[0]
        if family in OWN_PROTOCOLS:
            described = {
                own.resize if own.framing == "squash" else f"{own.resize}, {own.framing}": own.name
                for own in OWN_PROTOCOLS[family]
            }
            return described.get(re.sub(r" \d.*", "", self.resize)) or None
        for name, protocol in PROTOCOLS.items():
            if (protocol.resize, protocol.ddof) == (self.resize, self.ddof):
                return name
        return None


def inception_definition(protocol: Protocol, dims: int, setting: str = "dims") -> Definition:
    """Return the definition of Inception's features under ``protocol``."""
    if dims not in INCEPTION_DIMS:
        known = ", ".join(map(str, INCEPTION_DIMS))
        raise InputError(
            f"{option(setting, dims)}: the features of Inception have {known} dimensions"
        )
    return Definition(
        extractor=INCEPTION,
        weights_sha256=INCEPTION_SHA256,
        dims=dims,
        feature_step=INCEPTION_FEATURE_STEP,
        input_size=INCEPTION_INPUT_SIZE,
        normalization=f"(x-{protocol.offset:g})/{protocol.scale:g}",
        resize=protocol.resize,
        decoder=DECODER,
        ddof=protocol.ddof,
    )


def spatial_definition(inception: Definition) -> Definition:
    """Return the definition of the spatial features of the network that ``inception`` defines."""
    return replace(inception, extractor=SPATIAL_EXTRACTOR, dims=SPATIAL_DIMS)
