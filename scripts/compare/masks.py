"""What two runs left behind, compared: exactly, but for what differs between any two runs. Imports no torch."""

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
"""Stands in the names of files that a case masks; of these the contents are not compared, either."""
MOST_LINES = 3
"""So many lines of a text that differ are shown."""

KEYS = (
    "run.host",
    "run.date",
    "run.seconds.*",
    "run.extraction.*",
    "run.images_per_second",
    "run.versions.fidtool",
    "entries.*.used",
)
"""Values in JSON that are not compared; that they are there, and of which kind, is."""

MASKED_TEXTS = ("exit.reason",)
"""Texts in JSON that are masked as stderr is."""

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
"""What is masked in stderr and in pages."""

TIMINGS = re.compile(r"^.*(\d images through the network| It took ).*$", re.MULTILINE)
"""Lines that tell how long something took. Seconds in other lines are settings, such as deadlines, and are compared."""
SECONDS = (re.compile(r"\d+(\.\d+)? s\b"), "<seconds>")
"""What is masked in those lines beside."""

OF_TORCHRUN = (
    re.compile(r"^[EIW]\d{4} \d\d:\d\d:.*\n", re.MULTILINE),
    re.compile(r"^\*{20,}\nSetting OMP_NUM_THREADS.*\n\*{20,}\n", re.MULTILINE),
    re.compile(
        r"^Traceback \(most recent call last\):\n((?!Traceback ).*\n)*?torch\.distributed\.elastic\..*\n", re.MULTILINE
    ),
    re.compile(r"^={20,}\n.* FAILED\n(.*\n)*?={20,}\n", re.MULTILINE),
)
"""What torchrun says by itself: its log, its advice, the traceback and the report of ranks that failed."""

NAMES = (
    (re.compile(r"(?<=-[0-9a-f]{12}-)[0-9a-f]{12}(?=-\d{5}\.)"), "<attempt>"),
    (re.compile(r"\.tmp\w+|\btmp\w{6,}"), "<temporary>"),
)
"""What is masked in the names of files."""


@dataclass(frozen=True)
class Difference:
    """Something in which the two versions differ: where, and both values in short."""

    what: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.what}: {self.first} | {self.second}"


class Number(str):
    """A number of a JSON text, as it is written there: equal ones have the same bits."""


def text_of(file: Path) -> str:
    """A file's text as it is, line ends and bytes that are no text included."""
    return file.read_bytes().decode("utf-8", "surrogateescape")


def parsed(text: str) -> Any:
    """The JSON document in a text, with numbers as they are written; None where it is none."""
    try:
        found = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=Number)
    except ValueError:
        return None
    return found if isinstance(found, (dict, list)) else None


def shown(value: object) -> str:
    """A value in short."""
    text = value if isinstance(value, Number) else repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}… ({len(text)} characters)"


def masked(text: str, replaced: Mapping[str, str]) -> str:
    """A text without what differs between any two runs.

    Args:
        text: lines of stderr or of a page.
        replaced: texts that stand for others first, such as the place of the version.
    """
    for old, new in replaced.items():
        text = text.replace(old, new)
    text = TIMINGS.sub(lambda line: SECONDS[0].sub(SECONDS[1], line[0]), text)
    for pattern, new in TEXT:
        text = pattern.sub(new, text)
    return text


def own_lines(text: str) -> str:
    """All lines on stderr but torchrun's and empty ones, sorted: several ranks' come in any order."""
    for pattern in OF_TORCHRUN:
        text = pattern.sub("", text)
    return "\n".join(sorted(line for line in text.splitlines() if line.strip()))


def json_differences(first: Any, second: Any, keys: Sequence[str], path: str = "") -> Iterator[Difference]:
    """Where two JSON documents differ: names and their order, kinds, texts, digits of numbers.

    Args:
        first, second: see `parsed`.
        keys: patterns of paths such as ``run.seconds.*`` whose values may differ.
        path: of the two within their documents.
    """
    if type(first) is not type(second):
        yield Difference(path, shown(first), shown(second))
    elif isinstance(first, dict):
        settings = path.endswith("run.config") and set(first) == set(second)  # in the order in which they are declared
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
    """What only one of two lists has; where it is the order alone, both lists."""
    ones, others = ([each for each in one if each not in other] for one, other in ((first, second), (second, first)))
    return (shown(ones), shown(others)) if ones or others else (shown(first), shown(second))


def _skeleton(text: str) -> str:
    """How a JSON text is laid out."""
    return re.sub(r'"(\\.|[^"\\])*"|-?\d[\d.eE+-]*', "0", text)


def text_differences(first: str, second: str, keys: Sequence[str], as_it_is: bool = True) -> Iterator[Difference]:
    """Where two printed texts differ; JSON value by value.

    Args:
        first, second: the texts.
        keys: see `json_differences`.
        as_it_is: JSON must be laid out alike, too.
    """
    one, other = parsed(first), parsed(second)
    if one is not None and other is not None:
        found = list(json_differences(one, other, keys))
        yield from found
        if not found and as_it_is and _skeleton(first) != _skeleton(second):
            yield from line_differences(_skeleton(first), _skeleton(second))
    else:
        yield from line_differences(first, second)


def line_differences(first: str, second: str) -> Iterator[Difference]:
    """The first lines in which two texts differ."""
    if first == second:
        return
    lines = itertools.zip_longest(first.split("\n"), second.split("\n"))
    differing = ((number, *both) for number, both in enumerate(lines, 1) if both[0] != both[1])
    for number, one, other in itertools.islice(differing, MOST_LINES):
        yield Difference(f"line {number}", shown(one), shown(other))


def array_differences(first: Path, second: Path, keys: Sequence[str]) -> Iterator[Difference]:
    """Where two .npy or .npz files differ: names and their order, dtypes, shapes, layout, bits."""
    with _loaded(first) as one, _loaded(second) as other:
        if list(one) != list(other):
            yield Difference("arrays", *_apart(list(one), list(other)))
        for name in [name for name in one if name in other]:
            for each in _between(one[name], other[name], keys):
                yield Difference(f"{name} {each.what}".strip(), each.first, each.second)


class _loaded(dict[str, Any]):  # noqa: N801
    """The arrays of a file by name; a single one has none."""

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
    if texts:  # its length is in its dtype
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
    """Where two files differ.

    Args:
        first, second: of the same name.
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
    """Where two folders differ: names of files, and what is in them.

    Args:
        first, second: the folders.
        keys: see `json_differences`.
        replaced: see `masked`.
        names: patterns of what else is masked in names: such files are counted, and not read.
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
    """The files in a folder by their masked names; of several of one masked name each has a number."""
    found: dict[str, Path] = {}
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = str(file.relative_to(folder))
        name = _masked_name(name, names)
        number = 1
        while (unique := name if number == 1 else f"{name} ({number})") in found:
            number += 1
        found[unique] = file
    return found
