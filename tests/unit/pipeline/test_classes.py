"""Mean, worst and order of classes."""

from __future__ import annotations

from fidtool.explanations import ClassResult
from fidtool.labels import Labels
from fidtool.pipeline.classes import classes_of
from fidtool.settings import Settings


def test_the_worst_come_first_and_those_without_values_last() -> None:
    found = [
        ClassResult("a", 9, 0),
        ClassResult("b", 9, 9, {"precision": 0.5}),
        ClassResult("c", 9, 9, {"fid": 3.0, "precision": 0.25}),
        ClassResult("d", 9, 9, {"fid": 5.0, "precision": 0.75}),
        ClassResult("e", 9, 1),
    ]
    classes = classes_of(found, Settings(per_class=True), Labels())
    assert classes is not None
    assert [each.name for each in classes.classes] == ["d", "c", "b", "a", "e"]
    assert classes.mean == {"fid": 4.0, "precision": 0.5}
    assert classes.worst == {"fid": ("d", 5.0), "precision": ("c", 0.25)}


def test_numbers_of_images_are_only_of_common_classes() -> None:
    one, both = [ClassResult("a", 9, 9), ClassResult("b", 9, 0)], [ClassResult("a", 9, 9), ClassResult("b", 9, 9)]
    assert classes_of(one, Settings(), Labels()) is None
    classes = classes_of(both, Settings(), Labels())
    assert classes is not None
    assert (classes.classes, classes.mean) == (tuple(both), {})
    assert classes_of(one, Settings(per_folder=True), Labels()) is not None
