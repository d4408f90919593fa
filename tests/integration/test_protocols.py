"""``fidtool protocols``, and the name of the protocol in the JSON."""

from __future__ import annotations

from pathlib import Path

from support.command_line import Run
from support.pictures import make_pictures


def test_the_json_has_the_primary_name(here: Run, tmp_path: Path) -> None:
    """edm and adm are aliases of tensorflow."""
    make_pictures(tmp_path / "real", 3)
    assert (
        here("stats", "real", "--dims", 64, "--protocol", "edm", "-o", "real.npz", "--quiet").status
        == 0
    )
    outcome = here(
        "compute", "real.npz", "real", "--dims", 64, "--protocol", "adm", "--quiet", "--json"
    )
    assert outcome.json["protocol"]["name"] == "tensorflow"
    assert outcome.fid < 1e-6
    refused = here("compute", "real.npz", "real", "--dims", 64, "--protocol", "stylegan", "--quiet")
    assert refused.status == 2
    assert "ddof 0 against 1): choose --protocol tensorflow" in refused.error
