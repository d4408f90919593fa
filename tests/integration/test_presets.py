"""--preset: its settings, what overrides them, and the verdict on the result."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fidtool.settings.presets import PRESETS, apply_preset
from fidtool.settings.record import record_settings
from fidtool.settings.settings import Settings
from support.command_line import Run
from support.offline import needs_weights
from support.pictures import make_pictures


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    folders = make_pictures(tmp_path / "real", 6, 0), make_pictures(tmp_path / "fake", 6, 1)
    time.sleep(0.08)  # younger files are not cached
    return folders


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name: str) -> None:
    settings = Settings(**apply_preset({"preset": name}))
    assert settings.preset == name
    for setting, value in PRESETS[name].settings.items():
        found = record_settings(settings)[setting]
        assert found == (value.split(",") if setting == "metrics" else value)
    named = {each.full for each in settings.other_networks.values()}
    assert named == {*PRESETS[name].further_networks}


@needs_weights
@pytest.mark.slow
def test_a_preset_equals_its_flags(here: Run, sets: tuple[Path, Path]) -> None:
    preset = here("compute", *sets, "--preset", "stylegan", "--json")
    flags = here("compute", *sets, "--protocol", "stylegan", "--metrics", "fid", "--json")
    assert preset.metrics == flags.metrics
    assert preset.json["protocol"] == flags.json["protocol"]
    assert preset.json["run"]["config"]["preset"] == "stylegan"
    assert "instead of" not in preset.stderr.replace(": 6 instead of 50,000", "")


@needs_weights
def test_overrides_are_said(here: Run, sets: tuple[Path, Path]) -> None:
    found = here(
        "compute",
        *sets,
        "--preset",
        "ADM",
        "--metrics",
        "fid,prdc",
        "--nearest-k",
        2,
        "--protocol",
        "clean",
    )
    for line in (
        "--preset adm: --protocol clean instead of tensorflow",
        "--preset adm: --metrics fid,prdc instead of fid,sfid,is,prdc",
        "--preset adm: --nearest-k 2 instead of 3",
    ):
        assert line in found.stderr.splitlines()
    (verdict,) = [
        line
        for line in found.stderr.splitlines()
        if "not comparable with published values of adm" in line
    ]
    assert "protocol: clean instead of tensorflow" in verdict


def test_list_and_details(here: Run) -> None:
    listed, shown, document = (
        here("presets"),
        here("presets", "dit", "var"),
        here("presets", "--json"),
    )
    assert [
        line.split(":")[0].split()[0] for line in listed.stdout.splitlines() if line[0] != " "
    ] == [*PRESETS]
    of_dit, _, of_var = " ".join(shown.stdout.split()).partition(" var: ")
    for words, crop in ((of_dit, "adm"), (of_var, "var")):
        for word in (
            "--is-split-size",
            "--nearest-k 3",
            "--ties inclusive",
            f"--crop {crop}:SIZE",
            "50,000 images",
        ):
            assert word in words
    assert max(map(len, (listed.stdout + shown.stdout).splitlines())) <= 80
    assert [preset["name"] for preset in document.json["presets"]] == [*PRESETS]
