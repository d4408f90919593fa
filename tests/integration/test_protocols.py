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


def test_the_table_is_complete(here: Run) -> None:
    printed = here("protocols").stdout
    assert max(map(len, printed.splitlines())) <= 110
    table, _, notes = printed.partition("\n\n")
    head, *rows = re.split(r"\n-[- ]+\n", table)
    starts = [head.index(name) for name in ("protocol", "what it does", "equals", "used by")]
    columns = [slice(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    cells = [[" ".join(" ".join(line[part] for line in row.splitlines()).split()) for part in columns] for row in rows]
    for protocol, (name, arithmetic, equals, used_by) in zip(PROTOCOLS.values(), cells, strict=True):
        assert [protocol.name, *protocol.other_names] == [word for word in name.split() if word != "(default)"]
        assert arithmetic.startswith(f"{protocol.resize} to 299 x 299 (x - {protocol.offset:g}) / {protocol.scale:g} ")
        assert arithmetic.endswith("divided by n - 1" if protocol.ddof else "divided by n")
        assert (equals, used_by) == (protocol.equals, protocol.used_by)
    flat = " ".join(notes.split())
    for text in ("Mixed_6d.branch1x1", "chunks of 5,000", "k = 3", "EDM2's FD-DINOv2", "divided by n "):
        assert text in flat
