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

from fidtool.errors import InputError, SettingName, redact, render

# Control characters, line separators, changes of the writing direction, lone surrogates (with which
# Python represents bytes that are not UTF-8), and code points that are not characters.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
# A number, and the word before it.
_NUMBER = re.compile(r"(?:([^\W\d_]+)[\W_]*)?(\d{1,15}(?:\.\d{1,15})?)")


# The plurals of nouns that take more than an s.
_PLURALS = {"batch": "batches", "class": "classes", "copy": "copies", "entry": "entries"}


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 image``, ``2 images``."""
    return f"{number} {noun if number == 1 else _PLURALS.get(noun, noun + 's')}"


def format_image_counts(counts: Sequence[int | None]) -> str:
    """Return how many images sets have: ``60 images`` or ``60 to 1,000 images``."""
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return "unknown number of images"
    most = f"{max(known):,} image{'s' if max(known) != 1 else ''}"
    return most if min(known) == max(known) else f"{min(known):,} to {most}"


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return the key by which names are sorted in natural order: 9.png before 10.png."""
    key = []
    for token in re.split(r"(\d+)", name):
        is_number = token.isdecimal() and len(token) < 4000  # Python converts no longer ones
        key.append((0, int(token), token) if is_number else (1, 0, token))
    return key


def format_optional(value: object) -> str:
    """Return a value in a message; ``none`` for None."""
    return "none" if value is None else f"{value}"


def fold(name: str) -> str:
    """Return a name without case, hyphens, underscores and spaces, for lookups."""
    return re.sub(r"[-_\s]", "", name).lower()


def find_similar(name: str, known: Iterable[str], likeness: float = 0.6) -> list[str]:
    """Return up to four known names that begin with ``name``, or else resemble it; the best match
    first.
    """
    import difflib  # only error messages need it

    by_fold: dict[str, str] = {}
    for known_name in known:
        by_fold.setdefault(fold(known_name), known_name)
    typed = fold(name)
    matches = [fold for fold in by_fold if typed and fold.startswith(typed)]
    matches.sort(key=len)
    if not matches:
        matches = difflib.get_close_matches(typed, by_fold, n=4, cutoff=likeness)
    return [by_fold[fold] for fold in matches[:4]]


def find_similar_path(path: str) -> list[str]:
    """Return the path that exists and is most like one that does not, if any is."""
    import difflib  # only error messages need it

    folder, name = os.path.split(path.rstrip("/"))
    if folder and not os.path.isdir(folder):
        folder = "".join(find_similar_path(folder)) or folder
    slash = path[len(path.rstrip("/")) :][:1]
    present = [*itertools.islice(glob.iglob(f"*{slash}", root_dir=folder or None), 10_000)]
    alike = difflib.get_close_matches(name + slash, present, n=4)
    for candidate in alike + find_similar(name + slash, present):
        if find_similar(splitext(name)[0], [splitext(candidate)[0]]):
            return [os.path.join(folder, candidate)]
    return []


def suggest_name(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return ``; did you mean A, B?`` with the closest known names; empty if no name is close."""
    close = find_similar(name, known, likeness)
    return f"; did you mean {', '.join(close)}?" if close else ""


def unknown_name_error(
    what: str,
    name: str,
    known: Iterable[str],
    listed: str | None = None,
    setting: SettingName | None = None,
    close: Sequence[str] | None = None,
) -> InputError:
    """Return the error for an unknown name: ``unknown metric 'kidd'; did you mean kid? Choose from
    fid, kid``.

    Args:
        known: the names that it may resemble.
        listed: the names to choose from; None lists the known ones.
        close: names to suggest; None suggests those of the known ones that ``name`` resembles.
    """
    known = [*known]
    if close is None:
        close = find_similar(name, known)
    if listed is None:
        listed = ", ".join(known)
    hint = f"did you mean {', '.join(close)}? Choose" if close else "choose"
    return InputError(f"unknown {what} {name!r}; {hint} from {listed}", setting=setting)


def escape_text(text: str) -> str:
    """Return ``text`` as one line of valid UTF-8: control characters escaped as ``\\n``, others
    replaced by U+FFFD.

    Secrets in URLs are removed, see `fidtool.errors.redact`.
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return ascii(character)[1:-1] if character < "\x80" else "\ufffd"

    return _UNPRINTABLE.sub(escape, render(text))


def shorten(text: str, longest: int = 160) -> str:
    """Return ``text`` with its middle cut out if it has more than ``longest`` characters."""
    text = redact(text)  # before it is cut: a part of a URL is not recognised as one
    if len(text) <= longest:
        return text
    tail = (longest - 1) * 2 // 3
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}"


def short_names(paths: Sequence[str]) -> list[str]:
    """Return each path without the folders that all share; the whole paths if two would be
    equal.
    """
    paths = [redact(path) for path in paths]
    levels = zip(*(path.rstrip("/").split("/") for path in paths), strict=False)
    common = len([*itertools.takewhile(lambda level: len(set(level)) == 1, levels)])
    names = []
    for path in paths:
        parts = path.rstrip("/").split("/")
        names.append("/".join(parts[min(common, len(parts) - 1) :]) or path)
    return names if len(set(names)) == len(names) else paths


def find_sweep_numbers(paths: Sequence[str]) -> tuple[list[float], str] | None:
    """Return the last number in each path that distinguishes the paths, as in ``step1000``, and the
    word before it.

    Returns:
        The numbers, in the order of the paths, and the word, or ``number in the name`` if there is
        none. None if a path has no number, or if no number after the same word distinguishes all
        paths: ``v2`` and ``model5`` are no sweep.
    """
    matches = [[*_NUMBER.finditer(path.removesuffix(".npz"))] for path in paths]
    if len({len(path_matches) for path_matches in matches}) > 1:
        matches = [path_matches[-1:] for path_matches in matches]
    # From the last: in step100/fid50k and step200/fid50k it is the same. A path without a number
    # leaves no column.
    for column in reversed([*zip(*matches, strict=False)]):
        words = {match[1] for match in column}
        numbers = [float(match[2]) for match in column]
        if len(words) == 1 and len(set(numbers)) == len(paths):
            return numbers, words.pop() or "number in the name"
    return None


def command_line(command: Sequence[str]) -> str:
    """Return the arguments quoted for a shell, as legible text."""
    # Each argument is redacted separately: within the whole line, the end of a URL is ambiguous.
    return " ".join(shlex.quote(escape_text(argument)) for argument in command)
