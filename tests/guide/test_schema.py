"""The schema of the JSON documents, and the guide's list of their keys."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from support.documents import SCHEMA_FILE, described_keys, schema
from support.places import ROOT

TOPIC = ROOT / "fidtool" / "guide" / "json.md"
MARK = "<!-- Made from schema.json by: pytest tests/guide --write-goldens -->\n"


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(schema())


def test_guide_describes_every_key(pytestconfig: pytest.Config) -> None:
    """The list is generated from the schema with ``--write-goldens``."""
    text = TOPIC.read_text("utf-8")
    above, mark, _ = text.partition(MARK)
    assert mark
    wanted = f"{above}{MARK}\n{described_keys()}\n"
    if pytestconfig.getoption("--write-goldens"):
        TOPIC.write_text(wanted, "utf-8")
    assert TOPIC.read_text("utf-8") == wanted, f"{SCHEMA_FILE.name} and {TOPIC.name} differ: pass --write-goldens"
