"""Sequences of names, and brace expansion."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidtool.errors import InputError
from fidtool.sources.image_set import Names, Numbered
from fidtool.sources.kinds import expand_braces

TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300
)

FILE_NAMES = TEXT | st.binary(min_size=1, max_size=20).filter(lambda data: 0 not in data).map(
    os.fsdecode
)


@settings(max_examples=30, deadline=None)
@given(st.lists(FILE_NAMES, max_size=30))
def test_names_equal_those_they_were_made_from(texts: list[str]) -> None:
    names = Names(texts)
    for each in (names, pickle.loads(pickle.dumps(names))):
        assert list(each) == texts
        assert len(each) == len(texts)
        assert [each[index] for index in range(-len(texts), len(texts))] == texts * 2
        assert each[1:3] == texts[1:3]
    assert list(names.with_prefix("a/")) == [f"a/{text}" for text in texts]
    with pytest.raises(IndexError):
        names[len(texts)]


def test_many_names_take_little_more_memory_than_their_characters() -> None:
    names = Names(f"{number:08}.png" for number in range(200_000))
    assert names[123_456] == "00123456.png"
    assert len(pickle.dumps(names)) < 200_000 * 15
    assert (len(Numbered(5)), Numbered(5)[4], Numbered(5)[1:3]) == (5, "[4]", ["[1]", "[2]"])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a{0..2}.tar", ["a0.tar", "a1.tar", "a2.tar"]),
        ("a{008..011}", ["a008", "a009", "a010", "a011"]),
        ("{x,y}{1..2}", ["x1", "x2", "y1", "y2"]),
        ("a{b}", ["ab"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


def test_braces_with_numbers_beyond_those_of_a_machine() -> None:
    with pytest.raises(InputError, match="is an empty range or has more than"):
        expand_braces(f"a{{0..{10**30}}}.png")
