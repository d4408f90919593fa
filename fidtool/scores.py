"""The numbers: every metric that was asked for, of one FAKE against REAL, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fidtool.clock import Clock
from fidtool.distances.extrapolation import fid_infinity
from fidtool.distances.frechet import frechet_distance
from fidtool.distances.inception_score import inception_score
from fidtool.distances.influence import Target
from fidtool.distances.kernel import cmmd, kid
from fidtool.distances.neighbors import prdc
from fidtool.distances.rows import FeatureSettings
from fidtool.distributed.world import World
from fidtool.errors import FidtoolError, InputError, on_every_rank
from fidtool.features.device import Device
from fidtool.features.protocol import FEATURES, SPATIAL, Definition
from fidtool.features.weights import Weights
from fidtool.metrics.needs import FEWEST_TO_EXTRAPOLATE, POINTS, embedding_layer
from fidtool.settings import Settings
from fidtool.statistics.measured import MeasuredSet
from fidtool.statistics.store import Statistics

Scores = dict[str, float]
_PHASES = {"fid": "distance", "fid-infinity": "extrapolation"}
"""What their times are called, whatever network the number is of."""


class Scorer:
    """Computes the metrics that the run was asked for.

    Args:
        world: the ranks.
        device: where the products of features are computed.
        config: for the metrics and their settings.
        clock: takes the time of each metric.
        definitions: what defines the features, by layer; None where nobody knows.
        weights: gives Inception's weights with the classifier; called on rank zero, for the Inception Score.
    """

    def __init__(
        self,
        world: World,
        device: Device,
        config: Settings,
        clock: Clock,
        definitions: Mapping[str, Definition | None],
        weights: Callable[[], Weights],
    ) -> None:
        self._world, self._config, self._clock = world, config, clock
        self._definitions, self._weights = definitions, weights
        self._device = device.exact_sums
        self._metrics: dict[str, Callable[[MeasuredSet, MeasuredSet], Scores]] = {
            "fid": self._fid,
            "kid": self._kid,
            "is": self._inception_score,
            "prdc": self._prdc,
            "sfid": self._sfid,
            "fid-infinity": self._fid_infinity,
            "cmmd": self._cmmd,
        }

    def compare(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        """All metrics by their plain names, see `fidtool.labels`. A collective.

        Raises:
            FidtoolError: a number cannot be computed.
        """
        scores: Scores = {}
        for name, compute in self._metrics.items():
            if name not in self._config.metrics:
                continue
            with self._clock(_PHASES.get(name, name)):
                try:
                    scores |= compute(real, fake)
                except InputError as error:
                    raise on_every_rank(error) from None  # all have the same features and settings
        return scores

    def _step(self, layer: str) -> int:
        return FeatureSettings.of(self._definitions.get(layer), self._device).feature_step

    def _fid(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        return {"fid": self._distance(real, fake, FEATURES)}

    def _sfid(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        return {"sfid": self._distance(real, fake, SPATIAL)}

    def _distance(self, real: MeasuredSet, fake: MeasuredSet, layer: str) -> float:
        def on_rank_zero() -> float:
            one, other = (_statistics(measured).layers[layer] for measured in (real, fake))
            count1, count2 = (_statistics(measured).count for measured in (real, fake))
            try:
                return frechet_distance(one.mu, one.sigma, other.mu, other.sigma, count1=count1, count2=count2)
            except FidtoolError as error:
                raise type(error)(f"{real.path} (first) against {fake.path} (second): {error}") from None

        return self._world.on_rank_zero(on_rank_zero)

    def _kid(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        found = kid(
            real.features[FEATURES],
            fake.features[FEATURES],
            self._world,
            subset_size=self._config.kid_subset_size,
            subsets=self._config.kid_subsets,
            seed=self._config.kid_seed,
            feature_step=self._step(FEATURES),
            device=self._device,
        )
        return {"kid": found.mean, "kid_std": found.std}

    def _inception_score(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        def on_rank_zero() -> Scores:
            state = self._weights().state
            weight, bias = (state[name].numpy() for name in ("fc.weight", "fc.bias"))
            found = inception_score(
                fake.features[FEATURES],
                weight,
                bias if self._config.is_bias else None,
                splits=self._config.is_splits,
            )
            return {"is": found.mean, "is_std": found.std}

        return self._world.on_rank_zero(on_rank_zero)

    def _prdc(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        found = prdc(
            real.features[FEATURES],
            fake.features[FEATURES],
            self._world,
            k=self._config.nearest_k,
            ties="strict" if self._config.ties == "strict" else "inclusive",
            feature_step=self._step(FEATURES),
            device=self._device,
        )
        return {
            "precision": found.precision,
            "recall": found.recall,
            "density": found.density,
            "coverage": found.coverage,
        }

    def _fid_infinity(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        def on_rank_zero() -> Target:
            statistics = _statistics(real)
            return Target(statistics.mu, statistics.sigma, statistics.count)

        settings = FeatureSettings.of(self._definitions[FEATURES], self._device)
        target = self._world.on_rank_zero(on_rank_zero)
        found = fid_infinity(
            target, fake.features[FEATURES], settings, self._world, points=POINTS, fewest=FEWEST_TO_EXTRAPOLATE
        )
        return {"fid_infinity": found.value, "fid_infinity_error": found.error}

    def _cmmd(self, real: MeasuredSet, fake: MeasuredSet) -> Scores:
        layer = embedding_layer(self._config)
        found = cmmd(
            real.features[layer],
            fake.features[layer],
            self._world,
            feature_step=self._step(layer),
            device=self._device,
        )
        return {"cmmd": found}


def _statistics(measured: MeasuredSet) -> Statistics:
    """On rank zero."""
    assert measured.statistics is not None
    return measured.statistics
