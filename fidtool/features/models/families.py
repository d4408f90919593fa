"""The networks that ``--extractor`` names: families of published networks, files and user code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fidtool.errors import InputError, option
from fidtool.names import closest, folded, unknown
from fidtool.user_code import is_code_spec, refuse_bare_file


class ModelFamily(NamedTuple):
    """Published networks that one library builds or one project has published.

    ``default`` is empty if a model must be named. ``mirror`` is a way to get the weights without the usual download.
    ``package`` and ``extra`` must be installed.
    """

    usage: str
    default: str
    mirror: str
    package: str = ""
    extra: str = ""


_TORCH_HOME = "TORCH_HOME to a folder that has the file in hub/checkpoints"
_HUB = "HF_HOME to a folder that has the file in it, or HF_ENDPOINT to a mirror"
_URL = "FIDTOOL_DINOV2_URL to the address of a mirror"
MODEL_FAMILIES = {
    "torchvision": ModelFamily("torchvision:NAME[:node]", "", _TORCH_HOME),
    "timm": ModelFamily("timm:NAME", "", _HUB, "timm", "timm"),
    "dinov2": ModelFamily("dinov2[:ARCH]", "vitl14", _URL, "timm", "timm"),
    # OpenAI's weights were trained with the fast GELU, which open_clip builds under this name.
    "clip": ModelFamily("clip[:MODEL]", "ViT-L-14-336-quickgelu", _HUB, "open_clip", "clip"),
}
"""The families, by the part of ``--extractor`` before the colon. To add one, add a line here and a module of that name
to this package with two functions. ``fetch(choice, say)``, called on rank zero, reads or downloads the weights and
returns a `fidtool.features.network.State`. ``build(choice, state)``, called on every rank, returns the
`fidtool.Network` and its name for the fingerprint."""
NAMED_EXTRACTORS = ", ".join(["inception", *(family.usage for family in MODEL_FAMILIES.values())])
"""Values of ``--extractor`` that are neither files nor code, for the help and for messages."""
CMMD_EXTRACTOR = f"clip:{MODEL_FAMILIES['clip'].default}"
"""The network of CMMD's authors."""
EXPORTED = (".pt2",)
TORCHSCRIPT = (".pt", ".pth", ".ts", ".jit")


def is_published(extractor: str) -> bool:
    """Whether an extractor's name in a fingerprint is a network of a `ModelFamily`."""
    kind, _, model = extractor.partition(":")
    # Not a path, the code of a module of that name, or an address on a hub.
    return kind in MODEL_FAMILIES and re.fullmatch(r"[\w.:-]+", model) is not None


def is_program(extractor: str) -> bool:
    """Whether ``extractor`` has the file name extension of an exported program or a TorchScript program."""
    return Path(extractor).suffix in (*EXPORTED, *TORCHSCRIPT)


NETWORK_SETTINGS = ("extractor", "weights", "input_size", "feature_step")
"""The settings of a `NetworkChoice`."""
FEATURE_STEPS = (-100, 100)
"""Limits of ``feature_step``."""


@dataclass(frozen=True)
class NetworkChoice:
    """The settings that select a network.

    Attributes:
        weights: a file, or the name of published weights; None selects the network's default.
        input_size: side of the square input in pixels, for a program that does not state it.
        subject: owner of the network, for messages; empty for the run's extractor.
        names: names of the settings where they differ from those above; empty for one that cannot be set.
    """

    extractor: str
    weights: str | None = None
    input_size: int | None = None
    feature_step: int | None = None
    subject: str = field(default="", compare=False)
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def family(self) -> str:
        """For a published network, its key in `MODEL_FAMILIES`."""
        return self.extractor.partition(":")[0]

    @property
    def model(self) -> str:
        """The model of a published network: the part after the family's name, or the family's default."""
        return self.extractor.partition(":")[2] or MODEL_FAMILIES[self.family].default

    @property
    def full(self) -> str:
        """The extractor of a published network with its model."""
        return f"{self.family}:{self.model}"

    def named(self, setting: str) -> str:
        """The name of one of the four settings, for messages; empty if it cannot be set."""
        return self.names.get(setting, setting)

    def option(self, setting: str, value: object = None) -> str:
        """Return `fidtool.errors.option` of one of the four settings, or the value alone if it cannot be set."""
        if name := self.named(setting):
            return option(name, value)
        return f"its {setting}" if value in (None, ...) else f"{value}"


def usual_spelling(extractor: str) -> str:
    """Return the extractor with ``inception``, or the name of a family, in its usual case."""
    kind, colon, model = extractor.partition(":")
    usual = {"inception": "inception", **{family: family for family in MODEL_FAMILIES}}.get(folded(kind), kind)
    return extractor if usual == "inception" and colon else f"{usual}{colon}{model}"


def no_protocol(protocol: str, network: str, asked: str = "protocol", how: str = "") -> InputError:
    """Return the error that ``asked`` asks for a protocol, but a network, as messages name it, prepares the images."""
    problem = f"{option('protocol', protocol)} cannot be combined with {network}, which prepares the images with its "
    return InputError(f"{problem}own transform{how}:", f"omit {option(asked)}", setting=asked)


def check_extractor(choice: NetworkChoice) -> None:
    """Refuse an extractor that has none of the known forms, and settings that are not for it."""
    extractor = choice.extractor
    if extractor == "inception":
        return
    kind, colon, model = extractor.partition(":")
    program = is_program(extractor)
    setting, named = choice.named("extractor"), choice.option("extractor", extractor)
    family = MODEL_FAMILIES.get(kind)
    if family is not None:
        if not model and (colon or not family.default):
            problem = f"{named} needs the name of a model, as in {kind}:{family.default or 'resnet50'}"
            raise InputError(problem, setting=setting)
    elif not (program or is_code_spec(extractor)):
        refuse_bare_file(extractor, named, "a function that returns a fidtool.Network", setting)
        listed = (
            f"{NAMED_EXTRACTORS}, FILE.pt2 or TorchScript FILE.pt, and FILE.py:NAME or package.module:NAME "
            "for a custom network"
        )
        close = closest(extractor, ("inception", *MODEL_FAMILIES))
        raise InputError(unknown("extractor", extractor, close, listed), setting=setting)
    elif choice.weights is not None:
        problem = "is for Inception and published networks; a custom network comes with its weights"
        raise InputError(f"{choice.option('weights')} {problem}", setting=choice.named("weights"))
    if choice.input_size is not None and not program:
        problem = f"is for exported programs; the input size of {extractor} is known"
        raise InputError(f"{choice.option('input_size')} {problem}", setting=choice.named("input_size"))
