"""Results, each comparable or not with published values, item by item."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fidtool
from fidtool.errors import InputError
from fidtool.features.protocol import INCEPTION
from fidtool.presets import PRESETS
from fidtool.statistics.set_facts import classes_in

ADM = "adm:imagenet256"
DINOV2 = "dinov2:vitl14"
BALANCED = {"number": 1000, "images": 50_000, "fewest": 50, "most": 50, "squares": 1000 * 50**2}
RANDOM = {"number": 1000, "images": 50_000, "fewest": 28, "most": 75, "squares": 1000 * 50**2 + 50_000}
SKEWED = {"number": 1000, "images": 50_000, "fewest": 5, "most": 500, "squares": 1000 * 50**2 + 90_000}
YES = dict.fromkeys(
    (
        *("images of FAKE", "images of REAL", "protocol", "settings of metrics", "reference"),
        *("crop of REAL", "size of FAKE", "format of FAKE", "precision", "classes of FAKE"),
    ),
    "yes",
)


def facts(**changes: Any) -> dict[str, Any]:
    """Return what a result says about a set of 50,000 PNG files in 1000 folders."""
    found = {"origin": "", "with_features": 50_000, "formats": {"PNG": 50_000}, "sizes": {"256x256": 50_000}}
    return {**found, "classes": BALANCED, **changes}


def result(real: str = ADM, count: Any = None, fakes: Any = 50_000, **changes: Any) -> dict[str, Any]:
    """Return a result of the preset adm, as far as verify reads it.

    Args:
        real: path of REAL.
        count: its number of images.
        fakes: number of generated images.
        changes: ``protocol``, ``precision``, ``settings``, ``framing`` (of REAL), ``sets``, ``preset`` and ``network``
            (further keys of the protocol).
    """
    published = facts(with_features=10_000, formats={"array": 10_000}, classes=None)
    sets = {"real": published, "fake": facts()} | changes.get("sets", {})
    return {
        "protocol": {"name": changes.get("protocol", "tensorflow"), **changes.get("network", {})},
        "settings": changes.get("settings", {"prdc": {"nearest_k": 3, "ties": "inclusive"}}),
        "results": [
            {
                "real": real,
                "fake": "fake/",
                "count": {"real": count, "fake": fakes},
                "sets": sets,
                "framing": {"real": changes.get("framing"), "fake": None},
            }
        ],
        "run": {"precision": changes.get("precision", "fp32"), "config": {"preset": changes.get("preset", "adm")}},
    }


FOLDER = {"count": 1_281_167, "sets": {"real": facts(classes=None)}}
UNCROPPED = {"count": 1_281_167, "sets": {"real": facts(sizes={"500x375": 9, "333x500": 5})}}
NOT_PUBLISHED = {"images of REAL": "not known", "reference": "not known", "size of FAKE": None}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as published": (result(), {}),
    "labels drawn at random": (result(sets={"fake": facts(classes=RANDOM)}), {}),
    "a fifth of the samples, as JPEG, in unequal classes": (
        result(fakes=10_000, sets={"fake": facts(formats={"JPEG": 10_000}, classes=SKEWED)}),
        {"images of FAKE": "no", "format of FAKE": "no", "classes of FAKE": "no"},
    ),
    "settings of other tools": (
        result(protocol="pytorch-fid", precision="bf16", settings={"prdc": {"nearest_k": 5, "ties": "strict"}}),
        {"protocol": "no", "precision": "no", "settings of metrics": "no"},
    ),
    "a reference of another project and size": (
        result(real="edm:imagenet64"),
        {"reference": "no", "size of FAKE": "no"},
    ),
    "a folder of original images": (result("real/", **UNCROPPED), {**NOT_PUBLISHED, "crop of REAL": "no"}),
    "a folder cropped as ADM does": (result("real/", framing="adm:256", **FOLDER), NOT_PUBLISHED),
    "a folder cropped in another way": (
        result("real/", framing="center:256", **FOLDER),
        {**NOT_PUBLISHED, "crop of REAL": "no"},
    ),
    "a folder that may be cropped, of which no image was inspected": (
        result(
            "real/", 1_281_167, sets={"real": facts(sizes=None), "fake": facts(formats=None, sizes=None, classes=None)}
        ),
        {
            **NOT_PUBLISHED,
            "crop of REAL": "not known",
            "format of FAKE": "not known",
            "classes of FAKE": "not known",
        },
    ),
    "FID of EDM2 alone, from statistics": (
        result(
            "edm2:img512", settings={}, precision="", preset="edm2", sets={"fake": facts(sizes={"512x512": 50_000})}
        ),
        {"settings of metrics": None, "precision": "not known"},
    ),
    "another layer": (result(network={"extractor": INCEPTION, "dims": 768}), {"protocol": "no"}),
    "another network": (
        result("edm2:img512", preset="adm", network={"extractor": DINOV2, "dims": 1024}),
        {"protocol": "no", "reference": "no", "size of FAKE": "no"},
    ),
    "FD-DINOv2 of EDM2": (
        result("edm2:img512", settings={}, preset="edm2", network={"extractor": DINOV2, "dims": 1024}),
        {"settings of metrics": None, "protocol": "not known", "size of FAKE": "no"},
    ),
    "samples with statistics of unknown images beside them": (
        result(fakes=None, sets={"fake": facts(with_features=48)}),
        {"images of FAKE": "no"},
    ),
    "statistics of an unknown number of images": (
        result(fakes=None, sets={"fake": facts(with_features=None)}),
        {"images of FAKE": "not known"},
    ),
    "a crop where the program has none of its own": (
        result("real/", 70_000, protocol="stylegan", settings={}, preset="stylegan", framing="resize:256"),
        {**NOT_PUBLISHED, "settings of metrics": None, "crop of REAL": "not known", "classes of FAKE": None},
    ),
    "EDM's resize of square images": (
        result("real/", 70_000, settings={}, preset="edm", framing="resize:256"),
        {**NOT_PUBLISHED, "settings of metrics": None, "crop of REAL": "not known"},
    ),
    "formats that can be lossless": (
        result(sets={"fake": facts(formats={"PNG": 1, "WEBP": 1})}),
        {"format of FAKE": "not known"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_item(name: str) -> None:
    content, changes = CASES[name]
    (verdict,) = fidtool.verify(content)
    expected = {item: found for item, found in {**YES, **changes}.items() if found is not None}
    assert {item.name: item.verdict for item in verdict.items} == expected
    assert verdict.comparable == ("no" not in expected.values())
    for item in verdict.items:
        assert item.found
        assert item.expected
        assert item.source
        assert (f"{item.name} is {item.found} instead of {item.expected}" in verdict.line) == (item.verdict == "no")


def test_values_that_are_shown() -> None:
    (verdict,) = fidtool.verify(CASES["a fifth of the samples, as JPEG, in unequal classes"][0])
    shown = {item.name: (item.found, item.expected) for item in verdict.items}
    assert shown["images of FAKE"] == ("10000", "50000")
    assert shown["format of FAKE"] == ("JPEG (10000)", "a lossless format")
    assert shown["classes of FAKE"][0] == "1000 classes with 5 to 500 images"
    assert shown["images of REAL"] == ("1281167", "1281167")


def test_the_preset_is_named_by_the_caller_or_the_run(tmp_path: Path) -> None:
    file = tmp_path / "fid.json"
    file.write_text(json.dumps(result(preset=None)))
    for name in PRESETS:
        assert fidtool.verify(file, name)[0].preset == name
    assert fidtool.verify(str(file), "DiT")[0].preset == "adm"
    with pytest.raises(InputError, match="the run had no preset: name one of adm, edm"):
        fidtool.verify(file)


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    failed = {**result(), "results": [], "exit": {"code": 2, "reason": "no such file"}}
    with pytest.raises(InputError, match=r"the run failed \(no such file\)"):
        fidtool.verify(failed)
    with pytest.raises(InputError, match="No such file"):
        fidtool.verify(tmp_path / "none.json")
    for text, message in {"[]": "is not the JSON of", "{}": "which has results and run", "{": "it is not JSON"}.items():
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=message):
            fidtool.verify(tmp_path / "bad.json")
    damaged = result()
    del damaged["results"][0]["count"]
    for edited in (damaged, {**result(), "settings": None}, {**result("real/"), "results": [None]}):
        with pytest.raises(InputError, match="the result cannot be read"):
            fidtool.verify(edited)


def test_folders_of_seeds_are_no_classes() -> None:
    """As EDM and EDM2 write with --subdirs."""
    seeds = [f"{seed // 1000 * 1000:06d}/{seed:06d}.png" for seed in range(0, 3000, 500)]
    assert classes_in(seeds) is None
    for names, number in (([f"{each:03d}/{each}.png" for each in range(12)], 12), ([*seeds, "n01440764/0.png"], 4)):
        found = classes_in(names)
        assert found is not None
        assert found.number == number
