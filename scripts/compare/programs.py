"""Programs that use fidtool's Python API: ``programs.py NAME``. Each rank prints its results as one JSON list."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn

import fidtool
import fidtool.training

networks: Any = importlib.import_module("networks")
"""The copy of `compare.networks` next to the copy of this file."""
REAL = "../inputs/real"
SMALL = "../inputs/modules/networks.py:network"
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
PIXELS = np.load("../inputs/images.npy")
SEEN: list[Any] = []
"""Results to print at the end."""


def say(what: str, value: object) -> None:
    """Record a result. Numbers are exact, arrays are recorded as their SHA-256."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy() if value.ndim else float(value)
    if isinstance(value, float):
        value = value.hex()
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        value = f"{value.dtype.str} {value.shape} {digest}"
    SEEN.append(f"{what}: {value}")


def refused(what: str, call: Callable[[], object]) -> None:
    """Record the exception that ``call`` raises."""
    try:
        say(what, f"no error, but a {type(call()).__name__}")
    except Exception as error:
        say(what, f"{public_name(type(error))} {error!r}")


def public_name(kind: type) -> str:
    """Return the public name of an exception, e.g. ``fidtool.InputError``; empty if it is not one of fidtool's."""
    for each in kind.__mro__:
        if each.__name__ in fidtool.__all__ and getattr(fidtool, each.__name__) is each:
            return f"fidtool.{each.__name__}"
    return ""


def evaluated(real: Any, fake: Any, **settings: Any) -> None:
    """Record the JSON of a run with the small network."""
    evaluation = fidtool.compute(real, fake, **{"extractor": SMALL, "cache": False, **settings})
    SEEN.append(evaluation.to_dict())


class Samples(torch.utils.data.Dataset[Any]):
    """Pairs of an image and its label."""

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(PIXELS[index]).permute(2, 0, 1) / 255, 7


def names() -> None:
    """All public names, with their parameters and defaults, and the public methods of classes."""
    for module in (fidtool, fidtool.training):
        say(module.__name__, sorted(module.__all__))
        say("dir", dir(module))
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            say(name, parameters(thing))
            if isinstance(thing, type):
                own = [each for each in dir(thing) if not each.startswith("_") and each not in dir(nn.Module)]
                for method in own:
                    say(f"  {name}.{method}", parameters(inspect.getattr_static(thing, method)))
                if issubclass(thing, BaseException):
                    say("  bases", [each.__name__ for each in thing.__mro__])
    refused("an unknown name", lambda: fidtool.nonsense)
    say("version", fidtool.__version__)


def parameters(thing: Any) -> str:
    """Return the names, kinds and defaults of parameters, without the annotations, which can be spelled differently."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return type(thing).__name__
    return ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in found)


def sequences() -> None:
    """Pillow images, arrays, floats, bytes of files, a Dataset and a DataLoader."""
    evaluated(REAL, [Image.fromarray(each) for each in PIXELS])
    evaluated(REAL, fidtool.Images(PIXELS, name="mine"), metrics=["fid", "kid", "prdc"], kid_subset_size=9)
    evaluated(REAL, torch.from_numpy(PIXELS).permute(0, 3, 1, 2) / 255, value_range=(0, 1), num=20, seed=3)
    evaluated(REAL, [file.read_bytes() for file in sorted(Path("../inputs/fake").iterdir())])
    evaluated(REAL, fidtool.Images(sorted(Path("../inputs/fake").iterdir())[:9]))
    evaluated(Samples(), REAL, value_range=(0, 1), num_workers=0)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=5)
    evaluated(REAL, fidtool.Images(loader, sharded=False), value_range=(0, 1))
    evaluated(REAL, [fidtool.Images(PIXELS, name="one"), fidtool.Images(PIXELS[::2].copy(), name="two"), REAL + "/"])


def iterables() -> None:
    """Iterables that can be read once. Each rank yields its own share."""

    def images() -> Iterator[torch.Tensor]:
        for i in range(RANK, 30, RANKS):
            generator = torch.Generator().manual_seed(fidtool.sample_seed(0, i))
            yield torch.rand(3, SIZE, SIZE, generator=generator)

    evaluated(REAL, fidtool.Images(images(), sharded=True), value_range=(0, 1))
    evaluated(REAL, fidtool.Images(iter(PIXELS), sharded=False), num=10)


SIZE = 32


FILES = ("report", "plot", "weights", "checkpoint")


def refusals() -> None:
    """Wrong values for every keyword of every function, and arguments that are not images."""
    functions: dict[str, Callable[..., object]]
    functions = {"compute": fidtool.compute, "compute_statistics": fidtool.compute_statistics, "check": fidtool.check}
    for name, function in functions.items():
        images = [REAL, "../inputs/fake"][: 2 if name == "compute" else 1]
        settings: dict[str, Any] = {} if name == "check" else {"extractor": SMALL, "cache": False}
        call = functools.partial(function, *images, **settings)
        for keyword, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                for value in (nn.Identity, -7, "nonsense"):
                    if keyword == "compiled" or (keyword in FILES and isinstance(value, str)):
                        continue
                    refused(f"{name}({keyword}={value!r})", functools.partial(call, **{keyword: value}))
        refused(f"{name}(nonsense=1)", functools.partial(call, nonsense=1))
    arrays: list[Any] = [np.zeros((2, 4, 4, 3)), [np.zeros((4, 4, 3))]]
    for given in ([], [3], "", 5, {"a": 1}, iter([]), [b"no image"], *arrays):
        refused(f"images {type(given).__name__}", functools.partial(evaluated, REAL, given))
    refused("one set twice", lambda: evaluated(REAL, REAL))


def looks() -> None:
    """`check`, and the attributes of the result of `compute`."""
    checkup = fidtool.check(PIXELS, against=REAL, num_workers=0)
    SEEN.append(checkup.to_dict())
    say("findings", [(where, finding.code, finding.message) for where, finding in checkup.findings])
    shown = {"report": "page.html", "plot": Path("curve.png")}
    settings: dict[str, Any] = {"extractor": SMALL, "cache": False, "influence": True, "fail_above": 0, **shown}
    evaluation = fidtool.compute(REAL, "../inputs/copies", **settings)
    say("fid", evaluation.fid)
    say("distance", evaluation.frechet_distance)
    say("exit", (evaluation.exit_code, evaluation.exit_reason))
    for result in evaluation.results:
        say("warnings", result.warnings)
        say("duplicates", result.duplicates)
        say("influence", result.influence)
        say("titles", result.titles)
    say("seeds", [fidtool.sample_seed(5, 3), fidtool.sample_seed(0, 10**6), fidtool.rank_seed(4)])


def statistics() -> None:
    """Statistics: computed, written, read, and their distance."""
    found = [fidtool.compute_statistics(each, extractor=SMALL, metrics="fid,kid") for each in (REAL, PIXELS)]
    if RANK == 0:
        first, second = (each for each in found if each is not None)
        for name in ("mu", "sigma", "features"):
            say(name, np.asarray(getattr(first, name)))
        say("settings", (first.count, first.found, first.config, first.traits, first.skipped, first.dims))
        fidtool.write_statistics("kept.npz", first)
        again = fidtool.read_statistics("kept.npz")
        say("again", again.sigma)
        say("distance", fidtool.frechet_distance(first.mu, first.sigma, second.mu, second.sigma))
        refused("shapes", lambda: fidtool.frechet_distance(first.mu, first.sigma[:2], second.mu, second.sigma))
        for name in ("damaged", "shapes", "nan", "asymmetric", "nothing"):
            refused(name, functools.partial(fidtool.read_statistics, f"../inputs/{name}.npz"))


def noise(count: int, seed: int) -> torch.Tensor:
    """Return noise of shape (count, 3, 20, 20), uint8."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 20, 20), dtype=torch.uint8, generator=generator)


def metric() -> None:
    """The metric for training loops: values, saved state, errors, warnings."""
    from fidtool.training import FrechetInceptionDistance

    fid = FrechetInceptionDistance(networks.network())
    for real in (True, False):
        for number in range(RANK, 12, RANKS):
            fid.update(noise(3, number + 100 * real) // (1 + real), real=real)
    say("value", fid.compute())
    say("result", fid.result)
    say("reference", fid.reference_digest)
    with fid.sync_context():
        for name, tensor in fid.state_dict().items():
            say(name, tensor)
    fid.reset()
    refused("nothing", fid.compute)
    refused("floats", lambda: fid.update(noise(2, 1) / 255, real=True))
    refused("layer", lambda: FrechetInceptionDistance(65))
    alone = FrechetInceptionDistance(
        networks.network(), normalize=True, sync_on_compute=False, reset_real_features=False
    )
    for real in (True, False):
        alone.update(noise(20, real + 5) / 255, real=real)
    say("alone", alone.compute())
    alike = FrechetInceptionDistance(networks.network(), real_statistics=statistics_of())
    alike.update(noise(20, 3), real=False)
    say("alike", alike.compute())


def statistics_of() -> fidtool.Statistics:
    """Return statistics with as many dimensions as the small network has."""
    with np.load("../inputs/foreign.npz") as file:
        # In the first frozen versions, the class itself takes these arguments.
        of: Any = getattr(fidtool.Statistics, "of", fidtool.Statistics)
        found: fidtool.Statistics = of(file["mu"], file["sigma"], 48)
    return found


def losses() -> None:
    """The loss and its gradient, gathering, wrapping, and the checks between ranks."""
    from fidtool import training

    rows = torch.randn(40, 16, generator=torch.Generator().manual_seed(1)).double()
    mine = rows[RANK::RANKS].clone().requires_grad_()
    for queue in (0, 30):
        loss = training.FrechetLoss(statistics_of(), queue=queue)
        for _ in range(2):
            mine.grad = None
            value = loss(mine)
            torch.autograd.backward(value)
            say(f"loss, queue {queue}", value)
            say("gradient", mine.grad)
    for mode in ("sum", "mean", "local"):
        mine.grad = None
        joined = training.gather_with_grad(mine, grad=mode)
        torch.autograd.backward(joined.tanh().sum() * (RANK + 1))
        say(f"gathered, {mode}", joined)
        say("gradient", mine.grad)
    wrong: Any = "all"
    refused("mode", lambda: training.gather_with_grad(mine, grad=wrong))
    refused("loss", lambda: training.FrechetLoss(statistics_of())(mine[:, :3]))
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, 1.0 + RANK)
    say("wrapped", type(training.wrap_trainable(layer)).__name__)
    refused("optimizer", lambda: training.assert_optimized(layer, torch.optim.SGD(nn.Linear(1, 1).parameters())))
    drifted = nn.Linear(3, 2)
    nn.init.constant_(drifted.weight, 1.0 + RANK)
    nn.init.zeros_(drifted.bias)
    refused("in sync", lambda: training.assert_in_sync(drifted))
    extractor = training.FeatureExtractor(networks.other())
    images = (noise(3, 1) / 255).requires_grad_()
    features = extractor(images)
    torch.autograd.backward(features.sum())
    say("features", features)
    say("their gradient", images.grad)


def lightning() -> None:
    """The Lightning callback in a short training run."""
    import lightning.pytorch as pl

    from fidtool.training import FIDCallback

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def generate(self, count: int, seed: int) -> torch.Tensor:
            return noise(count, seed % 2**32) // (int(self.current_epoch) + 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    callback = FIDCallback("generate", statistics_of(), num_samples=40, feature=networks.network(), batch_size=16)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], enable_checkpointing=False, **quiet)
    rows: Any = torch.zeros(4, 4)
    trainer.fit(Model(), torch.utils.data.DataLoader(rows, batch_size=2))
    say("fid", callback.fid)
    say("logged", {name: float(value).hex() for name, value in trainer.callback_metrics.items()})
    say("state", callback.state_key)
    refused("samples", lambda: FIDCallback("generate", statistics_of(), num_samples=1))


PROGRAMS = {
    each.__name__: each
    for each in (names, sequences, iterables, refusals, looks, statistics, metric, losses, lightning)
}

if __name__ == "__main__":
    warnings.simplefilter("always", fidtool.FidtoolWarning)
    if RANKS > 1 and sys.argv[1] in ("metric", "losses"):
        dist.init_process_group("gloo")
    try:
        PROGRAMS[sys.argv[1]]()
    finally:
        print(json.dumps(SEEN, indent=1), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
