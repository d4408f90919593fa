"""Batches of large images are decoded, sent and resized in parts, so that few bytes are in memory at a time."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fidtool
from fidtool.errors import InputError, RunError
from fidtool.features.extractor import Stages, side_by_side
from fidtool.images import decode as decoding
from fidtool.images import decoded, loader
from fidtool.images.batches import FetchedBatch, PlannedBatch, plan_batches
from fidtool.images.decode import DecodedImage, ImageProperties, decode
from fidtool.images.decoded import PART_BYTES, DecodedBatch, DecodeOptions, decode_parts, joined, whole_batches
from fidtool.images.loader import LoadOptions, load, load_stream
from fidtool.images.workers import Workers
from fidtool.sources.contents import Pixels
from fidtool.sources.folder import list_folder
from fidtool.sources.memory import Images
from support.encoded import FILES
from support.pictures import make_pictures
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
    return DecodedImage(np.zeros((*PHOTO, 3), dtype=np.uint8), ImageProperties(lossy=1), "JPEG", "RGB", 90)


def test_a_batch_of_photos_is_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_result", lambda *_: photo())
    batch = FetchedBatch(7, ["a", "b", "c"], [b""] * 3)
    parts = list(decode_parts(batch, DecodeOptions()))
    assert [(part.number, len(part.sizes), part.ends) for part in parts] == [(7, 1, False), (7, 1, False), (7, 1, True)]
    whole = joined(parts)
    assert (len(whole.sizes), whole.properties.lossy, whole.ends) == (3, 3, True)
    without = decode_parts(batch, DecodeOptions(pixels=False))
    assert [len(part.pixels) for part in without] == [0, 0, 0], "pixels that are not needed are not sent"


@pytest.mark.parametrize("form", ["folder", "iterable"])
def test_photos_of_12_megapixels_in_flight(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes decoded by all workers and not yet used, while the consumer is slow."""
    decoded = multiprocessing.Value("q", 0)

    def counted(*_: object) -> DecodedImage:
        with decoded.get_lock():
            decoded.value += PHOTO_BYTES
        return photo()

    monkeypatch.setattr(decoding, "_result", counted)  # workers are forks, so it applies to them
    count, options = 2, LoadOptions(DecodeOptions(), 2, patience=PATIENCE)
    if form == "folder":
        source = list_folder(str(make_pictures(tmp_path / "set", 48)))
        parts = load(
            source, [PlannedBatch(number, range(16 * number, 16 * number + 16)) for number in range(3)], options
        )
    else:
        parts = load_stream((FetchedBatch(number, [""] * 16, [b"photo"] * 16) for number in range(3)), options)
    used, most, images = 0, 0, 0
    for part in parts:
        before = -1
        while before != decoded.value:  # until the workers wait
            before = decoded.value
            time.sleep(0.05)
        most = max(most, decoded.value - used)
        used += sum(height * width * 3 for height, width in part.sizes)
        images += len(part.sizes)
    assert images == 48
    assert most <= count * 4 * PHOTO_BYTES, "at most three parts per worker, and the one being used"
    assert most > PHOTO_BYTES, "the workers are ahead"


def test_workers_share_a_batch_of_photos_and_not_one_of_thumbnails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = list_folder(str(make_pictures(tmp_path, 64)))

    def sizes(side: int) -> list[int]:
        square = replace(photo(), pixels=np.zeros((side, side, 3), dtype=np.uint8))
        monkeypatch.setattr(decoding, "_result", lambda *_: square)  # workers are forks, so it applies to them
        batches = [PlannedBatch(number, indices) for number, indices in enumerate(plan_batches(source, 32))]
        return [len(part.sizes) for part in load(source, batches, LoadOptions(DecodeOptions(), 2, patience=PATIENCE))]

    # The sizes are unknown until the first images are decoded, when each worker already has its next task.
    assert sizes(32) == [1, 1, 1, 1, 1, 27, 32]
    large = sizes(1200)
    assert sum(large) == 64
    assert max(large) == PART_BYTES // (1200 * 1200 * 3) == 3


def test_parts_are_in_order_and_workers_wait() -> None:
    """A worker computes only one result more while one waits to be received."""
    computed = multiprocessing.Value("i", 0)

    def several(task: int) -> Iterator[tuple[int, int]]:
        for number in range(5):
            with computed.get_lock():
                computed.value += 1
            yield task, number

    results = Workers(several, range(4), 2, PATIENCE)
    first = next(results)
    time.sleep(0.2)
    assert computed.value <= 5, "of 20"
    assert [first, *results] == [(task, number) for task in range(4) for number in range(5)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("limit", [1, 3000, PART_BYTES])
def test_parts_do_not_change_the_features(
    workers: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    real, fake = (str(make_pictures(tmp_path / name, 21, seed)) for seed, name in enumerate(("real", "fake")))
    usual = fidtool.compute(real, fake, extractor=TINY, batch_size=4, cache=False)
    for module in (decoded, loader):
        monkeypatch.setattr(module, "PART_BYTES", limit)
    found = fidtool.compute(real, fake, extractor=TINY, batch_size=4, num_workers=workers, cache=False)
    assert found.results == usual.results
    assert found.run.forward_passes == usual.run.forward_passes == 12


def stages(calls: list[tuple[str, int]], fail: int | None = None) -> Stages[int, int, list[int]]:
    """Parts are numbers; those divisible by 3 are the last of their batch, and those divisible by 5 have no images."""

    def prepare(part: int) -> int | None:
        calls.append((threading.current_thread().name, part))
        if part == fail:
            raise ValueError(part)
        return None if part % 5 == 0 else part

    return Stages(prepare, list, lambda part: part % 3 == 0)


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_batches_of_parts_are_complete_and_in_order(threads: int, in_turns: bool) -> None:
    calls: list[tuple[str, int]] = []
    parts = [1, 2, 3, 6, 4, 5, 9, 15, 10, 30]
    found = list(side_by_side(iter(parts), stages(calls), threads, lambda: False, in_turns))
    batches = [([1, 2, 3], [1, 2, 3]), ([6], [6]), ([4, 5, 9], [4, 9]), ([15], None), ([10, 30], None)]
    assert found == batches
    others = {name for name, _ in calls} - {threading.current_thread().name}
    assert len(others) <= threads
    assert bool(others) is (threads > 0)
    with pytest.raises(ValueError, match="4"):
        list(side_by_side(iter(parts), stages(calls, fail=4), threads, lambda: False, in_turns))


def test_without_threads_a_part_is_processed_before_the_next_is_read() -> None:
    """On a GPU, the photos of an iterable's batch are not all in memory."""
    calls: list[tuple[str, int]] = []

    def parts() -> Iterator[int]:
        for part in range(1, 7):
            assert len(calls) == part - 1
            yield part

    assert len(list(side_by_side(parts(), stages(calls), 0, lambda: False, in_turns=True))) == 2


class OnGpu:
    """An image on a GPU: only this process can copy it."""

    device = torch.device("cuda")

    def __init__(self, pixels: NDArray[np.uint8], message: str = "CUDA error") -> None:
        self.pixels, self.process, self.message = pixels, os.getpid(), message

    def detach(self) -> OnGpu:
        return self

    def cpu(self) -> torch.Tensor:
        if os.getpid() != self.process:
            raise RuntimeError(self.message)
        return torch.from_numpy(self.pixels.copy())


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, 3), lambda x: {"image": x, "label": 3}])
def test_images_on_a_gpu_reach_the_workers(wrap: Callable[[OnGpu], Any]) -> None:
    pixels = [np.full((6, 6, 3), number, np.uint8) for number in range(6)]
    on_gpu = [wrap(OnGpu(each)) for each in pixels]
    source = Images([pixels[0], *on_gpu[1:]], name="real").image_set(None)
    batches = [PlannedBatch(number, indices) for number, indices in enumerate(plan_batches(source, 2))]
    parts = load(source, batches, LoadOptions(DecodeOptions(), 2, patience=PATIENCE))
    found = sorted(int(image[0, 0, 0]) for part in parts for image in part.take_images(lambda x: x))
    assert found == list(range(6))


@pytest.mark.parametrize("message", ["Cannot re-initialize CUDA in forked subprocess.", "CUDA error: initialization"])
def test_a_dataset_that_returns_images_on_a_gpu_is_told_what_to_do(message: str) -> None:
    class Dataset:
        def __init__(self) -> None:
            self.image = OnGpu(np.zeros((6, 6, 3), np.uint8), message)

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> OnGpu:
            return self.image

    source = Images(Dataset(), name="real").image_set(None)
    (part,) = load(source, [PlannedBatch(0, range(1))], LoadOptions(DecodeOptions(), 1, patience=PATIENCE))
    assert part.failure is not None
    assert part.failure.message.endswith(": return tensors on the CPU, or pass num_workers=0")
    (here,) = load(source, [PlannedBatch(0, range(2))], LoadOptions(DecodeOptions(), 0, patience=PATIENCE))
    assert len(here.sizes) == 2


def contents(count: int) -> list[Any]:
    """Images in every form that an iterable may yield, and one that cannot be decoded."""
    pixels = [np.full((number % 3 + 1, 4, 3), number, np.uint8) for number in range(count + 1)]
    gray = Pixels(np.full((2, 2, 1), 9, np.uint8), clipped=True)
    return [*map(Pixels, pixels), FILES["JPEG"], b"no image", Image.fromarray(pixels[0]), gray, OSError(5, "I/O error")]


def whole(parts: list[DecodedBatch]) -> list[DecodedBatch]:
    """Returns the batches with all their pixels."""
    pixels: dict[int, list[NDArray[np.uint8]]] = {}
    for part in parts:
        pixels.setdefault(part.number, []).append(np.asarray(part.pixels))
    return [replace(batch, pixels=np.concatenate(pixels[batch.number])) for batch in whole_batches(parts)]


@pytest.mark.parametrize("room", [True, False])
def test_images_of_an_iterable_are_the_same_through_workers(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_fits", lambda *_: room)
    monkeypatch.setattr(loader, "_PIPE_BYTES", 0)

    started: list[int] = []

    class Counted(Workers[Any, Any]):
        def __init__(self, work: Any, tasks: Any, count: int, patience: float) -> None:
            started.append(count)
            super().__init__(work, tasks, count, patience)

    monkeypatch.setattr(loader, "Workers", Counted)

    def batches() -> Iterator[FetchedBatch]:
        for number in range(6):
            some = contents(number)
            if number == 0:  # decides whether the workers decode
                some = [content for content in some if isinstance(content, bytes)]
            yield FetchedBatch(number, [f"fake[{number}.{place}]" for place in range(len(some))], some)

    def found(workers: int) -> list[DecodedBatch]:
        options = DecodeOptions(skip=True, records=True)
        return list(load_stream(batches(), LoadOptions(options, workers, patience=PATIENCE, complain=lambda _: None)))

    alone, helped = (whole(found(workers)) for workers in (0, 2))
    assert len(alone) == len(helped) == 6
    assert started == [2]
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
@pytest.mark.parametrize("form", ["folder", "list", "iterable"])
def test_workers_do_not_touch_cuda(form: str, tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "real", 12)
    pixels = [decode(file.read_bytes()).pixels for file in sorted(folder.iterdir())]
    forms: dict[str, Any] = {"folder": folder, "list": list(map(OnGpu, pixels)), "iterable": map(OnGpu, pixels)}
    evaluation = fidtool.compute(forms[form], folder, extractor=TINY, num_workers=2, batch_size=4, cache=False)
    assert evaluation.run.num_workers == 2
    assert evaluation.results[0].real.count == 12
    poisoned = Workers(lambda _: [torch.cuda.current_device()], [0], 1, PATIENCE)
    with pytest.raises(RunError, match="forked"):
        next(poisoned)
    poisoned.end()


@pytest.mark.parametrize("array", [True, False])
def test_arrays_of_an_iterable_are_not_sent_to_workers(array: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending their pixels takes as long as recording them."""
    image = Pixels(np.zeros((4, 4, 3), np.uint8)) if array else Image.new("RGB", (4, 4))
    monkeypatch.setattr(loader, "Workers", None)
    (part,) = load_stream(iter([FetchedBatch(0, ["a"], [image])]), LoadOptions(DecodeOptions(), 2))
    assert part.sizes == [(4, 4)]
    assert not list(load_stream(iter([]), LoadOptions(DecodeOptions(), 2)))


def test_the_limit_of_pixels_holds_for_pillow_images_among_encoded_ones() -> None:
    batches = [FetchedBatch(0, ["a"], [FILES["JPEG"]]), FetchedBatch(1, ["b"], [Image.new("RGB", (40, 40))])]
    options = LoadOptions(DecodeOptions(skip=True, max_pixels=1000), 1, patience=PATIENCE)
    assert [len(part.skipped) for part in load_stream(iter(batches), options)] == [0, 1]


def test_one_batch_of_photos_is_decoded_by_several_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def marked(*_: object) -> DecodedImage:
        return replace(photo(), pixels=np.full((2, 2, 3), os.getpid() % 251, np.uint8))

    monkeypatch.setattr(decoding, "_result", marked)
    source = list_folder(str(make_pictures(tmp_path / "set", 12)))
    parts = load(source, [PlannedBatch(0, range(12))], LoadOptions(DecodeOptions(), 3, patience=PATIENCE))
    assert len({int(np.asarray(part.pixels)[0]) for part in parts}) == 3


def test_the_first_of_two_problems_is_reported() -> None:
    """An iterable raises after it has yielded an image that cannot be decoded, but before that is known."""

    def tasks() -> Iterator[int]:
        yield from range(3)
        raise ValueError("later")

    results = Workers(lambda task: [task], tasks(), 2, PATIENCE)
    assert [next(results), next(results), next(results)] == [0, 1, 2]
    with pytest.raises(ValueError, match="later"):
        next(results)


@pytest.mark.parametrize("threads", [1, 2])
def test_photos_of_an_iterable_are_resized_before_the_next_is_read(threads: int) -> None:
    """The network waits until a batch for each thread was read, because the program's code must run alone."""
    calls: list[tuple[str, int]] = []
    prepared: list[int] = []

    def parts() -> Iterator[int]:
        for part in range(1, 13):
            prepared.append(sum(number % 3 != 0 for _, number in calls))
            yield part

    found = list(side_by_side(parts(), stages(calls), threads, lambda: False, in_turns=True))
    assert [batch for batch, _ in found] == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert prepared == [part - 1 - (part - 1) // 3 for part in range(1, 13)], "all but the last parts"


@pytest.mark.parametrize("stream", [False, True])
def test_an_open_file_is_not_taken_for_a_tensor(stream: bool) -> None:
    """It can be detached as well, which would close it for the program."""
    handle = io.BytesIO(FILES["JPEG"])
    images = Images(iter([handle]) if stream else [handle], name="fake")
    if stream:
        with pytest.raises(InputError, match=r"fake\[0\] is of type BytesIO, not an image"):
            next(images.stream(None))
    else:
        (content,) = images.image_set(None).read([0])
        assert isinstance(content, InputError)
    assert handle.read() == FILES["JPEG"]


def test_a_path_that_cannot_be_read_is_named() -> None:
    source = Images(["no/such.png"], name="fake").image_set(None)
    (part,) = load(source, [PlannedBatch(0, [0])], LoadOptions(DecodeOptions()))
    assert part.failure is not None
    assert part.failure.message == "cannot read fake[0]: No such file or directory: 'no/such.png'"
