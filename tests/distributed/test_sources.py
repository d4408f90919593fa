"""The same images in every form on several ranks: bit-identical values."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Run
from support.source_forms import (
    ARGUMENTS,
    COUNT,
    FORMS,
    make_frame_forms,
    make_pair,
    prepare_expected,
    prepare_forms,
)


def test_two_ranks_give_the_same_values(
    fidtool: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One run with all forms, each as one FAKE."""
    forms = prepare_forms(tmp_path_factory)
    run = fidtool("compute", forms["real"], *map(forms.__getitem__, FORMS), *ARGUMENTS, ranks=2)
    assert run.status == 0, run.stderr
    assert run.json["run"]["world_size"] == 2
    found = {
        form: result["metrics"] for form, result in zip(FORMS, run.json["results"], strict=True)
    }
    assert found == dict.fromkeys(FORMS, prepare_expected(forms))


def test_frames_on_two_ranks(fidtool: Run, tmp_path: Path) -> None:
    """Frames of files give the values of the same images in files of their own."""
    make_pair(tmp_path, COUNT)
    forms, real = make_frame_forms(tmp_path / "images"), tmp_path / "real"
    run = fidtool(
        "compute", real, *forms, *ARGUMENTS, "--frames", "all", "--expect", COUNT, ranks=2
    )
    assert run.status == 0, run.stderr
    expected = prepare_expected({"real": str(real), "folder": str(tmp_path / "images")})
    assert [result["metrics"] for result in run.json["results"]] == [expected] * len(forms)


def test_standard_input_is_one_set_on_any_number_of_ranks(fidtool: Run) -> None:
    run = fidtool("compute", "-", "-", *ARGUMENTS, ranks=2)
    assert run.status != 0
    assert "standard input, which can only be used for one of the sets" in run.stderr
