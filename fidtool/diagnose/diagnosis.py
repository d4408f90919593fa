"""What there is to say of the images of a set, and of a FAKE beside REAL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.copies import Copies, find_copies
from fidtool.diagnose.differences import LOSSY, pair_findings
from fidtool.diagnose.duplicates import (
    FEWEST,
    NOTABLE,
    CopiesEffect,
    Duplicates,
    SharedCopies,
    duplicates_of,
    duplicates_warning,
    notable,
    shared_warning,
    shared_with,
)
from fidtool.diagnose.findings import PASSED_OVER, Finding, beyond, brightness, property_findings, set_findings
from fidtool.labels import Labels
from fidtool.redaction import without_secrets
from fidtool.sources.census import PassedOver
from fidtool.sources.contents import BadFile
from fidtool.statistics.pictures import Pictures

CHECKUP_SCHEMA = 1
"""Version of the JSON of a `Checkup`."""
_KINDS = 3
"""So many formats, modes or sizes are named."""
_HALF = 0.5
"""So many near copies are not in the nature of any pictures."""


@dataclass(frozen=True)
class Seen:
    """What there is to say of one set's images.

    Attributes:
        path: the set's, as given.
        pictures: its images.
        copies: which of them are the same picture.
        duplicates: the same in numbers.
        findings: faulty pictures, and images that were passed over.
        passed_over: what the source holds beside its images; None where nobody knows.
    """

    path: str
    pictures: Pictures
    copies: Copies
    duplicates: Duplicates
    findings: list[Finding]
    passed_over: PassedOver | None = None


def look(path: str, pictures: Pictures | None, passed_over: PassedOver | None = None) -> Seen | None:
    """Looks at a set's images; None where there are no records of them, as in another tool's statistics.

    Args:
        path: the set's, as given.
        pictures: its images.
        passed_over: see `Seen`.
    """
    if pictures is None:
        return None
    copies = find_copies(pictures.records)
    findings = set_findings(pictures, passed_over)
    return Seen(path, pictures, copies, duplicates_of(pictures, copies), findings, passed_over)


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with the images of a comparison.

    Attributes:
        real, fake: the copies in each set; None where its images were not looked at.
        shared: images of FAKE that are REAL's; None where one of the sets was not looked at, or both are the same.
        distance_without_copies: the Fréchet distance of FAKE's different pictures alone; None where there are few
            copies, or their features are not at hand.
        findings: faulty pictures in FAKE, and what tells it from REAL.
        real_findings: faulty pictures in REAL.
        lines: what of all this must be read: sentences.
    """

    real: Duplicates | None = None
    fake: Duplicates | None = None
    shared: SharedCopies | None = None
    distance_without_copies: float | None = None
    findings: tuple[Finding, ...] = ()
    real_findings: tuple[Finding, ...] = ()
    lines: tuple[str, ...] = ()

    def to_dict(self, labels: Labels) -> dict[str, Any]:
        """The diagnosis as JSON has it, with what its distance is called; its lines are among the warnings."""
        return {
            "duplicates": {
                "real": None if self.real is None else self.real.to_dict(),
                "fake": None if self.fake is None else self.fake.to_dict(),
            },
            "shared": None if self.shared is None else asdict(self.shared),
            labels.key("fid_without_copies"): self.distance_without_copies,
            "findings": [
                {"set": name, **finding.to_dict()}
                for name, findings in (("fake", self.findings), ("real", self.real_findings))
                for finding in findings
            ],
        }


def has_notable_copies(fake: Seen, real: Seen | None) -> bool:
    """Whether FAKE has more copies than such pictures have by nature."""
    return notable(fake.duplicates, None if real is None else real.duplicates)


def diagnosis_of(real: Seen | None, fake: Seen | None, effect: CopiesEffect | None, gate: float | None) -> Diagnosis:
    """The diagnosis of a comparison.

    Args:
        real, fake: what was seen, the same object where both are the same set.
        effect: what FAKE's copies do to its distance, where that is known.
        gate: a larger share of copies in FAKE must be explained, whatever such pictures are by nature.
    """
    copies, fake_copies = (None if seen is None else seen.duplicates for seen in (real, fake))
    if fake is real:
        fake = None
    lines: list[str] = []
    findings: list[Finding] = []
    own: list[Finding] = []
    shared = None
    if real is not None:
        findings = beyond_nature(real, fake)
        lines += _copies_lines(real) + _grave(real.path, findings)
    if fake is not None:
        if has_notable_copies(fake, real) or (gate is not None and fake.duplicates.share > gate):
            lines.append(duplicates_warning(fake.path, fake.duplicates, True, effect))
        own = beyond_nature(fake, real)
        lines += _grave(fake.path, own)
    if real is not None and fake is not None:
        shared = shared_with(real.pictures, fake.pictures)
        if shared.count:
            lines.append(shared_warning(real.path, fake.path, shared, len(fake.pictures)))
        between = pair_findings(real.pictures, fake.pictures, own)
        own += between
        lines += _grave(f"{fake.path} against {real.path}", [each for each in between if each.code != LOSSY])
    without = None if effect is None else effect.without
    return Diagnosis(copies, fake_copies, shared, without, tuple(own), tuple(findings), tuple(lines))


def set_lines(seen: Seen) -> list[str]:
    """What must be read of a set that nobody generated, or that nothing is known of."""
    return _copies_lines(seen) + _grave(seen.path, seen.findings)


def _copies_lines(seen: Seen) -> list[str]:
    found = seen.duplicates
    lines = []
    if found.exact >= max(NOTABLE * found.images, FEWEST) or found.share >= _HALF:
        lines.append(duplicates_warning(seen.path, found, False, None))
    if not found.complete:
        lines.append(f"{seen.path}: only copies to the pixel were looked for: there are too many pictures for others")
    return lines


def beyond_nature(seen: Seen, other: Seen | None) -> list[Finding]:
    """A set's findings that are not in the nature of such pictures, as another set of them shows it."""
    if other is None:
        return list(seen.findings)
    return beyond(seen.findings, len(seen.pictures), other.findings, len(other.pictures))


def _grave(where: str, findings: list[Finding]) -> list[str]:
    # What was passed over is said of every set, also of one that nobody looks at.
    grave = [finding for finding in findings if finding.severity != "low" and finding.code != PASSED_OVER]
    return [f"{where}: {finding.message}" for finding in grave]


# --- what ``fidtool check`` says of a set ----------------------------------------------------------------------------


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
            "schema": CHECKUP_SCHEMA,
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
