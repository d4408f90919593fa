"""The schema of the JSON documents, and the guide's list of their keys."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from support.documents import SCHEMA_FILE, described_keys, schema
from support.places import ROOT
from support.schema import exit_code, generated

TOPIC = ROOT / "fidtool" / "guide" / "json.md"
MARK = "<!-- Made from schema.json by: pytest tests/guide --write-goldens -->\n"


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(schema())


def test_definitions_are_those_of_the_dataclasses(pytestconfig: pytest.Config) -> None:
    """They are generated from the fields and docstrings with ``--write-goldens``."""
    whole = json.loads(SCHEMA_FILE.read_text("utf-8"))
    wanted = whole | {"$defs": {**whole["$defs"], **generated()}}
    wanted["$defs"]["exit"]["properties"]["code"] = exit_code()
    if pytestconfig.getoption("--write-goldens"):
        SCHEMA_FILE.write_text(json.dumps(wanted, indent=1) + "\n", "utf-8")
        schema.cache_clear()
    assert json.loads(SCHEMA_FILE.read_text("utf-8")) == wanted, "pass --write-goldens"


def test_guide_describes_every_key(pytestconfig: pytest.Config) -> None:
    """The list is generated from the schema with ``--write-goldens``."""
    text = TOPIC.read_text("utf-8")
    above, mark, _ = text.partition(MARK)
    assert mark
    wanted = f"{above}{MARK}\n{described_keys()}\n"
    if pytestconfig.getoption("--write-goldens"):
        TOPIC.write_text(wanted, "utf-8")
    assert TOPIC.read_text("utf-8") == wanted, (
        f"{SCHEMA_FILE.name} and {TOPIC.name} differ: pass --write-goldens"
    )
