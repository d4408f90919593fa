"""Diagnosis of a set of images or of a comparison: its duplicates and findings, and the warnings they cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.differences import NOT_COMPARED, pair_findings
from fidtool.diagnose.duplicates import (
    FEWEST_COPIES,
    NOTABLE_SHARE,
    Duplicates,
    SharedCopies,
    duplicates_message,
    find_duplicates,
    has_notable_copies,
    shared_copies_of,
    shared_warning,
)
from fidtool.diagnose.findings import (
    Finding,
    brightness,
    property_findings,
    property_warnings,
    set_findings,
    unusual_findings,
)
from fidtool.errors import option
from fidtool.features.protocol import EMBEDDING, FEATURES, SPATIAL, layer_prefix
from fidtool.images.records import ImageRecords
from fidtool.names import counted
from fidtool.redaction import without_secrets
from fidtool.sources.contents import BadFile
from fidtool.sources.kinds import PassedOver
from fidtool.statistics.set_statistics import Statistics

CHECKUP_SCHEMA = 1
"""Version of the JSON format of a `Checkup`."""
_KINDS = 3
"""Maximum number of formats, modes or sizes in a summary."""
_HALF = 0.5
"""Share of duplicates that gives a warning about a set with nothing to compare it with: no kind of image naturally has
that many near duplicates."""


@dataclass(frozen=True)
class SetInspection:
    """Diagnosis of a set of images."""

    path: str
    pictures: ImageRecords
    duplicates: Duplicates
    findings: list[Finding]
    passed_over: PassedOver | None = None

    def unusual_findings(self, other: SetInspection | None) -> list[Finding]:
        """Returns the findings that are unusual for its kind of images."""
        if other is None:
            return list(self.findings)
        return unusual_findings(self.findings, len(self.pictures), other.findings, len(other.pictures))

    @property
    def warnings(self) -> list[str]:
        """Warnings about a set that was not generated, or may not have been."""
        return self.copies_warnings + _warnings(self.path, self.findings)

    @property
    def copies_warnings(self) -> list[str]:
        """The warnings about duplicates among `warnings`."""
        found = self.duplicates
        warnings = []
        if found.exact >= max(NOTABLE_SHARE * found.images, FEWEST_COPIES) or found.share >= _HALF:
            warnings.append(f"{self.path}: {duplicates_message(found, False)}")
        if not found.complete:
            reason = "the set has too many images to search for near duplicates"
            warnings.append(f"{self.path}: only exact duplicates were searched for: {reason}")
        return warnings


def inspect_set(path: str, images: ImageRecords | None, passed_over: PassedOver | None = None) -> SetInspection | None:
    """Diagnoses a set of images."""
    if images is None:
        return None
    findings = set_findings(images)
    return SetInspection(path, images, find_duplicates(images), findings, passed_over)


def _warnings(where: str, findings: list[Finding]) -> list[str]:
    serious = [finding for finding in findings if finding.severity != "low"]
    return [f"{where}: {finding.message}" for finding in serious]


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a comparison.

    Attributes:
        real, fake: duplicates in each set; None without records of its images.
        shared: images of FAKE that are also in REAL; None without records of both sets, or if both are the same set.
        findings: faulty images in FAKE, and differences between FAKE and REAL.
        real_findings: faulty images in REAL.
        lines: the warnings that result.
    """

    real: Duplicates | None = None
    fake: Duplicates | None = None
    shared: SharedCopies | None = None
    findings: tuple[Finding, ...] = ()
    real_findings: tuple[Finding, ...] = ()
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the diagnosis as it appears in the JSON, without ``lines``, which are among the warnings there."""
        return {
            "duplicates": {
                "real": None if self.real is None else self.real.to_dict(),
                "fake": None if self.fake is None else self.fake.to_dict(),
            },
            "shared": None if self.shared is None else asdict(self.shared),
            "findings": [
                {"set": name, **finding.to_dict()}
                for name, findings in (("fake", self.findings), ("real", self.real_findings))
                for finding in findings
            ],
        }


def diagnosis_of(real: SetInspection | None, fake: SetInspection | None, gate: float | None) -> Diagnosis:
    """Diagnoses a comparison. A larger share of duplicates in FAKE than ``gate`` always gives a warning."""
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
        if has_notable_copies(fake.duplicates, real_copies) or (gate is not None and fake.duplicates.share > gate):
            lines.append(f"{fake.path}: {duplicates_message(fake.duplicates, True)}")
        findings = fake.unusual_findings(real)
        lines += _warnings(fake.path, findings)
    if real is not None and fake is not None:
        shared = shared_copies_of(real.pictures, fake.pictures)
        if shared.count:
            lines.append(shared_warning(real.path, fake.path, shared, len(fake.pictures)))
        between = pair_findings(real.pictures, fake.pictures, findings)
        findings += between
        lines += _warnings(f"{fake.path} against {real.path}", between)
    return Diagnosis(real_copies, fake_copies, shared, tuple(findings), tuple(real_findings), tuple(lines))


# --- the results of ``fidtool check`` --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Health:
    """Composition and findings of a set of images.

    Attributes:
        formats, modes: number of images by Pillow's name of the format or mode, the most frequent first.
        sizes: number of images by ``WIDTHxHEIGHT``, the ten most frequent.
        aspect_ratios: smallest, median and largest ratio of width to height.
        jpeg_quality: smallest, median and largest quality of the JPEGs, 1 to 100; None without JPEGs.
        brightness: mean and standard deviation of the images' mean brightness, 0 to 255.
        histogram: shares of the pixel values 0..15, 16..31, ..., 240..255.
        grayscale: share of grayscale images, 0 to 1.
        unreadable: files that cannot be read.
        duplicates: duplicates in the set.
        findings: findings about unreadable files, then about duplicates, then all others, the most severe first.
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
    grayscale: float
    unreadable: tuple[BadFile, ...]
    duplicates: Duplicates
    findings: tuple[Finding, ...]
    passed_over: PassedOver | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the set as it appears in the JSON."""
        return asdict(self) | {
            "duplicates": self.duplicates.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "passed_over": None if self.passed_over is None else self.passed_over.to_dict(),
        }

    def summary(self) -> str:
        """Returns a one-line description of the set: number of images, formats, modes, sizes and ignored files."""
        kinds = [_kinds(self.formats), _kinds(self.modes), _kinds(self.sizes, " pixels")]
        if self.passed_over is not None and self.passed_over.words:
            kinds.append(f"ignored: {self.passed_over.words}")
        return f"{self.path}: {counted(self.images, 'image')}, {'; '.join(kinds)}"


def _kinds(counts: dict[str, int], unit: str = "") -> str:
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
    strict: bool

    def __repr__(self) -> str:
        found = "; ".join(f"{where}: {finding.message}" for where, finding in self.findings)
        return f"<{self.images.summary()}: {found or 'no findings'}>"

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings, each with the path of the set it is about. Those about REAL alone come last."""
        found = [(self.images.path, finding) for finding in self.images.findings]
        if self.against is not None:
            path = f"{self.images.path} against {self.against.path}"
            found += [(path, finding) for finding in self.between]
            found += [(self.against.path, finding) for finding in self.against.findings]
        return found

    @property
    def exit_code(self) -> int:
        """Exit status: 3 if findings are a failure and at least one is not about REAL alone, else 0."""
        return 3 if self.strict and self._failures else 0

    @property
    def _failures(self) -> int:
        return len(self.images.findings) + sum(finding.code != NOT_COMPARED for finding in self.between)

    @property
    def exit_reason(self) -> str:
        """Reason for the exit status."""
        number = self._failures
        return f"gate missed: {counted(number, 'finding')}" if self.exit_code else "done"

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as it appears in the JSON."""
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
    """Describes a set of at least one image. What it has in common with ``other`` is not a finding."""
    images = inspection.pictures
    records = images.records
    sizes = np.char.add(np.char.add(records["width"].astype("U"), "x"), records["height"].astype("U"))
    light = brightness(records)
    bins = records["bins"].sum(axis=0, dtype=np.int64)
    return Health(
        path=inspection.path,
        images=len(images),
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
            *property_findings(images),
        ),
        passed_over=inspection.passed_over,
    )


def _counts(values: NDArray[np.str_], most: int | None) -> dict[str, int]:
    kinds, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return {str(kinds[kind]) or "unknown": int(counts[kind]) for kind in order}


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
    message = f"{number} files cannot be read: fix or remove them (the first: {first.reason})"
    if number == 1:
        message = f"1 file cannot be read: fix or remove it ({first.reason})"
    return [Finding("unreadable", "high", number, first.file, message)]


def _copies(inspection: SetInspection, other: SetInspection | None, generated: bool) -> list[Finding]:
    if not has_notable_copies(inspection.duplicates, None if other is None else other.duplicates):
        return []
    found = inspection.duplicates
    return [Finding("copies", "high", found.copies, found.examples[0][0], duplicates_message(found, generated))]


def set_warnings(sets: Mapping[str, Statistics], gaussians: Collection[str] = (FEATURES,)) -> list[str]:
    """Returns warnings about sets, each by itself; ``gaussians`` are the layers whose covariance is compared."""
    found = [
        f"{name} does not state its protocol: the result is only correct if it was made with the protocol of this run"
        for name, statistics in sets.items()
        if statistics.definition is None
    ]
    if gaussians:
        found += _covariance_warnings(sets, gaussians)
    for name, statistics in sets.items():
        found += _image_warnings(name, statistics)
    return found


def _image_warnings(name: str, statistics: Statistics) -> list[str]:
    found = []
    count, traits = statistics.count, statistics.traits
    if count is not None and count > 1 and not statistics.sigma.any():
        found.append(
            f"{name}: all {count} images have the same features: either they are all the same image, or the network "
            "ignores its input"
        )
    found += [f"{name}: {text}" for text in (property_warnings(vars(traits)).values() if traits else ())]
    if statistics.skipped:
        example, number = statistics.skipped[0].file, len(statistics.skipped)
        files = f"{number} files could not be read and were skipped (for example {example})"
        if number == 1:
            files = f"1 file could not be read and was skipped ({example})"
        found.append(f"{name}: {files}" + ("" if count is None else f"; {count} images were used"))
    return found


def _covariance_warnings(sets: Mapping[str, Statistics], gaussians: Collection[str]) -> list[str]:
    largest, dims = FEATURES, 0
    for statistics in sets.values():
        for layer in gaussians:
            if layer in statistics.layers and statistics.layers[layer].dims > dims:
                largest, dims = layer, statistics.layers[layer].dims
    counts = {name: statistics.count for name, statistics in sets.items() if statistics.count is not None}
    found = [
        f"{name} has a single image: its covariance is taken to be zero" for name, count in counts.items() if count == 1
    ]
    distances = "sFID values" if largest == SPATIAL else "Fréchet distances"
    if few := {name: count for name, count in counts.items() if 1 < count <= dims}:
        found.append(
            f"{_have_images(few)} for {dims} dimensions: {distances} are far too high; use more than {dims}, and to "
            "compare with a paper as many as it used (most use 50,000)"
        )
    return found


def _have_images(counts: Mapping[str, int]) -> str:
    (first, number), *others = counts.items()
    if others and {*counts.values()} == {number}:
        return f"{' and '.join(counts)} have only {number} images each"
    return " and ".join([f"{first} has only {number} images", *(f"{name} {count}" for name, count in others)])


def pair_warnings(
    real_name: str, real: Statistics, fake_name: str, fake: Statistics, frechet: bool = True
) -> list[str]:
    """Returns warnings about the comparison of two sets, in addition to the `set_warnings` of each."""
    found = []
    if frechet and real.count is not None and fake.count is not None:
        ratio = max(real.count, fake.count) / min(real.count, fake.count)
        if ratio > 2:
            found.append(
                f"the sets differ in size by {ratio:.1f}x ({real.count} against {fake.count} images): the bias of the "
                "Fréchet distance depends on the smaller one; use equal numbers of images, for example with "
                f"{option('num')}"
            )
    if real.arithmetic is not None and fake.arithmetic is not None:
        both = real.arithmetic.keys() & fake.arithmetic.keys()  # earlier versions did not store the kernels
        keys = ["device", "precision", "torch", *(["kernels"] if "kernels" in both else [])]
        differing = [key for key in keys if real.arithmetic.get(key) != fake.arithmetic.get(key)]
        if "precision" in differing:
            found.append(
                f"{real_name} was computed in {real.arithmetic.get('precision')} and {fake_name} in "
                f"{fake.arithmetic.get('precision')}: part of their distance is due to that; compute both in the same "
                "precision"
            )
        elif differing:
            pairs = ", ".join(
                f"{key} {real.arithmetic.get(key)} against {fake.arithmetic.get(key)}" for key in differing
            )
            found.append(f"{real_name} and {fake_name} were computed differently ({pairs}): the last digits may differ")
        elif real.arithmetic.get("batch_size") == fake.arithmetic.get("batch_size") and (
            layer := _changed_code(real, fake)  # on a GPU the probe batch has the batch size
        ):
            network = {FEATURES: "the extractor", SPATIAL: "the extractor", EMBEDDING: "CMMD's network"}.get(layer)
            network = network or f"the network of {layer!r}"
            found.append(
                f"{real_name} and {fake_name} were computed by networks that give different features for the same "
                f"image, although the file and the tensors of {network} are the same: code or files that it imports or "
                "reads have changed; compute both again"
            )
    return found


def _changed_code(real: Statistics, fake: Statistics) -> str:
    """Returns the layer whose features of the probe batch differ despite equal definitions; empty if there is none."""
    assert real.arithmetic is not None
    assert fake.arithmetic is not None
    for layer in real.layers:
        if layer not in fake.layers or real.layers[layer].definition != fake.layers[layer].definition:
            continue
        probe = f"{layer_prefix(layer, '_')}probe"
        if real.arithmetic.get(probe) != fake.arithmetic.get(probe):
            return layer
    return ""
