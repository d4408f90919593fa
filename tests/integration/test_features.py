"""Features of images as sets: arrays of two dimensions, if --features says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fidtool
from support.command_line import Run
from support.pictures import make_pictures

COUNT, DIMS = 60, 24


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rng = np.random.RandomState(0)
    real, fake = (rng.gamma(2.0, 0.5, (COUNT, DIMS)).astype(np.float32) for _ in range(2))
    np.save(tmp_path / "real.npy", real)
    np.savez(tmp_path / "fake.npz", acts=fake, labels=np.arange(COUNT))
    np.savez(tmp_path / "several.npz", real=real, acts=fake)
    np.savez(tmp_path / "known.npz", feats=fake)
    np.savez_compressed(tmp_path / "packed.npz", acts=fake)
    np.savez(tmp_path / "by_column.npz", feats=np.asfortranarray(fake))
    np.save(tmp_path / "by_column.npy", np.asfortranarray(fake))
    tensor = torch.from_numpy(fake)
    torch.save(tensor, tmp_path / "fake.pt")
    torch.save(
        {
            "feats": tensor.T.contiguous().T.double(),
            "labels": torch.arange(COUNT),
            "other": tensor[:, 0],
        },
        tmp_path / "dict.pth",
    )
    save_file({"real": torch.from_numpy(real), "acts": tensor}, tmp_path / "several.safetensors")
    return tmp_path


def test_features_of_files_and_memory(here: Run, place: Path, environment: dict[str, str]) -> None:
    metrics = ("--metrics", "fid,kid,prdc", "--kid-subset-size", 30, "--json")
    arrays = ["fake.npz", "several.npz:acts", "known.npz"]
    tensors = ["fake.pt", "dict.pth", "several.safetensors:acts", f"file://{place}/fake.pt"]
    further = ["packed.npz", "by_column.npz", "by_column.npy"]
    found = here("compute", "real.npy", *arrays, *tensors, *further, "--features", *metrics)
    assert found.status == 0, found.stderr
    first, *others = (each["metrics"] for each in found.json["results"])
    assert {"kid_24", "precision_24"} <= first.keys()
    assert all(each == first for each in others)
    assert found.json["run"]["config"]["features"] is True
    assert (
        "real.npy, fake.npz, several.npz:acts, known.npz, fake.pt, dict.pth and 4 more: the file "
        "does not" in found.stderr
    )
    real, fake = np.load(place / "real.npy"), np.load(place / "fake.npz")["acts"]
    settings: dict[str, Any] = {
        "metrics": ["fid", fidtool.KID(subset_size=30), "prdc"],
        "features": True,
    }
    batches = [*torch.from_numpy(fake).split(7)]
    for given in (
        (real, fake),
        (torch.from_numpy(real), torch.from_numpy(fake)),
        (real, fidtool.Images(batches)),
    ):
        assert fidtool.compute(*given, **settings).to_dict()["results"][0]["metrics"] == first
    halves = torch.from_numpy(real).bfloat16()
    in_bfloat16 = fidtool.compute(halves.float(), halves, features=True)
    assert in_bfloat16.frechet_distance == pytest.approx(0, abs=1e-9)
    mean, covariance = (
        [each.mean(0), np.cov(each.T)] for each in (real.astype(float), fake.astype(float))
    )
    np.savez(place / "gaussian.npz", mu=mean[0], sigma=mean[1])
    np.savez(place / "other.npz", mu=covariance[0], sigma=covariance[1])
    plain = here("compute", "gaussian.npz", "other.npz", "--json").fid
    assert found.json["results"][0]["metrics"][next(iter(first))] == pytest.approx(plain, rel=1e-5)
    mixed = here("compute", "gaussian.npz", "fake.npz", "--features", "--json")
    assert mixed.fid == pytest.approx(plain, rel=1e-5)


def test_refusals_name_the_option(here: Run, place: Path) -> None:
    make_pictures(place / "images", 4)
    for name in ("real.npy", "several.npz:acts"):
        error = here("compute", "images", name).error
        assert "has the shape 60x24; images must have" in error
        takes = "; `compute` takes features of images, NxD, with --features"
        assert error.endswith(takes)
    assert here("check", "real.npy").error.endswith(takes)
    may = "may be features of images, which `compute` takes with --features: pass"
    for more in ((), ("--features",)):
        error = here("compute", "images", "several.npz", *more).error
        assert error.endswith(
            f"several.npz has 2 arrays that {may} several.npz:real, or pass several.npz:acts"
        )
    assert here("check", "fake.npz").error.endswith(
        f"fake.npz has 1 array that {may} fake.npz:acts"
    )
    error = here("compute", "real.npy", "several.safetensors", "--features").error
    assert error.endswith("pass several.safetensors:acts, or pass several.safetensors:real")
    torch.save({"mu": torch.zeros(24), "sigma": torch.eye(24)}, place / "gaussian.pt")
    assert (
        "gaussian.pt contains mu" in here("compute", "real.npy", "gaussian.pt", "--features").error
    )
    for shape, said in (
        ((4, 3072), "or NHW; `compute` takes features of images, NxD, with features=True$"),
        ((4, 60, 1, 1), "; `compute` takes features of images, NxD, with features=True$"),
    ):
        with pytest.raises(fidtool.InputError, match=said):
            fidtool.compute(place / "images", np.zeros(shape, np.uint8), features=len(shape) == 4)
    with pytest.raises(
        fidtool.InputError, match=r"real has the shape 60x24; .* with features=True"
    ):
        fidtool.compute(np.zeros((60, 24), np.float32), place / "images")
    for values, words in (
        (np.arange(48).reshape(2, 24), "dtype int64; it should contain floats"),
        (np.full((4, 24), np.nan), "contains NaN or infinite values"),
    ):
        np.save(place / "bad.npy", values)
        found = here("compute", "real.npy", "bad.npy", "--features")
        assert (found.status, "bad.npy cannot be read: " in found.error, words in found.error) == (
            2,
            True,
            True,
        )
    idle = here("compute", "images", "images", "--features", "--dims", 64, "--no-cache")
    assert "--features has no effect: no set is a two-dimensional array" in idle.stderr
