"""Only a distance of Inception's 2048 features is called `FID`: all other values name their
features.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fidtool as package
from fidtool.features.choice import CMMD_EXTRACTOR
from fidtool.features.protocol import EMBEDDING, FEATURES, INCEPTION, Definition
from fidtool.metrics.cmmd import CMMD
from fidtool.report.html import html_report
from fidtool.report.text import influence_lines, result_lines
from fidtool.result.evaluation import Evaluation
from fidtool.result.values import FeatureSource, find_key, list_values
from fidtool.run.gates import check_gates
from fidtool.settings.settings import Settings
from support.pictures import make_pictures
from support.places import TINY
from support.report_samples import DINO, FURTHER, KNOWN, bare, known_of, rich


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_pictures(tmp_path / "real", 20, 0), make_pictures(tmp_path / "fake", 20, 1)


def defined(extractor: str, dims: int) -> Definition:
    return Definition(extractor, "0" * 64, dims, 18, 299, "x/255", "bilinear", "pillow", 1)


@pytest.mark.parametrize(
    ("features", "name", "title", "key"),
    [
        (FeatureSource(), "fid", "FID", "fid"),
        (FeatureSource(), "fid_infinity", "FID-infinity", "fid_infinity"),
        (FeatureSource.from_network("inception", 64), "fid", "FID (64 dimensions)", "fid_64"),
        (FeatureSource.from_network("inception", 64), "kid", "KID (64 dimensions)", "kid_64"),
        (FeatureSource.from_network("inception", 64), "is", "IS", "is"),
        (DINO, "fid", "FD (dinov2)", "fd_dinov2"),
        (DINO, "precision", "Precision (dinov2)", "precision_dinov2"),
        (DINO, "fid_infinity", "FD-infinity (dinov2)", "fd_infinity_dinov2"),
        (FURTHER, "fid", "FD (dinov2)", "fd_dinov2"),
        (
            FeatureSource.from_network("nets/é.py:f", 2048),
            "fid",
            "FD (nets/é.py:f)",
            "fd_nets___py_f",
        ),
        (FeatureSource.from_network("", 1024), "fid", "FD (1024 dimensions)", "fd_1024"),
    ],
)
def test_a_name_shows_which_features_a_value_is_based_on(
    features: FeatureSource, name: str, title: str, key: str
) -> None:
    (value,) = known_of(features, name)
    assert (value.title, value.key) == (title, key)


def test_the_key_of_a_spread() -> None:
    found = {
        value.key: value.spread for value in known_of(DINO, "fid", "kid", "is", "fid_infinity")
    }
    assert found == {
        "fd_dinov2": "",
        "kid_dinov2": "kid_std_dinov2",
        "is": "is_std",
        "fd_infinity_dinov2": "fd_infinity_error_dinov2",
    }


@pytest.mark.parametrize(
    ("definition", "dims", "expected"),
    [
        (defined(INCEPTION, 2048), 2048, FeatureSource()),
        (defined("dinov2:vitl14", 1024), 1024, DINO),  # the requested name
        # The files name a different model.
        (defined("dinov2:vits14", 384), 384, FeatureSource.from_network("dinov2:vits14", 384)),
        (defined("nets.py:f@0123456789ab", 9), 9, FeatureSource.from_network("nets.py:f", 9)),
        # Of other tools, and another network was asked for.
        (None, 2048, FeatureSource.from_network("", 2048)),
        (None, 1024, FeatureSource.from_network("", 1024)),
    ],
)
def test_the_definition_decides(
    definition: Definition | None, dims: int, expected: FeatureSource
) -> None:
    files = [package.Statistics.of(np.zeros(dims), np.eye(dims))]
    (value,) = list_values({FEATURES: definition}, Settings(extractor="dinov2"), files)
    assert value.features == expected


@pytest.mark.parametrize(
    ("network", "title", "key"),
    [
        (CMMD_EXTRACTOR, "CMMD", "cmmd"),
        ("dinov2:vitl14", "CMMD (dinov2)", "cmmd_dinov2"),
        ("dinov2:vits14", "CMMD (dinov2:vits14)", "cmmd_dinov2_vits14"),
    ],
)
def test_cmmd_names_a_network_that_is_not_the_authors(network: str, title: str, key: str) -> None:
    definitions = {FEATURES: defined(INCEPTION, 2048), EMBEDDING: defined(network, 1024)}
    config = Settings(metrics=("fid", CMMD(extractor="dinov2")))
    fid, cmmd = list_values(definitions, config)
    assert fid.features == FeatureSource()
    assert (cmmd.title, cmmd.key, cmmd.features.dims) == (title, key, 1024)


def test_features_that_have_a_layer_of_their_own() -> None:
    settings = Settings(metrics="fid,sfid,psnr,kid", extractor="inception,dinov2")
    values = list_values(
        {FEATURES: defined(INCEPTION, 2048), "dinov2": defined("dinov2:vitl14", 1024)},
        settings,
    )
    found = [(value.key, value.features.layer, str(value.features)) for value in values]
    inception = "Inception, 2048 dimensions"
    assert found == [
        ("fid", FEATURES, inception),
        ("kid", FEATURES, inception),
        ("sfid", "spatial", "Inception, 2023 dimensions"),
        ("psnr", "pixels", "pixels, 0 dimensions"),
        ("fd_dinov2", "dinov2", "dinov2, 1024 dimensions"),
        ("kid_dinov2", "dinov2", "dinov2, 1024 dimensions"),
    ]


def test_in_python_fid_is_none_for_other_networks(
    sets: tuple[Path, Path], environment: dict[str, str]
) -> None:
    evaluation = package.compute(*sets, extractor=TINY)
    (result,) = evaluation.results
    assert (evaluation.fid, result.fid) == (None, None)
    assert (
        evaluation.frechet_distance
        == result.frechet_distance
        == result.metrics[FeatureSource.from_network(TINY, 16).key("fd")]
        > 0
    )
    several = package.compute(sets[0], [sets[1], sets[1]], extractor=TINY)
    for wanted in ("fid", "frechet_distance"):
        with pytest.raises(ValueError, match=rf"2 results: read \.results\[i\]\.{wanted}"):
            getattr(several, wanted)


@pytest.mark.parametrize(
    ("metrics", "gated"),
    [
        ("kid,fid", "fid"),
        ("fid-infinity,fid", "fid-infinity"),
        ("fid,sfid", "fid"),
        ("sfid,kid,fid", "sfid"),
    ],
)
def test_the_gate_applies_to_the_first_requested_frechet_distance(metrics: str, gated: str) -> None:
    config = Settings(metrics=tuple(metrics.split(",")), fail_above=3.0)
    assert config.gated_value == replace(config, num=9).gated_value == gated.replace("-", "_")


def test_a_missed_gate_names_its_distance() -> None:
    numbers = {"fid_infinity": 12.3, "fid_infinity_error": 0.5, "fid": 9.0}

    def concluded(metrics: str) -> Evaluation:
        settings, found = (
            Settings(metrics=metrics, fail_above=10.0),
            _with(bare("fake/"), DINO, numbers),
        )
        (gated,) = (value.key for value in known_of(DINO, settings.gated_value))
        missed = tuple(check_gates(found, settings, None))
        return replace(found, results=(replace(found.results[0], missed=missed),), gated=gated)

    missed, passed = concluded("fid-infinity,fid"), concluded("fid,fid-infinity")
    assert missed.exit_reason == "gate missed: fake/ has FD-infinity (dinov2) 12.3, above 10"
    assert missed.exit_code == 3
    assert missed.to_dict()["exit"]["gated"] == "fd_infinity_dinov2"
    assert missed.to_dict()["results"][0]["missed"] == [
        "fake/ has FD-infinity (dinov2) 12.3, above 10"
    ]
    assert (passed.exit_code, passed.to_dict()["exit"]["gated"]) == (0, "fd_dinov2")
    assert "gated" not in bare("fake/").to_dict()["exit"]


def _with(
    evaluation: Evaluation, features: FeatureSource, numbers: dict[str, float], **changes: object
) -> Evaluation:
    """Return the evaluation with different metric values and a different network."""
    results = []
    for result in evaluation.results:
        known = known_of(features)
        bars = {find_key(known, key): bar for key, bar in result.uncertainties.items()}
        metrics = {find_key(known, name): value for name, value in numbers.items()}
        results.append(replace(result, metrics=metrics, known=known, uncertainties=bars))
    definition = replace(defined("dinov2:vitl14", 1024), resize="its own")
    return replace(
        evaluation, definitions={FEATURES: definition}, results=tuple(results), **changes
    )


def test_the_page_names_metric_network_and_protocol(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="needs fidtool[report]")
    pytest.importorskip("matplotlib", reason="needs fidtool[report]")
    plain = html_report(bare("fake"))
    basis = "Inception, 2048 dimensions, protocol pytorch-fid"
    head, _, body = plain.partition("</head>")
    first_screen = body.partition("</header>")[0]
    assert "<title>FID 12.3:" in head
    assert basis in head
    assert basis in first_screen
    files = [str(tmp_path / "gone.png")]
    evaluation = rich(bare("fake"), files)
    numbers = {"fid": 9.5, "fid_infinity": 9.0, "fid_infinity_error": 0.1}
    evaluation = replace(evaluation, results=(replace(evaluation.results[0], missed=()),))
    other = html_report(_with(evaluation, DINO, numbers))
    assert "<title>FD (dinov2) 9.5" in other
    assert other.count("dinov2, 1024 dimensions, the network&#39;s own preparation") == 2, (
        "in title and header"
    )
    assert "Bias-corrected FD (dinov2)" in other
    assert "FID" not in other.replace("<b>", "")


def test_the_line_of_every_metric_has_a_title() -> None:
    evaluation = rich(bare("a", "b"), ["x.png"])
    names = [value.number.name for value in KNOWN if not value.number.inception]
    numbers = dict.fromkeys((*names, "kid_std", "fid_infinity_error"), 1.0)
    lines = result_lines(_with(evaluation, DINO, numbers)) + influence_lines(
        _with(evaluation, DINO, numbers)
    )
    titles = [value.title for value in known_of(DINO, *names)]
    assert [line.partition(":")[0] for line in lines[: len(titles)]] == titles
    assert not [line for line in lines if "FID" in line.replace("sFID", "").replace("MIFID", "")]
    assert lines[-1].startswith("  the effects are rough")
