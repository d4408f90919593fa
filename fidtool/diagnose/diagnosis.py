"""Diagnosis of a set of images or of a comparison: its duplicates and findings, and the warnings
they cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    has_notable_copies,
    has_unnatural_copies,
    lossless_texts,
    shared_copies_of,
    shared_finding,
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
from fidtool.errors import ResultWarning, option, without_secrets
from fidtool.features.protocol import FEATURES, SPATIAL
from fidtool.names import counted, or_none
from fidtool.reading.records import ImageRecords
from fidtool.sources.contents import BadFile
from fidtool.sources.kinds import PassedOver
from fidtool.statistics.set_statistics import Statistics
from fidtool.system.json_fields import NOT_IN_JSON, Share, fields_of

CHECKUP_SCHEMA = 1
"""Version of the JSON format of a `Checkup`."""
_KINDS = 3
"""Maximum number of formats, modes or sizes in a summary."""


@dataclass(frozen=True)
class SetInspection:
    """A set of images with its duplicates, the findings about its images, and what the source holds
    besides them.
    """

    path: str
    pictures: ImageRecords
    duplicates: Duplicates
    findings: list[Finding]
    passed_over: PassedOver | None = None
    unreadable: Sequence[BadFile] = ()


def inspect_set(
    path: str,
    images: ImageRecords | None,
    passed_over: PassedOver | None = None,
    unreadable: Sequence[BadFile] = (),
) -> SetInspection | None:
    """Diagnoses a set of images by itself; None without records of them."""
    if images is None:
        return None
    return SetInspection(
        path, images, find_duplicates(images), set_findings(images), passed_over, unreadable
    )


def unusual_findings(own: SetInspection, other: SetInspection | None) -> list[Finding]:
    """Returns the findings that are unusual for the kind of images: with more than twice the share
    in the other set.
    """
    if other is None:
        return own.findings
    usual = {finding.code: finding.count / len(other.pictures) for finding in other.findings}
    return [
        finding
        for finding in own.findings
        if finding.code in ALWAYS_UNUSUAL
        or finding.count / len(own.pictures) > 2.0 * usual.get(finding.code, 0.0)
    ]


def findings_about(
    own: SetInspection,
    other: SetInspection | None,
    about: About = "real",
    gate: float | None = None,
) -> list[Finding]:
    """Returns the findings about a set. What it has in common with ``other`` is not one.

    Args:
        about: ``fake`` for a set that was generated, ``real`` for one that was not, or may not have
            been.
        gate: a larger share of duplicates in a set that was generated always is a finding.
    """
    duplicates = own.duplicates
    generated = about == "fake"
    notable = has_notable_copies(duplicates, None if other is None else other.duplicates)
    if generated:
        notable |= gate is not None and duplicates.share > gate
    else:
        notable |= has_unnatural_copies(duplicates)
    findings = [
        *unreadable_findings(own.unreadable),
        *([copies_finding(duplicates, generated)] if notable else []),
        *unusual_findings(own, other),
        *property_findings(own.pictures),
    ]
    return [replace(finding, set=about) for finding in findings]


def finding_warnings(own: SetInspection, findings: Sequence[Finding]) -> list[ResultWarning]:
    """Returns warnings from the ``findings`` about a set, and about the pair with it as FAKE.

    `set_warnings` has those of skipped files.
    """
    warnings = [
        ResultWarning(own.path, finding.message, finding.severity)
        for finding in findings
        if finding.severity != "low"
        and finding.code != UNREADABLE
        and (
            finding.code != COPIES or finding.set == "fake" or has_unnatural_copies(own.duplicates)
        )
    ]
    if not own.duplicates.complete:
        reason = "the set has too many images to search for near duplicates"
        warnings.append(
            ResultWarning(own.path, f"only exact duplicates were searched for: {reason}")
        )
    return warnings


def warnings_about(path: str, statistics: Statistics) -> list[ResultWarning]:
    """Returns the warnings about a set whose statistics are stored; about a part of one, only the
    skipped files.
    """
    skipped = [ResultWarning("", f"skipped {bad.file}: {bad.reason}") for bad in statistics.skipped]
    if statistics.part is not None:
        return skipped
    warnings = set_warnings({path: statistics})
    if (inspection := inspect_set(path, statistics.pictures)) is not None:
        warnings += finding_warnings(inspection, findings_about(inspection, None))
    return [*skipped, *warnings]


@dataclass(frozen=True)
class DuplicatesOfSets:
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

    duplicates: DuplicatesOfSets = DuplicatesOfSets()
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

    def about(self, about: About) -> tuple[Finding, ...]:
        """Returns the findings about FAKE, REAL or the pair."""
        return tuple(finding for finding in self.findings if finding.set == about)


def diagnosis_of(
    real: SetInspection | None,
    fake: SetInspection | None,
    gate: float | None = None,
    paired: bool = False,
    shown: Callable[[str], str] = str,
) -> Diagnosis:
    """Diagnoses a comparison, or one set.

    Args:
        gate: a larger share of duplicates in FAKE always gives a warning.
        paired: whether each image of FAKE is compared with that of REAL in the same row.
        shown: returns a message as it is printed.
    """
    duplicates_of_real = None if real is None else real.duplicates
    duplicates_of_fake = None if fake is None else fake.duplicates
    if fake is real:
        fake = None
    of_real = [] if real is None else findings_about(real, fake)
    findings = [] if fake is None else findings_about(fake, real, "fake", gate)
    lines = [] if real is None else finding_warnings(real, of_real)
    shared = None
    if real is not None and fake is not None:
        shared = shared_copies_of(real.pictures, fake.pictures)
        if paired:
            lines += [
                ResultWarning(fake.path, text)
                for text in lossless_texts(real.pictures, fake.pictures)
            ]
        elif shared.count and fake.path != real.path:  # one path may be sampled in two ways
            findings.append(shared_finding(real.path, shared, len(fake.pictures)))
        findings += pair_findings(
            real.pictures, fake.pictures, unusual_findings(fake, real), paired
        )
        if paired:
            findings += order_findings(real.pictures, fake.pictures)
    if fake is not None:
        lines += finding_warnings(fake, findings)
    as_shown = tuple(
        replace(finding, message=shown(finding.message)) for finding in [*findings, *of_real]
    )
    return Diagnosis(
        DuplicatesOfSets(duplicates_of_real, duplicates_of_fake), shared, as_shown, tuple(lines)
    )


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
            the most severe first; those of a comparison are in its diagnosis.
        passed_over: what the source holds besides its images; None for a statistics file.
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
    passed_over: PassedOver | None = None

    def summary(self) -> str:
        """Returns a one-line description of the set: number of images, formats, modes, sizes and
        ignored files.
        """
        kinds = [kinds_of(self.formats), kinds_of(self.modes), kinds_of(self.sizes, " pixels")]
        if self.passed_over is not None and self.passed_over.words:
            kinds.append(f"ignored: {self.passed_over.words}")
        return f"{self.path}: {counted(self.images, 'image')}, {'; '.join(kinds)}"


def kinds_of(counts: dict[str, int], unit: str = "") -> str:
    """Return how many images there are of each kind, or the kind if all are of one."""
    if len(counts) == 1:
        return f"{next(iter(counts))}{unit}"
    named = ", ".join(f"{number} {name}" for name, number in list(counts.items())[:_KINDS])
    return named + (unit if len(counts) <= _KINDS else f"{unit} and others")


@dataclass(frozen=True)
class Checkup:
    """Result of `fidtool.check`.

    Attributes:
        against: the set it was compared with, REAL; None without one.
        between: differences between the two, and images of REAL in the set.
        strict: whether findings are a failure.
    """

    images: Health
    against: Health | None
    between: tuple[Finding, ...]
    strict: bool = field(metadata=NOT_IN_JSON)

    def __repr__(self) -> str:
        found = "; ".join(f"{where}: {finding.message}" for where, finding in self.findings)
        return f"<{self.images.summary()}: {found or 'no findings'}>"

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings, each with the path of the set it is about. Those about REAL alone come
        last.
        """
        found = [(self.images.path, self.images.findings)]
        if self.against is not None:
            found.append((f"{self.images.path} against {self.against.path}", self.between))
            found.append((self.against.path, self.against.findings))
        return [(path, finding) for path, findings in found for finding in findings]

    @property
    def exit_code(self) -> int:
        """Exit status: 3 if findings are a failure and at least one is not about REAL alone, else
        0.
        """
        return 0 if self.exit_reason == "done" else 3

    @property
    def exit_reason(self) -> str:
        """Reason for the exit status."""
        number = len(self.images.findings) + sum(
            finding.code != NOT_COMPARED for finding in self.between
        )
        return f"gate missed: {counted(number, 'finding')}" if self.strict and number else "done"

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as it appears in the JSON."""
        outcome = {"code": self.exit_code, "reason": self.exit_reason}
        return without_secrets({"schema": CHECKUP_SCHEMA, **fields_of(self), "exit": outcome})


def health_of(inspection: SetInspection, findings: tuple[Finding, ...] = ()) -> Health:
    """Describes a set of at least one image, with the ``findings`` about it."""
    records = inspection.pictures.records
    measures = Measures(inspection.pictures.records)
    sizes = np.char.add(
        np.char.add(records["width"].astype("U"), "x"), records["height"].astype("U")
    )
    bins = records["bins"].sum(axis=0, dtype=np.int64)
    qualities = None
    if len(measures.qualities):
        least, median, most = map(round, _spread(measures.qualities))
        qualities = least, median, most
    return Health(
        path=inspection.path,
        images=len(records),
        formats=_counts(records["format"].astype("U"), None),
        modes=_counts(records["mode"].astype("U"), None),
        sizes=_counts(sizes, 10),
        aspect_ratios=_spread(measures.shapes),
        jpeg_quality=qualities,
        brightness=(float(measures.light.mean()), float(measures.light.std())),
        histogram=tuple((bins / bins.sum()).tolist()),
        grayscale=float(measures.gray.mean()),
        unreadable=tuple(inspection.unreadable),
        duplicates=inspection.duplicates,
        findings=findings,
        passed_over=inspection.passed_over,
    )


def _counts(values: NDArray[np.str_], most: int | None) -> dict[str, int]:
    kinds, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return {str(kinds[kind]) or "unknown": int(counts[kind]) for kind in order}


def _spread(values: NDArray[Any]) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def set_warnings(
    sets: Mapping[str, Statistics], gaussians: Collection[str] = (FEATURES,)
) -> list[ResultWarning]:
    """Returns warnings about sets, each by itself; ``gaussians`` are the layers whose covariance is
    compared.
    """
    return [
        warning
        for name, statistics in sets.items()
        for warning in _set_warnings(name, statistics, gaussians)
    ]


def _set_warnings(
    name: str, statistics: Statistics, gaussians: Collection[str]
) -> Iterator[ResultWarning]:
    features = statistics.layers.get(FEATURES)
    count = statistics.count
    if features is not None and features.definition is None:
        stated = (
            "the file does not state its protocol: the result is only correct if it is that of "
            "this run"
        )
        yield ResultWarning(name, stated, "medium")
    layers = [
        (statistics.layers[layer].dims, layer) for layer in gaussians if layer in statistics.layers
    ]
    if layers and count == 1:
        yield ResultWarning(name, "a single image: its covariance is taken to be zero", "high")
    elif layers and count is not None and count <= max(layers)[0]:
        dims, largest = max(layers)
        distances = "sFID values" if largest == SPATIAL else "Fréchet distances"
        few = (
            f"too few for {dims} dimensions: {distances} are far too high; use more than {dims}, "
            "and to compare with a paper as many as it used (most use 50,000)"
        )
        yield ResultWarning(name, few, "high", f"only {count} images")
    if features is not None and count is not None and count > 1 and not features.sigma.any():
        causes = "either they are all the same image, or the network ignores its input"
        yield ResultWarning(name, f"all {count} images have the same features: {causes}", "high")
    if statistics.traits is not None:
        for text in property_warnings(vars(statistics.traits)).values():
            yield ResultWarning(name, text)
    if skipped := statistics.skipped:
        used = "" if count is None else f"; {count} images were used"
        files = (
            f"{counted(len(skipped), 'unreadable file')} skipped (for example {skipped[0].file})"
        )
        yield ResultWarning(name, f"{files}{used}")


def pair_warnings(
    real: Statistics, fake_name: str, fake: Statistics, frechet: bool = True, sampled: bool = True
) -> list[ResultWarning]:
    """Returns warnings about the comparison of two sets, in addition to the `set_warnings` of each.

    ``sampled`` is whether a sample of the larger set can be used, which a statistics file does not
    have.
    """
    found = []
    if (
        frechet
        and real.count is not None
        and fake.count is not None
        and max(real.count, fake.count) > 2 * min(real.count, fake.count)
    ):
        how = (
            ", for example"
            if sampled
            else ": more in the smaller set, or images in place of the statistics,"
        )
        text = (
            "the number of images differs by more than a factor of 2 from that of REAL: the bias "
            f"of the Fréchet distance depends on the smaller one; use equal numbers{how} with "
            f"{option('num')}"
        )
        numbers = f"{counted(fake.count, 'image')} against {real.count}"
        found.append(ResultWarning(fake_name, text, "medium", numbers))
    one = real.arithmetic
    other = fake.arithmetic
    if one is None or other is None:
        return found
    keys = ["device", "precision", "torch"]
    if real.definition is None or real.definition.standard:
        keys.append("kernels")
    differing = [key for key in keys if one.get(key) != other.get(key)]
    if differing:
        pairs = ", ".join(
            f"{key} {or_none(one.get(key))} against {or_none(other.get(key))}" for key in differing
        )
        differently = f"REAL was computed differently ({pairs})"
        warning = ResultWarning(fake_name, f"{differently}: the last digits may differ")
        if "precision" in differing:
            effect = "part of the distance is due to that; compute both alike"
            warning = ResultWarning(fake_name, f"{differently}: {effect}", "medium")
        found.append(warning)
    elif one.get("batch_size") == other.get(
        "batch_size"
    ):  # on a GPU the probe batch has the batch size
        same = [
            layer.definition
            for name, layer in real.layers.items()
            if layer.definition and name in fake.layers
        ]
        probes = {f"{definition.fingerprint}_probe" for definition in same} & {*one} & {*other}
        if any(one[probe] != other[probe] for probe in probes):
            text = (
                "its network and that of REAL give different features for the same image, "
                "although their files and tensors are the same: code or files that they import "
                "or read have changed; compute both again"
            )
            found.append(ResultWarning(fake_name, text, "high"))
    return found
