"""The same images in every form on several ranks: bit-identical values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run
from support.ranks import RankServer, finish
from support.source_forms import ARGUMENTS, FORMS, prepare_expected, prepare_forms


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return prepare_forms(tmp_path_factory)


@pytest.fixture(scope="module")
def expected(forms: dict[str, str]) -> dict[str, float]:
    return prepare_expected(forms)


@pytest.fixture(scope="module")
def record(rank_server: RankServer, forms: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run with all forms, each as one FAKE."""
    arguments = ["compute", forms["real"], *map(forms.__getitem__, FORMS), *ARGUMENTS]
    place: Path = tmp_path_factory.mktemp("run")
    run = finish(rank_server, rank_server.quick_torchrun(3, "fidtool", arguments, rank_server.environment, place))
    assert run.status == 0, run.stderr
    assert run.json["run"]["world_size"] == 3
    return run.json


@pytest.mark.parametrize("form", FORMS)
def test_three_ranks_give_the_same_values(
    record: dict[str, Any], forms: dict[str, str], expected: dict[str, float], form: str
) -> None:
    (result,) = (each for each in record["results"] if each["fake"] == forms[form])
    assert result["metrics"] == expected


def test_standard_input_is_one_set_on_any_number_of_ranks(fidtool: Run) -> None:
    run = fidtool("compute", "-", "-", *ARGUMENTS, ranks=2)
    assert run.status != 0
    assert "standard input, which can only be used for one of the sets" in run.stderr
