"""Framed sets on several ranks: the same bits as on one."""

from __future__ import annotations

import json
from pathlib import Path

from support.command_line import Run
from support.framed_images import write_framed
from support.places import COLOURS
from support.ranks import RankServer, finish

SMALL = ("--extractor", COLOURS, "--no-cache", "--batch-size", 4)


def test_one_and_two_ranks_give_the_same_bits(fidtool: Run, here: Run, tmp_path: Path) -> None:
    """Two sets with different crops, decoded by workers and without."""
    photos = write_framed(tmp_path / "photos")
    line = ("compute", photos, write_framed(tmp_path / "squares", "adm:40"), *SMALL, "--json")
    crops = ("--crop", "center:48", "--crop-fake", "tensor-center:24")
    one = here(*line, *crops, "--num-workers", 0)
    for workers in (0, 1):
        two = fidtool(*line, *crops, "--num-workers", workers, ranks=2)
        assert two.status == 0, two.stderr
        assert two.json["run"]["world_size"] == 2
        assert two.json["results"] == one.json["results"]
    assert one.json["results"][0]["framing"] == {"real": "center:48", "fake": "tensor-center:24"}
    assert here(*line).fid != one.fid


PROGRAM = """
import io, json, os, sys
from pathlib import Path
import fidtool
from PIL import Image

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
squares, photos, extractor = sys.argv[1:]
files = sorted(Path(photos).iterdir())[rank::size]
images = (Image.open(file) if number % 2 else file.read_bytes() for number, file in enumerate(files))
given = fidtool.Images(images, sharded=True)
settings = dict(extractor=extractor, cache=False, batch_size=4, num_workers=1)
(result,) = fidtool.compute(squares, given, crop_fake="edm:32", **settings).results
if rank == 0:
    print(json.dumps([result.frechet_distance, result.fake.count, result.fake.framing]))
"""


def test_iterables(rank_server: RankServer, environment: dict[str, str], here: Run, tmp_path: Path) -> None:
    photos, squares = write_framed(tmp_path / "photos"), write_framed(tmp_path / "squares", "adm:40")
    expected = here("compute", squares, photos, *SMALL, "--crop-fake", "edm:32", "--json").fid
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    run = finish(
        rank_server,
        rank_server.quick_torchrun(2, "script", [script, squares, photos, COLOURS], environment, tmp_path),
    )
    assert run.status == 0, run.stderr
    assert json.loads(run.stdout) == [expected, 20, "edm:32"]
