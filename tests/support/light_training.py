"""A stand-in for Lightning's Trainer and model: the parts that FIDCallback uses, with a record of
its calls.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from support.exact_sets import pixels


class Trainer(SimpleNamespace):
    """The attributes of a trainer that FIDCallback uses."""

    def __init__(self, **settings: Any) -> None:
        usual = {
            "callbacks": [],
            "current_epoch": 0,
            "fast_dev_run": 0,
            "sanity_checking": False,
            "state": SimpleNamespace(fn="fit"),
        }
        super().__init__(**{**usual, **settings})


class Model(torch.nn.Module):
    """A model whose samples have the same bits on every machine.

    Attributes:
        asked: one line per request for samples.
        logged: arguments of ``log``: names, values and keywords.
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.asked: list[str] = []
        self.logged: list[tuple[Any, ...]] = []

    def generate(self, count: int, seed: int) -> torch.Tensor:
        mode = "training" if self.training else "evaluating"
        gradients = "with" if torch.is_grad_enabled() else "without"
        self.asked.append(f"{count} of seed {seed}, {mode}, {gradients} gradients")
        return torch.from_numpy(pixels(count, seed % 2**32, 40)).permute(0, 3, 1, 2).contiguous()

    def log(self, *arguments: Any, **settings: Any) -> None:
        self.logged.append((*arguments, settings))

    def log_dict(self, values: dict[str, Any], **settings: Any) -> None:
        for name, value in values.items():
            self.log(name, value, **settings)
