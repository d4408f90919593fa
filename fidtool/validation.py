"""Settings as annotated fields of frozen dataclasses. The annotation has the setting's limits, help text and flag.

A class that inherits from `Validated` checks its fields when an object is made. The command line makes its options from
the same annotations, see `fidtool.cli.options`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from math import inf
from operator import index
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Union, get_args, get_origin, get_type_hints

from fidtool.errors import InputError

LONGEST_SECONDS = 30.0 * 86400
"""Upper limit of all timeouts."""
MAX_PIXELS = 178_956_970
"""Default of ``max_pixels``: the limit above which Pillow, and so every tool that uses it, refuses an image."""
_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

File = str | os.PathLike[str] | None
"""A path or None."""


class TorchDevice(Protocol):
    """A ``torch.device``. Its class would have to be imported here."""

    @property
    def type(self) -> str: ...


def text_of(file: File) -> str | None:
    """Return a path as a string, and None as None."""
    return None if file is None else os.fspath(file)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Annotation of a setting. Its type and default are those of the field.

    Attributes:
        help: one or two sentences for ``--help`` and for ``help(fidtool.compute)``.
        group: heading in ``--help``; empty if the setting has no option.
        flag: spellings of the option, separated by spaces, if it is not the field's name with dashes. ``--on/--off``
            is a pair.
        metavar: placeholder for the value in ``--help``.
        choices: the allowed values; None for those of the field's type, if that is a ``Literal``.
        least, most: limits of a number, both inclusive.
        shown_default: description of the default, if ``--help`` cannot show the value itself.
        defines: whether the setting can change a set's statistics, so that statistics files record it. A setting that
            decides which images are used, or their pixels, must be part of `ImageSet.identity` or of
            `fidtool.pipeline.measure.Measurer.arithmetic` as well, which are part of the keys of the cache and of
            checkpoints.
    """

    help: str
    group: str = ""
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    least: float = -inf
    most: float = inf
    shown_default: str = ""
    defines: bool = True


class Declared(NamedTuple):
    """A field with its annotation.

    ``kind`` is ``int``, ``float``, ``bool``, ``str``, or ``os.PathLike`` for paths; ``object`` for any other type,
    which the class must check itself.
    """

    name: str
    kind: type
    optional: bool
    default: Any
    setting: Setting

    @property
    def described(self) -> str:
        """The help text, followed by the choices or limits, and by what None means."""
        shown = self.setting.shown_default if self.default is None else ""
        notes = "; ".join(filter(None, (self.allowed, shown and f"default: {shown}")))
        return f"{self.setting.help} [{notes}]" if notes else self.setting.help

    @property
    def allowed(self) -> str:
        """The choices or limits as text: ``fail or skip``, ``at least 1``, ``from 0 to 1``; empty without any."""
        choices, least, most = self.setting.choices, self.setting.least, self.setting.most
        if choices:
            return " or ".join(choices) if len(choices) < 3 else f"one of {', '.join(choices)}"
        if most < inf:
            return f"from {least:.10g} to {most:.10g}"
        return f"at least {least:.10g}" if least > -inf else ""

    def checked(self, value: Any, called: Callable[[str], str] = str) -> Any:
        """Return the value as a plain Python type that JSON can hold."""
        if value is None and self.optional:
            return None
        try:
            value = _plain(value, self.kind)
        except TypeError:
            raise self._refused(called, _WANTED[self.kind], value) from None
        limits = self.setting
        if limits.choices and str(value) not in limits.choices:
            raise self._refused(called, self.allowed, value)
        if self.kind in (int, float) and not limits.least <= value <= limits.most:
            raise self._refused(called, self.allowed, value)
        return value

    def parsed(self, value: Any, called: Callable[[str], str] = str) -> Any:
        """Convert a string to the setting's type, and return any other value unchanged. See `checked`."""
        if not isinstance(value, str) or self.kind not in (int, float, bool):
            return value
        try:
            return _SWITCHES[value.lower()] if self.kind is bool else self.kind(value)
        except (ValueError, KeyError):
            raise self._refused(called, _WANTED[self.kind].lower(), value) from None

    def _refused(self, called: Callable[[str], str], wanted: str, value: object) -> InputError:
        return InputError(f"{called(self.name)} must be {wanted}, not {value!r}", setting=self.name)


_WANTED = {int: "an integer", float: "a number", bool: "True or False", str: "a string", os.PathLike: "a string"}


def _plain(value: Any, kind: type) -> Any:
    """Return a value as a plain Python type; a TypeError if it is not of this kind, see `Declared`."""
    from numbers import Real  # lazily, so that --help is fast

    if kind is bool and not isinstance(value, str) and value in (True, False):
        return bool(value)
    if kind is int and not isinstance(value, bool):
        return index(value)
    if kind is float and isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if (kind is str and isinstance(value, str)) or (kind is os.PathLike and isinstance(value, (str, os.PathLike))):
        return os.fspath(value)
    if kind is object:
        return value
    raise TypeError


class _Undescribed(NamedTuple):
    """A setting that is a field of a dataclass once its help text is known."""

    default: Any
    given: Mapping[str, Any]

    def help(self, text: str, default: str = "") -> Any:
        """Return the field. ``default`` describes the default if ``--help`` cannot show the value itself."""
        setting = Setting(help=text, shown_default=default, **self.given)
        return field(default=self.default, metadata={"setting": setting})


def setting(default: Any, group: str, metavar: str | None = None, **further: Any) -> _Undescribed:
    """Declare a field of a dataclass, ``setting(...).help(text)``: the short form of an annotation with `Setting`."""
    return _Undescribed(default, {"group": group, "metavar": metavar, **further})


def setting_of(kind: type, name: str) -> Any:
    """Return a field with the default, limits, help text and flag of a setting of another class."""
    each = declared(kind)[name]
    return field(default=each.default, metadata={"setting": each.setting})


_known: dict[type, Mapping[str, Declared]] = {}


def declared(kind: type) -> Mapping[str, Declared]:
    """Return the fields of a dataclass that are settings, by name, in their order.

    A setting is annotated with a `Setting`, or made by `setting`. The class must inherit from `Validated`.
    """
    if kind in _known:
        return _known[kind]
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for each in fields(kind) if is_dataclass(kind) else ():
        accepted, setting = hints[each.name], each.metadata.get("setting")
        if get_origin(accepted) is Annotated:
            accepted, setting = get_args(accepted)[:2]
        if not isinstance(setting, Setting):
            continue
        types = get_args(accepted) if get_origin(accepted) in (Union, UnionType) else (accepted,)
        if setting.choices is None:
            choices = [choice for each in types if get_origin(each) is Literal for choice in get_args(each)]
            setting = replace(setting, choices=tuple(choices) or None)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        found[each.name] = Declared(each.name, _kind_of(types), NoneType in types, default, setting)
    _known[kind] = found
    return found


def _kind_of(types: tuple[Any, ...]) -> type:
    """Return the kind of a field, see `Declared`."""
    kinds = {str if get_origin(each) is Literal else get_origin(each) or each for each in types}
    kinds.discard(NoneType)
    if os.PathLike in kinds:
        return os.PathLike
    return kinds.pop() if kinds in ({int}, {float}, {bool}, {str}) else object


class Validated:
    """Base class of dataclasses that check their annotated fields when an object is made."""

    def __post_init__(self) -> None:
        for name, each in declared(type(self)).items():
            object.__setattr__(self, name, each.checked(getattr(self, name), self._called))

    @staticmethod
    def _called(name: str) -> str:
        return name
