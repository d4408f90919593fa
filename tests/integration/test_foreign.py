"""What is something else under the name of an image, statistics, weights, a list or an archive is
named as such.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fidtool
from fidtool.features.protocol import FEATURES
from fidtool.reading.decode import DecodeError, decode
from fidtool.sources.kinds import PLAIN, describe_foreign
from fidtool.sources.listing import open_images
from fidtool.statistics.foreign import check_inception
from fidtool.training import FrechetInceptionDistance
from support.command_line import Run
from support.encoded import FILES
from support.offline import needs_weights
from support.places import TINY
from support.source_forms import make_forms, make_squares

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
PAGE = b'\xef\xbb\xbf\n<!DOCTYPE HTML>\n<html lang="en"><title>Sign in</title></html>'
DAMAGED = {
    "pointer": (POINTER, ["is a Git LFS pointer, not the file itself", "git lfs pull"]),
    "annex": (
        b"/annex/objects/SHA256E-s9--4d7a.png\n",
        ["is a git-annex pointer", "git annex get"],
    ),
    "page": (PAGE, ["is a web page (HTML)", "download it again"]),
    "error": (
        b'<?xml version="1.0"?>\n<Error><Code>NoSuchKey</Code></Error>',
        ["is XML text", "download it again"],
    ),
    "json": (
        json.dumps({"error": "no access"}).encode(),
        ["is JSON text", "download the file again"],
    ),
    "empty": (b"", ["is empty (0 bytes)", "copy or download it again"]),
    "text": (b"404: Not Found\n", ["is plain text", "download or create the file again"]),
    "compressed page": (gzip.compress(PAGE), ["is a web page (HTML)", "download it again"]),
    "compressed json": (
        gzip.compress(b'{"error": "no access"}'),
        ["is JSON text", "download the file again"],
    ),
}
NAMES = (
    "a.npz",
    "a.pkl",
    "a.npy",
    "a.zip",
    "a.tar",
    "a.tar.gz",
    "a.pt",
    "a.pth",
    "a.safetensors",
    "a.parquet",
    "a.arrow",
    "a",
)
LISTS = ("a.txt", "a.csv", "a.jsonl")


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return make_squares(tmp_path / "real", 3)


@pytest.mark.parametrize("kind", DAMAGED)
def test_it_is_named_under_any_name(here: Run, tmp_path: Path, real: Path, kind: str) -> None:
    data, words = DAMAGED[kind]
    for name in (
        *NAMES,
        *LISTS[: {"empty": 0, "text": 0, "json": 2, "compressed json": 2}.get(kind, 3)],
    ):
        (tmp_path / name).write_bytes(data)
        remote = f"file://{tmp_path / name}"
        for pair in ((real, name), (name, real), *([(real, remote)] if "." in name else [])):
            run = here("compute", *pair, "--extractor", TINY)
            assert run.status == 2
            assert [word for word in [f"{name} ", *words] if word not in run.error] == [], run.error
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(data)
    run = here("compute", real, "images", "--extractor", TINY, "--no-cache")
    assert [
        word for word in [words[0].removeprefix("is "), words[1]] if word not in run.error
    ] == [], run.error
    for extractor in ("inception", "dinov2"):
        run = here("compute", real, real, "--extractor", extractor, "--weights", "a.pth")
        assert [
            word for word in ["the weights file a.pth", *words] if word not in run.error
        ] == [], run.error
    for extractor in ("a.pt", "a.pt2"):
        (tmp_path / extractor).write_bytes(data)
        run = here("compute", real, real, "--extractor", extractor)
        assert [word for word in [f"{extractor} ", *words] if word not in run.error] == [], (
            run.error
        )


def test_a_compressed_array_is_refused_with_a_way(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 8, 8, 3), np.uint8))
    (tmp_path / "a.npy.gz").write_bytes(gzip.compress((tmp_path / "a.npy").read_bytes()))
    with pytest.raises(fidtool.InputError, match="decompress it, with gunzip"):
        open_images(str(tmp_path / "a.npy.gz"))


def test_one_of_several_archives_is_named(here: Run, tmp_path: Path, real: Path) -> None:
    forms = make_forms(real)
    (tmp_path / "shard-001.tar").write_bytes(POINTER)
    run = here("compute", real, forms["shards"], "--extractor", TINY)
    assert "shard-001.tar is a Git LFS pointer" in run.error


def batch(protocol: int, first: str | bytes) -> bytes:
    return pickle.dumps(
        {first: [1, 2], "filenames": ["a", "b"], "data": np.zeros((2, 3072), np.uint8)}, protocol
    )


EXAMPLE = b"\n\x10\n\x0e\n\x05image\x12\x05\n\x03\n\x01a"
PARQUET = ["folder or a Parquet table", "fidtool.Images(dataset)"]
DATASETS: dict[str, tuple[str, Callable[[], bytes], list[str]]] = {
    "HDF5": ("train.h5", lambda: b"\x89HDF\r\n\x1a\n" + bytes(99), ["HDF5", *PARQUET]),
    "MATLAB's HDF5": (
        "a.mat",
        lambda: b" " * 512 + b"\x89HDF\r\n\x1a\n" + bytes(99),
        ["HDF5", *PARQUET],
    ),
    "LMDB": (
        "data.mdb",
        lambda: bytes(16) + struct.pack("<2I", 0xBEEFC0DE, 1) + bytes(99),
        ["LMDB", *PARQUET],
    ),
    "TFRecord": (
        "train.tfrecord-00000-of-00002",
        lambda: struct.pack("<QI", len(EXAMPLE), 0x1234) + EXAMPLE + bytes(4),
        ["TFRecord", *PARQUET],
    ),
    "CIFAR-10": (
        "data_batch_1",
        lambda: batch(2, "batch_label"),
        ["CIFAR", "torchvision", *PARQUET],
    ),
    "CIFAR-100": ("train", lambda: batch(5, b"fine_labels"), ["CIFAR", *PARQUET]),
    "CIFAR of Python 2": (
        "test_batch",
        lambda: b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03" + bytes(9),
        ["CIFAR", *PARQUET],
    ),
    "MNIST": (
        "train-images-idx3-ubyte",
        lambda: struct.pack(">4I", 0x803, 9, 28, 28) + bytes(999),
        ["IDX", *PARQUET],
    ),
    "MNIST, compressed": (
        "t10k-images.idx3-ubyte.gz",
        lambda: gzip.compress(struct.pack(">4I", 0x803, 9, 28, 28) + bytes(999)),
        ["IDX", *PARQUET],
    ),
    "MP4": (
        "a.mp4",
        lambda: struct.pack(">I", 32) + b"ftypisom\0\0\2\0" + bytes(99),
        ["video", "ffmpeg"],
    ),
    "MOV": (
        "a.mov",
        lambda: struct.pack(">I", 32) + b"ftypqt  \0\0\2\0" + bytes(99),
        ["video", "ffmpeg"],
    ),
    "WebM": ("a.webm", lambda: b"\x1aE\xdf\xa3" + bytes(99), ["video", "ffmpeg"]),
    "AVI": ("a.avi", lambda: b"RIFF\0\1\0\0AVI LIST" + bytes(99), ["video", "ffmpeg"]),
    "7z": ("a.7z", lambda: b"7z\xbc\xaf'\x1c" + bytes(99), ["7z", "extract it"]),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_a_dataset_is_named_with_a_way(here: Run, tmp_path: Path, real: Path, kind: str) -> None:
    name, make, words = DATASETS[kind]
    file = tmp_path / "data" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(make())
    (tmp_path / "data/dataset_dict.json").write_text("{}")
    for path in (file, tmp_path / "data", tmp_path / "data" / name.partition("/")[0]):
        for command in (("compute", real, path), ("check", path)):
            run = here(*command)
            assert run.status == 2
            assert [word for word in [str(file), *words] if word not in run.error] == [], run.error
    with pytest.raises(DecodeError, match=words[0]):
        decode(make())
    with pytest.raises(fidtool.InputError, match=words[0]):
        fidtool.compute(real, file)


def test_links_without_a_target_are_named(here: Run, tmp_path: Path, real: Path) -> None:
    (tmp_path / "images").mkdir()
    names = ["a.npz", "a.npy", "a.txt", "a.tar", "a.pkl", "images/a.png", "folder"]
    for name in names:
        (tmp_path / name).symlink_to(f".git/annex/objects/x/SHA256E-s9--4d7a.{name[-3:]}")
    for name in [*names[:5], "images", "folder"]:
        run = here("compute", real, name, "--extractor", TINY)
        assert f"{name}" in run.error
        assert (
            "is a git-annex link to a file that is not on this machine: run `git annex get`"
            in run.error
        )
    (tmp_path / "images/list.txt").write_text("a.png\n")
    error = here("compute", real, "images/list.txt", "--extractor", TINY).error
    assert (
        "(line 1: images/a.png), which is a git-annex link to a file that is not on this machine: "
        "run `git annex" in error
    )
    (tmp_path / "b.npz").symlink_to("nowhere.npz")
    assert "b.npz is a link to nowhere.npz, which does not exist" in here("check", "b.npz").error


def test_what_is_read_is_not_foreign(tmp_path: Path) -> None:
    forms = make_forms(make_squares(tmp_path / "images", 5))
    heads = {
        **FILES,
        **{
            form: Path(path).read_bytes()[:1024]
            for form, path in forms.items()
            if Path(path).is_file()
        },
    }
    heads |= {package.__name__: package.compress(bytes(99)) for package in (gzip, bz2, lzma)}
    heads["statistics"] = pickle.dumps({"mu": np.zeros(3), "sigma": np.eye(3)})
    assert [name for name, head in heads.items() if describe_foreign(head) not in ("", PLAIN)] == []
    assert [name for name, head in heads.items() if describe_foreign(head)] == [
        "images.txt",
        "images.csv",
    ]


# --- statistics that state no network -------------------------------------------------------------


def statistics_of(
    file: Path, length: float, lowest: float = 0.0, spread: float = 8.0, dims: int = 64
) -> Path:
    """Writes a mean of this length, and a covariance of this spread, as pytorch-fid does."""
    mu = np.linspace(0.5, 1.5, dims)
    mu *= length / np.linalg.norm(mu)
    mu[3] = min(mu[3], lowest) if lowest < 0 else mu[3]
    np.savez(file, mu=mu, sigma=np.eye(dims) * spread**2 / dims)
    return file


def test_means_below_zero_are_not_of_inception(here: Run, tmp_path: Path, real: Path) -> None:
    statistics_of(tmp_path / "good.npz", 20.0, spread=4.0)
    statistics_of(tmp_path / "bad.npz", 20.0, lowest=-1e-9, spread=4.0)
    refused = here("compute", "good.npz", "bad.npz")
    assert refused.status == 2
    assert (
        "bad.npz was not computed with Inception, whose features are never negative, but the mean "
        "of one is -1e-09: pass" in refused.error
    )
    named = here("compute", "good.npz", "bad.npz", "--extractor", "dinov2:vits14")
    assert (named.status, named.stdout.startswith("FD (64 dimensions): ")) == (0, True)
    features = np.random.RandomState(0).standard_normal((80, 64)).astype(np.float32)
    metrics = fidtool.compute(features, features[:70], features=True).results[0].metrics
    assert "fd_64" in metrics
    assert "fid_64" not in metrics
    assert here("compute", "good.npz", "good.npz").stdout.startswith("FID (64 dimensions): ")
    with pytest.raises(
        fidtool.InputError,
        match=r"bad\.npz was not computed with Inception.* their network with feature=",
    ):
        FrechetInceptionDistance(64, real_statistics=tmp_path / "bad.npz")


SIZES = {
    "random weights": (1.5, 0.7, True),
    "of another scale": (3000.0, 20.0, True),
    "of too much spread": (20.0, 50.0, True),
    "noise": (39.2, 0.3, False),
    "one flat colour": (11.5, 0.0, False),
    "many flat colours": (12.3, 5.4, False),
}
"""Length and spread of 64 features, and whether they are unlike Inception's."""


@pytest.mark.parametrize("kind", SIZES)
def test_statistics_unlike_inceptions(here: Run, tmp_path: Path, kind: str) -> None:
    length, spread, unlike = SIZES[kind]
    statistics_of(tmp_path / "good.npz", 20.0, spread=4.0)
    statistics_of(tmp_path / "given.npz", length, spread=spread)
    outcome = here("compute", "good.npz", "given.npz")
    assert outcome.status == 0
    assert ("given.npz: probably not statistics of Inception" in outcome.stderr) == unlike


@needs_weights
def test_the_training_metrics_result_has_doubts_of_its_statistics(tmp_path: Path) -> None:
    file = statistics_of(tmp_path / "given.npz", 3000.0)
    with pytest.warns(
        fidtool.FidtoolWarning, match="given.npz: probably not statistics of Inception"
    ):
        metric = FrechetInceptionDistance(64, real_statistics=file)
    metric.update(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), real=False)
    metric.compute()
    assert any(
        "probably not statistics of Inception" in str(line) for line in metric.result.warnings
    )


@needs_weights
@pytest.mark.parametrize("dims", [64, 2048])
def test_inceptions_own_statistics_are_like_them(tmp_path: Path, dims: int) -> None:
    """Of noise and of one colour, written without a fingerprint."""
    noise = np.random.RandomState(0).randint(0, 256, (4, 24, 24, 3)).astype(np.uint8)
    for images in (noise, np.zeros_like(noise)):
        statistics = fidtool.compute_statistics(images, dims=dims, cache=False)
        assert statistics is not None
        assert (
            check_inception(
                "it", replace(statistics.layers[FEATURES], definition=None), "inception"
            )
            == []
        )
