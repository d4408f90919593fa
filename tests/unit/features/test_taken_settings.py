"""Settings that statistics files agree on are adopted, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fidtool.errors import InputError
from fidtool.features.choice import CMMD_EXTRACTOR, is_published
from fidtool.features.protocol import find_protocol, inception_definition
from fidtool.run.opening import complete_settings
from fidtool.run.plan import check_agreement
from fidtool.run.sets import REAL, SetPlan, set_needs
from fidtool.settings.settings import Settings
from fidtool.statistics.set_statistics import Statistics

TENSORFLOW = inception_definition(find_protocol("tensorflow"), 64)


def file_of(**changes: object) -> Statistics:
    """Return statistics with 64 dims and the protocol ``tensorflow``, except for these changes."""
    definition = replace(TENSORFLOW, **changes)  # type: ignore[arg-type]
    return Statistics.of(np.zeros(definition.dims), np.eye(definition.dims), 100, definition)


def test_defaults_are_not_mentioned() -> None:
    usual = inception_definition(find_protocol("pytorch-fid"), 2048)
    assert complete_settings({"a.npz": file_of(**vars(usual))}, Settings(), True) == (
        Settings(),
        "",
    )
    assert complete_settings({}, Settings(), True) == (Settings(), "")


def test_cmmds_network_has_its_published_name() -> None:
    config, line = complete_settings({"a.npz": file_of(extractor=CMMD_EXTRACTOR)}, Settings(), True)
    assert (config.network.extractor, line) == ("clip", "settings taken from a.npz: extractor clip")
    assert (
        complete_settings({"a.npz": file_of(extractor="dinov2:vits14")}, Settings(dims=64), True)[1]
        == ""
    )


@pytest.mark.parametrize(
    ("name", "published"),
    [
        *((name, True) for name in ("torchvision:resnet18:layer2.1", "dinov2:vitl14")),
        *((name, False) for name in ("timm:hf_hub:some/one", "os:system", "mine.py:network@0123")),
    ],
)
def test_names_of_published_networks(name: str, published: bool) -> None:
    assert is_published(name) == published


def bare_file(dims: int) -> Statistics:
    """Return statistics as of another tool, without a definition."""
    return Statistics.of(np.zeros(dims), np.eye(dims))


def test_only_settings_that_files_agree_on_are_adopted() -> None:
    files = {"a": file_of(), "b": file_of(resize=find_protocol("clean").resize)}
    config, line = complete_settings(files, Settings(), True)
    assert (config.dims, config.protocol, line) == (
        64,
        None,
        "settings taken from a and b: dims 64",
    )
    assert complete_settings({"a": bare_file(64)}, Settings(), True)[0].dims == 64, (
        "the features are taken to be Inception's"
    )
    for dims in (1000, 2048):
        assert complete_settings({"a": bare_file(dims)}, Settings(), True) == (Settings(), "")
    files = {"a": file_of(), "b": file_of(dims=192)}
    settings, _ = complete_settings(files, Settings(), True)
    sampling = settings.sampling()
    needs = set_needs(settings, REAL)
    sets = {
        SetPlan(a, 0, "statistics", (REAL,), 100, None, sampling, needs): b
        for a, b in files.items()
    }
    with pytest.raises(
        InputError, match=r"b has features of 192 .*, but a has 64; statistics of different"
    ):
        check_agreement(sets, settings, {})
