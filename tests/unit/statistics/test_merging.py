"""Statistics of parts of a set merge to the bits of the whole, whatever the parts are; other
statistics are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fidtool
from fidtool.errors import InputError
from fidtool.features.protocol import FEATURES, Definition
from fidtool.reading.decode import ImageProperties
from fidtool.reading.loader import Piece
from fidtool.reading.records import RECORD, ImageRecords
from fidtool.sources.contents import BadFile
from fidtool.sources.crops import Crop
from fidtool.sources.image_set import SetPart
from fidtool.statistics.accumulator import Accumulator, LayerSpec
from fidtool.statistics.set_statistics import Statistics
from support.exact_sets import mixed

COUNT, DIMS = 14, 3
ROWS = mixed(COUNT, DIMS, 0)
RECORDS = np.zeros(COUNT, dtype=RECORD)
RECORDS["digest"] = np.arange(100, 100 + COUNT)
STORED = np.random.RandomState(1).permutation(COUNT)
NAMES = [f"{number:02}.png" for number in STORED]
STAMPS = np.stack([STORED, 7 * STORED], axis=1).astype(np.int64)
DEFINITION = Definition("custom.py:network", "0" * 64, DIMS, 18, 32, "x", "bilinear", "pillow", 1)


def of(places: Sequence[int], name: str, skipped: Sequence[int] = ()) -> Statistics:
    """The statistics of images by their places in the set, in which those ``skipped`` cannot be
    read.
    """
    used = np.array([place for place in places if place not in skipped], dtype=np.int64)
    sums = Accumulator({FEATURES: LayerSpec(DEFINITION, with_features=True)}, COUNT)
    sums.add(
        Piece(0, used, used=[True] * len(used)), [{FEATURES: torch.from_numpy(ROWS[used])}], used
    )
    sums.finish()
    return Statistics(
        sums.layer_statistics({FEATURES: ROWS[used]}),
        len(used),
        arithmetic={"torch": "2.4", "device": "cpu"},
        traits=ImageProperties(lossy=len(used), most_bands=int(used.max(initial=0))),
        skipped=tuple(
            sorted(
                (BadFile(NAMES[each], "damaged") for each in {*skipped} & {*places}),
                key=lambda x: x.file,
            )
        ),
        found=COUNT,
        config={"seed": 3, "max_skip": 0.5},
        pictures=ImageRecords(RECORDS[used], [NAMES[each] for each in used], "fake/", STAMPS[used]),
        order=STORED[used],
        part=SetPart(name, "digest", COUNT, used, np.setdiff1d(places, used)),
    )


def everything(statistics: Statistics) -> dict[str, Any]:
    layer, pictures = statistics.layers[FEATURES], statistics.pictures
    assert layer.sums is not None
    assert layer.features is not None
    assert pictures is not None
    assert statistics.order is not None
    arrays = {
        "mu": layer.mu,
        "sigma": layer.sigma,
        "features": layer.features,
        **layer.sums,
        "order": statistics.order,
    }
    arrays |= {"records": pictures.records, "stamps": pictures.stamps}
    others = {
        name: vars(statistics)[name]
        for name in ("count", "arithmetic", "traits", "skipped", "found", "config")
    }
    places = None if statistics.part is None else statistics.part.places.tolist()
    return {
        **{name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()},
        **others,
        "names": [*pictures.names],
        "prefix": pictures.prefix,
        "part": places,
    }


PARTITIONS = st.tuples(
    st.lists(st.integers(0, 6), min_size=COUNT, max_size=COUNT),
    st.randoms(use_true_random=False),
    st.sets(st.integers(0, COUNT - 1), max_size=3),
)


def check_partition(owners: list[int], random: Any, skipped: set[int]) -> None:
    places = [
        [place for place, owner in enumerate(owners) if owner == each] for each in sorted({*owners})
    ]
    parts = [
        of(each, f"{number}/{len(places)}", sorted(skipped))
        for number, each in enumerate(places, 1)
    ]
    random.shuffle(parts)
    whole = replace(of(range(COUNT), "1/1", sorted(skipped)), part=None)
    assert everything(fidtool.merge_statistics(parts)) == everything(whole)
    if len(parts) > 1:
        missing = parts.pop(random.randrange(len(parts)))
        assert missing.part is not None
        number = (missing.count or 0) + len(missing.skipped)
        with pytest.raises(
            InputError,
            match=f"the files lack {number} images? of the set's {COUNT}: "
            f"part {missing.part.name}:",
        ):
            fidtool.merge_statistics(parts)
        again = random.choice(parts)
        twice = (again.count or 0) + len(again.skipped)
        with pytest.raises(
            InputError, match=rf"part {len(parts) + 1} .* {twice} images? in common: pass each part"
        ):
            fidtool.merge_statistics([*parts, again])


@given(PARTITIONS)
@settings(max_examples=200)
def test_random_partitions(partition: tuple[list[int], Any, set[int]]) -> None:
    check_partition(*partition)


@pytest.mark.slow
@given(PARTITIONS)
@settings(max_examples=2_000)
def test_two_thousand_random_partitions(partition: tuple[list[int], Any, set[int]]) -> None:
    """Half a minute."""
    check_partition(*partition)


def test_what_is_no_part_of_the_set_is_refused() -> None:
    first, second = of(range(5), "1/2"), of(range(5, COUNT), "2/2")
    assert second.part is not None
    layer = second.layers[FEATURES]
    wider = replace(DEFINITION, dims=4)
    cases = {
        r"part 2 has statistics of a whole set": replace(second, part=None),
        r"part 2 and part 1 come from different sets": replace(
            second, part=replace(second.part, whole="other")
        ),
        r"\(torch 2.5 against 2.4\)": replace(second, arithmetic={"torch": "2.5", "device": "cpu"}),
        r"\(device none against cpu\)": replace(second, arithmetic={"torch": "2.4"}),
        r"\(crop adm:256 against none\)": replace(second, framing=Crop("adm", 256)),
        r"\(diagnosis False against True\)": replace(second, pictures=None),
        r"\(value_range": replace(second, config={"value_range": [-1, 1]}),
        r"\(float_to_byte floor against none\)": replace(second, config={"float_to_byte": "floor"}),
        r"\(dims 4 against 3\)": replace(
            second, layers={FEATURES: replace(layer, definition=wider)}
        ),
        r"\(features of each image False": replace(
            second, layers={FEATURES: replace(layer, features=None)}
        ),
        r"\(networks custom.py:network and custom.py:network against custom.py:network\)": replace(
            second, layers={**second.layers, "spatial": layer}
        ),
        r"part 2 has no exact sums; another": replace(second, arithmetic=None),
        r"part 2 has no exact sums": replace(second, layers={FEATURES: replace(layer, sums=None)}),
        r"part 2 cannot be read: .*the sums are damaged": replace(
            second,
            layers={
                FEATURES: replace(
                    layer, sums={**(layer.sums or {}), "low": np.zeros(2, dtype=np.int64)}
                )
            },
        ),
    }
    for message, other in cases.items():
        with pytest.raises(InputError, match=message):
            fidtool.merge_statistics([first, other])
    with pytest.raises(InputError, match="there are no parts"):
        fidtool.merge_statistics([])
    with pytest.raises(InputError, match=r"no statistics file part1\.npz"):
        fidtool.merge_statistics("part1.npz")  # type: ignore[arg-type]


def test_sums_beyond_64_bits_are_merged() -> None:
    """As of parts of many millions of photos, whose sums need a second limb."""
    parts = [of(range(5), "1/2"), of(range(5, COUNT), "2/2")]
    large = []
    for part in parts:
        sums = {**(part.layers[FEATURES].sums or {})}
        sums["high"] = np.full_like(sums["low"], 2**30)
        large.append(replace(part, layers={FEATURES: replace(part.layers[FEATURES], sums=sums)}))
    low, high = (fidtool.merge_statistics(each).layers[FEATURES].sums for each in (parts, large))
    assert low is not None
    assert high is not None
    assert "high" not in low
    upper = [
        int(above) * 2**32 + int(below)
        for above, below in zip(high["high"], high["low"], strict=True)
    ]
    assert upper == [int(each) + 2 * 2**62 for each in low["low"]]
