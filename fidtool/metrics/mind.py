"""MIND: the Monge Inception Distance."""

from dataclasses import dataclass

from fidtool.errors import ResultWarning
from fidtool.metrics.metric import METRICS, FeatureSet, Metric, MetricContext, Number, Values
from fidtool.validation import Setting


@dataclass(frozen=True, kw_only=True)
class MIND(Metric):
    """Monge Inception Distance (Berthet et al. 2026): how far apart the features are along random
    directions.

    The value is 3 D × the squared sliced 2-Wasserstein distance between D-dimensional features, as
    in torch-fidelity: the mean, over random directions, of the squared differences between sorted
    projections. If one set is larger, only as many of its images are used as the other set has. The
    value is at least 0, and 0 for equal sets.
    """

    directions: int = Setting(1000, METRICS, "N", least=1).help(
        "MIND: number of random directions."
    )
    seed: int = Setting(0, METRICS, least=0, most=2**32 - 1).help(
        "MIND: seed of the random directions."
    )

    name = "mind"
    other_names = ("monge-inception-distance",)
    numbers = (
        Number(
            "mind",
            "MIND",
            "lower",
            "3 D × the squared sliced 2-Wasserstein distance of D-dimensional features",
            is_distance=True,
        ),
    )
    real_features = fake_features = True

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.kernel import mind

        smaller = min(real, fake, key=lambda images: len(images.rows))
        count = len(smaller.rows)
        if count < 1000:  # the fewest in the paper
            text = (
                "MIND is too high with fewer than 1000 images; compare it only with values for the "
                "same number of images"
            )
            detail = f"only {count} images"
            context.warnings.append(ResultWarning(smaller.path, text, detail=detail))
        value = mind(
            real.rows, fake.rows, context.features, directions=self.directions, seed=self.seed
        )
        return {"mind": value}
