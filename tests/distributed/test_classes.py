"""Values of classes on several ranks."""

from __future__ import annotations

import json
from pathlib import Path

from support.class_sets import make_classes
from support.command_line import Run
from support.places import COLOURS, TINY
from support.ranks import RankServer, outcomes
from support.small_sets import SMALL

NETWORKS = ("--extractor", f"{TINY},{COLOURS}", "--no-cache", "--quiet")
ARGUMENTS = ("--metrics", "fid,kid,prdc,mifid", *SMALL, *NETWORKS, "--json")


def test_classes_have_the_same_bits_on_any_number_of_ranks(
    here: Run, fidtool: Run, tmp_path: Path
) -> None:
    """Also of classes that are left out, and in another order of the images."""
    real, fake = make_classes(
        tmp_path, {"ant": (24, 204), "bee": (31, 25), "cat": (9, 1), "dog": (0, 4)}
    )
    arguments = ("compute", real, fake, *ARGUMENTS, "--per-class")
    alone = here(*arguments)
    assert alone.status == 0, alone.stderr
    for ranks in (2, 3):
        together = fidtool(*arguments, ranks=ranks)
        assert together.status == 0, together.stderr
        assert together.json["results"] == alone.json["results"]


def test_ranks_refuse_sets_without_common_classes(fidtool: Run, tmp_path: Path) -> None:
    real, fake = make_classes(tmp_path, {"ant": (4, 0), "bee": (0, 4)})
    refused = fidtool("compute", real, fake, *NETWORKS, "--per-class", ranks=2)
    assert refused.status in (1, 2)
    assert refused.stderr.count("--per-class compares images whose folder or label") == 1


SCRIPT = """
import json, os, sys
import numpy as np
import fidtool

class Pairs:
    # Its labels are only known with its images.
    def __init__(self, pixels, labels):
        self.pixels, self.labels_of_items = pixels, labels
    def __len__(self):
        return len(self.pixels)
    def __getitem__(self, index):
        return self.pixels[index], int(self.labels_of_items[index])

kind, extractor = sys.argv[1:]
rng = np.random.default_rng(0)
pixels = rng.integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)
labels = rng.integers(0, 3, 40)
rank = int(os.environ.get("RANK", 0))
other = labels if rank == 0 else labels[::-1]  # only those of rank zero are used
settings = dict(extractor=extractor, cache=False, batch_size=4, per_class=True, num_real=30)
names = np.array(["ant", "bee", "cat"])[other]
try:
    fakes = [
        fidtool.Images(Pairs(pixels[::-1], labels)),
        fidtool.Images(iter(pixels), sharded=False),
    ]
    found = []
    given_labels = (None, labels)
    if kind == "few":
        fakes, given_labels = fakes[1:], [labels[:-1]]
    if kind == "shards":
        fakes, given_labels = [fidtool.Images(iter(pixels[rank::2]), sharded=True)], [labels]
    for fake, given in zip(fakes, given_labels):
        result = fidtool.compute(pixels, fake, labels=names, labels_fake=given, **settings)
        found.append(result.results[0].to_dict())
    if kind == "all":  # only the held-out set has no order, and it needs no labels
        shard = pixels[rank :: int(os.environ.get("WORLD_SIZE", 1))]
        heldout = fidtool.Images(iter(shard), sharded=True)
        fidtool.compute(pixels, fakes[0], labels_fake=labels, labels=names, heldout=heldout, **settings)
    print(json.dumps(found))
except fidtool.InputError as error:
    sys.exit(f"refused: {error}")
"""


def test_labels_of_a_program_are_those_of_rank_zero(
    rank_server: RankServer, tmp_path: Path
) -> None:
    """All ranks get the results of a process alone, also of labels that are read with the images,
    and of an iterable.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = rank_server.environment
    arguments = ["script.py", "all", TINY]
    found = []
    for ranks in (1, 2):
        ended = outcomes(rank_server.ranks("script", [arguments] * ranks, environment, tmp_path))
        assert [each.status for each in ended] == [0] * ranks, ended[0].stderr
        found += [json.loads(each.stdout) for each in ended]
    assert found[0] == found[1] == found[2]
    pairs, stream = found[0]
    assert sum(each["real"] for each in pairs["classes"]["classes"]) == 30
    assert sum(each["fake"] for each in stream["classes"]["classes"]) == 40
    assert all("matched by number" in json.dumps(each["warnings"]) for each in found[0])


def test_ranks_refuse_labels_of_other_images(rank_server: RankServer, tmp_path: Path) -> None:
    """Of an iterable only after it has ended: no rank waits for another one."""
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [["script.py", "few", TINY]] * 2
    ended = outcomes(rank_server.ranks("script", arguments, rank_server.environment, tmp_path))
    assert all(each.status == 1 for each in ended)
    for each in ended:
        assert "refused: labels_fake has 39 labels, but fake has 40 images" in each.stderr


def test_ranks_refuse_labels_of_shards(rank_server: RankServer, tmp_path: Path) -> None:
    """Whose images have no common order."""
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [["script.py", "shards", TINY]] * 2
    ended = outcomes(rank_server.ranks("script", arguments, rank_server.environment, tmp_path))
    for each in ended:
        assert each.status == 1
        problem = "labels_fake is in the order of the images, but each rank has different images"
        assert f"refused: {problem} of fake" in each.stderr
