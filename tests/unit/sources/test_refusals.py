"""Sources that are refused when they are listed or read, one case for each reason."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import fidtool
from fidtool.sources import contents
from fidtool.sources.contents import ContentError, ValueRange
from fidtool.sources.listing import open_images
from fidtool.sources.memory import Images
from support.encoded import encoded

IMAGES = np.arange(2 * 8 * 8 * 3).reshape(2, 8, 8, 3).astype(np.uint8)
PNG = encoded(Image.fromarray(IMAGES[0]))


def tensors(file: Path, value: object) -> Path:
    torch.save(value, file)
    return file


def rewritten(file: Path, name: str, content: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    """Save a tensor of images and replace a record of the file."""
    tensors(file, torch.from_numpy(IMAGES))
    with zipfile.ZipFile(file) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", method) as archive:
        for each, data in records.items():
            archive.writestr(each, content if each.endswith(name) else data)
    return file


def safetensors(file: Path, header: bytes) -> Path:
    file.write_bytes(len(header).to_bytes(8, "little") + header + IMAGES.tobytes())
    return file


def contradictory(file: Path) -> Path:
    entry = {"dtype": "U8", "shape": [2, 8, 8, 3], "data_offsets": [0, 7]}
    return safetensors(file, json.dumps({"images": entry}).encode())


def zipped(file: Path, *names: str) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, PNG)
    return file


def parquet(file: Path, **columns: list[object]) -> Path:
    reason = "needs pyarrow, from the extra 'parquet'"
    table = pytest.importorskip("pyarrow", reason=reason)
    writer = pytest.importorskip("pyarrow.parquet", reason=reason)
    types = {"image": table.binary(), "label": table.int64()}
    writer.write_table(
        table.table({name: table.array(each, types[name]) for name, each in columns.items()}), file
    )
    return file


def npy(file: Path, version: tuple[int, int]) -> Path:
    with file.open("wb") as handle:
        np.lib.format.write_array(handle, IMAGES, version)
    return file


def lists(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


X = torch.from_numpy(IMAGES)
MADE: dict[str, tuple[Callable[[Path], object], str]] = {
    "complex": (
        lambda at: tensors(at / "a.pt", X.cfloat()),
        "contains complexfloat; images must be integers, floats",
    ),
    "two tensors": (
        lambda at: tensors(at / "a.pt", {"a": X, "b": X}),
        r"name the array of images, .*a\.pt:NAME",
    ),
    "no such tensor": (
        lambda at: f"{tensors(at / 'a.pt', {str(n): X for n in range(10)})}:none",
        "and 2 more: none is named none",
    ),
    "vectors": (
        lambda at: tensors(at / "a.pt", {"a": X[0, 0], "b": X[0, 0, 0]}),
        "save the images as one uint8 array",
    ),
    "a short record": (
        lambda at: rewritten(at / "a.pt", "data/0", bytes(7)),
        "a tensor extends beyond its storage",
    ),
    "a compressed record": (
        lambda at: rewritten(at / "a.pt", "data/0", IMAGES.tobytes(), zipfile.ZIP_DEFLATED),
        "is not where the archive's directory says",
    ),
    "a scattered tensor": (
        lambda at: tensors(
            at / "a.pt", torch.zeros(8, 8, 3, 512, dtype=torch.uint8).permute(3, 0, 1, 2)
        ),
        "each image is scattered over the whole file",
    ),
    "no header": (
        lambda at: lists(at / "a.safetensors", "\1" * 100),
        "its header is not that of a safetensors file",
    ),
    "contradictory header": (
        lambda at: contradictory(at / "a.safetensors"),
        "has 7 bytes, which does not match",
    ),
    "empty table": (lambda at: parquet(at / "a.parquet", image=[]), "it contains no rows"),
    "labels only": (lambda at: parquet(at / "a.parquet", label=[1, 2]), "has the columns label"),
    "version 3": (
        lambda at: npy(at / "a.npy", (3, 0)),
        "version 3.0|version .3, 0. of the format is not supported",
    ),
    "many other files": (
        lambda at: [lists(at / f"a.x{n}", "") for n in range(6)] and at,
        r"contains 1 file \(\.x0\), .*, 2 others; image files have one of the suffixes",
    ),
    "a list of nothing": (lambda at: lists(at / "a.txt", "\n\n"), "is empty"),
    "upper case": (lambda at: "S3://bucket/images", "must begin with s3:// in lower case"),
    "nothing at a URL": (
        lambda at: f"file://{at / 'none'}",
        "there is nothing below|does not exist",
    ),
    "no images at a URL": (
        lambda at: f"file://{lists(at / 'a.csv', '').parent}",
        "to read an archive, an array or a table, pass its own path or URL",
    ),
    "no match at a URL": (lambda at: f"file://{at}/*.tar", "no object matches"),
    "an empty list at a URL": (lambda at: f"file://{lists(at / 'a.txt', '')}", r"a\.txt is empty"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_source_is_refused(tmp_path: Path, name: str) -> None:
    make, words = MADE[name]
    with pytest.raises(fidtool.InputError, match=words):
        open_images(str(make(tmp_path)))


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    """The rest of a damaged file can still be read."""
    archive = zipped(tmp_path / "a.zip", "0.png", "1.png")
    listed = open_images(str(archive))
    archive.write_bytes(archive.read_bytes().replace(b"PK\3\4", b"PK\3\5", 1))
    first, second = listed.read([0, 1])
    assert isinstance(first, ContentError)
    assert "not where the directory says" in str(first)
    assert second == PNG


@pytest.mark.parametrize(
    "error", [OSError("input/output error"), ContentError("damaged"), MemoryError()]
)
def test_an_error_of_one_image_is_not_that_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The file is opened once for all of them."""
    np.save(tmp_path / "a.npy", IMAGES)
    listed = open_images(str(tmp_path / "a.npy"))

    def read_extent(stream: IO[bytes], start: int, length: int) -> bytes:
        if start == listed.files.stamps[0, 0] - length:
            raise error
        return contents.read_extent(stream, start, length)

    monkeypatch.setattr("fidtool.sources.array_files.read_extent", read_extent)
    first, second, again = listed.read([0, 1, 0])
    np.testing.assert_array_equal(first.values, IMAGES[0])  # type: ignore[union-attr]
    assert second is error
    np.testing.assert_array_equal(again.values, IMAGES[0])  # type: ignore[union-attr]


def test_forms_that_are_read(tmp_path: Path) -> None:
    halves = open_images(
        str(tensors(tmp_path / "a.pt", X.bfloat16() / 256)), value_range=ValueRange(0, 255 / 256)
    )
    (pixels,) = halves.read([1])
    np.testing.assert_array_equal(pixels.values, IMAGES[1])  # type: ignore[union-attr]
    save_file({"images": X}, tmp_path / "a.safetensors", {"made": "by a test"})
    assert len(open_images(str(tmp_path / "a.safetensors"))) == 2
    gray = np.zeros((9, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "gray.npy", gray)
    assert len(open_images(str(tmp_path / "gray.npy"))) == 9
    (tmp_path / "unnamed").write_bytes(b"")
    np.savez(tmp_path / "a.npz", IMAGES)
    (tmp_path / "a.npz").rename(tmp_path / "samples")
    assert len(open_images(str(tmp_path / "samples"))) == 2
    kinds = [f"{sample}.{kind}.png" for sample in "ab" for kind in "cdefghijk"]
    assert len(open_images(str(zipped(tmp_path / "kinds.zip", *kinds)))) == len(kinds), (
        "too many to be kinds"
    )


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (IMAGES, "contains 2 images"),
        (object(), "is of type object, not an image"),
        (iter(IMAGES), "wrap each in"),
    ],
)
def test_an_item_that_is_not_one_image(item: object, words: str) -> None:
    (found,) = Images([PNG, item], name="set").image_set(None).read([1])
    assert words in str(found)


def test_images_in_memory() -> None:
    with pytest.raises(
        fidtool.InputError, match="is a sequence, which must be the same on all ranks"
    ):
        Images([PNG], sharded=True)
    (pixels,) = Images([X[0].bfloat16() / 256]).image_set(ValueRange(0, 255 / 256)).read([0])
    np.testing.assert_array_equal(pixels.values, IMAGES[0])  # type: ignore[union-attr]
    assert len(list(Images(iter([IMAGES[:0], IMAGES])).stream(None))) == 2, "a batch may be empty"


def test_a_decompression_bomb_is_not_decoded_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its decoding refuses it, while the copy of another is decoded."""
    monkeypatch.setattr("fidtool.sources.memory.MAX_PIXELS", 110)
    for side, is_copy in ((11, True), (12, False)):
        file = tmp_path / f"{side}.png"
        Image.new("RGB", (10, side)).save(file)
        with Image.open(file) as image:
            (found,) = Images([image]).image_set(None).read([0])
            assert (found is not image) == is_copy


VIDEOS = {(2, 5, 20, 24, 3): 10, (2, 5, 3, 20, 24): 10}
"""And the number of their frames."""


@pytest.mark.parametrize("shape", VIDEOS)
@pytest.mark.parametrize("form", ["array", "batches", "file"])
def test_videos_are_refused_with_the_line_that_takes_their_frames(
    tmp_path: Path, shape: tuple[int, ...], form: str
) -> None:
    x = np.zeros(shape, dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    opened: dict[str, Callable[[], object]] = {
        "array": lambda: Images(x).image_set(None),
        "batches": lambda: list(Images(iter([x])).stream(None)),
        "file": lambda: open_images(str(tmp_path / "x.npy")),
    }
    with pytest.raises(fidtool.InputError) as refused:
        opened[form]()
    frames = eval(str(refused.value).rpartition("pass ")[2], {"x": x})
    assert len(Images(frames).image_set(None)) == VIDEOS[shape]


def test_lists_of_batches_are_refused_with_a_way_to_pass_them() -> None:
    with pytest.raises(
        fidtool.InputError,
        match=r"contains 2 images, but must be one image: .* pass iter\(images\)",
    ):
        Images([IMAGES, IMAGES]).image_set(None)


def test_videos_in_an_npz_need_no_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", video=np.zeros((2, 5, 3, 20, 24), np.uint8), fps=np.zeros(3))
    np.savez(tmp_path / "both.npz", video=np.zeros((2, 5, 3, 20, 24), np.uint8), first=IMAGES)
    with pytest.raises(fidtool.InputError, match=r"pass x.reshape\(-1, \*x.shape\[2:\]\)"):
        fidtool.compute(tmp_path / "v.npz", tmp_path / "both.npz", device="cpu")
    assert len(open_images(str(tmp_path / "both.npz"))) == 2


def test_an_archive_whose_first_name_begins_like_an_image(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("GIF89a/1.png")
        archive.addfile(member, io.BytesIO(b""))
    assert list(open_images(str(tmp_path / "a.tar")).stored) == ["GIF89a/1.png"]
