"""Protocols by name: their fingerprints never change, and they are distinct."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from torch import nn

import fidtool
from fidtool import Network
from fidtool.features.catalogue import inception_definition
from fidtool.features.definition import Definition
from fidtool.features.preparation import Resize
from fidtool.features.protocol import PROTOCOLS, protocol_named
from fidtool.features.resize import _KERNELS

WEIGHTS = "ab" * 32

FINGERPRINTS = {
    ("pytorch-fid", 64): "e8a4f523c7f60472ffb8b3030eac50968d92d55f20f501cd9a9eb21123c732bb",
    ("pytorch-fid", 2048): "93efa0bd29513d2ee33828ee9892ed635891af77857ca9085f1698f652034da8",
    ("tensorflow", 64): "9343a2aa2d9cc496be366376ea60dbe71bf7847220e96e6acd93768ef8c399a1",
    ("tensorflow", 2048): "e6a32360d16e088639b52a35037d823cdc9324ca97bea453adb5fc06dbe8ff10",
}
"""Fingerprints of the first version, which are in users' statistics files."""


@pytest.mark.parametrize(("name", "dims"), FINGERPRINTS)
def test_statistics_of_the_first_version_still_match(name: str, dims: int) -> None:
    assert inception_definition(protocol_named(name), dims, WEIGHTS).fingerprint == FINGERPRINTS[name, dims]


@pytest.mark.parametrize("name", ["edm", "adm"])
def test_edm_and_adm_are_the_tensorflow_protocol(name: str) -> None:
    assert protocol_named(name) is PROTOCOLS["tensorflow"]


def test_definitions_of_protocols_are_distinct() -> None:
    definitions = {name: inception_definition(protocol, 2048, WEIGHTS) for name, protocol in PROTOCOLS.items()}
    assert [definition.protocol_name for definition in definitions.values()] == list(PROTOCOLS)
    assert len({definition.fingerprint for definition in definitions.values()}) == 5
    for definition in definitions.values():
        assert Definition.from_json(definition.to_json()) == definition
    assert definitions["stylegan"].differences(definitions["tensorflow"]) == ["ddof 0 against 1"]


def test_the_error_about_an_unknown_name_lists_all() -> None:
    names = "pytorch-fid, tensorflow, clean, torchmetrics, stylegan, adm, edm"
    with pytest.raises(fidtool.InputError, match=f"unknown protocol 'vgg'; choose from {names}$"):
        protocol_named("vgg")


def test_equal_settings_of_any_type_have_one_fingerprint() -> None:
    plain = Network(nn.Identity(), input_size=8, mean=(0.0, 0.5, 0.5), std=(1.0, 1.0, 1.0))
    arrays = Network(
        nn.Identity(),
        input_size=np.int64(8),  # type: ignore[arg-type]
        mean=np.array([-0.0, 0.5, 0.5]),  # type: ignore[arg-type]
        std=[1, 1, 1],  # type: ignore[arg-type]
    )
    assert (arrays.normalization, type(arrays.input_size)) == (plain.normalization, int)


def test_protocols_can_be_distinguished() -> None:
    """A definition finds its protocol by these two properties."""
    assert len({(each.resize, each.ddof) for each in PROTOCOLS.values()}) == len(PROTOCOLS)


def test_every_pillow_resize_has_a_kernel() -> None:
    assert {name for name in get_args(Resize) if name.startswith("pillow-")} == set(_KERNELS)
