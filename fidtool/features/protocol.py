"""Protocols by name: how pixels reach the network and how the covariance is normalised. Imports no torch.

A protocol and a network together define the number. What defines it is written down as a `Definition`: two statistics
may be compared where their definitions are equal. How images of any size become the square that a network takes,
framing and resize, is a `Preparation`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from operator import index
from typing import Literal, get_args

from fidtool.errors import InputError

Resize = Literal[
    "bilinear", "bilinear-tf1", "bilinear-antialias", "bicubic-antialias", "pillow-bilinear", "pillow-bicubic"
]
"""Interpolations, of float32 values without rounding but for Pillow's:

- ``bilinear``: half-pixel centres, no antialiasing (torch's).
- ``bilinear-tf1``: TensorFlow 1's: source position is index * in / out, upper neighbour clamped.
- ``bilinear-antialias``, ``bicubic-antialias``: the kernel is widened by the scale where it shrinks (torch's; the
  cubic's parameter is -0.5, and what it overshoots is clamped to 0..255).
- ``pillow-bilinear``, ``pillow-bicubic``: Pillow's own on 8-bit RGB, which rounds to whole numbers after each axis.
"""

Framing = Literal["squash", "shorter edge", "largest square"]


@dataclass(frozen=True)
class Frame:
    """A `Preparation` applied to one size of image. All in pixels.

    Attributes:
        source: rows and columns of the image that are taken: (top, left, height, width).
        resized: (height, width) that the taken part is resized to.
        cut: (top, left) of the network's square inside the resized part.
    """

    source: tuple[int, int, int, int]
    resized: tuple[int, int]
    cut: tuple[int, int]


@dataclass(frozen=True)
class Preparation:
    """What happens to an image before its pixels are normalised.

    Attributes:
        resize: the interpolation, see `Resize`.
        framing: ``squash`` resizes to a square whatever the shape; ``shorter edge`` keeps the shape, as torchvision's
            ``Resize(edge)``; ``largest square`` takes the square in the middle and resizes that, as CMMD does.
        edge: side that is resized to before the network's square is cut from the middle; None: that square's side, so
            that nothing of a ``squash`` or ``largest square`` is cut away.

    Raises:
        InputError: an unknown resize or framing, or an edge that is no positive integer; an edge with a resize that is
            not Pillow's.
    """

    resize: Resize
    framing: Framing = "squash"
    edge: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("resize", get_args(Resize)), ("framing", get_args(Framing))):
            if getattr(self, name) not in known:
                raise InputError(f"Preparation.{name} {getattr(self, name)!r} is none of {', '.join(known)}")
        if self.edge is not None:
            try:
                object.__setattr__(self, "edge", index(self.edge))
            except TypeError:
                raise InputError(f"Preparation.edge cannot be {self.edge!r}") from None
            if self.edge < 1:
                raise InputError(f"Preparation.edge must be at least 1 pixel, not {self.edge}")
        # Only Pillow's way computes what is cut out and no more: a very long image would fill the memory.
        if self.cuts and not self.rounds:
            raise InputError(
                f"Preparation: edge and framing 'shorter edge' need a resize of Pillow's, not {self.resize}"
            )

    @property
    def rounds(self) -> bool:
        """Whether the result is whole numbers: its gradient is passed straight through the rounding."""
        return self.resize.startswith("pillow-")

    @property
    def cuts(self) -> bool:
        """Whether a part of what was resized is cut away."""
        return self.edge is not None or self.framing == "shorter edge"

    def describe(self, size: int) -> str:
        """How the fingerprint spells it for a network that takes squares of ``size`` pixels a side."""
        if self.framing == "squash" and (self.edge or size) == size:
            return self.resize
        edge = self.edge or size
        how = {
            "squash": f"{self.resize}, squashed to {edge}",
            "shorter edge": f"{self.resize}, shorter edge {edge}",
            "largest square": f"centre square, {self.resize} to {edge}",
        }[self.framing]
        return how if edge == size and self.framing != "shorter edge" else f"{how}, centre {size}"

    def frame(self, height: int, width: int, size: int) -> Frame:
        """What to take, resize to and cut for an image of ``height`` by ``width`` and a square of ``size`` a side."""
        edge = self.edge or size
        source, resized = (0, 0, height, width), (edge, edge)
        if self.framing == "largest square":
            side = min(height, width)
            source = ((height - side) // 2, (width - side) // 2, side, side)
        elif self.framing == "shorter edge":
            # The longer edge is rounded down, as torchvision does it.
            longer = int(edge * max(height, width) / min(height, width))
            resized = (edge, longer) if height <= width else (longer, edge)
        # torchvision's CenterCrop: halves are rounded to even.
        top, left = (round((side - size) / 2.0) for side in resized)
        return Frame(source, resized, (top, left))


@dataclass(frozen=True)
class Protocol:
    """One field standard.

    Attributes:
        name: as ``--protocol`` takes it.
        resize: see `Resize`; images are squashed to the network's square.
        offset, scale: a pixel value x in 0..255 enters Inception as (x - offset) / scale.
        ddof: the covariance is divided by n - ddof.
        equals: the tools whose number this is.
        used_by: papers and their code that report it.
        other_names: what else ``--protocol`` takes for it.
    """

    name: str
    resize: Resize
    offset: float
    scale: float
    ddof: int
    equals: str
    used_by: str
    other_names: tuple[str, ...] = ()

    @property
    def preparation(self) -> Preparation:
        """What it does to an image before the pixels are normalised."""
        return Preparation(self.resize)


DEFAULT_PROTOCOL = "pytorch-fid"

INCEPTION = "inception-2015-12-05"
INCEPTION_DIMS = (64, 192, 768, 2048)
INCEPTION_INPUT_SIZE = 299
INCEPTION_FEATURE_STEP = 18
"""Features are multiples of 2 ** -18 below 32: the largest seen on photos, noise and flat colours is 11."""
FEATURES = "features"
"""Layer of the features that the extractor is asked for."""
SPATIAL = "spatial"
"""Layer of Inception's spatial features, of sFID."""
EMBEDDING = "embedding"
"""Layer of the features of CMMD's own network."""


def layer_prefix(layer: str, separator: str) -> str:
    """What the names of a layer's values begin with in files and records: those of `FEATURES` were there first."""
    return "" if layer == FEATURES else f"{layer}{separator}"


SPATIAL_CHANNELS = 7
SPATIAL_EXTRACTOR = f"{INCEPTION} Mixed_6d.branch1x1[:{SPATIAL_CHANNELS}]"
SPATIAL_DIMS = 17 * 17 * SPATIAL_CHANNELS
"""Length of the spatial feature vectors of sFID."""

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "pytorch-fid",
            "bilinear",
            127.5,
            127.5,
            1,
            "pytorch-fid 0.3.0; clean-fid mode='legacy_pytorch'",
            "papers that name pytorch-fid, which are most of those in PyTorch",
        ),
        Protocol(
            "tensorflow",
            "bilinear-tf1",
            128.0,
            128.0,
            1,
            "the 2015 TensorFlow graph: TTUR, ADM's evaluator, EDM and EDM2, torch-fidelity, torchmetrics with "
            "antialias=False",
            "TTUR and TensorFlow papers since; ADM (guided-diffusion) and whoever takes its evaluator, such as DiT and "
            "SiT; EDM, EDM2; torch-fidelity",
            ("adm", "edm"),
        ),
        Protocol(
            "clean",
            "bicubic-antialias",
            128.0,
            128.0,
            1,
            "clean-fid 0.1.35 mode='clean'",
            "papers that name clean-fid, such as pix2pix-turbo and CycleGAN-turbo",
        ),
        Protocol(
            "torchmetrics",
            "bilinear-antialias",
            128.0,
            128.0,
            1,
            "torchmetrics 1.9.0 FrechetInceptionDistance by default (antialias=True)",
            "training loops that log torchmetrics' FID",
        ),
        Protocol(
            "stylegan",
            "bilinear-tf1",
            128.0,
            128.0,
            0,
            "the metric fid50k_full of StyleGAN2-ADA and StyleGAN3, in PyTorch",
            "StyleGAN2-ADA, StyleGAN3, StyleGAN-XL and others built on their code",
        ),
    )
}
"""The field's standards by name. Two of other names are ``tensorflow``, to the last term: EDM's and EDM2's, and that of
ADM's evaluator, whose graph resizes as TensorFlow 1 does; both divide the covariance by n - 1."""

_OTHER_NAMES = {other: protocol for protocol in PROTOCOLS.values() for other in protocol.other_names}
_SHOWN = [
    f"{name} (also {', '.join(sorted(each.other_names, reverse=True))})" if each.other_names else name
    for name, each in PROTOCOLS.items()
]
NAMED_PROTOCOLS = f"{', '.join(_SHOWN[:-1])} or {_SHOWN[-1]}"
"""All of them, for people."""


def protocol_named(name: str) -> Protocol:
    """Looks a protocol up, by its name or another one of its.

    Raises:
        InputError: there is none of that name.
    """
    found = PROTOCOLS.get(name) or _OTHER_NAMES.get(name)
    if found is None:
        known = ", ".join([*PROTOCOLS, *sorted(_OTHER_NAMES)])
        raise InputError(f"unknown protocol {name!r}; there are {known}", setting="protocol")
    return found


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
        import hashlib  # not with the module: the command line answers a wrong option without it

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


def inception_normalization(protocol: Protocol) -> str:
    """How the fingerprint spells the protocol's normalisation."""
    return f"(x-{protocol.offset:g})/{protocol.scale:g}"
