"""The networks that ``--extractor`` names: families of published networks, files and user code."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import basename
from typing import TYPE_CHECKING, Any, NamedTuple

from fidtool.errors import InputError, MetricSetting, SettingName, SettingPart, option, short_repr
from fidtool.features.protocol import (
    EMBEDDING,
    FEATURES,
    INCEPTION,
    OWN_PROTOCOLS,
    SPATIAL,
    Definition,
    find_protocol,
)
from fidtool.names import fold, unknown_name_error
from fidtool.system.user_code import is_code_spec

if TYPE_CHECKING:
    from torch import nn

    from fidtool.features.network import Network


class ModelFamily(NamedTuple):
    """Published networks that one library builds or one project has published.

    ``default`` is empty if a model must be named, such as ``example``. ``package`` and ``extra``
    must be installed.
    """

    usage: str
    default: str
    package: str
    extra: str
    example: str = "resnet50"


# To add a family, add a line here and a module of that name to `fidtool.features.models` with two
# functions.
# ``fetch(choice, say)``, called on rank 0, reads or downloads the weights and returns a
# `fidtool.features.weights.State`. ``build(choice, state)``, called on every rank, returns the
# `fidtool.Network`.
MODEL_FAMILIES = {
    "timm": ModelFamily("timm:NAME[:POOL]", "", "timm", "timm"),
    "dinov2": ModelFamily("dinov2[:ARCH]", "vitl14", "timm", "timm"),
    # OpenAI's weights were trained with the fast GELU, which open_clip builds under this name.
    "clip": ModelFamily("clip[:MODEL]", "ViT-L-14-336-quickgelu", "open_clip", "clip"),
    "fdr": ModelFamily("fdr:NAME", "", "timm", "timm", "convnext"),
}
"""The families, by the part of ``--extractor`` before the colon."""
SHORT_NAMES = {
    # timm averages the patches of DINOv3; its authors' model returns the class token.
    "dinov3": "timm:vit_large_patch16_dinov3.lvd1689m:token",
    "siglip2": "timm:vit_so400m_patch16_siglip_256.v2_webli",
    "convnext": "timm:convnextv2_base.fcmae_ft_in22k_in1k",
    "mae": "timm:vit_large_patch16_224.mae",
}
"""Short names of networks of the families."""
NAMED_EXTRACTORS = ", ".join(
    ["inception", *(family.usage for family in MODEL_FAMILIES.values()), *SHORT_NAMES]
)
"""Values of ``--extractor`` that are neither files nor code, for the help and for messages."""
CMMD_EXTRACTOR = f"clip:{MODEL_FAMILIES['clip'].default}"
"""The network of CMMD's authors."""
EXPORTED = ".pt2"
"""The file name extension of programs written by torch.export.save."""
# How the names of Inception's graph with the weights of a file begin.
_TUNED = "inception@weights="
# A family of earlier versions, which results and statistics files can name.
_REMOVED_FAMILY = "torchvision"


def is_published(extractor: str) -> bool:
    """Whether an extractor's name in a fingerprint is a network of a `ModelFamily`, or was one in
    earlier versions.
    """
    # Not a path, the code of a module of that name, or an address on a hub.
    family, _, model = extractor.partition(":")
    known = family in MODEL_FAMILIES or family == _REMOVED_FAMILY
    return known and re.fullmatch(r"[\w.:-]+", model) is not None


def is_program(extractor: str) -> bool:
    """Whether ``extractor`` has the file name extension of an exported program or a TorchScript
    program.
    """
    if extractor.startswith(_TUNED):
        return False
    return extractor.endswith((EXPORTED, ".pt", ".pth", ".ts", ".jit"))


VALUE_SETTINGS = {
    "weights": "weights",
    "size": "input_size",
    "step": "feature_step",
    "protocol": "protocol",
    "dims": "dims",
}
"""Settings of a network in its own value, ``dinov2@weights=FILE,step=12``, and their names in a
`NetworkChoice`.
"""
# Each network of a value begins after a comma, and each of its settings after an @ or a comma.
_SETTING = rf"(?:{'|'.join(VALUE_SETTINGS)})="
_BETWEEN_NETWORKS = re.compile(rf",(?!{_SETTING})")
_BEFORE_SETTING = re.compile(rf"[@,](?={_SETTING})")


@dataclass(frozen=True)
class NetworkChoice:
    """The settings that select a network.

    Attributes:
        extractor: name of the network as ``--extractor`` takes it, without its settings.
        weights: a file, or the name of published weights; None selects the network's default.
        input_size: side of the square input in pixels, for a program that does not state it.
        feature_step: features are rounded to multiples of 2 ** -feature_step; None selects the
            network's default.
        protocol: how images are resized; None selects the network's default.
        dims: number of feature dimensions, which selects a layer of Inception; None selects 2048.
        given: the `fidtool.Network` or plain module that a program passed; None on the ranks that
            got the choice from another rank. Its class, which needs torch, is not imported here.
        subject: owner of the network, for messages; empty for the run's only or first network.
        setting: name of the setting whose value selects it, for messages; empty if it cannot be
            set.
        apart: whether its other settings have their own names and are not in this value.
    """

    extractor: str
    weights: str | None = None
    input_size: int | None = None
    feature_step: int | None = None
    protocol: str | None = None
    dims: int | None = None
    given: Network | nn.Module | None = field(default=None, compare=False, repr=False)
    subject: str = field(default="", compare=False)
    setting: str | MetricSetting = field(default="extractor", compare=False)
    apart: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        """Return the value of ``--extractor`` that selects the network with its settings."""
        settings = [
            f"{short}={getattr(self, name)}"
            for short, name in VALUE_SETTINGS.items()
            if getattr(self, name) is not None
        ]
        if not settings:
            return self.extractor
        name = "inception" if self.tuned else self.extractor
        return f"{name}@{','.join(settings)}"

    @property
    def is_bare(self) -> bool:
        """Whether its value of ``--extractor`` is the name alone, without settings."""
        return str(self) == self.extractor and not self.tuned

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "given": None}  # each rank has its own

    @property
    def full(self) -> str:
        """The extractor, of a published network with its family and its model."""
        extractor = SHORT_NAMES.get(self.extractor, self.extractor)
        if extractor in MODEL_FAMILIES:
            return f"{extractor}:{MODEL_FAMILIES[extractor].default}"
        return extractor

    @property
    def family(self) -> str:
        """For a published network, its key in `MODEL_FAMILIES`."""
        return self.full.partition(":")[0]

    @property
    def model(self) -> str:
        """The model of a published network: the part after the family's name, or the family's
        default.
        """
        return self.full.partition(":")[2]

    @property
    def published(self) -> ModelFamily | None:
        """The family of a published network; None for Inception and for custom networks."""
        return MODEL_FAMILIES.get(self.family)

    @property
    def untagged(self) -> str:
        """`full` without timm's tag of the weights, which their hash identifies."""
        return re.sub(r"\.[^:]*", "", self.full) if self.family == "timm" else self.full

    @property
    def runs_code(self) -> bool:
        """Whether loading it can run code of whoever wrote it: a factory, but also a program in a
        file.

        `torch.export.load` unpickles parts of a file and evaluates others, and TorchScript can
        write files.
        """
        return not self.published and not self.tuned and self.extractor != "inception"

    @property
    def tuned(self) -> bool:
        """Whether it is Inception's graph with the weights of a file: a network like others."""
        return self.extractor.startswith(_TUNED)

    def made(self, network: str) -> bool:
        """Whether this is the network of that name in the definition of features, see
        `Definition.network`.
        """
        if self.extractor == "inception":
            return network in ("inception", INCEPTION)
        return network in (self.extractor, basename(self.extractor), self.untagged)

    def named(self, setting: str) -> str | MetricSetting:
        """The name of one of the settings, for messages; empty if it cannot be set."""
        return setting if self.apart and setting != "extractor" else self.setting

    def refused(self, setting: str, problem: str, *remedies: str) -> InputError:
        """Return the error about one of the settings."""
        return InputError(problem, *remedies, setting=self.named(setting))

    @property
    def step_setting(self) -> SettingName:
        """What determines the step of its features, see
        `fidtool.statistics.moments.ExactMoments`.
        """
        if self.apart or not self.setting:
            return self.named("feature_step")
        stated = replace(self, feature_step=None)
        between = "@" if stated.is_bare else ","
        return SettingPart(self.setting, f"{stated}{between}step")

    def option(self, setting: str, value: object = None) -> str:
        """Return `fidtool.errors.option` of one of the settings, or the value alone if it cannot be
        set.
        """
        name = self.named(setting)
        unknown_value = value in (None, ...)
        if not name:
            return f"its {setting}" if unknown_value else f"{value}"
        if self.apart or setting == "extractor":
            return option(name, value)
        changed: dict[str, Any] = {setting: "..." if unknown_value else value}
        whole = f"{replace(self, **changed)}"
        if value is ... and name == "extractor" and self.subject:
            whole = f"...,{whole}"  # the other networks
        return option(name, whole)


def parse_networks(value: object) -> list[NetworkChoice]:
    """Return the networks of a value of ``extractor``, each with the settings in its own value.

    Args:
        value: a string such as ``inception,dinov2:vitl14@weights=FILE,step=12``, a table such as
            ``{"name": "dinov2", "step": 12}``, a `NetworkChoice`, a `fidtool.Network`, a plain
            module, or a list of these.

    Raises:
        InputError: if the value is none of these, or a network does not exist or cannot have a
            setting.
    """
    if isinstance(value, str):
        return [_parse(text.strip()) for text in _BETWEEN_NETWORKS.split(value)]
    if isinstance(value, Mapping):
        return [_from_table(value)]
    if isinstance(value, NetworkChoice):
        return [_complete(value)]
    # torch is not imported here, but whoever passes a module has imported it.
    torch: Any = sys.modules.get("torch")
    network: Any = value
    if torch is not None and isinstance(value, torch.nn.Module):
        if isinstance(value, torch.nn.parallel.DistributedDataParallel):
            network = network.module
        return [NetworkChoice(name_module(network), given=network)]
    if hasattr(value, "module") and hasattr(value, "input_size"):  # a fidtool.Network
        return [NetworkChoice(network.name or name_module(network.module), given=network)]
    if isinstance(value, (list, tuple)) and value:
        return [network for item in value for network in parse_networks(item)]
    shown = type(value).__name__
    if isinstance(value, (list, tuple, int, float)):
        shown = short_repr(value)
    raise InputError(
        f"{option('extractor')} must be a string, a fidtool.Network, a torch.nn.Module or a list "
        f"of these, not {shown}"
    )


# Names that are not those of a program's own networks.
_RESERVED = {*map(fold, ("inception", INCEPTION, _REMOVED_FAMILY, *MODEL_FAMILIES, *SHORT_NAMES))}


def name_module(module: nn.Module) -> str:
    """Return the name of a module's class, which does not depend on how its file was imported."""
    name = str(getattr(module, "original_name", type(module).__name__))  # of a ScriptModule
    return f"{name} module" if fold(name) in _RESERVED else name


def check_network_name(name: object) -> None:
    """Raise an InputError unless a program's own network can have this name, or none."""
    if name == "":
        return
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w .+-]*", name) or is_program(name):
        raise InputError(
            f"Network.name {name!r} must consist of letters, digits, spaces and _ . + -, and must "
            "not end like the file of a program, such as .pt"
        )
    if fold(name) in _RESERVED:
        raise InputError(
            f"Network.name {name!r} is the name of a published network:", "choose another name"
        )


def _parse(text: str) -> NetworkChoice:
    name, *settings = _BEFORE_SETTING.split(text)
    return _from_table({"name": name, **dict(setting.split("=", 1) for setting in settings)})


def _from_table(table: Mapping[str, Any]) -> NetworkChoice:
    stated = dict(table)
    extractor = str(stated.pop("name", ""))
    settings: dict[str, Any] = {}
    for name, value in stated.items():
        if name not in VALUE_SETTINGS:
            raise _extractor_error(
                f"{name}={value} is not a setting of a network; choose from name, "
                f"{', '.join(VALUE_SETTINGS)}"
            )
        if value == "":
            raise _extractor_error(f"{name}= has no value")
        convert = int if name in ("size", "step", "dims") else str
        try:
            settings[VALUE_SETTINGS[name]] = convert(str(value))
        except ValueError:
            raise _extractor_error(f"{name}={value} must be an integer") from None
    if unknown_setting := re.search(r"@(\w+)=", extractor):
        raise _extractor_error(
            f"{unknown_setting[1]!r} in {extractor} is not a setting of a network; choose from "
            f"{', '.join(VALUE_SETTINGS)}"
        )
    return _complete(NetworkChoice(_normalize_name(extractor), **settings))


def _extractor_error(problem: str) -> InputError:
    return InputError(f"{option('extractor')}: {problem}")


def _normalize_name(extractor: str) -> str:
    """Return ``inception``, a short name, or the name of a family in its usual case."""
    name, colon, model = extractor.partition(":")
    usual = fold(name)
    if usual in MODEL_FAMILIES or usual in SHORT_NAMES or fold(extractor) == "inception":
        return f"{usual}{colon}{model}"
    return extractor


def _complete(choice: NetworkChoice) -> NetworkChoice:
    """Return a network that can have its settings, which messages name as a part of the value of
    ``extractor``.
    """
    if choice.extractor == "inception" and choice.weights is not None:
        choice = replace(choice, extractor=f"{_TUNED}{basename(choice.weights)}")
    choice = replace(choice, apart=False)
    check_extractor(choice)
    return normalize_protocol(choice)


def name_other_networks(
    first: NetworkChoice, others: Sequence[NetworkChoice]
) -> dict[str, NetworkChoice]:
    """Return the other networks of a run by the layers of their features, which have their names.

    If several have the same extractor, their names have their settings as well.

    Raises:
        InputError: if two are the same, or both are Inception.
    """
    extractors = [choice.extractor for choice in (first, *others)]
    taken = {FEATURES, SPATIAL, EMBEDDING, layer_name("inception"), layer_name(first.extractor)}
    networks: dict[str, NetworkChoice] = {}
    for choice in others:
        name = choice.extractor if extractors.count(choice.extractor) == 1 else str(choice)
        if choice.given is not None and layer_name(name) in taken:  # two modules of one class
            name = f"{name} {len(networks) + 2}"
        layer = layer_name(name)
        if layer in taken:
            raise InputError(
                f"{option('extractor')} has {name} twice, or two networks whose values would have "
                "this name:",
                "name each network once",
            )
        taken.add(layer)
        networks[layer] = replace(choice, subject=name)
    return networks


def match_layers(
    definitions: Mapping[str, Definition | None], networks: Mapping[str, NetworkChoice]
) -> dict[str, str]:
    """Return which layer of a file has the features of each layer of a run, by the run's layer.

    Args:
        definitions: the file's definitions, by layer. Without one, a layer's name is that of its
            network.
        networks: the run's networks, by layer.
    """
    layers: dict[str, str] = {}
    for layer, choice in networks.items():
        likeness = {
            name: _match_score(choice, name, definition) for name, definition in definitions.items()
        }
        # The same layer if others fit as well.
        best = max(likeness, key=lambda name: (likeness[name], name == layer), default="")
        if likeness.get(best):
            layers[layer] = best
    for name in definitions:
        if name == FEATURES or name not in layers.values():
            layers.setdefault(name, name)
    return layers


def _match_score(choice: NetworkChoice, name: str, definition: Definition | None) -> int:
    """Return how well a file's layer with this name fits a network: 0 is not at all, 3 with all its
    settings.
    """
    if definition is None or not choice.made(definition.network):
        return int(name in (choice.family, layer_name(choice.extractor)))
    same_protocol = choice.protocol in (None, definition.protocol_name)
    same_step = choice.feature_step in (None, definition.feature_step)
    return 3 if same_protocol and same_step else 2


def layer_name(text: str) -> str:
    """Return the name of the layer, and the end of the names of values in the JSON, of a network
    with this name.
    """
    return re.sub("[^0-9A-Za-z]", "_", text)


def normalize_protocol(choice: NetworkChoice, asked: str = "protocol") -> NetworkChoice:
    """Return a network with the usual name of its protocol; ``asked`` is the setting that asks for
    it.

    Raises:
        InputError: if the network has no protocol of this name.
    """
    name = choice.protocol
    if name is None:
        return choice
    if not choice.published:
        return replace(choice, protocol=find_protocol(name).name)
    own = [protocol.name for protocol in OWN_PROTOCOLS.get(choice.family, ()) if protocol.name]
    if fold(name) not in own:
        raise no_protocol_error(choice, name, asked=asked, own=own)
    return replace(choice, protocol=fold(name))


def no_protocol_error(
    choice: NetworkChoice,
    protocol: str,
    transform: str = "",
    asked: str = "protocol",
    own: Sequence[str] = (),
) -> InputError:
    """Return the error that ``asked`` asks for a protocol, but a network prepares the images in its
    own way; ``own`` are its protocols.
    """
    network = choice.extractor
    unwanted = f"protocol={protocol}"
    if choice.apart:
        network = choice.option("extractor", network)
        unwanted = option(asked)
    return InputError(
        f"{choice.option('protocol', protocol)} cannot be combined with {network}, which prepares "
        f"the images with its own transform{transform}:",
        f"omit {unwanted}",
        *(f"pass {choice.option('protocol', name)}" for name in own),
        setting=asked if choice.apart else None,
    )


def check_extractor(choice: NetworkChoice) -> None:
    """Refuse an extractor that has none of the known forms, and settings that are not for it."""
    extractor = choice.extractor
    inception = extractor == "inception"
    if not inception and not choice.tuned and choice.given is None:
        _check_name(choice)
    fixed = (
        "is fixed for Inception, so that its values are comparable; it applies to other networks "
        "only"
    )
    decides = "the output of another network decides its dimensions"
    if choice.tuned:
        decides = f"{extractor} has 2048 features"
    known_size = f"applies to exported programs only; the input size of {extractor} is known"
    own_weights = (
        "applies to Inception and published networks only; a custom network comes with its own "
        "weights"
    )
    takes_weights = inception or choice.tuned or choice.published
    rules = (
        ("dims", inception, f"selects a layer of Inception; {decides}"),
        ("input_size", is_program(extractor), fixed if inception else known_size),
        ("feature_step", not inception, fixed),
        ("weights", takes_weights, own_weights),
    )
    for setting, is_allowed, problem in rules:
        if getattr(choice, setting) is not None and not is_allowed:
            raise InputError(f"{choice.option(setting)} {problem}")


def _check_name(choice: NetworkChoice) -> None:
    extractor = choice.extractor
    family = choice.published
    named = choice.option("extractor", extractor)
    if fold(choice.family) == _REMOVED_FAMILY:
        raise InputError(
            f"{named} is not a network:",
            "write a file that loads it (FILE.py:NAME), as `fidtool guide custom-networks` shows",
        )
    if family is not None and not choice.model:
        example = family.default or family.example
        raise InputError(f"{named} needs the name of a model, such as {choice.family}:{example}")
    if family is None and not (is_program(extractor) or is_code_spec(extractor)):
        listed = (
            f"{NAMED_EXTRACTORS}, FILE.pt2 or TorchScript FILE.pt, and FILE.py:NAME or "
            "package.module:NAME for a custom network"
        )
        known = ("inception", *MODEL_FAMILIES, *SHORT_NAMES)
        raise unknown_name_error("network", extractor, known, listed, choice.setting)
