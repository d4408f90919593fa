"""Images that a function or a network of the calling program generates."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from fidtool.errors import InputError

Items = Generator[Any, None, None]
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients. Restores the modules' modes and the random state afterwards."""
    modes = {child: child.training for child in module.modules()}
    device = next(iter(module.parameters()), torch.zeros(0)).device
    if device.type != "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.device("cuda", torch.cuda.current_device())
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for child, mode in modes.items():
            child.training = mode


def generator_of(images: Any, latent: int | tuple[int, ...] | None, name: str) -> Callable[[int, int], Items] | None:
    """Returns a function that generates a number of images with a seed; None if ``images`` are no generator.

    Its iterator must be closed; until then, torch is in the generator's state.
    """
    function: Any
    if isinstance(images, torch.nn.Module):
        if latent is None:
            problem = f"{name} is a network ({type(images).__name__}), whose input is not known:"
            other = "pass a function, such as lambda n: network(torch.randn(n, 512))"
            raise InputError(problem, "pass fidtool.Images(network, latent=512) for normal noise", other)
        shape = (latent,) if isinstance(latent, int) else tuple(latent)
        device = next(iter(images.parameters()), torch.zeros(0)).device
        function, module = lambda count: images(torch.randn(count, *shape, device=device)), images
    elif not callable(images) or isinstance(images, type) or hasattr(images, "__iter__") or hasattr(images, "__len__"):
        return None
    else:
        function, module = images, torch.nn.Module()

    def called(count: int, seed: int) -> Any:
        parameters = inspect.signature(function).parameters
        asked = [each for each in parameters.values() if each.name != "seed" and each.kind not in _BY_NAME]
        numbers = (count,) if asked else ()
        if "seed" in parameters:
            return function(*numbers, seed=seed)
        wanted = [each for each in asked[1:2] if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
        return function(count, seed) if wanted else function(*numbers)

    def generate(count: int, seed: int) -> Items:
        with evaluating(module):
            torch.manual_seed(seed)
            result = called(count, seed)
            yield from result if isinstance(result, Iterator) else (result,)

    return generate
