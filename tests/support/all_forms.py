"""One set in every form, and its numbers."""

from __future__ import annotations

import pytest

from support.places import TINY
from support.source_forms import make_forms, make_squares

COUNT = 22
ARGUMENTS = (
    *("--extractor", TINY, "--no-cache", "--json", "--batch-size", 4, "--value-range", "0,1"),
    *("--metrics", "fid,kid", "--kid-subset-size", 9, "--kid-subsets", 5),
)


def prepare_forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same pictures in every form, and REAL."""
    place = tmp_path_factory.mktemp("forms")
    return {**make_forms(make_squares(place / "images", COUNT)), "real": str(make_squares(place / "real", COUNT, 1))}


def prepare_expected(forms: dict[str, str]) -> dict[str, float]:
    """The numbers of the folder, on one rank."""
    import fidtool

    kid = {"metrics": "fid,kid", "kid_subset_size": 9, "kid_subsets": 5}
    evaluation = fidtool.compute(forms["real"], forms["folder"], extractor=TINY, cache=False, batch_size=4, **kid)
    return dict(evaluation.results[0].metrics)
