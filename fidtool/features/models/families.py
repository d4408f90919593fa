"""Networks by name: the families of published ones, and a network as a user asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fidtool.errors import option


class ModelFamily(NamedTuple):
    """Published networks that one library builds, or one project has published.

    Attributes:
        usage: how ``--extractor`` takes them.
        default: the model that is meant where none is named; empty: one must be named.
        pattern: regular expression that names of models match: no path, no code, and no place on a hub.
    """

    usage: str
    default: str = ""
    pattern: str = r"[\w.-]+"


MODEL_FAMILIES = {
    "torchvision": ModelFamily("torchvision:NAME[:node]", pattern=r"\w+(:[\w.]+)?"),
    "timm": ModelFamily("timm:NAME"),
    "dinov2": ModelFamily("dinov2[:ARCH]", "vitl14"),
    # OpenAI's weights were trained with the fast GELU; so named, open_clip builds that.
    "clip": ModelFamily("clip[:MODEL]", "ViT-L-14-336-quickgelu"),
}
"""By what ``--extractor`` takes before the colon. A new one is a line here and a module of that name beside this one,
with functions ``fetch`` and ``build`` as in `fidtool.features.models.published.PublishedModels`."""
NAMED_EXTRACTORS = ", ".join(["inception", *(family.usage for family in MODEL_FAMILIES.values())])
"""What ``--extractor`` takes that is neither a file nor code."""
CMMD_EXTRACTOR = f"clip:{MODEL_FAMILIES['clip'].default}"
"""The network of CMMD's authors."""


def is_published(extractor: str) -> bool:
    """Whether a fingerprint's name of a network is that of one of a `ModelFamily`."""
    kind, _, model = extractor.partition(":")
    return kind in MODEL_FAMILIES and re.fullmatch(MODEL_FAMILIES[kind].pattern, model) is not None


NETWORK_SETTINGS = ("extractor", "weights", "input_size", "feature_step")
"""What a `NetworkChoice` is made of."""
FEATURE_STEPS = (-100, 100)
"""Limits of ``feature_step``."""


@dataclass(frozen=True)
class NetworkChoice:
    """A network as it is asked for.

    Attributes:
        extractor: as ``--extractor`` takes it.
        weights: value of ``--weights``: a file, or the name of published weights; None is the network's usual ones.
        input_size: side of the input of a program that does not say, in pixels.
        feature_step: in the place of the network's own, see `fidtool.Network`.
        subject: whose network it is, for messages; empty of the run's own.
        names: what its settings are called where not as above; empty of one that cannot be set.
    """

    extractor: str
    weights: str | None = None
    input_size: int | None = None
    feature_step: int | None = None
    subject: str = field(default="", compare=False)
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def model(self) -> str:
        """Of a published network, what follows the family's name, or the family's default."""
        family, _, model = self.extractor.partition(":")
        return model or MODEL_FAMILIES[family].default

    def named(self, setting: str) -> str:
        """The name of one of its four settings, for messages; empty where it cannot be set."""
        return self.names.get(setting, setting)

    def option(self, setting: str, value: object = None) -> str:
        """`fidtool.errors.option` of one of its four settings; the value alone of one that cannot be set."""
        if name := self.named(setting):
            return option(name, value)
        return f"its {setting}" if value in (None, ...) else f"{value}"
