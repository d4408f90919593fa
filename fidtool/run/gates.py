"""The gates of a run: limits of its values, and an earlier result that they must not be worse
than.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import abspath, exists, getsize

from fidtool.errors import InputError, ResultWarning, option
from fidtool.features.protocol import Definition
from fidtool.names import shorten
from fidtool.result.changes import (
    CANNOT_TELL,
    NOT_COMPARABLE,
    WORSE,
    compare_result,
    read_history,
    split_by_fake,
)
from fidtool.result.evaluation import Evaluation, normalize_path, read_evaluation
from fidtool.settings.settings import Settings
from fidtool.validation import path_text

# Verdicts that miss the gate: it is only passed if it can be decided.
_FAILING_VERDICTS = {
    WORSE: "is worse than in",
    NOT_COMPARABLE: "is not comparable with",
    CANNOT_TELL: "cannot be compared with",
}


def check_gates(
    evaluation: Evaluation, settings: Settings, baseline: Evaluation | None
) -> Iterator[str]:
    """Yield a sentence per limit that the only FAKE exceeds, and one if it may be worse than the
    baseline.
    """
    (result,) = evaluation.results
    fake = result.fake.name
    limit = settings.fail_above
    limited = result.valued(settings.gated_value)
    if limit is not None and limited is not None and result.metrics[limited.key] > limit:
        yield f"{fake} has {limited.title} {result.metrics[limited.key]:.6g}, above {limit:g}"
    most = settings.max_duplicates
    copies = result.duplicates
    if most is not None and copies is not None and copies.share > most:
        yield f"{copies.share:.2%} of the images in {fake} are duplicates, above {most:.2%}"
    if baseline is not None:
        change = compare_result(baseline, evaluation)
        if change.verdict in _FAILING_VERDICTS:
            compared = f"{_FAILING_VERDICTS[change.verdict]} {settings.fail_worse_than}"
            yield f"{fake} {compared}: {change.reason}"


def find_baselines(
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
    real, *fakes = map(normalize_path, paths)
    file = path_text(settings.fail_worse_than)
    nothing = (None,) * len(fakes)
    if file is None:
        return nothing, []
    history = settings.history
    is_own = history is not None and abspath(history) == abspath(file)
    if is_own and not (exists(file) and getsize(file)):
        text = f"{file} has no baseline yet: this result becomes the first"
        return nothing, [ResultWarning("", text)]
    passed = ""
    kept = "save its JSON there"
    unread: list[ResultWarning] = []
    if file.endswith(".jsonl"):
        saved, unread = read_history(file)
        results = [evaluation for evaluation in saved if not evaluation.missed]
        alone = False
        passed = " that missed no gate"
        kept = option("history", file)
    else:
        results = split_by_fake(read_evaluation(file))
        alone = len(results) == 1
    baselines = []
    for fake in fakes:
        named = []
        for evaluation in results:
            (result,) = evaluation.results
            is_named = alone or result.fake.path == fake
            if result.corrected and result.real.path == real and is_named:
                named.append(evaluation)
        own = [
            evaluation for evaluation in named if _is_comparable(evaluation.definition, definition)
        ]
        if not own:
            features = ""
            if definition is not None:
                features = f" and features of {definition.network}, {definition.protocol_name}"
                latest = named[-1].definition if named else None
                if latest is not None:
                    differences = shorten(", ".join(latest.differences(definition)))
                    features += f" (the latest has {differences})"
            raise InputError(
                f"{file} has no result of {fake} against {real} with error bars{features}{passed}:",
                f"compute one with {option('uncertainty', True)} and {kept}, without "
                f"{option('fail_worse_than')}",
                setting="fail_worse_than",
            )
        baselines.append(own[-1])
    return tuple(baselines), unread


def _is_comparable(earlier: Definition | None, definition: Definition | None) -> bool:
    if earlier is not None and definition is not None:
        earlier = earlier.round_like(definition)
    return earlier == definition
