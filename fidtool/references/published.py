"""Published values: what papers print for a reference, each with the file and line where it was
read.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fidtool.names import fold, unknown_name_error


@dataclass(frozen=True, kw_only=True)
class PublishedValue:
    """The FID of a model in a publication, as it was read in a public repository.

    Attributes:
        reference: the real images: the name of a `fidtool.references.catalogue.Reference`, or of a
            dataset of which there is none.
        protocol: the protocol; empty if it was not found there.
        model: the model, and what distinguishes it from the others.
        fid: the FID; the rFID of a tokenizer.
        inception_score: the Inception Score; this, ``precision`` and ``recall`` are None if they
            are not printed there.
        images: number of generated images; None if it was not found there.
        guidance: kind and scale of the guidance, ``none`` without; empty if it was not found there.
        year: year of the publication, which may quote an older one.
        repository: the repository on GitHub.
        commit: its commit.
        lines: its files, each with the numbers of its lines, first that of the FID.
        read: date on which it was read, as in ISO 8601.
    """

    reference: str
    protocol: str
    model: str
    fid: float
    inception_score: float | None
    precision: float | None
    recall: float | None
    images: int | None
    guidance: str
    year: int
    repository: str
    commit: str
    lines: str
    read: str

    @property
    def label(self) -> str:
        """The model with its guidance."""
        if self.guidance == "none":
            return f"{self.model}, no guidance"
        return f"{self.model}, {self.guidance}" if self.guidance else self.model


def published_values(reference: str | None = None) -> list[PublishedValue]:
    """Return the published values, by reference, the lowest FID first.

    Args:
        reference: name of a reference or dataset, or of the project before its colon; or else a
            part of names, such as ``cifar10``, or what is after the colon of another reference.
            None returns all. Case, hyphens and underscores do not matter.

    Raises:
        InputError: if there are none of this name.
    """
    values = _read_table()
    if reference is None:
        return values
    known = dict.fromkeys(value.reference for value in values)
    chosen = _match(reference, known)
    if not chosen:
        raise unknown_name_error(
            "reference of published values",
            reference,
            known,
            "the names that `fidtool published` lists",
        )
    return [value for value in values if value.reference in chosen]


def _match(reference: str, known: Iterable[str]) -> list[str]:
    """Return the names that are meant: exact ones, or else those that have it as a part."""
    wanted = fold(reference.rstrip(":"))
    folded = {name: fold(name) for name in known}
    exact = [name for name in folded if wanted in (folded[name], fold(name.partition(":")[0]))]
    if exact:
        return exact
    data = fold(reference.partition(":")[2])  # a reference whose values are those of its dataset
    return [name for name in folded if wanted in folded[name] or data == folded[name]]


@cache
def _read_table() -> list[PublishedValue]:
    text = files("fidtool.references").joinpath("published.tsv").read_text("utf-8")
    values = [_parse_row(row) for row in csv.DictReader(text.splitlines(), delimiter="\t")]
    return sorted(values, key=lambda value: (value.reference, value.fid))


def _parse_row(row: dict[str, str]) -> PublishedValue:
    return PublishedValue(
        reference=row["reference"],
        protocol=row["protocol"],
        model=row["model"],
        fid=float(row["fid"]),
        inception_score=_parse_number(row["inception_score"]),
        precision=_parse_number(row["precision"]),
        recall=_parse_number(row["recall"]),
        images=int(row["images"]) if row["images"] else None,
        guidance=row["guidance"],
        year=int(row["year"]),
        repository=row["repository"],
        commit=row["commit"],
        lines=row["lines"],
        read=row["read"],
    )


def _parse_number(text: str) -> float | None:
    return float(text) if text else None
