"""Datasets of Hugging Face's package ``datasets``, in memory, streamed and saved to disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

import fidtool
from fidtool.reading.decode import decode
from fidtool.sources.listing import open_images
from support.command_line import Run
from support.places import TINY
from support.ranks import RankServer, outcomes
from support.source_forms import make_pair, names_in, pixels_in, write_arrow

datasets = pytest.importorskip("datasets", reason="needs datasets, from the extra 'test'")

COUNT = 22
SETTINGS: dict[str, Any] = {"extractor": TINY, "cache": False, "batch_size": 4}
ARGUMENTS = ("--extractor", TINY, "--no-cache", "--json", "--batch-size", 4)
STORED = datasets.Image(decode=False)


def dataset_of(folder: Path, **others: list[Any]) -> Any:
    """Return the images of a folder, with their labels."""
    columns = {
        "image": [str(folder / name) for name in names_in(folder)],
        "label": list(range(COUNT)),
        **others,
    }
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and datasets of them: saved in shards, of two splits, and with a second column of
    other images.
    """
    place = make_pair(tmp_path_factory.mktemp("hugging"), COUNT)
    images = dataset_of(place / "images")
    images.save_to_disk(place / "saved", num_shards=3)
    datasets.DatasetDict({"train": images, "test": images}).save_to_disk(place / "both")
    other = [str(place / "real" / name) for name in names_in(place / "real")]
    dataset_of(place / "images", other=other).cast_column("other", datasets.Image()).save_to_disk(
        place / "columns"
    )
    return place


@pytest.fixture(scope="module")
def expected(place: Path) -> float:
    return fidtool.compute(place / "real", place / "images", **SETTINGS).frechet_distance


# --- in memory ------------------------------------------------------------------------------------

Form = Callable[[Any], Any]
FORMS: dict[str, Form] = {
    "a Dataset": lambda saved: saved,
    "not decoded": lambda saved: saved.cast_column("image", STORED),
    "of tensors": lambda saved: saved.with_format("torch"),
    "transformed": lambda saved: saved.with_transform(lambda rows: {"image": rows["image"]}),
    "with WebDataset's key": lambda saved: saved.rename_column("image", "png"),
    "streamed": lambda saved: saved.to_iterable_dataset(num_shards=3),
    "streamed, not decoded": lambda saved: saved.to_iterable_dataset().cast_column("image", STORED),
    "streamed and mapped": lambda saved: saved.to_iterable_dataset().map(lambda row: {"label": 1}),
    "batches": lambda saved: saved.iter(4),
    "batches, not decoded": lambda saved: saved.cast_column("image", STORED).iter(4),
    "rows": lambda saved: list(saved.cast_column("image", STORED)["image"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_folders_value(
    place: Path, expected: float, environment: dict[str, str], form: str
) -> None:
    given = FORMS[form](datasets.load_from_disk(place / "saved"))
    assert fidtool.compute(place / "real", given, **SETTINGS).frechet_distance == expected


@pytest.mark.parametrize("form", ["a Dataset", "streamed"])
def test_decoding_workers_read_the_memory_map(
    place: Path, expected: float, environment: dict[str, str], form: str
) -> None:
    given = FORMS[form](datasets.load_from_disk(place / "saved"))
    assert (
        fidtool.compute(place / "real", given, num_workers=2, **SETTINGS).frechet_distance
        == expected
    )


def test_images_are_used_as_they_are_stored(place: Path, tmp_path: Path) -> None:
    """As in a folder, so that records tell the quality of JPEG. datasets would rotate them by
    EXIF.
    """
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.open(place / "images/000.png").save(tmp_path / "a.jpg", quality=37, exif=exif)
    given = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.jpg")]}).cast_column(
        "image", datasets.Image()
    )
    stored = (tmp_path / "a.jpg").read_bytes()
    assert list(fidtool.Images(given, name="a").image_set(None).read([0])) == [stored]
    assert list(fidtool.Images(given.to_iterable_dataset()).stream(None)) == [stored]
    gray = given.cast_column("image", datasets.Image(mode="L"))
    (content,) = fidtool.Images(gray, name="a").image_set(None).read([0])
    assert getattr(content, "mode", "") == "L", "what the program asks datasets for is done"


SCRIPT = """
import json, os, sys
import datasets, fidtool
from datasets.distributed import split_dataset_by_node

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
real, saved, extractor = sys.argv[1:]
images = datasets.load_from_disk(saved)
stream = images.to_iterable_dataset(num_shards=size)
shard = split_dataset_by_node(stream, rank=rank, world_size=size)
given = [images, fidtool.Images(stream, sharded=False), fidtool.Images(shard, sharded=True)]
settings = dict(extractor=extractor, cache=False, batch_size=4, diagnose=False)
results = fidtool.compute(real, [fidtool.Images(images), *given[1:]], **settings).results
if rank == 0:
    print(json.dumps([[each.value("fid"), each.fake.count] for each in results]))
"""


def test_two_ranks(rank_server: RankServer, place: Path, expected: float) -> None:
    (place / "script.py").write_text(SCRIPT)
    arguments = [["script.py", "real", "saved", TINY]] * 2
    first, second = outcomes(rank_server.ranks("script", arguments, rank_server.environment, place))
    assert (first.status, second.status) == (0, 0), first.stderr
    assert json.loads(first.stdout) == [[expected, COUNT]] * 3


def test_a_row_without_its_image_is_named(place: Path, environment: dict[str, str]) -> None:
    rows = {"image": [str(place / "images/000.png"), str(place / "none.png"), None, "a" * 4]}
    given = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    for row, words in ((1, "No such file or directory: .*none.png"), (2, "NoneType, not an image")):
        with pytest.raises(fidtool.InputError, match=rf"fake\[0\].*{words}"):
            fidtool.compute(place / "real", given.select([row, 0]), **SETTINGS)


@pytest.mark.parametrize("kind", ["DatasetDict", "IterableDatasetDict"])
def test_splits_are_named(place: Path, kind: str) -> None:
    images = datasets.load_from_disk(place / "saved")
    given = getattr(datasets, kind)({"train": images, "test": images})
    with pytest.raises(
        fidtool.InputError, match=f"{kind}, .*pass its split 'train', or pass its split 'test'"
    ):
        fidtool.compute(given, place / "images", **SETTINGS)
    with pytest.raises(fidtool.InputError, match=rf"fake is of type {kind}, .*its split 'train'"):
        fidtool.compute(place / "images", given, **SETTINGS)


# --- saved to disk --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        "saved",
        "saved/",
        "saved:image",
        "saved/:image",
        "saved/data-*.arrow",
        "columns:image",
        "both/test",
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_saved_datasets_give_the_folders_value(
    fidtool: Run, place: Path, expected: float, form: str, ranks: int
) -> None:
    run = fidtool("compute", place / "real", place / form.rstrip("/"), *ARGUMENTS, ranks=ranks)
    assert run.fid == expected


def test_rows_are_in_the_order_of_the_dataset(place: Path, tmp_path: Path) -> None:
    """That of state.json, which may differ from the names of its files."""
    saved = datasets.load_from_disk(place / "saved")
    shards = json.loads((place / "saved/state.json").read_text())["_data_files"]
    (tmp_path / "turned").mkdir()
    for each in shards:
        (tmp_path / "turned" / each["filename"]).symlink_to(place / "saved" / each["filename"])
    (tmp_path / "turned/state.json").write_text(json.dumps({"_data_files": shards[::-1]}))
    images, turned = open_images(str(place / "saved")), open_images(str(tmp_path / "turned"))
    read = [decode(each).pixels for each in images.read(range(COUNT))]
    for pixels, row in zip(read, saved, strict=True):
        np.testing.assert_array_equal(pixels, np.asarray(row["image"]))
    assert images.file(8) == f"{place}/saved/data-00001-of-00003.arrow[0]"
    assert turned.file(0) == f"{tmp_path}/turned/data-00002-of-00003.arrow[0]"
    numbers = np.random.default_rng(0).permutation(COUNT)
    for content, number in zip(images.read(numbers), numbers, strict=True):
        np.testing.assert_array_equal(decode(content).pixels, read[number])


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("both", ["both is a DatasetDict of 2 sets: pass ", "both/train, or pass ", "both/test"]),
        ("both:image", ["both is a DatasetDict of 2 sets"]),
        (
            "columns",
            ["image (struct", "other (struct", "name the column of images, ", "columns:NAME"],
        ),
        ("saved:label", ["label (int64): label does not contain image bytes"]),
        ("saved:none", ["none does not contain image bytes"]),
    ],
)
def test_what_is_not_one_set_is_refused(
    here: Run, place: Path, form: str, words: list[str]
) -> None:
    for command in (("compute", place / "real", place / form), ("check", place / form)):
        run = here(*command)
        assert run.status == 2
        assert [word for word in words if word not in run.error] == [], run.error


def test_a_folder_of_images_may_have_a_state(here: Run, place: Path, tmp_path: Path) -> None:
    make_pair(tmp_path, 5)
    for text in ("{}", "[1]", "no JSON", '{"_data_files": 7}'):
        for name in ("state.json", "dataset_dict.json"):
            (tmp_path / "images" / name).write_text(text)
        assert (
            here("compute", "real", "images", *ARGUMENTS).json["results"][0]["count"]["fake"] == 5
        )


def test_rows_that_are_paths_are_read_and_not_cached(
    place: Path, expected: float, tmp_path: Path
) -> None:
    """As by datasets. Whether these files change is not noticed, so the statistics are not kept."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, from the extra 'parquet'")
    names = names_in(place / "images")
    images = [{"bytes": None, "path": str(place / "images" / name)} for name in names]
    table = pyarrow.table(
        {"image": pyarrow.array(images, pyarrow.struct({"bytes": "binary", "path": "string"}))}
    )
    with pyarrow.ipc.new_stream(tmp_path / "paths.arrow", table.schema) as writer:
        writer.write_table(table)
    assert not open_images(str(tmp_path / "paths.arrow")).files.versioned
    given = fidtool.compute(place / "real", tmp_path / "paths.arrow", **SETTINGS)
    assert given.frechet_distance == expected
    write_arrow(tmp_path / "bytes.arrow", place / "images", names)
    assert open_images(str(tmp_path / "bytes.arrow")).files.versioned


def test_arrow_files_with_an_index_are_read(place: Path, expected: float, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, from the extra 'parquet'")
    write_arrow(tmp_path / "stream.arrow", place / "images", names_in(place / "images"))
    table = pyarrow.ipc.open_stream(tmp_path / "stream.arrow").read_all()
    with pyarrow.ipc.new_file(tmp_path / "file.arrow", table.schema) as writer:
        writer.write_table(table, 4)
    assert (
        fidtool.compute(place / "real", tmp_path / "file.arrow", **SETTINGS).frechet_distance
        == expected
    )


def test_damaged_tables_are_refused(here: Run, place: Path, tmp_path: Path) -> None:
    """Without the end of a stream, its last rows may be missing. Offsets may not be those of other
    memory.
    """
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, from the extra 'parquet'")
    write_arrow(file := tmp_path / "bad.arrow", place / "images", names_in(place / "images"))
    data = file.read_bytes()
    values = pyarrow.ipc.open_stream(data).read_all().column("image").chunk(0).field("bytes")
    offsets = values.buffers()[1].to_pybytes()[: 4 * len(values)]
    assert data.count(offsets) == 1
    wrong = offsets[:4] + (1 << 30).to_bytes(4, "little") + offsets[8:]
    for damaged in (data[:-8], data[:-2000], data[:400], data.replace(offsets, wrong)):
        file.write_bytes(damaged)
        run = here("compute", place / "real", "bad.arrow", *ARGUMENTS)
        assert run.status == 2
        assert "bad.arrow is damaged or truncated" in run.error, run.error
    file.write_bytes(b"")
    assert (
        "bad.arrow is empty (0 bytes)"
        in here("compute", place / "real", "bad.arrow", *ARGUMENTS).error
    )


def test_a_table_is_not_copied_into_memory(place: Path, tmp_path: Path) -> None:
    """Only the rows that are read: Arrow allocates nothing for the table."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, from the extra 'parquet'")
    write_arrow(tmp_path / "a.arrow", place / "images", names_in(place / "images"))
    before = pyarrow.total_allocated_bytes()
    images = open_images(str(tmp_path / "a.arrow"))
    contents = list(images.read([3, 20, 7]))
    assert pyarrow.total_allocated_bytes() - before < 1000
    pixels = pixels_in(place / "images")
    for content, row in zip(contents, (3, 20, 7), strict=True):
        np.testing.assert_array_equal(decode(content).pixels, pixels[row])


def test_saved_datasets_are_cached_and_resumed(here: Run, place: Path) -> None:
    arguments = ("compute", place / "saved", place / "saved:image", "--extractor", TINY, "--json")
    assert [here(*arguments).json["run"]["images_computed"] for _ in range(2)] == [2 * COUNT, 0]
    resumed = (*arguments, "--no-cache", "--checkpoint", "kept")
    assert [here(*resumed).json["run"]["images_resumed"] for _ in range(2)] == [0, 2 * COUNT]
