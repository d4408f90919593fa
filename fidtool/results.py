"""What a run found out, ready to be printed, kept or tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fidtool.annexes import Difference, Influence, Uncertainty
from fidtool.diagnose.diagnosis import Diagnosis
from fidtool.diagnose.duplicates import Duplicates
from fidtool.features.protocol import FEATURES, Definition

SCHEMA = 1
"""Version of the result JSON. Later ones add keys and never change these."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that was left out.

    Attributes:
        set: path of its set, as given.
        file: its own path.
        reason: why it cannot be read.
    """

    set: str
    file: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """One FAKE against REAL.

    Attributes:
        real, fake: paths as they were given.
        metrics: the numbers by name: ``fid`` (the squared Fréchet distance, finite and at least 0), ``kid`` and
            ``kid_std``, ``is`` and ``is_std``, ``precision``, ``recall``, ``density``, ``coverage``, ``sfid``,
            ``fid_infinity`` and ``fid_infinity_error`` (one standard error), ``cmmd``; those that were asked for.
        count_real, count_fake: numbers of images used; None where a statistics file does not say.
        warnings: doubts about this number, a sentence each.
        skipped: files of either set that were left out, REAL's first.
        diagnosis: what is wrong with the images; None where nobody asked.
        uncertainty: how sure the FID is; None where nobody asked.
        influence: which images raise it; None where nobody asked.
    """

    real: str
    fake: str
    metrics: Mapping[str, float]
    count_real: int | None
    count_fake: int | None
    warnings: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    diagnosis: Diagnosis | None = None
    uncertainty: Uncertainty | None = None
    influence: Influence | None = None

    @property
    def fid(self) -> float:
        """The FID.

        Raises:
            ValueError: it was not among the metrics asked for.
        """
        if "fid" not in self.metrics:
            raise ValueError(f"fid was not among the metrics; there are {', '.join(self.metrics)}")
        return self.metrics["fid"]

    @property
    def duplicates(self) -> Duplicates | None:
        """The copies in FAKE; None where its images were not looked at."""
        return None if self.diagnosis is None else self.diagnosis.fake

    def to_dict(self) -> dict[str, Any]:
        """One entry of the JSON's ``results``."""
        return {
            "real": self.real,
            "fake": self.fake,
            "metrics": dict(self.metrics),
            "count": {"real": self.count_real, "fake": self.count_fake},
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "warnings": list(self.warnings),
            **{
                name: None if part is None else part.to_dict()
                for name, part in (
                    ("diagnosis", self.diagnosis),
                    ("uncertainty", self.uncertainty),
                    ("influence", self.influence),
                )
            },
        }


@dataclass(frozen=True)
class RunRecord:
    """Where and how the numbers were made.

    Attributes:
        world_size: number of ranks.
        device: hardware of rank zero's network.
        backend: what moved the statistics: none, gloo or nccl.
        precision: arithmetic of the network; empty where both sets came as statistics, whose own is in them.
        kernels: whose convolutions it ran: ``torch``, ``inductor`` or ``oneDNN, packed``; empty likewise.
        batch_size: images in a full forward pass.
        num_workers: decoding processes a rank.
        images_computed: images that went through the network in this run, over all ranks.
        forward_passes: batches that did.
        images_resumed: images whose work was in the checkpoint.
        cached: sets whose statistics came from the cache.
        probe: SHA-256 of the features of a fixed batch; equal wherever the same bits are computed.
        linear_algebra_threads: threads of the distance on rank zero.
        seconds: wall time of the phases, on rank zero.
        extraction: what of the phase ``extract`` was spent on decoding (or on waiting for the processes that do), on
            bringing pixels to the device, in the network (on a GPU: on launching it and waiting for it) and on the
            moments; these overlap.
        images_per_second: images_computed over the seconds of extraction; None without.
        versions: of Python and of the libraries that touch the numbers.
        warnings: doubts about the run as a whole.
    """

    world_size: int
    device: str
    backend: str
    precision: str
    kernels: str
    batch_size: int
    num_workers: int
    images_computed: int
    forward_passes: int
    images_resumed: int
    cached: tuple[str, ...]
    probe: str | None
    linear_algebra_threads: int
    seconds: dict[str, float]
    extraction: dict[str, float]
    images_per_second: float | None
    versions: dict[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """The outcome of a run; equal on every rank.

    Attributes:
        definitions: what defines the features, by layer; None where only files of unknown protocol were compared.
        results: one entry a FAKE, in the order given.
        run: see `RunRecord`.
        fail_above: the gate on the FID, or None.
        max_duplicates: the gate on the share of copies in a FAKE, or None.
        settings: what decides the metrics' numbers beside the features, by metric.
        differences: of each pair of FAKEs whose error bars are known, in the order given.
    """

    definitions: Mapping[str, Definition | None]
    results: tuple[Comparison, ...]
    run: RunRecord
    fail_above: float | None = None
    max_duplicates: float | None = None
    settings: Mapping[str, Mapping[str, int | bool | str]] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    @property
    def definition(self) -> Definition | None:
        """What defines the extractor's features."""
        return self.definitions[FEATURES]

    @property
    def fid(self) -> float:
        """The FID of the only FAKE.

        Raises:
            ValueError: there are several, see ``results``; or it was not among the metrics asked for.
        """
        if len(self.results) != 1:
            raise ValueError(f"there are {len(self.results)} results: read .results[i].fid")
        return self.results[0].fid

    @property
    def differences_to_best(self) -> tuple[Difference, ...]:
        """Those of the FAKE whose FID without its bias is the lowest."""
        bars = {result.fake: result.uncertainty.corrected for result in self.results if result.uncertainty}
        values = {fake: interval.value for fake, interval in bars.items() if interval is not None}
        best = min(values, key=lambda fake: values[fake], default=None)
        return tuple(each for each in self.differences if best in (each.first, each.second))

    @property
    def exit_code(self) -> int:
        """The exit policy: 3 if a gate is missed, else 0."""
        return 3 if self._missed() else 0

    @property
    def exit_reason(self) -> str:
        """Why the exit code is what it is, a sentence."""
        missed = self._missed()
        return f"gate missed: {'; '.join(missed)}" if missed else "done"

    def _missed(self) -> list[str]:
        missed = []
        if self.fail_above is not None:
            above = [f"{each.fake} has FID {each.fid:.6g}" for each in self.results if each.fid > self.fail_above]
            missed += [f"{', '.join(above)}, above {self.fail_above:g}"] if above else []
        if self.max_duplicates is not None:
            many = [
                f"{copies.share:.2%} of {each.fake} are copies"
                for each in self.results
                if (copies := each.duplicates) is not None and copies.share > self.max_duplicates
            ]
            missed += [f"{', '.join(many)}, above {self.max_duplicates:.2%}"] if many else []
        return missed

    def to_dict(self) -> dict[str, Any]:
        """The result JSON: plain dictionaries, lists, numbers and texts; floats at full precision."""
        run = asdict(self.run)
        run["cached"], run["warnings"] = list(self.run.cached), list(self.run.warnings)
        return {
            "schema": SCHEMA,
            "protocol": protocol_to_dict(self.definition),
            "layers": {
                name: protocol_to_dict(definition) for name, definition in self.definitions.items() if name != FEATURES
            },
            "settings": {name: dict(settings) for name, settings in self.settings.items()},
            "results": [result.to_dict() for result in self.results],
            "differences": [difference.to_dict() for difference in self.differences],
            "run": run,
            "exit": {"code": self.exit_code, "reason": self.exit_reason},
        }


def protocol_to_dict(definition: Definition | None) -> dict[str, Any]:
    """The JSON's ``protocol``: name, fingerprint, and everything that went into the fingerprint."""
    if definition is None:
        return {"name": None, "fingerprint": None}
    return {"name": definition.protocol_name, "fingerprint": definition.fingerprint, **asdict(definition)}
