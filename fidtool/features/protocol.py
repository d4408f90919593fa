"""Protocols by name, and what networks' layers are called. Imports no torch.

A protocol says how pixels reach Inception and how the covariance is normalised; with the network it defines the number,
see `fidtool.features.definition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fidtool.errors import InputError

if TYPE_CHECKING:
    from fidtool.features.preparation import Resize


class Protocol(NamedTuple):
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
    def normalization(self) -> str:
        """How the fingerprint spells its normalisation."""
        return f"(x-{self.offset:g})/{self.scale:g}"


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
