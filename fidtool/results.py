"""What a run found out, ready to be printed, kept or tested."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fidtool.features.protocol import Definition


@dataclass(frozen=True)
class Comparison:
    """One FAKE against REAL.

    Attributes:
        real, fake: paths as they were given.
        fid: the squared Fréchet distance, finite and at least 0.
        count_real, count_fake: numbers of images used; None where a statistics file does not say.
        warnings: doubts about this number, a sentence each.
        skipped: files that were left out.
    """

    real: str
    fake: str
    fid: float
    count_real: int | None
    count_fake: int | None
    warnings: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """Where and how the numbers were made.

    Attributes:
        world_size: number of ranks.
        device: hardware of rank zero's network.
        backend: what moved the statistics: none, gloo or nccl.
        precision: arithmetic of the network.
        batch_size: images in a full forward pass.
        num_workers: decoding processes a rank.
        images_computed: images that went through the network in this run, over all ranks.
        forward_passes: batches that did.
        cached: sets whose statistics came from the cache.
        probe: SHA-256 of the features of a fixed batch; equal wherever the same bits are computed.
        linear_algebra_threads: threads of the distance on rank zero.
        seconds: wall time of the phases, on rank zero.
        images_per_second: images_computed over the seconds of extraction; None without.
        versions: of Python and of the libraries that touch the numbers.
        warnings: doubts about the run as a whole.
    """

    world_size: int
    device: str
    backend: str
    precision: str
    batch_size: int
    num_workers: int
    images_computed: int
    forward_passes: int
    cached: tuple[str, ...]
    probe: str | None
    linear_algebra_threads: int
    seconds: dict[str, float]
    images_per_second: float | None
    versions: dict[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """The outcome of a run; equal on every rank.

    Attributes:
        definition: what defines the number; None where only files of unknown protocol were compared.
        results: one entry a FAKE, in the order given.
        run: see `RunRecord`.
        fail_above: the gate, or None.
    """

    definition: Definition | None
    results: tuple[Comparison, ...]
    run: RunRecord
    fail_above: float | None = field(default=None)

    @property
    def fid(self) -> float:
        """The FID of the only FAKE.

        Raises:
            ValueError: there are several; see ``results``.
        """
        if len(self.results) != 1:
            raise ValueError(f"there are {len(self.results)} results: read .results[i].fid")
        return self.results[0].fid

    @property
    def exit_code(self) -> int:
        """The exit policy: 3 if a FID is above the gate, else 0."""
        return 3 if self._missed() else 0

    @property
    def exit_reason(self) -> str:
        """Why the exit code is what it is, a sentence."""
        missed = [f"{result.fake} has FID {result.fid:.4f}" for result in self._missed()]
        return f"gate missed: {', '.join(missed)}, above {self.fail_above:g}" if missed else "done"

    def _missed(self) -> list[Comparison]:
        if self.fail_above is None:
            return []
        return [result for result in self.results if result.fid > self.fail_above]

    def to_dict(self) -> dict[str, Any]:
        """The result JSON as a dictionary; see `fidtool.report.as_json`."""
        from fidtool.report.as_json import evaluation_to_dict

        return evaluation_to_dict(self)
