"""Vendi: the Vendi score of each FAKE."""

from dataclasses import dataclass

from fidtool.errors import ResultWarning
from fidtool.metrics.metric import FeatureSet, Metric, MetricContext, Number, Values


@dataclass(frozen=True, kw_only=True)
class Vendi(Metric):
    """Vendi score (Friedman & Dieng 2023) of each FAKE: its diversity, as an effective number of
    different images.

    The value is the exponential of the entropy of the eigenvalues of K / n, where K holds the
    cosine similarities of n feature vectors. It is from 1 to min(n, D), and higher with more
    images. REAL is not used.

    Raises:
        InputError: if FAKE has fewer than 2 images.
    """

    name = "vendi"
    numbers = (
        Number(
            "vendi", "Vendi", "higher", "effective number of different images in FAKE", digits=2
        ),
    )
    fake_features = True
    fewest = 2

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.kernel import vendi

        value = vendi(fake.rows, context.features)
        count = len(fake.rows)
        if value > count / 10:
            text = (
                f"the Vendi score {value:.2f} is too low, because it grows with the number of "
                "images; compare it only with scores of the same number of images"
            )
            context.warnings.append(ResultWarning(fake.path, text, detail=f"only {count} images"))
        return {"vendi": value}
