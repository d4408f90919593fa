"""Flags for settings of built-in metrics, which follow from their classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click
import pytest

from fidtool import InputError, Metric, Number, Setting
from fidtool.cli.options import Command
from fidtool.cli.output import format_flag
from fidtool.errors import render
from fidtool.metrics.metric import METRICS
from fidtool.metrics.registry import BUILT_IN, METRIC_SETTINGS, NAMES
from fidtool.settings.settings import ALL_SETTINGS, Settings
from fidtool.validation import find_settings


@dataclass(frozen=True, kw_only=True)
class Energy(Metric):
    subset_size: int = Setting(20, METRICS, "N", least=1).help("Images that are compared.")

    name = "energy"
    numbers = (Number("energy", "Energy", "lower", "distance"),)

    def compute(self, *_: object) -> Mapping[str, float]:
        return {"energy": 0.0}


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Return a function that parses arguments, with `Energy` among the built-in metrics."""
    monkeypatch.setitem(BUILT_IN, "energy", Energy)
    monkeypatch.setitem(NAMES, "energy", Energy)
    monkeypatch.setitem(ALL_SETTINGS, "energy_subset_size", find_settings(Energy)["subset_size"])
    monkeypatch.setitem(
        METRIC_SETTINGS, "energy_subset_size", (Energy, find_settings(Energy)["subset_size"])
    )

    @click.command(cls=Command, settings=Settings)
    def command(settings: Callable[[], Settings]) -> Settings:
        return settings()

    def run(*arguments: str) -> Settings:
        try:
            found: Settings = command.main(list(arguments), standalone_mode=False)
        except InputError as error:
            raise InputError(render(error.text, format_flag)) from None
        return found

    return run


def test_a_metrics_setting_has_its_own_flag(settings_of: Callable[..., Settings]) -> None:
    def metric(*flags: str) -> Metric:
        (asked,) = settings_of("--metrics", "energy", *flags).selected_metrics
        return asked.metric

    assert metric("--energy-subset-size", "3") == Energy(subset_size=3)
    assert metric("--energy-subset-size", "20") == Energy()
    assert metric() == Energy()


def test_an_error_says_where_the_flag_is(settings_of: Callable[..., Settings]) -> None:
    with pytest.raises(InputError, match=r"^--energy-subset-size must be at least 1, not 0$"):
        settings_of("--metrics", "energy", "--energy-subset-size", "0")


def test_the_flag_is_refused_without_its_metric(settings_of: Callable[..., Settings]) -> None:
    words = (
        "^--energy-subset-size is a setting of energy, which is not computed: add energy to "
        "--metrics$"
    )
    with pytest.raises(InputError, match=words):
        settings_of("--energy-subset-size", "5")
