"""Diagnosis of a set of images or of a comparison: its duplicates and findings, and the warnings they cause."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.diagnose.differences import NOT_COMPARED, pair_findings
from fidtool.diagnose.duplicates import (
    FEWEST_COPIES,
    NOTABLE_SHARE,
    Duplicates,
    SharedCopies,
    copies_finding,
    find_duplicates,
    has_notable_copies,
    lossless_texts,
    shared_copies_of,
    shared_finding,
)
from fidtool.diagnose.findings import ALWAYS_UNUSUAL, Finding, property_findings, property_warnings, set_findings
from fidtool.diagnose.order import order_findings
from fidtool.errors import Alert, option, without_secrets
from fidtool.features.protocol import FEATURES, SPATIAL
from fidtool.images.records import BRIGHTNESS, ImageRecords
from fidtool.names import counted, or_none
from fidtool.saved import restored
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


def inspect_set(path: str, images: ImageRecords | None, passed_over: PassedOver | None = None) -> SetInspection | None:
    """Diagnoses a set of images."""
    if images is None:
        return None
    return SetInspection(path, images, find_duplicates(images), set_findings(images), passed_over)


def unusual_findings(own: SetInspection, other: SetInspection | None) -> list[Finding]:
    """Returns the findings that are unusual for the kind of images: with more than twice the share in the other set."""
    if other is None:
        return [*own.findings]
    usual = {each.code: each.count / len(other.pictures) for each in other.findings}
    return [
        each
        for each in own.findings
        if each.code in ALWAYS_UNUSUAL or each.count / len(own.pictures) > 2.0 * usual.get(each.code, 0.0)
    ]


def inspection_findings(own: SetInspection, other: SetInspection | None = None) -> list[Finding]:
    """Returns the findings about a set that was not generated, or may not have been."""
    found = own.duplicates
    notable = found.exact >= max(NOTABLE_SHARE * found.images, FEWEST_COPIES) or found.share >= _HALF
    copies = [copies_finding(found, False)] if notable else []
    return [*copies, *unusual_findings(own, other)]


def inspection_warnings(own: SetInspection | None, other: SetInspection | None = None) -> list[Alert]:
    """Returns warnings about a set that was not generated, or may not have been."""
    if own is None:
        return []
    warnings = _alerts(own.path, inspection_findings(own, other))
    if not own.duplicates.complete:
        reason = "the set has too many images to search for near duplicates"
        warnings.append(Alert(f"{own.path}: only exact duplicates were searched for: {reason}"))
    return warnings


def warnings_about(path: str, statistics: Statistics) -> list[str]:
    """Returns the warnings about a set whose statistics are stored; about a part of one, only the skipped files."""
    skipped = [f"skipped {each.file}: {each.reason}" for each in statistics.skipped]
    if statistics.part is not None:
        return skipped
    of_images = inspection_warnings(inspect_set(path, statistics.pictures))
    return [*skipped, *set_warnings({path: statistics}), *of_images]


def _alerts(path: str, findings: Sequence[Finding]) -> list[Alert]:
    """Returns the findings about a set that are not of low severity as warnings."""
    return [Alert(f"{path}: {each.message}", each.severity) for each in findings if each.severity != "low"]


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a comparison.

    Attributes:
        real, fake: duplicates in each set; None without records of its images.
        shared: images of FAKE that are also in REAL; None without records of both sets, or if both are the same set.
        findings: faulty images in FAKE, its duplicates, images of REAL in it, and differences between the two.
        real_findings: faulty images in REAL.
        lines: the warnings that result.
    """

    real: Duplicates | None = None
    fake: Duplicates | None = None
    shared: SharedCopies | None = None
    findings: tuple[Finding, ...] = ()
    real_findings: tuple[Finding, ...] = ()
    lines: tuple[Alert, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the diagnosis as it appears in the JSON, without ``lines``, which are among the warnings there."""
        return {
            "duplicates": {"real": self.real and self.real.to_dict(), "fake": self.fake and self.fake.to_dict()},
            "shared": self.shared and asdict(self.shared),
            "findings": [
                {"set": name, **asdict(finding)}
                for name, findings in (("fake", self.findings), ("real", self.real_findings))
                for finding in findings
            ],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Diagnosis:
        """Returns the diagnosis whose `to_dict` gave ``content``."""
        duplicates, findings = restored(dict[str, Duplicates | None], content["duplicates"]), content["findings"]
        shared = restored(SharedCopies | None, content["shared"])
        about_fake, about_real = (
            restored(tuple[Finding, ...], [each for each in findings if each["set"] == role])
            for role in ("fake", "real")
        )
        return cls(duplicates["real"], duplicates["fake"], shared, about_fake, about_real)


def diagnosis_of(
    real: SetInspection | None,
    fake: SetInspection | None,
    gate: float | None,
    paired: bool = False,
    shown: Callable[[str], str] = str,
) -> Diagnosis:
    """Diagnoses a comparison.

    Args:
        gate: a larger share of duplicates in FAKE always gives a warning.
        paired: whether each image of FAKE is compared with that of REAL in the same row.
        shown: returns a message of a difference as it is printed.
    """
    real_copies, fake_copies = (None if one is None else one.duplicates for one in (real, fake))
    if fake is real:
        fake = None
    lines = inspection_warnings(real, fake)
    real_findings = [] if real is None else inspection_findings(real, fake)
    if fake is None:
        return Diagnosis(real_copies, fake_copies, None, (), tuple(real_findings), tuple(lines))
    found, findings, shared = fake.duplicates, list[Finding](), None
    if has_notable_copies(found, real_copies) or (gate is not None and found.share > gate):
        findings.append(copies_finding(found, True))
    unusual = unusual_findings(fake, real)
    findings += unusual
    if real is not None:
        shared = shared_copies_of(real.pictures, fake.pictures)
        if paired:
            lines += [Alert(f"{fake.path}: {text}") for text in lossless_texts(real.pictures, fake.pictures)]
        elif shared.count and fake.path != real.path:  # one path may be sampled in two ways
            findings.append(shared_finding(real.path, shared, len(fake.pictures)))
        between = pair_findings(real.pictures, fake.pictures, unusual, paired)
        if paired:
            between += order_findings(real.pictures, fake.pictures)
        findings += [replace(finding, message=shown(finding.message)) for finding in between]
    lines += _alerts(fake.path, findings)
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
        passed_over = self.passed_over and self.passed_over.to_dict()
        return asdict(self) | {"duplicates": self.duplicates.to_dict(), "passed_over": passed_over}

    def summary(self) -> str:
        """Returns a one-line description of the set: number of images, formats, modes, sizes and ignored files."""
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
        return 0 if self.exit_reason == "done" else 3

    @property
    def exit_reason(self) -> str:
        """Reason for the exit status."""
        number = len(self.images.findings) + sum(finding.code != NOT_COMPARED for finding in self.between)
        return f"gate missed: {counted(number, 'finding')}" if self.strict and number else "done"

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as it appears in the JSON."""
        found = {
            "schema": CHECKUP_SCHEMA,
            "images": self.images.to_dict(),
            "against": self.against and self.against.to_dict(),
            "between": [asdict(finding) for finding in self.between],
            "exit": {"code": self.exit_code, "reason": self.exit_reason},
        }
        return without_secrets(found)


def health_of(
    inspection: SetInspection,
    unreadable: Sequence[BadFile],
    other: SetInspection | None,
    generated: bool,
    shown: Callable[[str], str] = str,
) -> Health:
    """Describes a set of at least one image. What it has in common with ``other`` is not a finding.

    Messages of findings are as ``shown`` returns them.
    """
    images, found = inspection.pictures, inspection.duplicates
    records = images.records
    sizes = np.char.add(np.char.add(records["width"].astype("U"), "x"), records["height"].astype("U"))
    light = records["thumb"][:, :BRIGHTNESS].mean(axis=1)  # of each image
    bins = records["bins"].sum(axis=0, dtype=np.int64)
    qualities, quality = None, records["quality"][records["quality"] > 0]
    if len(quality):
        least, median, most = map(round, _spread(quality))
        qualities = least, median, most
    findings: list[Finding] = []
    if unreadable:
        first, files = unreadable[0], counted(len(unreadable), "file")
        message = f"{files} cannot be read (for example: {first.reason}): fix or remove unreadable files"
        findings.append(Finding("unreadable", "high", len(unreadable), first.file, message))
    if has_notable_copies(found, None if other is None else other.duplicates):
        findings.append(copies_finding(found, generated))
    findings += [*unusual_findings(inspection, other), *property_findings(images)]
    return Health(
        path=inspection.path,
        images=len(images),
        formats=_counts(records["format"].astype("U"), None),
        modes=_counts(records["mode"].astype("U"), None),
        sizes=_counts(sizes, 10),
        aspect_ratios=_spread(records["width"] / records["height"]),
        jpeg_quality=qualities,
        brightness=(float(light.mean()), float(light.std())),
        histogram=tuple((bins / bins.sum()).tolist()),
        grayscale=float((records["gray"] == 1).mean()),
        unreadable=tuple(unreadable),
        duplicates=found,
        findings=tuple(replace(each, message=shown(each.message)) for each in findings),
        passed_over=inspection.passed_over,
    )


def _counts(values: NDArray[np.str_], most: int | None) -> dict[str, int]:
    kinds, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return {str(kinds[kind]) or "unknown": int(counts[kind]) for kind in order}


def _spread(values: NDArray[Any]) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def set_warnings(sets: Mapping[str, Statistics], gaussians: Collection[str] = (FEATURES,)) -> list[Alert]:
    """Returns warnings about sets, each by itself; ``gaussians`` are the layers whose covariance is compared."""
    stated = "the file does not state its protocol: the result is only correct if it is that of this run"
    features = {name: each.layers[FEATURES] for name, each in sets.items() if FEATURES in each.layers}
    found = [Alert(f"{name}: {stated}", "medium") for name, layer in features.items() if layer.definition is None]
    if gaussians:
        found += _covariance_warnings(sets, gaussians)
    for name, statistics in sets.items():
        count, traits = statistics.count, statistics.traits
        if count is not None and count > 1 and name in features and not features[name].sigma.any():
            causes = "either they are all the same image, or the network ignores its input"
            found.append(Alert(f"{name}: all {count} images have the same features: {causes}", "high"))
        found += [Alert(f"{name}: {text}") for text in (property_warnings(vars(traits)).values() if traits else ())]
        if skipped := statistics.skipped:
            used = "" if count is None else f"; {count} images were used"
            files = f"{counted(len(skipped), 'unreadable file')} skipped (for example {skipped[0].file})"
            found.append(Alert(f"{name}: {files}{used}"))
    return found


def _covariance_warnings(sets: Mapping[str, Statistics], gaussians: Collection[str]) -> list[Alert]:
    layers = {
        (of_set.layers[name].dims, name) for of_set in sets.values() for name in gaussians if name in of_set.layers
    }
    dims, largest = max(layers, default=(0, FEATURES))
    counts = {name: statistics.count for name, statistics in sets.items() if statistics.count is not None}
    single = "a single image: its covariance is taken to be zero"
    found = [Alert(f"{name}: {single}", "high") for name, count in counts.items() if count == 1]
    distances = "sFID values" if largest == SPATIAL else "Fréchet distances"
    few = (
        f"too few for {dims} dimensions: {distances} are far too high; use more than {dims}, and to compare with a "
        "paper as many as it used (most use 50,000)"
    )
    return found + [
        Alert(f"{name} (only {count} images): {few}", "high") for name, count in counts.items() if 1 < count <= dims
    ]


def pair_warnings(
    real: Statistics, fake_name: str, fake: Statistics, frechet: bool = True, sampled: bool = True
) -> list[Alert]:
    """Returns warnings about the comparison of two sets, in addition to the `set_warnings` of each.

    ``sampled`` is whether a sample of the larger set can be used, which a statistics file does not have.
    """
    found = []
    if frechet and real.count is not None and fake.count is not None:
        ratio = max(real.count, fake.count) / min(real.count, fake.count)
        if ratio > 2:
            how = ", for example" if sampled else ": more in the smaller set, or images in place of the statistics,"
            text = (
                "the number of images differs by more than a factor of 2 from that of REAL: the bias of the Fréchet "
                f"distance depends on the smaller one; use equal numbers{how} with {option('num')}"
            )
            found.append(Alert(f"{fake_name} ({fake.count} images against {real.count}): {text}", "medium"))
    one, other = real.arithmetic, fake.arithmetic
    if one is None or other is None:
        return found
    # Earlier versions did not store the kernels, which are Inception's.
    standard = real.definition is None or real.definition.standard
    keys = ["device", "precision", "torch", *(["kernels"] if standard and "kernels" in {*one} & {*other} else [])]
    differing = [key for key in keys if one.get(key) != other.get(key)]
    if differing:
        pairs = ", ".join(f"{key} {or_none(one.get(key))} against {or_none(other.get(key))}" for key in differing)
        text = f"REAL was computed differently ({pairs}): the last digits may differ"
        if "precision" in differing:
            text = f"REAL was computed differently ({pairs}): part of the distance is due to that; compute both alike"
        found.append(Alert(f"{fake_name}: {text}", "medium" if "precision" in differing else "low"))
    elif one.get("batch_size") == other.get("batch_size"):  # on a GPU the probe batch has the batch size
        same = [each.definition for name, each in real.layers.items() if each.definition and name in fake.layers]
        probes = {f"{each.fingerprint}_probe" for each in same} & {*one} & {*other}
        if any(one[probe] != other[probe] for probe in probes):
            text = (
                "its network and that of REAL give different features for the same image, although their files and "
                "tensors are the same: code or files that they import or read have changed; compute both again"
            )
            found.append(Alert(f"{fake_name}: {text}", "high"))
    return found
