"""Decoding: pixels equal those of Pillow's conversion, properties are correct, and workers return the same batches."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from fidtool.cli.options import as_flag
from fidtool.errors import spelled_by
from fidtool.images.batches import PlannedBatch, cut_batches, fetch_batch
from fidtool.images.decode import DecodedImage, DecodeError, ImageProperties, decode
from fidtool.images.decoded import DecodedBatch, DecodeOptions, decode_parts, joined
from fidtool.images.loader import LoadOptions, load
from fidtool.sources.folder import list_folder
from fidtool.validation import MAX_PIXELS
from support.encoded import FILES, claim, encoded, noise
from support.pictures import make_pictures
from support.processes import PATIENCE

LOSSY = {name for name in FILES if "JPEG" in name or name == "lossy WebP"}

ALPHA = {name for name in FILES if any(word in name for word in ("LA ", "RGBA", "transparen", "alphas"))}


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


@pytest.mark.parametrize(
    ("image", "options"),
    [
        # The chunk that shows whether it is lossy comes after the alpha channel and colour profile, which may be long.
        (noise(4, 200, 200), {"quality": 80}),
        (noise(), {"quality": 80, "icc_profile": bytes(6000)}),
    ],
    ids=["long alpha", "long profile"],
)
def test_a_lossy_webp_is_detected_after_long_chunks(image: Image.Image, options: dict[str, Any]) -> None:
    assert decode(encoded(image, "WEBP", **options)).properties.lossy


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "big-endian TIFF", "PGM"])
def test_sixteen_bit_grayscale_is_scaled_not_clipped(kind: str) -> None:
    values = np.linspace(0, 65535, 40 * 50).astype(np.uint16).reshape(40, 50)
    if kind == "PGM":
        data = b"P5 50 40 65535\n" + values.astype(">u2").tobytes()
    elif kind == "big-endian TIFF":
        data = encoded(Image.frombytes("I;16B", (50, 40), values.astype(">u2").tobytes()), "TIFF")
    else:
        data = encoded(Image.fromarray(values), kind)
    found = decode(data)
    np.testing.assert_array_equal(found.pixels, np.repeat((values >> 8)[:, :, None], 3, axis=2))
    assert (found.properties.lossy, found.properties.alpha, found.properties.deep) == (False, False, True)


def test_an_eight_bit_pgm_with_an_odd_maximum_is_read_as_by_pillow() -> None:
    data = b"P5 4 1 100\n" + bytes([0, 50, 99, 100])
    found = decode(data)
    np.testing.assert_array_equal(found.pixels, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert not found.properties.deep


@pytest.mark.parametrize("data", [b"", b"\0", b"<!doctype html>", b"version https://git-lfs", b"GIF89a"])
def test_a_file_that_is_not_an_image_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError) as failed:
        decode(data)
    assert str(failed.value).strip()
    assert "\n" not in str(failed.value)
    assert ("empty" in str(failed.value)) == (not data)


@pytest.mark.parametrize("name", [name for name in FILES if name != "animated GIF"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_truncated_file_is_a_decode_error(name: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated image is an error even if a training script has configured Pillow to accept it."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(DecodeError):
        decode(FILES[name][: int(len(FILES[name]) * share)])
    assert ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.fixture
def pillows_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Sets a Pillow limit that refuses all of `FILES`, and checks that it is unchanged afterwards."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    yield 100
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("name", FILES)
def test_the_limit_is_exact_regardless_of_pillows(name: str, pillows_limit: int) -> None:
    assert decode(FILES[name], 23 * 31).pixels.shape == (23, 31, 3)
    with pytest.raises(DecodeError) as refused:
        decode(FILES[name], 23 * 31 - 1)
    assert str(refused.value).endswith(
        "713 pixels, more than the limit of 712 that protects against decompression bombs; max_pixels raises it"
    )


def test_the_default_limit_is_pillows(pillows_limit: int) -> None:
    assert MAX_PIXELS == 2 * 89_478_485
    with pytest.raises(DecodeError, match="it has 4294967296 pixels, more than the limit of 178956970 "):
        decode(claim(65536, 65536))
    with pytest.raises(DecodeError, match="truncated"):  # within fidtool's limit, but above Pillow's lowered one
        decode(claim(1000, 1000))


def test_a_webp_is_refused_before_pillow_makes_its_canvas(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(Image, "open", opened.append)
    for name in ("lossy WebP", "lossless WebP", "RGBA WebP"):
        with pytest.raises(DecodeError, match="it has 31 x 23 = 713 pixels"):
            decode(FILES[name], 100)
    assert opened == []


def test_threads_do_not_change_pillows_limit(pillows_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock, the second thread would end after the first, and restore the first thread's limit."""
    opened, in_turn, ended = Image.open, [Event(), Event()], Event()

    def slow_open(data: io.BytesIO) -> Image.Image:
        first = not in_turn[0].is_set()
        in_turn[0 if first else 1].set()
        (in_turn[1] if first else ended).wait(0.5)
        return opened(data)

    monkeypatch.setattr(Image, "open", slow_open)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(decode, FILES["PNG"], 1000)
        assert in_turn[0].wait(PATIENCE)
        other = pool.submit(decode, FILES["PNG"], 2000)
        assert one.result().pixels.size == 23 * 31 * 3
        ended.set()
        assert other.result().pixels.size == 23 * 31 * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_process_forked_while_a_thread_decodes_can_decode() -> None:
    script = f"""if True:
        import os, signal
        from fidtool.images import decode as module
        from fidtool.sources import contents
        with contents._pillow_lock:
            child = os.fork()
            if child == 0:
                signal.alarm({round(PATIENCE / 2)})
                os._exit(module.decode({FILES["PNG"]!r}).pixels.shape != (23, 31, 3))
            raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert subprocess.run([sys.executable, "-c", script], timeout=PATIENCE).returncode == 0


def test_a_lack_of_memory_is_not_blamed_on_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def starve(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", starve)
    with pytest.raises(MemoryError):
        decode(FILES["grayscale PNG"])


def all_batches(folder: Path, workers: int, size: int = 4) -> list[DecodedBatch]:
    """Returns all batches of a folder, as loaded by a single rank."""
    source = list_folder(str(folder))
    batches = [PlannedBatch(number, indices) for number, indices in enumerate(cut_batches(len(source), size))]
    whole, parts = [], []
    for part in load(source, batches, LoadOptions(DecodeOptions(), workers, patience=PATIENCE)):
        parts.append(part)
        if part.ends:
            pixels = torch.cat([torch.as_tensor(each.pixels) for each in parts])
            whole.append(replace(joined(parts), pixels=pixels))
            parts = []
    return whole


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_name_settings_as_their_rank_does(start: str, tmp_path: Path) -> None:
    """This also holds if workers are spawned, as on macOS."""
    source, before = list_folder(str(make_pictures(tmp_path / "set", 1))), multiprocessing.get_start_method()
    multiprocessing.set_start_method(start, force=True)
    try:
        with spelled_by(as_flag):
            options, batches = DecodeOptions(max_pixels=1), [PlannedBatch(0, [0])]
            (batch,) = load(source, batches, LoadOptions(options, 1, patience=PATIENCE))
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert batch.failure is not None
    assert batch.failure.message.endswith("; --max-pixels raises it")


def test_batches_are_the_same_with_and_without_workers(tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "set", 11, sides=(8, 20, 33))
    (folder / "photo.jpg").write_bytes(FILES["JPEG"])
    (folder / "alpha.png").write_bytes(FILES["RGBA PNG"])
    Image.fromarray(np.full((5, 6), 40000, np.uint16)).save(folder / "deep.png")
    alone, helped = all_batches(folder, 0), all_batches(folder, 2)
    assert [len(batch.sizes) for batch in alone] == [4, 4, 4, 2]
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one.pixels, other.pixels)
        assert one.sizes == other.sizes
        assert (one.number, one.properties, one.failure) == (other.number, other.properties, other.failure)
    assert sum((batch.properties for batch in alone), ImageProperties()) == ImageProperties(lossy=1, alpha=1, deep=1)


def test_a_batch_unpacks_to_its_images(tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "set", 7, sides=(8, 20, 33))
    images = [image for batch in all_batches(folder, 0) for image in batch.take_images(torch.Tensor.cpu)]
    expected: list[DecodedImage] = [decode(file.read_bytes()) for file in sorted(folder.iterdir())]
    assert len({image.shape for image in images}) == 3
    for image, decoded in zip(images, expected, strict=True):
        np.testing.assert_array_equal(image.numpy(), decoded.pixels)


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_does_not_change_the_global_random_state(tmp_path: Path, workers: int) -> None:
    folder = make_pictures(tmp_path / "set", 6)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    assert len(all_batches(folder, workers)) == 2
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_unreadable_image_is_named(tmp_path: Path, workers: int) -> None:
    folder = make_pictures(tmp_path / "set", 6)
    (folder / "00004.png").write_bytes(b"no image")
    (folder / "00005.png").write_bytes(b"")
    good, bad, *_ = all_batches(folder, workers)
    assert good.failure is None
    assert bad.failure.message.startswith(f"cannot decode {folder / '00004.png'}: ")
    assert bad.ends


def test_a_file_that_no_longer_exists_is_named(tmp_path: Path) -> None:
    source = list_folder(str(make_pictures(tmp_path / "set", 2)))
    (tmp_path / "set" / "00001.png").unlink()
    failure = joined(list(decode_parts(fetch_batch(source, PlannedBatch(0, range(2))), DecodeOptions()))).failure
    assert failure.message == f"cannot read {tmp_path / 'set' / '00001.png'}: No such file or directory"
