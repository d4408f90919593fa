"""``--extractor FILE.pt2``, TorchScript files, ``package.module:NAME``, and their flags."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from support.command_line import Run
from support.own_networks import MEAN, SETTINGS, STD, Small, save_script
from support.places import TINY
from support.published_networks import distance, features, make_sets, refused_extractor


def save_program(file: Path, extra: str | None, dynamic: bool = True) -> None:
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    program = torch.export.export(
        Small().eval(), (torch.zeros(2, 3, 24, 24),), dynamic_shapes=shapes
    )
    torch.export.save(program, file, extra_files={} if extra is None else {"fidtool.json": extra})


SAVE: dict[str, Callable[[Path, str | None], None]] = {".pt": save_script, ".pt2": save_program}


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path) -> Path:
    make_sets(tmp_path)
    return tmp_path


def transform(picture: Image.Image) -> torch.Tensor:
    """Resize as in the default protocol and normalise with the file's mean and standard
    deviation.
    """
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float()
    small = (
        nn.functional.interpolate(pixels, size=(24, 24), mode="bilinear", align_corners=False)[0]
        / 255
    )
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (small - mean) / std


@pytest.mark.parametrize("suffix", SAVE)
def test_an_exported_program_gets_the_input_that_its_file_describes(
    here: Run, place: Path, suffix: str
) -> None:
    file = place / f"small{suffix}"
    SAVE[suffix](file, json.dumps(SETTINGS))
    outcome = here("compute", "real", "fake", "--extractor", file, "--json", "--quiet")
    assert outcome.status == 0, outcome.stderr
    expected = distance(
        *(features(place / name, transform, Small().eval()) for name in ("real", "fake"))
    )
    assert outcome.fid == pytest.approx(expected, rel=1e-3)
    protocol = outcome.json["protocol"]
    assert protocol["extractor"].startswith(f"small{suffix}@")
    assert [protocol[key] for key in ("input_size", "feature_step", "resize", "name")] == [
        24,
        17,
        "bilinear",
        "pytorch-fid",
    ]
    clean = here(
        "compute", "real", "fake", "--extractor", file, "--protocol", "clean", "--json", "--quiet"
    )
    assert (clean.json["protocol"]["name"], clean.fid == outcome.fid) == ("clean", False)


def test_flags_replace_settings_missing_in_the_file(here: Run, place: Path) -> None:
    save_program(place / "mute.pt2", None)
    save_program(place / "told.pt2", json.dumps({"input_size": 24, "feature_step": 14}))
    flags = ("--input-size", 24, "--feature-step", 14)
    mute = here("compute", "real", "fake", "--extractor", "mute.pt2", *flags, "--json", "--quiet")
    told = here("compute", "real", "fake", "--extractor", "told.pt2", "--json", "--quiet")
    assert (mute.status, told.status) == (0, 0), mute.stderr
    assert mute.fid == told.fid
    keys = ("input_size", "feature_step", "normalization", "weights_sha256")
    assert [mute.json["protocol"][key] for key in keys] == [
        told.json["protocol"][key] for key in keys
    ]


@pytest.mark.parametrize(
    ("extra", "flags", "texts"),
    [
        (None, (), ["does not state the size of its input", "--input-size N", '{"input_size": N}']),
        (
            '{"input_size": 24}',
            ("--input-size", 32),
            ["--input-size 32", "states an input of 24 pixels"],
        ),
        ("{", (), ["fidtool.json in", "is not valid JSON"]),
        ('{"input_size": 24, "std": [0, 1, 1]}', (), ["fidtool.json in", "std must be positive"]),
        ('{"size": 24}', (), ["no other keys than input_size, mean, std, feature_step"]),
    ],
)
def test_mistakes_in_the_settings(
    here: Run, place: Path, extra: str | None, flags: tuple[Any, ...], texts: list[str]
) -> None:
    save_script(place / "small.pt", extra)
    refused_extractor(here, "small.pt", None, texts, *flags)


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ("text.pt2", ["text.pt2 is not a program written by torch.export.save"]),
        ("state.pth", ["state.pth is not a TorchScript program", "if it is a state_dict"]),
    ],
)
def test_files_that_are_not_programs(here: Run, place: Path, spec: str, texts: list[str]) -> None:
    (place / "text.pt2").write_text("no program\0")
    torch.save(Small().state_dict(), place / "state.pth")
    refused_extractor(here, spec, None, texts)


def test_a_fixed_batch_is_explained(here: Run, place: Path) -> None:
    save_program(place / "fixed.pt2", json.dumps(SETTINGS), dynamic=False)
    outcome = here("compute", "real", "fake", "--extractor", "fixed.pt2", "--quiet")
    assert outcome.status == 1
    assert "dynamic batch dimension, dynamic_shapes=" in outcome.error
    save_program(place / "silent.pt2", None)
    other = here(
        "compute", "real", "fake", "--extractor", "silent.pt2", "--input-size", 25, "--quiet"
    )
    assert other.error.endswith("set input_size to the size with which it was exported")


def test_a_factory_in_a_module(here: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is on the search path, as with `python -m`. `FILE.py:NAME` gives the same
    network.
    """
    (place / "ours").mkdir()
    (place / "ours" / "__init__.py").write_text("")
    source = Path(TINY.rpartition(":")[0]).read_text()
    (place / "ours" / "encoders.py").write_text(source)
    named = here(
        "compute", "real", "fake", "--extractor", "ours.encoders:network", "--json", "--quiet"
    )
    assert named.status == 0, named.stderr
    filed = here("compute", "real", "fake", "--extractor", TINY, "--json", "--quiet")
    assert named.fid == filed.fid
    digest = filed.json["protocol"]["extractor"].rpartition("@")[2]
    assert named.json["protocol"]["extractor"] == f"ours.encoders:network@{digest}"


def test_feature_step_is_part_of_the_definition(here: Run, place: Path) -> None:
    first, second = (
        here(
            "compute",
            "real",
            "fake",
            "--extractor",
            TINY,
            "--json",
            "--quiet",
            "--feature-step",
            step,
        )
        for step in (18, 16)
    )
    assert (first.status, second.status) == (0, 0), second.stderr
    assert [each.json["protocol"]["feature_step"] for each in (first, second)] == [18, 16]
    assert first.json["protocol"]["fingerprint"] != second.json["protocol"]["fingerprint"]
