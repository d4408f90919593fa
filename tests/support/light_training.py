"""A training without Lightning's Trainer: as much of one as FIDCallback asks, and it writes down what it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from support.exact_sets import pixels


class Trainer(SimpleNamespace):
    """As much of a trainer as FIDCallback looks at."""

    def __init__(self, **settings: Any) -> None:
        usual = {"callbacks": [], "current_epoch": 0, "sanity_checking": False, "state": SimpleNamespace(fn="fit")}
        super().__init__(**{**usual, **settings})


class Model(torch.nn.Module):
    """Its samples are pictures that are the same bits everywhere.

    Attributes:
        asked: a line for each time that samples were asked for.
        logged: what ``log`` was given: names, values and keywords.
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
