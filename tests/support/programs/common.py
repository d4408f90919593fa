"""Common parts of the programs that tests run with torchrun: images, a small network."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))
import fidtool
from support.tiny_network import network


def pictures(count: int, seed: int, side: int = 32) -> torch.Tensor:
    """Return images of noise, uint8 of shape (count, 3, side, side); equal for equal seeds."""
    coarse = torch.randint(
        0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    return coarse.repeat_interleave(side // 8, 2).repeat_interleave(side // 8, 3)


def statistics_of(images: torch.Tensor) -> fidtool.Statistics:
    """Return mean and covariance of the small network's features, computed with NumPy."""
    with torch.no_grad():
        features = network().module((images.float() - 127.5) / 127.5).mean((2, 3)).double().numpy()
    return fidtool.Statistics.of(features.mean(0), np.cov(features, rowvar=False), len(features))


def refused(kind: type[Exception], call: Callable[[], object], *texts: str) -> str:
    """Return the message of the error that ``call`` raises, which must contain ``texts``."""
    try:
        call()
    except kind as error:
        message, own = str(error), type(error)
    else:
        raise AssertionError(f"not refused: {texts}")
    for text in texts:
        assert text in message, f"{text!r} is not in {message!r}"
    if own.__module__.startswith(("fidtool.training", "fidtool.distributed.rendezvous")):
        sys.stderr.write(f"refused: {json.dumps(f'{own.__name__}: {message}')}\n")
        sys.stderr.flush()
    return message


def say(line: str) -> None:
    """Print with a single write, because the ranks share the pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


__all__ = ["fidtool", "network", "pictures", "refused", "say", "statistics_of"]
