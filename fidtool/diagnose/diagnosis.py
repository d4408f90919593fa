"""Diagnosis of a set of images or of a comparison: its duplicates and findings, and the warnings
they cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.differences import NOT_COMPARED, pair_findings
from fidtool.diagnose.duplicates import (
    COPIES,
    Duplicates,
    SharedCopies,
    copies_finding,
    find_duplicates,
    find_shared_copies,
    has_notable_copies,
    has_unnatural_copies,
    leak_finding,
)
from fidtool.diagnose.findings import (
    ALWAYS_UNUSUAL,
    UNREADABLE,
    About,
    Finding,
    property_findings,
    property_warnings,
    set_findings,
    unreadable_findings,
)
from fidtool.diagnose.measures import Measures
from fidtool.diagnose.order import order_findings
from fidtool.errors import ResultWarning, Severity, option, redact_json
from fidtool.features.protocol import FEATURES, SPATIAL
from fidtool.names import format_count, format_optional
from fidtool.reading.records import ImageRecords
from fidtool.sources.contents import BadFile
from fidtool.sources.kinds import IgnoredFiles
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.json_fields import NOT_IN_JSON, Share, to_json_fields

CHECKUP_SCHEMA = 1
"""Version of the JSON format of a `Checkup`."""
# Maximum number of formats, modes or sizes in a summary.
_KINDS = 3


@dataclass(frozen=True)
class SetInspection:
    """A set of images with its duplicates, the findings about its images, and what the source holds
    besides them.
    """

    path: str
    records: ImageRecords
    duplicates: Duplicates
    findings: list[Finding]
    passed_over: IgnoredFiles | None = None
    unreadable: Sequence[BadFile] = ()


def inspect_set(
    path: str,
    images: ImageRecords | None,
    passed_over: IgnoredFiles | None = None,
    unreadable: Sequence[BadFile] = (),
) -> SetInspection | None:
    """Diagnose a set of images by itself; None without records of them."""
    if images is None:
        return None
    return SetInspection(
        path, images, find_duplicates(images), set_findings(images), passed_over, unreadable
    )


def select_unusual(own: SetInspection, other: SetInspection | None) -> list[Finding]:
    """Return the findings that are unusual for the kind of images: with more than twice the share
    in the other set.
    """
    if other is None:
        return own.findings
    usual = {finding.code: finding.count / len(other.records) for finding in other.findings}
    unusual = []
    for finding in own.findings:
        share = finding.count / len(own.records)
        if finding.code in ALWAYS_UNUSUAL or share > 2.0 * usual.get(finding.code, 0.0):
            unusual.append(finding)
    return unusual


def find_problems(
    own: SetInspection,
    other: SetInspection | None,
    about: About = "real",
    gate: float | None = None,
) -> list[Finding]:
    """Return the findings about a set. What it has in common with ``other`` is not one.

    Args:
        about: ``fake`` for a set that was generated, ``real`` for one that was not, or may not have
            been.
        gate: a larger share of duplicates in a set that was generated always is a finding.
    """
    duplicates = own.duplicates
    generated = about == "fake"
    notable = has_notable_copies(duplicates, None if other is None else other.duplicates)
    if not generated:
        notable |= has_unnatural_copies(duplicates)
    elif gate is not None:
        notable |= duplicates.share > gate
    findings = unreadable_findings(own.unreadable)
    if notable:
        findings.append(copies_finding(duplicates, generated))
    findings += select_unusual(own, other)
    findings += property_findings(own.records)
    return [replace(finding, set=about) for finding in findings]


def warnings_from_findings(own: SetInspection, findings: Sequence[Finding]) -> list[ResultWarning]:
    """Return warnings from the ``findings`` about a set, and about the pair with it as FAKE.

    `set_warnings` has those of skipped files.
    """
    is_natural = not has_unnatural_copies(own.duplicates)
    warnings = []
    for finding in findings:
        if finding.severity == "low" or finding.code == UNREADABLE:
            continue
        if finding.code == COPIES and finding.set != "fake" and is_natural:
            continue
        warnings.append(ResultWarning(own.path, finding.message, finding.severity))
    if not own.duplicates.complete:
        text = (
            "only exact duplicates were searched for: the set has too many images to search for "
            "near duplicates"
        )
        warnings.append(ResultWarning(own.path, text))
    return warnings


def warnings_about(path: str, statistics: Statistics) -> list[ResultWarning]:
    """Return the warnings about a set whose statistics are stored; about a part of one, only the
    skipped files.
    """
    warnings = [
        ResultWarning("", f"skipped {bad_file.file}: {bad_file.reason}")
        for bad_file in statistics.skipped
    ]
    if statistics.part is not None:
        return warnings
    warnings += set_warnings(path, statistics)
    inspection = inspect_set(path, statistics.pictures)
    if inspection is not None:
        warnings += warnings_from_findings(inspection, find_problems(inspection, None))
    return warnings


@dataclass(frozen=True)
class DuplicatesBySet:
    """Duplicates in each set; None without records of its images."""

    real: Duplicates | None = None
    fake: Duplicates | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with the images of a comparison.

    Attributes:
        duplicates: duplicates in each set; None without records of its images.
        shared: images of FAKE that are also in REAL; None without records of both sets, or if both
            are the same set.
        findings: what is wrong with FAKE, the differences between the two and images of REAL in
            FAKE, and what is wrong with REAL.
        lines: the warnings that result.
    """

    duplicates: DuplicatesBySet = DuplicatesBySet()
    shared: SharedCopies | None = None
    findings: tuple[Finding, ...] = ()
    lines: tuple[ResultWarning, ...] = field(default=(), metadata=NOT_IN_JSON)

    @property
    def real(self) -> Duplicates | None:
        """Duplicates in REAL."""
        return self.duplicates.real

    @property
    def fake(self) -> Duplicates | None:
        """Duplicates in FAKE."""
        return self.duplicates.fake

    def findings_for(self, about: About) -> tuple[Finding, ...]:
        """Return the findings about FAKE, REAL or the pair."""
        return tuple(finding for finding in self.findings if finding.set == about)


def diagnose(
    real: SetInspection | None,
    fake: SetInspection | None,
    gate: float | None = None,
    paired: bool = False,
    shown: Callable[[str], str] = str,
) -> Diagnosis:
    """Diagnose a comparison, or one set.

    Args:
        gate: a larger share of duplicates in FAKE always gives a warning.
        paired: whether each image of FAKE is compared with that of REAL in the same row.
        shown: returns a message as it is printed.
    """
    duplicates = DuplicatesBySet(
        None if real is None else real.duplicates, None if fake is None else fake.duplicates
    )
    if fake is real:
        fake = None
    about_real = []
    lines = []
    if real is not None:
        about_real = find_problems(real, fake)
        lines = warnings_from_findings(real, about_real)
    findings = []
    shared = None
    if fake is not None:
        findings = find_problems(fake, real, "fake", gate)
        if real is not None:
            shared = find_shared_copies(real.records, fake.records)
            findings += _findings_about_pair(real, fake, shared, paired)
            if paired:
                lines += _lossless_warnings(real, fake)
        lines += warnings_from_findings(fake, findings)
    shown_findings = [
        replace(finding, message=shown(finding.message)) for finding in [*findings, *about_real]
    ]
    return Diagnosis(duplicates, shared, tuple(shown_findings), tuple(lines))


def _findings_about_pair(
    real: SetInspection, fake: SetInspection, shared: SharedCopies, paired: bool
) -> list[Finding]:
    findings = []
    # One path may be sampled in two ways.
    if shared.count and not paired and fake.path != real.path:
        findings.append(leak_finding(real.path, shared, len(fake.records)))
    findings += pair_findings(real.records, fake.records, select_unusual(fake, real), paired)
    if paired:
        findings += order_findings(real.records, fake.records)
    return findings


def _lossless_warnings(real: SetInspection, fake: SetInspection) -> list[ResultWarning]:
    """Return a warning if images of FAKE are pixel-identical to their partners, in the same row of
    REAL.
    """
    is_same = real.records.records["digest"] == fake.records.records["digest"]
    if not is_same.any():
        return []
    text = (
        f"{is_same.sum()} of {len(is_same)} images are pixel-identical to their partners in REAL: "
        "their reconstruction is lossless, or they are copies"
    )
    return [ResultWarning(fake.path, text)]


# --- the results of ``fidtool check`` -------------------------------------------------------------


@dataclass(frozen=True)
class Health:
    """What a set of images consists of, and its findings.

    Attributes:
        path: the set, as passed by the caller.
        images: number of images that can be read.
        formats: number of images by Pillow's name of the format, the most frequent first.
        modes: number of images by Pillow's mode, the most frequent first.
        sizes: number of images by ``WIDTHxHEIGHT``, the ten most frequent.
        aspect_ratios: smallest, median and largest ratio of width to height.
        jpeg_quality: smallest, median and largest quality of the JPEGs, 1 to 100; None without
            JPEGs.
        brightness: mean and standard deviation of the images' mean brightness, 0 to 255.
        histogram: shares of the pixel values 0..15, 16..31, ..., 240..255.
        grayscale: share of grayscale images, 0 to 1.
        unreadable: files that cannot be read.
        duplicates: duplicates in the set.
        findings: what `fidtool.check` found: unreadable files, then duplicates, then all others,
            the most severe first; the findings of a comparison are in its diagnosis.
        passed_over: what the source contains besides its images; None for a statistics file.
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
    grayscale: Share
    unreadable: tuple[BadFile, ...]
    duplicates: Duplicates
    findings: tuple[Finding, ...] = ()
    passed_over: IgnoredFiles | None = None

    def summary(self) -> str:
        """Return a one-line description of the set: number of images, formats, modes, sizes and
        ignored files.
        """
        kinds = [
            format_counts(self.formats),
            format_counts(self.modes),
            format_counts(self.sizes, " pixels"),
        ]
        if self.passed_over is not None and self.passed_over.words:
            kinds.append(f"ignored: {self.passed_over.words}")
        return f"{self.path}: {format_count(self.images, 'image')}, {'; '.join(kinds)}"


def format_counts(counts: dict[str, int], unit: str = "") -> str:
    """Return how many images there are of each kind, or the kind if all are of one."""
    if len(counts) == 1:
        return f"{next(iter(counts))}{unit}"
    named = [f"{number} {name}" for name, number in counts.items()]
    more = " and others" if len(named) > _KINDS else ""
    return f"{', '.join(named[:_KINDS])}{unit}{more}"


@dataclass(frozen=True)
class Checkup:
    """Result of `fidtool.check`.

    Attributes:
        images: the set, and its findings.
        against: the set it was compared with, REAL; None without one.
        between: differences between the two, and images of REAL in the set.
        strict: whether findings are a failure.
    """

    images: Health
    against: Health | None
    between: tuple[Finding, ...]
    strict: bool = field(metadata=NOT_IN_JSON)

    def __repr__(self) -> str:
        findings = [f"{where}: {finding.message}" for where, finding in self.findings]
        return f"<{self.images.summary()}: {'; '.join(findings) or 'no findings'}>"

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings, each with the path of the set it is about. Those about REAL alone come
        last.
        """
        findings = [(self.images.path, finding) for finding in self.images.findings]
        if self.against is not None:
            pair = f"{self.images.path} against {self.against.path}"
            findings += [(pair, finding) for finding in self.between]
            findings += [(self.against.path, finding) for finding in self.against.findings]
        return findings

    @property
    def exit_code(self) -> int:
        """Exit status: 3 if findings are a failure and at least one is not about REAL alone, else
        0.
        """
        return 0 if self.exit_reason == "done" else 3

    @property
    def exit_reason(self) -> str:
        """Reason for the exit status."""
        compared = [finding for finding in self.between if finding.code != NOT_COMPARED]
        number = len(self.images.findings) + len(compared)
        if self.strict and number:
            return f"gate missed: {format_count(number, 'finding')}"
        return "done"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as it appears in the JSON."""
        outcome = {"code": self.exit_code, "reason": self.exit_reason}
        return redact_json({"schema": CHECKUP_SCHEMA, **to_json_fields(self), "exit": outcome})


def describe_set(inspection: SetInspection, findings: tuple[Finding, ...] = ()) -> Health:
    """Describe a set of at least one image, with the ``findings`` about it."""
    records = inspection.records.records
    measures = Measures(records)
    sides = zip(records["width"].tolist(), records["height"].tolist(), strict=True)
    bins = records["bins"].sum(axis=0, dtype=np.int64)
    quality = None
    if len(measures.qualities):
        least, median, most = _min_median_max(measures.qualities)
        quality = round(least), round(median), round(most)
    return Health(
        path=inspection.path,
        images=len(records),
        formats=_count_names(records["format"].astype("U").tolist()),
        modes=_count_names(records["mode"].astype("U").tolist()),
        sizes=_count_names((f"{width}x{height}" for width, height in sides), 10),
        aspect_ratios=_min_median_max(measures.shapes),
        jpeg_quality=quality,
        brightness=(float(measures.light.mean()), float(measures.light.std())),
        histogram=tuple((bins / bins.sum()).tolist()),
        grayscale=float(measures.gray.mean()),
        unreadable=tuple(inspection.unreadable),
        duplicates=inspection.duplicates,
        findings=findings,
        passed_over=inspection.passed_over,
    )


def _count_names(names: Iterable[str], most: int | None = None) -> dict[str, int]:
    """Return how often each name occurs: the most frequent first, else by name."""
    counts = Counter(sorted(names)).most_common(most)
    return {name or "unknown": count for name, count in counts}


def _min_median_max(values: NDArray[Any]) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def set_warnings(
    name: str, statistics: Statistics, gaussians: Collection[str] = (FEATURES,)
) -> Iterator[ResultWarning]:
    """Yield warnings about a set by itself; ``gaussians`` are the layers whose covariance is
    compared.
    """
    features = statistics.layers.get(FEATURES)
    count = statistics.count
    if features is not None and features.definition is None:
        yield ResultWarning(
            name,
            "the file does not state its protocol: the result is only correct if the file was "
            "computed with the protocol of this run",
            "medium",
        )
    layers = [
        (statistics.layers[layer].dims, layer) for layer in gaussians if layer in statistics.layers
    ]
    dims, largest = max(layers, default=(0, ""))
    if layers and count == 1:
        yield ResultWarning(name, "a single image: its covariance is taken to be zero", "high")
    elif count is not None and count <= dims:
        distances = "sFID values" if largest == SPATIAL else "Fréchet distances"
        yield ResultWarning(
            name,
            f"too few for {dims} dimensions: {distances} are far too high; use more than {dims} "
            "images, and to compare with a paper, use as many as the paper did (often 50,000)",
            "high",
            f"only {count} images",
        )
    if features is not None and count is not None and count > 1 and not features.sigma.any():
        text = (
            f"all {count} images have the same features: either they are all the same image, or "
            "the network ignores its input"
        )
        yield ResultWarning(name, text, "high")
    if statistics.traits is not None:
        for text in property_warnings(vars(statistics.traits)).values():
            yield ResultWarning(name, text)
    skipped = statistics.skipped
    if skipped:
        files = format_count(len(skipped), "unreadable file")
        used = "" if count is None else f"; {count} images were used"
        yield ResultWarning(name, f"{files} skipped (for example {skipped[0].file}){used}")


def pair_warnings(
    real: Statistics, fake_name: str, fake: Statistics, frechet: bool = True, sampled: bool = True
) -> list[ResultWarning]:
    """Return warnings about the comparison of two sets, in addition to the `set_warnings` of each.

    ``sampled`` is whether a sample of the larger set can be used, which a statistics file does not
    have.
    """
    warnings = []
    counts = [real.count or 0, fake.count or 0]
    if frechet and all(counts) and max(counts) > 2 * min(counts):
        how = (
            ", for example"
            if sampled
            else ": add images to the smaller set, or pass images in place of the statistics "
            "and limit them"
        )
        text = (
            "the number of images differs from REAL's by more than a factor of 2: the bias of "
            "the Fréchet distance depends on the smaller number; use equal numbers, or those of "
            f"the paper to compare with{how} with {option('num')}"
        )
        numbers = f"{format_count(counts[1], 'image')} against {real.count}"
        warnings.append(ResultWarning(fake_name, text, "medium", numbers))
    return [*warnings, *_arithmetic_warnings(real, fake_name, fake)]


def _arithmetic_warnings(real: Statistics, name: str, fake: Statistics) -> list[ResultWarning]:
    """Return a warning if the features of two sets were not computed alike."""
    one = real.arithmetic
    other = fake.arithmetic
    if one is None or other is None:
        return []
    keys = ["device", "precision", "torch"]
    if real.definition is None or real.definition.standard:
        keys.append("kernels")
    differing = [key for key in keys if one.get(key) != other.get(key)]
    if differing:
        pairs = ", ".join(
            f"{key} {format_optional(one.get(key))} against {format_optional(other.get(key))}"
            for key in differing
        )
        effect = "the last digits may differ"
        severity: Severity = "low"
        if "precision" in differing:
            effect = "part of the distance is due to this difference; compute both in the same way"
            severity = "medium"
        return [ResultWarning(name, f"REAL was computed differently ({pairs}): {effect}", severity)]
    if one.get("batch_size") != other.get("batch_size"):
        return []  # on a GPU the probe batch has the batch size
    for layer in real.layers.keys() & fake.layers.keys():
        definition = real.layers[layer].definition
        if definition is None:
            continue
        probe = f"{definition.fingerprint}_probe"
        if probe in one and probe in other and one[probe] != other[probe]:
            text = (
                "its network and REAL's give different features for the same image, although "
                "their files and tensors are the same: code or files that the networks import or "
                "read have changed; compute both sets again"
            )
            return [ResultWarning(name, text, "high")]
    return []
