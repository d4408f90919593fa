"""The gates of a run: limits of its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fidtool.results import Comparison
from fidtool.settings import Settings


def missed_gates(results: Sequence[Comparison], settings: Settings) -> Iterator[str]:
    """Yield one sentence per FAKE and limit that it exceeds."""
    gated = settings.gated.numbers[0].name if settings.gated else ""
    for each in results:
        highest, value = settings.fail_above, each.value(gated)
        if highest is not None and value is not None and value > highest:
            yield f"{each.fake.name} has {each.labels.title(gated)} {value:.6g}, above {highest:g}"
        most, copies = settings.max_duplicates, each.duplicates
        if most is not None and copies is not None and copies.share > most:
            yield f"{copies.share:.2%} of {each.fake.name} are duplicates, above {most:.2%}"
