"""Patterns of duplicates: their positions and names show what wrote them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fidtool.diagnose.duplicates import (
    CopyPattern,
    Duplicates,
    PatternKind,
    duplicates_warning,
    find_pattern,
    multiplicities,
)


def pattern(names: Sequence[str], pictures: Sequence[int]) -> tuple[str, int, int | None, str]:
    shuffled = np.random.default_rng(0).permutation(len(names))
    picture = np.array(pictures)[shuffled]
    firsts = {int(each): int(np.flatnonzero(picture == each)[0]) for each in picture}
    found = find_pattern([names[place] for place in shuffled], np.array([firsts[int(each)] for each in picture]))
    return found.kind, found.multiplicity, found.stride, found.field


def test_ranks_that_wrote_blocks() -> None:
    names, pictures = [f"{i}.png" for i in range(4000)], [i % 1000 for i in range(4000)]
    assert pattern(names, pictures) == ("ranks", 4, 1000, "")


def test_ranks_that_wrote_in_turn() -> None:
    assert pattern([f"{i:06}.png" for i in range(800)], [i // 8 for i in range(800)]) == (
        "ranks or batches",
        8,
        1,
        "",
    )


@pytest.mark.parametrize(
    ("name", "field", "kind"),
    [
        ("rank{rank}/{i:05}.png", "rank", "ranks"),
        ("samples/gpu-{rank}_{i}.png", "gpu", "ranks"),
        ("{i:05}_rank{rank}.png", "rank", "ranks"),
        ("{rank}/{i}.png", "folder", "ranks or batches"),
        ("{rank}_{i}.png", "name", "ranks or batches"),
        ("batch{rank}_{i}.png", "batch", "batches"),
        ("step_{rank}/{i}.png", "step", "batches"),
        ("class{rank}/{i}.png", "class", "ranks"),
        ("img{i}_copy{rank}.png", "copy", "copies"),
    ],
)
def test_names_show_what_wrote_them(name: str, field: str, kind: str) -> None:
    pairs = [(rank, i) for rank in range(4) for i in range(50)]
    names = [name.format(rank=rank, i=i) for rank, i in pairs]
    found, multiplicity, _, place = pattern(names, [i for _, i in pairs])
    assert (found, multiplicity, place) == (kind, 4, field)


def test_batches_of_the_same_noise_with_their_number_in_the_name() -> None:
    pairs = [(batch, i) for batch in range(30) for i in range(16)]
    for name in ("batch{:02}/{:02}.png", "{}_{}.png"):
        found = pattern([name.format(*pair) for pair in pairs], [batch for batch, _ in pairs])
        assert found == ("ranks or batches", 16, 1, "name")


def test_more_repetitions_than_processes() -> None:
    pairs = [(batch, i) for batch in range(100) for i in range(16)]
    found = pattern([f"{batch}_{i}.png" for batch, i in pairs], [i for _, i in pairs])
    assert found == ("batches", 100, 16, "name")


def test_ranks_whose_outputs_were_gathered_per_batch() -> None:
    """The stride is 4, but a seed that is reset for each batch of four would give only four different images."""
    order = [(step * 4 + i) for step in range(10) for _ in range(8) for i in range(4)]
    assert pattern([f"{i}.png" for i in range(320)], order) == ("ranks", 8, 4, "")


def test_images_in_two_formats() -> None:
    names = [f"{i:04}.{suffix}" for i in range(60) for suffix in ("png", "bmp")]
    assert pattern(names, [i // 2 for i in range(120)]) == ("formats", 2, 1, "suffix")


def test_messages() -> None:
    def message(kind: PatternKind, field: str, stride: int | None = 1, multiplicity: int = 2) -> str:
        found = Duplicates(100, 50, 50, 0, {2: 50}, CopyPattern(kind, multiplicity, stride, field), ())
        return duplicates_warning("set", found, True, None)

    assert "the random seed had been reset for each step" in message("batches", "step")
    assert "each batch of 2 had been generated from the same noise" in message("batches", "")
    assert "the random seed had been reset for each batch of 16" in message("batches", "", 16)
    assert "2 processes had used the same random seed, or each batch" in message("ranks or batches", "")
    assert "keep one file of each" in message("formats", "suffix")
    assert "the file names call them copies" in message("copies", "copy")
    assert "one of which occurs 40 times" in message("one picture", "", None, 40)


def test_a_few_duplicates_of_one_image_are_not_failed_samples() -> None:
    kind, multiplicity, *_ = pattern([f"{i}.png" for i in range(103)], [*range(100), 7, 7, 7])
    assert (kind, multiplicity) == ("none", 4)


def test_one_repeated_image_among_others() -> None:
    pictures = [*range(40), *[40] * 60, 3]
    assert pattern([f"{i}.png" for i in range(101)], pictures) == ("one picture", 60, None, "")


def test_a_seed_that_is_reset_for_each_batch() -> None:
    names = [f"{i}.png" for i in range(1600)]
    assert pattern(names, [i % 16 for i in range(1600)]) == ("batches", 100, 16, "")
    kind, *_ = pattern(names[:400], [i % 40 for i in range(400)])
    assert kind == "ranks or batches"


@pytest.mark.parametrize(("count", "batch"), [(50_000, 64), (50_000, 256), (10_000, 64), (1000, 64)])
def test_a_last_batch_that_is_not_full(count: int, batch: int) -> None:
    kind, multiplicity, stride, _ = pattern([f"{i}.png" for i in range(count)], [i % batch for i in range(count)])
    assert (multiplicity, stride) == (-(-count // batch), batch)
    assert kind in ("batches", "ranks or batches")


def test_a_few_images_in_no_particular_order() -> None:
    pictures = np.random.default_rng(1).integers(0, 64, 1600)
    kind, _, stride, field = pattern([f"{i}.png" for i in range(1600)], pictures.tolist())
    assert (kind, stride, field) == ("repeated", None, "")


def test_some_duplicates_without_a_pattern() -> None:
    pictures = [*range(900), *np.random.default_rng(2).choice(900, 100, replace=False).tolist()]
    order = np.random.default_rng(3).permutation(1000)
    kind, multiplicity, stride, _ = pattern([f"{i}.png" for i in range(1000)], np.array(pictures)[order].tolist())
    assert (kind, multiplicity, stride) == ("none", 2, None)


def test_multiplicities() -> None:
    assert multiplicities(np.array([0, 0, 2, 3, 3, 3])) == {1: 1, 2: 1, 3: 1}
