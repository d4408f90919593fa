"""The public Python API: names, parameters, defaults, fields and exceptions."""

from __future__ import annotations

import dataclasses
import inspect
import pickletools
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import fidtool
import fidtool.training
from support.goldens import Golden
from support.places import ROOT

MODULES = {"fidtool": fidtool, "fidtool.training": fidtool.training}
NAMES = {name for module in MODULES.values() for name in module.__all__}
GIVEN = ("Images", "Network", "Preparation")
"""Programs create these and pass them to fidtool. Only the package uses their methods."""
_KNOWN = {
    "Any",
    "ArrayLike",
    "Callable",
    "Collection",
    "Literal",
    "Mapping",
    "NDArray",
    "None",
    "Path",
    "Sequence",
    *NAMES,
}
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "**",
}


@pytest.fixture(autouse=True)
def _light() -> Iterator[None]:
    """Replace Lightning's Callback, which is only a base class, takes seconds to import, and may
    not be installed.
    """
    light = types.ModuleType("lightning.pytorch")
    light.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    if "lightning.pytorch" in sys.modules:
        yield
        return
    sys.modules["lightning.pytorch"] = light
    yield
    del sys.modules["lightning.pytorch"]
    for name in [name for name, module in sys.modules.items() if _has_callback(module)]:
        del sys.modules[name]  # other tests need the real base


def _has_callback(module: types.ModuleType) -> bool:
    return module.__name__.startswith("fidtool.training.") and "FIDCallback" in vars(module)


def public() -> Iterator[tuple[str, Any]]:
    """Yield every public object with its full name."""
    for place, module in MODULES.items():
        for name in module.__all__:
            yield f"{place}.{name}", getattr(module, name)


def default_of(value: Any) -> str:
    """Return a default as text that does not depend on the versions of Python and libraries."""
    if value is dataclasses.MISSING or value is inspect.Parameter.empty:
        return "required"
    if value is None or isinstance(value, (str, bool, int, float, tuple)):
        return repr(value)
    return f"a {type(value).__name__}" if type(value).__name__ in NAMES else "an object"


def parameters_of(function: Any) -> list[str]:
    """Return one line per parameter: its name, how it may be passed, and its default."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        default = "" if parameter.kind in _STARS else f", {default_of(parameter.default)}"
        found.append(f"{parameter.name}: {_KINDS[parameter.kind]}{default}")
    return found


_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def own_members(kind: type) -> dict[str, Any]:
    """Return the public methods and properties that fidtool defines, without those of other
    packages' base classes.
    """
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        # Without torchmetrics, a class of fidtool with the same names replaces its base class.
        if base.__module__.startswith("fidtool") and base.__name__ != "PlainMetric":
            found |= {name: each for name, each in vars(base).items() if not name.startswith("_")}
    return dict(sorted(found.items()))


def members_of(kind: type) -> dict[str, Any]:
    """Return the parameters of methods, and descriptions of properties and plain values."""
    found: dict[str, Any] = {}
    fields = (
        {field.name for field in dataclasses.fields(kind)}
        if dataclasses.is_dataclass(kind)
        else set()
    )
    for name, member in own_members(kind).items() if kind.__name__ not in GIVEN else ():
        if name in fields:
            continue
        if isinstance(member, property):
            found[name] = "property"
        elif isinstance(member, (classmethod, staticmethod)) or inspect.isfunction(member):
            found[name] = parameters_of(getattr(kind, name))
        else:
            found[name] = default_of(member)
    return found


def described(thing: Any) -> dict[str, Any]:
    """Return the properties of a public object that callers see."""
    if not inspect.isclass(thing):
        return {"kind": "function", "parameters": parameters_of(thing)}
    if issubclass(thing, Warning) or issubclass(thing, Exception):
        bases = [base.__name__ for base in thing.__mro__[1:] if base is not object]
        found = {
            "kind": "exception",
            "bases": bases,
            "exit_code": getattr(thing, "exit_code", None),
        }
        return {**found, "parameters": parameters_of(thing)} if "__init__" in vars(thing) else found
    found = {"kind": "class", "parameters": parameters_of(thing), "members": members_of(thing)}
    if not dataclasses.is_dataclass(thing):
        return found
    fields = [f"{each.name}: {_field_default(each)}" for each in dataclasses.fields(thing)]
    params: Any = thing.__dataclass_params__  # type: ignore[attr-defined]
    return {**found, "fields": fields, "frozen": params.frozen}


def _field_default(field: dataclasses.Field[Any]) -> str:
    made = field.default_factory is not dataclasses.MISSING
    return f"{field.default_factory.__name__}()" if made else default_of(field.default)  # type: ignore[union-attr]


def annotations_of(thing: Any) -> list[str]:
    """Return the annotations of parameters and of the return value as in the source.

    A question mark replaces the names of classes and types that programs cannot import.
    """
    signature = inspect.signature(thing)
    written = [(each.name, each.annotation) for each in signature.parameters.values()]
    if not inspect.isclass(thing):
        written.append(("return", signature.return_annotation))
    words = [
        (name, _PRIVATE.sub(_hidden, annotation))
        for name, annotation in written
        if isinstance(annotation, str)
    ]
    return [f"{name}: {annotation}" for name, annotation in words]


_PRIVATE = re.compile(r"(?<![.\w])[A-Z]\w*")


def _hidden(name: re.Match[str]) -> str:
    return name[0] if name[0] in _KNOWN else "?"


def test_names(golden: Golden) -> None:
    golden("public/names", {place: sorted(module.__all__) for place, module in MODULES.items()})


def test_every_name_can_be_imported_and_is_listed() -> None:
    for place, module in MODULES.items():
        assert {name for name in module.__all__ if name not in dir(module)} == set(), place
    for name, thing in public():
        assert thing is not None, name


def test_signatures(golden: Golden) -> None:
    golden("public/calls", {name: described(thing) for name, thing in public()})


def test_annotations(golden: Golden) -> None:
    """Annotations are compared as in the source. Exceptions and metrics are left out."""
    bases = (BaseException, fidtool.Metric)
    callables = {
        name: thing
        for name, thing in public()
        if not (inspect.isclass(thing) and issubclass(thing, bases))
    }
    golden("public/annotations", {name: annotations_of(thing) for name, thing in callables.items()})


_VARIABLE = re.compile(r"[\"']([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|RANK)[\"']")
_NO_VARIABLES = {"O_NONBLOCK", *(opcode.name for opcode in pickletools.opcodes)}


def test_environment_variables(golden: Golden) -> None:
    """Variables that fidtool reads or sets: all quoted names in capital letters."""
    sources = [file.read_text("utf-8") for file in sorted((ROOT / "fidtool").rglob("*.py"))]
    golden(
        "public/environment",
        sorted({name for source in sources for name in _VARIABLE.findall(source)} - _NO_VARIABLES),
    )
