"""Outcome of a command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.documents import checked


def changed(arguments: Sequence[object], *options: object) -> list[object]:
    """Return ``arguments`` with these options and values, which replace those of the same
    options.
    """
    found = list(arguments)
    for name, value in zip(options[::2], options[1::2], strict=True):
        if name in found:
            found[found.index(name) + 1] = value
        else:
            found += [name, value]
    return found


def frechet(result: Mapping[str, Any]) -> float:
    """Return the Fréchet distance of the extractor's features in one of the JSON's ``results``, for
    any network.
    """
    (value,) = (
        value
        for name, value in result["metrics"].items()
        if re.match(r"fi?d(?!_infinity)(_|$)", name)
    )
    return float(value)


def bars_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error bars of the first network in one of the JSON's ``results``."""
    found: dict[str, Any] = next(iter(result["uncertainties"].values()))
    return found


def assert_rendered(text: str) -> None:
    """Check that a text, a JSON document or a page has no setting as `fidtool.errors.option`
    returns it.
    """
    assert not re.search(r"(\x01|\\u0001|\\x01)[\w.()]+(\x02|\\u0002|\\x02)", text), text


def messages(result: Mapping[str, Any]) -> list[str]:
    """Return the warnings about a FAKE, an entry of the JSON's ``results``, as sentences."""
    return [warning["message"] for warning in result["warnings"]]


@dataclass
class Outcome:
    """Exit status and output of a command."""

    status: int
    stdout: str
    stderr: str

    def __post_init__(self) -> None:
        """Whatever a test runs: no setting is left as `fidtool.errors.option` returns it."""
        assert_rendered(self.stdout + self.stderr)

    @property
    def json(self) -> dict[str, Any]:
        """The JSON document in stdout, which must contain nothing else and match its schema."""
        return checked(json.loads(self.stdout))

    @property
    def fid(self) -> float:
        """The only result's Fréchet distance, for any network."""
        (result,) = self.json["results"]
        return frechet(result)

    @property
    def metrics(self) -> dict[str, float]:
        """The only result's metric values."""
        assert self.status == 0, self.stderr
        (result,) = self.json["results"]
        found: dict[str, float] = result["metrics"]
        return found

    @property
    def not_computed(self) -> dict[str, str]:
        """The reasons why metrics were not computed, by their names."""
        return {each["metric"]: each["reason"] for each in self.json["not_computed"]}

    @property
    def error(self) -> str:
        """The error line, which must be the only one, the last line, and without a traceback."""
        assert "Traceback" not in self.stderr, self.stderr
        *news, error = self.stderr.splitlines()
        assert error.startswith("error: "), self.stderr
        assert not [line for line in news if line.startswith("error")], self.stderr
        return error


Run = Callable[..., Outcome]
