"""The protocols and the names of feature layers.

A protocol defines how pixels enter Inception and how the covariance is normalised. Together with the network it defines
the value of the distance, see `fidtool.features.definition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from fidtool.errors import InputError
from fidtool.names import closest, folded, unknown

if TYPE_CHECKING:
    from fidtool.features.preparation import Resize


class Protocol(NamedTuple):
    """The way in which one tool of the field computes the FID.

    Attributes:
        name: value of ``--protocol``.
        resize: see `Resize`. Images are resized to the network's square without keeping their aspect ratio.
        offset, scale: a pixel value x in 0..255 enters Inception as (x - offset) / scale.
        ddof: the covariance is divided by n - ddof.
        equals: tools that compute the same value.
        used_by: papers and code that report it.
        other_names: further names that ``--protocol`` accepts and the help lists.
        understood: further names that ``--protocol`` accepts and the help does not list. Each stands for exactly this
            arithmetic.
        float_to_byte: how the tool converts floats to bytes, a value of ``--float-to-byte``.
    """

    name: str
    resize: Resize
    offset: float
    scale: float
    ddof: int
    equals: str
    used_by: str
    other_names: tuple[str, ...] = ()
    understood: tuple[str, ...] = ()
    float_to_byte: str = "round"

    @property
    def normalization(self) -> str:
        """The normalisation as the fingerprint spells it."""
        return f"(x-{self.offset:g})/{self.scale:g}"


ProtocolName = Literal["pytorch-fid", "tensorflow", "adm", "edm", "clean", "torchmetrics", "stylegan"]
"""The names of the protocols that the help lists, for type checkers. `protocol_named` understands others as well."""
DEFAULT_PROTOCOL: ProtocolName = "pytorch-fid"

INCEPTION = "inception-2015-12-05"
INCEPTION_DIMS = (64, 192, 768, 2048)
INCEPTION_INPUT_SIZE = 299
INCEPTION_FEATURE_STEP = 18
"""Features are rounded to multiples of 2 ** -18 and must stay below 32. The largest value seen on photos, noise and
flat colours is 11."""
FEATURES = "features"
"""The layer of the run's extractor."""
SPATIAL = "spatial"
"""The layer of Inception's spatial features, used by sFID."""
EMBEDDING = "embedding"
"""The layer of CMMD's network."""


def layer_prefix(layer: str, separator: str) -> str:
    """Prefix of the names of a layer's values in files and records; empty for `FEATURES`."""
    return "" if layer == FEATURES else f"{layer}{separator}"


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
            127.5,
            127.5,
            1,
            "pytorch-fid 0.3.0; clean-fid mode='legacy_pytorch'",
            "papers that name pytorch-fid, which are most of those in PyTorch",
            understood=("legacy_pytorch",),
        ),
        Protocol(
            "tensorflow",
            "bilinear-tf1",
            128.0,
            128.0,
            1,
            "the 2015 TensorFlow graph: TTUR, ADM's evaluator, EDM and EDM2, torch-fidelity, torchmetrics with "
            "antialias=False",
            "TTUR and TensorFlow papers since; ADM (guided-diffusion) and users of its evaluator, such as DiT and "
            "SiT; EDM, EDM2; torch-fidelity",
            ("adm", "edm"),
            ("tf", "ttur", "edm2", "guided-diffusion", "torch-fidelity", "legacy_tensorflow"),
        ),
        Protocol(
            "clean",
            "bicubic-antialias",
            128.0,
            128.0,
            1,
            "clean-fid 0.1.35 mode='clean'",
            "papers that name clean-fid, such as pix2pix-turbo and CycleGAN-turbo",
            understood=("clean-fid",),
        ),
        Protocol(
            "torchmetrics",
            "bilinear-antialias",
            128.0,
            128.0,
            1,
            "torchmetrics 1.9.0 FrechetInceptionDistance by default (antialias=True)",
            "training loops that log torchmetrics' FID",
            float_to_byte="floor",
        ),
        Protocol(
            "stylegan",
            "bilinear-tf1",
            128.0,
            128.0,
            0,
            "the metric fid50k_full of StyleGAN2-ADA and StyleGAN3, in PyTorch",
            "StyleGAN2-ADA, StyleGAN3, StyleGAN-XL and others built on their code",
            # Not stylegan2: the first StyleGAN2, in TensorFlow, divides the covariance by n - 1.
            understood=("stylegan2-ada", "stylegan2-ada-pytorch", "stylegan3", "stylegan-xl"),
        ),
    )
}
"""The protocols by name. EDM, EDM2 and ADM's evaluator are ``tensorflow``: they resize as TensorFlow 1 does and divide
the covariance by n - 1."""

_BY_NAME = {
    folded(name): protocol
    for protocol in PROTOCOLS.values()
    for name in (protocol.name, *protocol.other_names, *protocol.understood)
}
_SHOWN = [
    f"{name} (also {', '.join(sorted(each.other_names, reverse=True))})" if each.other_names else name
    for name, each in PROTOCOLS.items()
]
NAMED_PROTOCOLS = f"{', '.join(_SHOWN[:-1])} or {_SHOWN[-1]}"
"""All protocols, for the help."""

WRITTEN_LAYOUTS = {"adm": "fid,sfid", "clean-fid": "fid,kid", "edm": "fid", "pytorch-fid": "fid"}
"""Metrics that a statistics file for another project's evaluator serves, by its layout, which also names a protocol."""


def protocol_named(name: str) -> Protocol:
    """Return the protocol with this name, or with one of its other names; case, hyphens and underscores do not matter.

    Raises:
        InputError: if there is no such protocol. The message suggests close names.
    """
    found = _BY_NAME.get(folded(name))
    if found is None:
        listed = [*PROTOCOLS, *sorted(other for each in PROTOCOLS.values() for other in each.other_names)]
        close = closest(name, [*listed, *(other for each in PROTOCOLS.values() for other in each.understood)])
        raise InputError(unknown("protocol", name, close, ", ".join(listed)), setting="protocol")
    return found
