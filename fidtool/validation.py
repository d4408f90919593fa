"""Settings as annotated fields of frozen dataclasses: each says once what it takes, its limits, its help and its flag.

A class that inherits from `Validated` checks its fields when an object is made. The command line makes its options from
the same annotations, see `fidtool.cli.options`. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from math import inf
from operator import index
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from fidtool.errors import InputError

LONGEST_SECONDS = 30.0 * 86400
"""No deadline is longer."""
MAX_PIXELS = 178_956_970
"""An image of more is taken for a decompression bomb: what Pillow, and so each of the peers, refuses by itself."""
_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

File = str | os.PathLike[str] | None
"""A path, or none."""


def text_of(file: File) -> str | None:
    """A path as a string; None stays None."""
    return None if file is None else os.fspath(file)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of a setting beside its type and its default.

    Attributes:
        help: for ``--help``, one sentence or two.
        group: heading under which ``--help`` lists its option; empty where it has none.
        flag: spelling of the option, where it is not the field's name with dashes; several are divided by spaces.
            ``--on/--off`` is a pair.
        metavar: what ``--help`` shows in the place of a value.
        choices: the only values.
        least, most: limits of a number, both included.
        shown_default: the default in words, where ``--help`` cannot show the value itself.
        defines: it can move a digit of a set's statistics, so it is on record in statistics files. That alone keeps no
            statistics apart: what decides which images count, or their pixels, belongs into
            `fidtool.pipeline.measure.Measurer.arithmetic` as well, by which the cache and checkpoints go.
    """

    help: str
    group: str = ""
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float = -inf
    most: float = inf
    shown_default: str = ""
    defines: bool = True


class Declared(NamedTuple):
    """A field with its annotation.

    Attributes:
        name: of the field.
        kind: ``int``, ``float``, ``bool``, ``str``, or ``os.PathLike`` for paths; ``object`` for any other type, whose
            values the class checks by itself.
        optional: None is a value.
        default: the default.
        setting: the annotation.
    """

    name: str
    kind: type
    optional: bool
    default: Any
    setting: Setting

    @property
    def described(self) -> str:
        """Its help, with its choices or limits in words."""
        least, most = self.setting.least, self.setting.most
        limits = "" if (least, most) == (-inf, inf) else _range(least, most)
        words = _one_of(self.setting.choices) if self.setting.choices else limits
        return f"{self.setting.help} [{words}]" if words else self.setting.help

    def checked(self, value: Any, called: Callable[[str], str] = str) -> Any:
        """The value as a plain Python one, which JSON takes.

        Args:
            value: as given.
            called: what a message calls the setting, by its name, such as `fidtool.errors.option`.

        Raises:
            InputError: it is of another type or beyond the limits.
        """
        if value is None and self.optional:
            return None
        value = self._converted(value, called)
        limits = self.setting
        if limits.choices and str(value) not in limits.choices:
            raise self._refused(called, _one_of(limits.choices), value)
        if self.kind in (int, float) and not limits.least <= value <= limits.most:
            raise self._refused(called, _range(limits.least, limits.most), value)
        return value

    def parsed(self, value: Any, called: Callable[[str], str] = str) -> Any:
        """A value as it was typed, as a string, in the setting's type; any other value as it is.

        Args:
            value, called: see `checked`.

        Raises:
            InputError: the string is no such value.
        """
        if not isinstance(value, str) or self.kind not in (int, float, bool):
            return value
        try:
            return _SWITCHES[value.lower()] if self.kind is bool else self.kind(value)
        except (ValueError, KeyError):
            named = {int: "an integer", float: "a number", bool: "true or false"}[self.kind]
            raise self._refused(called, named, value) from None

    def _converted(self, value: Any, called: Callable[[str], str]) -> Any:
        if self.kind is int:
            try:
                if not isinstance(value, bool):
                    return index(value)
            except TypeError:
                pass
            raise self._refused(called, "an integer", value)
        if self.kind is float:
            from numbers import Real  # the command line answers a wrong option without it

            if isinstance(value, bool) or not isinstance(value, Real):
                raise self._refused(called, "a number", value)
            return float(value)
        if self.kind is bool:
            if isinstance(value, str) or value not in (True, False):
                raise self._refused(called, "True or False", value)
            return bool(value)
        if self.kind is os.PathLike and isinstance(value, os.PathLike):
            return os.fspath(value)
        if self.kind in (str, os.PathLike) and not isinstance(value, str):
            raise self._refused(called, "a string", value)
        return value

    def _refused(self, called: Callable[[str], str], wanted: str, value: object) -> InputError:
        return InputError(f"{called(self.name)} must be {wanted}, not {value!r}", setting=self.name)


def _one_of(choices: tuple[str, ...]) -> str:
    return " or ".join(choices) if len(choices) < 3 else f"one of {', '.join(choices)}"


def _range(least: float, most: float) -> str:
    if most == inf:
        return f"at least {least:.10g}"
    return f"from {least:.10g} to {most:.10g}"


_known: dict[type, Mapping[str, Declared]] = {}


@cache
def _annotations(kind: type) -> dict[str, Any]:
    """A class's own annotations: those of a base once, however many inherit from it."""
    return get_annotations(kind, eval_str=True)


def declared(kind: type) -> Mapping[str, Declared]:
    """The annotated fields of a dataclass that inherits from `Validated`, by name, in their order."""
    if kind in _known:
        return _known[kind]
    hints = {name: hint for base in reversed(kind.__mro__) for name, hint in _annotations(base).items()}
    found = {}
    for field in fields(kind) if is_dataclass(kind) else ():
        annotation = hints[field.name]
        if get_origin(annotation) is not Annotated:
            continue
        accepted, setting = get_args(annotation)[:2]
        types = get_args(accepted) if get_origin(accepted) in (Union, UnionType) else (accepted,)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found[field.name] = Declared(field.name, _plain(types), NoneType in types, default, setting)
    _known[kind] = found
    return found


def _plain(types: tuple[Any, ...]) -> type:
    if any(get_origin(each) is os.PathLike for each in types):
        return os.PathLike
    (first, *others) = [each for each in types if each is not NoneType]
    return first if not others and first in (int, float, bool, str) else object


class Validated:
    """Base of dataclasses whose annotated fields are checked when an object is made."""

    def __post_init__(self) -> None:
        for name, field in declared(type(self)).items():
            object.__setattr__(self, name, field.checked(getattr(self, name), self._called))

    @staticmethod
    def _called(name: str) -> str:
        """What a message calls a setting."""
        return name
