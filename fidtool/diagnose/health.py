"""What a set of images is made of, and all that is wrong with it: what ``fidtool check`` says of a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.diagnosis import Seen, beyond_nature, has_notable_copies
from fidtool.diagnose.duplicates import Duplicates, duplicates_warning
from fidtool.diagnose.findings import Finding, brightness, property_findings
from fidtool.redaction import without_secrets
from fidtool.sources.census import PassedOver
from fidtool.sources.contents import BadFile

SCHEMA = 1
"""Version of the checkup's JSON."""
_KINDS = 3
"""So many formats, modes or sizes are named."""


@dataclass(frozen=True)
class Health:
    """What a set of images is made of.

    Attributes:
        path: the set's, as given.
        images: number of images that can be read.
        formats, modes: how many have which, by Pillow's names, the most frequent first.
        sizes: how many have which ``WIDTHxHEIGHT``, the ten most frequent.
        aspect_ratios: the smallest, the median and the largest width over height.
        jpeg_quality: the same of the JPEGs' qualities, 1 to 100; None where there are none.
        brightness: mean and standard deviation of the images' mean brightness, 0 to 255.
        histogram: shares of the pixel values 0..15, 16..31, ..., 240..255.
        grayscale: share of the images that are.
        unreadable: files that cannot be read.
        duplicates: the copies.
        findings: what is wrong, the gravest first.
        passed_over: what the source holds beside the images; None of a statistics file.
    """

    path: str
    images: int
    formats: dict[str, int]
    modes: dict[str, int]
    sizes: dict[str, int]
    aspect_ratios: tuple[float, float, float]
    jpeg_quality: tuple[int, int, int] | None
    brightness: tuple[float, float]
    histogram: tuple[float, ...]
    grayscale: float
    unreadable: tuple[BadFile, ...]
    duplicates: Duplicates
    findings: tuple[Finding, ...]
    passed_over: PassedOver | None = None

    def to_dict(self) -> dict[str, Any]:
        """The set as JSON has it."""
        return asdict(self) | {
            "duplicates": self.duplicates.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "passed_over": None if self.passed_over is None else self.passed_over.to_dict(),
        }

    def summary(self) -> str:
        """What it is made of, in a line."""
        kinds = [_kinds(self.formats), _kinds(self.modes), _kinds(self.sizes, " pixels")]
        if self.passed_over is not None and self.passed_over.words:
            kinds.append(f"passed over: {self.passed_over.words}")
        return f"{self.path}: {self.images} images, {'; '.join(kinds)}"


def _kinds(counts: dict[str, int], unit: str = "") -> str:
    if len(counts) == 1:
        return f"{next(iter(counts))}{unit}"
    named = ", ".join(f"{number} {name}" for name, number in list(counts.items())[:_KINDS])
    return named + (unit if len(counts) <= _KINDS else f"{unit} and others")


@dataclass(frozen=True)
class Checkup:
    """What a look at a set said.

    Attributes:
        images: the set.
        against: the other one, REAL; None where there was none.
        between: what tells the two apart, and images of REAL in the set.
        strict: findings are a failure.
    """

    images: Health
    against: Health | None
    between: tuple[Finding, ...]
    strict: bool

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings, each with the path of the set that it is about; REAL's own come last."""
        found = [(self.images.path, finding) for finding in self.images.findings]
        if self.against is not None:
            path = f"{self.images.path} against {self.against.path}"
            found += [(path, finding) for finding in self.between]
            found += [(self.against.path, finding) for finding in self.against.findings]
        return found

    @property
    def exit_code(self) -> int:
        """The exit policy: 3 where findings are a failure and there is one that is not REAL's own, else 0."""
        return 3 if self.strict and self._failures else 0

    @property
    def _failures(self) -> int:
        return len(self.images.findings) + len(self.between)

    @property
    def exit_reason(self) -> str:
        """Why the exit code is what it is."""
        number = self._failures
        return f"gate missed: {number} finding{'' if number == 1 else 's'}" if self.exit_code else "done"

    def to_dict(self) -> dict[str, Any]:
        """The checkup as JSON has it."""
        found = {
            "schema": SCHEMA,
            "images": self.images.to_dict(),
            "against": None if self.against is None else self.against.to_dict(),
            "between": [finding.to_dict() for finding in self.between],
            "exit": {"code": self.exit_code, "reason": self.exit_reason},
        }
        return without_secrets(found)


def health_of(seen: Seen, unreadable: Sequence[BadFile], other: Seen | None, generated: bool) -> Health:
    """Looks at a set of at least one image.

    Args:
        seen: the set.
        unreadable: what is no image in it.
        other: another set of such pictures; what they have in common is their nature and no finding.
        generated: seeds may be at fault.
    """
    records = seen.pictures.records
    sizes = np.char.add(np.char.add(records["width"].astype("U"), "x"), records["height"].astype("U"))
    quality = records["quality"][records["quality"] > 0]
    light = brightness(records)
    bins = records["bins"].sum(axis=0, dtype=np.int64)
    return Health(
        path=seen.path,
        images=len(seen.pictures),
        formats=_counts(records["format"].astype("U"), None),
        modes=_counts(records["mode"].astype("U"), None),
        sizes=_counts(sizes, 10),
        aspect_ratios=_spread(records["width"] / records["height"]),
        jpeg_quality=_qualities(quality),
        brightness=(float(light.mean()), float(light.std())),
        histogram=tuple((bins / bins.sum()).tolist()),
        grayscale=float((records["gray"] == 1).mean()),
        unreadable=tuple(unreadable),
        duplicates=seen.duplicates,
        findings=tuple(_all_findings(seen, unreadable, other, generated)),
        passed_over=seen.passed_over,
    )


def _counts(values: NDArray[np.str_], most: int | None) -> dict[str, int]:
    kinds, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return {str(kinds[place]) or "unknown": int(counts[place]) for place in order}


def _spread(values: NDArray[Any]) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def _qualities(quality: NDArray[np.uint8]) -> tuple[int, int, int] | None:
    if not len(quality):
        return None
    least, median, most = map(round, _spread(quality))
    return least, median, most


def _all_findings(seen: Seen, unreadable: Sequence[BadFile], other: Seen | None, generated: bool) -> list[Finding]:
    found = []
    if unreadable:
        first = unreadable[0]
        found.append(
            Finding(
                "unreadable",
                "high",
                len(unreadable),
                first.file,
                f"1 file cannot be read: {first.reason}; mend or remove it"
                if len(unreadable) == 1
                else f"{len(unreadable)} files cannot be read; mend or remove them; the first: {first.reason}",
            )
        )
    if has_notable_copies(seen, other):
        words = duplicates_warning(seen.path, seen.duplicates, generated, None).removeprefix(f"{seen.path}: ")
        found.append(Finding("copies", "high", seen.duplicates.copies, seen.duplicates.examples[0][0], words))
    return [*found, *beyond_nature(seen, other), *property_findings(seen.pictures)]
