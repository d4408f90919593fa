"""Names and counts in messages. In names as users type them, case, hyphens and underscores do not matter."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from os.path import splitext


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 image``, ``2 images``. ``plural`` replaces the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def folded(name: str) -> str:
    """Return a name without case, hyphens, underscores and spaces, for lookups."""
    return re.sub(r"[-_\s]", "", name).lower()


def closest(name: str, known: Iterable[str], likeness: float = 0.6) -> list[str]:
    """Return up to four known names that begin with ``name``, or else resemble it; the best match first."""
    import difflib  # only error messages need it

    by_fold: dict[str, str] = {}
    for each in known:
        by_fold.setdefault(folded(each), each)
    typed = folded(name)
    begun = sorted((each for each in by_fold if typed and each.startswith(typed)), key=len)
    return [by_fold[each] for each in begun[:4] or difflib.get_close_matches(typed, by_fold, n=4, cutoff=likeness)]


def existing_like(path: str) -> list[str]:
    """Return the path that exists and is most like one that does not, if any is."""
    folder, name = os.path.split(path.rstrip("/"))
    if folder and not os.path.isdir(folder):
        folder = "".join(existing_like(folder)) or folder
    slash = path[len(path.rstrip("/")) :][:1]
    found = itertools.islice(glob.iglob(f"*{slash}", root_dir=folder or None), 10_000)
    close = [each for each in closest(name + slash, found) if closest(splitext(name)[0], [splitext(each)[0]])]
    return [os.path.join(folder, each) for each in close[:1]]


def suggestion(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return ``; did you mean A, B?`` with the closest known names; empty if no name is close."""
    close = closest(name, known, likeness)
    return f"; did you mean {', '.join(close)}?" if close else ""


def unknown(what: str, name: str, close: Sequence[str], listed: str) -> str:
    """Return the message for an unknown name: ``unknown metric 'kidd'; did you mean kid? Choose from fid, kid``."""
    if not close:
        return f"unknown {what} {name!r}; choose from {listed}"
    return f"unknown {what} {name!r}; did you mean {', '.join(close)}? Choose from {listed}"
