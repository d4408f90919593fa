"""The same images in every format that fidtool reads."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file

from support.places import TINY

SIDE = 24
SHARDS = 3


def make_squares(folder: Path, count: int, seed: int = 0) -> Path:
    """Write smooth images of one size, which arrays need, one of them in a subfolder."""
    rng = np.random.RandomState(seed)
    (folder / "sub").mkdir(parents=True)
    for number in range(count):
        coarse = Image.fromarray(rng.randint(0, 256, (6, 6, 3)).astype(np.uint8))
        name = f"sub/{number:03}.png" if number == 1 else f"{number:03}.png"
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / name)
    return folder


def make_pair(place: Path, count: int) -> Path:
    """Write two such sets, ``real`` and ``images``."""
    make_squares(place / "real", count, 1)
    make_squares(place / "images", count)
    return place


def names_in(folder: Path) -> list[str]:
    """Return the sorted relative names of the images in a folder."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*.png"))


def pixels_in(folder: Path) -> NDArray[np.uint8]:
    """Return the images of a folder, shape (images, SIDE, SIDE, 3)."""
    return np.stack([np.asarray(Image.open(folder / name)) for name in names_in(folder)])


def write_zip(
    file: Path, folder: Path, names: Sequence[str], method: int = zipfile.ZIP_DEFLATED
) -> None:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in reversed(names):  # readers must sort the names
            archive.write(folder / name, name)
        archive.writestr("labels.csv", "a,b")


def write_tar(file: Path, folder: Path, names: Sequence[str], mode: str = "w") -> None:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]
        for name in reversed(names):
            archive.add(folder / name, name)
            label = tarfile.TarInfo(f"{name}.cls")
            label.size = 1
            archive.addfile(label, io.BytesIO(b"7"))


def write_shards(place: Path, folder: Path, names: Sequence[str]) -> str:
    for shard in range(SHARDS):
        part = slice(len(names) * shard // SHARDS, len(names) * (shard + 1) // SHARDS)
        write_tar(place / f"shard-{shard:03}.tar", folder, names[part])
    return str(place / f"shard-{{000..{SHARDS - 1:03}}}.tar")


def write_parquet(file: Path, folder: Path, names: Sequence[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    images = [{"bytes": (folder / name).read_bytes(), "path": name} for name in names]
    parquet.write_table(
        pyarrow.table({"image": images, "label": list(range(len(names)))}), file, row_group_size=5
    )


def write_arrow(file: Path, folder: Path, names: Sequence[str]) -> None:
    """Write a table as Hugging Face's datasets does: a stream of several batches."""
    import pyarrow

    images = [{"bytes": (folder / name).read_bytes(), "path": name} for name in names]
    table = pyarrow.table({"image": images, "label": list(range(len(names)))})
    with pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, 5)


def write_saved(saved: Path, folder: Path, names: Sequence[str]) -> None:
    """Write a folder as ``save_to_disk`` does."""
    saved.mkdir()
    write_arrow(saved / "data-00000-of-00001.arrow", folder, names)
    (saved / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    (saved / "dataset_info.json").write_text("{}")


def write_list(file: Path, folder: Path, names: Sequence[str]) -> None:
    file.write_text("".join(f"{folder.name}/{name}\n" for name in names))


def make_forms(folder: Path) -> dict[str, str]:
    """Write the images of a folder in every format next to it, and return the paths as users type
    them.
    """
    place, names, pixels = folder.parent, names_in(folder), pixels_in(folder)
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    floats = (pixels / 255).astype(np.float32)
    writers: dict[str, Callable[[Path], object]] = {
        "images.zip": lambda file: write_zip(file, folder, names),
        "stored.zip": lambda file: write_zip(file, folder, names, zipfile.ZIP_STORED),
        "images.tar": lambda file: write_tar(file, folder, names),
        "images.tar.gz": lambda file: write_tar(file, folder, names, "w:gz"),
        "images.tar.xz": lambda file: write_tar(file, folder, names, "w:xz"),
        "images.npz": lambda file: np.savez(file, pixels, np.arange(len(names))),
        "packed.npz": lambda file: np.savez_compressed(file, pixels),
        "named.npz": lambda file: np.savez(file, images=pixels, labels=np.arange(len(names))),
        "images.npy": lambda file: np.save(file, pixels),
        "planes.npy": lambda file: np.save(file, pixels.transpose(0, 3, 1, 2).copy()),
        "floats.npy": lambda file: np.save(file, floats),
        "foreign.npy": lambda file: np.save(file, floats.astype(">f8")),
        "images.pt": lambda file: torch.save(planes, file),  # a view: its storage is NHWC
        "several.pt": lambda file: torch.save(
            {"images": planes.contiguous(), "labels": torch.zeros(3)}, file
        ),
        "images.safetensors": lambda file: save_file({"images": planes.contiguous()}, file),
        "images.parquet": lambda file: write_parquet(file, folder, names),
        "images.arrow": lambda file: write_arrow(file, folder, names),
        "saved": lambda file: write_saved(file, folder, names),
        "images.txt": lambda file: write_list(file, folder, names),
        "images.csv": lambda file: file.write_text(
            "".join(["path\n", *(f"{folder.name}/{name}\n" for name in names)])
        ),
    }
    for name, write in writers.items():
        write(place / name)
    forms = {name: str(place / name) for name in writers}
    forms = {"folder": str(folder), **forms, "shards": write_shards(place, folder, names)}
    assert sorted(forms) == sorted(["folder", *FORMS]), (
        "a form is missing in FORMS, or is not written"
    )
    return forms


def make_frame_forms(folder: Path) -> list[str]:
    """Write the images of a folder, in their order, as frames of four files, and return these in
    every format.
    """
    images, frames = (
        [Image.fromarray(pixels) for pixels in pixels_in(folder)],
        folder.parent / "frames",
    )
    frames.mkdir()
    names = ("a.png", "b.tif", "c.webp", "d.png")
    for name, some in zip(
        names, (images[:7], images[7:12], images[12:-1], images[-1:]), strict=True
    ):
        lossless = {"lossless": True} if name == "c.webp" else {}
        some[0].save(frames / name, save_all=len(some) > 1, append_images=some[1:], **lossless)
    place = folder.parent
    write_zip(place / "frames.zip", frames, names)
    write_tar(place / "frames.tar", frames, names)
    write_tar(place / "frames.tar.gz", frames, names, "w:gz")
    write_parquet(place / "frames.parquet", frames, names)
    write_list(place / "frames.txt", frames, names)
    return [
        str(frames),
        *(str(place / f"frames.{kind}") for kind in ("zip", "tar", "tar.gz", "parquet", "txt")),
    ]


FORMS = [
    "images.zip",
    "stored.zip",
    "images.tar",
    "images.tar.gz",
    "images.tar.xz",
    "shards",
    "images.npz",
    "packed.npz",
    "named.npz",
    "images.npy",
    "planes.npy",
    "floats.npy",
    "foreign.npy",
    "images.pt",
    "several.pt",
    "images.safetensors",
    "images.parquet",
    "images.arrow",
    "saved",
    "images.txt",
    "images.csv",
]
"""All formats but the folder."""


COUNT = 22
ARGUMENTS = (
    *("--extractor", TINY, "--no-cache", "--json", "--batch-size", 4, "--value-range", "0,1"),
    *("--metrics", "fid,kid", "--kid-subset-size", 9, "--kid-subsets", 5),
)


def prepare_forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write the same images in every format, and REAL."""
    place = tmp_path_factory.mktemp("forms")
    return {
        **make_forms(make_squares(place / "images", COUNT)),
        "real": str(make_squares(place / "real", COUNT, 1)),
    }


def prepare_expected(forms: dict[str, str]) -> dict[str, float]:
    """Return the metrics of the folder, computed on one rank."""
    import fidtool

    kid = {"metrics": ["fid", fidtool.KID(subset_size=9, subsets=5)]}
    evaluation = fidtool.compute(
        forms["real"], forms["folder"], extractor=TINY, cache=False, batch_size=4, **kid
    )
    return dict(evaluation.results[0].metrics)
