"""Arrays of integers and bools: read if they can only mean one thing, or refused with the line that
converts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file

import fidtool
from fidtool.run.extract import Extraction
from support.command_line import Run
from support.places import TINY
from support.source_forms import make_squares

COUNT = 12
BYTES = np.random.RandomState(0).randint(0, 256, (COUNT, 12, 12, 3))
SETTINGS: dict[str, Any] = {"extractor": TINY, "cache": False}
KINDS = ("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", ">i4", ">u2", "bool")
FORMS: dict[str, Callable[[Path, NDArray[Any]], Any]] = {
    "npy": lambda at, values: saved(at / "a.npy", lambda file: np.save(file, values)),
    "npz": lambda at, values: saved(at / "a.npz", lambda file: np.savez(file, values)),
    "compressed npz": lambda at, values: saved(
        at / "a.npz", lambda file: np.savez_compressed(file, values)
    ),
    "pt": lambda at, values: saved(at / "a.pt", lambda file: torch.save(tensor(values), file)),
    "safetensors": lambda at, values: saved(
        at / "a.safetensors", lambda file: save_file({"images": tensor(values)}, file)
    ),
    "array": lambda _, values: values,
    "list of arrays": lambda _, values: [*values],
    "list of tensors": lambda _, values: [*tensor(values)],
    "iterable": lambda _, values: iter(values),
    "iterable of batches": lambda _, values: iter([values[:5], values[5:]]),
}


def saved(file: Path, save: Callable[[Path], None]) -> Path:
    save(file)
    return file


def tensor(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))


def of_kind(kind: str) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Return an array, and the bytes that it means."""
    if kind == "bool":
        return BYTES > 127, np.where(BYTES > 127, 255, 0).astype(np.uint8)
    values = (
        BYTES // 2
        if kind == "int8"
        else BYTES * 257 - BYTES % 5
        if "u2" in kind or "uint16" in kind
        else BYTES
    )
    wanted = values >> 8 if values.max() > 255 else values
    return values.astype(kind), wanted.astype(np.uint8)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("integers") / "real"
    make_squares(place, COUNT, 1)
    return place


@pytest.mark.parametrize("form", FORMS)
def test_read_as_bytes(real: Path, tmp_path: Path, environment: dict[str, str], form: str) -> None:
    for kind in KINDS if form in ("npy", "pt") else ("int64", "uint16", "bool"):
        if form == "pt" and "u" in kind and torch.__version__ < "2.5":
            continue  # earlier versions cannot save these types
        values, wanted = of_kind(kind)
        made = FORMS[form](tmp_path, values)
        fakes = [fidtool.Images(wanted), made if isinstance(made, Path) else fidtool.Images(made)]
        found = fidtool.compute(real, fakes, **SETTINGS)
        first, second = found.results
        assert first.frechet_distance == second.frechet_distance, kind
        deep = [
            line for line in map(str, second.warnings) if "with 9 to 16 bits per channel" in line
        ]
        assert len(deep) == ("u2" in kind or kind == "uint16")
        assert not found.run.warnings


def test_16_bits_as_in_png(real: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    values = of_kind("uint16")[0][..., 0]
    (tmp_path / "deep").mkdir()
    for number, image in enumerate(values):
        Image.fromarray(image).save(tmp_path / f"deep/{number:02}.png")
    found = fidtool.compute(real, [tmp_path / "deep", fidtool.Images(values)], **SETTINGS)
    assert found.results[0].frechet_distance == found.results[1].frechet_distance


OUTSIDE = {
    "int16": (BYTES * 100 - 9000).astype(np.int16),
    "int64": BYTES * 4,
    "int8": (BYTES - 128).astype(np.int8),
}


@pytest.mark.parametrize("form", FORMS)
def test_others_are_refused_with_the_line_that_converts(
    real: Path, tmp_path: Path, environment: dict[str, str], form: str
) -> None:
    for kind, values in OUTSIDE.items():
        with pytest.raises(fidtool.InputError) as refused:
            fidtool.compute(real, FORMS[form](tmp_path, values), **SETTINGS)
        pattern = (
            rf"\[(\d+)\] contains {kind} from (-?\d+) to (-?\d+); "
            r"image values must be from 0 to 255: .* use (.*)"
        )
        found = re.search(pattern, str(refused.value))
        assert found is not None, str(refused.value)
        assert int(found[1]) in (0, 5)
        images = values
        given = {"BLACK": int(values.min()), "WHITE": int(values.max())}
        converted = eval(found[4], {"numpy": numpy, "images": images, **given})
        assert (converted.dtype, converted.shape) == (np.uint8, values.shape)
        assert np.abs(converted - BYTES).max() == 0
        fidtool.compute(real, converted, **SETTINGS)


def test_the_first_image_out_of_range_is_named(here: Run, real: Path, tmp_path: Path) -> None:
    values = BYTES.copy()
    values[7, 3, 3, 0] = 256
    np.save(tmp_path / "late.npy", values)
    for line in (("compute", real, "late.npy", "--extractor", TINY), ("check", "late.npy")):
        found = here(*line)
        assert found.status == 2
        assert re.search(
            r"late.npy\[7\] contains int64 from \d+ to 256; image values must be from 0 to 255",
            found.error,
        )


def test_small_values_of_16_bits_are_ambiguous(here: Run, real: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "small.npy", BYTES.astype(np.uint16))
    error = here("compute", real, "small.npy", "--extractor", TINY).error
    assert re.search(
        r"small.npy\[0\] contains uint16 from \d+ to 255, which may be bytes or nearly black",
        error,
    )
    assert "use images.astype('uint8'), or (images >> 8).astype('uint8')" in error


@pytest.mark.parametrize(
    ("low", "high", "remedy"),
    [
        (0, 1, "pass --value-range 0,1 if 0 is black, or --value-range -1,1 if 0 is grey"),
        (-1, 1, "pass --value-range -1,1"),
        (-1.05, 1.02, "pass --value-range -1,1"),
        (0, 255, "pass --value-range 0,255"),
        (-2.1, 2.6, "undo their normalisation, or pass --value-range LOW,HIGH"),
    ],
)
def test_the_hint_for_floats_follows_the_data(
    here: Run,
    real: Path,
    tmp_path: Path,
    environment: dict[str, str],
    low: float,
    high: float,
    remedy: str,
) -> None:
    values = (BYTES / 255 * (high - low) + low).astype(np.float32)
    np.save(tmp_path / "floats.npy", values)
    for line in (("compute", real, "floats.npy", "--extractor", TINY), ("check", "floats.npy")):
        assert re.search(
            rf"floats.npy\[0\].* contains float32 from .* unknown: {re.escape(remedy)}$",
            here(*line).error,
        )
    python = remedy.replace("--value-range LOW,HIGH", "value_range=...")
    python = re.sub(r"--value-range (\S+),(\S+)", r"value_range=(\1, \2)", python)
    for images in (values, [*values], iter(values)):
        with pytest.raises(fidtool.InputError, match=re.escape(f"unknown: {python}")):
            fidtool.compute(real, images, **SETTINGS)


def test_a_refusal_comes_before_the_first_image(
    real: Path, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """REAL's images may take hours."""
    monkeypatch.setattr(Extraction, "run", lambda *_: pytest.fail("images were processed"))
    for values in (BYTES / 255, BYTES * 2):
        for form in FORMS.keys() - {"iterable", "iterable of batches"}:
            with pytest.raises(fidtool.InputError, match=r"\[0\] contains "):
                fidtool.compute(real, FORMS[form](tmp_path, values), **SETTINGS)


def test_tensors_that_numpy_lacks(real: Path, environment: dict[str, str]) -> None:
    values = torch.rand(4, 3, 12, 12).to(torch.float8_e4m3fn)
    for images in (values, [*values]):
        with pytest.raises(
            fidtool.InputError,
            match=r"fake\[0\] cannot be converted to an array .torch.float8_e4m3fn.*: pass ",
        ):
            fidtool.compute(real, images, value_range=(0, 1), **SETTINGS)
