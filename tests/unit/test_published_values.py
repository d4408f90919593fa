"""The table of published values, and ``fidtool published``."""

from __future__ import annotations

import re
from datetime import date

import pytest

from fidtool.features.protocol import PROTOCOLS
from fidtool.references.catalogue import REFERENCES
from fidtool.references.published import published_values
from fidtool.settings.presets import PRESETS
from support.command_line import Run

VALUES = published_values()
OTHER_SETS = {"imagenet256-val", "coco-30k"}
"""Data sets with values, but without a reference."""
PLACES = re.compile(r"[\w./-]+\.(md|py|sh):\d+(,\d+)*( [\w./-]+\.(md|py|sh):\d+(,\d+)*)*")
"""Files, each with the numbers of lines."""


def test_each_value_has_a_source() -> None:
    for value in VALUES:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", value.repository), value
        assert re.fullmatch(r"[0-9a-f]{40}", value.commit), value
        assert PLACES.fullmatch(value.lines), value
        assert 2014 <= value.year <= date.fromisoformat(value.read).year, value


def test_each_value_is_plausible() -> None:
    for value in VALUES:
        assert value.model, value
        assert 0 < value.fid < 500, value
        assert value.inception_score is None or 1 <= value.inception_score <= 1000, value
        assert value.precision is None or 0 < value.precision < 1, value
        assert value.recall is None or 0 < value.recall < 1, value


def test_each_value_has_a_reference_and_its_protocol() -> None:
    for value in VALUES:
        if value.reference in REFERENCES:
            reference = REFERENCES[value.reference]
            assert value.protocol == reference.protocol, value
            assert value.images in (None, reference.fakes), value
        elif value.reference in OTHER_SETS:
            assert value.protocol in ("", *PROTOCOLS), value
        else:
            preset = PRESETS[value.reference.partition(":")[0]]
            assert value.protocol == preset.settings["protocol"], value


def test_no_value_is_there_twice() -> None:
    found = [(value.reference, value.label, value.repository) for value in VALUES]
    assert len({*found}) == len(found)


ADM = "adm:imagenet256"
OF_ADM = published_values(ADM)


def test_the_list(here: Run) -> None:
    headings, *rows = here("published").stdout.splitlines()
    assert headings.split() == ["reference", "protocol", "values", "lowest", "highest"]
    listed = dict.fromkeys(value.reference for value in VALUES)
    assert [row.split()[0] for row in rows][: len(listed)] == [*listed]
    assert f"Sources on GitHub, last read on {max(value.read for value in VALUES)}: " in " ".join(
        rows
    )


def test_the_values_of_a_reference(here: Run) -> None:
    title, headings, *rows = here("published", "ADM:ImageNet-256").stdout.splitlines()
    assert title == f"{ADM}: {len(OF_ADM)} published values"
    assert headings.split()[:3] == ["FID", "model", "guidance"]
    of_values = rows[: len(OF_ADM)]
    assert [float(row.split()[0]) for row in of_values] == sorted(
        round(value.fid, 2) for value in OF_ADM
    )
    for value, row in zip(OF_ADM, of_values, strict=True):
        assert row.endswith(f"{value.year}  {value.protocol}  {value.repository} {value.lines}")
        assert f"  {value.model}  " in row
    sources = " ".join(rows[len(OF_ADM) :])
    assert all(value.repository in sources for value in OF_ADM)


def test_columns_of_which_nothing_is_known_are_left_out(here: Run) -> None:
    _, headings, row, _ = here("published", "edm:cifar10").stdout.splitlines()
    assert headings.split() == ["FID", "model", "images", "year", "protocol", "read", "in"]
    assert "?" not in row


def test_a_project_and_json(here: Run) -> None:
    shown = here("published", "edm").stdout
    of_edm = published_values("edm")
    assert {value.reference.partition(":")[0] for value in of_edm} == {"edm"}
    assert all(f"\n{name}: " in f"\n{shown}" for name in {value.reference for value in of_edm})
    (*_, last) = here("published", "edm", "--json").json["published"]
    assert last == vars(of_edm[-1])


@pytest.mark.parametrize(
    ("name", "references"),
    [
        ("cifar10", ["clean-fid:cifar10-32-test", "edm:cifar10", "stylegan:cifar10"]),
        ("imagenet-512", ["adm:imagenet512", "stylegan:imagenet512"]),
        ("t2ibenchmark:coco-30k", ["coco-30k"]),
        ("COCO", ["coco-30k"]),
        ("edm:ffhq", ["edm:ffhq"]),  # not the others with this word
    ],
)
def test_a_part_of_names(name: str, references: list[str]) -> None:
    assert [*dict.fromkeys(value.reference for value in published_values(name))] == references


def test_an_unknown_name(here: Run) -> None:
    refused = here("published", "adm:imagnet256")
    assert (refused.status, refused.stdout) == (2, "")
    assert "did you mean adm:imagenet256" in refused.error
    assert refused.error.endswith("from the names that `fidtool published` lists")
