"""Pairs of images in a run: which belong together, and the values of each pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import FidtoolError, ProgramError, about, in_short
from fidtool.features.network import digest_of
from fidtool.features.resize import ImageTensors
from fidtool.metrics.pairs import Compare, PairMetric
from fidtool.result.explanations import ImageValues, WorstPair
from fidtool.result.values import Value
from fidtool.run.context import RunContext
from fidtool.sources.image_set import ImageSet
from fidtool.statistics.set_statistics import MeasuredSet

_MOST_WORST = 12
"""Number of the worst pairs by each metric that a page can show."""


class Pairs:
    """The metrics of pairs of a run on this rank. The constructor is a collective.

    Attributes:
        recorded: the SHA-256 of the tensors of metrics with a network, by the name of the metric,
            for the record.
    """

    def __init__(self, run: RunContext, metrics: Sequence[PairMetric]) -> None:
        self.metrics, self._functions = metrics, list[Compare]()
        self.recorded: dict[str, dict[str, Any]] = {}
        for metric in metrics:
            state = run.world.broadcast(
                run.world.only_on_rank_zero(partial(metric.fetch, run.console.say))
            )
            with run.world.together():
                self._functions.append(metric.on_device(state, run.device.torch_device))
            if state is not None:
                self.recorded[metric.name] = {"weights_sha256": digest_of(state.tensors)}

    def values(
        self, real: ImageTensors, fake: ImageTensors, files: Sequence[str]
    ) -> NDArray[np.float64]:
        """Returns a row of values for each pair, see `PairMetric.of_pair`. Called in any thread.

        Args:
            files: names of the pairs, for messages.
        """
        found = np.empty((len(fake), len(self.metrics)))
        for number, images in enumerate(zip(real, fake, strict=True)):
            pair = [
                image.clone() for image in images
            ]  # a program's metric may keep them, and theirs is used again
            for column, (metric, function) in enumerate(
                zip(self.metrics, self._functions, strict=True)
            ):
                with about(files[number]):
                    try:
                        value = float(function(*pair))
                    except FidtoolError:
                        raise
                    except (Exception, SystemExit) as error:  # custom metrics may raise anything
                        raise ProgramError(
                            f"the metric {metric.name} failed: {in_short(error)}"
                        ) from error
                    if not np.isfinite(value):
                        raise ProgramError(f"the metric {metric.name} is {value}")
                    found[number, column] = value
        return found


def image_values(
    real: ImageSet | None,
    fake: ImageSet | None,
    measured: MeasuredSet,
    values: Mapping[str, NDArray[np.float64]],
) -> ImageValues:
    """Returns the values of single images of a FAKE with the paths of these. On rank zero.

    Args:
        real, fake: the images of both sets; None for statistics.
        measured: the FAKE.
        values: by key, arrays of the length of the set.
    """
    count, pictures = len(next(iter(values.values()))), measured.statistics.pictures
    order, known = (
        measured.statistics.order,
        pictures or (fake if not measured.statistics.skipped else None),
    )
    numbers = range(count) if order is None else order.tolist()
    files = (
        [f"{measured.path}[{number}]" for number in numbers]
        if known is None
        else [*map(known.file, range(count))]
    )
    partners = map(real.file, range(count)) if measured.pairs and real is not None else ()
    return ImageValues(files, [*partners], values)


def worst_pairs(single: ImageValues, known: Iterable[Value]) -> tuple[WorstPair, ...]:
    """Returns the worst pairs of images by each metric of pairs, for a page."""
    found = list[WorstPair]()
    for value in known if single.partners else ():
        if (numbers := single.values.get(value.key)) is None:
            continue
        order = np.argsort(-numbers if value.number.better == "lower" else numbers, kind="stable")
        for image in order[:_MOST_WORST].tolist():
            found.append(
                WorstPair(
                    single.files[image], single.partners[image], value.key, float(numbers[image])
                )
            )
    return tuple(found)
