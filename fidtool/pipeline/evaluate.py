"""A whole run: from image sets to an evaluation, or to the statistics of one set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.comparability import verify
from fidtool.diagnose.diagnosis import inspect_set, set_warnings
from fidtool.distances.parallel import linear_algebra_threads
from fidtool.errors import InputError, on_every_rank, option
from fidtool.images.batches import PlannedBatch
from fidtool.images.decode import DecodeOptions
from fidtool.images.framing import EXAMPLE, Crop
from fidtool.images.loader import LoadOptions, load
from fidtool.pipeline.compare import Comparer, skipped_files
from fidtool.pipeline.inputs import Inputs
from fidtool.pipeline.measure import Measurer
from fidtool.record import Origin, changed_settings, versions
from fidtool.results import Comparison, Evaluation, Exhibit, RunRecord
from fidtool.settings import Settings
from fidtool.statistics.feature_buffer import RowStorage
from fidtool.statistics.set_statistics import MeasuredSet, Statistics, spread_features, with_statistics
from fidtool.validation import declared


def evaluate(inputs: Inputs, origin: Origin) -> tuple[Evaluation, list[Exhibit | None]]:
    """Compute the metrics of each FAKE against REAL. A collective."""
    run, settings = inputs.run, inputs.settings
    measurer = Measurer(inputs) if inputs.any_images else None
    measured = None if measurer is None else measurer.networks.definitions
    definitions, warnings = run.world.on_rank_zero(lambda: inputs.agree(measured))
    comparer = Comparer(inputs, measurer, definitions, warnings)
    results: list[Comparison] = []
    exhibits: list[Exhibit | None] = []
    sets = _measured(inputs, measurer)
    real = next(sets)
    for fake in sets:
        run.console.log(f"comparing {fake.path} with {real.path}")
        comparison, exhibit = comparer.compare(real, fake)
        results.append(comparison)
        exhibits.append(exhibit)
        del fake  # so that only one FAKE's features are in memory at a time
    work = {} if measurer is None else measurer.work
    record, not_computed = run.world.on_rank_zero(lambda: (_record(inputs, work, origin), inputs.left_out))
    evaluation = Evaluation(
        definitions,
        tuple(results),
        record,
        settings.fail_above,
        settings.max_duplicates,
        comparer.settings_of_metrics,
        comparer.explanations.differences(),
        settings.gated.numbers[0].name if settings.gated else "",
        not_computed,
    )
    if settings.preset is not None:
        verdicts = {f"{verdict.fake}: {verdict.line}": verdict for verdict in verify(evaluation)}
        evaluation = replace(evaluation, run=replace(record, notes=(*record.notes, *verdicts)))
        for line, verdict in verdicts.items():
            run.console.say(line, is_result=True, warns=verdict.comparable is False)
    for skipped in dict.fromkeys(skipped for result in results for skipped in result.skipped):
        run.console.warn(f"skipped {skipped.file}: {skipped.reason}")
    for line in dict.fromkeys([*record.warnings, *(line for result in results for line in result.warnings)]):
        run.console.warn(line)
    return evaluation, exhibits


def compute_statistics(inputs: Inputs) -> Statistics | None:
    """Compute the statistics of a set of images. A collective."""
    run, (path,) = inputs.run, inputs.paths
    if run.world.on_rank_zero(lambda: inputs.statistics(path) is not None):
        raise on_every_rank(InputError(f"{path} is already {inputs.kind_of(path)}:", "pass the images instead"))
    measurer = Measurer(inputs)
    statistics = measurer.measure(path).statistics
    if statistics is None:
        return None
    for skipped in skipped_files(path, statistics):
        run.console.warn(f"skipped {skipped.file}: {skipped.reason}")
    inspection = inspect_set(path, statistics.pictures)
    of_images = [] if inspection is None else inspection.warnings
    for line in [*measurer.warnings, *set_warnings({path: statistics}), *of_images]:
        run.console.warn(line)
    unrecorded = {name for name, each in declared(Settings).items() if not each.defines}
    config = {name: value for name, value in changed_settings(inputs.settings).items() if name not in unrecorded}
    return replace(statistics, config=config)


def image_sample(inputs: Inputs, count: int | None) -> NDArray[np.uint8]:
    """Return a random sample of the only set's images as the network gets them, on rank zero, without skipped ones.

    ``count`` is their number; None is ADM's 10,000, or all if there are fewer. The result is a uint8 array of shape
    (n, height, width, 3), memory-mapped from an unnamed file if it is large.
    """
    (path,), settings = inputs.paths, inputs.settings
    images = inputs.images(path)
    assert images is not None
    if count is not None and not 1 <= count <= len(images):
        raise InputError(f"--images asks for {count} images but {path} has {len(images)}")
    chosen = sorted(range(min(count or 10_000, len(images))), key=images.order.__getitem__)  # of a random order
    crop = None if images.framing is None else Crop.parse(images.framing)
    options = DecodeOptions(settings.on_error == "skip", settings.max_pixels, crop=crop, floats=settings.floats)
    shape: tuple[int, ...] = (0, 0, 3)
    storage, used = None, 0
    for part in load(images, [PlannedBatch(each, [each]) for each in chosen], LoadOptions(options)):
        if part.failure is not None:
            raise part.failure.error("fix or remove the file", f"pass {option('on_error', 'skip')}")
        for pixels in part.take_images(lambda pixels: pixels):
            shape = shape if storage else tuple(pixels.shape)
            storage = storage or RowStorage(len(chosen), pixels.numel(), np.uint8)
            if pixels.shape != shape:
                sizes = " and ".join(f"{each[1]}×{each[0]}" for each in (shape, pixels.shape))
                problem = f"arr_0 has images of one size, but {path} has {sizes} ({images.file(part.number)}):"
                raise InputError(problem, f"pass {option('crop', EXAMPLE)}", setting="crop")
            storage.write(used, pixels.reshape(1, -1).numpy())
            used += 1
    rows = np.empty((0, 0), np.uint8) if storage is None else storage.array()
    return rows[:used].reshape(used, *shape)


def _measured(inputs: Inputs, measurer: Measurer | None) -> Iterator[MeasuredSet]:
    """Yield the set of each path, REAL's first, and process it when it is requested. Each step is a collective.

    A path that occurs several times is processed once and held until its last occurrence; other sets can be freed.
    """
    held: dict[str, MeasuredSet] = {}
    for position, path in enumerate(inputs.paths):
        found = held.pop(path, None) or _measure(inputs, measurer, path)
        if path in inputs.paths[position + 1 :]:
            held[path] = found
        yield found
        del found


def _measure(inputs: Inputs, measurer: Measurer | None, path: str) -> MeasuredSet:
    if measurer is not None and inputs.has_images[path]:
        return with_statistics(measurer.measure(path), path, inputs.statistics(path), path in inputs.has_both)
    return spread_features(path, inputs.statistics(path), inputs.needs[path].collected, inputs.run.world)


def _record(inputs: Inputs, work: dict[str, Any], origin: Origin) -> RunRecord:
    run = inputs.run
    seconds = run.clock.phases()
    extract = seconds.get("extract", 0.0)
    return RunRecord(
        world_size=run.world.size,
        device=run.device.name,
        backend=run.world.backend,
        linear_algebra_threads=linear_algebra_threads(),
        seconds=seconds,
        extraction=run.clock.parts(),
        images_per_second=work["images_computed"] / extract if work.get("images_computed") else None,
        versions=versions(),
        config=changed_settings(inputs.settings),
        notes=tuple(inputs.taken),
        **origin._asdict(),
        **work,
    )
