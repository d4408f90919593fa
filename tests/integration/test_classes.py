"""Classes and folders of images: where they come from, their values, what is refused, and every
output.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidtool
from fidtool.result.evaluation import read_evaluation
from fidtool.result.explanations import Classes
from support.class_sets import CLASSES, make_classes
from support.command_line import Run, bars_of, messages
from support.offline import needs_weights
from support.pictures import make_pictures
from support.places import COLOURS, FD, TINY
from support.small_sets import SMALL

QUICK = ("--extractor", TINY, "--no-cache", "--quiet")


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return make_classes(tmp_path)


def classes_in(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the classes of the only result by name."""
    (result,) = document["results"]
    return {each["name"]: each for each in result["classes"]["classes"]}


def numbers_in(document: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (each["real"], each["fake"]) for name, each in classes_in(document).items()}


# --- the values -----------------------------------------------------------------------------------


def test_each_class_has_the_bits_of_its_two_folders_alone(
    here: Run, sets: tuple[Path, Path]
) -> None:
    """Subsets are drawn as if the class were alone, so that this holds for metrics of subsets as
    well.
    """
    real, fake = sets
    metrics = (
        "--metrics",
        "fid,kid,prdc,mind,mifid,vendi,authpct",
        *SMALL,
        "--nearest-k",
        3,
        *QUICK,
        "--json",
    )
    networks = ("--extractor", COLOURS)
    joint = here("compute", real, fake, *metrics, *networks, "--per-class").json
    found = classes_in(joint)
    assert {*found} == {*CLASSES}
    for name, each in found.items():
        alone = here("compute", real / name, fake / name, *metrics, *networks)
        assert each["metrics"] == alone.metrics, name
    plain = here("compute", real, fake, *metrics, *networks).json
    assert plain["results"][0]["metrics"] == joint["results"][0]["metrics"]


@needs_weights
def test_a_class_has_the_fid_of_its_two_folders_alone(here: Run, tmp_path: Path) -> None:
    real, fake = make_classes(tmp_path, {"ant": (6, 5), "cat": (5, 6)})
    found = classes_in(here("compute", real, fake, "--per-class", "--json", "--quiet").json)
    alone = here("compute", real / "cat", fake / "cat", "--quiet", "--json")
    assert found["cat"]["metrics"]["fid"] == pytest.approx(alone.fid, rel=1e-9)


def test_a_class_of_enough_images_has_the_error_bars_of_its_folders_alone(
    here: Run, tmp_path: Path
) -> None:
    real, fake = make_classes(tmp_path, {"many": (210, 205), "few": (20, 20)})
    arguments = ("--uncertainty", *QUICK)
    joint = here("compute", real, fake, *arguments, "--per-class", "--json")
    found = classes_in(joint.json)
    alone = here("compute", real / "many", fake / "many", *arguments, "--json").json["results"][0]
    bar = bars_of(alone)
    assert found["many"]["corrected"] == bar["corrected"]
    assert found["few"]["corrected"] is None
    (tmp_path / "result.json").write_text(joint.stdout)
    classes = read_evaluation(tmp_path / "result.json").results[0].classes
    assert classes is not None
    assert [each.corrected is None for each in classes.classes] == [
        each.name == "few" for each in classes.classes
    ]
    lines = here("compute", real, fake, *arguments, "--per-class").stderr
    assert "bias-corrected, 95 %" in lines


def test_classes_cost_no_second_pass(here: Run, tmp_path: Path) -> None:
    real, fake = make_classes(tmp_path, {f"class {number}": (6, 5) for number in range(10)})
    arguments = ("compute", real, fake, *QUICK, "--json")
    plain, found = here(*arguments).json, here(*arguments, "--per-class").json
    assert len(classes_in(found)) == 10
    for name in ("images_computed", "forward_passes"):
        assert found["run"][name] == plain["run"][name] > 0


def test_mean_and_worst(here: Run, sets: tuple[Path, Path]) -> None:
    document = here(
        "compute", *sets, "--metrics", "prdc,fid", "--nearest-k", 3, *QUICK, "--json", "--per-class"
    ).json
    ((key, distance), *_) = document["results"][0]["metrics"].items()
    found, classes = document["results"][0]["classes"], classes_in(document)
    distances = {name: each["metrics"][key] for name, each in classes.items()}
    assert found["worst"][key] == [
        max(distances, key=lambda name: distances[name]),
        max(distances.values()),
    ]
    assert found["mean"][key] == pytest.approx(np.mean([*distances.values()]), rel=1e-12)
    assert [*distances.values()] == sorted(distances.values(), reverse=True)
    assert min(distances.values()) > distance, "of fewer images"
    precision = next(name for name in found["worst"] if name.startswith("precision"))
    assert found["worst"][precision][1] == min(
        each["metrics"][precision] for each in classes.values()
    )


def test_values_that_need_more_images_are_left_out(here: Run, tmp_path: Path) -> None:
    real, fake = make_classes(
        tmp_path, {"ant": (9, 9), "bee": (9, 1), "cat": (9, 5), "dog": (5, 0), "elk": (0, 5)}
    )
    arguments = ("--metrics", "fid,kid,prdc", *SMALL, "--nearest-k", 5)
    document = here("compute", real, fake, *arguments, *QUICK, "--json", "--per-class").json
    (result,), kind = document["results"], lambda key: key.partition("_")[0]
    found = {name: each["metrics"] for name, each in classes_in(document).items()}
    assert {*map(kind, found["ant"])} == {*map(kind, result["metrics"])}
    assert {*map(kind, found["cat"])} == {"fd", "kid"}
    assert [name for name, values in found.items() if not values] == ["bee", "dog", "elk"]
    (line,) = (each for each in messages(result) if "too few images for some values in" in each)
    assert "bee (9 in REAL, 1 in FAKE)" in line
    assert "cat (9 in REAL, 5 in FAKE)" in line
    assert "dog" not in line
    assert not any("no images of" in each for each in messages(result))
    for side, name in (("REAL", "dog"), ("FAKE", "elk")):
        assert f"{fake}: 1 class is only in {side}: {name}" in messages(result)


def test_few_images_are_said_to_be_few(here: Run, sets: tuple[Path, Path]) -> None:
    (result,) = here("compute", *sets, *QUICK, "--json", "--per-class").json["results"]
    (line,) = (
        each
        for each in messages(result)
        if "the Fréchet distance is too high if a class has as few as 24" in each
    )
    assert result["warnings"][messages(result).index(line)]["severity"] == "medium"
    sizes, perfect = re.findall(
        r"has as few as (.*?): .* of REAL, a perfect generator would have about ([\d.]+);", line
    )[0]
    assert sizes in (
        "24 real and 30 generated images (ant)",
        "30 real and 24 generated images (bee)",
    )
    assert float(perfect) > 0
    assert not any("the mean Fréchet distance" in each for each in messages(result)), (
        "of classes of similar sizes"
    )
    large = here(
        "compute", *sets, *QUICK, "--metrics", "kid", *SMALL, "--json", "--per-class"
    ).json["results"][0]
    assert not any("as few as" in each for each in messages(large)), "no Fréchet distance"


def test_a_mean_that_few_images_dominate_is_said_to_be_one(here: Run, tmp_path: Path) -> None:
    sets = make_classes(tmp_path, {"ant": (40, 30), "bee": (5, 3), "cat": (27, 33)})
    document = here("compute", *sets, *QUICK, "--json", "--per-class").json
    ((key, mean),) = document["results"][0]["classes"]["mean"].items()
    values = {
        name: (each["fake"], each["metrics"][key]) for name, each in classes_in(document).items()
    }
    weighted = sum(images * value for images, value in values.values()) / 66
    assert mean == pytest.approx(sum(value for _, value in values.values()) / 3)
    (line,) = (
        each for each in messages(document["results"][0]) if "the mean Fréchet distance" in each
    )
    assert f" of {mean:.5g} gives each class the same weight" in line
    assert line.endswith(f"weighted by the number of generated images, the mean is {weighted:.5g}")


def test_a_custom_metric_gets_the_images_of_a_class(sets: tuple[Path, Path]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Rows(fidtool.Metric):
        name = "rows"
        numbers = (fidtool.Number("rows", "Rows", "lower", "numbers of rows"),)
        fake_features = True

        def compute(self, real: Any, fake: Any, context: Any) -> dict[str, float]:
            assert real.features is None
            assert fake.gaussian.count == len(fake.rows) == len(fake.order)
            assert np.allclose(fake.gaussian.mu, fake.rows.mean(axis=0))
            return {"rows": 1000.0 * real.gaussian.count + len(fake.rows)}

    found = (
        fidtool.compute(*sets, extractor=TINY, metrics=[Rows()], per_class=True, cache=False)
        .results[0]
        .classes
    )
    assert found is not None
    assert {each.name: [*each.metrics.values()] for each in found.classes} == {
        name: [1000.0 * real + fake] for name, (real, fake) in CLASSES.items()
    }


# --- where the classes come from ------------------------------------------------------------------


def flat(folder: Path, target: Path) -> list[str]:
    """Copy the images of classes into one folder, in another order, and return the class of each by
    name.
    """
    target.mkdir()
    files = sorted(folder.rglob("*.png"), key=lambda file: (file.name, file.parent.name))
    for number, file in enumerate(files):
        shutil.copy(file, target / f"{number:05}.png")
    return [file.parent.name for file in files]


def test_every_source_gives_the_same_classes(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    real, fake = sets
    arguments = ("--json", "--per-class", *QUICK)
    wanted = {
        name: each["metrics"]
        for name, each in classes_in(here("compute", real, fake, *arguments).json).items()
    }
    shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path, "fake")
    shutil.make_archive(str(tmp_path / "b"), "tar", fake)
    (tmp_path / "list.txt").write_text("\n".join(map(str, sorted(fake.rglob("*.png")))))
    assert here("stats", fake, "-o", "fake.npz", "--metrics", "kid", *QUICK).status == 0
    labels = flat(fake, tmp_path / "flat")
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    rows = [f"flat/{number:05}.png,{label}" for number, label in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    assert here("stats", "flat", "-o", "flat.npz", "--metrics", "kid", *QUICK).status == 0
    sources: list[tuple[object, ...]] = [("a.zip",), ("b.tar",), ("list.txt",), ("fake.npz",)]
    sources += [("flat", "--labels", "labels.txt"), ("flat", "--labels", "labels.csv")]
    sources += [("flat.npz", "--labels", "labels.csv")]
    for source in sources:
        document = here("compute", real, *source, *arguments).json
        found = {name: each["metrics"] for name, each in classes_in(document).items()}
        assert found == {name: pytest.approx(each, rel=1e-9) for name, each in wanted.items()}, (
            source
        )


@pytest.mark.parametrize(("key", "kind"), [("labels", np.int64), ("arr_1", np.uint8), ("y", str)])
def test_labels_beside_the_images_of_an_array(
    here: Run, tmp_path: Path, key: str, kind: Any
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(40) % 3
    np.savez(tmp_path / "real.npz", arr_0=images[::-1], **{key: labels.astype(kind)})
    np.savez_compressed(
        tmp_path / "fake.npz", arr_0=images, **{key: labels.astype(kind)}, other=np.ones(40)
    )
    document = here("compute", "real.npz", "fake.npz", *QUICK, "--json").json
    assert numbers_in(document) == {"0": (14, 14), "1": (13, 13), "2": (13, 13)}


def test_labels_of_a_set_that_they_do_not_name_are_its_own(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    labels = flat(sets[1], tmp_path / "flat")
    rows = [
        json.dumps({"path": f"flat/{number:05}.png", "class": name})
        for number, name in enumerate(labels)
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(rows))
    arguments = ("--labels", "labels.jsonl", *QUICK, "--json")
    assert numbers_in(here("compute", sets[0], "flat", *arguments).json) == CLASSES
    refused = here("compute", *sets, *arguments)
    assert refused.status == 2
    assert "does not match the images in" in refused.error


def test_a_sample_and_skipped_images(here: Run, sets: tuple[Path, Path]) -> None:
    (sets[1] / "bee" / "00003.png").write_bytes(b"\x89PNG damaged")
    arguments = (
        "--on-error",
        "skip",
        "--max-skip",
        0.5,
        "--metrics",
        "fid,kid",
        *SMALL,
        *QUICK,
        "--json",
        "--per-class",
    )
    found = classes_in(here("compute", *sets, *arguments).json)
    assert found["bee"]["fake"] == CLASSES["bee"][1] - 1
    alone = here("compute", sets[0] / "bee", sets[1] / "bee", *arguments[:-1])
    assert next(iter(found["bee"]["metrics"].values())) == alone.fid
    (result,) = (sampled := here("compute", *sets, "--num", 40, *arguments).json)["results"]
    totals = [sum(side) for side in zip(*numbers_in(sampled).values(), strict=True)]
    assert totals == [result["count"]["real"], result["count"]["fake"]]
    assert max(totals) == 40


def test_numbers_of_images_are_known_without_a_request(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    document = here("compute", *sets, *QUICK, "--json").json
    assert numbers_in(document) == CLASSES
    assert all(each["metrics"] == {} for each in classes_in(document).values())
    for folder in (make_pictures(tmp_path / "flat", 4), sets[1] / "ant"):
        assert (
            here("compute", sets[0], folder, *QUICK, "--json").json["results"][0]["classes"] is None
        )


def test_folders_are_compared_with_those_of_the_same_name(here: Run, tmp_path: Path) -> None:
    for seed, side in enumerate(("real", "fake")):
        for place in ("day/front", "day/rear", "night/front"):
            make_pictures(tmp_path / side / place, 8 + seed, 3 * seed + len(place))
    make_pictures(tmp_path / "fake" / "night" / "rear", 3, 9)
    arguments = (*QUICK, "--json")
    document = here("compute", "real", "fake", *arguments, "--per-folder").json
    assert document["results"][0]["classes"]["kind"] == "folder"
    found = classes_in(document)
    assert {*found} == {"day/front", "day/rear", "night/front", "night/rear"}
    alone = here("compute", "real/day/rear", "fake/day/rear", *arguments)
    assert found["day/rear"]["metrics"] == alone.metrics
    assert "fake: 1 folder is only in FAKE: night/rear" in messages(document["results"][0])
    lines = here("compute", "real", "fake", *QUICK, "--per-folder").stdout.splitlines()
    assert re.fullmatch(
        rf"{re.escape(FD)} per folder: mean [\d.]+ over 3 folders, "
        r"worst [\d.]+ \((day|night)/\w+\)",
        lines[1],
    )


# --- balance --------------------------------------------------------------------------------------


def test_a_missing_class_and_other_shares_are_warned_about(here: Run, tmp_path: Path) -> None:
    real, fake = make_classes(tmp_path, {"ant": (40, 40), "bee": (40, 0), "cat": (40, 40)})
    (result,) = here("compute", real, fake, *QUICK, "--json").json["results"]
    (line,) = (each for each in messages(result) if "that REAL has: bee" in each)
    assert line == f"{fake}: it has no images of 1 class that REAL has: bee"
    assert result["warnings"][messages(result).index(line)]["severity"] == "medium"
    make_pictures(tmp_path / "fake" / "bee", 4, 50)
    warned = here("compute", real, fake, *QUICK).stderr
    assert (
        f"{fake}: its classes are distributed differently from REAL's: 28.6% of its images would "
        "have to be of another class (bee has 4.76% instead of" in warned
    )


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fake", "flags", "message"),
    [
        (
            "flat",
            ["--per-class"],
            "--per-class compares images whose folder or label has the same name in both sets, but "
            "real has ant, bee, cat (3 classes), and",
        ),
        (
            "flat",
            ["--per-class"],
            "flat has none: put the images of each class into folders of the same name in both "
            "sets, or pass --labels-fake",
        ),
        (
            "flat",
            ["--per-folder"],
            "--per-folder compares images whose folder or label has the same name in both sets, "
            "but real has ant, bee, cat",
        ),
        (
            "other",
            ["--per-class"],
            "but real has ant, bee, cat (3 classes), and other has x, y (2 classes)",
        ),
        (
            "fake",
            ["--per-class", "--per-folder"],
            "--per-folder cannot be combined with --per-class: omit one of them",
        ),
        ("bare.npz", ["--per-class"], "bare.npz has none"),
        ("fake", ["--labels", "gone.csv"], "gone.csv cannot be read"),
    ],
)
def test_refusals_come_before_the_first_image(
    here: Run, tmp_path: Path, fake: str, flags: list[str], message: str
) -> None:
    make_classes(tmp_path, dict.fromkeys(CLASSES, (3, 3)))
    make_pictures(tmp_path / "flat", 3)
    make_pictures(tmp_path / "other" / "x", 3)
    make_pictures(tmp_path / "other" / "y", 3)
    assert (
        here("stats", "fake", "-o", "bare.npz", "--no-diagnosis", "--metrics", "kid", *QUICK).status
        == 0
    )
    (tmp_path / "real" / "ant" / "00000.png").write_bytes(b"damaged")
    refused = here("compute", "real", fake, *flags, *QUICK)
    assert refused.status == 2
    assert message in refused.error


# --- outputs --------------------------------------------------------------------------------------


def test_every_output_has_the_classes(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    files = ("r.json", "r.csv", "r.md", "r.tex")
    outputs = [
        *(argument for file in files for argument in ("-o", file)),
        "--report",
        "r.html",
        "--history",
        "h.jsonl",
    ]
    outcome = here(
        "compute", *sets, sets[0], "--metrics", "fid,kid", *SMALL, *QUICK, "--per-class", *outputs
    )
    assert outcome.status == 0, outcome.stderr
    found = read_evaluation(tmp_path / "r.json")
    classes = found.results[0].classes
    assert isinstance(classes, Classes)
    key = next(iter(classes.mean))
    name, value = classes.worst[key]
    mean = f"mean {classes.mean[key]:.4f} over 3 classes"
    wanted = f"{FD} per class: {mean}, worst {value:.4f} ({name})  {sets[1]}"
    assert wanted in outcome.stdout.splitlines()
    table = [line.split() for line in outcome.stderr.splitlines()]
    assert [line[:3] for line in table if line and line[0] in CLASSES][:3] == [
        [each.name, str(each.real), str(each.fake)] for each in classes.classes
    ]
    written = {
        (row["set"], row["class"], row["metric"]): float(row["value"])
        for row in csv.DictReader((tmp_path / "r.csv").open())
    }
    for result in found.results:
        assert result.classes is not None
        for metrics, name_in_csv in (
            (result.metrics, "(all)"),
            *((each.metrics, each.name) for each in result.classes.classes),
        ):
            for metric, number in metrics.items():
                assert written.pop((result.fake.name, name_in_csv, metric)) == number
    assert {metric for _, _, metric in written} == {"count.real", "count.fake"}
    assert len(written) == 2 * 2 * 4
    saved = here("table", "r.json")
    for text in (
        saved.stdout,
        *((tmp_path / file).read_text().replace("\\", "") for file in ("r.md", "r.tex")),
    ):
        assert f"mean {classes.mean[key]:.4f} over 3 classes, worst {value:.4f} ({name})" in text
        assert [
            each.name for each in classes.classes if f"{each.metrics[key]:.4f}" not in text
        ] == []
    assert '"classes": null' in (tmp_path / "h.jsonl").read_text()
    assert here("report", "r.json", "-o", "again.html").status == 0
    for page in ("r.html", "again.html"):
        assert f"over 3 classes, worst {value:.4f} ({name})." in (tmp_path / page).read_text()
    assert found.results[0].to_dict() == read_evaluation(tmp_path / "r.json").results[0].to_dict()


def test_pandas_reads_the_csv_of_classes_as_it_is(here: Run, tmp_path: Path) -> None:
    """Classes with numbers as names remain text, and no number is missing or text."""
    pandas = pytest.importorskip("pandas", reason="needs pandas, which datasets brings")
    real, fake = make_classes(tmp_path, {"0": (9, 8), "07": (8, 9), "2": (9, 0)})
    make_pictures(tmp_path / "second" / "07", 9, 99)
    sets = (real, fake, tmp_path / "second")
    command = ("compute", *sets, *QUICK, "--per-class", "-o", "r.csv", "-o", "r.json")
    assert here(*command).status == 0
    assert here(*command).status == 0, "the file is one of fidtool, and replaced"
    table = pandas.read_csv(tmp_path / "r.csv")
    assert [*table.columns] == ["set", "class", "metric", "value"]
    assert table["value"].dtype == float
    assert not table.isna().any().any()
    assert {*table["class"]} == {"(all)", "0", "07", "2"}
    wide = table.pivot(index=["set", "class"], columns="metric", values="value")
    (key,) = {*wide.columns} - {"count.real", "count.fake"}
    assert wide.loc[(str(fake), "2"), "count.fake"] == 0
    first, second = read_evaluation(tmp_path / "r.json").results
    for result in (first, second):
        assert result.classes is not None
        of_set = wide.loc[result.fake.name]
        assert of_set.loc["(all)", key] == result.metrics[key]
        assert of_set.drop("(all)")[key].mean() == pytest.approx(result.classes.mean[key])


def test_what_changed_in_each_class(here: Run, sets: tuple[Path, Path], tmp_path: Path) -> None:
    command = ("compute", *sets, *QUICK, "--per-class")
    assert here(*command, "-o", "a.json").status == 0
    assert here(*command, "-o", "b.json", "--num-fake", 20).status == 0
    old, new = (
        read_evaluation(tmp_path / file).results[0].classes for file in ("a.json", "b.json")
    )
    assert isinstance(old, Classes)
    assert isinstance(new, Classes)
    (key,) = old.mean
    (change,) = here("diff", "a.json", "b.json", "--json").json["changes"]
    assert change["metrics"][f"classes.mean.{key}"] == [old.mean[key], new.mean.get(key)]
    was, now = ({each.name: each.metrics.get(key) for each in one.classes} for one in (old, new))
    assert {name: pairs[key] for name, pairs in change["classes"].items()} == {
        name: [was[name], now.get(name)] for name in was
    }
    lines = [line.split() for line in here("diff", "a.json", "b.json").stdout.splitlines()]
    shown = {line[0].rstrip(":"): line[2] for line in lines if line[1:2] == [key]}
    assert shown == {name: f"{value:.6g}" for name, value in was.items()}


def test_more_classes_than_are_printed(here: Run, tmp_path: Path) -> None:
    real, fake = make_classes(tmp_path, {f"n{number:04}": (3, 3) for number in range(25)})
    outcome = here("compute", real, fake, *QUICK, "--per-class")
    assert len([line for line in outcome.stderr.splitlines() if line.startswith("n00")]) == 20
    assert "and 5 more, listed in the JSON" in outcome.stderr.splitlines()


def test_a_held_out_set_needs_no_classes(
    here: Run, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    val = make_pictures(tmp_path / "val", 12, 7)
    found = here("compute", *sets, *QUICK, "--per-class", "--heldout", val, "--json").json
    assert {*classes_in(found)} == {*CLASSES}
    assert found["results"][0]["heldout"]["count"] == 12
