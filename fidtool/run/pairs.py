"""Pairs of images in a run: which belong together, and the values of each pair."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, ProgramError, prefix_errors, summarize_error
from fidtool.features.hashes import hash_state_dict
from fidtool.features.resize import ImageTensors
from fidtool.metrics.pairs import Compare, PairMetric
from fidtool.reading.records import ImageRecords
from fidtool.result.explanations import ImageValues, WorstPair
from fidtool.result.values import Value
from fidtool.run.context import RunContext
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.set_statistics import MeasuredSet

# Number of the worst pairs by each metric that a page can show.
_MAX_WORST = 12


class PairEvaluator:
    """The metrics of pairs of a run on this rank. The constructor is a collective.

    Attributes:
        recorded: the SHA-256 of the tensors of metrics with a network, by the name of the metric,
            for the record.
    """

    def __init__(self, run: RunContext, metrics: Sequence[PairMetric]) -> None:
        self.metrics = metrics
        self._functions: list[Compare] = []
        self.recorded: dict[str, dict[str, Any]] = {}
        world = run.world
        for metric in metrics:
            state = world.on_rank_zero(partial(metric.fetch, run.console.say))
            with world.together():
                self._functions.append(metric.on_device(state, run.device.torch_device))
            if state is not None:
                self.recorded[metric.name] = {"weights_sha256": hash_state_dict(state.tensors)}

    def values(
        self, real: ImageTensors, fake: ImageTensors, files: Sequence[str]
    ) -> NDArray[np.float64]:
        """Return a row of values for each pair, see `PairMetric.of_pair`. Called in any thread.

        Args:
            files: names of the pairs, for messages.
        """
        values = np.empty((len(fake), len(self.metrics)))
        for row, images in enumerate(zip(real, fake, strict=True)):
            # A program's metric may keep them, and their memory is used again.
            pair = [image.clone() for image in images]
            with prefix_errors(files[row]):
                values[row] = [
                    _compare(metric, function, *pair)
                    for metric, function in zip(self.metrics, self._functions, strict=True)
                ]
        return values


def _compare(
    metric: PairMetric, function: Compare, real: torch.Tensor, fake: torch.Tensor
) -> float:
    try:
        value = float(function(real, fake))
    except FidtoolError:
        raise
    except (Exception, SystemExit) as error:  # custom metrics may raise anything
        raise ProgramError(f"the metric {metric.name} failed: {summarize_error(error)}") from error
    if not math.isfinite(value):
        raise ProgramError(f"the metric {metric.name} is {value}")
    return value


def image_values(
    real: ImageSet | None,
    fake: ImageSet | None,
    measured: MeasuredSet,
    values: Mapping[str, NDArray[np.float64]],
) -> ImageValues:
    """Return the values of single images of a FAKE with the paths of these. On rank 0.

    Args:
        real, fake: the images of both sets; None for statistics.
        measured: the FAKE.
        values: by key, arrays of the length of the set.
    """
    statistics = measured.statistics
    count = len(next(iter(values.values())))
    known: ImageRecords | ImageSet | None = statistics.pictures
    if known is None and not statistics.skipped:
        known = fake
    if known is not None:
        files = [*map(known.file, range(count))]
    else:
        numbers = range(count) if statistics.order is None else statistics.order.tolist()
        files = [f"{measured.path}[{number}]" for number in numbers]
    partners = []
    if measured.pairs and real is not None:
        partners = [*map(real.file, range(count))]
    return ImageValues(files, partners, values)


def find_worst_pairs(of_images: ImageValues, known: Iterable[Value]) -> tuple[WorstPair, ...]:
    """Return the worst pairs of images by each metric of pairs, for a page."""
    worst = []
    if not of_images.partners:
        return ()
    for value in known:
        numbers = of_images.values.get(value.key)
        if numbers is None:
            continue
        order = np.argsort(-numbers if value.number.better == "lower" else numbers, kind="stable")
        for row in order[:_MAX_WORST].tolist():
            file = of_images.files[row]
            partner = of_images.partners[row]
            worst.append(WorstPair(file, partner, value.key, float(numbers[row])))
    return tuple(worst)
