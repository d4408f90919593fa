"""Values that are refused, one case for each reason, and forms that few callers pass."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fidtool
from fidtool.distributed.launch import Launch
from fidtool.features.device import choose_device, make_device
from fidtool.metrics.metric import MetricFacts
from fidtool.metrics.registry import find_metric
from fidtool.reading.decode import decode
from fidtool.reading.lookup import ImageLookup
from fidtool.reading.records import NO_RECORDS, ImageRecords
from fidtool.settings.settings import Settings
from fidtool.sources.contents import ContentError, Pixels
from fidtool.sources.listing import open_images
from fidtool.sources.remote import retry_request
from fidtool.statistics.cache import cache_entries, delete_temporary_files
from fidtool.statistics.moments import ExactMoments
from fidtool.system.user_code import load_object
from fidtool.training import FrechetLoss, gather_with_grad
from fidtool.training.feature_extractor import SharedExtractor
from fidtool.training.loss import NuclearNorm
from support.pictures import make_pictures

ONE = fidtool.LayerStatistics(np.zeros(3), np.eye(3), None)


def small_features(setting: str | None) -> None:
    """Add features that are far too small for the step."""
    moments = ExactMoments(3, 10, setting=setting)
    moments.add(torch.full((4, 3), 1e-3))
    moments.mean_covariance(1)


def asked(status: int | None, kind: str, message: str) -> None:
    """Request an object from a store whose library raises this error."""

    def fail() -> None:
        raise type(kind, (Exception,), {"status": status})(message)

    retry_request(fail, "s3://bucket/a", 60.0)


def sizes_of(shape: tuple[int, ...]) -> None:
    moments = ExactMoments(3, 10)
    moments.absorb(moments.totals() | {"sizes": np.zeros(shape, dtype=np.int64)})


def pickled(file: Path, **arrays: Any) -> Path:
    file.write_bytes(pickle.dumps(arrays))
    return file


def saved(file: Path, **arrays: Any) -> Path:
    np.savez(file, **{"mu": np.zeros(3), "sigma": np.eye(3), "count": np.int64(4), **arrays})
    return file


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Path], object]]] = {
    "no Apple GPU": (
        fidtool.InputError,
        "this machine has no such device",
        lambda at: choose_device("mps", Launch()),
    ),
    "a fraction of an image": (
        fidtool.InputError,
        "num must be an integer",
        lambda at: Settings(num=1.5),
    ),  # type: ignore[arg-type]
    "sFID of few dimensions": (
        fidtool.InputError,
        "sFID uses Inception's layer Mixed_6d",
        lambda at: Settings(metrics="sfid", dims=64),
    ),
    "weights of a custom network": (
        fidtool.InputError,
        "a custom network already has its own",
        lambda at: SharedExtractor(fidtool.Network(nn.Identity(), 8), None, "weights.pth"),
    ),
    "Inception's small features": (
        fidtool.RunError,
        "Inception's step is fixed",
        lambda at: small_features(None),
    ),
    "a network's small features": (
        fidtool.RunError,
        "where the network is specified",
        lambda at: small_features(""),
    ),
    "sizes of a newer version": (ValueError, "the sums are damaged", lambda at: sizes_of((3,))),
    "a way to gather": (
        fidtool.InputError,
        "grad must be one of",
        lambda at: gather_with_grad(torch.ones(2), grad="x"),
    ),  # type: ignore[arg-type]
    "no credentials": (
        fidtool.InputError,
        "s3://bucket/a cannot be read: Unable to locate credentials: set AWS_ACCESS_KEY_ID",
        lambda at: asked(None, "NoCredentialsError", "Unable to locate credentials"),
    ),
    "a teapot": (ContentError, "HTTP status 418 .no", lambda at: asked(418, "ClientError", "no")),
    "an empty array": (
        Exception,
        "it has 0 x 4 pixels",
        lambda at: decode(Pixels(np.zeros((4, 0, 3), "u1"))),
    ),
    "a module without a file": (
        fidtool.InputError,
        "module .sys. has no attribute .__file__",
        lambda at: load_object("sys:path", list, "--extractor sys:path"),
    ),
    "a layer without a definition": (
        fidtool.InputError,
        "the layer 'mine' has no definition",
        lambda at: fidtool.write_statistics(
            at / "a.npz", fidtool.Statistics({"features": ONE, "mine": ONE}, 4)
        ),
    ),
    "an order of floats": (
        fidtool.InputError,
        "its array order must have one integer per image",
        lambda at: fidtool.read_statistics(saved(at / "a.npz", order=np.zeros(4))),
    ),
    "features of integers": (
        fidtool.InputError,
        "dtype int64; it should contain floats",
        lambda at: fidtool.read_statistics(
            pickled(at / "a.pkl", feats=np.zeros((4, 3), dtype=np.int64))
        ),
    ),
    "a pipe": (
        fidtool.InputError,
        "1 file .not a regular file.",
        lambda at: (os.mkfifo(at / "a.png"), open_images(str(at))),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_is_refused(tmp_path: Path, name: str) -> None:
    error, words, call = REFUSED[name]
    with pytest.raises(error, match=words):
        call(tmp_path)


def test_devices_have_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert make_device(torch.device("cuda", 0), Launch()).default_workers >= 1


def test_metrics_that_all_selects() -> None:
    cmmd = find_metric("cmmd").metric
    cmmd.obtain(None, images=False, say=None)
    assert cmmd.record(None) == {}
    with pytest.raises(
        fidtool.InputError, match=r"pass a smaller splits of InceptionScore\(\.\.\.\)"
    ):
        find_metric("is").metric.check(MetricFacts("inception", images=3, has="fake has 3 images"))


def test_empty_matrices_have_no_norm() -> None:
    for shape in ((0, 3), (3, 0)):
        for dtype in (torch.float32, torch.float64):
            assert float(NuclearNorm.apply(torch.zeros(shape, dtype=dtype))) == 0


def test_the_queue_of_a_loss_stays_in_float32() -> None:
    loss = FrechetLoss(fidtool.Statistics.of(np.zeros(3), np.eye(3)), queue=4)
    assert loss.half().queue.dtype == torch.float32
    assert loss.to("meta").queue.is_meta


def test_no_features_have_no_size() -> None:
    moments = ExactMoments(3, 10)
    moments.add(torch.zeros(0, 3))
    moments.check_precision()
    assert moments.totals()["sizes"].tolist() == [0, 0]


def test_what_is_not_an_entry_of_the_cache(environment: dict[str, str]) -> None:
    folder = Path(environment["FIDTOOL_CACHE"]) / "statistics"
    (folder / "folder.npz").mkdir(parents=True)
    (folder / ".young.tmp").touch()
    delete_temporary_files(60.0)
    assert (cache_entries(), [file.name for file in folder.glob(".*")]) == ([], [".young.tmp"])
    delete_temporary_files()
    assert not list(folder.glob(".*"))


def test_records_of_a_newer_version_are_ignored() -> None:
    arrays = {
        "records": NO_RECORDS.view(np.uint8),
        "names": np.zeros(0, "u1"),
        "folder": np.zeros(0, "u1"),
    }
    assert ImageRecords.from_arrays(arrays, 0) is None


def test_images_of_a_report_are_found_again(tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "images", 3)
    images = [open_images(str(path)) for path in (folder, folder)]
    lookup = ImageLookup([], iterables=["stream"])
    assert isinstance(lookup.read("stream[3]"), Exception)
    assert lookup.read(images[0].file(1)) == next(images[0].read([1]))
    values = np.zeros((2, 8, 8, 3), dtype=np.uint8)
    np.savez_compressed(tmp_path / "a.npz", values)
    np.save(tmp_path / "a.npy", values)
    for name in ("a.npz", "a.npy"):
        listed = open_images(str(tmp_path / name))
        lookup = ImageLookup([listed])
        lookup.prefetch({listed.file(1)})
        found = lookup.read(listed.file(1))
        np.testing.assert_array_equal(found.values, values[1])  # type: ignore[union-attr]


def test_a_class_as_a_metric_has_its_defaults() -> None:
    (asked,) = Settings(metrics=(fidtool.KID,)).selected_metrics  # type: ignore[arg-type]
    assert asked.metric == fidtool.KID()
