"""Custom networks: ``FILE.py:NAME``, ``package.module:NAME``, and programs in files.

A program is a file written by torch.export.save (.pt2) or torch.jit.save (TorchScript). An extra
file in the archive, ``fidtool.json``, states what else defines its features: an object with
``input_size``, ``mean``, ``std`` and ``feature_step``, as in `fidtool.Network`. Only the first is
required.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from fidtool.errors import InputError, RunError, prefix_errors, summarize_error
from fidtool.features.choice import EXPORTED, NetworkChoice, is_program
from fidtool.features.network import Network
from fidtool.features.weights import silent_logging
from fidtool.sources.contents import Files, explain_errors, read_head
from fidtool.sources.kinds import refuse_foreign
from fidtool.system.local_files import check_file, read_file
from fidtool.system.user_code import load_object

_EXTRA = "fidtool.json"
_KEYS = ("input_size", "mean", "std", "feature_step")


def build(choice: NetworkChoice) -> tuple[Network, str]:
    """Load a program, or run a factory, with the caller's rights.

    A program's name for the fingerprint is the file's name with the start of its SHA-256; for that
    of a factory see `fidtool.system.user_code.load_object`. A name that the network states
    replaces the factory's. A network that the program passed has its name, or that of its module's
    class.
    """
    if isinstance(choice.given, Network):
        return choice.given, choice.extractor
    if is_program(choice.extractor):
        return _build_from_program(choice)
    named = choice.option("extractor", choice.extractor)
    network, name = load_object(choice.extractor, lambda factory: factory(), named)
    if not isinstance(network, Network):
        raise InputError(
            f"{named} returned {type(network).__name__}; it must return a fidtool.Network"
        )
    if network.name:
        _, _, digest = name.rpartition("@")
        name = f"{network.name}@{digest}"
    return network, name


def _build_from_program(choice: NetworkChoice) -> tuple[Network, str]:
    """Load a program, which can run code: see `NetworkChoice.runs_code`."""
    path = choice.extractor
    check_file(path, choice.option("extractor", path))
    with explain_errors(path):
        content = read_file(path)
    module, extra = _load_program(choice, io.BytesIO(content))
    place = f"{_EXTRA} in {path}"
    try:
        settings = json.loads(extra or "{}")
    except ValueError as error:
        raise InputError(f"{place} is not valid JSON ({error})") from None
    if not isinstance(settings, dict) or not settings.keys() <= {*_KEYS}:
        raise InputError(
            f"{place} must be a JSON object with no other keys than {', '.join(_KEYS)}"
        )
    stated = settings.setdefault("input_size", choice.input_size)
    if stated is None:
        raise choice.refused(
            "input_size",
            f"{path} does not state the size of its input:",
            f"pass {choice.option('input_size', ...)}",
            f'save the program with an extra file {_EXTRA} that holds {{"input_size": N}}',
        )
    if choice.input_size not in (None, stated):
        asked = choice.option("input_size", choice.input_size)
        raise InputError(f"{asked} contradicts {path}, which states an input of {stated} pixels")
    with prefix_errors(place):
        network = Network(module, **settings)
    return network, f"{Path(path).name}@{hashlib.sha256(content).hexdigest()[:12]}"


class _Exported(nn.Module):
    """An exported program, whose training or evaluation mode is fixed."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> _Exported:
        return self

    def forward(self, x: Tensor) -> Tensor:
        # The batch dimension may have been exported as at least two.
        alone = len(x) == 1
        try:
            output: Tensor = self.program(torch.cat([x, x]) if alone else x)
        except (AssertionError, RuntimeError) as error:
            if "Guard failed" not in str(error) and "Expected input" not in str(error):
                raise
            raise RunError(
                f"the program does not accept a batch of shape {tuple(x.shape)} "
                f"({summarize_error(error)}):",
                "export it with a dynamic batch dimension, dynamic_shapes=({0: "
                "torch.export.Dim('n')},)",
                "set input_size to the size with which it was exported",
            ) from error
        return output[:1] if alone and isinstance(output, Tensor) else output


def _load_program(choice: NetworkChoice, content: IO[bytes]) -> tuple[nn.Module, str | bytes]:
    """The program in a file, and its extra file."""
    path = choice.extractor
    exported = path.endswith(EXPORTED)
    extra: dict[str, str | bytes] = {_EXTRA: ""}
    try:
        with silent_logging(), warnings.catch_warnings():
            # The user chose this format.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            if exported:
                program = _Exported(torch.export.load(content, extra_files=extra).module())
            else:
                program = torch.jit.load(content, map_location="cpu", _extra_files=extra)  # type: ignore[no-untyped-call]
            return program, extra[_EXTRA]
    except Exception as error:  # of many types
        refuse_foreign(path, read_head(Files([path])))
        if exported:
            raise choice.refused(
                "extractor",
                f"{path} is not a program written by torch.export.save ({summarize_error(error)})",
            ) from None
        raise choice.refused(
            "extractor",
            f"{path} is not a TorchScript program ({summarize_error(error)}):",
            f"if it is a state_dict, pass it with {choice.option('weights')} and name its network "
            f"with {choice.option('extractor')}",
            "write a factory (FILE.py:NAME)",
        ) from None
