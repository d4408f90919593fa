"""The lines that stdout carries."""

from __future__ import annotations

from fidtool.results import Evaluation


def result_lines(evaluation: Evaluation) -> list[str]:
    """``FID: 12.3456``; with several FAKEs a line each, the path after the number."""
    if len(evaluation.results) == 1:
        return [f"FID: {evaluation.results[0].fid:.4f}"]
    return [f"FID: {result.fid:.4f}  {result.fake}" for result in evaluation.results]


def timing_line(evaluation: Evaluation) -> str:
    """Where the time went, for stderr."""
    run = evaluation.run
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items())
    speed = f", {run.images_per_second:.1f} images/s" if run.images_per_second else ""
    return f"{run.images_computed} images through the network{speed} ({phases})"
