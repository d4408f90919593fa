"""MIFID: the memorization-informed FID."""

from dataclasses import dataclass

from fidtool.metrics.fid import FID
from fidtool.metrics.metric import METRICS, FeatureSet, MetricContext, Number, Values
from fidtool.validation import Setting


@dataclass(frozen=True, kw_only=True)
class MIFID(FID):
    """Memorization-informed FID (Bai et al. 2021), as in torchmetrics: the FID, with a penalty if
    FAKE copies REAL.

    The FID is divided by the mean cosine distance of the real images to the nearest generated image
    if this mean is below ``cosine_distance_eps``. The value is at least 0.
    """

    cosine_distance_eps: float = Setting(
        0.1, METRICS, "X", flag="--mifid-eps", least=1e-9, most=1.0
    ).help(
        "MIFID: divide the FID by the mean cosine distance of the real images to the nearest "
        "generated image if this mean is below X."
    )

    name = "mifid"
    other_names = ("memorization-informed-fid",)
    numbers = (
        Number(
            "mifid",
            "MIFID",
            "lower",
            "FID, higher if generated images are near real ones",
            is_distance=True,
            gated=True,
        ),
    )
    further = ("mifid_distance",)
    real_features = fake_features = True
    phase = ""

    def compute(self, real: FeatureSet, fake: FeatureSet, context: MetricContext) -> Values:
        from fidtool.distances.neighbors import nearest_cosine_distance

        fid = super().compute(real, fake, context)[self.name]
        distance = nearest_cosine_distance(real.rows, fake.rows, context.features)
        penalty = distance if distance < self.cosine_distance_eps else 1.0
        # As in torchmetrics.
        mifid = fid / (penalty + 10e-15) if fid > 1e-8 else 0.0
        return {"mifid": mifid, "mifid_distance": distance}
