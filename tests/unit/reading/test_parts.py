"""Large images are passed on before their batch is decoded, so that few bytes are in memory; images
on a GPU.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fidtool
from fidtool.errors import FidtoolError, RunError
from fidtool.reading import loader
from fidtool.reading.batches import Batch, plan_batches
from fidtool.reading.decode import DecodedImage, DecodeOptions, ImageProperties, decode
from fidtool.reading.loader import Piece, load_pieces
from fidtool.reading.workers import Workers
from fidtool.run.extract import split_images
from fidtool.sources.contents import Pixels
from fidtool.sources.image_set import ImageSet
from fidtool.sources.listing import list_folder
from fidtool.sources.memory import Images
from support.encoded import FILES
from support.pictures import load_whole, make_pictures
from support.places import TINY
from support.processes import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def workers_end() -> Iterator[None]:
    """Checks that no worker is left: as a fork, it would keep files of this process open."""
    yield
    wait_until(lambda: not multiprocessing.active_children(), "a worker is left")


PHOTO = (3000, 4000)
PHOTO_BYTES = 3000 * 4000 * 3


def photo() -> DecodedImage:
    return DecodedImage(
        np.zeros((*PHOTO, 3), dtype=np.uint8), ImageProperties(lossy=1), "JPEG", "RGB", 90
    )


@pytest.mark.parametrize("form", ["folder", "iterable"])
def test_photos_of_12_megapixels_in_flight(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes decoded by all workers and not yet used, while the consumer is slow."""
    decoded = multiprocessing.Value("q", 0)

    def counting(*_: object) -> DecodedImage:
        with decoded.get_lock():
            decoded.value += PHOTO_BYTES
        return photo()

    # Workers are forks, so it applies to them.
    monkeypatch.setattr(loader, "decode_content", counting)
    count, options = 2, DecodeOptions()
    used, most, images = 0, 0, 0

    def use(batch: Piece) -> None:
        nonlocal used, most, images
        before = -1
        while before != decoded.value:  # until the workers wait
            before = decoded.value
            time.sleep(0.05)
        most = max(most, decoded.value - used)
        used += batch.pixels.nbytes
        images += len(batch.sizes)

    if form == "folder":
        source = list_folder(str(make_pictures(tmp_path / "set", 24)))
        batches = [Batch(number, range(8 * number, 8 * number + 8)) for number in range(3)]
        loaded = load_pieces(source, batches, options, count, PATIENCE)
    else:
        photos = (
            Batch(number, range(8 * number, 8 * number + 8), contents=[("", b"photo")] * 8)
            for number in range(3)
        )
        loaded = load_pieces(None, photos, options, count, PATIENCE)
    for batch in loaded:
        use(batch)
    assert images == 24
    assert most <= count * 4 * PHOTO_BYTES, (
        "at most three photos per worker, and the one being used"
    )
    assert most > PHOTO_BYTES, "the workers are ahead"


@pytest.mark.parametrize(("workers", "limit"), [(0, 1), (2, 3000)])
def test_resizing_images_early_does_not_change_the_features(
    workers: int,
    limit: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
) -> None:
    real, fake = (
        str(make_pictures(tmp_path / name, 21, seed)) for seed, name in enumerate(("real", "fake"))
    )
    usual = fidtool.compute(real, fake, extractor=TINY, batch_size=4, cache=False)
    monkeypatch.setattr(loader, "AT_ONCE_BYTES", limit)
    found = fidtool.compute(
        real, fake, extractor=TINY, batch_size=4, num_workers=workers, cache=False
    )
    assert found.results == usual.results
    assert found.run.forward_passes == usual.run.forward_passes == 12


@pytest.mark.parametrize("metrics", ["fid", "fid,psnr"])
def test_a_run_gives_buffers_back(
    metrics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    """The pixels of a batch, and those of its partner, are in memory until they are resized."""
    real, fake = (
        str(make_pictures(tmp_path / name, 80, seed)) for seed, name in enumerate(("real", "fake"))
    )
    usual = fidtool.compute(
        real, fake, metrics=metrics, extractor=TINY, batch_size=2, num_workers=0, cache=False
    )
    made: list[int] = []
    end = Workers.end

    def ending(self: Any) -> None:
        made.extend(worker.buffers for worker in self._workers)
        end(self)

    monkeypatch.setattr(Workers, "end", ending)
    found = fidtool.compute(
        real, fake, metrics=metrics, extractor=TINY, batch_size=2, num_workers=2, cache=False
    )
    assert found.results == usual.results
    assert 0 < max(made) < 20, "each worker decodes 20 batches"


def colours(source: ImageSet | None, batches: Iterable[Batch], workers: int) -> list[int]:
    """Returns the colour of each image, whose batches must be complete; large images must be passed
    on one by one.
    """
    found: list[int] = []
    for piece in load_pieces(source, batches, DecodeOptions(), workers, PATIENCE):
        assert len(piece.sizes) == 1 or piece.sizes[0] != (8, 8)
        images = split_images(torch.from_numpy(piece.pixels), piece.sizes)
        found.extend(int(image[0, 0, 0]) for image in images)
        piece.free()
        if piece.last:
            assert len(found) == sum(
                len(batch.images) for batch in batches if batch.number <= piece.number
            )
    return found


class OnGpu:
    """An image on a GPU: only this process can copy it."""

    device = torch.device("cuda")

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self.pixels, self.process = pixels, os.getpid()

    def detach(self) -> OnGpu:
        return self

    def cpu(self) -> torch.Tensor:
        if os.getpid() != self.process:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
        return torch.from_numpy(self.pixels.copy())


def test_images_on_a_gpu_reach_the_workers() -> None:
    pixels = [np.full((6, 6, 3), number, np.uint8) for number in range(6)]
    on_gpu = [
        OnGpu(pixels[1]),
        (OnGpu(pixels[2]), 3),
        *({"image": OnGpu(each), "label": 3} for each in pixels[3:]),
    ]
    source = Images([pixels[0], *on_gpu], name="real").image_set(None)
    batches = plan_batches(source, 2)
    assert sorted(colours(source, batches, 2)) == list(range(6))


def test_a_dataset_that_returns_images_on_a_gpu_is_told_what_to_do() -> None:
    class Dataset:
        def __init__(self) -> None:
            self.image = OnGpu(np.zeros((6, 6, 3), np.uint8))

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> OnGpu:
            return self.image

    source = Images(Dataset(), name="real").image_set(None)
    with pytest.raises(FidtoolError, match=r": return tensors on the CPU, or pass num_workers=0$"):
        list(load_pieces(source, [Batch(0, range(1))], DecodeOptions(), 1, PATIENCE))
    (here,) = load_whole(source, [Batch(0, range(2))], DecodeOptions(), 0)
    assert here.count == 2


def contents(count: int) -> list[Any]:
    """Images in every form that an iterable may yield, and one that cannot be decoded."""
    pixels = [np.full((number % 3 + 1, 4, 3), number, np.uint8) for number in range(count + 1)]
    gray = Pixels(np.full((2, 2, 1), 9, np.uint8), clipped=True)
    return [
        *map(Pixels, pixels),
        FILES["JPEG"],
        b"no image",
        Image.fromarray(pixels[0]),
        gray,
        OSError(5, "I/O error"),
    ]


def test_images_of_an_iterable_are_the_same_through_workers() -> None:
    def batches() -> Iterator[Batch]:
        for number in range(6):
            some = contents(number)
            if number == 0:  # decides whether the workers decode
                some = [content for content in some if isinstance(content, bytes)]
            files = [f"fake[{number}.{place}]" for place in range(len(some))]
            yield Batch(number, range(len(some)), contents=list(zip(files, some, strict=True)))

    def found(workers: int) -> list[Piece]:
        options = DecodeOptions(skip=True, records=True)
        return load_whole(None, batches(), options, workers)

    alone, helped = (found(workers) for workers in (0, 2))
    assert len(alone) == len(helped) == 6
    for one, other in zip(alone, helped, strict=True):
        assert one.sizes == other.sizes
        assert one.properties == other.properties
        assert one.skipped == other.skipped
        assert len(one.skipped) == (2 if one.number else 1)
        assert one.records.tobytes() == other.records.tobytes()
        assert np.array_equal(np.asarray(one.pixels), np.asarray(other.pixels))


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of torch.cuda fail in forks, as they do once this process has used a GPU."""
    here = os.getpid()

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() != here:
                raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
            return function(*args, **kwargs)

        return call

    for name in torch.cuda.__all__:
        function = getattr(torch.cuda, name, None)
        if isinstance(function, types.FunctionType):
            monkeypatch.setattr(torch.cuda, name, guarded(function))
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: os.getpid() != here)


@pytest.mark.usefixtures("poisoned", "environment")
@pytest.mark.parametrize("form", ["list", "iterable"])
def test_workers_do_not_touch_cuda(form: str, tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "real", 12)
    pixels = [decode(file.read_bytes()).pixels for file in sorted(folder.iterdir())]
    on_gpu = map(OnGpu, pixels)
    given = list(on_gpu) if form == "list" else on_gpu
    evaluation = fidtool.compute(
        given, folder, extractor=TINY, num_workers=2, batch_size=4, cache=False
    )
    assert evaluation.run.num_workers == 2
    assert evaluation.results[0].real.count == 12
    poisoned: Workers[int, int] = Workers(lambda *_: torch.cuda.current_device(), 1, PATIENCE)
    poisoned.send(0)
    with pytest.raises(RunError, match="forked"):
        poisoned.receive()
    poisoned.end()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_of_two_problems_is_reported(workers: int) -> None:
    """An iterable raises after it has yielded an image that cannot be decoded, but before that is
    known.
    """

    def batches(then_bad: bool) -> Iterator[Batch]:
        yield Batch(0, [0], contents=[("good", FILES["JPEG"])])
        if then_bad:
            yield Batch(1, [1], contents=[("bad", b"no image")])
        raise ValueError("later")

    for then_bad, error in ((True, FidtoolError), (False, ValueError)):
        loaded = load_pieces(None, batches(then_bad), DecodeOptions(), workers, PATIENCE)
        assert next(loaded).count == 1
        with pytest.raises(error):
            next(loaded)


@pytest.mark.parametrize("form", ["folder", "iterable"])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_become_larger_are_passed_on_one_by_one(
    form: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "AT_ONCE_BYTES", 3 * 64)
    for number in range(16):
        side = 2 if number < 8 else 8
        Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(
            tmp_path / f"{number:02}.png"
        )
    source = list_folder(str(tmp_path))
    batches = [Batch(number, range(8 * number, 8 * number + 8)) for number in range(2)]
    if form == "folder":
        assert colours(source, batches, workers) == list(range(16))
    else:
        read = [
            each._replace(contents=list(zip("abcdefgh", source.read(each.images), strict=True)))
            for each in batches
        ]
        assert colours(None, read, workers) == list(range(16))


def test_a_path_that_cannot_be_read_is_named() -> None:
    source = Images(["no/such.png"], name="fake").image_set(None)
    message = r"^cannot read fake\[0\]: No such file or directory: 'no/such.png'; fix the file, or pass on_error='skip'$"
    with pytest.raises(FidtoolError, match=message):
        list(load_pieces(source, [Batch(0, [0])], DecodeOptions()))
