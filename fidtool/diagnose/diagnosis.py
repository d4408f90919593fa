"""Everything that looking at the images of one FAKE and of REAL says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
from fidtool.diagnose.findings import PASSED_OVER, Finding, beyond, set_findings
from fidtool.images.records import ImageRecords
from fidtool.labels import Labels
from fidtool.sources.census import PassedOver

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
    pictures: ImageRecords
    copies: Copies
    duplicates: Duplicates
    findings: list[Finding]
    passed_over: PassedOver | None = None


def look(path: str, pictures: ImageRecords | None, passed_over: PassedOver | None = None) -> Seen | None:
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
