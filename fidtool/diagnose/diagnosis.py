"""What is wrong with the images of a set or of a comparison, put together from copies and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.copies import Copies, find_copies
from fidtool.diagnose.differences import LOSSY, pair_findings
from fidtool.diagnose.duplicates import (
    FEWEST_COPIES,
    NOTABLE_SHARE,
    CopiesEffect,
    Duplicates,
    SharedCopies,
    duplicates_of,
    duplicates_warning,
    has_notable_copies,
    shared_copies_of,
    shared_warning,
)
from fidtool.diagnose.findings import (
    PASSED_OVER,
    Finding,
    brightness,
    property_findings,
    set_findings,
    unusual_findings,
)
from fidtool.images.records import ImageRecords
from fidtool.labels import Labels
from fidtool.redaction import without_secrets
from fidtool.sources.census import PassedOver
from fidtool.sources.contents import BadFile

CHECKUP_SCHEMA = 1
"""Version of the JSON of a `Checkup`."""
_KINDS = 3
"""So many formats, modes or sizes are named."""
_HALF = 0.5
"""Images of any kind have fewer near copies than that."""


@dataclass(frozen=True)
class SetInspection:
    """What the records of a set's images show.

    Attributes:
        path: of the set, as given.
        pictures: its images.
        copies: which of them are the same picture.
        duplicates: the same in numbers.
        findings: faulty images, and images that were passed over.
        passed_over: what the source holds beside its images; None if unknown.
    """

    path: str
    pictures: ImageRecords
    copies: Copies
    duplicates: Duplicates
    findings: list[Finding]
    passed_over: PassedOver | None = None

    def has_notable_copies(self, other: SetInspection | None) -> bool:
        """Whether the set has more copies than images of its kind have anyway, as another set of them shows."""
        return has_notable_copies(self.duplicates, None if other is None else other.duplicates)

    def unusual_findings(self, other: SetInspection | None) -> list[Finding]:
        """The findings that images of its kind do not call for anyway, as another set of them shows."""
        if other is None:
            return list(self.findings)
        return unusual_findings(self.findings, len(self.pictures), other.findings, len(other.pictures))

    @property
    def warnings(self) -> list[str]:
        """Warnings about a set that was not generated, or of which that is unknown."""
        return self.copies_warnings + _warnings(self.path, self.findings)

    @property
    def copies_warnings(self) -> list[str]:
        """Those of them that are about copies."""
        found = self.duplicates
        warnings = []
        if found.exact >= max(NOTABLE_SHARE * found.images, FEWEST_COPIES) or found.share >= _HALF:
            warnings.append(duplicates_warning(self.path, found, False, None))
        if not found.complete:
            so_many = "there are too many pictures for others"
            warnings.append(f"{self.path}: only copies to the pixel were looked for: {so_many}")
        return warnings


def inspect_set(
    path: str, pictures: ImageRecords | None, passed_over: PassedOver | None = None
) -> SetInspection | None:
    """Inspects a set.

    Args:
        path: of the set, as given.
        pictures: its images; None where there are no records of them, as in another tool's statistics.
        passed_over: what the source holds beside its images; None if unknown.

    Returns:
        The inspection; None without records.
    """
    if pictures is None:
        return None
    copies = find_copies(pictures.records)
    findings = set_findings(pictures, passed_over)
    return SetInspection(path, pictures, copies, duplicates_of(pictures, copies), findings, passed_over)


def _warnings(where: str, findings: list[Finding]) -> list[str]:
    """Findings as warnings, without slight ones, and without images passed over: those are warned of in any case."""
    serious = [finding for finding in findings if finding.severity != "low" and finding.code != PASSED_OVER]
    return [f"{where}: {finding.message}" for finding in serious]


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with the images of a comparison.

    Attributes:
        real, fake: the copies in each set; None without records of its images.
        shared: images of FAKE that are REAL's; None without records of both sets, or if both are the same.
        distance_without_copies: the Fréchet distance of FAKE's different pictures alone; None if there are few copies,
            or without their features.
        findings: faulty images in FAKE, and what tells it from REAL.
        real_findings: faulty images in REAL.
        lines: the warnings that follow from all this.
    """

    real: Duplicates | None = None
    fake: Duplicates | None = None
    shared: SharedCopies | None = None
    distance_without_copies: float | None = None
    findings: tuple[Finding, ...] = ()
    real_findings: tuple[Finding, ...] = ()
    lines: tuple[str, ...] = ()

    def to_dict(self, labels: Labels) -> dict[str, Any]:
        """The diagnosis for the JSON, its distance named by ``labels``; its lines are among the warnings there."""
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


def diagnosis_of(
    real: SetInspection | None, fake: SetInspection | None, effect: CopiesEffect | None, gate: float | None
) -> Diagnosis:
    """The diagnosis of a comparison.

    Args:
        real, fake: the two sets, one object if they are the same set; None without records.
        effect: what FAKE's copies do to its distance; None if unknown.
        gate: a larger share of copies in FAKE gives a warning, however many images of its kind have anyway.
    """
    real_copies, fake_copies = (None if one is None else one.duplicates for one in (real, fake))
    if fake is real:
        fake = None
    lines: list[str] = []
    real_findings: list[Finding] = []
    findings: list[Finding] = []
    shared = None
    if real is not None:
        real_findings = real.unusual_findings(fake)
        lines += real.copies_warnings + _warnings(real.path, real_findings)
    if fake is not None:
        if fake.has_notable_copies(real) or (gate is not None and fake.duplicates.share > gate):
            lines.append(duplicates_warning(fake.path, fake.duplicates, True, effect))
        findings = fake.unusual_findings(real)
        lines += _warnings(fake.path, findings)
    if real is not None and fake is not None:
        shared = shared_copies_of(real.pictures, fake.pictures)
        if shared.count:
            lines.append(shared_warning(real.path, fake.path, shared, len(fake.pictures)))
        between = pair_findings(real.pictures, fake.pictures, findings)
        findings += between
        lines += _warnings(f"{fake.path} against {real.path}", [each for each in between if each.code != LOSSY])
    without = None if effect is None else effect.without
    return Diagnosis(real_copies, fake_copies, shared, without, tuple(findings), tuple(real_findings), tuple(lines))


# --- what ``fidtool check`` says of a set ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Health:
    """What a set of images is made of.

    Attributes:
        path: of the set, as given.
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
        findings: what is wrong: files, copies, then the others, the most severe first.
        passed_over: what the source holds beside its images; None for a statistics file.
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
        """The set for the JSON."""
        return asdict(self) | {
            "duplicates": self.duplicates.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "passed_over": None if self.passed_over is None else self.passed_over.to_dict(),
        }

    def summary(self) -> str:
        """What the set is made of, in a line."""
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
    """The outcome of `fidtool.check`.

    Attributes:
        images: the set.
        against: the other set, REAL; None without one.
        between: what tells the two apart, and images of REAL in the set.
        strict: whether findings are a failure.
    """

    images: Health
    against: Health | None
    between: tuple[Finding, ...]
    strict: bool

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings, each with the path of the set that it is about; those about REAL alone come last."""
        found = [(self.images.path, finding) for finding in self.images.findings]
        if self.against is not None:
            path = f"{self.images.path} against {self.against.path}"
            found += [(path, finding) for finding in self.between]
            found += [(self.against.path, finding) for finding in self.against.findings]
        return found

    @property
    def exit_code(self) -> int:
        """The exit policy: 3 if findings are a failure and there is one that is not about REAL alone, else 0."""
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
        """The checkup for the JSON."""
        found = {
            "schema": CHECKUP_SCHEMA,
            "images": self.images.to_dict(),
            "against": None if self.against is None else self.against.to_dict(),
            "between": [finding.to_dict() for finding in self.between],
            "exit": {"code": self.exit_code, "reason": self.exit_reason},
        }
        return without_secrets(found)


def health_of(
    inspection: SetInspection, unreadable: Sequence[BadFile], other: SetInspection | None, generated: bool
) -> Health:
    """What a set of at least one image is made of.

    Args:
        inspection: of the set.
        unreadable: its files that cannot be read.
        other: another set of images of its kind; what they have in common is no finding.
        generated: whether the set is FAKE, so that its copies may be the fault of seeds.
    """
    pictures = inspection.pictures
    records = pictures.records
    sizes = np.char.add(np.char.add(records["width"].astype("U"), "x"), records["height"].astype("U"))
    light = brightness(records)
    bins = records["bins"].sum(axis=0, dtype=np.int64)
    return Health(
        path=inspection.path,
        images=len(pictures),
        formats=_counts(records["format"].astype("U"), None),
        modes=_counts(records["mode"].astype("U"), None),
        sizes=_counts(sizes, 10),
        aspect_ratios=_spread(records["width"] / records["height"]),
        jpeg_quality=_qualities(records["quality"][records["quality"] > 0]),
        brightness=(float(light.mean()), float(light.std())),
        histogram=tuple((bins / bins.sum()).tolist()),
        grayscale=float((records["gray"] == 1).mean()),
        unreadable=tuple(unreadable),
        duplicates=inspection.duplicates,
        findings=(
            *_unreadable(unreadable),
            *_copies(inspection, other, generated),
            *inspection.unusual_findings(other),
            *property_findings(pictures),
        ),
        passed_over=inspection.passed_over,
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


def _unreadable(files: Sequence[BadFile]) -> list[Finding]:
    if not files:
        return []
    number, first = len(files), files[0]
    message = f"{number} files cannot be read; mend or remove them; the first: {first.reason}"
    if number == 1:
        message = f"1 file cannot be read: {first.reason}; mend or remove it"
    return [Finding("unreadable", "high", number, first.file, message)]


def _copies(inspection: SetInspection, other: SetInspection | None, generated: bool) -> list[Finding]:
    if not inspection.has_notable_copies(other):
        return []
    path, found = inspection.path, inspection.duplicates
    message = duplicates_warning(path, found, generated, None).removeprefix(f"{path}: ")
    return [Finding("copies", "high", found.copies, found.examples[0][0], message)]
