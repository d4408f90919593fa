"""The record of a run: changed settings, Inception, and the command with its launcher."""

from __future__ import annotations

import json

import pytest

from fidtool.cli.output import command_of
from fidtool.record import call_of, changed_settings
from fidtool.settings import Settings


def test_a_record_has_the_changed_settings() -> None:
    assert changed_settings(Settings()) == {}
    config = Settings(
        value_range=(0, 1), metrics=("kid",), max_pixels=10, on_error="skip", recursive=False, weights="w"
    )
    changed = changed_settings(config)
    assert json.loads(json.dumps(changed)) == changed
    assert Settings(**changed) == config
    assert changed_settings(Settings(report="page.html")) == {}, "it does not affect any value"


def test_inception_is_recorded_if_requested() -> None:
    """Without a request, the network of a statistics file would be adopted."""
    settings = Settings(extractor="inception")
    assert changed_settings(settings) == {"extractor": "inception"}
    assert call_of("a", ["b"], {}, settings) == "fidtool.compute('a', 'b', extractor='inception')"


def test_the_recorded_command_has_its_launcher(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["compute", "real/", "fake/"]
    assert command_of(typed) == ["fidtool", *typed]
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert command_of(typed) == ["fidtool", *typed], "a run that fails because of invalid variables is recorded as well"
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert command_of(typed) == ["fidtool", *typed], "set by mpirun, or manually"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert command_of(typed) == ["torchrun", "--nnodes=2", "--nproc-per-node=2", "-m", "fidtool", *typed]
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    assert command_of(typed) == ["fidtool", *typed], "the options of srun are unknown"
