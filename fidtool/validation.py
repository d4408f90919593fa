"""Settings as fields of frozen dataclasses: `Setting` has a field's help text, limits and flag.

A class that inherits from `Validated` checks its fields when an object is made. The command line
makes its options from the same fields, see `fidtool.cli.options`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from math import floor, inf
from numbers import Real
from operator import index
from types import NoneType
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from fidtool.errors import InputError, option, short_repr

MAX_SECONDS = 30.0 * 86400
"""Upper limit of all timeouts."""
MAX_PIXELS = 178_956_970
"""Default of ``max_pixels``: the limit above which Pillow, and so every tool that uses it, refuses
an image.
"""
MAX_SKIP = 0.01
"""Default of ``max_skip``."""
_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

File = str | os.PathLike[str] | None
"""A path or None."""


class TorchDevice(Protocol):
    """A ``torch.device``. Its class would have to be imported here."""

    @property
    def type(self) -> str: ...


def path_text(file: File) -> str | None:
    """Return a path as a string, and None as None."""
    return None if file is None else os.fspath(file)


def max_skipped_files(max_skip: float, count: int) -> int:
    """Return how many of ``count`` files may be skipped."""
    from fractions import Fraction  # lazily, so that --help is fast

    # The decimal value, as typed: 0.29 of 100 is 29, but the nearest float is slightly less.
    return floor(Fraction(repr(max_skip)) * count)


def parse_value_range(value: object) -> tuple[float, float]:
    """Return black and white of a value range, which is a string or two numbers."""
    parts: Any = value.split(",") if isinstance(value, str) else value
    with contextlib.suppress(ValueError, TypeError):
        black, white = map(float, parts)
        if -inf < black < white < inf:
            return black, white
    raise InputError(
        f"{option('value_range')} must be two increasing numbers, the values of black and white, "
        f"such as 0,1 or -1,1, not {short_repr(value)}"
    )


@dataclass(frozen=True)
class Setting:
    """A setting, which is a field of a dataclass: ``num: int | None = Setting(None,
    least=1).help("Use N images.")``.

    Attributes:
        default: the default, which is immutable.
        name: the field's name. `find_settings` sets it, and the next two as well.
        kind: ``int``, ``float``, ``bool``, ``str``, ``os.PathLike`` for paths, or ``tuple`` for
            strings (a single string can be passed alone); ``object`` for any other type, which the
            class must check itself.
        optional: whether it may be None.
        text: one or two sentences for ``--help`` and for ``help(fidtool.compute)``.
        group: heading in ``--help``; empty if the setting has no option.
        metavar: placeholder for the value in ``--help``.
        flag: spellings of the option, separated by spaces. The default is the field's name with
            dashes; for a metric's setting, the metric's name comes first.
        choices: the allowed values; None for the values of the field's type, if that is a
            ``Literal``.
        least, most: limits of a number, both inclusive.
        common: whether ``--help`` shows the option; ``--help-all`` shows all.
        shown: description of the default, if ``--help`` cannot show the value itself.
        defines: whether the setting can change a set's statistics, so that statistics files record
            it. A setting that decides which images are used, or their pixels, must be part of
            `ImageSet.identity` or of `fidtool.run.measure.Measurer.arithmetic` as well, which are
            part of the keys of the cache and of checkpoints.
        excludes: for a metric's setting, the `fidtool.metrics.registry.setting_key` of another
            setting that it replaces.
        convert: function that returns the value that the object holds in place of the value that
            was passed, or raises an error. It must return its own values unchanged. It is not
            called for None if the setting is ``optional``.
    """

    default: Any
    group: str = ""
    metavar: str | None = None
    flag: str = ""
    choices: tuple[str, ...] | None = None
    least: float = -inf
    most: float = inf
    common: bool = False
    defines: bool = True
    excludes: str = ""
    convert: Callable[[Any], Any] | None = None
    text: str = ""
    shown: str = ""
    name: str = ""
    kind: type = object
    optional: bool = False

    def help(self, text: str, default: str = "") -> Any:
        """Return the field. ``default`` describes the default if ``--help`` cannot show the value
        itself.
        """
        return field(
            default=self.default, metadata={"setting": replace(self, text=text, shown=default)}
        )

    @property
    def described(self) -> str:
        """The help text, followed by the choices or limits, and by what None means."""
        notes = self.allowed
        if self.shown and self.default is None:
            notes += f"; default: {self.shown}" if notes else f"default: {self.shown}"
        return f"{self.text} [{notes}]" if notes else self.text

    @property
    def allowed(self) -> str:
        """The choices or limits as text: ``fail or skip``, ``at least 1``, ``from 0 to 1``; empty
        without any.
        """
        if self.choices:
            if len(self.choices) < 3:
                return " or ".join(self.choices)
            return f"one of {', '.join(self.choices)}"
        if self.most < inf:
            return f"from {self.least:.10g} to {self.most:.10g}"
        return f"at least {self.least:.10g}" if self.least > -inf else ""

    def check(self, value: Any, named: str = "") -> Any:
        """Return the value as a plain Python type that JSON can hold. Errors call it ``named``."""
        if value is None and self.optional:
            return None
        wanted = _KIND_NAMES.get(self.kind, "")
        with contextlib.suppress(TypeError):
            value = _to_python(value, self.kind)
            wanted = self.allowed
            is_choice = not self.choices or str(value) in self.choices
            if is_choice and (self.kind not in (int, float) or self.least <= value <= self.most):
                return value
        raise InputError(
            f"{named or option(self.name)} must be {wanted}, not {short_repr(value)}",
            setting=self.name,
        )

    def parse(self, value: Any) -> Any:
        """Convert a string to the setting's type; return any other value, and what `check`
        refuses, unchanged.
        """
        if not isinstance(value, str):
            return value
        if self.kind is bool:
            return _SWITCHES.get(value.lower(), value)
        if self.kind in (int, float):
            with contextlib.suppress(ValueError):
                return self.kind(value)
        return value


_KIND_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a string",
    os.PathLike: "a string",
    tuple: "a string or a list of strings",
}
# Kinds of settings, see `Setting`, by the types of their fields.
_KINDS: Mapping[Any, type] = {
    int: int,
    float: float,
    bool: bool,
    str: str,
    str | Sequence[str]: tuple,
    os.PathLike[str]: os.PathLike,
    str | os.PathLike[str]: os.PathLike,
}


def _to_python(value: Any, kind: type) -> Any:
    """Return a value as a plain Python type; a TypeError if it is not of this kind, see
    `Setting`.
    """
    if kind is object:
        return value
    if kind is bool and value in (True, False):
        return bool(value)
    if kind is int and not isinstance(value, bool):
        return index(value)
    if kind is float and isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if kind in (str, os.PathLike) and isinstance(value, (str, kind)):
        return os.fspath(value)
    if kind is tuple:
        items = (value,) if isinstance(value, str) else value
        if isinstance(items, Sequence) and all(isinstance(item, str) for item in items):
            return tuple(items)
    raise TypeError


_declared: dict[type, Mapping[str, Setting]] = {}


def find_settings(kind: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in their order, with what follows from the types
    of their fields.
    """
    if not is_dataclass(kind):
        return {}
    if kind not in _declared:
        types = get_type_hints(kind)
        owner = getattr(kind, "name", "")
        _declared[kind] = {
            made.name: _complete_setting(made, types[made.name], owner)
            for made in fields(kind)
            if "setting" in made.metadata
        }
    return _declared[kind]


def _complete_setting(made: Field[Any], accepted: Any, owner: str) -> Setting:
    """Return the setting of a field, whose type is ``accepted``; ``owner`` is the name of its
    metric.
    """
    setting: Setting = made.metadata["setting"]
    kind: type = object
    for known, matching in _KINDS.items():
        if accepted in (known, known | None):
            kind = matching
    choices = setting.choices
    types = (accepted, *get_args(accepted))
    for literal in types:
        if get_origin(literal) is Literal:
            kind = str
            if choices is None:
                choices = get_args(literal)
    words = f"{owner}-{made.name}".lstrip("-").replace("_", "-")
    return replace(
        setting,
        name=made.name,
        flag=setting.flag or f"--{words}",
        kind=kind,
        optional=NoneType in types,
        choices=choices,
    )


class Validated:
    """Base class of dataclasses that check their settings when an object is made."""

    def __post_init__(self) -> None:
        for name, setting in find_settings(type(self)).items():
            value = setting.check(getattr(self, name))
            if setting.convert is not None and not (value is None and setting.optional):
                value = setting.convert(value)
            object.__setattr__(self, name, value)
