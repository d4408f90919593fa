"""Mean, worst and order of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fidtool.result.explanations import Classes, ClassResult
from fidtool.result.values import Value
from fidtool.run.classes import summarize_classes
from fidtool.settings.settings import Settings
from support.report_samples import KNOWN


@dataclass(frozen=True)
class Plan:
    """What `summarize_classes` reads of a plan."""

    settings: Settings
    values: Sequence[Value] = KNOWN


def made(
    numbers: Mapping[str, Sequence[int]],
    values: Mapping[str, Mapping[str, float]],
    settings: Settings,
) -> Classes | None:
    found = [ClassResult(name, *counts, values.get(name, {})) for name, counts in numbers.items()]  # type: ignore[arg-type]
    return summarize_classes(found, Plan(settings))  # type: ignore[arg-type]


def test_the_worst_come_first_and_those_without_the_first_value_last() -> None:
    numbers = {"a": (9, 0), "b": (9, 9), "c": (9, 9), "d": (9, 9), "e": (9, 1)}
    values = {
        "b": {"precision": 0.5},
        "c": {"fid": 3.0, "precision": 0.25},
        "d": {"fid": 5.0, "precision": 0.75},
    }
    classes = made(numbers, values, Settings(per_class=True))
    assert classes is not None
    assert [each.name for each in classes.classes] == ["d", "c", "a", "b", "e"]
    assert classes.mean == {"fid": 4.0, "precision": 0.5}
    assert classes.worst == {"fid": ("d", 5.0), "precision": ("c", 0.25)}


def test_numbers_of_images_are_only_of_common_classes() -> None:
    one, both = {"a": (9, 9), "b": (9, 0)}, {"a": (9, 9), "b": (9, 8)}
    assert made(one, {}, Settings()) is None
    assert made(both, {}, Settings()) == Classes(
        "class", (ClassResult("a", 9, 9), ClassResult("b", 9, 8))
    )
    assert made(one, {}, Settings(per_folder=True)) is not None
    assert made({}, {}, Settings()) is None
