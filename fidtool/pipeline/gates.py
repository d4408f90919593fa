"""The gates of a run: limits of its values, and an earlier result that they must not be worse than."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from os.path import normpath

from fidtool.errors import InputError, option, redacted
from fidtool.features.protocol import Definition
from fidtool.history import CANNOT_TELL, NOT_COMPARABLE, WORSE, change_of, path_of, per_fake, read_history
from fidtool.results import Evaluation, read_evaluation
from fidtool.saved import is_history
from fidtool.settings import Settings

_MISSED = {WORSE: "is worse than in", NOT_COMPARABLE: "is not comparable with", CANNOT_TELL: "cannot be compared with"}
"""Verdicts that miss the gate: it is only passed if it can be decided."""


def missed_gates(evaluation: Evaluation, settings: Settings, baselines: Sequence[Evaluation]) -> Iterator[str]:
    """Yield one sentence per FAKE and limit that it exceeds, and per FAKE that may be worse than its baseline."""
    gated = settings.gated.numbers[0].name if settings.gated else ""
    for place, each in enumerate(evaluation.results):
        highest, value = settings.fail_above, each.value(gated)
        if highest is not None and value is not None and value > highest:
            yield f"{each.fake.name} has {each.labels.title(gated)} {value:.6g}, above {highest:g}"
        most, copies = settings.max_duplicates, each.duplicates
        if most is not None and copies is not None and copies.share > most:
            yield f"{copies.share:.2%} of {each.fake.name} are duplicates, above {most:.2%}"
        for before in baselines[place : place + 1]:
            change = change_of(before, per_fake(evaluation)[place])
            if change.verdict in _MISSED:
                yield f"{each.fake.name} {_MISSED[change.verdict]} {settings.fail_worse_than}: {change.reason}"


def read_baselines(settings: Settings, paths: Sequence[str], warn: Callable[[str], None]) -> tuple[Evaluation, ...]:
    """Return the results, one per FAKE, among which are the baselines of this run: the oldest first.

    A run of a history that missed a gate is left out: what is worse does not become the baseline of the next run.

    Args:
        paths: REAL and the FAKEs.

    Raises:
        InputError: if the file cannot be read, or has no baseline of a FAKE.
    """
    if (file := settings.fail_worse_than) is None:
        return ()
    if is_history(file):
        results, problems = read_history(file)
        for problem in problems:
            warn(problem)
        results = [each for each in results if not each.missed]
    else:
        results = per_fake(read_evaluation(file))
    baselines_of(results, settings, paths)
    return tuple(results)


def baselines_of(
    results: Sequence[Evaluation], settings: Settings, paths: Sequence[str], definition: Definition | None = None
) -> tuple[Evaluation, ...]:
    """Return the baseline of each FAKE: the latest result with error bars of the same REAL and FAKE.

    If the file has the result of only one FAKE, this is the baseline of all.

    Args:
        definition: that of the features, which must be the same; None if it is not known yet.

    Raises:
        InputError: if there is none.
    """
    if (file := settings.fail_worse_than) is None:
        return ()
    (real, *fakes), found = (normpath(redacted(path)) for path in paths), []
    for fake in fakes:
        own = [
            each
            for each in results
            if each.results[0].corrected is not None
            and path_of(each.results[0].real) == real
            and (path_of(each.results[0].fake) == fake or (len(results) == 1 and not is_history(file)))
            and definition in (None, each.definition)
        ]
        if not own:
            problem = f"{file} has no result of {fake} against {real} with error bars"
            problem += f" and the features of this run ({definition.protocol_name})" if definition else ""
            how = f"and {option('history', str(file))}" if is_history(file) else "and save its JSON there"
            remedy = f"compute one with {option('uncertainty', True)} {how}, without {option('fail_worse_than')}"
            raise InputError(f"{problem}:", remedy, setting="fail_worse_than")
        found.append(own[-1])
    return tuple(found)
