"""Classes by the names of images."""

from __future__ import annotations

import pytest

from fidtool.sources.classes import classes_of_folders, folders_of


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["cat/1.png", "dog/1.png", "dog/2.png"], ["cat", "dog", "dog"]),
        (["train/cat/1.png", "train/dog/1.png"], ["cat", "dog"]),
        (["n01/images/1.png", "n02/images/1.png"], ["n01", "n02"]),
        (["train/cat/1.png", "train/cat/2.png"], ["cat", "cat"]),
        (["cat/a/1.png", "cat/b/1.png"], ["a", "b"]),
        (["0/1.png", "1/1.png"], ["0", "1"]),
        (["1.png", "2.png"], None),
        (["1.png", "cat/1.png"], None),
        (["cat/1.png", "x.png"], None),
        (["00000/00000.png", "01000/01000.png"], None),  # as FFHQ is stored
        (["a.tar/1.png", "b.tar.gz/1.png"], None),
    ],
)
def test_classes_are_the_first_folders_below_the_shared_one(names: list[str], classes: list[str] | None) -> None:
    assert classes_of_folders(names) == classes


def test_folders_are_whole() -> None:
    names = ["day/front/1.png", "day/rear/1.png", "x.png", "day/front/2.png"]
    assert folders_of(names) == ["day/front", "day/rear", ".", "day/front"]
    assert folders_of(["1.png", "2.png"]) is None
