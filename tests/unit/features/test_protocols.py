"""Protocols by name: distinct definitions, and other names."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import fidtool
from fidtool import Network
from fidtool.features.catalogue import inception_definition
from fidtool.features.definition import Definition
from fidtool.features.protocol import PROTOCOLS, protocol_named

WEIGHTS = "ab" * 32


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
