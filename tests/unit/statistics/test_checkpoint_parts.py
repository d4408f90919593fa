"""Parts of a checkpoint: they add up to the whole set, each is used completely or not at all, by
anyone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fidtool.features.protocol import EMBEDDING, FEATURES, Definition
from fidtool.reading.batches import Batch
from fidtool.reading.decode import ImageProperties
from fidtool.reading.loader import Piece
from fidtool.reading.records import RECORD
from fidtool.sources.contents import BadFile, Files
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.accumulator import PAIRS, RECORDS, Accumulator, LayerSpec
from fidtool.statistics.checkpoint import Checkpoint, CheckpointPart, plan_parts

DEFINITION = Definition("made up", "", 2, 18, 8, "", "bilinear", "pillow", 1)
LAYERS = {FEATURES: LayerSpec(DEFINITION, with_features=True), EMBEDDING: LayerSpec(DEFINITION)}
BATCHES = np.split(np.random.RandomState(0).permutation(44), np.cumsum(range(2, 9)))
"""Places of the images of each batch, as of an archive; batch b has b + 2 images, of which the last
is damaged.
"""
NAMES = [f"{number:02}.png" for number in range(44)]


def images(touched: str = "") -> ImageSet:
    """Returns the set, of which one file may have another mtime."""
    files = Files(NAMES)
    files.stamps[:] = np.arange(5 * 44).reshape(44, 5)
    files.stamps[[name == touched for name in NAMES], 1] = -1
    partner = ImageSet("real", "folder", NAMES, "real/", files, np.arange(44))
    return ImageSet("set", "folder", NAMES, "set/", files, np.arange(44), partner=partner)


def parts_in(found: ImageSet) -> list[CheckpointPart]:
    """Returns parts of three, one and four batches."""
    batches = [Batch(number, places) for number, places in enumerate(BATCHES)]
    parts = []
    for number, edges in enumerate((range(3), range(3, 4), range(4, 8))):
        (whole,) = plan_parts(
            0, found, [Batch(0, np.concatenate([batches[each].images for each in edges]))]
        )
        parts.append(CheckpointPart(f"000-0{number}", edges, whole.images))
    return parts


PARTS = parts_in(images())


def empty() -> Accumulator:
    return Accumulator(LAYERS, 44, inspected=True)


def add(batches: list[int], into: Callable[..., None]) -> None:
    """Add batches, whose images each have different features. The last one of each was skipped."""
    for batch in batches:
        features = torch.arange(2.0 * (batch + 1)).view(-1, 2) / 4.0 + batch
        records = np.zeros(batch + 1, dtype=RECORD)
        records["digest"] = 10 * batch + np.arange(batch + 1)
        for side in ("height", "width", "values", "highest"):
            records[side] = 1
        bad = [BadFile(f"set/{NAMES[BATCHES[batch][-1]]}", "broken")]
        used = [True] * (batch + 1) + [False]
        traits = ImageProperties(lossy=batch)
        decoded = Piece(
            batch, BATCHES[batch], properties=traits, records=records, skipped=bad, used=used
        )
        into(decoded, [{FEATURES: features, EMBEDDING: -features}], BATCHES[batch])


def whole(batches: list[int]) -> Accumulator:
    found = empty()
    add(batches, found.add)
    found.finish()
    return found


def shown(found: Accumulator) -> tuple[Any, ...]:
    sums = [
        {name: each.tolist() for name, each in moments.totals().items()}
        for moments in found.moments.values()
    ]
    rows = {name: each.tolist() for name, each in found.rows().items()}
    places = found.used.tolist(), found.unusable.tolist()
    return sums, rows, found.traits, sorted(bad.file for bad in found.skipped), places


def checkpoint(folder: Path, said: list[str]) -> Checkpoint:
    return Checkpoint(folder, "run", {"torch": "2.4"}, {"max_pixels": 100}, said.append)


def saving(folder: Path, parts: list[CheckpointPart], total: Accumulator) -> Callable[..., None]:
    return checkpoint(folder, []).make_adder(parts, images(), total)


def loaded(
    folder: Path, parts: list[CheckpointPart] = PARTS
) -> tuple[Accumulator, list[CheckpointPart], list[str]]:
    found, said = empty(), list[str]()
    left = checkpoint(folder, said).load(parts, found)
    return found, left, said


def test_parts_add_up_whoever_wrote_them(tmp_path: Path) -> None:
    """Also if two runs write the same part."""
    for mine in (PARTS[1:], PARTS[:2]):
        total = empty()
        add([batch for part in mine for batch in part.batches], saving(tmp_path, mine, total))
        assert shown(total) == shown(whole([batch for part in mine for batch in part.batches]))
    found, left, said = loaded(tmp_path)
    assert (shown(found), left, said) == (shown(whole([*range(8)])), [], [])
    assert RECORDS in found.rows()
    assert len(list(tmp_path.iterdir())) == 3


def test_an_unfinished_part_is_not_saved(tmp_path: Path) -> None:
    add([0, 1, 2, 3, 4, 5], saving(tmp_path, PARTS, empty()))
    found, left, _ = loaded(tmp_path)
    assert (shown(found), left) == (shown(whole([0, 1, 2, 3])), PARTS[2:])


DAMAGED = ["sums_low", "sums_sum_embedding", "count", "sums_largest", "places"]


@pytest.mark.parametrize("damaged", DAMAGED)
@pytest.mark.parametrize("how", ["missing", "text", "short"])
def test_a_part_is_used_whole_or_not_at_all(tmp_path: Path, damaged: str, how: str) -> None:
    add([0, 1, 2, 3], saving(tmp_path, PARTS, empty()))
    file = tmp_path / "run-000-00.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    if how == "missing":
        del arrays[damaged]
    elif how == "text" or not arrays[damaged].ndim:
        arrays[damaged] = np.array("no number")
    else:
        arrays[damaged] = arrays[damaged][:-1]
    np.savez(file, **arrays)
    found, left, (line,) = loaded(tmp_path)
    assert (shown(found), left) == (shown(whole([3])), [PARTS[0], PARTS[2]])
    assert line.startswith(f"{file} is damaged (")


def test_a_stale_part_is_not_used(tmp_path: Path) -> None:
    add([*range(8)], saving(tmp_path, PARTS, empty()))
    changed = parts_in(images(touched=NAMES[BATCHES[3][0]]))
    assert [part.file for part in loaded(tmp_path, changed)[1]] == ["000-01"]


def test_parts_of_pairs_have_the_values_and_the_partners(tmp_path: Path) -> None:
    """Also without features of the first set."""
    partner_layers = {FEATURES: LAYERS[FEATURES]}

    def both() -> Accumulator:
        return Accumulator({}, 44, inspected=True, pairs=2, partner_layers=partner_layers)

    total, resumed = both(), both()
    part = PARTS[0]
    into = saving(tmp_path, [part], total)
    for batch in part.batches:
        places = BATCHES[batch]
        records = np.ones(len(places), dtype=RECORD)
        facts: Any = {"records": records, "used": [True] * len(places)}
        pairs = np.arange(2.0 * len(places)).reshape(-1, 2) + batch
        partner = Piece(batch, places, **facts)
        features = torch.arange(2.0 * len(places)).view(-1, 2) / 4.0
        into(
            Piece(batch, places, partner=partner, pairs=pairs, **facts),
            [{FEATURES: features}],
            places,
        )
    assert checkpoint(tmp_path, []).load([part], resumed) == []
    assert shown(resumed) == shown(total)
    assert total.partner is not None
    assert resumed.partner is not None
    assert shown(resumed.partner) == shown(total.partner)
    assert resumed.rows()[PAIRS].shape == (9, 2)
    assert resumed.partner.rows()[FEATURES].shape == (9, 2)
    (of_partner,) = tmp_path.glob("*-real.npz")
    with np.load(of_partner) as archive:
        arrays = dict(archive)
    arrays["part"] = np.array('["1/1", "before the files changed", 44]')
    np.savez(of_partner, **arrays)
    unused = both()
    assert checkpoint(tmp_path, []).load([part], unused) == [part]
    assert not unused.used.any(), "without the partners, the images are not used"
    of_partner.unlink()
    assert checkpoint(tmp_path, []).load([part], unused) == [part]
    assert not unused.used.any()


def whole_set(count: int) -> ImageSet:
    files = Files([""] * count)
    files.stamps[:] = np.arange(count)[:, None]
    return ImageSet("set", "folder", [""] * count, "", files, np.arange(count))


@pytest.mark.parametrize(("batches", "parts"), [(1, 1), (64, 64), (65, 64), (1000, 64)])
def test_a_set_has_at_most_64_parts(batches: int, parts: int) -> None:
    found = plan_parts(
        3,
        whole_set(2 * batches),
        [Batch(batch, range(2 * batch, 2 * batch + 2)) for batch in range(batches)],
    )
    assert len(found) == parts
    assert [batch for part in found for batch in part.batches] == [*range(batches)]
    assert np.concatenate([part.images.places for part in found]).tolist() == [*range(2 * batches)]
    assert len({part.images.whole for part in found}) == parts, "marks are of the part's images"
    assert (found[0].file, found[0].images.name) == ("003-00", f"1/{parts}")
