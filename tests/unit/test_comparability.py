"""Results that are comparable with published values or not, item by item."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fidtool
from fidtool.errors import InputError
from fidtool.features.protocol import INCEPTION, Definition, find_protocol, inception_definition
from fidtool.references.catalogue import REFERENCES
from fidtool.references.published import published_values
from fidtool.report.html import html_report
from fidtool.report.text import dumps
from fidtool.result.evaluation import Evaluation, SetResult
from fidtool.result.standing import Standing
from fidtool.result.values import FeatureSource
from fidtool.settings.presets import PRESETS
from fidtool.sources.crops import Crop
from support.documents import checked
from support.report_samples import bare, known_of

ADM, ALL, DINOV2 = "adm:imagenet256", 1_281_167, "dinov2:vitl14"
ADM_PARTS = {"split_size": 5000, "bias": False}
YES = dict.fromkeys(
    (
        *("images of FAKE", "images of REAL", "images of REAL for precision and recall"),
        *("network", "protocol", "settings of metrics", "reference"),
        *("crop of REAL", "size of FAKE", "format of FAKE", "precision"),
    ),
    "yes",
)


def definition(protocol: str | None, extractor: str = INCEPTION, dims: int = 2048) -> Definition:
    """Return a definition whose protocol has this name; None if it is that of no protocol."""
    of_inception = inception_definition(find_protocol("tensorflow"), 2048)
    if extractor == INCEPTION and protocol is not None:
        of_inception = inception_definition(find_protocol(protocol), 2048)
    resizes = {"pil": "pillow-bicubic", "torch": "bicubic-antialias-unclamped", None: "another"}
    return replace(
        of_inception,
        extractor=extractor,
        dims=dims,
        resize=of_inception.resize if extractor == INCEPTION else resizes[protocol],
    )


def result(
    real: str = ADM,
    count: Any = None,
    fakes: Any = 50_000,
    order: float | None = None,
    **changes: Any,
) -> Evaluation:
    """Return a result of the preset adm, as far as verify reads it.

    Args:
        real: path of REAL.
        count: its number of images.
        fakes: number of generated images.
        order: what the parts of the Inception Score in stored order have of that of random parts.
        changes: ``protocol``, ``network`` (its extractor and dims), ``settings``, ``framing`` (of
            REAL), ``layers`` (definitions of further networks) and ``further`` (their values),
            facts about ``of_real`` and ``of_fake``, and ``config``.
    """
    usual: dict[str, Any] = {
        "stated": True,
        "precision": "fp32",
        "with_features": 50_000,
        "formats": {"PNG": 50_000},
        "sizes": {"256x256": 50_000},
    }
    published = {"reference": real, "with_features": 10_000, "formats": {"array": 10_000}}
    of_real = (
        usual
        | (published if real in REFERENCES else {"with_features": count})
        | changes.get("of_real", {})
    )
    evaluation = bare("fake/", real=real)
    values = {"fid": 1.0}
    if order is not None:
        values["is_order"] = order
    further = changes.get("further", ())
    comparison = replace(
        evaluation.results[0],
        known=(*evaluation.results[0].known, *further),
        real=SetResult(real, count, framing=changes.get("framing"), **of_real),
        fake=SetResult("fake/", fakes, **usual | changes.get("of_fake", {})),
        metrics=values | {value.key: 1.0 for value in further},
    )
    first = definition(changes.get("protocol", "tensorflow"), **changes.get("network", {}))
    return replace(
        evaluation,
        definitions={"features": first, **changes.get("layers", {})},
        results=(comparison,),
        settings=changes.get("settings", {"prdc": {"nearest_k": 3, "ties": "inclusive"}}),
        run=replace(evaluation.run, config={"preset": "adm", **changes.get("config", {})}),
    )


NOT_PUBLISHED = {
    "images of REAL": "not known",
    "images of REAL for precision and recall": "no",
    "reference": "not known",
    "size of FAKE": None,
}

OF_EDM2: dict[str, Any] = {
    "settings": {},
    "config": {"preset": "edm2"},
    "of_fake": {"sizes": {"512x512": 50_000}},
}
EDM2 = {"settings of metrics": None, "images of REAL for precision and recall": None}

# Neither is a published reference of the tokenizers' presets.
RFID: dict[str, Any] = {
    "settings": {"ssim": {"window": "uniform", "scale": "half"}},
    "config": {"preset": "rfid-llamagen"},
}
OF_RFID = {**NOT_PUBLISHED, "images of REAL for precision and recall": None}

CASES: dict[str, tuple[Evaluation, dict[str, Any]]] = {
    "as published": (result(), {}),
    **{
        f"splits with {order} times the score of random splits": (
            result(
                settings={"prdc": {"nearest_k": 3, "ties": "inclusive"}, "is": ADM_PARTS},
                order=order,
            ),
            {"order of FAKE": verdict},
        )
        for order, verdict in ((None, "not known"), (0.91, "yes"), (0.89, "no"))
    },
    "a fifth of the samples, as JPEG": (
        result(fakes=10_000, of_fake={"formats": {"JPEG": 10_000}}),
        {"images of FAKE": "no", "format of FAKE": "no"},
    ),
    "settings of other tools": (
        result(
            protocol="pytorch-fid",
            of_fake={"precision": "bf16"},
            settings={"prdc": {"nearest_k": 5, "ties": "strict"}},
        ),
        {"protocol": "no", "precision": "no", "settings of metrics": "no"},
    ),
    "a folder of original images": (
        result("real/", ALL, of_real={"sizes": {"500x375": 9, "333x500": 5}}),
        {**NOT_PUBLISHED, "crop of REAL": "no"},
    ),
    "a folder cropped as ADM does": (result("real/", ALL, framing=Crop("adm", 256)), NOT_PUBLISHED),
    **{
        f"VAR, with a folder cropped by {crop}": (
            result("real/", ALL, framing=Crop(crop, 256), config={"preset": "var"}),
            {**NOT_PUBLISHED, "crop of REAL": verdict},
        )
        for crop, verdict in (("var", "yes"), ("adm", "not known"), ("center", "no"))
    },
    "ImageNet's validation set instead of the training set": (
        result("val/", 50_000, framing=Crop("adm", 256)),
        {**NOT_PUBLISHED, "reference": "no"},
    ),
    "rFID of the validation set": (
        result("val/", 50_000, framing=Crop("adm", 256), **RFID),
        OF_RFID,
    ),
    "rFID of the training set": (
        result("train/", ALL, framing=Crop("adm", 256), **RFID),
        {**OF_RFID, "reference": "no"},
    ),
    "rFID with ADM's statistics": (
        result(**RFID),
        {"images of REAL for precision and recall": None, "reference": "no"},
    ),
    "rFID with ADM's statistics, downloaded by hand": (
        result(
            "refs/VIRTUAL_imagenet256_labeled.npz",
            of_real={"origin": "ADM", "sizes": None},
            framing=Crop("adm", 256),
            **RFID,
        ),
        {**OF_RFID, "reference": "no"},
    ),
    "rFID with the SSIM of another program": (
        result(
            "val/",
            50_000,
            framing=Crop("adm", 256),
            **{**RFID, "settings": {"ssim": {"window": "gaussian", "scale": "unit"}}},
        ),
        {**OF_RFID, "settings of metrics": "no"},
    ),
    "rFID of a sample of the training set with as many images as the validation set": (
        result("train/", 50_000, framing=Crop("adm", 256), **{**RFID, "of_real": {"found": ALL}}),
        {**OF_RFID, "images of REAL": "no", "reference": "no"},
    ),
    "a folder that may be cropped, of which no image was inspected": (
        result("real/", ALL, of_real={"sizes": None}, of_fake={"formats": None, "sizes": None}),
        {
            **NOT_PUBLISHED,
            "crop of REAL": "not known",
            "format of FAKE": "not known",
        },
    ),
    "FID of EDM2 alone, from statistics": (
        result(
            "edm2:img512",
            settings={},
            config={"preset": "edm2"},
            of_fake={"sizes": {"512x512": 50_000}, "precision": None},
        ),
        {
            "settings of metrics": None,
            "images of REAL for precision and recall": None,
            "precision": "not known",
        },
    ),
    **{
        f"FID and FD-DINOv2 of EDM2, with the resize {name}": (
            result(
                "edm2:img512",
                **OF_EDM2,
                layers={"dinov2": definition(name, DINOV2, 1024), "spatial": None},
            ),
            {**EDM2, f"protocol of {DINOV2}": verdict},
        )
        for name, verdict in (("torch", "yes"), ("pil", "no"), (None, "not known"))
    },
    "FID and FD-DINOv2 of EDM2, from a file that does not state the network": (
        result(
            "edm2:img512",
            **OF_EDM2,
            layers={"dinov2": None, "spatial": None},
            further=known_of(FeatureSource("dinov2", "dinov2", 1024, "dinov2"), "fid"),
        ),
        {**EDM2, f"protocol of {DINOV2}": "not known"},
    ),
    **{
        f"FD-DINOv2 of EDM2 alone, with the resize {name}": (
            result(
                "edm2:img512", **OF_EDM2, network={"extractor": DINOV2, "dims": 1024}, protocol=name
            ),
            {**EDM2, "protocol": verdict},
        )
        for name, verdict in (("torch", "yes"), ("pil", "no"))
    },
    "another network": (
        result(network={"extractor": DINOV2, "dims": 1024}, protocol=None),
        {"network": "no", "protocol": "not known"},
    ),
    "samples with statistics beside them, whose number of images is unknown": (
        result(fakes=None, of_fake={"with_features": 48}),
        {"images of FAKE": "no"},
    ),
    "a crop where the program has none of its own": (
        result(
            "real/",
            ALL,
            protocol="stylegan",
            settings={},
            config={"preset": "stylegan"},
            framing=Crop("resize", 256),
        ),
        {
            **NOT_PUBLISHED,
            "images of REAL for precision and recall": None,
            "settings of metrics": None,
            "crop of REAL": "not known",
        },
    ),
    "statistics of another tool as FAKE": (
        result(of_fake={"stated": False, "precision": None}),
        {"network": "not known", "protocol": "not known", "precision": "not known"},
    ),
    "REAL in another precision": (
        result("real/", ALL, framing=Crop("adm", 256), of_real={"precision": "bf16"}),
        {**NOT_PUBLISHED, "precision": "no"},
    ),
    "formats that can be lossless": (
        result(of_fake={"formats": {"PNG": 1, "WEBP": 1}}),
        {"format of FAKE": "not known"},
    ),
    "a tool whose papers state the number of images": (
        result(
            "real/", 100, 100, settings={}, protocol="pytorch-fid", config={"preset": "pytorch-fid"}
        ),
        {
            **NOT_PUBLISHED,
            "images of FAKE": "not known",
            "images of REAL for precision and recall": None,
            "settings of metrics": None,
            "crop of REAL": None,
        },
    ),
    "protocols that differ, which was allowed": (
        result(config={"allow_mismatch": True}),
        {"protocol": "not known"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_item(name: str) -> None:
    evaluation, changes = CASES[name]
    (verdict,) = fidtool.verify(evaluation)
    expected = {item: found for item, found in {**YES, **changes}.items() if found is not None}
    assert {item.name: item.verdict for item in verdict.items} == expected
    outcomes = {*expected.values()}
    assert verdict.comparable is (
        False if "no" in outcomes else None if "not known" in outcomes else True
    )
    for item in verdict.items:
        assert item.found
        assert item.expected
        assert item.source
        assert (f"{item.name}: {item.found} instead of {item.expected}" in verdict.line) == (
            item.verdict == "no"
        )


def test_the_preset_is_that_of_the_caller_the_run_or_the_reference(tmp_path: Path) -> None:
    file = tmp_path / "fid.json"
    file.write_text(dumps(result(config={"preset": None}).to_dict()))
    for name in PRESETS:
        assert fidtool.verify(file, name)[0].preset == name
    assert fidtool.verify(str(file), "DiT")[0].preset == "adm"
    assert fidtool.verify(file)[0].preset == "adm", "by its reference"
    file.write_text(dumps(result("real/", config={"preset": None}).to_dict()))
    with pytest.raises(InputError, match="the run had no preset: pass one of adm, var"):
        fidtool.verify(file)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rFID with ADM's statistics", f"reference: {ADM}, statistics of the training set instead"),
        (
            "rFID with ADM's statistics, downloaded by hand",
            "a file of ADM, statistics of the training set instead of the 50,000 images of "
            "ImageNet's validation set",
        ),
        ("rFID of the training set", "train/, with as many images as ImageNet's training set"),
        (
            "ImageNet's validation set instead of the training set",
            "val/, with as many images as ImageNet's validation set instead of ADM's file",
        ),
    ],
)
def test_the_wrong_part_of_the_data_set_is_named(name: str, words: str) -> None:
    (verdict,) = fidtool.verify(CASES[name][0])
    assert words in verdict.line


@pytest.mark.parametrize(
    "changes",
    [
        {"results": [None]},
        {"protocol": "tensorflow"},
        {
            "results": [
                {"fake": "a", "count": {"real": 1, "fake": 2}, "sets": {"fake": {"formats": "png"}}}
            ]
        },
        {
            "results": [
                {"fake": "a", "count": {"real": 1, "fake": 2}, "sets": {"fake": {"sizes": [1]}}}
            ]
        },
        {"run": {"config": {"preset": 5}}},
        {"schema": 2},
    ],
)
def test_a_file_that_was_edited_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        fidtool.verify(result().to_dict() | changes)


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    failed = {**result().to_dict(), "results": [], "exit": {"code": 2, "reason": "no such file"}}
    with pytest.raises(InputError, match=r"the run failed \(no such file\)"):
        fidtool.verify(failed)
    for value in (5, None, [], {}):
        with pytest.raises(InputError, match="which has results and run"):
            fidtool.verify(value)  # type: ignore[arg-type]
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match="it is not JSON"):
        fidtool.verify(tmp_path / "bad.json")


# --- where an FID lies among published values ----------------------------------------------------


def of_fid(fid: float, **changes: Any) -> Evaluation:
    """Return a result that is comparable with the values of adm:imagenet256 but for ``changes``."""
    evaluation = result(**changes)
    (comparison,) = evaluation.results
    return replace(evaluation, results=(replace(comparison, metrics={"fid": fid}),))


OF_ADM = published_values(ADM)
LOWEST, HIGHEST = OF_ADM[0], OF_ADM[-1]
UNKNOWN_FORMAT = {"of_fake": {"formats": None}}


@pytest.mark.parametrize(
    ("fid", "place"),
    [
        (
            LOWEST.fid / 2,
            f"is below all {len(OF_ADM)} published values known to fidtool, the lowest of which is "
            f"{LOWEST.label} ({LOWEST.fid:.2f})",
        ),
        (
            HIGHEST.fid + 1,
            f"is above all {len(OF_ADM)} published values known to fidtool, the highest of which is "
            f"{HIGHEST.label} ({HIGHEST.fid:.2f})",
        ),
        (LOWEST.fid, f"equals the published value of {LOWEST.label} ({LOWEST.fid:.2f})"),
        (2.2662, "equals the published value of DiT-XL/2, cfg 1.5 (2.27)"),
        (1.974, "equals the published value of VAR-d30, cfg 1.5 (1.97) and TiTok-S-128 (1.97)"),
        (2.284, "lies between DiT-XL/2, cfg 1.5 (2.27) and MAR-B, cfg 2.9 (2.31)"),
        (8.5, "lies between SiT-XL/2, 1400 epochs, no guidance (8.30) and DiT-XL/2, 400K steps, "),
    ],
)
def test_where_an_fid_lies(fid: float, place: str) -> None:
    (verdict,) = fidtool.verify(of_fid(fid))
    standing = verdict.standing
    assert verdict.comparable
    assert standing is not None
    assert standing.line.startswith(f"FID {fid:.4f} {place}")
    assert standing.line.endswith(f": see `fidtool published {ADM}`")


@pytest.mark.parametrize(("fid", "side"), [(1.2, "below"), (2.8, "above")])
def test_where_an_fid_lies_beside_a_single_value(fid: float, side: str) -> None:
    values = published_values("adm:imagenet64")
    line = Standing("adm:imagenet64", fid, True, tuple(values)).line
    assert f" is {side} the only published value known to fidtool, ADM (2.07): see " in line


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        (ADM, "256x256", f"The nearest of {len(OF_ADM)} values that papers print for"),
        ("adm:imagenet64", "64x64", "1 value that papers print for"),
    ],
)
def test_the_page_says_if_values_are_left_out(name: str, size: str, words: str) -> None:
    page = html_report(of_fid(2.5, real=name, of_fake={"sizes": {size: 50_000}}))
    *_, before = page.partition(" that papers print for")[0].splitlines()
    assert f"{before.rpartition('>')[2].strip()} that papers print for" == words


def test_a_doubt_is_said_with_it() -> None:
    (verdict,) = fidtool.verify(of_fid(2.284, **UNKNOWN_FORMAT))
    assert verdict.comparable is None
    assert verdict.standing is not None
    assert verdict.standing.line.startswith("as far as is known, FID 2.2840 lies between ")
    document = verdict.to_dict()
    assert checked({"schema": 1, "verdicts": [document]})
    assert [*document["standing"]] == ["reference", "fid", "certain", "line"]


def test_only_settings_that_differ_are_listed() -> None:
    evaluation = result(**{**RFID, "settings": {"ssim": {"window": "gaussian", "scale": "half"}}})
    (verdict,) = fidtool.verify(evaluation)
    (item,) = [item for item in verdict.items if item.name == "settings of metrics"]
    assert (item.found, item.expected) == ("ssim_window gaussian", "ssim_window uniform")


def test_rfids_of_tokenizers_have_a_protocol() -> None:
    values = published_values("imagenet256-val")
    assert {value.protocol for value in values} == {"tensorflow"}


def test_an_rfid_lies_among_those_of_tokenizers() -> None:
    """REAL is a folder, so the preset names the published values."""
    (verdict,) = fidtool.verify(
        of_fid(1.1, real="val/", count=50_000, framing=Crop("adm", 256), **RFID)
    )
    assert verdict.standing is not None
    assert verdict.standing.line == (
        "as far as is known, FID 1.1000 lies between TiTok-SL-256 VQ (1.03) and TiTok-BL-64 VAE "
        "(1.25): see `fidtool published imagenet256-val`"
    )


@pytest.mark.parametrize(
    "evaluation",
    [
        of_fid(2.284, fakes=10_000),
        of_fid(2.284, protocol="pytorch-fid"),
        of_fid(2.284, real="real/", count=1_281_167),
        of_fid(2.284, network={"extractor": "dinov2:vitb14", "dims": 768}, protocol="torch"),
        replace(
            of_fid(2.284, config={"preset": "pytorch-fid", "allow_mismatch": True}, settings={}),
            definitions={"features": definition("pytorch-fid")},
        ),
    ],
    ids=["fewer images", "another protocol", "a folder", "another network", "allowed mismatch"],
)
def test_others_have_no_place(evaluation: Evaluation) -> None:
    (verdict,) = fidtool.verify(evaluation)
    assert verdict.standing is None
