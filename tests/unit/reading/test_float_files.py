"""Files of floats and of 32-bit integers become bytes as arrays do, or are refused as arrays are;
never clipped.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.errors import render
from fidtool.reading.decode import DecodeError, DecodeOptions, decode
from fidtool.settings.settings import Settings
from fidtool.sources.arrays import to_pixels
from fidtool.sources.contents import Pixels, ValueRange
from fidtool.sources.listing import open_images
from support.command_line import Run
from support.encoded import encoded, raw_tiff
from support.pictures import make_pictures
from support.places import TINY

DEEP = np.linspace(0, 65535, 2000).reshape(40, 50).astype(np.uint16)
FLOATS = (DEEP / 65535).astype(np.float32) * 1.02 - 0.01
"""Grayscale of shape (40, 50), slightly out of 0..1."""
COLOURS = np.stack([FLOATS, FLOATS[::-1], FLOATS[:, ::-1]], axis=2)


def pfm(values: np.ndarray, order: str) -> bytes:
    """Return a PFM, whose rows are stored from the last to the first."""
    magic, scale = "Pf" if values.ndim == 2 else "PF", "-1.0" if order == "<" else "1.0"
    height, width = values.shape[:2]
    return (
        f"{magic}\n{width} {height}\n{scale}\n".encode()
        + values[::-1].astype(f"{order}f4").tobytes()
    )


FILES = {
    "TIFF": raw_tiff([FLOATS.tobytes()], bits=32, format=3),
    "big-endian TIFF": raw_tiff([FLOATS.astype(">f4").tobytes()], order=">", bits=32, format=3),
    "zipped TIFF": raw_tiff([FLOATS.tobytes()], zipped=True, bits=32, format=3),
    "Pillow's TIFF": encoded(Image.fromarray(FLOATS), "TIFF"),
    **{f"{order} PFM": pfm(FLOATS, order) for order in "<>"},
    **{f"{order} PFM in colour": pfm(COLOURS, order) for order in "<>"},
}


def wanted(values: np.ndarray, value_range: ValueRange | None) -> np.ndarray:
    read = to_pixels(values if values.ndim == 3 else values[..., None], value_range)
    assert isinstance(read, Pixels)
    return np.broadcast_to(read.values, (*values.shape[:2], 3))


@pytest.mark.parametrize("name", FILES)
def test_floats_follow_the_value_range(name: str) -> None:
    for value_range in (ValueRange(0.0, 1.0), ValueRange(-1.0, 1.0, floor=True)):
        found = decode(FILES[name], DecodeOptions(floats=value_range))
        np.testing.assert_array_equal(
            found.pixels, wanted(COLOURS if "colour" in name else FLOATS, value_range)
        )
        assert (found.properties.deep, found.properties.clipped) == (False, True)
    with pytest.raises(
        DecodeError, match=r"contains float32 from -0.01 to 1.01, .*: pass "
    ) as refused:
        decode(FILES[name])
    assert "pass value_range=(0, 1)" in render(str(refused.value))


def test_white_is_zero() -> None:
    data = raw_tiff([FLOATS.tobytes()], bits=32, format=3, photometric=0)
    found = decode(data, DecodeOptions(floats=ValueRange(0.0, 1.0)))
    np.testing.assert_array_equal(found.pixels, 255 - wanted(FLOATS, ValueRange(0.0, 1.0)))


@pytest.mark.parametrize("zipped", [False, True])
def test_unsigned_integers_of_32_bits_are_named_with_their_values(zipped: bool) -> None:
    values = DEEP.astype(np.uint32) << 16
    with pytest.raises(
        DecodeError, match=r"contains uint32 from 0 to 4294901760; .*astype\('uint8'\)"
    ):
        decode(raw_tiff([values.tobytes()], zipped=zipped, bits=32))
    small = values >> 24
    found = decode(raw_tiff([small.tobytes()], zipped=zipped, bits=32))
    np.testing.assert_array_equal(found.pixels[..., 0], small)


@pytest.mark.parametrize("order", "<>")
def test_integers_of_32_bits_must_be_bytes(order: str) -> None:
    """Also with a value range, which is about floats."""
    for values, accepted in ((DEEP >> 8, True), (DEEP, False)):
        data = raw_tiff([values.astype(f"{order}i4").tobytes()], order=order, bits=32, format=2)
        for options in (DecodeOptions(), DecodeOptions(floats=ValueRange(0.0, 65535.0))):
            if accepted:
                np.testing.assert_array_equal(
                    decode(data, options).pixels, (values[..., None]).repeat(3, 2)
                )
            else:
                with pytest.raises(
                    DecodeError,
                    match="contains int32 from 0 to 65535; image values must be from 0 to 255",
                ):
                    decode(data, options)


@pytest.mark.parametrize("order", "<>")
def test_signed_integers_must_be_bytes(order: str) -> None:
    for bits in (8, 16):
        values = (DEEP >> 8).astype(np.int16) >> (bits == 8)
        tags: Any = {"order": order, "bits": bits, "format": 2}
        found = decode(raw_tiff([values.astype(f"{order}i{bits // 8}").tobytes()], **tags))
        np.testing.assert_array_equal(found.pixels, values[..., None].repeat(3, 2))
        refused = values - (100 if bits == 8 else 20000)
        problem = (
            f"contains int{bits} from {refused.min()} to {refused.max()}; image values must be "
            "from 0 to 255: .* use "
        )
        with pytest.raises(DecodeError, match=problem):
            decode(raw_tiff([refused.astype(f"{order}i{bits // 8}").tobytes()], **tags))


@pytest.mark.parametrize("zipped", [False, True])
def test_small_values_of_16_bits_may_be_bytes(zipped: bool) -> None:
    """Not those of a PNG, which defines white."""
    dark = Image.fromarray(DEEP >> 8)
    in_tiff = raw_tiff([(DEEP >> 8).tobytes()], zipped=zipped, bits=16)
    for content in (in_tiff, dark):
        with pytest.raises(
            DecodeError, match="contains uint16 from 0 to 255, which may be bytes or nearly black"
        ):
            decode(content)
    for black in (encoded(dark), raw_tiff([bytes(4000)], bits=16)):
        assert (decode(black).pixels.max(), decode(black).properties.deep) == (0, True)


def test_floats_that_pillow_cannot_read() -> None:
    data = raw_tiff([COLOURS.tobytes()], bits=[32] * 3, photometric=2, channels=3, format=[3] * 3)
    double = raw_tiff([FLOATS.astype("f8").tobytes()], bits=64, format=3)
    for each in (data, double):
        with pytest.raises(
            DecodeError,
            match=r"or has floats of a kind that Pillow cannot read \(save an array, .npy\)",
        ):
            decode(each, DecodeOptions(floats=ValueRange(0.0, 1.0)))


def test_pillow_images_in_memory() -> None:
    images = [Image.fromarray(FLOATS + number / 100) for number in range(4)]
    settings = {"extractor": TINY, "cache": False}
    arrays = [np.asarray(image)[..., None] for image in images]
    found = fidtool.compute(arrays, images, value_range=(0, 2), **settings)
    assert found.frechet_distance == pytest.approx(0, abs=1e-12)
    assert not found.run.warnings
    with pytest.raises(fidtool.InputError, match=r"contains float32 .* pass value_range=\(0, 1\)"):
        fidtool.compute(arrays, images, **settings)


def test_folders_of_floats(here: Run, tmp_path: Path) -> None:
    """They are cached by their value range; files whose names say that they have none are not
    scanned for floats.
    """
    make_pictures(tmp_path / "real", 12)
    (tmp_path / "fake").mkdir()
    for number in range(12):
        (tmp_path / f"fake/{number}.pfm").write_bytes(pfm(COLOURS + number / 100, "<"))
    line = ("compute", "real", "fake", "--extractor", TINY, "--json")
    refused = here(*line)
    assert refused.status == 2
    assert "contains float32 from " in refused.error
    assert "pass --value-range 0,1" in refused.error
    (tmp_path / "fake/0.pfm").touch()  # older files are cached
    one, other = (here(*line, "--value-range", f"0,{white}") for white in (2, 4))
    assert one.fid != other.fid
    again = here(*line, "--value-range", "0,2")
    assert (again.fid, "no effect" in again.stderr) == (one.fid, False)
    floor = here(*line, "--value-range", "0,2", "--float-to-byte", "floor")
    assert floor.fid != one.fid
    report = here(
        "compute",
        "real",
        "fake",
        "--extractor",
        TINY,
        "--value-range",
        "0,2",
        "--report",
        "page.html",
    )
    assert report.status == 0, report.stderr
    assert "values of black and white" not in (tmp_path / "page.html").read_text()
    (tmp_path / "fake/0.pfm").rename(tmp_path / "fake/0.png")
    hidden = here(*line, "--value-range", "0,2")
    assert (
        "0.png: it contains floats, which the name of its file does not show: rename it to .tif "
        "or .pfm" in hidden.error
    )
    assert "contains float32 from" in here("check", "fake").error
    assert "11 images" in here("check", "fake", "--value-range", "0,2").stdout


def test_files_without_floats_keep_their_cached_statistics(here: Run, tmp_path: Path) -> None:
    make_pictures(tmp_path / "real", 3)
    images = open_images(str(tmp_path / "real"))
    floats = Settings(value_range=(0, 1)).floats
    assert replace(images, floats=floats).identity() == images.identity()
    (tmp_path / "real/00000.png").rename(tmp_path / "real/00000.tif")
    images = open_images(str(tmp_path / "real"))
    assert replace(images, floats=floats).identity() != images.identity()


def test_floats_without_a_range_are_not_skipped(here: Run, tmp_path: Path) -> None:
    """Skipping cannot help where an option is missing."""
    make_pictures(tmp_path / "real", 12)
    Image.fromarray(FLOATS).save(tmp_path / "real/0.tif")
    for more in ((), ("--on-error", "skip")):
        found = here("compute", "real", "real", "--extractor", TINY, *more)
        assert (found.status, "skip" in found.error) == (2, False)
        assert "0.tif: it contains float32 from -0.01 to 1.01" in found.error
        assert "pass --value-range 0,1" in found.error
