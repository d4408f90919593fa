"""Base class of metrics: a name, settings, the required features, the computation and how the
result is shown.

The modules of metrics import `fidtool.distances` only when they compute, so that ``--help`` is
quick.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fidtool.errors import InputError, MetricSetting, ResultWarning, Say, TooFewImagesError, option
from fidtool.features.choice import NetworkChoice
from fidtool.features.protocol import FEATURES
from fidtool.validation import Validated, find_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fidtool.distances.exact import FeatureSettings
    from fidtool.distributed.world import World
    from fidtool.features.models.inception import Weights
    from fidtool.features.protocol import Definition
    from fidtool.statistics.set_statistics import Gaussian, MeasuredSet

METRICS = "Metrics"
"""Heading of ``--help`` for the settings of metrics."""
Values = Mapping[str, float]
"""Values of a metric, by the names of its numbers."""
ALL = "all"
"""Value of ``--metrics`` that selects each built-in metric that can be computed."""


@dataclass(frozen=True)
class Number:
    """A value that a metric returns, and how it is shown.

    Attributes:
        name: its key in the JSON for Inception's 2048 features, such as ``kid``. For other features
            a suffix is added.
        title: its title in text, such as ``KID``.
        better: whether a lower or a higher value is better; empty for a diagnostic.
        meaning: a description for the report.
        spread: name of the value after the ±; empty if it has none.
        digits: number of digits after the decimal point in text.
        layer: the layer whose features it is computed from: ``features`` for the run's extractor,
            ``spatial`` for Inception's spatial features, ``pixels`` for none (see `PairMetric`), or
            any other name for the metric's own network. Statistics files store features under this
            name.
        inception: whether it is only defined for Inception's 2048 features, so that the title need
            not name them.
        one_image: how much one image changes the value, times the number of images. A table shows
            no more digits than one image of the smaller set changes. 0 if that is not known.
        is_distance: whether a table shows it with two decimals and at least three digits, as in
            papers.
        error_bars: whether it is the Fréchet distance that can have error bars, influences and
            differences.
        gated: whether ``fail_above`` can limit it.
        spread_kind: what the spread is, for the headings of tables: a standard deviation or a
            standard error; empty if it is neither.
        elsewhere: what name, title and spread become for the features of another network, if they
            differ. Only a distance between Inception's features is called FID.
    """

    name: str
    title: str
    better: Literal["lower", "higher", ""]
    meaning: str
    spread: str = ""
    digits: int = 4
    layer: str = FEATURES
    inception: bool = False
    one_image: float = 0.0
    is_distance: bool = False
    error_bars: bool = False
    gated: bool = False
    spread_kind: Literal["", "s.d.", "s.e."] = ""
    elsewhere: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class MetricFacts:
    """What is known about a run when a metric is checked.

    Attributes:
        extractor: the requested extractor.
        requested_dims: the requested dimensions; None for the default.
        definition: definition of the metric's features; None if it is not known yet, or a file does
            not state it.
        dims: length of a feature vector; None if it is not known yet.
        file: the statistics file that holds the features; empty if images are processed.
        images: number of images in the smallest of the sets whose features the metric needs; None
            if not known yet.
        has: a phrase that names this set and its number of images.
    """

    extractor: str
    requested_dims: int | None = None
    definition: Definition | None = None
    dims: int | None = None
    file: str = ""
    images: int | None = None
    has: str = ""


@dataclass(frozen=True)
class Requirement:
    """What comparable values of a metric require besides its settings.

    Attributes:
        name: what is required.
        met: whether it is; None if that is not known.
        found, expected: what the result has, and what is required; ``found`` is None if it is not
            known.
    """

    name: str
    met: bool | None
    found: str | None
    expected: str


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """The features of one set of images, as input of a metric.

    Attributes:
        path: the set, as passed by the caller.
        pairs: for a FAKE, the values of its pairs of images, by the name of the `PairMetric`:
            float64 arrays of shape (images,), the same on every rank, in the order of the rows of
            ``features``.
        features: float32 array of shape (images, dims), the same on every rank. Rows are in a
            pseudo-random order that depends only on ``seed``, so the first n are a fair sample.
            Large arrays are memory-mapped from a file. None if the metric does not request them.
        gaussian: mean, covariance and number of images on rank 0; None on the other ranks.
        order: position in stored order of each row of ``features`` on rank 0, an int64 array of
            shape (images,). None on the other ranks, and if the order is unknown and the metric
            does not require it, see `Metric.stored_order`.
        captions: the caption of each row of ``features`` on every rank, for a FAKE and a metric
            with `Metric.captions`.
    """

    path: str
    features: NDArray[np.float32] | None
    gaussian: Gaussian | None
    order: NDArray[np.int64] | None = None
    pairs: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    captions: Sequence[str] | None = None

    @property
    def rows(self) -> NDArray[np.float32]:
        """The features, for metrics that request them.

        Raises:
            InputError: if the metric does not request them.
        """
        if self.features is None:
            raise InputError(
                f"the metric reads the per-image features of {self.path} but does not request "
                "them:",
                "set real_features and fake_features in the metric's class",
                setting="metrics",
            )
        return self.features


def feature_set(measured: MeasuredSet, layer: str, with_features: bool) -> FeatureSet:
    """Return a layer of a set as input of a metric."""
    gaussian = measured.gaussian(layer) if layer in measured.statistics.layers else None
    rows = measured.features[layer] if with_features else None
    return FeatureSet(measured.path, rows, gaussian, measured.statistics.order, measured.pairs)


@dataclass(frozen=True, eq=False)
class MetricContext:
    """What a metric needs for its computation besides features.

    Attributes:
        features: how features are rounded and summed, the device (with float64) on which their
            products are computed, and the ranks.
        classifier: a function that returns Inception's weights with the classifier. Call it on rank
            0 only.
        extractor: the network of the features, as ``--extractor`` names it.
        warnings: the list to which a metric adds warnings about its values; the warnings of rank 0
            are used. A plain string is a warning of low severity that is about no single set.
        of_images: the dictionary to which a metric adds the values of single images of the FAKE, by
            the names of its values: float64 arrays of shape (images,), in the order of the
            features. The arrays of rank 0 are used.
        recorded: the dictionary to which a metric adds what `Metric.record` cannot know, for the
            JSON. The dictionary of rank 0 is used.
    """

    features: FeatureSettings
    classifier: Callable[[], Weights]
    warnings: list[str | ResultWarning] = field(default_factory=list)
    extractor: str = ""
    of_images: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    recorded: dict[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> list[ResultWarning]:
        """The warnings of the metric."""
        return [
            warning if isinstance(warning, ResultWarning) else ResultWarning("", warning)
            for warning in self.warnings
        ]

    @property
    def world(self) -> World:
        """The ranks of the run."""
        return self.features.world

    def share_out(self, jobs: Sequence[Callable[[], float]]) -> list[float]:
        """Distribute jobs over the ranks. A collective.

        Each job runs on one rank with one torch thread, so its result has the same bits at any
        number of ranks.

        Args:
            jobs: the same jobs on every rank.

        Returns:
            The results in the order of the jobs, on every rank.
        """
        from fidtool.distances.parallel import share_out

        return share_out(jobs, self.world)


class Metric(Validated):
    """Base class of metrics: frozen dataclasses whose fields are the metric's settings, see
    `fidtool.Setting`.

    In Python, pass an object to set a metric's settings:
    ``metrics=[fidtool.KID(subset_size=100)]``. On the command line, each setting of a built-in
    metric has its own flag, see `fidtool.metrics.registry.setting_key`.

    Attributes:
        name: value of ``--metrics``.
        other_names: further values of ``--metrics``; the names of its values are accepted as well.
        numbers: the values that `compute` returns, without spreads, and how they are shown.
        summary: values that `summarize` returns, which may be missing, and how they are shown.
        further: names of values for the JSON only, which may be missing.
        real_features, fake_features: whether the metric needs per-image features of REAL or of a
            FAKE. Mean and covariance are always available.
        fake_only: whether the metric uses FAKE only, so that the images of REAL do not pass through
            the metric's own network.
        captions: whether the metric needs `FeatureSet.captions` for a FAKE.
        classifier: whether it calls `MetricContext.classifier`.
        fewest: the smallest number of images in a set whose per-image features it needs.
        frechet: whether the metric is a Fréchet distance from mean and covariance. It needs many
            images: too few cause a warning. In training, only such metrics get mean and covariance.
        by_name: why ``all`` does not select the metric, so that it is only computed if it is
            requested by name; empty if ``all`` does.
        phase: name of the phase under which its time is recorded; empty for the metric's name.
        usual_network: for a metric with its own network, the network of the metric's authors as a
            `Definition` names it.
    """

    name: ClassVar[str] = ""
    other_names: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[Number, ...]] = ()
    summary: ClassVar[tuple[Number, ...]] = ()
    further: ClassVar[tuple[str, ...]] = ()
    real_features: ClassVar[bool] = False
    fake_features: ClassVar[bool] = False
    fake_only: ClassVar[bool] = False
    captions: ClassVar[bool] = False
    classifier: ClassVar[bool] = False
    fewest: ClassVar[int] = 1
    frechet: ClassVar[bool] = False
    by_name: ClassVar[str] = ""
    phase: ClassVar[str] = ""
    usual_network: ClassVar[str] = ""

    @property
    def layer(self) -> str:
        """The layer whose features it uses, see `Number`."""
        return self.numbers[0].layer

    @property
    def stored_order(self) -> bool:
        """Whether it needs `FeatureSet.order` of a FAKE."""
        return self.captions

    @property
    def per_network(self) -> bool:
        """Whether it is computed for each network of a run."""
        return self.layer == FEATURES and not any(number.inception for number in self.numbers)

    def network(self) -> NetworkChoice | None:
        """Return the metric's own network; None if it uses features of the run's extractor."""
        return None

    @property
    def own_network(self) -> NetworkChoice | None:
        """The metric's own network, with the name that messages use for it."""
        network = self.network()
        if network is None:
            return None
        subject = f"{self.numbers[0].title}'s network"
        setting = self.named("extractor") if "extractor" in find_settings(type(self)) else ""
        return replace(network, subject=subject, setting=setting, apart=False)

    @classmethod
    def named(cls, setting: str) -> MetricSetting:
        """Return the name of one of the metric's settings, as `fidtool.errors.option` takes it."""
        return MetricSetting(cls.__name__, cls.name, setting)

    def check(self, facts: MetricFacts) -> None:
        """Raise an `InputError` if the metric is not defined for these facts. This is called
        whenever more facts are known.
        """
        if facts.images is not None and facts.images < self.fewest:
            problem = f"{self.numbers[0].title} needs at least {self.fewest} images in a set, but "
            raise not_computable_error(self, f"{problem}{facts.has}:", kind=TooFewImagesError)

    def obtain(self, weights: str | None, images: bool, say: Say | None) -> None:
        """Download weights that this metric alone needs.

        Args:
            weights: the value of ``--weights``.
            images: whether images go through its network.
            say: prints what is downloaded. None if nothing may be downloaded, for a metric that
                ``all`` selected: if weights or a package are not on this machine, an InputError
                leaves it out. For a metric that was requested by name with others, a RunError
                leaves it out.
        """

    @abstractmethod
    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        """Compute the metric. This is called on every rank; the values of rank 0 are used.

        Returns:
            The values of `numbers` by name, and spreads and ``further`` values, which may be
            missing.

        Raises:
            FidtoolError: if a value cannot be computed.
        """

    def summarize(self, values: Mapping[str, Values]) -> Values:
        """Return values that combine all networks of a run; ``values`` are by network, as in
        `MetricContext.extractor`.
        """
        return {}

    @classmethod
    def requirements(cls, settings: Mapping[str, Any], values: Values) -> Sequence[Requirement]:
        """Return what comparable values require, for ``fidtool verify``.

        Args:
            settings: what `record` returned.
            values: the values of the run, by key.
        """
        return ()

    def record(self, definition: Definition | None) -> Mapping[str, Any]:
        """Return what determines the values besides the features, for the JSON.

        Args:
            definition: the definition of the features; None if it is unknown.
        """
        return {name: getattr(self, name) for name in find_settings(type(self))}


def not_computable_error(
    metric: Metric, problem: str, *remedies: str, kind: type[InputError] = InputError
) -> InputError:
    """Return the error that a metric cannot be computed in this run."""
    omit = f"omit {metric.name!r} from {option('metrics')}"
    return kind(problem, *remedies, omit, setting="metrics")


def mean_of_images(
    number: Number, values: NDArray[np.float64], context: MetricContext
) -> dict[str, float]:
    """Return the mean and the standard deviation (of a sample, as n - 1 says) of the values of
    single images.

    The values are added to ``context.of_images``. The exact sums do not depend on the order of the
    images.
    """
    context.of_images[number.name] = values
    mean = fsum(values.tolist()) / len(values)
    result = {number.name: mean}
    if number.spread and len(values) > 1:
        squares = fsum(((values - mean) ** 2).tolist())
        result[number.spread] = sqrt(squares / (len(values) - 1))
    return result
