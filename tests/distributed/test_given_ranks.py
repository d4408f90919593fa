"""Images in memory, with one program per rank."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fidtool
from support.places import COLOURS, TINY
from support.ranks import RankServer, outcomes
from support.source_forms import make_pair, pixels_in

COUNT = 22
RANKS = 3

SCRIPT = """
import io, json, os, sys
import numpy as np
from PIL import Image
import fidtool

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
real, file, extractor = sys.argv[1:]
pixels = np.load(file)
settings = dict(extractor=extractor, cache=False, batch_size=4, metrics=["fid", fidtool.KID(subset_size=9, subsets=5)])
settings["progress"] = lambda *step: None
share = pixels[rank::size]
animations = []
for some in (pixels[:9], pixels[9:]):
    first, *others = map(Image.fromarray, some)
    first.save(file := io.BytesIO(), "PNG", save_all=True, append_images=others)
    animations.append(file.getvalue())
cases = {
    "a sequence": lambda: pixels,
    "the same": lambda: fidtool.Images(iter(pixels), sharded=False),
    "shares": lambda: fidtool.Images(iter(share), sharded=True),
    "an empty share": lambda: fidtool.Images(iter(pixels if rank == 1 else ()), sharded=True),
    "frames of a sequence": lambda: animations,
    "frames of an iterable": lambda: fidtool.Images(iter(animations), sharded=False),
    "unsaid": lambda: iter(pixels),
    "others": lambda: fidtool.Images(iter(pixels[rank:]), sharded=False),
    "one other image": lambda: [*pixels[:21], pixels[21] // (1 + rank)],
    "kinds": lambda: pixels if rank != 1 else fidtool.Images(iter(pixels), sharded=True),
    "too few": lambda: fidtool.Images(iter(pixels[:5]), sharded=True),
    "a failure": lambda: fidtool.Images((1 // (rank - 2) and image for image in pixels), sharded=True),
    "copies, with warnings": lambda: [pixels[0]] * 22,
    "afterwards": lambda: fidtool.Images(iter(share), sharded=True),
}
said = {}
for case, given in cases.items():
    try:
        evaluation = fidtool.compute(real, given(), num=22 if case == "too few" else None, frames="all", **settings)
        result = evaluation.results[0]
        said[case] = [result.value("fid"), result.value("kid"), result.fake.count]
    except fidtool.FidtoolError as error:
        said[case] = f"{type(error).__name__} {error}"

def drawn(n, seed):
    return np.random.default_rng(seed).integers(0, 255, (n, 24, 24, 3), np.uint8)

together = fidtool.compute(real, drawn, num_fake=22, **settings).results[0].metrics
statistics = fidtool.compute_statistics(real, extractor=extractor)  # on rank zero
said["statistics"] = fidtool.compute(statistics, pixels, extractor=extractor).results[0].value("fid")
if rank == 0:
    alone = fidtool.compute(real, drawn, num_fake=22, alone=True, **settings).results[0].metrics
    said["a function"] = alone == together
    print(json.dumps(said))
"""
"""A program that continues after errors."""

STATISTICS = """
import json, os, sys
import numpy as np
import fidtool

real, fake, extractor, other = sys.argv[1:]
settings = dict(extractor=extractor, cache=False, batch_size=4)
known = fidtool.compute_statistics(real, **settings)
parts = [fidtool.compute_statistics(fake, part=f"{k}/2", **settings) for k in (1, 2)]
merged = fidtool.merge_statistics(parts)
later = fidtool.merge_statistics(
    fidtool.compute_statistics(fake, part=f"{k}/2", **settings) for k in (1, 2)
)
grown = fidtool.compute_statistics(fake, since=merged, **settings)
both = dict(settings, extractor=[extractor, other])
more = fidtool.compute_statistics(fake, known=merged, **both)
fidtool.write_statistics(f"all{os.environ.get('WORLD_SIZE', 1)}.npz", merged)
said = {
    "types": [isinstance(each, fidtool.Statistics) for each in (known, merged, later, grown, more)],
    "true": [bool(each) for each in (known, merged, later, grown, more)],
    "named": fidtool.compute(known, {"a": merged, "b": fake}, **settings).by_name["a"].value("fid"),
    "as REAL and FAKE": fidtool.compute(known, known, **settings).results[0].value("fid"),
}
for name in ("mu", "sigma", "dims", "count", "layers", "features", "definition"):
    try:
        getattr(known, name)
    except fidtool.InputError as error:
        said[name] = str(error)
try:
    fidtool.write_statistics(f"rank{os.environ.get('RANK', 0)}.npz", known)
    said["alone"] = fidtool.compute(known, fake, alone=True, **settings).results[0].value("fid")
except fidtool.InputError as error:
    said["alone"] = str(error)
said["repr"] = repr(known)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("given"), COUNT)


@pytest.fixture(scope="module")
def expected(place: Path) -> list[float]:
    metrics = ["fid", fidtool.KID(subset_size=9, subsets=5)]
    evaluation = fidtool.compute(
        place / "real", place / "images", extractor=TINY, cache=False, metrics=metrics, batch_size=4
    )
    return [evaluation.results[0].value(name) for name in ("fid", "kid")]


@pytest.fixture(scope="module")
def said(rank_server: RankServer, place: Path) -> dict[str, object]:
    """Rank zero's result or error for each case."""
    (place / "script.py").write_text(SCRIPT)
    np.save(place / "pixels.npy", pixels_in(place / "images"))
    arguments = [["script.py", "real", "pixels.npy", TINY]] * RANKS
    ends = outcomes(rank_server.ranks("script", arguments, rank_server.environment, place))
    assert [end.status for end in ends] == [0] * RANKS, ends
    assert ["FidtoolWarning: " in end.stderr for end in ends] == [True, False, False]
    found: dict[str, object] = json.loads(ends[0].stdout)
    return found


@pytest.mark.parametrize(
    "case", ["a sequence", "the same", "frames of a sequence", "frames of an iterable"]
)
def test_the_same_on_every_rank(said: dict[str, object], expected: list[float], case: str) -> None:
    assert said[case] == [*expected, COUNT]


def test_ranks_share_what_a_function_generates(said: dict[str, object]) -> None:
    assert said["a function"] is True


def test_rank_zero_passes_statistics(said: dict[str, object], expected: list[float]) -> None:
    assert said["statistics"] == pytest.approx(expected[0], rel=1e-12)


@pytest.mark.parametrize("case", ["shares", "an empty share", "afterwards"])
def test_each_rank_passes_its_own_share(
    said: dict[str, object], expected: list[float], case: str
) -> None:
    """The FID is bit-identical; KID draws its subsets from the images in a different order."""
    assert isinstance(said[case], list), said[case]
    fid, _, count = said[case]  # type: ignore[misc]
    assert (fid, count) == (expected[0], COUNT)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unsaid", ["InputError", "3 ranks", "sharded=True"]),
        ("others", ["InputError", "yielded different images on rank 1", "21 and 22"]),
        ("one other image", ["InputError", "different contents on rank 1"]),
        ("kinds", ["InputError", "the set fake is 'a sequence of 22' on rank 0", "'an iterable"]),
        ("too few", ["InputError", "asks for 22", "yielded 15", "5, 5, 5 on the individual ranks"]),
        ("a failure", ["ProgramError", "fake raised ZeroDivisionError", "rank 2"]),
    ],
)
def test_inconsistent_ranks_are_refused(
    said: dict[str, object], case: str, words: list[str]
) -> None:
    assert [word for word in words if word not in str(said[case])] == [], said[case]


@pytest.mark.parametrize("ranks", [1, 2])
def test_statistics_are_on_rank_zero(
    rank_server: RankServer, place: Path, expected: list[float], ranks: int
) -> None:
    """A program needs no branch for the other ranks unless it reads the statistics."""
    (place / "statistics.py").write_text(STATISTICS)
    arguments = [["statistics.py", "real", "images", TINY, COLOURS]] * ranks
    started = rank_server.ranks("script", arguments, rank_server.environment, place)
    ends = outcomes(started)
    assert [end.status for end in ends] == [0] * ranks, ends[-1].stderr
    first, *others = (json.loads(end.stdout) for end in ends)
    assert first["types"] == first["true"] == [True] * 5
    assert first["named"] == first["alone"] == pytest.approx(expected[0], rel=1e-9)
    assert first["repr"].startswith("<Statistics of 22 images")
    assert "mu" not in first, "rank zero reads it"
    for other in others:
        assert other["types"] == [True] * 5
        assert other["true"] == [False] * 5
        assert other["named"] == first["named"]
        assert other["as REAL and FAKE"] == first["as REAL and FAKE"]
        assert other["repr"] == "<Statistics on rank 0>"
        for name in ("mu", "sigma", "dims", "features", "definition"):
            assert f"only rank 0 has these statistics, and {name} was read on" in other[name]
        assert "only rank 0 has these statistics" in other["alone"]
        assert "and count was read on another rank: read them under `if" in other["count"]
    merged = fidtool.read_statistics(place / f"all{ranks}.npz")
    whole = fidtool.compute_statistics(place / "images", extractor=TINY, cache=False, batch_size=4)
    assert merged.mu.tobytes() == whole.mu.tobytes()
    assert (place / "rank0.npz").exists()
    assert not (place / "rank1.npz").exists()
