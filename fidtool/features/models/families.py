"""The networks that ``--extractor`` names: families of published networks, files and user code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from os.path import basename
from typing import TYPE_CHECKING, Any, NamedTuple

from fidtool.errors import InputError, MetricSetting, SettingName, SettingPart, brief, option
from fidtool.features.protocol import (
    EMBEDDING,
    FEATURES,
    INCEPTION,
    OWN_PROTOCOLS,
    SPATIAL,
    Definition,
    protocol_named,
)
from fidtool.names import closest, folded, unknown
from fidtool.system.user_code import is_code_spec

if TYPE_CHECKING:
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


MODEL_FAMILIES = {
    "timm": ModelFamily("timm:NAME[:POOL]", "", "timm", "timm"),
    "dinov2": ModelFamily("dinov2[:ARCH]", "vitl14", "timm", "timm"),
    # OpenAI's weights were trained with the fast GELU, which open_clip builds under this name.
    "clip": ModelFamily("clip[:MODEL]", "ViT-L-14-336-quickgelu", "open_clip", "clip"),
    "fdr": ModelFamily("fdr:NAME", "", "timm", "timm", "convnext"),
}
"""The families, by the part of ``--extractor`` before the colon. To add one, add a line here and a
module of that name to this package with two functions. ``fetch(choice, say)``, called on rank zero,
reads or downloads the weights and returns a `fidtool.features.network.State`. ``build(choice,
state)``, called on every rank, returns the `fidtool.Network` and its name for the fingerprint.
"""
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
_REMOVED_FAMILY = "torchvision"
"""A family of earlier versions, which results and statistics files can name."""
CMMD_EXTRACTOR = f"clip:{MODEL_FAMILIES['clip'].default}"
"""The network of CMMD's authors."""
EXPORTED = (".pt2",)
TORCHSCRIPT = (".pt", ".pth", ".ts", ".jit")


def is_published(extractor: str) -> bool:
    """Whether an extractor's name in a fingerprint is a network of a `ModelFamily`, or was one in
    earlier versions.
    """
    # Not a path, the code of a module of that name, or an address on a hub.
    return (
        re.fullmatch(rf"({'|'.join([*MODEL_FAMILIES, _REMOVED_FAMILY])}):[\w.:-]+", extractor)
        is not None
    )


def is_program(extractor: str) -> bool:
    """Whether ``extractor`` has the file name extension of an exported program or a TorchScript
    program.
    """
    return extractor.endswith((*EXPORTED, *TORCHSCRIPT))


IN_VALUE = {
    "weights": "weights",
    "size": "input_size",
    "step": "feature_step",
    "protocol": "protocol",
    "dims": "dims",
}
"""Settings of a network in its own value, ``dinov2@weights=FILE,step=12``, and their names in a
`NetworkChoice`.
"""
_SETTING = rf"(?=(?:{'|'.join(IN_VALUE)})=)"


@dataclass(frozen=True)
class NetworkChoice:
    """The settings that select a network.

    Attributes:
        weights: a file, or the name of published weights; None selects the network's default.
        input_size: side of the square input in pixels, for a program that does not state it.
        protocol: how images are resized; None selects the network's default.
        dims: feature dimensions, which select a layer of Inception; None selects 2048.
        given: the network itself, which a program passed; None on the ranks that got the choice
            from another one.
        subject: owner of the network, for messages; empty for the run's only or first network.
        setting: name of the setting whose value selects it, for messages; empty if it cannot be
            set.
        apart: whether its other settings have names of their own, and are not a part of this value.
    """

    extractor: str
    weights: str | None = None
    input_size: int | None = None
    feature_step: int | None = None
    protocol: str | None = None
    dims: int | None = None
    given: Network | None = field(default=None, compare=False, repr=False)
    subject: str = field(default="", compare=False)
    setting: str | MetricSetting = field(default="extractor", compare=False)
    apart: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        """Return the value of ``--extractor`` that selects the network with its settings."""
        values = {short: getattr(self, name) for short, name in IN_VALUE.items()}
        settings = ",".join(
            f"{short}={value}" for short, value in values.items() if value is not None
        )
        return f"{self.extractor}@{settings}" if settings else self.extractor

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "given": None}  # each rank has its own

    @property
    def full(self) -> str:
        """The extractor, of a published network with its family and its model."""
        usual = SHORT_NAMES.get(self.extractor, self.extractor)
        family = MODEL_FAMILIES.get(usual)
        return f"{usual}:{family.default}" if family else usual

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
        return not self.published and self.extractor != "inception"

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
        return SettingPart(self.setting, f"{self.extractor}@step")

    def option(self, setting: str, value: object = None) -> str:
        """Return `fidtool.errors.option` of one of the settings, or the value alone if it cannot be
        set.
        """
        name = self.named(setting)
        if not name:
            return f"its {setting}" if value in (None, ...) else f"{value}"
        if self.apart or setting == "extractor":
            return option(name, value)
        changed: dict[str, Any] = {setting: "..." if value in (None, ...) else value}
        others = "...," if self.subject and name == "extractor" and value is ... else ""
        return option(name, f"{others}{replace(self, **changed)}")


def networks_of(value: object) -> list[NetworkChoice]:
    """Return the networks of a value of ``extractor``, each with the settings in its own value.

    Args:
        value: a string such as ``inception,dinov2:vitl14@weights=FILE,step=12``, a table such as
            ``{"name": "dinov2", "step": 12}``, a `NetworkChoice`, a `fidtool.Network`, or a list of
            these.

    Raises:
        InputError: if the value is none of these, or a network does not exist or cannot have a
            setting.
    """
    if isinstance(value, str):
        parts = (
            re.split(f"[@,]{_SETTING}", each.strip())
            for each in re.split(rf",(?!{_SETTING})", value)
        )
        return [
            _of_table({"name": name, **dict(each.split("=", 1) for each in pairs)})
            for name, *pairs in parts
        ]
    if isinstance(value, Mapping):
        return [_of_table(value)]
    if isinstance(value, NetworkChoice):
        return [_of_value(value)]
    if hasattr(value, "module") and hasattr(
        value, "input_size"
    ):  # a Network, whose class needs torch
        kind = type(value.module)
        return [NetworkChoice(f"{kind.__module__}.{kind.__qualname__}", given=value)]  # type: ignore[arg-type]
    if not isinstance(value, (list, tuple)) or not value:
        shown = (
            brief(value) if isinstance(value, (list, tuple, int, float)) else type(value).__name__
        )
        raise InputError(
            f"{option('extractor')} must be a string, a fidtool.Network or a list of these, not "
            f"{shown}",
            setting="extractor",
        )
    return [network for each in value for network in networks_of(each)]


def _of_table(table: Mapping[str, Any]) -> NetworkChoice:
    found: dict[str, Any] = {"extractor": ""}
    for name, value in table.items():
        if name not in ("name", *IN_VALUE):
            raise _refused(f"{name}={value} is none of name, {', '.join(IN_VALUE)}")
        converted: str | int = f"{value}"
        if name in ("size", "step", "dims"):
            try:
                converted = int(value) if isinstance(value, str) else index(value)
            except (TypeError, ValueError):
                raise _refused(f"{name}={value} must be an integer") from None
        found[IN_VALUE.get(name, "extractor")] = converted
    if unknown_setting := re.search(r"@(\w+)=", found["extractor"]):
        raise _refused(
            f"{unknown_setting[1]!r} in {found['extractor']} is none of {', '.join(IN_VALUE)}"
        )
    found["extractor"] = usual_spelling(found["extractor"])
    return _of_value(NetworkChoice(**found))


def _refused(problem: str) -> InputError:
    return InputError(f"{option('extractor')}: {problem}", setting="extractor")


def _of_value(choice: NetworkChoice) -> NetworkChoice:
    """Return a network that can have its settings, which messages name as a part of the value of
    ``extractor``.
    """
    choice = replace(choice, apart=False)
    check_extractor(choice)
    return replace(choice, protocol=protocol_of(choice, choice.protocol))


def further_networks(
    first: NetworkChoice, others: Sequence[NetworkChoice]
) -> dict[str, NetworkChoice]:
    """Return the other networks of a run by the layers of their features, which have their names.

    If several have the same extractor, their names have their settings as well.

    Raises:
        InputError: if two are the same, or both are Inception.
    """
    found = dict[str, NetworkChoice]()
    extractors = Counter(choice.extractor for choice in (first, *others))
    taken = {FEATURES, SPATIAL, EMBEDDING, layer_name("inception"), layer_name(first.extractor)}
    for choice in others:
        name = choice.extractor if extractors[choice.extractor] == 1 else str(choice)
        if choice.given is not None and layer_name(name) in taken:  # two modules of one class
            name = f"{name} {len(found) + 2}"
        layer = layer_name(name)
        if layer in taken:
            raise InputError(
                f"{option('extractor')} has {name} twice, or another network whose values have "
                "this name:",
                "name each network once",
                setting="extractor",
            )
        taken.add(layer)
        found[layer] = replace(choice, subject=name)
    return found


def layers_in(
    definitions: Mapping[str, Definition | None], networks: Mapping[str, NetworkChoice]
) -> dict[str, str]:
    """Return which layer of a file has the features of each layer of a run, by the run's layer.

    Args:
        definitions: the file's definitions, by layer. Without one, a layer's name is that of its
            network.
        networks: the run's networks, by layer.
    """
    found = dict[str, str]()
    for layer, choice in networks.items():
        names = sorted(
            definitions, key=lambda name: name != layer
        )  # the same layer if others fit as well
        best = max(names, key=lambda name: _likeness(choice, name, definitions[name]), default="")
        if best and _likeness(choice, best, definitions[best]):
            found[layer] = best
    taken = {*found.values()}
    return found | {
        name: name
        for name in definitions
        if name not in found and (name not in taken or name == FEATURES)
    }


def _likeness(choice: NetworkChoice, name: str, definition: Definition | None) -> int:
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


def protocol_of(choice: NetworkChoice, name: str | None, asked: str = "protocol") -> str | None:
    """Return the usual name of a protocol of a network, or None; ``asked`` is the setting that asks
    for it.

    Raises:
        InputError: if the network has no protocol of this name.
    """
    if name is None:
        return None
    if not choice.published:
        return protocol_named(name).name
    own = OWN_PROTOCOLS.get(choice.family, {})
    if folded(name) not in own:
        raise no_protocol(choice, name, asked, f" ({' or '.join(own)})" if own else "")
    return folded(name)


def no_protocol(
    choice: NetworkChoice, protocol: str, asked: str = "protocol", how: str = ""
) -> InputError:
    """Return the error that ``asked`` asks for a protocol, but a network prepares the images in its
    own way.
    """
    named, remedy, setting = choice.extractor, f"omit protocol={protocol}", choice.setting
    if choice.apart:
        named, remedy, setting = (
            choice.option("extractor", choice.extractor),
            f"omit {option(asked)}",
            asked,
        )
    problem = (
        f"cannot be combined with {named}, which prepares the images with its own transform{how}:"
    )
    return InputError(f"{choice.option('protocol', protocol)} {problem}", remedy, setting=setting)


def usual_spelling(extractor: str) -> str:
    """Return the extractor with ``inception``, a short name, or the name of a family, in its usual
    case.
    """
    kind, colon, model = extractor.partition(":")
    usual = folded(kind)
    known = usual in (*MODEL_FAMILIES, *SHORT_NAMES) or (usual == "inception" and not colon)
    return f"{usual}{colon}{model}" if known else extractor


def check_extractor(choice: NetworkChoice) -> None:
    """Refuse an extractor that has none of the known forms, and settings that are not for it."""
    extractor = choice.extractor
    inception = extractor == "inception"
    if not (inception or choice.given):
        _check_name(choice)
    fixed = "is fixed for Inception, so that its values are comparable; it is for other extractors"
    size_known = (
        fixed if inception else f"is for exported programs; the input size of {extractor} is known"
    )
    for setting, fits, problem in (
        (
            "dims",
            inception,
            "selects a layer of Inception; a custom network's output decides its dimensions",
        ),
        ("input_size", is_program(extractor), size_known),
        ("feature_step", not inception, fixed),
        (
            "weights",
            inception or choice.published,
            "is for Inception and published networks; a custom network comes with its weights",
        ),
    ):
        if getattr(choice, setting) is not None and not fits:
            raise choice.refused(setting, f"{choice.option(setting)} {problem}")


def _check_name(choice: NetworkChoice) -> None:
    extractor = choice.extractor
    family, named = choice.published, choice.option("extractor", extractor)
    if folded(choice.family) == _REMOVED_FAMILY:
        raise choice.refused(
            "extractor",
            f"{named} is not a network:",
            "write a file that loads it (FILE.py:NAME), as `fidtool guide networks` shows",
        )
    if family is not None and not choice.model:
        example = family.default or family.example
        raise choice.refused(
            "extractor", f"{named} needs the name of a model, as in {choice.family}:{example}"
        )
    if family is None and not (is_program(extractor) or is_code_spec(extractor)):
        listed = (
            f"{NAMED_EXTRACTORS}, FILE.pt2 or TorchScript FILE.pt, and FILE.py:NAME or "
            "package.module:NAME for a custom network"
        )
        close = closest(extractor, ("inception", *MODEL_FAMILIES, *SHORT_NAMES))
        raise choice.refused("extractor", unknown("extractor", extractor, close, listed))
