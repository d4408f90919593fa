"""Exact comparison of the output and files of two runs, except for what differs between any two runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

LONGEST = 160
ANY = "<any>"
"""Replaces masked parts of file names. The contents of such files are not compared."""
MOST_LINES = 3
"""Maximum number of differing lines to report per text."""

KEYS = (
    "run.host",
    "run.date",
    "run.seconds.*",
    "run.extraction.*",
    "run.images_per_second",
    "run.versions.fidtool",
    "entries.*.used",
)
"""Paths of JSON values that are not compared; their presence and type are."""

MASKED_TEXTS = ("exit.reason",)
"""Paths of JSON strings that are masked like stderr."""

TEXT = (
    (re.compile(r"^.*: \d+(/\d+)? images, [\d.]+ images/s(, \d+ s left)?\n", re.MULTILINE), ""),
    (re.compile(r"\d[\d,]*(\.\d+)? (images/s|a second)"), "<speed>"),
    (re.compile(r'(<th scope="row">Seconds</th><td>).*(?=</td>)'), r"\1<seconds>"),
    (re.compile(r"\bprocess \d+"), "process <pid>"),
    (re.compile(r"\bpid[ =:]+\d+"), "pid <pid>"),
    (re.compile(r"(127\.0\.0\.1|localhost|\[::1?\]):\d{4,5}\b"), r"\1:<port>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(\.\d+)?( UTC|Z)?)?"), "<date>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(rf"\b{re.escape(socket.gethostname())}\b"), "<host>"),
)
"""Masks for stderr and HTML."""

TIMINGS = re.compile(r"^.*(\d images through the network| It took ).*$", re.MULTILINE)
"""Lines with durations. Seconds in other lines are settings, such as timeouts, and are compared."""
SECONDS = (re.compile(r"\d+(\.\d+)? s\b"), "<seconds>")
"""Additional mask for these lines."""

OF_TORCHRUN = (
    re.compile(r"^[EIW]\d{4} \d\d:\d\d:.*\n", re.MULTILINE),
    re.compile(r"^\*{20,}\nSetting OMP_NUM_THREADS.*\n\*{20,}\n", re.MULTILINE),
    re.compile(
        r"^Traceback \(most recent call last\):\n((?!Traceback ).*\n)*?torch\.distributed\.elastic\..*\n", re.MULTILINE
    ),
    re.compile(r"^={20,}\n.* FAILED\n(.*\n)*?={20,}\n", re.MULTILINE),
)
"""torchrun's own output: its log, its advice, its traceback and its report of failed ranks."""

NAMES = (
    (re.compile(r"(?<=-[0-9a-f]{12}-)[0-9a-f]{12}(?=-\d{5}\.)"), "<attempt>"),
    (re.compile(r"\.tmp\w+|\btmp\w{6,}"), "<temporary>"),
)
"""Masks for file names."""


@dataclass(frozen=True)
class Difference:
    """A difference between the two versions: where it is, and both values in short."""

    what: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.what}: {self.first} | {self.second}"


class Number(str):
    """A number as it is written in JSON: equal strings have the same bits."""


def text_of(file: Path) -> str:
    """Return the text of a file with its line ends, and with undecodable bytes as surrogates."""
    return file.read_bytes().decode("utf-8", "surrogateescape")


def parsed(text: str) -> Any:
    """Parse a JSON document, with numbers as `Number`; return None if the text is not JSON."""
    try:
        found = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=Number)
    except ValueError:
        return None
    return found if isinstance(found, (dict, list)) else None


def shown(value: object) -> str:
    """Format a value in short."""
    text = value if isinstance(value, Number) else repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}… ({len(text)} characters)"


def masked(text: str, replaced: Mapping[str, str]) -> str:
    """Mask what differs between any two runs.

    Args:
        text: stderr or HTML.
        replaced: strings to replace first, such as the path of the installed version.
    """
    for old, new in replaced.items():
        text = text.replace(old, new)
    text = TIMINGS.sub(lambda line: SECONDS[0].sub(SECONDS[1], line[0]), text)
    for pattern, new in TEXT:
        text = pattern.sub(new, text)
    return text


def own_lines(text: str) -> str:
    """Return the sorted lines of stderr, without empty lines and torchrun's. Ranks print in any order."""
    for pattern in OF_TORCHRUN:
        text = pattern.sub("", text)
    return "\n".join(sorted(line for line in text.splitlines() if line.strip()))


def json_differences(first: Any, second: Any, keys: Sequence[str], path: str = "") -> Iterator[Difference]:
    """Yield the differences between two JSON documents: keys and their order, types, strings, digits of numbers.

    Args:
        first, second: see `parsed`.
        keys: patterns of paths, such as ``run.seconds.*``, of values that may differ.
        path: path of the two values within their documents.
    """
    if type(first) is not type(second):
        yield Difference(path, shown(first), shown(second))
    elif isinstance(first, dict):
        settings = path.endswith("run.config") and set(first) == set(second)  # the order of declaration
        if list(first) != list(second) and not settings:
            yield Difference(f"{path or 'document'}: keys", *_apart(list(first), list(second)))
        for name in (name for name in first if name in second):
            yield from json_differences(first[name], second[name], keys, f"{path}.{name}".lstrip("."))
    elif isinstance(first, list):
        if len(first) != len(second):
            yield Difference(f"{path}: length", str(len(first)), str(len(second)))
        for number, (one, other) in enumerate(zip(first, second, strict=False)):
            yield from json_differences(one, other, keys, f"{path}.{number}".lstrip("."))
    elif first != second and not any(fnmatchcase(path, key) for key in keys):
        if path in MASKED_TEXTS and masked(first, {}) == masked(second, {}):
            return
        yield Difference(path, shown(first), shown(second))


def _apart(first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
    """Return the items that only one of two lists has; both lists if only the order differs."""
    ones, others = ([each for each in one if each not in other] for one, other in ((first, second), (second, first)))
    return (shown(ones), shown(others)) if ones or others else (shown(first), shown(second))


def _skeleton(text: str) -> str:
    """Return the layout of a JSON text, with 0 for strings and numbers."""
    return re.sub(r'"(\\.|[^"\\])*"|-?\d[\d.eE+-]*', "0", text)


def text_differences(first: str, second: str, keys: Sequence[str], same_layout: bool = True) -> Iterator[Difference]:
    """Yield the differences between two printed texts. JSON is compared value by value.

    Args:
        first, second: the texts.
        keys: see `json_differences`.
        same_layout: whether the layout of JSON must be equal, too.
    """
    one, other = parsed(first), parsed(second)
    if one is not None and other is not None:
        found = list(json_differences(one, other, keys))
        yield from found
        if not found and same_layout and _skeleton(first) != _skeleton(second):
            yield from line_differences(_skeleton(first), _skeleton(second))
    else:
        yield from line_differences(first, second)


def line_differences(first: str, second: str) -> Iterator[Difference]:
    """Yield the first differing lines of two texts."""
    if first == second:
        return
    lines = itertools.zip_longest(first.split("\n"), second.split("\n"))
    differing = ((number, *both) for number, both in enumerate(lines, 1) if both[0] != both[1])
    for number, one, other in itertools.islice(differing, MOST_LINES):
        yield Difference(f"line {number}", shown(one), shown(other))


def array_differences(first: Path, second: Path, keys: Sequence[str]) -> Iterator[Difference]:
    """Yield the differences between two .npy or .npz files: names and their order, dtypes, shapes, layout, bits."""
    with _loaded(first) as one, _loaded(second) as other:
        if list(one) != list(other):
            yield Difference("arrays", *_apart(list(one), list(other)))
        for name in [name for name in one if name in other]:
            for each in _between(one[name], other[name], keys):
                yield Difference(f"{name} {each.what}".strip(), each.first, each.second)


class _loaded(dict[str, Any]):  # noqa: N801
    """Arrays of a file by name; the array of an .npy file has the empty name."""

    def __init__(self, file: Path) -> None:
        found = np.load(file, allow_pickle=False)
        super().__init__({"": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files})

    def __enter__(self) -> _loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def _between(one: Any, other: Any, keys: Sequence[str]) -> Iterator[Difference]:
    kinds = [(each.dtype.str, each.shape, each.flags.c_contiguous) for each in (one, other)]
    texts = one.dtype.kind == other.dtype.kind == "U" and one.ndim == other.ndim == 0
    if texts:  # the dtype contains the length
        yield from text_differences(str(one), str(other), keys)
    elif one.dtype.kind == other.dtype.kind == "U":
        names = [[_masked_name(name) for name in each.ravel().tolist()] for each in (one, other)]
        yield from line_differences(*map("\n".join, names))
    elif kinds[0] != kinds[1]:
        yield Difference("kind", str(kinds[0]), str(kinds[1]))
    elif one.tobytes() != other.tobytes():
        rows = [np.frombuffer(each.tobytes(), dtype=np.uint8).reshape(each.size, -1) for each in (one, other)]
        places = np.flatnonzero((rows[0] != rows[1]).any(1))
        values = (shown(each.reshape(-1)[places[0]].item()) for each in (one, other))
        yield Difference(f"{len(places)} of {one.size} values, the first at {places[0]}", *values)


def file_differences(first: Path, second: Path, keys: Sequence[str], replaced: Mapping[str, str]) -> list[Difference]:
    """Return the differences between two files.

    Args:
        first, second: files of the same name.
        keys: see `json_differences`.
        replaced: see `masked`.
    """
    if first.suffix in (".npy", ".npz"):
        return list(array_differences(first, second, keys))
    if first.suffix in (".json", ".html", ".txt"):
        one, other = (text_of(each) for each in (first, second))
        if first.suffix == ".html":
            one, other = (masked(text, replaced) for text in (one, other))
        return list(text_differences(one, other, keys))
    digests = [hashlib.sha256(each.read_bytes()).hexdigest()[:16] for each in (first, second)]
    return [] if digests[0] == digests[1] else [Difference("contents", *digests)]


def folder_differences(
    first: Path, second: Path, keys: Sequence[str], replaced: Mapping[str, str], names: Sequence[str] = ()
) -> Iterator[Difference]:
    """Yield the differences between two folders: names and contents of files.

    Args:
        first, second: the folders.
        keys: see `json_differences`.
        replaced: see `masked`.
        names: further patterns to mask in file names. Such files are counted but not read.
    """
    listed = [_listed(folder, names) for folder in (first, second)]
    if sorted(listed[0]) != sorted(listed[1]):
        yield Difference("files", *_apart(sorted(listed[0]), sorted(listed[1])))
    for name in sorted(name for name in listed[0].keys() & listed[1].keys() if ANY not in name):
        for each in file_differences(listed[0][name], listed[1][name], keys, replaced):
            yield Difference(f"file {name}: {each.what}", each.first, each.second)


def _masked_name(name: str, more: Iterable[str] = ()) -> str:
    for pattern, new in (*NAMES, *((re.compile(each), ANY) for each in more)):
        name = pattern.sub(new, name)
    return name


def _listed(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the files in a folder by masked name. Files with the same masked name are numbered."""
    found: dict[str, Path] = {}
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = str(file.relative_to(folder))
        name = _masked_name(name, names)
        number = 1
        while (unique := name if number == 1 else f"{name} ({number})") in found:
            number += 1
        found[unique] = file
    return found
