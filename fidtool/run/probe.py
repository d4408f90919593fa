"""What a run knows of the features before its networks are built: the steps in its statistics
files, and the first images of REAL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fidtool.reading.batches import Batch, plan_batches
from fidtool.reading.loader import load_pieces
from fidtool.run.context import RunContext
from fidtool.run.extract import decode_options, split_images
from fidtool.run.opening import OpenedInputs
from fidtool.run.sets import RequestedSet, SetPlan
from fidtool.settings.settings import Settings
from fidtool.sources.image_set import ImageSet
from fidtool.sources.memory import Images
from fidtool.statistics.set_statistics import Statistics

# Number of images of REAL. It does not depend on the batch size, nor should a step.
_IMAGES = 8


@dataclass(frozen=True)
class Probe:
    """What decides on the steps of features that nobody states. Only that of rank 0 is used.

    Attributes:
        steps: those of statistics files, by the layer of the features.
        read: returns the first images of REAL, uint8 tensors of shape (height, width, 3).
    """

    steps: Mapping[str, int] = field(default_factory=dict)
    read: Callable[[], Sequence[Tensor]] = list


def make_probe(
    run: RunContext,
    opening: OpenedInputs,
    requests: Sequence[RequestedSet],
    batch_size: int,
    before: Statistics | None,
) -> Probe:
    """Return the probe of a run, on rank 0. ``before`` are earlier statistics of the set."""
    settings = opening.settings
    files = [file.layers for file in opening.files.values()]
    if before is not None:
        files.insert(0, before.layers_of(settings.networks))
    steps: dict[str, int] = {}
    for layers in files:
        for name, layer in layers.items():
            if layer.definition is not None:
                steps.setdefault(name, layer.definition.feature_step)

    def read() -> list[Tensor]:
        for set_plan, content in opening.contents.items():
            if set_plan.holds == "stream":
                given = requests[set_plan.request].data
                assert isinstance(given, Images)
                return _read_stream(run, given, set_plan, settings, batch_size)
            images = content.images
            if images is not None:
                batch = plan_batches(images, _IMAGES)[0]
                return _decode(images, batch, set_plan, settings)
        return []

    return Probe(steps, read)


def _read_stream(
    run: RunContext, given: Images, set_plan: SetPlan, settings: Settings, batch_size: int
) -> list[Tensor]:
    """The first image of a stream, which is the same at any number of ranks."""
    count = min(batch_size, set_plan.sampling.num or batch_size)
    with run.program_context():
        contents = given.peek(count, settings.seed, settings.floats)
    named = [(f"{given.name}[0]", content) for content in contents[:1]]
    batch = Batch(0, range(len(named)), contents=named)
    return _decode(None, batch, set_plan, settings) if named else []


def _decode(
    source: ImageSet | None, batch: Batch, set_plan: SetPlan, settings: Settings
) -> list[Tensor]:
    found = []
    options = decode_options(settings, set_plan.crop)
    pieces = load_pieces(source, [batch], options, patience=settings.timeout)
    with contextlib.closing(pieces):
        for piece in pieces:
            images = split_images(torch.from_numpy(piece.pixels), piece.sizes)
            found += [image.clone() for image in images]
            piece.free()
    return found
