"""The pipeline as one function: sources, statistics, distance, doubts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fidtool.annexes import Uncertainty, uncertainty_warnings
from fidtool.appraisal import Appraisal
from fidtool.console import Console
from fidtool.diagnose.diagnosis import Diagnosis, inspect_set
from fidtool.diagnose.warnings import pair_warnings, passed_over_warnings, set_warnings
from fidtool.distances.frechet import linear_algebra_threads
from fidtool.distances.rows import FeatureSettings
from fidtool.errors import InputError, on_every_rank
from fidtool.examination import Examination
from fidtool.features.models.inception_weights import Weights, load_weights
from fidtool.features.protocol import FEATURES, Definition
from fidtool.images.gallery import Gallery
from fidtool.labels import Labels
from fidtool.measure import Measurer
from fidtool.metrics.registry import in_order
from fidtool.needs import layer_of
from fidtool.record import Origin, changed_settings, known_settings
from fidtool.redaction import redacted
from fidtool.report.exhibits import Exhibit
from fidtool.results import Comparison, Evaluation, RunRecord, SkippedFile
from fidtool.scores import Scorer, Scores
from fidtool.session import Session, open_session
from fidtool.sets import Sets
from fidtool.settings import Settings
from fidtool.sources.census import PassedOver
from fidtool.sources.memory import Images
from fidtool.statistics.measured import MeasuredSet
from fidtool.statistics.store import Statistics
from fidtool.validation import declared, text_of
from fidtool.versions import versions

Publish = Callable[[Evaluation, Sequence[Exhibit | None], Gallery], None]
"""What takes an evaluation, what a report shows beside it, and what gets the images."""


def evaluate(
    real: str,
    fakes: Sequence[str],
    config: Settings,
    console: Console | None = None,
    before: Callable[[], None] | None = None,
    publish: Publish | None = None,
    given: Mapping[str, Images] | None = None,
    origin: Origin | None = None,
) -> Evaluation:
    """Computes what ``config.metrics`` asks for, of each FAKE against REAL.

    Under torchrun, SLURM or variables set by hand this is a collective: every rank calls it with the same arguments
    and every rank returns the same evaluation.

    Args:
        real: images, see `fidtool.sources.opening.open_images`, or a statistics file.
        fakes: one or more of the same.
        config: settings.
        console: where rank zero speaks; default nowhere (the warnings are in the result).
        before: a check that rank zero makes before any work; its error ends the run on every rank.
        publish: takes the evaluation and what a report shows beside it, an entry a FAKE, on rank zero; its error ends
            the run on every rank.
        given: those of the sets that are in no file, by the names under which they go.
        origin: who asked for it, where and when, for the record; None is somebody, here and now.

    Raises:
        InputError: what was given cannot be evaluated; the message says why and what to do.
        RunError: the run failed.
    """
    if not fakes:
        raise InputError("there is no FAKE to compare with REAL")
    origin = origin or Origin.here()
    with open_session([real, *fakes], config, console or Console(), before, given) as session:
        world = session.world
        sets = Sets(session, [real, *fakes])
        config = session.config
        measurer = sets.measurer(session)
        definitions, mismatches = world.on_rank_zero(lambda: sets.agree(measurer))
        labels = world.on_rank_zero(lambda: sets.labels(definitions, measurer))
        weights = partial(_classifier, measurer, session)
        features = FeatureSettings.of(definitions[FEATURES], session.device.exact_sums)
        comparer = _Comparer(
            session,
            Scorer(session, definitions, weights),
            Examination(session, sets, measurer, features, labels.title("fid")),
            Appraisal(session, features, labels.title("fid")),
            mismatches,
            sets.passed_over,
            labels,
        )
        results = tuple(comparer.compare(sets.measured(measurer)))
        record = world.on_rank_zero(lambda: _record(session, sets, measurer, origin))
        evaluation = Evaluation(
            definitions,
            results,
            record,
            config.fail_above,
            config.max_duplicates,
            _settings_of_metrics(config, definitions),
            comparer.appraisal.differences(),
            config.gated.numbers[0].name if config.gated else "",
        )
        for skipped in dict.fromkeys(skipped for result in results for skipped in result.skipped):
            session.console.warn(f"skipped {skipped.file}: {skipped.reason}")
        for line in dict.fromkeys([*record.warnings, *(line for result in results for line in result.warnings)]):
            session.console.warn(line)
        if publish is not None:
            world.on_rank_zero(lambda: publish(evaluation, comparer.exhibits, sets.gallery()))
        return evaluation


def statistics_of(
    path: str,
    config: Settings,
    console: Console | None = None,
    before: Callable[[], None] | None = None,
    given: Mapping[str, Images] | None = None,
) -> Statistics | None:
    """Computes the statistics of a set of images. A collective like `evaluate`.

    Returns:
        The statistics on rank zero, None on the other ranks.

    Raises:
        InputError, RunError: see `evaluate`.
    """
    with open_session([path], config, console or Console(), before, given) as session:
        sets = Sets(session, [path], real=False)
        measurer = sets.measurer(session)
        if measurer is None:
            raise on_every_rank(InputError(f"{path} is a statistics file already; give the images"))
        statistics = next(sets.measured(measurer)).statistics
        if statistics is not None:
            for skipped in skipped_files(path, statistics):
                session.console.warn(f"skipped {skipped.file}: {skipped.reason}")
            seen = inspect_set(path, statistics.pictures)
            for line in [
                *measurer.warnings,
                *passed_over_warnings(path, sets.passed_over(path)),
                *set_warnings(path, statistics),
                *([] if seen is None else seen.warnings),
            ]:
                session.console.warn(line)
        known = declared(Settings)
        made_with = {name: value for name, value in changed_settings(config).items() if known[name].setting.defines}
        return None if statistics is None else replace(statistics, config=made_with)


class _Comparer:
    """Compares each FAKE with REAL. Made and used on all ranks alike.

    Args:
        session: the run.
        scorer, examination, appraisal: what they say.
        mismatches: doubts about all comparisons.
        passed_over: see `Sets.passed_over`.
        labels: what the numbers are called.

    Attributes:
        appraisal: see above.
        exhibits: what a report shows of each FAKE so far; on rank zero.
    """

    def __init__(
        self,
        session: Session,
        scorer: Scorer,
        examination: Examination,
        appraisal: Appraisal,
        mismatches: Sequence[str],
        passed_over: Callable[[str], PassedOver | None],
        labels: Labels,
    ) -> None:
        self._world, self._scorer, self._examination = session.world, scorer, examination
        self._mismatches, self._passed_over, self.appraisal = mismatches, passed_over, appraisal
        self._labels, self._settings = labels, session.config
        self.exhibits: list[Exhibit | None] = []

    def compare(self, measured: Iterator[MeasuredSet]) -> Iterator[Comparison]:
        """Each FAKE, before the next is measured: of many, the features of one alone are kept at a time."""
        real = next(measured)
        for fake in measured:
            scores = self._scorer.compare(real, fake)
            diagnosis = self._examination.of(real, fake, scores)
            uncertainty = self.appraisal.uncertainty(real, fake, diagnosis)
            influence = self.appraisal.influence(real, fake, scores)
            self.exhibits.append(self.appraisal.exhibit(real, fake, self._examination.seen))
            comparison = self._world.on_rank_zero(partial(self._comparison, real, fake, scores, diagnosis, uncertainty))
            yield replace(comparison, influence=influence)
            del fake  # before the next one is measured

    def _comparison(
        self,
        real: MeasuredSet,
        fake: MeasuredSet,
        scores: Scores,
        diagnosis: Diagnosis | None,
        uncertainty: Uncertainty | None,
    ) -> Comparison:
        """The scores with everything doubtful about them, on rank zero."""
        assert real.statistics is not None
        assert fake.statistics is not None
        other = fake.path != real.path
        settings = self._settings
        gaussians = {layer_of(metric, settings): None for metric in in_order(settings.chosen) if metric.frechet}
        passed_over = [self._passed_over(each.path) for each in (real, fake)]
        labels = self._labels
        metrics = {labels.key(name): number for name, number in scores.items()}
        warnings = [
            *self._mismatches,
            *passed_over_warnings(real.path, passed_over[0]),
            *(passed_over_warnings(fake.path, passed_over[1]) if other else ()),
            *set_warnings(real.path, real.statistics, gaussians),
            *(set_warnings(fake.path, fake.statistics, gaussians) if other else [_itself(fake.path)]),
            *pair_warnings(real.path, real.statistics, fake.path, fake.statistics),
            *(() if diagnosis is None else diagnosis.lines),
            *([] if uncertainty is None else uncertainty_warnings(fake.path, uncertainty, labels.title("fid"))),
        ]
        skipped = skipped_files(real.path, real.statistics)
        skipped += skipped_files(fake.path, fake.statistics) if other else ()
        return Comparison(
            real.path,
            fake.path,
            metrics,
            real.statistics.count,
            fake.statistics.count,
            tuple(map(redacted, warnings)),
            skipped,
            diagnosis,
            uncertainty,
            passed_over_real=passed_over[0],
            passed_over_fake=passed_over[1],
            found_real=real.statistics.found,
            found_fake=fake.statistics.found,
            made_real=known_settings(real.statistics.config),
            made_fake=known_settings(fake.statistics.config),
            labels=labels,
        )


def _itself(path: str) -> str:
    return f"{path} is REAL itself: no distance to it says anything about a generator"


def _settings_of_metrics(settings: Settings, definitions: Mapping[str, Definition | None]) -> dict[str, dict[str, Any]]:
    """What decides the metrics' numbers beside the features, by metric; of code from outside, which it was."""
    found = {}
    for metric in in_order(settings.chosen):
        recorded = dict(metric.record(definitions.get(layer_of(metric, settings))))
        if declared(type(metric)) or metric.source:
            found[metric.name] = recorded | ({"source": metric.source} if metric.source else {})
    return found


def skipped_files(path: str, statistics: Statistics) -> tuple[SkippedFile, ...]:
    """The files of a set that were left out."""
    return tuple(SkippedFile(path, bad.file, bad.reason) for bad in statistics.skipped)


def _classifier(measurer: Measurer | None, session: Session) -> Weights:
    """Inception's weights with the classifier, for statistics files that keep features too. On rank zero."""
    known = measurer.assembly.weights if measurer else None
    return known or load_weights(text_of(session.config.weights), session.console.say, classifier=True)


def _record(session: Session, sets: Sets, measurer: Measurer | None, origin: Origin) -> RunRecord:
    seconds = session.clock.snapshot()
    extract = seconds.get("extract", 0.0)
    computed = measurer.images_computed if measurer else 0
    return RunRecord(
        world_size=session.world.size,
        device=session.device.name,
        backend=session.world.backend,
        precision=session.config.precision if measurer else "",
        kernels=measurer.assembly.kernels if measurer else "",
        batch_size=measurer.batch_size if measurer else 0,
        num_workers=measurer.num_workers if measurer else 0,
        images_computed=computed,
        forward_passes=measurer.forward_passes if measurer else 0,
        images_resumed=measurer.images_resumed if measurer else 0,
        cached=tuple(measurer.cached) if measurer else (),
        probe=measurer.assembly.probe if measurer else None,
        linear_algebra_threads=linear_algebra_threads(),
        seconds=seconds,
        extraction=session.clock.parts(),
        images_per_second=computed / extract if computed else None,
        versions=versions(),
        command=origin.command,
        host=origin.host,
        date=origin.date,
        config=changed_settings(session.config),
        warnings=tuple(map(redacted, measurer.warnings)) if measurer else (),
        notes=tuple(sets.taken),
    )
