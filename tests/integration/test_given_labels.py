"""Labels of images that a program passes or that its data have, and what they are matched with."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fidtool
from fidtool.errors import InputError
from support.command_line import Run
from support.places import TINY

NAMES = ("n01", "n02", "n03")
COUNTS = (12, 9, 7)
LABELS = np.repeat(np.arange(3), COUNTS)
SETTINGS: dict[str, Any] = {"extractor": TINY, "cache": False, "diagnose": False}
QUICK = ("--extractor", TINY, "--no-cache", "--quiet", "--per-class")


def make_pixels(seed: int) -> NDArray[np.uint8]:
    """Return images whose mean colour depends on their class, in shuffled order with `labels`."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 80, (len(LABELS), 12, 12, 3)) + 40 * LABELS[:, None, None, None]
    return pixels.astype(np.uint8)


def shuffled(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    order = np.random.default_rng(seed).permutation(len(LABELS))
    return make_pixels(seed)[order], LABELS[order]


def write_folders(place: Path, seed: int) -> Path:
    for number, (image, label) in enumerate(zip(make_pixels(seed), LABELS, strict=True)):
        folder = place / NAMES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("labels")
    write_folders(place / "real", 0)
    write_folders(place / "fake", 1)
    return place


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, float]:
    return values(fidtool.compute(place / "real", place / "fake", per_class=True, **SETTINGS))


def values(evaluation: fidtool.Evaluation) -> dict[str, float]:
    """Return the value of each class of the only result."""
    (result,) = evaluation.results
    assert result.classes is not None
    (key,) = result.metrics
    return {each.name: each.metrics[key] for each in result.classes.classes}


def matched(evaluation: fidtool.Evaluation) -> list[str]:
    """Return the warnings that classes were matched by number."""
    (result,) = evaluation.results
    return [warning.text for warning in result.warnings if "matched by number" in warning.text]


class Pairs(torch.utils.data.Dataset[Any]):
    """Items of an image and its label; ``read`` lists those that were."""

    def __init__(self, seed: int = 1, **stated: Any) -> None:
        self.pixels, self.labels_of_items = shuffled(seed)
        self.read: list[int] = []
        vars(self).update(stated)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return Image.fromarray(self.pixels[index]), torch.tensor(self.labels_of_items[index])


# --- every form -----------------------------------------------------------------------------------

PASSED: dict[str, Callable[[NDArray[np.int64]], Any]] = {
    "a list of integers": lambda labels: labels.tolist(),
    "an array": lambda labels: labels,
    "an array of bytes": lambda labels: labels.astype(np.uint8),
    "a tensor": torch.from_numpy,
    "a list of tensors": lambda labels: [*torch.from_numpy(labels)],
    "a tuple of names": lambda labels: tuple(NAMES[label] for label in labels),
    "an array of names": lambda labels: np.array(NAMES)[labels],
}


@pytest.mark.parametrize("form", PASSED)
def test_labels_are_passed_for_each_side(
    environment: dict[str, str], expected: dict[str, float], form: str
) -> None:
    (real, labels), (fake, labels_fake) = shuffled(0), shuffled(1)
    convert = PASSED[form]
    evaluation = fidtool.compute(
        real,
        fake,
        per_class=True,
        labels=convert(labels),
        labels_fake=convert(labels_fake),
        **SETTINGS,
    )
    found = values(evaluation)
    if "names" not in form:
        found = {NAMES[int(name)]: value for name, value in found.items()}
    assert found == pytest.approx(expected, rel=1e-9)
    assert matched(evaluation) == []
    config = evaluation.to_dict()["run"]["config"]
    assert config["labels"] == config["labels_fake"] == "28 labels of 3 classes"


DATASETS: dict[str, Callable[[], Any]] = {
    "pairs": Pairs,
    "pairs of a Subset": lambda: torch.utils.data.Subset(Pairs(), range(28)),
    "targets": lambda: Pairs(targets=shuffled(1)[1].tolist()),
    "targets that the items contradict": lambda: Pairs(targets=(shuffled(1)[1] + 1).tolist()),
    "a Subset of targets": lambda: torch.utils.data.Subset(
        Pairs(targets=torch.from_numpy(shuffled(1)[1])), range(28)
    ),
    "a list of tuples": lambda: [*zip(shuffled(1)[0], shuffled(1)[1].tolist(), strict=True)],
    "a list of dicts": lambda: [
        {"png": image, "cls": label} for image, label in zip(*shuffled(1), strict=True)
    ],
    "a TensorDataset": lambda: torch.utils.data.TensorDataset(*map(torch.from_numpy, shuffled(1))),
}


@pytest.mark.parametrize("form", DATASETS)
def test_labels_beside_the_images_of_a_dataset(
    environment: dict[str, str], place: Path, expected: dict[str, float], form: str
) -> None:
    """Their integers are the numbers of the folders, in sorted order."""
    evaluation = fidtool.compute(place / "real", DATASETS[form](), per_class=True, **SETTINGS)
    assert values(evaluation) == pytest.approx(expected, rel=1e-9)
    assert matched(evaluation) == [
        "its classes and REAL's are matched by number, with the names in sorted order: 0 is n01, "
        "2 is n03"
    ]


def test_a_dataset_that_states_its_targets_is_read_once(
    environment: dict[str, str], place: Path, expected: dict[str, float]
) -> None:
    stated = Pairs(targets=shuffled(1)[1].tolist(), classes=list(NAMES))
    settings = {**SETTINGS, "num_workers": 0}
    evaluation = fidtool.compute(place / "real", stated, per_class=True, **settings)
    assert values(evaluation) == pytest.approx(expected, rel=1e-9)
    assert matched(evaluation) == [], "its classes have names"
    both = Pairs()
    fidtool.compute(place / "real", both, per_class=True, **settings)
    assert len(both.read) - len(stated.read) == len(LABELS) - 16
    plain = Pairs()
    fidtool.compute(place / "real", plain, **settings)
    assert len(stated.read) - len(plain.read) == 16


def test_targets_of_another_order_are_not_used(
    environment: dict[str, str], place: Path, expected: dict[str, float]
) -> None:
    """Although they agree with the labels of some items."""
    _, labels = shuffled(1)
    assert (labels[::-1] == labels).any()
    stated = Pairs(targets=labels[::-1].tolist())
    evaluation = fidtool.compute(place / "real", stated, per_class=True, **SETTINGS)
    assert values(evaluation) == pytest.approx(expected, rel=1e-9)


def test_an_image_without_a_label_among_others_is_named(
    environment: dict[str, str], place: Path
) -> None:
    pixels, labels = shuffled(1)
    items = [{"image": pixels[item], "label": labels[item]} for item in range(len(labels))]
    datasets = pytest.importorskip("datasets", reason="needs datasets, of the extra 'test'")
    column = [*labels.tolist()]
    column[3] = None
    images = [Image.fromarray(image) for image in pixels]
    dataset = datasets.Dataset.from_dict({"image": images, "label": column})
    with pytest.raises(InputError, match="fake: image 3 has no label, but other images have one"):
        fidtool.compute(place / "real", dataset, per_class=True, **SETTINGS)
    del items[3]["label"]
    with pytest.raises(InputError, match=r"fake\[3\] has no label, but fake\[\d+\] has one"):
        fidtool.compute(place / "real", items, per_class=True, **SETTINGS)


def test_a_sample_of_an_iterable_takes_the_first_labels(
    environment: dict[str, str], place: Path
) -> None:
    real, labels = shuffled(0)
    fake, labels_fake = shuffled(1)
    both: dict[str, Any] = {"labels": labels, "labels_fake": labels_fake}
    evaluation = fidtool.compute(real, iter(fake), per_class=True, num_fake=20, **both, **SETTINGS)
    (result,) = evaluation.results
    assert result.classes is not None
    counts = {int(part.name): part.fake for part in result.classes.classes}
    assert counts == {label: int((labels_fake[:20] == label).sum()) for label in range(3)}


def test_labels_are_used_without_values_of_classes(environment: dict[str, str]) -> None:
    """For the numbers of images, and integers are matched with names."""
    (real, labels), (fake, labels_fake) = shuffled(0), shuffled(1)
    names = np.array(NAMES)[labels]
    evaluation = fidtool.compute(real, fake, labels=names, labels_fake=labels_fake, **SETTINGS)
    (result,) = evaluation.results
    assert result.classes is not None
    assert {part.name: part.fake for part in result.classes.classes} == dict(
        zip(NAMES, COUNTS, strict=True)
    )
    with pytest.raises(InputError, match="labels_fake has 2 labels, but fake has 28 images"):
        fidtool.compute(real, iter(fake), labels=labels, labels_fake=[0, 1], **SETTINGS)


def test_classes_of_one_set_are_named(environment: dict[str, str]) -> None:
    """As with numbers from 0 in one set and from 1 in the other."""
    (real, labels), (fake, labels_fake) = shuffled(0), shuffled(1)
    evaluation = fidtool.compute(
        real, fake, per_class=True, labels=labels, labels_fake=labels_fake + 1, **SETTINGS
    )
    (result,) = evaluation.results
    warnings = [warning.text for warning in result.warnings]
    assert "1 class is only in REAL: 0" in warnings
    assert "1 class is only in FAKE: 3" in warnings


def test_names_of_a_dataset_have_its_order(
    environment: dict[str, str], tmp_path: Path, expected: dict[str, float]
) -> None:
    """Which need not be sorted: integers of the other side are places in it, also if it has more
    classes.
    """
    _, labels = shuffled(0)
    real = Pairs(0, targets=labels.tolist(), classes=["rose", "daisy", "aster", "lily"])
    evaluation = fidtool.compute(
        real, shuffled(1)[0], per_class=True, labels_fake=shuffled(1)[1], **SETTINGS
    )
    names = ("rose", "daisy", "aster")
    wanted = {names[NAMES.index(name)]: value for name, value in expected.items()}
    assert values(evaluation) == pytest.approx(wanted, rel=1e-9)
    assert matched(evaluation) == [
        "its classes and REAL's are matched by number, with the names in the order that its "
        "dataset states: 0 is rose, 2 is aster"
    ]


# --- other forms of images ------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["a Dataset", "transformed", "saved", "Parquet"])
@pytest.mark.parametrize("names", [NAMES, None], ids=["with names", "integers"])
def test_the_column_of_a_hugging_face_dataset(
    environment: dict[str, str],
    place: Path,
    tmp_path: Path,
    expected: dict[str, float],
    form: str,
    names: tuple[str, ...] | None,
) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets, from the extra 'test'")
    pixels, labels = shuffled(1)
    images = [Image.fromarray(image) for image in pixels]
    given = datasets.Dataset.from_dict({"image": images, "label": labels.tolist()})
    if names:
        given = given.cast_column("label", datasets.ClassLabel(names=[*names]))
    if form == "transformed":
        given = given.with_transform(lambda rows: {"image": rows["image"]})
    if form == "saved":
        given.save_to_disk(tmp_path / "saved", num_shards=2)
        given = tmp_path / "saved"
    if form == "Parquet":
        given.to_parquet(tmp_path / "a.parquet")
        given = tmp_path / "a.parquet"
    evaluation = fidtool.compute(place / "real", given, per_class=True, **SETTINGS)
    assert values(evaluation) == pytest.approx(expected, rel=1e-9)
    assert bool(matched(evaluation)) == (names is None)


def test_labels_of_a_split_without_labels_are_none(
    environment: dict[str, str], place: Path
) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets, from the extra 'test'")
    images = [Image.fromarray(image) for image in shuffled(1)[0]]
    given = datasets.Dataset.from_dict({"image": images, "label": [-1] * len(images)})
    given = given.cast_column("label", datasets.ClassLabel(names=[*NAMES]))
    with pytest.raises(
        InputError, match=r"real has n01, n02, n03 \(3 classes\), and fake has none"
    ):
        fidtool.compute(place / "real", given, per_class=True, **SETTINGS)


def in_batches(pixels: NDArray[np.uint8]) -> Any:
    return iter(torch.utils.data.DataLoader(torch.from_numpy(pixels), 5))


OTHERS: dict[str, Callable[[NDArray[np.uint8]], Any]] = {
    "an iterable": iter,
    "an iterable of batches": in_batches,
    "a function": lambda pixels: lambda: pixels,
    "statistics": lambda pixels: fidtool.compute_statistics(pixels, metrics="kid", **SETTINGS),
}


@pytest.mark.parametrize("form", OTHERS)
def test_labels_for_what_has_none_of_its_own(
    environment: dict[str, str], place: Path, expected: dict[str, float], form: str
) -> None:
    pixels, labels = shuffled(1)
    evaluation = fidtool.compute(
        place / "real",
        OTHERS[form](pixels),
        per_class=True,
        labels_fake=labels,
        num_fake=len(pixels) if form == "a function" else None,
        batch_size=len(pixels),
        **SETTINGS,
    )
    assert values(evaluation) == pytest.approx(expected, rel=1e-9)


def test_labels_of_features(environment: dict[str, str]) -> None:
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(60, 6)).astype(np.float32) for _ in range(2)]
    names = np.array(["a", "b"] * 30)
    settings: dict[str, Any] = {"features": True, "per_class": True}
    evaluation = fidtool.compute(*sets, labels=names, labels_fake=names, **settings)
    alone = fidtool.compute(*(rows[::2] for rows in sets), features=True)
    assert values(evaluation)["a"] == pytest.approx(alone.frechet_distance, rel=1e-9)


# --- which class is which -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "names_fake", "wanted"),
    [
        (["007", "010"], [7, 10], ["007", "010"]),
        ([7, 10], ["007", "010"], ["10", "7"]),
        (["cat", "dog"], ["0", "1"], ["cat", "dog"]),
        ([0, 1], ["cat", "dog"], ["0", "1"]),
        (["cat", "dog"], ["cat", "eel"], ["cat", "dog", "eel"]),
    ],
)
def test_classes_have_the_names_of_real(
    environment: dict[str, str], names: list[Any], names_fake: list[Any], wanted: list[str]
) -> None:
    pixels = make_pixels(0)
    evaluation = fidtool.compute(
        pixels,
        pixels[::-1].copy(),
        labels=names * 14,
        labels_fake=names_fake * 14,
        per_class=True,
        **SETTINGS,
    )
    classes = evaluation.results[0].classes
    assert classes is not None
    assert sorted(each.name for each in classes.classes) == wanted


@pytest.mark.parametrize(
    ("labels", "labels_fake", "words"),
    [
        ([0, 1] * 13, [0] * 28, "labels has 26 labels, but real has 28 images"),
        ([0, 1] * 14, [0] * 29, "labels_fake has 29 labels, but fake has 28 images"),
        (
            ["cat", "dog"] * 14,
            [0, 1, 2, 3] * 7,
            r"but real has cat, dog \(2 classes\), and fake has 0, 1, 2, 3 \(4 classes\): .* or pass "
            r"labels_fake=...$",
        ),
        (
            ["cat", "dog"] * 14,
            [1, 2] * 14,
            r"real has cat, dog \(2 classes\), and fake has 1, 2 \(2 classes\)",
        ),
        (
            ["cat", "dog"] * 14,
            ["chat", "chien"] * 14,
            r"real has cat, dog \(2 classes\), and fake has chat, chien \(2 classes\)",
        ),
        (None, [0] * 28, r"real has none, and fake has 0 \(1 class\): .*or pass labels=..."),
        (
            1,
            None,
            "labels must be a file, or a list, array or tensor of one label per image, not 1",
        ),
        ([0.5] * 28, None, "labels must have an integer or a string for each image, but its entry"),
        (
            np.eye(28),
            None,
            r"its entry 0 is \[1.0, .*; pass the class numbers of one-hot rows, lab",
        ),
        ([], None, "labels is empty: pass one label per image"),
    ],
)
def test_a_refusal_says_what_does_not_fit(
    environment: dict[str, str], labels: Any, labels_fake: Any, words: str
) -> None:
    pixels = make_pixels(0)
    with pytest.raises(InputError, match=words):
        fidtool.compute(
            pixels,
            pixels.copy(),
            labels=labels,
            labels_fake=labels_fake,
            per_class=True,
            **SETTINGS,
        )


def test_an_iterable_with_another_number_of_images_is_refused(
    environment: dict[str, str], place: Path
) -> None:
    with pytest.raises(InputError, match="labels_fake has 27 labels, but fake has 28 images"):
        fidtool.compute(
            place / "real",
            iter(make_pixels(1)),
            per_class=True,
            labels_fake=["n01"] * 27,
            **SETTINGS,
        )


def test_frames_have_the_label_of_their_image(environment: dict[str, str], tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, of the extra 'test'")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, of the extra 'test'")
    for seed, name in enumerate(("real", "fake")):
        pixels, labels = shuffled(seed)
        animations = []
        for first, second in zip(pixels, pixels[::-1], strict=True):
            buffer = io.BytesIO()
            frames = [Image.fromarray(image) for image in (first, second)]
            frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
            animations.append(buffer.getvalue())
        table = pyarrow.table({"image": animations, "label": labels})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    evaluation = fidtool.compute(
        tmp_path / "real.parquet",
        tmp_path / "fake.parquet",
        frames="all",
        per_class=True,
        **SETTINGS,
    )
    (result,) = evaluation.results
    assert result.classes is not None
    frames = [part.fake for part in result.classes.classes]
    assert sorted(frames) == sorted(2 * count for count in COUNTS)


def test_labels_of_the_heldout_set_are_not_read(environment: dict[str, str], place: Path) -> None:
    given: list[Any] = [(image, "n01") for image in make_pixels(2)]
    given[9] = (given[9][0],)
    evaluation = fidtool.compute(
        place / "real", place / "fake", heldout=given, per_class=True, **SETTINGS
    )
    assert evaluation.results[0].heldout is not None


def test_an_item_without_a_label_is_named(environment: dict[str, str], place: Path) -> None:
    given = [(image, "n01") for image in make_pixels(1)]
    given[9] = (given[9][0],)  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"fake\[9\] has no label, but fake\[\d+\] has one"):
        fidtool.compute(place / "real", given, per_class=True, **SETTINGS)


# --- samples, unreadable images, files ------------------------------------------------------------


def test_a_sample_and_an_unreadable_image(environment: dict[str, str], place: Path) -> None:
    _, labels = shuffled(1)
    given = [Pairs()[number] for number in range(len(labels))]
    given[5] = (b"damaged", labels[5])
    settings = {**SETTINGS, "per_class": True, "on_error": "skip", "max_skip": 0.5}
    classes = fidtool.compute(place / "real", given, **settings).results[0].classes
    assert classes is not None
    wanted = np.bincount(np.delete(labels, 5)).tolist()
    assert [each.fake for each in sorted(classes.classes, key=lambda each: each.name)] == wanted
    sample = fidtool.compute(place / "real", Pairs(), num=20, **settings).results[0].classes
    assert sample is not None
    assert sum(each.fake for each in sample.classes) == 20
    again = fidtool.compute(place / "real", shuffled(1)[0], num=20, labels_fake=labels, **settings)
    assert again.results[0].classes == sample


def test_a_file_of_labels_for_each_side(
    here: Run, place: Path, tmp_path: Path, expected: dict[str, float]
) -> None:
    """A list of paths has its labels in the order of its lines."""
    for side, seed in (("real", 0), ("fake", 1)):
        pixels, labels = shuffled(seed)
        (tmp_path / side).mkdir()
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(tmp_path / side / f"{number:03}.png")
        (tmp_path / f"{side}.txt").write_text("\n".join(map(str, labels)))
    order = np.random.default_rng(7).permutation(len(LABELS))
    (tmp_path / "list.txt").write_text("\n".join(f"fake/{number:03}.png" for number in order))
    (tmp_path / "listed.txt").write_text("\n".join(map(str, shuffled(1)[1][order])))
    wanted = {f"{NAMES.index(name)}": value for name, value in expected.items()}
    for fake, labels_fake in (("fake", "fake.txt"), ("list.txt", "listed.txt")):
        arguments = ("--labels", "real.txt", "--labels-fake", labels_fake, "--json", *QUICK)
        outcome = here("compute", "real", fake, *arguments)
        assert outcome.status == 0, outcome.stderr
        (result,) = outcome.json["results"]
        found = {each["name"]: each["metrics"] for each in result["classes"]["classes"]}
        assert {name: next(iter(each.values())) for name, each in found.items()} == pytest.approx(
            wanted, rel=1e-9
        )
    (tmp_path / "real" / "10.png").write_bytes((tmp_path / "real" / "000.png").read_bytes())
    (tmp_path / "real.txt").write_text("0\n" * 29)
    refused = here("compute", "real", "fake", *arguments)
    assert refused.status == 2
    assert "sorted by name 027.png comes before 10.png" in refused.error
    (tmp_path / "other.csv").write_text("path,label\nelsewhere.png,a\n")
    refused = here("compute", "fake", "fake", "--labels-fake", "other.csv", *QUICK)
    assert refused.status == 2


# --- small classes --------------------------------------------------------------------------------


def test_small_classes_are_left_out_of_the_mean(
    here: Run, place: Path, tmp_path: Path, expected: dict[str, float]
) -> None:
    arguments = ("compute", place / "real", place / "fake", *QUICK, "--min-class", 9)
    outcome = here(*arguments, "--report", "r.html", "-o", "r.json")
    line = (
        "classes with fewer than 9 images in REAL or FAKE are left out: n03 (7 in REAL, 7 in FAKE)"
    )
    assert line in outcome.stdout.splitlines()
    assert "over 2 classes, worst" in outcome.stdout
    assert f"<p>{line}.</p>" in (tmp_path / "r.html").read_text()
    (result,) = json.loads((tmp_path / "r.json").read_text())["results"]
    classes = result["classes"]
    assert (classes["min_class"], classes["left_out"]) == (9, ["n03"])
    (key,) = classes["mean"]
    assert classes["mean"][key] == pytest.approx((expected["n01"] + expected["n02"]) / 2, rel=1e-12)
    assert {each["name"]: len(each["metrics"]) for each in classes["classes"]} == {
        "n01": 1,
        "n02": 1,
        "n03": 0,
    }
    assert not any("too few images for some" in each["message"] for each in result["warnings"])
    refused = here(*arguments[:3], "--extractor", TINY, "--min-class", 9)
    assert refused.status == 2
    assert "--min-class applies to the values of classes, which are not requested" in refused.error
