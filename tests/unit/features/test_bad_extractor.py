"""Settings of people's own networks in fingerprints."""

from __future__ import annotations

import numpy as np
from torch import nn

from fidtool import Network


def test_equal_settings_are_one_fingerprint_whatever_their_type() -> None:
    plain = Network(nn.Identity(), input_size=8, mean=(0.0, 0.5, 0.5), std=(1.0, 1.0, 1.0))
    arrays = Network(
        nn.Identity(),
        input_size=np.int64(8),  # type: ignore[arg-type]
        mean=np.array([-0.0, 0.5, 0.5]),  # type: ignore[arg-type]
        std=[1, 1, 1],  # type: ignore[arg-type]
    )
    assert (arrays.normalization, type(arrays.input_size)) == (plain.normalization, int)
