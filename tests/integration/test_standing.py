"""A run on a named reference says where its FID lies among published values, also on its page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fidtool
from fidtool.references.catalogue import REFERENCES
from fidtool.references.published import published_values
from support.command_line import Run
from support.published import archive, publish, statistics

NAME = "edm:imagenet64"
OF_REAL = statistics(0)
VALUES = published_values(NAME)


@pytest.fixture(autouse=True)
def mirror(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror with the reference, and statistics of generated images whose FIDs are known."""
    publish(tmp_path / "mirror", REFERENCES[NAME].url, archive(**OF_REAL))
    address = (tmp_path / "mirror").as_uri()
    monkeypatch.setenv("FIDTOOL_REFERENCES_URL", address)
    environment["FIDTOOL_REFERENCES_URL"] = address
    for name, fid in (("low", 1.0), ("fake", 1.44), ("high", 9.0)):
        mu = OF_REAL["mu"].copy()
        mu[0] += np.sqrt(fid)
        np.savez(tmp_path / f"{name}.npz", mu=mu, sigma=OF_REAL["sigma"])


LINE = (
    "as far as is known, FID 1.4400 lies between EDM, 511 NFE (1.36) and DMD2, 1 step (1.51): see "
    f"`fidtool published {NAME}`"
)


def test_the_line(here: Run, tmp_path: Path) -> None:
    found = here("compute", NAME, "fake.npz", "--preset", "edm", "--json", "-q", "-o", "fid.json")
    said = [line for line in found.stderr.splitlines() if line.startswith("fake.npz: ")]
    assert said[0].startswith(
        "fake.npz: comparable with published values of edm, as far as is known"
    )
    assert said[1:] == [f"fake.npz: {LINE}"]
    assert found.json["run"]["notes"][-2:] == said
    verified = here("verify", "fid.json")
    assert f"fake.npz: {LINE}" in " ".join(verified.stdout.split())
    (verdict,) = here("verify", "fid.json", "--json").json["verdicts"]
    assert verdict["standing"] == {
        "reference": NAME,
        "fid": found.metrics["fid"],
        "certain": False,
        "line": LINE,
    }


def test_without_a_preset_there_is_no_verdict(here: Run) -> None:
    found = here("compute", NAME, "low.npz", "fake.npz", "high.npz")
    said = [line for line in found.stderr.splitlines() if "fidtool published" in line]
    lowest, highest = (f"{value.label} ({value.fid:.2f})" for value in (VALUES[0], VALUES[-1]))
    assert said == [
        "low.npz: as far as is known, FID 1.0000 is below all 4 published values known to "
        f"fidtool, the lowest of which is {lowest}: see `fidtool published {NAME}`",
        f"fake.npz: {LINE}",
        "high.npz: as far as is known, FID 9.0000 is above all 4 published values known to "
        f"fidtool, the highest of which is {highest}: see `fidtool published {NAME}`",
    ]


def test_what_is_not_comparable_has_no_place(here: Run, tmp_path: Path) -> None:
    few = replace(fidtool.read_statistics("fake.npz"), count=40)
    fidtool.write_statistics("few.npz", few)
    found = here("compute", NAME, "few.npz", "--json", "--report", "page.html")
    assert found.status == 0, found.stderr
    assert "published values" not in found.stderr
    assert 'id="published"' not in (tmp_path / "page.html").read_text()


def test_the_page(here: Run, tmp_path: Path) -> None:
    """The chart has the value of each FAKE among the nearest published ones, the lowest first."""
    found = here("compute", NAME, "fake.npz", "high.npz", "--report", "page.html", "-o", "fid.json")
    assert found.status == 0, found.stderr
    page = (tmp_path / "page.html").read_text()
    section = page[page.index('id="published"') :].partition("</section>")[0]
    rows = re.findall(
        r'<tr( class="own")?><th scope="row"><bdi>(.*?)</bdi></th>\s*'
        r'<td class="bar"><span style="width: (.*?)%"></span></td>\s*<td>(.*?)</td>',
        section,
    )
    expected = [(value.fid, value.label) for value in VALUES] + [
        (1.44, "fake.npz"),
        (9.0, "high.npz"),
    ]
    assert [(float(fid), label) for _, label, _, fid in rows] == sorted(expected)
    assert [label for own, label, _, _ in rows if own] == ["fake.npz", "high.npz"]
    widths = [float(width) for _, _, width, _ in rows]
    assert widths == sorted(widths)
    assert widths[-1] == 100
    assert f"fidtool published {NAME}" in section
    assert "As far as is known, these FIDs are comparable with the published values." in section
    assert "The nearest of" not in section, "it has all of them"
    assert f"4 values that papers print for {NAME}." in section
    assert here("report", "fid.json", "-o", "again.html").status == 0
    assert section in (tmp_path / "again.html").read_text()
