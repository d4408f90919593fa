"""AuthPct: how many images of each FAKE are no copies."""

from dataclasses import dataclass

from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, Number, Values


@dataclass(frozen=True, kw_only=True)
class AuthPct(Metric):
    """AuthPct (Alaa et al. 2022): a diagnostic of memorisation, not a quality score. REAL must be
    the training set.

    The value is the percentage of authentic images, as in dgm-eval. An image of FAKE is authentic
    if it is farther from its nearest real image than that real image is from its own nearest real
    image. The value is from 0 to 100; copies lower it.

    Raises:
        InputError: if a set has fewer than 2 images.
    """

    name = "authpct"
    numbers = (
        Number(
            "authpct",
            "AuthPct diagnostic",
            "",
            "percentage of FAKE that copies no real image; not a quality score",
            digits=2,
            one_image=100.0,
        ),
    )
    real_features = fake_features = True
    fewest = 2

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.neighbors import authpct

        return {"authpct": authpct(real.rows, fake.rows, context.features)}
