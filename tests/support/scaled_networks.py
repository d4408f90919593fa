"""Networks that state no step of their features, which are usual, large or small."""

import os
import time

import torch

import fidtool

LOG = os.environ.get("FORWARD_LOG")
"""A file in which each pass, then a slow one, is counted."""


class Means(torch.nn.Module):
    """Means of the colours in the quarters of an image, times a factor: a plain module."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if LOG is not None:
            time.sleep(0.02)
            with open(LOG, "ab") as file:
                file.write(b".")
        quarters = torch.nn.functional.adaptive_avg_pool2d(x.float(), 2)
        return quarters.flatten(1) * self.factor


def means() -> fidtool.Network:
    """Return a network whose features are below 1."""
    return fidtool.Network(Means(), input_size=16, name="means")


def large() -> fidtool.Network:
    """Return a network with features up to 1e4."""
    return fidtool.Network(Means(1e4), input_size=16, name="large")


def small() -> fidtool.Network:
    """Return a network with features of 1e-5."""
    return fidtool.Network(Means(1e-5), input_size=16, name="small")
