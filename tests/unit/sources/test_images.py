"""Listing of folders, the canonical order, and the assignment of batches to ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidtool.errors import InputError
from fidtool.reading.batches import cut_batches, deal
from fidtool.sources.image_set import canonical_order
from fidtool.sources.listing import list_folder

SUFFIXES = ("png", "jpg", "jpeg", "jfif", "bmp", "webp", "tif", "tiff", "ppm", "pgm", "gif")
SUFFIXES += ("avif", "heic", "heif", "jp2", "j2k", "jpx")


def make_files(folder: Path, names: Iterable[str]) -> Path:
    """Creates small files with these names. Their contents do not matter, because listing does not
    read them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    return folder


def names_in(folder: Path, recursive: bool = True) -> list[str]:
    """Returns the relative names in a listing, in order."""
    return list(list_folder(str(folder), recursive).stored)


# --- listing --------------------------------------------------------------------------------------


def test_image_suffixes_count_in_any_case(tmp_path: Path) -> None:
    spelled = (str.lower, str.upper, str.title)
    names = [
        f"{number}.{spell(suffix)}" for number, spell in enumerate(spelled) for suffix in SUFFIXES
    ]
    others = ["notes.txt", *SUFFIXES, *(f"b.{suffix}.part" for suffix in SUFFIXES)]
    assert names_in(make_files(tmp_path / "set", names + others)) == sorted(names)


def test_names_are_sorted_at_any_depth(tmp_path: Path) -> None:
    names = ["b.png", "a/z.png", "a/b/c.png", "a.png", "B.png", "10.png", "9.png", "naïve 猫.png"]
    assert names_in(make_files(tmp_path / "set", names)) == sorted(names)


def test_subfolders_are_only_listed_with_recursive(tmp_path: Path) -> None:
    folder = make_files(tmp_path / "set", ["top.png", "sub/deep.png", "sub/sub/deeper.png"])
    assert names_in(folder) == ["sub/deep.png", "sub/sub/deeper.png", "top.png"]
    assert names_in(folder, recursive=False) == ["top.png"]


def test_hidden_and_macosx_names_are_ignored(tmp_path: Path) -> None:
    names = [
        "a.png",
        ".b.png",
        "._a.png",
        ".cache/c.png",
        "__MACOSX/a.png",
        "sub/__MACOSX/d.png",
        "sub/.e.png",
    ]
    assert names_in(make_files(tmp_path / "set", names)) == ["a.png"]


def test_a_folder_named_like_an_image_is_a_folder(tmp_path: Path) -> None:
    assert names_in(make_files(tmp_path / "set", ["album.png/a.png"])) == ["album.png/a.png"]


def test_a_linked_folder_is_listed_once(tmp_path: Path) -> None:
    outside = make_files(tmp_path / "outside", ["o.png", "deep/p.png"])
    folder = make_files(tmp_path / "set", ["a.png", "sub/s.png"])
    (folder / "link2").symlink_to(outside)
    (folder / "link1").symlink_to(outside)
    (folder / "again").symlink_to(folder / "sub")  # a real folder wins over a link to it
    (folder / "part").symlink_to(outside / "deep")  # reached twice: through link1/deep and directly
    found = names_in(folder)
    assert found == sorted(found)
    assert {"a.png", "sub/s.png", "link1/o.png"} <= set(found)
    assert sorted(Path(name).name for name in found) == ["a.png", "o.png", "p.png", "s.png"]


def test_loops_of_links_end(tmp_path: Path) -> None:
    folder = make_files(tmp_path / "set", ["a.png", "sub/b.png"])
    (folder / "self").symlink_to(folder)
    (folder / "dot").symlink_to(".")
    (folder / "sub" / "up").symlink_to("..")
    other = make_files(tmp_path / "other", ["c.png"])
    (other / "back").symlink_to(folder)
    (folder / "forth").symlink_to(other)
    assert names_in(folder) == ["a.png", "forth/c.png", "sub/b.png"]


def test_links_are_not_followed_without_recursion(tmp_path: Path) -> None:
    outside = make_files(tmp_path / "outside", ["o.png"])
    folder = make_files(tmp_path / "set", ["a.png"])
    (folder / "link").symlink_to(outside)
    (folder / "b.png").symlink_to(outside / "o.png")
    assert names_in(folder, recursive=False) == ["a.png", "b.png"]


def test_broken_links_with_an_images_name_are_listed(tmp_path: Path) -> None:
    folder = make_files(tmp_path / "set", ["a.png"])
    (folder / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (folder / "self.png").symlink_to(folder / "self.png")
    (folder / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    (folder / "loop").symlink_to(folder / "loop")
    listed = list_folder(str(folder))
    assert list(listed.stored) == ["a.png", "gone.jpg", "self.png"]
    assert listed.files.stamps[1:].tolist() == [[-1] * 5] * 2


@pytest.mark.parametrize(
    ("names", "recursive", "expected"),
    [
        ([], True, ["the folder is empty"]),
        (["a.txt", "b.txt", "c.npy"], True, ["2 files (.txt)", "1 file (.npy)", "png"]),
        ([".hidden.png", ".b"], True, ["2 hidden"]),
        (
            ["one/a.png", "two/b.png", "README"],
            False,
            ["2 subfolders", "1 file (no suffix)", "recursive=False"],
        ),
        (["sub/a.txt"], True, ["1 subfolder", "1 file (.txt)"]),
    ],
)
def test_the_error_about_a_folder_without_images_names_its_contents(
    tmp_path: Path, names: list[str], recursive: bool, expected: list[str]
) -> None:
    folder = make_files(tmp_path / "set", names)
    with pytest.raises(InputError) as refused:
        list_folder(str(folder), recursive)
    message = str(refused.value)
    assert message.startswith(f"no images in {folder}: ")
    assert "\n" not in message
    assert [text for text in expected if text not in message] == []
    assert ("recursive=False" in message) == ("recursive=False" in expected)


def test_a_missing_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        list_folder(str(tmp_path / "nowhere"))


# --- order ----------------------------------------------------------------------------------------


@given(count=st.integers(0, 1000), seed=st.integers(-(2**70), 2**70))
@settings(max_examples=30, deadline=None)
def test_the_canonical_order_is_a_permutation(count: int, seed: int) -> None:
    order = canonical_order(count, seed)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == canonical_order(count, seed).tolist()
    for first in (0, 1, count // 2, count, count + 1):
        assert canonical_order(count, seed, first).tolist() == order[:first].tolist()


def test_a_prefix_of_the_order_is_a_fair_sample() -> None:
    """Over many seeds, each of ten images comes first about equally often: 200 times, sd 13."""
    first = np.bincount([canonical_order(10, seed)[0] for seed in range(2000)], minlength=10)
    assert first.min() > 133
    assert first.max() < 267
    # A prefix of one order is not biased towards either end of the names.
    assert abs(np.mean(canonical_order(100_000)[:3333] / 100_000) - 0.5) < 5 * 0.289 / 3333**0.5


# --- plan -----------------------------------------------------------------------------------------


@given(
    count=st.integers(0, 400),
    batch_size=st.integers(1, 70),
    world_size=st.integers(1, 20),
    in_order=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_every_image_is_assigned_exactly_once(
    count: int, batch_size: int, world_size: int, in_order: bool
) -> None:
    batches = cut_batches(count, batch_size)
    hands = [deal(batches, rank, world_size, in_order) for rank in range(world_size)]
    dealt = [index for hand in hands for batch in hand for index in batch]
    assert sorted(dealt) == list(range(count))
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}
    assert all(0 < len(batch) <= batch_size for batch in batches)
    # The batches are those of a single rank, and the numbers of batches per rank differ by at most
    # one.
    assert sorted((b.start, b.stop) for hand in hands for b in hand) == [
        (b.start, b.stop) for b in batches
    ]
    assert max(map(len, hands)) - min(map(len, hands)) <= 1
