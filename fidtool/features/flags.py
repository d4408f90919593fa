"""Whose network an error is about, until the statistics themselves know the setting of their step."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from fidtool.errors import FidtoolError, about
from fidtool.features.protocol import EMBEDDING

_STEP = re.compile(r"pass --feature-step -?\d+")


def extractor_flag(layer: str) -> str:
    """The flag that names a layer's network."""
    return "--cmmd-extractor" if layer == EMBEDDING else "--extractor"


@contextlib.contextmanager
def told_of(layer: str, fixed_step: bool = False) -> Iterator[None]:
    """Errors from within are told of this layer's network, with a step that its own setting can take.

    Args:
        layer: `FEATURES`, `SPATIAL` or `EMBEDDING`.
        fixed_step: its step is part of a standard.
    """
    with about("CMMD's network" if layer == EMBEDDING else ""):
        try:
            yield
        except FidtoolError as error:
            if layer == EMBEDDING:
                error.problem = error.problem.replace("pass --feature-step", "pass --cmmd-feature-step")
            if fixed_step:
                error.problem = _STEP.sub("Inception's step is fixed, so check the weights", error.problem)
            raise
