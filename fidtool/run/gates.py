"""The gates of a run: limits of its values, and an earlier result that they must not be worse
than.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import abspath, exists, getsize

from fidtool.errors import InputError, ResultWarning, option
from fidtool.features.protocol import Definition
from fidtool.names import shortened
from fidtool.result.changes import (
    CANNOT_TELL,
    NOT_COMPARABLE,
    WORSE,
    change_of,
    per_fake,
    read_history,
)
from fidtool.result.evaluation import Evaluation, path_of, read_evaluation
from fidtool.settings.settings import Settings
from fidtool.validation import text_of

_MISSED = {
    WORSE: "is worse than in",
    NOT_COMPARABLE: "is not comparable with",
    CANNOT_TELL: "cannot be compared with",
}
"""Verdicts that miss the gate: it is only passed if it can be decided."""


def missed_gates(
    evaluation: Evaluation, settings: Settings, baseline: Evaluation | None
) -> Iterator[str]:
    """Yield a sentence per limit that the only FAKE exceeds, and one if it may be worse than the
    baseline.
    """
    (each,), highest = evaluation.results, settings.fail_above
    limited = each.valued(settings.gated)
    if (
        highest is not None
        and limited is not None
        and (value := each.metrics[limited.key]) > highest
    ):
        yield f"{each.fake.name} has {limited.title} {value:.6g}, above {highest:g}"
    most, copies = settings.max_duplicates, each.duplicates
    if most is not None and copies is not None and copies.share > most:
        yield f"{copies.share:.2%} of {each.fake.name} are duplicates, above {most:.2%}"
    if baseline is not None and (change := change_of(baseline, evaluation)).verdict in _MISSED:
        yield (
            f"{each.fake.name} {_MISSED[change.verdict]} {settings.fail_worse_than}: "
            f"{change.reason}"
        )


def baselines_of(
    settings: Settings, paths: Sequence[str], definition: Definition | None
) -> tuple[tuple[Evaluation | None, ...], list[ResultWarning]]:
    """Return the baseline of each FAKE, and warnings; None without this gate, and on the first day
    of a history.

    It is the latest result of the same REAL, FAKE and features with error bars that missed no gate:
    what is worse does not become the baseline of the next run. Of a saved result it may be the only
    FAKE.

    Args:
        paths: REAL and the FAKEs.

    Raises:
        InputError: if the file cannot be read, or does not have one.
    """
    (real, *fakes), file, history = (
        map(path_of, paths),
        text_of(settings.fail_worse_than),
        settings.history,
    )
    if file is None:
        return (None,) * len(fakes), []
    if (
        history is not None
        and abspath(history) == abspath(file)
        and not (exists(file) and getsize(file))
    ):
        text = f"{file} has no baseline yet: this result becomes the first"
        return (None,) * len(fakes), [ResultWarning("", text)]
    if file.endswith(".jsonl"):
        results, unread = read_history(file)
        results = [each for each in results if not each.missed]
        alone, passed, kept = False, " that missed no gate", option("history", file)
    else:
        results, unread = per_fake(read_evaluation(file)), []
        alone, passed, kept = len(results) == 1, "", "save its JSON there"
    results = [
        each for each in results if each.results[0].corrected and each.results[0].real.path == real
    ]
    found = list[Evaluation]()
    for fake in fakes:
        named = [each for each in results if alone or each.results[0].fake.path == fake]
        own = [each for each in named if each.definition == definition]
        if not own:
            features = (
                f" and features of {definition.network}, {definition.protocol_name}"
                if definition
                else ""
            )
            if definition and named and (latest := named[-1].definition):
                features += (
                    f" (the latest has {shortened(', '.join(latest.differences(definition)))})"
                )
            raise InputError(
                f"{file} has no result of {fake} against {real} with error bars{features}{passed}:",
                f"compute one with {option('uncertainty', True)} and {kept}, without "
                f"{option('fail_worse_than')}",
                setting="fail_worse_than",
            )
        found.append(own[-1])
    return tuple(found), unread
