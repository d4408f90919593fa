"""Published values: the table, and where an FID lies among them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

import pytest

from fidtool.features.protocol import PROTOCOLS
from fidtool.references.catalogue import REFERENCES
from fidtool.references.published import PublishedValue, published_values
from fidtool.result.evaluation import Evaluation
from fidtool.result.verify import verify
from fidtool.settings.presets import PRESETS
from support.command_line import Run
from support.documents import checked
from unit.test_comparability import ADM, definition, result

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


def of_fid(fid: float, **changes: object) -> Evaluation:
    """Return a result that is comparable with the values of adm:imagenet256 but for ``changes``."""
    evaluation = result(**changes)  # type: ignore[arg-type]
    (comparison,) = evaluation.results
    return replace(evaluation, results=(replace(comparison, metrics={"fid": fid}),))


OF_ADM = published_values(ADM)
LOWEST, HIGHEST = OF_ADM[0], OF_ADM[-1]
UNKNOWN_FORMAT = {"of_fake": {"formats": None}}


@pytest.mark.parametrize(
    ("fid", "place"),
    [
        (
            LOWEST.fid / 2,
            f"is below all published values, the lowest of which is {LOWEST.label} "
            f"({LOWEST.fid:.2f})",
        ),
        (
            HIGHEST.fid + 1,
            f"is above all published values, the highest of which is {HIGHEST.label} "
            f"({HIGHEST.fid:.2f})",
        ),
        (LOWEST.fid, f"lies between {LOWEST.label} ({LOWEST.fid:.2f}) and {OF_ADM[1].label} "),
        (2.284, "lies between DiT-XL/2, cfg 1.5 (2.27) and MAR-B, cfg 2.9 (2.31)"),
        (8.5, "lies between SiT-XL/2, 1400 epochs, no guidance (8.30) and DiT-XL/2, 400K steps, "),
    ],
)
def test_where_an_fid_lies(fid: float, place: str) -> None:
    (verdict,) = verify(of_fid(fid))
    standing = verdict.standing
    assert verdict.comparable
    assert standing is not None
    assert standing.line.startswith(f"FID {fid:.4f} {place}")
    assert standing.line.endswith(f": see `fidtool published {ADM}`")


def test_a_doubt_is_said_with_it() -> None:
    (verdict,) = verify(of_fid(2.284, **UNKNOWN_FORMAT))
    assert verdict.comparable is None
    assert verdict.standing is not None
    assert verdict.standing.line.startswith("as far as is known, FID 2.2840 lies between ")
    document = verdict.to_dict()
    assert checked({"schema": 1, "verdicts": [document]})
    assert [*document["standing"]] == ["reference", "fid", "certain", "line"]


@pytest.mark.parametrize(
    "evaluation",
    [
        of_fid(2.284, fakes=10_000),
        of_fid(2.284, protocol="pytorch-fid"),
        of_fid(2.284, real="real/", count=1_281_167),
        of_fid(2.284, network={"extractor": "dinov2:vitb14", "dims": 768}, protocol="torch"),
        replace(
            of_fid(2.284, config={"preset": "pytorch-fid", "allow_mismatch": True}, settings={}),
            definitions={"features": definition("pytorch-fid")},
        ),
    ],
    ids=["fewer images", "another protocol", "a folder", "another network", "allowed mismatch"],
)
def test_others_have_no_place(evaluation: Evaluation) -> None:
    (verdict,) = verify(evaluation)
    assert verdict.standing is None


def test_the_list(here: Run) -> None:
    headings, *rows = here("published").stdout.splitlines()
    assert headings.split() == ["reference", "protocol", "values", "lowest", "highest"]
    listed = dict.fromkeys(value.reference for value in VALUES)
    assert [row.split()[0] for row in rows][: len(listed)] == [*listed]
    assert f"Read on GitHub until {max(value.read for value in VALUES)}: " in " ".join(rows)


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


def test_an_unknown_name(here: Run) -> None:
    refused = here("published", "adm:imagnet256")
    assert (refused.status, refused.stdout) == (2, "")
    assert "did you mean adm:imagenet256" in refused.error
    assert refused.error.endswith("from those of `fidtool published`")
