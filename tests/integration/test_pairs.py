"""Reconstructions and their originals: which images are pairs, their values in every output, and
refusals.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

import fidtool
from fidtool.reading import loader
from support.command_line import Run, messages
from support.http_store import http_store
from support.places import TINY
from support.reconstructions import make_reconstructions, rgb, write_backbone

SIDES = ((40, 30),) * 9


@pytest.fixture
def sets(tmp_path: Path, environment: dict[str, str]) -> tuple[Path, Path]:
    return make_reconstructions(tmp_path, SIDES)


def expected(real: Path, fake: Path) -> dict[str, float]:
    """Return the mean values, with the partners by name."""
    pairs = [
        [torch.from_numpy(rgb(each).copy()) for each in (file, fake / file.name)]
        for file in sorted(real.iterdir())
    ]
    return {
        "psnr": float(np.mean([fidtool.PSNR().of_pair(*pair) for pair in pairs])),
        "ssim": float(np.mean([fidtool.SSIM().of_pair(*pair) for pair in pairs])),
    }


def values(outcome: Any) -> dict[str, float]:
    return {name: outcome.metrics[name] for name in ("psnr", "ssim")}


def test_one_pass_gives_the_features_of_both_sets(here: Run, sets: tuple[Path, Path]) -> None:
    """The FID has the bits of a run without pairs, and each image passes through the network
    once.
    """
    alone = here(
        "compute",
        *sets,
        "--extractor",
        TINY,
        "--metrics",
        "fid,kid",
        "--kid-subset-size",
        5,
        "--json",
        "--no-cache",
    )
    metrics = ("--metrics", "fid,kid,psnr,ssim", "--kid-subset-size", 5)
    both = here(
        "compute", *sets, "--extractor", TINY, *metrics, "--json", "--no-cache", "--batch-size", 4
    )
    assert {
        name: value for name, value in both.metrics.items() if name in alone.metrics
    } == alone.metrics
    assert values(both) == pytest.approx(expected(*sets), rel=1e-12)
    run = both.json["run"]
    assert (run["images_computed"], run["forward_passes"]) == (18, 6)
    assert run["extraction"]["pairs"] > 0
    ssim = {"channel": "rgb", "border": 0, "window": "gaussian", "scale": "unit"}
    assert both.json["settings"]["ssim"] == ssim
    assert (
        both.json["results"][0]["sets"]["real"]["pixels"]
        == alone.json["results"][0]["sets"]["real"]["pixels"]
    )


def test_cached_sets_are_decoded_for_their_pairs_alone(here: Run, sets: tuple[Path, Path]) -> None:
    time.sleep(0.1)  # younger files are not cached
    first = here("compute", *sets, "--extractor", TINY, "--metrics", "fid,psnr,ssim", "--json")
    again = here("compute", *sets, "--extractor", TINY, "--metrics", "fid,psnr,ssim", "--json")
    assert again.metrics == first.metrics
    assert (again.json["run"]["images_computed"], first.json["run"]["images_computed"]) == (0, 18)
    assert again.json["run"]["cached"] == list(map(str, sets))
    other = here(
        "compute",
        *sets,
        "--extractor",
        TINY,
        "--metrics",
        "fid,kid,psnr",
        "--kid-subset-size",
        5,
        "--json",
    )
    assert other.json["run"]["images_computed"] == 18  # the features of each image were not stored
    assert other.metrics["psnr"] == first.metrics["psnr"]


def test_without_features_no_network_is_used(here: Run, sets: tuple[Path, Path]) -> None:
    found = here("compute", *sets, "--metrics", "psnr,ssim", "--json", "--weights", "no such file")
    assert values(found) == pytest.approx(expected(*sets), rel=1e-12)
    assert found.json["protocol"]["fingerprint"] is None
    assert found.json["run"]["images_computed"] == 0
    assert found.json["results"][0]["diagnosis"]["duplicates"]["fake"]["images"] == 9
    lines = here(
        "compute", *sets, "--metrics", "psnr,ssim", "--history", "days.jsonl"
    ).stdout.splitlines()
    assert here("history", "days.jsonl").stdout.splitlines()[0].endswith("real, pixels:")
    assert [line.partition(":")[0] for line in lines] == ["PSNR", "SSIM"]
    assert "±" in lines[0]


def test_several_reconstructions_share_the_originals(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    _, other = make_reconstructions(tmp_path / "more", SIDES, seed=0)
    for number, file in enumerate(sorted(other.iterdir())):
        Image.fromarray(rgb(file) // 2).save(other / f"{number:03}.png")
    found = here(
        "compute",
        *sets,
        other,
        sets[0],
        "--extractor",
        TINY,
        "--metrics",
        "fid,psnr,ssim",
        "--json",
        "--no-cache",
    )
    for result, fake in zip(found.json["results"], (sets[1], other, sets[0]), strict=True):
        own = {name: result["metrics"][name] for name in ("psnr", "ssim")}
        assert own == pytest.approx(expected(sets[0], fake), rel=1e-12)
    assert found.json["run"]["images_computed"] == 27
    assert any(
        "the PSNR of 9 pairs of (almost) identical images counts as 100 dB" in line
        for line in found.stderr.splitlines()
    )


def test_names_have_folders_and_other_suffixes(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """The order of the names differs between the sets: a.png is before a0.png, and a0_recon.png
    before a_recon.png.
    """
    real, recon = sets
    wanted = expected(real, recon)
    names = [f"{kind}/{stem}" for kind in ("cats", "dogs") for stem in ("a", "a0", "b", "a-b")] + [
        "z"
    ]
    for place, ending in ((real, ".png"), (recon, "_recon.bmp")):
        for file, name in zip(sorted(place.iterdir()), names, strict=True):
            (target := place / f"{name}{ending}").parent.mkdir(exist_ok=True)
            Image.fromarray(rgb(file)).save(target)
            file.unlink()
    arguments = ("compute", real, recon, "--metrics", "psnr,ssim", "--json")
    assert values(here(*arguments, "--pairs", "suffix:_recon")) == pytest.approx(wanted, rel=1e-12)
    refused = here(*arguments, "--pairs", "name")
    assert "9 images of" in refused.error
    assert "cats/a-b_recon.bmp, cats/a0_recon.bmp, cats/a_recon.bmp, …" in refused.error
    assert refused.error.endswith("pass --pairs suffix:_recon, or rename them")
    swapped = here(
        "compute", recon, real, "--metrics", "psnr,ssim", "--json", "--pairs", "suffix:_recon"
    )
    assert values(swapped) == pytest.approx(wanted, rel=1e-12)
    refused = here(*arguments, "--pairs", "position")
    assert "is for arrays and lists, and" in refused.error
    assert "pass --pairs sorted for the natural order of the names" in refused.error
    with zipfile.ZipFile(tmp_path / "real.zip", "w") as archive:
        for file in real.rglob("*.png"):
            archive.write(file, file.relative_to(real))
    zipped = here(
        "compute", "real.zip", recon, "--metrics", "psnr,ssim", "--json", "--pairs", "suffix:_recon"
    )
    assert values(zipped) == pytest.approx(wanted, rel=1e-12)


def test_arrays_and_lists_are_paired_by_position(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    wanted = expected(*sets)
    arrays = [np.stack([rgb(file) for file in sorted(place.iterdir())]) for place in sets]
    for name, array in zip(("real", "recon"), arrays, strict=True):
        np.savez(tmp_path / f"{name}.npz", arr_0=array)
    assert values(
        here("compute", "real.npz", "recon.npz", "--metrics", "psnr,ssim", "--json")
    ) == pytest.approx(wanted)
    order = [3, 1, 8, 0, 2, 7, 4, 6, 5]
    for place, name in zip(sets, ("real", "recon"), strict=True):
        files = sorted(place.iterdir())
        for position, number in enumerate(order):  # names that sort in another way than the lines
            shutil.copy(
                files[number], tmp_path / f"{name}-{(7 * number + len(name)) % 9}-{position}.png"
            )
        lines = [
            f"{name}-{(7 * number + len(name)) % 9}-{position}.png"
            for position, number in enumerate(order)
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    assert values(
        here("compute", "real.txt", "recon.txt", "--metrics", "psnr,ssim", "--json")
    ) == pytest.approx(wanted)
    for real, fake in (
        arrays,
        [list(array) for array in arrays],
        [torch.from_numpy(array) for array in arrays],
    ):
        found = fidtool.compute(real, fake, metrics="psnr,ssim").results[0].metrics
        assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    mixed = fidtool.compute(sets[0], arrays[1], metrics="psnr", pairs="position").results[0].metrics
    assert mixed["psnr"] == pytest.approx(wanted["psnr"])


def test_other_names_are_paired_by_their_numbers_or_their_order(
    here: Run, sets: tuple[Path, Path]
) -> None:
    """Each prints examples of the pairs; the refusal of the usual names has the value that fits."""
    real, recon = sets
    wanted = expected(*sets)
    for number, file in enumerate(sorted(real.iterdir())):
        file.rename(real / f"image-{number + 4}.png")  # 10.png is before 4.png by name
    for number, file in enumerate(sorted(recon.iterdir())):
        file.rename(recon / f"b2-{number + 4:05}.png")
    arguments = ("compute", real, recon, "--metrics", "psnr,ssim", "--json")
    assert here(*arguments).error.endswith("pass --pairs number, or rename them")
    for how in ("number", "sorted"):
        found = here(*arguments, "--pairs", how)
        assert values(found) == pytest.approx(wanted, rel=1e-12)
        examples = [
            f"{recon}/b2-{number:05}.png and {real}/image-{number}.png" for number in (10, 5, 9)
        ]
        assert f"pairs (--pairs {how}) are, for example, {'; '.join(examples)}" in found.stderr
    (recon / "b2-00004.png").rename(recon / "b.png")
    assert here(*arguments).error.endswith("pass --pairs sorted, or rename them")
    refused = here(*arguments, "--pairs", "number")
    assert "b.png of" in refused.error
    assert "has no number in its name: pass --pairs sorted" in refused.error
    (recon / "b.png").rename(recon / "a-5.png")
    assert (
        "would have the same partner: rename one, or pass --pairs sorted"
        in here(*arguments, "--pairs", "number").error
    )
    (recon / "a-5.png").unlink()
    assert "has 8, and" in here(*arguments, "--pairs", "sorted").error


@pytest.mark.parametrize("order", ["shuffled", "by name", "same"])
def test_lists_in_different_orders_are_said(
    here: Run, tmp_path: Path, environment: object, order: str
) -> None:
    """As `ls` sorts numbers, 0, 1, 10, 11, 2; the values are then of images that do not belong
    together.
    """
    sets = make_reconstructions(tmp_path, ((20, 16),) * 14)
    lines = [[f"{place.name}/{number:03}.png" for number in range(14)] for place in sets]
    numbers = {
        "shuffled": [*range(1, 14), 0],
        "by name": sorted(range(14), key=str),
        "same": range(14),
    }[order]
    (tmp_path / "real.txt").write_text("\n".join(lines[0]))
    (tmp_path / "recon.txt").write_text("\n".join(lines[1][number] for number in numbers))
    found = here("compute", "real.txt", "recon.txt", "--metrics", "psnr", "--json")
    (result,) = found.json["results"]
    said = [each for each in messages(result) if "are probably in different orders" in each]
    codes = {each["code"]: each["severity"] for each in result["diagnosis"]["findings"]}
    if order == "same":
        assert not said
        assert "other order" not in codes
        return
    assert codes["other order"] == "high"
    (line,) = said
    assert line == messages(result)[0]
    assert line.startswith("recon.txt: ")
    assert " of 14 images fit another image of REAL better than their partner (" in line
    assert line.endswith(
        "put both sets into the same order, or choose the pairs in another way (--pairs HOW)"
    )


def test_lossless_reconstructions_are_no_copies(
    here: Run, tmp_path: Path, environment: object
) -> None:
    """Nor is the format of the originals a fault of theirs; the reverse is one of the
    reconstructions.
    """
    for name in ("real", "recon"):
        (tmp_path / name).mkdir()
    sets = make_reconstructions(tmp_path / "made", ((32, 32),) * 12)
    for file in sorted(sets[0].iterdir()):
        Image.open(file).save(tmp_path / "real" / f"{file.stem}.jpg")
        Image.open(tmp_path / "real" / f"{file.stem}.jpg").save(tmp_path / "recon" / file.name)
    found = here("compute", "real", "recon", "--metrics", "psnr", "--json").json["results"][0]
    assert messages(found) == [
        "recon: the PSNR of 12 pairs of (almost) identical images counts as 100 dB",
        "recon: 12 of 12 images are pixel-identical to their partners in REAL: their "
        "reconstruction is lossless, or they are copies",
    ]
    assert found["diagnosis"]["shared"]["count"] == 12
    reverse = here("compute", "recon", "real", "--metrics", "psnr", "--json").json["results"][0]
    assert any("are in a lossy format" in each for each in messages(reverse))


def test_sizes_that_an_orientation_swaps(here: Run, sets: tuple[Path, Path]) -> None:
    real, recon = sets
    turned = Image.Exif()
    turned[0x0112] = 6
    for file in recon.iterdir():
        Image.open(file).transpose(Image.Transpose.ROTATE_270).save(file)
    plain = here("compute", *sets, "--metrics", "psnr").error
    assert "has 30×40 pixels" in plain
    assert "EXIF" not in plain
    for file in real.iterdir():
        Image.open(file).save(file, exif=turned)
    refused = here("compute", *sets, "--metrics", "psnr").error
    assert re.search(
        r"real/00\d.png has an EXIF orientation, which is not applied: save it as it is shown",
        refused,
    )
    assert re.search(
        r"real/00\d.png has an EXIF", here("compute", recon, real, "--metrics", "psnr").error
    )


def test_samples_are_of_pairs(here: Run, sets: tuple[Path, Path]) -> None:
    found = here(
        "compute", *sets, "--metrics", "psnr", "--num", 5, "--json", "--pairs-output", "pairs.csv"
    )
    assert found.json["results"][0]["count"] == {"real": 5, "fake": 5}
    refused = here("compute", *sets, "--metrics", "psnr", "--num-fake", 5, "--json")
    assert "9 images of" in refused.error
    assert "cannot be paired: pass --num N for both" in refused.error


def test_values_of_each_pair_are_written(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = (
        "--metrics",
        "psnr,ssim",
        "--json",
        "--pairs-output",
        "pairs.csv",
        "--report",
        "page.html",
    )
    found = here("compute", *sets, *arguments)
    with (tmp_path / "pairs.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [row["fake"] for row in rows] == [str(file) for file in sorted(sets[1].iterdir())]
    assert [row["real"] for row in rows] == [str(file) for file in sorted(sets[0].iterdir())]
    for name in ("psnr", "ssim"):
        assert np.mean([float(row[name]) for row in rows]) == pytest.approx(
            found.metrics[name], rel=1e-13
        )
        assert np.std([float(row[name]) for row in rows], ddof=1) == pytest.approx(
            found.metrics[f"{name}_std"]
        )
    worst = min(rows, key=lambda row: float(row["psnr"]))
    shown = [
        each for each in found.json["results"][0]["exhibit"]["worst_pairs"] if each["key"] == "psnr"
    ]
    assert shown[0] == {
        "fake": worst["fake"],
        "real": worst["real"],
        "key": "psnr",
        "value": float(worst["psnr"]),
    }
    page = (tmp_path / "page.html").read_text()
    assert "Pairs with the worst PSNR" in page
    assert f"{float(worst['psnr']):.2f}" in page
    assert page.count("data:image/png;base64,") >= 18


def test_large_images_are_compared_in_parts(
    here: Run, sets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of them is decoded in several parts, by workers or not."""
    monkeypatch.setattr(loader, "AT_ONCE_BYTES", 2 * 3 * 40 * 30)
    wanted = expected(*sets)
    for workers in (0, 2):
        metrics = (
            "--extractor",
            TINY,
            "--metrics",
            "fid,psnr,ssim",
            "--no-cache",
            "--num-workers",
            workers,
        )
        found = here("compute", *sets, *metrics, "--batch-size", 6, "--json")
        assert values(found) == pytest.approx(wanted, rel=1e-12)
        assert found.json["run"]["images_computed"] == 18


def test_ms_ssim(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    """Beside the others, with its spread; and a refusal of images that are too small for five
    scales.
    """
    large = make_reconstructions(tmp_path / "large", ((176, 180),) * 3)
    found = here("compute", *large, "--metrics", "ssim,MS_SSIM", "--json")
    pairs = [
        [torch.from_numpy(rgb(place / f"00{number}.png").copy()) for place in large]
        for number in range(3)
    ]
    assert found.metrics["ms_ssim"] == pytest.approx(
        np.mean([fidtool.MultiScaleSSIM().of_pair(*pair) for pair in pairs]), rel=1e-12
    )
    assert found.metrics["ms_ssim_std"] > 0
    assert found.metrics["ms_ssim"] > found.metrics["ssim"]
    lines = here("compute", *large, "--metrics", "ms-ssim").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["MS-SSIM"]
    refused = here("compute", *sets, "--metrics", "psnr,ms-ssim")
    words = (
        ".png: MS-SSIM needs images of at least 176×176 pixels, but one has 40×30: omit 'ms-ssim' "
        "from --metrics"
    )
    assert words in refused.error


Y_SETTINGS = ("--psnr-channel", "y", "--psnr-border", 4, "--ssim-channel", "y")


def test_channel_and_border_are_in_title_and_record(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """In text, table, page and JSON. Values of other pixels are not compared."""
    run = ("compute", *sets, "--metrics", "psnr,ssim")
    here(*run, "-o", "rgb.json")
    text = here(*run, *Y_SETTINGS, "-o", "y.json", "--report", "y.html").stdout
    titles = ["PSNR (Y, border 4)", "SSIM (Y)"]
    assert [line.partition(":")[0] for line in text.splitlines()] == titles
    page = (tmp_path / "y.html").read_text()
    table = here("table", "y.json", "rgb.json").stdout.splitlines()[0]
    for title in titles:
        assert title in page
        assert title in table
    evaluation = json.loads((tmp_path / "y.json").read_text())
    assert evaluation["settings"] == {
        "psnr": {"channel": "y", "border": 4},
        "ssim": {"channel": "y", "border": 0, "window": "gaussian", "scale": "unit"},
    }
    assert "psnr.channel: rgb -> y" in here("diff", "rgb.json", "y.json").stdout.splitlines()[0]
    of_border = here(*run, "--psnr-border", 1).stdout.splitlines()[0]
    assert of_border.startswith("PSNR (border 1): ")
    assert "psnr.border: 0 -> 4" in here("diff", "rgb.json", "y.json").stdout


def test_results_without_channel_and_border_are_of_the_defaults(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Those of a version that had no such settings can be compared."""
    run = ("compute", *sets, "--metrics", "psnr,ssim")
    here(*run, "-o", "now.json")
    here(*run, *Y_SETTINGS, "-o", "y.json")
    content = json.loads((tmp_path / "now.json").read_text())
    content["settings"] = {"ssim": {"window": "gaussian"}}
    (tmp_path / "before.json").write_text(json.dumps(content))
    same = here("diff", "before.json", "now.json").stdout
    assert "not comparable" not in same
    assert "psnr." not in same
    assert "psnr.channel: rgb -> y" in here("diff", "before.json", "y.json").stdout
    found = here("verify", "before.json", "--preset", "sr-x4")
    assert "settings of metrics: psnr_channel rgb, psnr_border 0, ssim_channel" in found.stdout


def test_a_border_that_leaves_nothing_is_refused(here: Run, sets: tuple[Path, Path]) -> None:
    """The sides are 40 and 30 pixels."""
    run = ("compute", *sets, "--metrics", "psnr,ssim")
    assert here(*run, "--psnr-border", 14).status == 0
    refused = here(*run, "--psnr-border", 15)
    words = (
        ".png: PSNR (border 15) needs images of at least 31×31 pixels, but one has 40×30: lower "
    )
    words += "--psnr-border, or omit 'psnr' from --metrics"
    assert (refused.status, words in refused.error) == (2, True)
    assert here(*run, "--ssim-border", 10, "--ssim-window", "uniform").status == 0
    assert here(*run, "--ssim-border", 9, "--ssim-window", "gaussian-valid").status == 0
    refused = here(*run, "--ssim-border", 10, "--ssim-window", "gaussian-valid")
    assert "SSIM (border 10) needs images of at least 31×31 pixels" in refused.error
    assert "lower --ssim-border, or" in refused.error
    refused = here(*run, "--psnr-border", -1)
    assert "--psnr-border must be at least 0, not -1" in refused.error


def test_identical_pairs_have_100_db_on_y(here: Run, sets: tuple[Path, Path]) -> None:
    found = here("compute", sets[0], sets[0], "--preset", "sr-x4")
    assert found.stdout.splitlines() == [
        "PSNR (Y, border 4): 100.00 ± 0.00",
        "SSIM (Y, border 4): 1.0000 ± 0.0000",
    ]
    assert "the PSNR of 9 pairs of (almost) identical images counts as 100 dB" in found.stderr


def test_requirements_of_super_resolution(here: Run, sets: tuple[Path, Path]) -> None:
    run = ("compute", *sets, "--preset", "sr-x4")
    met = here(*run, "-o", "met.json")
    assert "comparable with published values of sr-x4, as far as is known" in met.stderr
    verdict = here("verify", "met.json", "--json").json["verdicts"][0]
    found = {item["name"]: item["verdict"] for item in verdict["items"]}
    assert found == {
        "images of FAKE": "not known",
        "images of REAL": "not known",
        "metrics": "yes",
        "settings of metrics": "yes",
        "reference": "not known",
        "format of FAKE": "yes",
    }
    for changed in (
        ("--psnr-border", 2),
        ("--ssim-channel", "rgb"),
        ("--ssim-window", "gaussian"),
    ):
        missed = here(*run, *changed, "-o", "missed.json")
        assert "not comparable with published values of sr-x4: settings of metrics" in missed.stderr
        assert here("verify", "missed.json").status == 3
    assert here("verify", "met.json", "--preset", "sr-x2").status == 3
    here("compute", *sets, "--extractor", TINY, "-o", "fid.json")
    other = here("verify", "fid.json", "--preset", "sr-x4")
    assert other.status == 3
    assert re.search(r"no +metrics: fid\n +expected: psnr or ssim", other.stdout)


def test_crops_are_compared(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    """Of originals of another size than the reconstructions."""
    real, recon = sets
    for file in real.iterdir():
        Image.fromarray(rgb(file)).resize((64, 48)).save(file)
    refused = here("compute", *sets, "--metrics", "psnr", "--json")
    assert "has 40×30 pixels, but" in refused.error
    assert (
        "its partner, has 64×48 pixels: pass --crop adm:30 and --crop-fake adm:30, or the crop"
        in refused.error
    )
    for file in recon.iterdir():
        Image.fromarray(rgb(file)).resize((32, 32)).save(file)
    assert (
        "has 64×48 pixels: pass --crop adm:32, or the crop that the"
        in here("compute", *sets, "--metrics", "psnr").error
    )
    found = here("compute", *sets, "--metrics", "psnr", "--crop", "adm:32")
    assert 5 < float(found.stdout.split()[1]) < 100
    assert f"{real}: cropped by adm:32 (box and bicubic filters)" in found.stderr


def remove(real: Path, recon: Path) -> None:
    (recon / "004.png").unlink()


def add(real: Path, recon: Path) -> None:
    shutil.copy(recon / "004.png", recon / "extra.png")


def rename(real: Path, recon: Path) -> None:
    (recon / "004.png").rename(recon / "four.png")


def twice(real: Path, recon: Path) -> None:
    Image.fromarray(rgb(recon / "004.png")).save(recon / "004.bmp")


def tiny(real: Path, recon: Path) -> None:
    for place in (real, recon):
        Image.fromarray(rgb(place / "004.png")).resize((5, 9)).save(place / "004.png")


def unreadable(real: Path, recon: Path) -> None:
    (real / "004.png").write_bytes(b"no image")


def resized(real: Path, recon: Path) -> None:
    Image.fromarray(rgb(recon / "004.png")).resize((40, 31)).save(recon / "004.png")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove, ["1 image of", "real (004.png) has no partner with the same"]),
        (
            add,
            ["1 image of", "recon (extra.png) has no partner", "rename them, or see --pairs HOW"],
        ),
        (
            rename,
            ["recon (four.png) and 1 image of", "real (004.png) have no partner with the same"],
        ),
        (twice, ["004.bmp and 004.png of", "would have the same partner"]),
        (tiny, ["004.png: SSIM needs images of at least 6×6 pixels, but one has 5×9"]),
        (unreadable, ["cannot decode", "real/004.png"]),
        (
            resized,
            ["recon/004.png has 40×31 pixels", "real/004.png, its partner, has 40×30", "--crop"],
        ),
    ],
)
def test_what_is_no_pair_is_refused(
    here: Run, sets: tuple[Path, Path], change: Callable[[Path, Path], None], words: list[str]
) -> None:
    change(*sets)
    outcome = here("compute", *sets, "--metrics", "psnr,ssim", "--json")
    assert (outcome.status, outcome.json["exit"]["code"]) == (2, 2)
    for each in words:
        assert each in outcome.error
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--pairs", "names", "--metrics", "psnr"],
            "--pairs names must be name, position, number, sorted or suffix:",
        ),
        (["--pairs", "name"], "--pairs applies to metrics of pairs, and none is requested"),
        (
            ["--pairs-output", "x.csv"],
            "--pairs-output writes the values of single images or pairs, which no requested metric has",
        ),
        (["--pairs-output", "x.txt", "--metrics", "psnr"], "the name must end in .csv"),
        (["--metrics", "psnr", "--on-error", "skip"], "--on-error skip would leave images of"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    here: Run, sets: tuple[Path, Path], arguments: list[str], words: str
) -> None:
    outcome = here("compute", *sets, *arguments)
    assert outcome.status == 2
    assert words in outcome.error


def test_sets_without_images_to_read_are_refused(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    assert here("stats", sets[0], "-o", "real.npz", "--extractor", TINY).status == 0
    refused = here("compute", "real.npz", sets[1], "--extractor", TINY, "--metrics", "fid,psnr")
    assert (
        "psnr compares images in pairs, and real.npz has none that can be read again"
        in refused.error
    )
    assert (
        "psnr compares pairs of images, but there is only one set"
        in here("stats", sets[0], "-o", "x.npz", "--metrics", "psnr").error
    )
    shutil.make_archive(str(tmp_path / "recon"), "gztar", sets[1])
    packed = here("compute", sets[0], "recon.tar.gz", "--metrics", "psnr")
    assert "can only be read sequentially: unpack it" in packed.error
    with pytest.raises(fidtool.InputError, match="none that can be read again"):
        fidtool.compute(
            sets[0], iter([rgb(file) for file in sorted(sets[1].iterdir())]), metrics="psnr"
        )


@dataclass(frozen=True, kw_only=True)
class Largest(fidtool.PairMetric):
    """The largest difference of two pixels."""

    name = "largest"
    numbers = (
        fidtool.Number("largest", "Largest difference", "lower", "mean over pairs", layer="pixels"),
    )

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        return float((real.int() - fake.int()).abs().max())


@dataclass(frozen=True, kw_only=True)
class Failing(Largest):
    name = "failing"

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        raise KeyError("no")


@dataclass(frozen=True, kw_only=True)
class Nothing(Largest):
    name = "nothing"

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        return float("nan")


@dataclass(frozen=True, kw_only=True)
class OfFeatures(Largest):
    name = "of-features"
    numbers = (fidtool.Number("of_features", "Of features", "lower", "nothing"),)


@dataclass(frozen=True, kw_only=True)
class Keeping(Largest):
    name = "keeping"
    kept: ClassVar[list[tuple[torch.Tensor, bytes]]] = []

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        self.kept.extend((image, image.numpy().tobytes()) for image in (real, fake))
        return 0.0


def test_a_custom_metric_may_keep_the_pixels(sets: tuple[Path, Path]) -> None:
    """The memory that workers decode into is used again."""
    Keeping.kept.clear()
    fidtool.compute(*sets, metrics=[Keeping()], batch_size=1, num_workers=1)
    assert len(Keeping.kept) == 2 * len(SIDES)
    assert all(image.numpy().tobytes() == before for image, before in Keeping.kept)


def test_a_custom_metric_gets_pairs_of_pixels(sets: tuple[Path, Path]) -> None:
    found = fidtool.compute(*sets, metrics=["psnr", Largest()]).results[0]
    largest = [
        int(np.abs(rgb(file).astype(int) - rgb(sets[1] / file.name)).max())
        for file in sorted(sets[0].iterdir())
    ]
    assert found.metrics["largest"] == np.mean(largest)
    assert {value.key: value.title for value in found.values}["largest"] == "Largest difference"
    with pytest.raises(KeyError, match="no"):
        fidtool.compute(*sets, metrics=[Failing()])
    with pytest.raises(fidtool.RunError, match=r"recon/00\d.png: the metric nothing is nan"):
        fidtool.compute(*sets, metrics=[Nothing()])
    with pytest.raises(
        fidtool.InputError, match="the layer 'features' of of-features does not fit"
    ):
        fidtool.compute(*sets, metrics=[OfFeatures()])


def test_lpips_has_its_weights_on_record(
    here: Run, tmp_path: Path, environment: dict[str, str]
) -> None:
    sets = make_reconstructions(tmp_path, ((40, 36),) * 3)
    weights = write_backbone(tmp_path / "backbone.pth")
    found = here("compute", *sets, "--metrics", "lpips", "--lpips-weights", weights, "--json")
    recorded = found.json["settings"]["lpips"]
    assert (recorded["net"], recorded["weights"]) == ("alex", str(weights))
    assert len(recorded["weights_sha256"]) == 64
    assert found.metrics["lpips"] > 0
    same = here(
        "compute", sets[0], sets[0], "--metrics", "lpips", "--lpips-weights", weights, "--json"
    )
    assert same.metrics["lpips"] == 0
    other = here(
        "compute",
        *sets,
        "--metrics",
        "lpips",
        "--lpips-weights",
        weights,
        "--lpips-net",
        "vgg",
        "--json",
    )
    assert "does not contain the weights of torchvision:vgg16" in other.error
    lost = here("compute", *sets, "--metrics", "lpips", "--lpips-weights", "lost.pth", "--json")
    assert "--lpips-weights lost.pth is neither a file" in lost.error


def test_published_weights_of_lpips(
    here: Run, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are downloaded to torch.hub's folder, under a name with the start of their SHA-256."""
    from torchvision.models import AlexNet_Weights
    from torchvision.models._api import Weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    arguments = (
        "compute",
        *make_reconstructions(tmp_path, ((40, 36),) * 3),
        "--metrics",
        "lpips",
        "--json",
    )
    content = write_backbone(tmp_path / "backbone.pth").read_bytes()
    name = f"alexnet-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    (tmp_path / "www").mkdir()
    with http_store(tmp_path / "www") as store:
        published = AlexNet_Weights.IMAGENET1K_V1.value
        moved = Weights(f"{store.url}{name}", published.transforms, published.meta)
        monkeypatch.setattr(AlexNet_Weights.IMAGENET1K_V1, "_value_", moved)
        missing = here(*arguments)
        ways = [
            "pass it with --lpips-weights FILE, or set TORCH_HOME to a folder that has the file "
            "in hub/checkpoints"
        ]
        assert missing.status == 1
        assert [text for text in (store.url, "Not Found", *ways) if text not in missing.error] == []
        others = here(*arguments[:-2], "psnr,lpips", "--json")
        assert others.status == 1
        assert others.json["results"], others.stderr
        assert [*others.json["results"][0]["metrics"]] == ["psnr", "psnr_std"]
        assert store.url in others.not_computed["lpips"]
        (tmp_path / "www" / name).write_bytes(content[:-1])
        assert f"{name} has the SHA-256 " in here(*arguments).error
        (tmp_path / "www" / name).write_bytes(content)
        downloaded = here(*arguments)
        assert f"getting the weights of torchvision:alexnet: {store.url}{name}" in downloaded.stderr
    kept = tmp_path / "torch-home" / "hub" / "checkpoints" / name
    assert kept.read_bytes() == content
    assert here(*arguments).metrics == downloaded.metrics
    assert here(*arguments, "--lpips-weights", "backbone.pth").metrics == downloaded.metrics
    kept.write_bytes(content[:-1])
    assert f"{name} has the SHA-256 " in here(*arguments).error


def test_frames_are_paired_by_their_numbers(
    here: Run, tmp_path: Path, environment: dict[str, str]
) -> None:
    for name, kind in (("real", "gif"), ("recon", "webp")):
        (tmp_path / name).mkdir()
        frames = [Image.new("RGB", (20, 16), (60 * number, 0, 0)) for number in range(3)]
        frames[0].save(
            tmp_path / name / f"x.{kind}", save_all=True, append_images=frames[1:], lossless=True
        )
    found = here("compute", "real", "recon", "--metrics", "psnr", "--frames", "all", "--json")
    assert found.json["results"][0]["count"] == {"real": 3, "fake": 3}
    assert found.metrics["psnr"] == pytest.approx(100, abs=40)
    assert found.metrics["psnr"] > 45


def test_a_folder_and_an_array_need_numbers_in_order(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    for number, file in enumerate(sorted(sets[0].iterdir())):
        file.rename(sets[0] / f"{number + 5}.png")
    np.save(tmp_path / "recon.npy", np.stack([rgb(file) for file in sorted(sets[1].iterdir())]))
    refused = here("compute", sets[0], "recon.npy", "--metrics", "psnr", "--pairs", "position")
    assert "--pairs position, and sorted by name 13.png comes before 5.png in" in refused.error
