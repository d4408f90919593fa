"""Images in memory, with one program per rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fidtool
from support.places import TINY
from support.ranks import RankServer, exported, finish
from support.source_forms import make_pair, pixels_in

COUNT = 22


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("given"), COUNT)


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, float]:
    settings = {"kid_subset_size": 9, "kid_subsets": 5, "batch_size": 4}
    evaluation = fidtool.compute(
        place / "real", place / "images", extractor=TINY, cache=False, metrics="fid,kid", **settings
    )
    return {name: evaluation.results[0].value(name) for name in ("fid", "kid")}


SCRIPT = """
import io, os, sys
import numpy as np
import torch
import fidtool
from PIL import Image

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
real, file, extractor, case = sys.argv[1:]
pixels = np.load(file)
Image.fromarray(pixels[21]).save(whole := io.BytesIO(), "png")
cut = whole.getvalue()[:-300]
def beside_a_network(images):
    # With all threads, as the network of a generator does.
    network = torch.nn.Conv2d(3, 8, 3)
    for image in images:
        with torch.no_grad():
            network(torch.rand(2, 3, 64, 64)).sum()
        yield image

settings = dict(extractor=extractor, cache=False, batch_size=4, metrics="fid,kid", kid_subset_size=9, kid_subsets=5)
given = {
    "a sequence": lambda: pixels,
    "the same": lambda: fidtool.Images(iter(pixels), sharded=False),
    "shares": lambda: fidtool.Images(iter(pixels[rank::size]), sharded=True),
    "shares of a network": lambda: fidtool.Images(beside_a_network(pixels[rank::size]), sharded=True),
    "an empty share": lambda: fidtool.Images(iter(pixels if rank == 1 else ()), sharded=True),
    "unsaid": lambda: iter(pixels),
    "others": lambda: fidtool.Images(iter(pixels[rank:]), sharded=False),
    "other sequences": lambda: pixels if rank == 0 else 255 - pixels,
    "one more": lambda: pixels[: 21 + (rank == 1)],
    "one other image": lambda: [*pixels[:21], pixels[21] // (1 + rank)],
    "a folder and a program": lambda: "real" if rank == 0 else fidtool.Images(iter(pixels), sharded=True, name="real"),
    "ways": lambda: fidtool.Images(iter(pixels), sharded=rank != 1),
    "kinds": lambda: pixels if rank != 1 else fidtool.Images(iter(pixels), sharded=True),
    "a list cut off": lambda: [*map(Image.fromarray, pixels[:21]), Image.open(io.BytesIO(cut))],
    "an iterable cut off": lambda: fidtool.Images(iter([Image.open(io.BytesIO(cut))]), sharded=False),
    "too few": lambda: fidtool.Images(iter(pixels[:5]), sharded=True),
    "a failure": lambda: fidtool.Images((1 // (rank - 2) and image for image in pixels), sharded=True),
}[case]()
try:
    evaluation = fidtool.compute(real, given, num=22 if case == "too few" else None, **settings)
    result = evaluation.results[0]
    if rank == 0:
        print(result.value("fid"), result.value("kid"), result.fake.count)
except fidtool.FidtoolError as error:
    if rank == 0:
        print(type(error).__name__, error)
"""


def on_ranks(server: RankServer, environment: dict[str, str], place: Path, case: str, ranks: int = 3) -> str:
    """Rank zero's output for a case."""
    script, file = place / "script.py", place / "pixels.npy"
    script.write_text(SCRIPT)
    np.save(file, pixels_in(place / "images"))
    arguments = [script, place / "real", file, TINY, case]
    started = [server.launch("script", arguments, {**environment, **own}, place) for own in exported(ranks)]
    outcomes = [finish(server, rank) for rank in started]
    assert [outcome.status for outcome in outcomes] == [0] * ranks, outcomes
    return outcomes[0].stdout.strip()


@pytest.mark.parametrize("case", ["a sequence", "the same"])
def test_the_same_on_every_rank(
    rank_server: RankServer, environment: dict[str, str], place: Path, expected: dict[str, float], case: str
) -> None:
    assert on_ranks(rank_server, environment, place, case) == f"{expected['fid']} {expected['kid']} {COUNT}"


@pytest.mark.parametrize("case", ["shares", "shares of a network", "an empty share"])
def test_each_rank_passes_its_own_share(
    rank_server: RankServer, environment: dict[str, str], place: Path, expected: dict[str, float], case: str
) -> None:
    """The FID is bit-identical; KID draws its subsets from the images in a different order."""
    fid, _, count = on_ranks(rank_server, environment, place, case).split()
    assert (float(fid), int(count)) == (expected["fid"], COUNT)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unsaid", ["InputError", "3 ranks", "sharded=True"]),
        ("others", ["InputError", "yielded different images on rank 1", "21 and 22"]),
        ("other sequences", ["InputError", "different contents on rank 1"]),
        ("one more", ["InputError", "the set fake is 'a sequence of 21' on rank 0 and 'a sequence of 22' on rank 1"]),
        ("one other image", ["InputError", "different contents on rank 1"]),
        ("a folder and a program", ["InputError", "the ranks were started differently"]),
        ("ways", ["InputError", "the set fake is 'an iterable (sharded=True)' on rank 0", "sharded=False"]),
        ("kinds", ["InputError", "the set fake is 'a sequence of 22' on rank 0", "'an iterable"]),
        ("a list cut off", ["InputError", "cannot read fake[21]", "truncated"]),
        ("an iterable cut off", ["InputError", "cannot read fake[0]", "truncated"]),
        ("too few", ["InputError", "asks for 22", "yielded 15", "5, 5, 5 on the individual ranks"]),
        ("a failure", ["RunError", "ZeroDivisionError", "rank 2"]),
    ],
)
def test_inconsistent_ranks_are_refused(
    rank_server: RankServer, environment: dict[str, str], place: Path, case: str, words: list[str]
) -> None:
    said = on_ranks(rank_server, environment, place, case)
    assert [word for word in words if word not in said] == [], said
