"""The metric's value equals that of ``fidtool compute``, with and without torchmetrics
installed.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fidtool
from fidtool.training import FIDCallback, FrechetInceptionDistance, KernelInceptionDistance
from support.command_line import Run
from support.light_training import Model, Trainer
from support.pictures import fill, pictures
from support.places import COLOURS, PROGRAMS, TINY
from support.small_sets import make_sets
from support.tiny_network import network


def test_the_value_equals_that_of_the_command(
    metric: FrechetInceptionDistance, tmp_path: Path, environment: object
) -> None:
    for name, images in (("real", pictures(20, 1)), ("fake", pictures(20, 2) // 2)):
        (tmp_path / name).mkdir()
        for number, image in enumerate(images):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / name / f"{number}.png")
    fill(metric)
    evaluation = fidtool.compute(tmp_path / "real", tmp_path / "fake", extractor=TINY, cache=False)
    assert float(metric.compute()) == pytest.approx(evaluation.frechet_distance, rel=1e-9)
    assert metric.result is not None
    assert (metric.result.real, metric.result.fake, metric.result.scope) == (20, 20, "this process")
    named = FrechetInceptionDistance(TINY)
    fill(named)
    assert float(named.compute()) == float(metric.compute())


def test_without_torchmetrics(program: Run) -> None:
    """The same program without torchmetrics."""
    done = program(
        "import sys, copy, warnings\n"
        "sys.modules['torchmetrics'] = None\n"
        f"sys.path[:0] = [{str(PROGRAMS)!r}]\n"
        "from common import fidtool, network, pictures\n"
        "from fidtool.training import FrechetInceptionDistance\n"
        "warnings.simplefilter('ignore')\n"
        "metric = FrechetInceptionDistance(network()).to('cpu').half()\n"
        "metric.update(pictures(20, 1), real=True)\n"
        "metric(pictures(20, 2), real=False)\n"
        "value = metric.compute()\n"
        "other = FrechetInceptionDistance(network())\n"
        "metric.persistent(True)\n"
        "other.load_state_dict(metric.state_dict())\n"
        "assert value == other.compute() == metric.clone().compute()\n"
        "metric.reset()\n"
        "from fidtool.training.synced_metric import PlainMetric\n"
        "try:\n"
        "    metric.plot(value)\n"
        "except fidtool.InputError as error:\n"
        "    assert 'torchmetrics[visual]' in str(error)\n"
        "else:\n"
        "    raise AssertionError('there are no plots')\n"
        "print(isinstance(metric, PlainMetric), float(value).hex())\n"
    )
    assert done.status == 0, done.stderr
    sys.path.append(str(PROGRAMS))
    from common import pictures as shared

    metric = FrechetInceptionDistance(network())
    metric.update(shared(20, 1), real=True)
    metric.update(shared(20, 2), real=False)
    assert done.stdout.split() == ["True", float(metric.compute()).hex()]


def test_settings_of_a_network_in_its_value(tmp_path: Path) -> None:
    real, fake = make_sets(tmp_path)
    value = f"{COLOURS}@step=14,protocol=Clean"
    metric = FrechetInceptionDistance(value, normalize=True)
    evaluation = fidtool.compute(real, fake, extractor=value, cache=False)
    for side, path in (("real", real), ("fake", fake)):
        for file in sorted(path.iterdir()):
            metric.update(pixels_of(file), real=side == "real")
    assert float(metric.compute()) == evaluation.frechet_distance
    references = {
        FrechetInceptionDistance(f"{COLOURS}@{settings}").reference_digest
        for settings in ("step=18", "step=14", "protocol=clean", "step=14,protocol=clean")
    }
    assert len(references) == 4
    assert metric.reference_digest in references


def pixels_of(file: Path) -> torch.Tensor:
    """A batch of one image, as floats."""
    with Image.open(file) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None] / 255


def test_real_statistics_of_several_networks(here: Run, tmp_path: Path) -> None:
    """Each metric takes those of its own network; from a file, from memory and in the callback."""
    real, _ = make_sets(tmp_path)
    arguments = ("--no-cache", "--metrics", "kid", "--extractor")
    assert (
        here("stats", real, "-o", "both.npz", *arguments, f"{TINY},{COLOURS}@step=14").status == 0
    )
    assert here("stats", real, "-o", "tiny.npz", *arguments, TINY).status == 0
    assert here("stats", real, "-o", "colours.npz", *arguments, f"{COLOURS}@step=14").status == 0
    both = tmp_path / "both.npz"
    for feature, name in ((TINY, "tiny.npz"), (f"{COLOURS}@step=14", "colours.npz")):
        for kind in (FrechetInceptionDistance, partial(KernelInceptionDistance, subset_size=10)):
            references = both, fidtool.read_statistics(both), tmp_path / name
            metrics = [kind(feature, real_statistics=reference) for reference in references]
            for metric in metrics:
                metric.update(pictures(30, 3), real=False)
            joint, in_memory, own = (metric.compute() for metric in metrics)
            assert joint == in_memory == own
            assert len({metric.reference_digest for metric in metrics}) == 1
        digests = []
        for reference in (*references, real):  # a folder too
            callback = FIDCallback("generate", reference, num_samples=10, feature=feature)
            callback.on_fit_start(Trainer(callbacks=[callback]), Model())
            digests.append(callback.state_dict()["reference"])
        assert len({*digests}) == 1
    with pytest.raises(fidtool.InputError, match=r"both\.npz and this metric differ"):
        FrechetInceptionDistance(network_of_16(), real_statistics=both)


def network_of_16() -> fidtool.Network:
    """A network with as many features as that of the file, but another one."""
    return fidtool.Network(torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3)), input_size=16)
