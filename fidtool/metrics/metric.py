"""What a metric is: its name, its settings, the features it needs, how it is computed and how it is shown.

Declarations of metrics import neither torch nor SciPy, so that ``--help`` is quick: they import the mathematics of
`fidtool.distances` when they compute.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fidtool.errors import InputError
from fidtool.features.models.families import NETWORK_SETTINGS, NetworkChoice
from fidtool.features.protocol import FEATURES
from fidtool.validation import Declared, Validated, declared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fidtool.distances.exact import FeatureSettings
    from fidtool.distances.frechet import Gaussian
    from fidtool.distributed.world import World
    from fidtool.features.definition import Definition
    from fidtool.features.models.inception_weights import Weights

METRICS = "Metrics"
"""Heading of ``--help`` for the settings of metrics."""


@dataclass(frozen=True)
class Number:
    """A number that a metric gives, and how it is shown.

    Attributes:
        name: its key in the JSON where the features are Inception's 2048, such as ``kid``; other networks add theirs.
        title: as people write it, such as ``KID``.
        better: whether a lower or a higher value is better.
        meaning: what it is, for the report.
        spread: name of the number behind its ±; empty where it has none.
        digits: after the decimal point, in text.
        layer: features it is of: those of the run's network, ``features``; Inception's ``spatial`` ones; or, under
            another name, those of the metric's own network, with which statistics files keep them.
        inception: of Inception's 2048 features alone, so that its title need not say so.
    """

    name: str
    title: str
    better: Literal["lower", "higher"]
    meaning: str
    spread: str = ""
    digits: int = 4
    layer: str = FEATURES
    inception: bool = False


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """One set of images as a metric finds it.

    Attributes:
        path: of the set, as given.
        features: of each image: float32 array of shape (images, dims), the same on every rank, in a pseudo-random order
            of the images that depends on ``seed`` alone, so that the first n are a fair sample; mapped from a file if
            it is large. None where the metric does not ask for them.
        gaussian: mean, covariance and number of images, on rank zero; None on the other ranks.
    """

    path: str
    features: NDArray[np.float32] | None
    gaussian: Gaussian | None

    @property
    def rows(self) -> NDArray[np.float32]:
        """The features, for metrics that ask for them.

        Raises:
            InputError: the metric does not ask for them.
        """
        if self.features is None:
            problem = f"the features of the images of {self.path} are looked at, and were not asked for:"
            raise InputError(problem, "set real_features and fake_features in the metric's class", setting="metrics")
        return self.features


@dataclass(frozen=True, eq=False)
class MetricContext:
    """What a metric computes with.

    Attributes:
        world: the ranks.
        features: how features are rounded and added up, and the device with float64 on which their products are
            computed.
        classifier: gives Inception's weights with the classifier; for rank zero alone.
    """

    world: World
    features: FeatureSettings
    classifier: Callable[[], Weights]

    def share_out(self, jobs: Sequence[Callable[[], float]]) -> list[float]:
        """Does each job on one rank, with one thread of torch's, so that its bits are the same anywhere. A collective.

        Args:
            jobs: the same on every rank.

        Returns:
            The results in the order of the jobs, on every rank.
        """
        from fidtool.distances.parallel import share_out, using_threads

        with using_threads(1):
            return share_out(jobs, self.world)


class Metric(Validated):
    """Base of metrics: frozen dataclasses whose annotated fields are the metric's settings.

    A setting of a built-in metric has a flag of its own, named by `keyword`, and is given by
    ``--metric-option`` and in Python as any other metric's. Its mathematics stands in `fidtool.distances`.

    Attributes:
        name: as ``--metrics`` takes it.
        numbers: what `compute` gives, and how it is shown; spreads are not among them.
        real_features, fake_features: whether each image's features of REAL and of a FAKE are needed. A mean and a
            covariance are always there.
        frechet: it is a Fréchet distance, on which ``fail_above`` can be a gate.
        phase: what its time is called in the record, if not by its name.
        usual_network: of a metric with a network of its own, that of its authors, as a `Definition` names it.
        spec: how ``--metrics`` named it; empty where it was given as an object.
        source: the same as it goes on record, with the start of the file's SHA-256.
    """

    name: ClassVar[str] = ""
    numbers: ClassVar[tuple[Number, ...]] = ()
    real_features: ClassVar[bool] = False
    fake_features: ClassVar[bool] = False
    frechet: ClassVar[bool] = False
    phase: ClassVar[str] = ""
    usual_network: ClassVar[str] = ""
    spec = ""
    source = ""

    @property
    def layer(self) -> str:
        """The features it looks at, see `Number`."""
        return self.numbers[0].layer

    def network(self) -> NetworkChoice | None:
        """The metric's own network; None where it looks at features of the run's."""
        return None

    @property
    def own_network(self) -> NetworkChoice | None:
        """`network`, with the names by which messages call it and its settings."""
        if (network := self.network()) is None:
            return None
        names = {name: self.named(name) if name in declared(type(self)) else "" for name in NETWORK_SETTINGS}
        return replace(network, subject=f"{self.numbers[0].title}'s network", names=names)

    def named(self, setting: str) -> str:
        """One of the metric's settings by the name that `fidtool.errors.option` takes, as it can be given."""
        if not self.spec:
            return f"{type(self).__name__}({setting})"
        field = declared(type(self))[setting]
        return keyword(type(self), field) if self.spec == self.name else f"{self.name}.{setting}"

    def check_network(self, extractor: str, dims: int | None) -> None:
        """Refuses a network whose features the metric cannot be of, before anything is read.

        Args:
            extractor: as ``--extractor`` takes it.
            dims: of Inception, where they were asked for.

        Raises:
            InputError: naming the setting to change.
        """

    def check_features(self, definition: Definition | None, dims: int, file: str) -> None:
        """The same, once it is known what the features are.

        Args:
            definition: what defines them; None where a statistics file does not say.
            dims: length of a feature vector.
            file: a statistics file that they come from; empty where images are measured.

        Raises:
            InputError: naming the setting to change.
        """

    def check_count(self, images: int, has: str) -> None:
        """Refuses a set with too few images.

        Args:
            images: in the smallest of the sets whose features the metric needs.
            has: that set and its number of images in words.

        Raises:
            InputError: naming the setting, or the number of images, that would do.
        """

    @abstractmethod
    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Mapping[str, float]:
        """The numbers by name, spreads among them. Called on every rank; the values of rank zero count.

        Raises:
            FidtoolError: a number cannot be computed.
        """

    def record(self, definition: Definition | None) -> Mapping[str, Any]:
        """What decides the numbers beside the features, for the JSON.

        Args:
            definition: what defines the features that the metric looks at; None where nobody knows.
        """
        return {name: getattr(self, name) for name in declared(type(self))}


def keyword(kind: type[Metric], field: Declared) -> str:
    """What a built-in metric's setting is called beside those of the run, such as ``kid_subset_size``: so is its flag.

    Where `fidtool.settings.Settings` has a field of that name, it is a keyword of `fidtool.compute` as well.
    """
    return field.setting.flag.removeprefix("--").replace("-", "_") or f"{kind.name}_{field.name}".replace("-", "_")
