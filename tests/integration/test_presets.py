"""--preset: its settings, what overrides them, and the verdict on the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fidtool
from fidtool.presets import PRESETS, with_preset
from fidtool.record import recorded
from fidtool.settings import Settings
from support.command_line import Run
from support.documents import checked
from support.offline import needs_weights
from support.pictures import make_pictures


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_pictures(tmp_path / "real", 6, 0), make_pictures(tmp_path / "fake", 6, 1)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name: str) -> None:
    settings = Settings(**with_preset({"preset": name}))
    assert settings.preset == name
    for setting, value in PRESETS[name].settings.items():
        found = recorded(settings)[setting]
        assert found == (value.split(",") if setting == "metrics" else value)


def test_given_settings_win() -> None:
    given = {"preset": "adm", "protocol": "clean", "is_splits": 2, "batch_size": 3}
    others = {"metrics": "fid,sfid,is,prdc", "nearest_k": 3, "ties": "inclusive", "is_bias": False}
    assert with_preset(given) == {**given, **others}
    assert with_preset({"seed": 1}) == {"seed": 1}


@needs_weights
def test_a_preset_equals_its_flags(here: Run, sets: tuple[Path, Path]) -> None:
    preset = here("compute", *sets, "--preset", "stylegan", "--json")
    flags = here("compute", *sets, "--protocol", "stylegan", "--metrics", "fid", "--json")
    assert preset.metrics == flags.metrics
    assert preset.json["protocol"] == flags.json["protocol"]
    assert preset.json["run"]["config"]["preset"] == "stylegan"
    assert "instead of" not in preset.stderr.replace(": 6 instead of 50,000", "")


@needs_weights
def test_overrides_are_said(here: Run, sets: tuple[Path, Path]) -> None:
    found = here("compute", *sets, "--preset", "ADM", "--metrics", "fid,prdc", "--nearest-k", 2, "--protocol", "clean")
    for line in (
        "--preset adm: --protocol clean instead of tensorflow",
        "--preset adm: --metrics fid,prdc instead of fid,sfid,is,prdc",
        "--preset adm: --nearest-k 2 instead of 3",
    ):
        assert line in found.stderr.splitlines()
    (verdict,) = [line for line in found.stderr.splitlines() if "not comparable with published values of adm" in line]
    assert "protocol: clean instead of tensorflow" in verdict
    evaluation = fidtool.compute(*sets, preset="adm", metrics="fid", protocol="clean")
    assert "preset='adm': protocol='clean' instead of tensorflow" in evaluation.run.notes
    assert evaluation.results[0].value("fid") == pytest.approx(float(found.stdout.split()[1]), abs=1e-4)


@needs_weights
def test_verify(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    assert here("compute", *sets, "--preset", "edm", "-o", "fid.json").status == 0
    text, document = here("verify", "fid.json"), here("verify", "fid.json", "--preset", "pytorch-fid", "--json")
    assert (text.status, document.status) == (3, 3)
    first, *items = text.stdout.splitlines()
    assert first.endswith("fake: not comparable with published values of edm")
    assert "  no        images of FAKE: 6" in items
    assert "            expected: 50,000 (NVlabs/edm, fid.py)" in items
    assert "  yes       protocol: tensorflow" in items
    (verdict,) = checked(json.loads(document.stdout))["verdicts"]
    found = {item["name"]: item for item in verdict["items"]}
    assert (found["protocol"]["found"], found["protocol"]["expected"]) == ("tensorflow", "pytorch-fid")
    assert verdict["comparable"] is False


def test_list_and_details(here: Run) -> None:
    listed, shown, document = here("presets"), here("presets", "dit"), here("presets", "--json")
    assert [line.split(":")[0].split()[0] for line in listed.stdout.splitlines() if line[0] != " "] == [*PRESETS]
    for word in ("--is-part-size", "--nearest-k 3", "--ties inclusive", "--crop adm:SIZE", "50,000 images"):
        assert word in " ".join(shown.stdout.split())
    assert max(map(len, (listed.stdout + shown.stdout).splitlines())) <= 80
    found: list[dict[str, Any]] = checked(json.loads(document.stdout))["presets"]
    assert [preset["name"] for preset in found] == [*PRESETS]
