"""The guide's reference of the Python API, made from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import fidtool
import fidtool.training
from fidtool.metrics.registry import BUILT_IN
from fidtool.settings.settings import Settings
from fidtool.validation import find_settings
from support.markdown import block, fill, items, join, sentence

MODULES = (fidtool, fidtool.training)


@dataclass(frozen=True)
class Group:
    """Names that are described together.

    Attributes:
        title: the heading.
        about: what they have in common.
        names: the names, without the package; those of ``fidtool.training`` begin with
            ``training.``.
        created: whether programs create objects of these classes.
        members: whether programs use methods and properties of these classes.
    """

    title: str
    about: str
    names: str
    created: bool = True
    members: bool = False


GROUPS = (
    Group(
        "Compute",
        "What the commands of the same names do. `compute_statistics` is `fidtool stats`, and "
        "`merge_statistics` is `fidtool merge`. See [Python](python.md).",
        "compute compute_statistics merge_statistics check verify",
    ),
    Group(
        "Sets and networks",
        "What can be passed to `compute` beside paths: images in memory, crops, networks.",
        "Images Crop Network NetworkChoice Preparation",
    ),
    Group(
        "Results",
        "What `compute` and `check` return. The [JSON documents](json.md) have the same content.",
        "Evaluation Comparison SetResult RunRecord SkippedFile Checkup",
        created=False,
        members=True,
    ),
    Group(
        "Statistics",
        "Mean and covariance of a set's features, as an object and as a file. See "
        "[caching](caching.md).",
        "Statistics LayerStatistics read_statistics write_statistics frechet_distance",
        created=False,
        members=True,
    ),
    Group(
        "Metrics",
        "Metrics with other settings than the defaults, for the argument `metrics` of `compute`. "
        'A name such as `"kid"` stands for the metric with its defaults. See '
        "[metrics](metrics.md).",
        "FID SpatialFID FIDInfinity KID InceptionScore PRDC CMMD MIND MIFID Vendi AuthPct FDR PSNR "
        "SSIM MultiScaleSSIM LPIPS CLIPScore",
    ),
    Group(
        "Metrics of your own",
        "Base classes, and what they get. See [custom metrics](custom-metrics.md).",
        "Metric PairMetric Number Setting FeatureSet MetricContext MetricFacts",
        members=True,
    ),
    Group(
        "Seeds",
        "Seeds for programs of several ranks.",
        "sample_seed rank_seed",
    ),
    Group(
        "Errors and warnings",
        "What fidtool raises on purpose, and how it warns. The message of an error is one line.",
        "FidtoolError InputError RunError StoppedError FidtoolWarning ResultWarning "
        "training.AbsentRanksError training.OutOfSyncError",
        created=False,
    ),
    Group(
        "Training: metrics",
        "Metrics for training loops, with the interface of torchmetrics' metrics of the same "
        "names. See [training](training.md).",
        "training.FrechetInceptionDistance training.KernelInceptionDistance "
        "training.InceptionScore training.PrecisionRecallDensityCoverage "
        "training.MemorizationInformedFrechetInceptionDistance training.PeakSignalNoiseRatio "
        "training.StructuralSimilarityIndexMeasure "
        "training.MultiScaleStructuralSimilarityIndexMeasure "
        "training.LearnedPerceptualImagePatchSimilarity training.FIDCallback",
        members=True,
    ),
    Group(
        "Training: losses and features",
        "A differentiable distance, and the features that it compares.",
        "training.FrechetLoss training.FeatureExtractor",
        members=True,
    ),
    Group(
        "Training: ranks",
        "Keep the ranks of a training program in step, and gather what they computed.",
        "training.wrap_trainable training.assert_in_sync training.assert_optimized "
        "training.gather_with_grad training.gather_outputs training.dist_sync_fn "
        "training.WithIndex",
        members=True,
    ),
)


@dataclass(frozen=True)
class Docstring:
    """A docstring in Google's style: paragraphs, and entries of its sections."""

    text: str = field(repr=False)

    @cached_property
    def _parts(self) -> list[str]:
        sections = "Args|Attributes|Returns|Yields|Raises|Settings"
        return re.split(rf"^({sections}):\n", inspect.cleandoc(self.text), flags=re.MULTILINE)

    @property
    def paragraphs(self) -> list[str]:
        return [each for each in self._parts[0].strip().split("\n\n") if each]

    def section(self, name: str) -> str:
        """Return the text of a section; empty if there is none."""
        found = dict(zip(self._parts[1::2], self._parts[2::2], strict=True))
        return inspect.cleandoc(f"\n{found.get(name, '')}")

    def entries(self, name: str) -> dict[str, str]:
        """Return the descriptions in a section by what they describe."""
        entry = r"^([\w., ]+): (.*(?:\n +.*)*)"
        return dict(re.findall(entry, self.section(name), re.MULTILINE))


def public() -> dict[str, Any]:
    """Return the public objects by their names, without the package; those of training begin with
    ``training.``.
    """
    found = {}
    for module in MODULES:
        prefix = f"{module.__name__}.".removeprefix("fidtool.")
        found |= {f"{prefix}{name}": getattr(module, name) for name in module.__all__}
    return found


def grouped() -> list[str]:
    """Return the names in the groups."""
    return [name for group in GROUPS for name in group.names.split()]


def api_parts() -> dict[str, str]:
    """Return the parts of the page about the Python API that are made from code."""
    things = public()
    shown: dict[Any, str] = {}
    sections = []
    for group in GROUPS:
        names = group.names.split()
        own = [_described(name, things[name], group, shown) for name in names]
        sections.append(join(f"## {group.title}", fill(group.about), *own))
    return {"names": items(_contents()), "reference": join(*sections)}


def _contents() -> Iterator[str]:
    for group in GROUPS:
        anchor = group.title.lower().replace(" ", "-").replace(":", "")
        names = ", ".join(f"`{name}`" for name in group.names.split())
        yield f"[{group.title}](#{anchor}): {names}"


def _described(name: str, thing: Any, group: Group, shown: dict[Any, str]) -> str:
    """Return the section of a public object. ``shown`` has the methods that are described already,
    with the names of their classes.
    """
    text = Docstring(thing.__doc__ or "")
    settings = _settings(thing)
    is_class = inspect.isclass(thing)
    parameters = [each for each in _parameters(thing) if each.name not in settings]
    is_base = is_class and issubclass(thing, fidtool.Metric) and thing not in BUILT_IN.values()
    has_call = not is_class or (group.created and not is_base)
    hints = {each.name: each.annotation for each in parameters}
    return join(
        f"### fidtool.{name}",
        block(_call(f"fidtool.{name}", parameters, bool(settings))) if has_call else "",
        *map(_paragraph, text.paragraphs),
        _metric_page(thing),
        _listed("Arguments:", text.entries("Args"), hints),
        _listed("Attributes:", text.entries("Attributes"), hints | _field_types(thing)),
        _listed_settings(thing, settings),
        _listed_members(thing, shown) if is_class and group.members else "",
        _prose("Returns", text.section("Returns")),
        _listed("Raises:", text.entries("Raises"), {}),
    )


def _parameters(thing: Any) -> list[inspect.Parameter]:
    try:
        return [*inspect.signature(thing).parameters.values()]
    except ValueError:  # the warnings' classes have none
        return []


def _settings(thing: Any) -> dict[str, Any]:
    """Return the settings that are arguments: those of a metric, and of `fidtool.compute`."""
    if inspect.isclass(thing):
        is_metric = issubclass(thing, fidtool.Metric)
        return {**find_settings(thing)} if is_metric else {}
    names = Docstring(thing.__doc__ or "").entries("Settings")
    return {name: each for name, each in find_settings(Settings).items() if name in names}


def _call(name: str, parameters: list[inspect.Parameter], has_settings: bool) -> list[str]:
    """Return a call with all arguments and their defaults, in lines of at most 80 columns."""
    words = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        words.append(f"{stars.get(parameter.kind, '')}{parameter.name}{default}")
    if has_settings:
        words = [*(word for word in words if word != "*"), "**settings"]
    return fill(f"{name}({', '.join(words)})", "    ").splitlines()


def _default(value: Any) -> str:
    """Return a default as text that does not depend on the version of Python."""
    if value is None or isinstance(value, (str, bool, int, float, tuple)):
        return repr(value)
    return "..."


def _paragraph(text: str) -> str:
    """Return a paragraph of a docstring; a line of Python in it stays as it is."""
    if text.startswith(">>>"):
        return block(line.partition("  # doctest")[0] for line in text.splitlines())
    return fill(_words(text))


def _words(text: str) -> str:
    """Return the text of a docstring as the guide writes it."""
    return text.replace("``", "`")


def _prose(title: str, text: str) -> str:
    return fill(f"{title}: {_words(text)}") if text else ""


def _listed(title: str, entries: dict[str, str], hints: dict[str, Any], level: int = 0) -> str:
    """Return a list of arguments, attributes or errors under a title, with their types."""
    lines = []
    for names, text in entries.items():
        types = {_type(hints.get(name, "")) for name in names.split(", ")}
        shown = f" ({types.pop()})" if len(types) == 1 and types != {""} else ""
        marked = ", ".join(f"`{name}`" for name in names.split(", "))
        lines.append(f"{marked}{shown}: {sentence(_words(text))}")
    return join(title, items(lines, level)) if lines else ""


def _field_types(thing: Any) -> dict[str, Any]:
    """Return the annotations of a class's attributes, as in the source."""
    found: dict[str, Any] = {}
    for kind in reversed(getattr(thing, "__mro__", ())):
        found |= vars(kind).get("__annotations__", {})
    return found


_KNOWN = {"Any", "ArrayLike", "Callable", "Collection", "Iterable", "Literal", "Mapping"}
_KNOWN |= {"Module", "NDArray", "None", "Path", "PathLike", "Sequence", "Tensor", "True", "False"}


def _type(annotation: Any) -> str:
    """Return an annotation as text; empty if it names a type that programs cannot import."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(collections\.abc|typing|fidtool(\.\w+)*)\.", "", text)
    text = re.sub(r"^(ClassVar|InitVar)\[(.*)\]$", r"\2", text)
    names = {*re.findall(r"(?<!['\w])[A-Z]\w*", text)}
    known = _KNOWN | {name.rpartition(".")[2] for name in public()}
    is_shown = names <= known and "empty" not in text and "Optional" not in text
    return f"`{text}`" if text and is_shown else ""


def _metric_page(thing: Any) -> str:
    """Return a link to the page of a built-in metric."""
    names = {kind: name for name, kind in BUILT_IN.items()}
    if not inspect.isclass(thing) or thing not in names:
        return ""
    name = names[thing]
    return f"Its page: [{name}](metrics/{name}.md)."


def _listed_settings(thing: Any, settings: dict[str, Any]) -> str:
    """Return a list of settings. That of `fidtool.compute` has those of the other functions."""
    if not settings:
        return ""
    if thing in (fidtool.check, fidtool.compute_statistics):
        names = ", ".join(f"`{name}`" for name in settings)
        return fill(f"Settings, which [`fidtool.compute`](#fidtoolcompute) describes: {names}.")
    return join("Settings:", items(map(_setting, settings.values())))


def _setting(setting: Any) -> str:
    """Return a setting's name, type, default and description."""
    kind = setting.kind.__name__ if setting.kind in (int, float, bool, str) else ""
    kind = f"`{kind}{' | None' * setting.optional}`" if kind else ""
    default = f"default `{setting.default!r}`" if setting.default is not None else ""
    facts = ", ".join(filter(None, [kind, default]))
    notes = [f"`{setting.name}`{f' ({facts})' if facts else ''}: {setting.text}"]
    if setting.choices:
        notes.append(f"One of {', '.join(f'`{choice}`' for choice in setting.choices)}.")
    elif setting.allowed:
        notes.append(sentence(setting.allowed))
    if setting.shown and setting.default is None:
        notes.append(f"Default: {setting.shown}.")
    return " ".join(notes)


def _listed_members(kind: type, shown: dict[Any, str]) -> str:
    """Return lists of a class's properties and methods that fidtool defines. Those of a class above
    it on the page are not described again.
    """
    properties, methods, inherited = [], [], set()
    for name, member in _members(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None)
        function = function or getattr(member, "__func__", member)
        if shown.setdefault(function, kind.__name__) != kind.__name__:
            inherited.add(shown[function])
            continue
        text = Docstring(function.__doc__)
        words = sentence(_words(" ".join([*text.paragraphs, *_outcome(text)])))
        if inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)):
            arguments = [each for each in _parameters(getattr(kind, name)) if each.name != "self"]
            call = " ".join(" ".join(_call(name, arguments, False)).split())
            methods.append(items([f"`{call}`: {words}"]))
            methods += filter(None, [_listed("", text.entries("Args"), {}, 1)])
        else:
            properties.append(items([f"`{name}`: {words}"]))
    return join(
        "Properties:" if properties else "",
        "\n".join(properties),
        "Methods:" if methods else "",
        "\n".join(methods),
        fill(f"Other properties and methods are as in {_names(inherited)}.") if inherited else "",
    )


def _names(names: set[str]) -> str:
    return " and ".join(f"`{name}`" for name in sorted(names))


def _outcome(text: Docstring) -> Iterator[str]:
    """Describe what a method returns and its errors."""
    if text.section("Returns"):
        yield f"Returns: {text.section('Returns')}"
    for names, when in text.entries("Raises").items():
        yield f"Raises {_names({*names.split(', ')})} {when.removesuffix('.')}."


def _members(kind: type) -> dict[str, Any]:
    """Return the public properties and methods that fidtool defines, without Lightning's hooks."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        # Without torchmetrics, a class of fidtool with the same names replaces its base class.
        if base.__module__.startswith("fidtool") and base.__name__ != "PlainMetric":
            found |= vars(base)
    return {
        name: each
        for name, each in found.items()
        if not name.startswith(("_", "on_")) and _is_member(each) and _docstring(each)
    }


def _docstring(each: Any) -> str:
    return getattr(each, "func", each).__doc__ or ""


def _is_member(each: Any) -> bool:
    """Whether it is a property or method of fidtool's own."""
    if isinstance(each, (property, cached_property, classmethod, staticmethod)):
        return True
    return inspect.isfunction(each) and each.__module__.startswith("fidtool")


def undescribed(group: Group) -> Iterator[str]:
    """Yield the arguments of a group's functions and classes that no docstring describes."""
    things = public()
    for name in group.names.split():
        thing = things[name]
        text = Docstring(thing.__doc__ or "")
        listed = [*text.entries("Args"), *text.entries("Attributes"), *_settings(thing)]
        known = {each for names in listed for each in names.split(", ")}
        if (inspect.isclass(thing) and not group.created) or re.search(
            r"arguments,\s+see", thing.__doc__
        ):
            continue
        for parameter in _parameters(thing):
            if parameter.name not in known and f"``{parameter.name}``" not in text.text:
                yield f"{name}: {parameter.name}"
