"""Classes and folders by the names of images."""

from __future__ import annotations

import pytest

from fidtool.run.groups import list_folders


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["cat/1.png", "dog/1.png", "dog/2.png"], ["cat", "dog", "dog"]),
        (["train/cat/1.png", "train/dog/1.png"], ["cat", "dog"]),
        (["n01/images/1.png", "n02/images/1.png"], ["n01", "n02"]),
        (["train/cat/1.png", "train/cat/2.png"], ["cat", "cat"]),
        (["cat/a/1.png", "cat/b/1.png"], ["a", "b"]),
        (["cat/1.png", "cat/old/1.png", "dog/1.png"], ["cat", "cat", "dog"]),
        (["cat/1.png", "cat!/1.png", "cat/x/1.png"], ["cat", "cat!", "cat"]),
        (["0/1.png", "1/1.png"], ["0", "1"]),
        (["1.png", "2.png"], []),
        (["1.png", "cat/1.png"], []),
        (["cat/1.png", "x.png"], []),
        (["a/b/1.png", "a/c.png", "a/d/1.png"], ["a", "a", "a"]),
        (["00000/00000.png", "01000/01000.png"], []),  # as FFHQ is stored
        (["00000.tar/1.png", "00001.tar/1.png"], []),
        (["a.tar/1.png", "b.tar.gz/1.png"], []),
        ([], []),
    ],
)
def test_classes_are_the_first_folders_below_the_shared_one(
    names: list[str], classes: list[str]
) -> None:
    assert list_folders(names, whole=False) == classes


def test_folders_are_whole() -> None:
    names = ["day/front/1.png", "day/rear/1.png", "x.png", "day/front/2.png"]
    assert list_folders(names, whole=True) == ["day/front", "day/rear", ".", "day/front"]
    assert list_folders(["1.png", "2.png"], whole=True) == []
