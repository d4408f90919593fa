"""Values of classes on several ranks."""

from __future__ import annotations

from pathlib import Path

from support.class_sets import make_classes
from support.command_line import Run
from support.places import COLOURS, TINY
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
    assert refused.stderr.count("--per-class compares folders of one name") == 1
