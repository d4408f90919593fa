"""What resizing asks of a GPU: few launches for the images of one size, and no waiting of the host."""

from __future__ import annotations

import pytest
import torch

from fidtool.features import resize as resizing
from fidtool.features.preparation import Preparation
from fidtool.features.protocol import INCEPTION_INPUT_SIZE, PROTOCOLS
from fidtool.features.resize import network_input, resize
from support.launches import Launches, fake_gpu

NORMALISED = 2
"""Launches for a batch: the offset is subtracted, and the result divided by the scale."""

BUDGETS = {
    "bilinear": 2,  # to float32, interpolate
    "bilinear-tf1": 9,  # two axes of indices, to float32, and three for blending along each axis
    "bilinear-antialias": 2,  # to float32, interpolate
    "bicubic-antialias": 3,  # to float32, interpolate, clamp
    "pillow-bilinear": 13,  # for each axis indices, to float64, product, and three to round; to float32
    "pillow-bicubic": 13,
}
"""Launches for the images of one size."""

CASES = [
    *((Preparation(protocol.resize), INCEPTION_INPUT_SIZE) for protocol in PROTOCOLS.values()),
    *((Preparation("pillow-bilinear", "shorter edge", 256), 224), (Preparation("pillow-bicubic", "shorter edge"), 224)),
    *((Preparation("pillow-bicubic", "largest square"), 336), (Preparation("pillow-bicubic"), 224)),
]
NAMES = [*PROTOCOLS, "shorter edge 256", "shorter edge", "largest square", "squash"]
EIGHT_SIZES = [(300 + 17 * n, 500 - 13 * n) for n in range(8)]

cases = pytest.mark.parametrize(("preparation", "size"), CASES, ids=NAMES)


def counted(sizes: list[tuple[int, int]], preparation: Preparation, size: int) -> Launches:
    """Return the launches for a batch of images of these heights and widths."""
    images = [torch.empty((height, width, 3), dtype=torch.uint8, device="cuda") for height, width in sizes]
    offset, scale = (torch.empty((1, 1, 1, 1), device="cuda") for _ in range(2))
    with Launches() as launches, torch.inference_mode():
        batch = network_input(images, size, preparation, offset, scale)
    assert (batch.shape, batch.device.type) == ((len(sizes), 3, size, size), "cuda")
    assert batch.is_contiguous(memory_format=torch.channels_last)
    return launches


@cases
def test_launches_for_a_batch_of_one_size(preparation: Preparation, size: int) -> None:
    with fake_gpu():
        counted([(333, 500)], preparation, size)
        launches = counted([(333, 500)] * 8, preparation, size)
    # Images are stacked, and copied where rows are cropped; torch's bilinear result is made channels-last.
    assert launches.total <= 1 + BUDGETS[preparation.resize] + 1 + NORMALISED, launches.launched


@cases
def test_launches_for_a_batch_of_eight_sizes(preparation: Preparation, size: int) -> None:
    with fake_gpu():
        counted(EIGHT_SIZES, preparation, size)
        launches = counted(EIGHT_SIZES, preparation, size)
        assert launches.total <= 8 * BUDGETS[preparation.resize] + 1 + NORMALISED, launches.launched
        more = counted(EIGHT_SIZES * 2, preparation, size)
    # Two images of a size are stacked, and copied where rows are cropped. Their results are placed by the same launch.
    assert more.total <= 8 * (BUDGETS[preparation.resize] + 2) + 1 + NORMALISED, more.launched


@cases
def test_nothing_is_copied_from_the_host_for_known_sizes(preparation: Preparation, size: int) -> None:
    with fake_gpu() as pinned:
        first = counted(EIGHT_SIZES, preparation, size)
        assert all(first.host_to_device), "every copy is non-blocking"
        assert len(pinned) == len(first.host_to_device), "and from pinned memory, without which the host would wait"
        again = counted([*EIGHT_SIZES, EIGHT_SIZES[3]], preparation, size)
    assert (again.host_to_device, again.synchronising, first.synchronising) == ([], 0, 0)


@pytest.mark.parametrize("images_of", [(32, 32), (512, 512)])
@cases
def test_a_default_batch_takes_at_most_four_times_as_many(
    preparation: Preparation, size: int, images_of: tuple[int, int]
) -> None:
    """Intermediate tensors of 64 images are bounded; a bound that is too low would cost launches."""
    with fake_gpu():
        counted([images_of], preparation, size)
        launches = counted([images_of] * 64, preparation, size)
    assert launches.total <= 4 * (BUDGETS[preparation.resize] + 1) + 2 + NORMALISED, launches.launched


def test_each_device_has_its_own_tables() -> None:
    with fake_gpu() as pinned:
        for device in ("cuda:0", "cuda:1", "cuda:0"):
            pixels = torch.empty((1, 50, 50, 3), dtype=torch.uint8, device=device)
            assert resize(pixels, 20, Preparation("bilinear-tf1")).device == torch.device(device)
    assert len(pinned) == 4


def test_each_stream_has_its_own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream does not wait for a table that another stream is still copying."""
    with fake_gpu() as pinned:
        pixels = torch.empty((1, 50, 50, 3), dtype=torch.uint8, device="cuda")
        for stream in (0, 7, 0):
            monkeypatch.setattr(resizing, "_stream", lambda _, stream=stream: stream)
            resize(pixels, 20, Preparation("bilinear-tf1"))
    assert len(pinned) == 4


def test_least_recently_used_tables_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def compute(side: int, device: torch.device) -> tuple[int, torch.Tensor]:
        made.append(side)
        return side, torch.zeros(side, dtype=torch.uint8, device=device)

    monkeypatch.setattr(resizing, "_CACHED_BYTES", 100)
    cached = resizing._Cached(compute)
    for side in (40, 50, 40, 30, 40, 50, 101, 40):
        assert cached(side, torch.device("cpu"))[0] == side
    # 30 replaces 50, 50 replaces 30; 101 exceeds the limit alone, but replaces the others.
    assert made == [40, 50, 30, 50, 101, 40]
    assert cached._bytes == 40


def test_torchs_bilinear_gets_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its CUDA kernel copies three channels that are the last axis, and its result back; Launches cannot see that."""
    seen: list[torch.Tensor] = []

    def interpolate(x: torch.Tensor, **options: object) -> torch.Tensor:
        seen.append(x)
        return x

    monkeypatch.setattr(torch.nn.functional, "interpolate", interpolate)
    with fake_gpu():
        resize(torch.empty((2, 9, 9, 3), dtype=torch.uint8, device="cuda"), 9, Preparation("bilinear"))
        assert seen[0].is_contiguous()
