"""Names, counts, paths and commands in messages.

In names as users type them, case, hyphens and underscores do not matter. File names can contain any
bytes, even invalid UTF-8.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from os.path import splitext

from fidtool.errors import redacted, rendered

_ODD = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
"""Control characters, line separators, changes of the writing direction, lone surrogates (with
which Python represents bytes that are not UTF-8), and code points that are not characters.
"""
_NUMBER = re.compile(r"(?:([^\W\d_]+)[\W_]*)?(\d{1,15}(?:\.\d{1,15})?)")
"""A number, and the word before it."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 image``, ``2 images``. ``plural`` replaces the noun with
    an s.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def images_of(counts: Sequence[int | None]) -> str:
    """Return how many images sets have: ``60 images`` or ``60 to 1,000 images``."""
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return "unknown number of images"
    most = f"{max(known):,} image{'s' if max(known) != 1 else ''}"
    return most if min(known) == max(known) else f"{min(known):,} to {most}"


def in_natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return the key by which names are sorted in natural order: 9.png before 10.png."""
    tokens = re.split(r"(\d+)", name)
    return [
        (0, int(each), each) if each.isdecimal() and len(each) < 4000 else (1, 0, each)
        for each in tokens
    ]


def or_none(value: object) -> str:
    """Return a value in a message; ``none`` for None."""
    return "none" if value is None else f"{value}"


def folded(name: str) -> str:
    """Return a name without case, hyphens, underscores and spaces, for lookups."""
    return re.sub(r"[-_\s]", "", name).lower()


def closest(name: str, known: Iterable[str], likeness: float = 0.6) -> list[str]:
    """Return up to four known names that begin with ``name``, or else resemble it; the best match
    first.
    """
    import difflib  # only error messages need it

    by_fold: dict[str, str] = {}
    for each in known:
        by_fold.setdefault(folded(each), each)
    typed = folded(name)
    begun = sorted((each for each in by_fold if typed and each.startswith(typed)), key=len)
    return [
        by_fold[each]
        for each in begun[:4] or difflib.get_close_matches(typed, by_fold, n=4, cutoff=likeness)
    ]


def existing_like(path: str) -> list[str]:
    """Return the path that exists and is most like one that does not, if any is."""
    import difflib  # only error messages need it

    folder, name = os.path.split(path.rstrip("/"))
    if folder and not os.path.isdir(folder):
        folder = "".join(existing_like(folder)) or folder
    slash = path[len(path.rstrip("/")) :][:1]
    found = [*itertools.islice(glob.iglob(f"*{slash}", root_dir=folder or None), 10_000)]
    alike = difflib.get_close_matches(name + slash, found, n=4)
    alike += closest(name + slash, found)
    close = [each for each in alike if closest(splitext(name)[0], [splitext(each)[0]])]
    return [os.path.join(folder, each) for each in close[:1]]


def suggestion(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return ``; did you mean A, B?`` with the closest known names; empty if no name is close."""
    close = closest(name, known, likeness)
    return f"; did you mean {', '.join(close)}?" if close else ""


def unknown(what: str, name: str, close: Sequence[str], listed: str) -> str:
    """Return the message for an unknown name: ``unknown metric 'kidd'; did you mean kid? Choose
    from fid, kid``.
    """
    if not close:
        return f"unknown {what} {name!r}; choose from {listed}"
    return f"unknown {what} {name!r}; did you mean {', '.join(close)}? Choose from {listed}"


def legible(text: str) -> str:
    """Return ``text`` as one line of valid UTF-8: control characters escaped as ``\\n``, others
    replaced by U+FFFD.

    Secrets in URLs are removed, see `fidtool.errors.redacted`.
    """
    return _ODD.sub(
        lambda found: ascii(found.group())[1:-1] if found.group() < "\x80" else "\ufffd",
        rendered(text),
    )


def shortened(text: str, longest: int = 160) -> str:
    """Return ``text`` with its middle cut out if it has more than ``longest`` characters."""
    text = redacted(text)  # before it is cut: a part of a URL is not recognised as one
    if len(text) <= longest:
        return text
    tail = (longest - 1) * 2 // 3
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}"


def short_names(paths: Sequence[str]) -> list[str]:
    """Return each path without the folders that all share; the whole paths if two would be
    equal.
    """
    paths = [redacted(path) for path in paths]
    levels = zip(*(path.rstrip("/").split("/") for path in paths), strict=False)
    common = len([*itertools.takewhile(lambda level: len(set(level)) == 1, levels)])
    names = []
    for path in paths:
        parts = path.rstrip("/").split("/")
        names.append("/".join(parts[min(common, len(parts) - 1) :]) or path)
    return names if len(set(names)) == len(names) else paths


def numbers_of(paths: Sequence[str]) -> tuple[list[float], str] | None:
    """Return the last number in each path that distinguishes the paths, as in ``step1000``, and the
    word before it.

    Returns:
        The numbers, in the order of the paths, and the word, or ``number in the name`` if there is
        none. None if a path has no number, or if no number after the same word distinguishes all
        paths: ``v2`` and ``model5`` are no sweep.
    """
    found = [list(_NUMBER.finditer(path.removesuffix(".npz"))) for path in paths]
    if len({len(each) for each in found}) > 1:
        found = [each[-1:] for each in found]
    # In step100/fid50k and step200/fid50k the last number is the same. A path without a number
    # leaves no column.
    columns = [
        column for column in zip(*found, strict=False) if len({each[1] for each in column}) == 1
    ]
    distinct = [
        column for column in columns if len({float(each[2]) for each in column}) == len(paths)
    ]
    if not distinct:
        return None
    return [float(each[2]) for each in distinct[-1]], distinct[-1][0][1] or "number in the name"


def command_line(command: Sequence[str]) -> str:
    """Return the arguments quoted for a shell, as legible text."""
    # Each argument is redacted separately: within the whole line, the end of a URL is ambiguous.
    return " ".join(shlex.quote(legible(each)) for each in command)
