"""``fidtool protocols``, and the name of the protocol in the JSON."""

from __future__ import annotations

import re
from pathlib import Path

from fidtool.features.protocol import PROTOCOLS
from support.command_line import Run
from support.pictures import make_pictures


def test_the_json_has_the_primary_name(here: Run, tmp_path: Path) -> None:
    """edm and adm are aliases of tensorflow."""
    make_pictures(tmp_path / "real", 3)
    assert here("stats", "real", "--dims", 64, "--protocol", "edm", "-o", "real.npz", "--quiet").status == 0
    outcome = here("compute", "real.npz", "real", "--dims", 64, "--protocol", "adm", "--quiet", "--json")
    assert outcome.json["protocol"]["name"] == "tensorflow"
    assert outcome.fid < 1e-6
    refused = here("compute", "real.npz", "real", "--dims", 64, "--protocol", "stylegan", "--quiet")
    assert refused.status == 2
    assert "ddof 0 against 1): choose --protocol tensorflow" in refused.error


def test_the_list_is_complete(here: Run) -> None:
    printed = here("protocols").stdout
    assert max(map(len, printed.splitlines())) <= 80
    listed, _, notes = printed.partition("\n\n")
    blocks = re.split(r"\n(?! )", listed)
    for protocol, block in zip(PROTOCOLS.values(), blocks, strict=True):
        name, method, equals, used_by = re.split(r"\n  (?:method|equals|used by) +", block)
        assert name.removesuffix(" (default)") == ", ".join([protocol.name, *protocol.other_names])
        arithmetic = f"{protocol.resize} to 299 x 299; (x - {protocol.offset:g}) / {protocol.scale:g}; covariance / "
        assert " ".join(method.split()) == arithmetic + ("(n - 1)" if protocol.ddof else "n")
        assert [" ".join(text.split()) for text in (equals, used_by)] == [protocol.equals, protocol.used_by]
    flat = " ".join(notes.split())
    for text in ("Mixed_6d.branch1x1", "chunks of 5,000", "k = 3", "EDM2's FD-DINOv2", "divided by n "):
        assert text in flat
