"""The metric for training in torchmetrics' collections: its interface, and the location of its warnings."""

from __future__ import annotations

import pytest

import fidtool
from fidtool.training import FrechetInceptionDistance
from support.pictures import pictures
from support.tiny_network import network


def test_interface_of_torchmetrics() -> None:
    from torchmetrics import MeanMetric, Metric, MetricCollection

    metric = FrechetInceptionDistance(network())
    assert isinstance(metric, Metric)
    assert not metric.update_called
    both = MetricCollection({"fid": metric, "kept": FrechetInceptionDistance(network(), reset_real_features=False)})
    assert isinstance(both["fid"], FrechetInceptionDistance)
    both.update(pictures(20, 1), real=True)
    both(pictures(20, 2) // 2, real=False)
    assert metric.update_called
    assert metric.update_count == 2
    first = both.compute()
    assert first["fid"] == first["kept"]
    both.reset()
    both["kept"].update(pictures(20, 2) // 2, real=False)
    assert both["kept"].compute() == first["kept"]
    both["fid"].update(pictures(20, 2) // 2, real=False)
    with pytest.raises(fidtool.InputError, match="at least 2 real images, but there are 0"):
        both["fid"].compute()
    copied = MetricCollection({"fid": FrechetInceptionDistance(network()), "loss": MeanMetric()}).clone(prefix="val_")
    assert set(copied) == {"val_fid", "val_loss"}
