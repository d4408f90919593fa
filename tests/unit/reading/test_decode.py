"""Decoding: pixels equal those of Pillow's conversion, properties are correct, and workers return
the same batches.
"""

from __future__ import annotations

import io
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image, ImageFile

from fidtool.diagnose.findings import property_findings, property_warnings
from fidtool.errors import FidtoolError, option
from fidtool.reading.batches import Batch, cut_batches
from fidtool.reading.decode import DecodeError, DecodeOptions, ImageProperties, decode
from fidtool.reading.loader import Piece, load_pieces
from fidtool.reading.records import ImageRecords, make_records
from fidtool.sources.contents import Pixels
from fidtool.sources.listing import list_folder
from fidtool.validation import MAX_PIXELS
from support.encoded import FILES, claim, encoded, tiff
from support.pictures import load_whole, make_pictures
from support.processes import PATIENCE

LOSSY = {name for name in FILES if "JPEG" in name or name == "lossy WebP"}

ALPHA = {
    name for name in FILES if any(word in name for word in ("LA ", "RGBA", "transparen", "alphas"))
}


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_pillows_conversion_to_rgb(name: str) -> None:
    with Image.open(io.BytesIO(FILES[name])) as image:
        expected = np.asarray(image.convert("RGB"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode(FILES[name])
    assert found.pixels.dtype == np.uint8
    assert found.pixels.shape == (23, 31, 3)
    np.testing.assert_array_equal(found.pixels, expected)
    seen = found.properties
    assert (seen.lossy, seen.alpha, seen.deep) == (name in LOSSY, name in ALPHA, False)
    assert (seen.animated, seen.rotated) == ("animated" in name, "rotated" in name)


def photo(channels: int) -> np.ndarray[Any, Any]:
    """Return noise of all values in each channel, of which a fourth is no transparency."""
    return np.random.RandomState(1).randint(0, 256, (30, 20, channels)).astype(np.uint8)


BANDS = {
    "unspecified": (tiff(photo(4), [0]), 4),
    "two unspecified": (tiff(photo(5), [0, 0]), 5),
    "alpha and another": (tiff(photo(6), [2, 0, 0]), 6),
    "infrared as alpha": (tiff(photo(4), [2]), 4),
    "16 bits": (tiff(photo(4).astype(np.uint16) << 8, [0]), 4),
    "gray and another": (tiff(photo(2), [0], photometric=1), 2),
    "inks": (tiff(photo(5), [0], photometric=5), 5),
    "an array": (Pixels(photo(4)), 4),
    "a Pillow image": (Image.fromarray(photo(4)), 4),
    "alpha in PNG": (encoded(photo(4)), 0),
    "an opaque array": (Pixels(np.dstack([photo(3), np.full((30, 20), 255, np.uint8)])), 0),
    "an array on a mask": (Pixels(np.dstack([photo(3), np.uint8(255) * (photo(1) > 90)])), 0),
    "a veiled array": (Pixels(np.dstack([photo(3), np.full((30, 20), 128, np.uint8)])), 0),
}


@pytest.mark.parametrize("case", BANDS)
def test_bands_besides_colour_and_transparency_are_counted(case: str) -> None:
    if case == "gray and another" and int(PIL.__version__.partition(".")[0]) < 13:
        pytest.skip("Pillow before 13 does not read gray TIFF files with another band")
    content, bands = BANDS[case]
    image = decode(content)
    assert (image.properties.bands, image.properties.most_bands) == (bool(bands), bands)
    assert ("+" in image.mode) == bool(bands)
    if case in ("unspecified", "an array", "infrared as alpha"):
        np.testing.assert_array_equal(image.pixels, photo(4)[..., :3])
    if not bands:
        assert image.properties.alpha == (case != "an opaque array")
    records = make_records([image, decode(FILES["PNG"])])
    findings = property_findings(ImageRecords(records, ["a", "b"]))
    assert [
        f"(up to {bands} in all)" in finding.message
        for finding in findings
        if finding.code == "bands"
    ] == [True] * bool(bands)


def test_a_band_can_look_like_transparency_in_some_images() -> None:
    infrared, masked = photo(4), np.dstack([photo(3), np.uint8(255) * (photo(1) > 90)])
    images = [decode(tiff(bands, [2])) for bands in (infrared, masked, infrared)]
    assert [(image.properties.bands, image.properties.alpha) for image in images] == [
        (1, 0),
        (0, 1),
        (1, 0),
    ]
    findings = property_findings(ImageRecords(make_records(images), ["a", "b", "c"]))
    assert [(finding.code, finding.count) for finding in findings] == [("alpha", 1), ("bands", 2)]
    same = property_warnings(vars(ImageProperties.total(image.properties for image in images)))
    assert {finding.code: finding.message for finding in findings} == same


@pytest.mark.parametrize(("bands", "dtype"), [(4, np.uint8), (8, np.uint16)])
def test_a_tiff_whose_bands_pillow_cannot_read_is_named(bands: int, dtype: type) -> None:
    """Such as those of satellites: gray with further bands, and more than six."""
    with pytest.raises(DecodeError, match=r"has more bands than Pillow reads \(save 3 as RGB\)"):
        decode(tiff(photo(bands).astype(dtype), [0] * (bands - 1), photometric=1))


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"<!doctype html>", b"version https://git-lfs", b"GIF89a"]
)
def test_a_file_that_is_not_an_image_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError) as failed:
        decode(data)
    assert str(failed.value).strip()
    assert "\n" not in str(failed.value)
    assert ("empty" in str(failed.value)) == (not data)


@pytest.mark.parametrize("name", [name for name in FILES if name != "animated GIF"])
def test_a_truncated_file_is_a_decode_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated image is an error even if a training script has configured Pillow to accept
    it.
    """
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for share in (0.1, 0.8):
        with pytest.raises(DecodeError):
            decode(FILES[name][: int(len(FILES[name]) * share)])
    assert ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.fixture
def pillows_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Sets a Pillow limit that refuses all of `FILES`, and checks that it is unchanged
    afterwards.
    """
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    yield 100
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("name", FILES)
def test_the_limit_is_exact_regardless_of_pillows(name: str, pillows_limit: int) -> None:
    assert decode(FILES[name], DecodeOptions(max_pixels=23 * 31)).pixels.shape == (23, 31, 3)
    with pytest.raises(DecodeError) as refused:
        decode(FILES[name], DecodeOptions(max_pixels=23 * 31 - 1))
    assert str(refused.value).endswith(
        "713 pixels, more than the limit of 712 that protects against decompression bombs; "
        f"{option('max_pixels')} raises it"
    )


def test_the_default_limit_is_pillows(pillows_limit: int) -> None:
    assert MAX_PIXELS == 2 * 89_478_485
    with pytest.raises(
        DecodeError, match="it has 4294967296 pixels, more than the limit of 178956970 "
    ):
        decode(claim(65536, 65536))
    # Within fidtool's limit, but above Pillow's lowered one.
    with pytest.raises(DecodeError, match="truncated"):
        decode(claim(1000, 1000))


def test_a_webp_above_the_limit_is_refused() -> None:
    for name in ("lossy WebP", "lossless WebP", "RGBA WebP"):
        with pytest.raises(DecodeError, match=r"it has (31 x 23 = )?713 pixels"):
            decode(FILES[name], DecodeOptions(max_pixels=100))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_process_forked_while_a_thread_decodes_can_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Image.open
    decodes, forked = threading.Event(), threading.Event()

    def wait_for_the_fork(file: Any) -> Image.Image:
        decodes.set()
        assert forked.wait(PATIENCE)
        return opened(file)

    monkeypatch.setattr(Image, "open", wait_for_the_fork)
    thread = threading.Thread(target=decode, args=(FILES["PNG"],))
    thread.start()
    assert decodes.wait(PATIENCE)
    child = os.fork()
    forked.set()
    if child == 0:
        signal.alarm(round(PATIENCE / 2))
        os._exit(decode(FILES["PNG"]).pixels.shape != (23, 31, 3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()


def all_batches(folder: Path, workers: int, size: int = 4) -> list[Piece]:
    """Returns all batches of a folder, as loaded by a single rank."""
    source = list_folder(str(folder))
    batches = [
        Batch(number, indices) for number, indices in enumerate(cut_batches(len(source), size))
    ]
    return load_whole(source, batches, DecodeOptions(), workers)


def test_workers_do_not_decide_how_settings_are_named(tmp_path: Path) -> None:
    source = list_folder(str(make_pictures(tmp_path / "set", 1)))
    options, batches = DecodeOptions(max_pixels=1), [Batch(0, [0])]
    with pytest.raises(FidtoolError) as caught:
        list(load_pieces(source, batches, options, 1, PATIENCE))
    assert caught.value.stated.endswith(f"; {option('max_pixels')} raises it")


def test_batches_are_the_same_with_and_without_workers(tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "set", 11, sides=(8, 20, 33))
    (folder / "photo.jpg").write_bytes(FILES["JPEG"])
    (folder / "alpha.png").write_bytes(FILES["RGBA PNG"])
    Image.fromarray(np.full((5, 6), 40000, np.uint16)).save(folder / "deep.png")
    alone, helped = all_batches(folder, 0), all_batches(folder, 2)
    assert [batch.count for batch in alone] == [4, 4, 4, 2]
    for one, other in zip(alone, helped, strict=True):
        assert np.array_equal(one.pixels, other.pixels)
        assert one.sizes == other.sizes
        assert (one.number, one.properties) == (other.number, other.properties)
    total = ImageProperties.total(batch.properties for batch in alone)
    assert total == ImageProperties(lossy=1, alpha=1, deep=1)
