"""Everything that looking at the images of one FAKE and of REAL says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fidtool.diagnose.copies import Copies, find_copies
from fidtool.diagnose.differences import pair_findings
from fidtool.diagnose.duplicates import (
    NOTABLE,
    Duplicates,
    SharedCopies,
    duplicates_of,
    duplicates_warning,
    notable,
    shared_warning,
    shared_with,
)
from fidtool.diagnose.findings import Finding, set_findings
from fidtool.statistics.pictures import Pictures


@dataclass(frozen=True)
class Seen:
    """What there is to say of one set's images.

    Attributes:
        path: the set's, as given.
        pictures: its images.
        copies: which of them are the same picture.
        duplicates: the same in numbers.
        findings: faulty pictures.
    """

    path: str
    pictures: Pictures
    copies: Copies
    duplicates: Duplicates
    findings: list[Finding]


def look(path: str, pictures: Pictures | None) -> Seen | None:
    """Looks at a set's images; None where there are no records of them, as in another tool's statistics."""
    if pictures is None:
        return None
    copies = find_copies(pictures.records)
    return Seen(path, pictures, copies, duplicates_of(pictures, copies), set_findings(pictures))


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with the images of a comparison.

    Attributes:
        real, fake: the copies in each set; None where its images were not looked at.
        shared: images of FAKE that are REAL's; None where one of the sets was not looked at, or both are the same.
        fid_without_copies: the FID of FAKE's different pictures alone; None where there are few copies, or their
            features are not at hand.
        findings: faulty pictures in FAKE, in REAL, and what tells the two apart.
        lines: what of all this must be read: sentences.
    """

    real: Duplicates | None = None
    fake: Duplicates | None = None
    shared: SharedCopies | None = None
    fid_without_copies: float | None = None
    findings: tuple[Finding, ...] = ()
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON has it; its lines are among the warnings."""
        return {
            "duplicates": {
                "real": None if self.real is None else self.real.to_dict(),
                "fake": None if self.fake is None else self.fake.to_dict(),
            },
            "shared": None if self.shared is None else asdict(self.shared),
            "fid_without_copies": self.fid_without_copies,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def has_notable_copies(fake: Seen, real: Seen | None) -> bool:
    """Whether FAKE has more copies than such pictures have by nature."""
    return notable(fake.duplicates, None if real is None else real.duplicates)


def diagnosis_of(real: Seen | None, fake: Seen | None, fids: tuple[float, float] | None) -> Diagnosis:
    """The diagnosis of a comparison.

    Args:
        real, fake: what was seen, the same object where both are the same set.
        fids: the FID with FAKE's copies and without them, where both are known.
    """
    copies, fake_copies = (None if seen is None else seen.duplicates for seen in (real, fake))
    findings, lines = ([], []) if real is None else (list(real.findings), set_lines(real))
    shared = None
    if fake is not None and fake is not real:
        if has_notable_copies(fake, real):
            lines.append(duplicates_warning(fake.path, fake.duplicates, True, fids))
        findings = [*fake.findings, *findings]
        lines += _grave(fake.path, fake.findings)
    if real is not None and fake is not None and fake is not real:
        shared = shared_with(real.pictures, fake.pictures)
        if shared.count:
            lines.append(shared_warning(real.path, fake.path, shared, len(fake.pictures)))
        between = pair_findings(real.pictures, fake.pictures)
        findings += between
        lines += _grave(f"{fake.path} against {real.path}", between)
    without = None if fids is None else fids[1]
    return Diagnosis(copies, fake_copies, shared, without, tuple(findings), tuple(lines))


def set_lines(seen: Seen) -> list[str]:
    """What must be read of a set that nobody generated, or that nothing is known of."""
    many = seen.duplicates.exact >= NOTABLE * len(seen.pictures)
    copies = [duplicates_warning(seen.path, seen.duplicates, False, None)] if many else []
    return copies + _grave(seen.path, seen.findings)


def _grave(where: str, findings: list[Finding]) -> list[str]:
    return [f"{where}: {finding.message}" for finding in findings if finding.severity != "low"]
