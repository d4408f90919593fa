"""The metric's value equals that of ``fidtool compute``, with and without torchmetrics installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fidtool
from fidtool.training import FrechetInceptionDistance
from support.command_line import Run
from support.pictures import fill, pictures
from support.places import PROGRAMS, TINY
from support.tiny_network import network


def test_the_value_equals_that_of_the_command(
    metric: FrechetInceptionDistance, tmp_path: Path, environment: object
) -> None:
    from PIL import Image

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
        "from common import network, pictures\n"
        "from fidtool.training import FrechetInceptionDistance\n"
        "warnings.simplefilter('ignore')\n"
        "metric = FrechetInceptionDistance(network()).to('cpu').half()\n"
        "assert not metric.update_called\n"
        "metric.update(pictures(20, 1), real=True)\n"
        "metric(pictures(20, 2), real=False)\n"
        "assert metric.update_called and metric.update_count == 2\n"
        "value = metric.compute()\n"
        "other = FrechetInceptionDistance(network())\n"
        "other.load_state_dict(metric.state_dict())\n"
        "assert value == other.compute() == metric.clone().compute()\n"
        "metric.reset()\n"
        "assert not metric.update_called\n"
        "print(type(metric).__mro__[2].__name__, float(value).hex())\n"
    )
    assert done.status == 0, done.stderr
    sys.path.append(str(PROGRAMS))
    from common import pictures as shared

    metric = FrechetInceptionDistance(network())
    metric.update(shared(20, 1), real=True)
    metric.update(shared(20, 2), real=False)
    assert done.stdout.split() == ["PlainMetric", float(metric.compute()).hex()]
