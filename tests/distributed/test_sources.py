"""The same images in every form on several ranks: the same numbers, bit for bit."""

from __future__ import annotations

import pytest

from support.command_line import Run
from support.source_forms import ARGUMENTS, FORMS, prepare_expected, prepare_forms


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return prepare_forms(tmp_path_factory)


@pytest.fixture(scope="module")
def expected(forms: dict[str, str]) -> dict[str, float]:
    return prepare_expected(forms)


@pytest.mark.parametrize("form", FORMS)
def test_and_so_on_three_ranks(fidtool: Run, forms: dict[str, str], expected: dict[str, float], form: str) -> None:
    run = fidtool("compute", forms["real"], forms[form], *ARGUMENTS, ranks=3)
    assert run.metrics == expected
    assert run.json["run"]["world_size"] == 3


def test_standard_input_is_one_set_on_any_number_of_ranks(fidtool: Run) -> None:
    run = fidtool("compute", "-", "-", *ARGUMENTS, ranks=2)
    assert run.status != 0
    assert "standard input, which can be one of the sets only" in run.stderr
