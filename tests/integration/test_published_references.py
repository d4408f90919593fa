"""Named references as REAL: their protocol, images and features, and what the result says about
them.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.features.models.dinov2 import HASHES
from fidtool.references.catalogue import REFERENCES
from support.command_line import Run, messages
from support.http_store import http_store
from support.offline import needs_weights
from support.pictures import make_pictures
from support.plain_dinov2 import Published, published_file
from support.published import EDM2, METFACES, archive, make_mirror, publish, statistics
from support.published_networks import features

pytestmark = needs_weights


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mirror(tmp_path_factory.mktemp("mirror"))


@pytest.fixture
def mirror(
    published: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The mirror, and a folder ``fake`` beside the test."""
    address = published.as_uri()
    monkeypatch.setenv("FIDTOOL_REFERENCES_URL", address)
    environment["FIDTOOL_REFERENCES_URL"] = address
    make_pictures(tmp_path / "fake", 6, 1)
    return published


def facts(outcome: Any, of: str = "real") -> dict[str, Any]:
    (result,) = outcome.json["results"]
    facts: dict[str, Any] = result["sets"][of]
    return facts


@pytest.mark.parametrize(
    ("real", "fakes"), [("fake", ["edm:cifar10"]), ("fake", ["fake", "EDM:CIFAR_10"])]
)
def test_a_reference_is_not_generated(
    here: Run, mirror: Path, tmp_path: Path, real: str, fakes: list[str]
) -> None:
    refused = here("compute", real, *fakes)
    reason = "is a published reference of real images, and cannot be"
    assert (refused.status, refused.stdout) == (2, "")
    assert refused.error == f"error: {fakes[-1]} {reason} FAKE: pass it as REAL, which comes first"
    with pytest.raises(
        fidtool.InputError, match=f"{reason} fake: pass it as real, which comes first"
    ):
        fidtool.compute([np.zeros((8, 8, 3), np.uint8)] * 2, fakes[-1])
    for url in (REFERENCES["adm:imagenet256"].url, f"{REFERENCES['adm:imagenet256'].url}:arr_0"):
        assert (
            here("compute", "fake", url).error
            == f"error: {url} {reason} FAKE: pass it as REAL, which comes first"
        )
    two = here("compute", "edm:cifar10", "adm:imagenet256")
    assert two.error == f"error: adm:imagenet256 {reason} FAKE: pass generated images"
    assert here("compute", "edm:cifar10", "edm:cifar10").status == 0, "a reference against itself"


def test_statistics(here: Run, mirror: Path, tmp_path: Path) -> None:
    outcome = here("compute", "edm:cifar10", "fake", "--json")
    assert "settings taken from edm:cifar10: protocol tensorflow" in outcome.stderr
    assert not [
        line
        for line in messages(outcome.json["results"][0])
        if "does not state its protocol" in line
    ]
    np.savez(tmp_path / "plain.npz", **statistics(0))
    plain = here("compute", "plain.npz", "fake", "--protocol", "tensorflow", "--json")
    assert outcome.metrics == plain.metrics
    assert "plain.npz: the file does not state its protocol" in plain.stderr
    assert facts(outcome)["reference"] == "edm:cifar10"
    assert sorted(facts(outcome)["sha256"]) == ["mu", "sigma"]
    with np.load(tmp_path / "plain.npz") as stored:
        written = io.BytesIO()
        np.save(written, stored["mu"])
    assert facts(outcome)["sha256"]["mu"] == hashlib.sha256(written.getvalue()).hexdigest()
    refused = here("compute", "edm:cifar10", "fake", "--protocol", "clean")
    assert "use different protocols" in refused.error


@pytest.mark.slow
def test_a_later_run_is_offline(here: Run, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here("refs", "--download", "EDM:CIFAR-10").status == 0
    monkeypatch.setenv("FIDTOOL_REFERENCES_URL", "file:///nowhere")
    assert here("compute", "edm:cifar10", "fake").status == 0
    missing = here("compute", "edm:ffhq", "fake", "--json")
    assert missing.status == 1
    assert "edm:ffhq" in missing.error
    assert "Traceback" not in missing.stderr


@pytest.mark.slow
def test_statistics_and_images_of_adm(here: Run, mirror: Path) -> None:
    outcome = here("compute", "adm:imagenet64", "fake", "--preset", "adm", "--json")
    assert {"fid", "sfid", "precision", "recall"} <= outcome.metrics.keys()
    assert facts(outcome)["with_features"] == 8
    assert sorted(facts(outcome)["sha256"]) == ["arr_0", "mu", "mu_s", "sigma", "sigma_s"]
    assert facts(outcome)["origin"] == "ADM's evaluator (it has mu_s)"
    (line,) = [
        line for line in outcome.stderr.splitlines() if line.startswith("fake: not comparable")
    ]
    assert (
        "images of FAKE: 6 instead of 50,000; images of REAL for precision and recall: 8 instead "
        "of 10,000" in line
    )
    assert f"{line}" in outcome.json["run"]["notes"]
    assert here("check", "adm:imagenet64:arr_0", "--json").json["images"]["images"] == 8


@pytest.mark.slow
def test_features_of_clean_fid(here: Run, mirror: Path) -> None:
    """FID from the published mean and covariance, KID from the features in another file."""
    both = here(
        "compute", METFACES.name, "fake", "--metrics", "fid,kid", "--kid-subset-size", 5, "--json"
    )
    assert both.json["protocol"]["name"] == "clean"
    assert facts(both)["with_features"] == 9
    assert sorted(facts(both)["sha256"]) == ["feats", "mu", "sigma"]


@pytest.fixture
def dinov2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, torch.Tensor]]:
    """Random weights of a ViT-L/14 with one layer on a local server, and nothing in torch.hub's
    folder.
    """
    timm = pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")
    made = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, **settings: made(name, depth=1, **settings)
    )
    file = tmp_path / "server" / "dinov2_vitl14_pretrain.pth"
    file.parent.mkdir()
    tensors = published_file(1024, 1)
    torch.save(tensors, file)
    monkeypatch.setitem(HASHES, "vitl14", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    with http_store(file.parent) as store:
        monkeypatch.setenv("FIDTOOL_DINOV2_URL", f"{store.url}{file.name}")
        yield tensors


@pytest.mark.slow
def test_both_values_of_edm2(
    here: Run, mirror: Path, tmp_path: Path, dinov2: dict[str, torch.Tensor]
) -> None:
    outcome = here("compute", "edm2:img64", "fake", "--preset", "edm2", "--json", "-o", "both.json")
    assert outcome.status == 0, outcome.stderr
    assert [*outcome.metrics] == ["fid", "fd_dinov2"]
    alone = here(
        "compute", "edm2:img64", "fake", "--preset", "edm2", "--extractor", "inception", "--json"
    )
    assert alone.metrics == {"fid": outcome.metrics["fid"]}
    assert (
        "--preset edm2: --extractor inception instead of inception,dinov2@protocol=torch"
        in alone.stderr
    )
    rows = features(tmp_path / "fake", _as_edm2, Published(dinov2, 16, 1)).numpy()
    with open(mirror / EDM2.url.partition("://")[2], "rb") as file:
        published = pickle.load(file)["fd_dinov2"]
    expected = fidtool.frechet_distance(
        published["mu"], published["sigma"], rows.mean(0), np.cov(rows.T)
    )
    assert outcome.metrics["fd_dinov2"] == pytest.approx(expected, rel=1e-5)
    assert facts(outcome)["with_features"] is None
    (verdict,) = fidtool.verify(tmp_path / "both.json")
    verdicts = {item.name: (item.verdict, item.found) for item in verdict.items}
    assert verdicts["protocol of dinov2:vitl14"] == ("yes", "torch")
    assert verdicts["network"][0] == verdicts["protocol"][0] == "yes"


def _as_edm2(picture: Any) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float()
    small = (
        torch.nn.functional.interpolate(pixels, size=(224, 224), mode="bicubic", antialias=True)[0]
        / 255
    )
    mean, std = (
        torch.tensor(values)[:, None, None]
        for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    return (small - mean) / std


@pytest.mark.slow
def test_the_other_resize_of_dinov2_is_said(
    here: Run, mirror: Path, dinov2: dict[str, torch.Tensor]
) -> None:
    outcome = here(
        "compute",
        "edm2:img64",
        "fake",
        "--preset",
        "edm2",
        "--extractor",
        "inception,dinov2",
        "--json",
    )
    (line,) = [
        line for line in outcome.stderr.splitlines() if line.startswith("fake: not comparable")
    ]
    assert "protocol of dinov2:vitl14: pil instead of torch" in line
    alone = here(
        "compute", "edm2:img64", "fake", "--extractor", "dinov2@protocol=torch", "-o", "fd.json"
    )
    assert alone.status == 0, alone.stderr
    (verdict,) = fidtool.verify("fd.json", "edm2")
    assert {"network", "protocol"}.isdisjoint(verdict.names_with("no"))


def test_dinov2_without_its_weights(
    here: Run, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends before an image is read."""
    pytest.importorskip("timm", reason="needs timm, of the extra 'timm'")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    monkeypatch.setenv("FIDTOOL_DINOV2_URL", "file:///nowhere.pth")
    (tmp_path / "fake" / "broken.png").write_bytes(b"no image")
    failed = here("compute", "edm2:img64", "fake", "--preset", "edm2")
    assert (failed.status, failed.stdout) == (1, "")
    assert failed.error.startswith(
        "error: dinov2: no weights for dinov2:vitl14: the download from file:///nowhere.pth"
    )
    for way in (
        "--extractor ...,dinov2@weights=...,protocol=torch",
        "FIDTOOL_DINOV2_URL",
        "--extractor inception",
    ):
        assert way in failed.error


@pytest.mark.slow
def test_a_pickle_of_edm2(here: Run, mirror: Path) -> None:
    arguments = ("fake", "--preset", "edm2", "--extractor", "inception")
    outcome = here("compute", "edm2:img64", *arguments, "--json")
    assert outcome.json["protocol"]["name"] == "tensorflow"
    named = here("compute", "edm2:img64:fid", "fake", "--protocol", "tensorflow", "--json")
    assert named.metrics == outcome.metrics
    other = here("compute", "edm2:img64:fd_dinov2", *arguments)
    assert "edm2:img64:fd_dinov2 has features of 1024 dimensions" in other.error


@pytest.mark.slow
def test_a_folder_of_that_name_is_no_reference(here: Run, mirror: Path, tmp_path: Path) -> None:
    make_pictures(tmp_path / "edm:cifar10", 4, 3)
    outcome = here("compute", "edm:cifar10", "fake", "--json")
    assert outcome.json["results"][0]["count"]["real"] == 4
    assert facts(outcome)["reference"] == ""


@pytest.mark.parametrize(
    ("typed", "meant"), [("cifar10", "edm:cifar10"), ("nvidia:cifar10", "edm:cifar10")]
)
def test_a_missing_path_may_mean_a_reference(
    here: Run, mirror: Path, typed: str, meant: str
) -> None:
    error = here("compute", typed, "fake").error
    assert error.startswith(f"error: no such file or folder: {typed}")
    assert f"the published reference is {meant}" in error


@pytest.mark.slow
def test_a_reference_of_images_that_were_resized_for_the_network(
    here: Run, mirror: Path, published: Path
) -> None:
    """FAKE needs the same crop, which the preset has."""
    publish(published, REFERENCES["t2ibenchmark:coco-30k"].url, archive(**statistics(8)))
    outcome = here("compute", "t2ibenchmark:coco-30k", "fake")
    assert "the preset coco-t2ibenchmark crops FAKE as well" in outcome.stderr
    outcome = here("compute", "t2ibenchmark:coco-30k", "fake", "--preset", "coco-t2ibenchmark")
    assert "crops FAKE as well" not in outcome.stderr
    assert "not comparable with published values of coco-t2ibenchmark: images of FAKE" in (
        outcome.stderr
    )
    for item in ("reference", "crop of REAL", "size of FAKE", "protocol"):
        assert f"{item}: " not in outcome.stderr
    refused = here("compute", "edm:cifar10:mu", "fake")
    assert refused.error == "error: mu alone is not a set that can be compared: pass edm:cifar10"
