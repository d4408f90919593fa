"""Feature vectors that metrics need one by one: in memory while they are few, on disk beyond."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fidtool.cache_dir import cache_dir
from fidtool.distributed.world import World
from fidtool.errors import RunError

if TYPE_CHECKING:
    import torch

DEFAULT_MEMORY_BYTES = 1 << 28
_BLOCK_BYTES = 1 << 26
"""How much is moved at a time."""

Features = NDArray[np.float32]


def memory_bytes() -> int:
    """A set's features that take more lie in a file: ``FIDTOOL_FEATURE_BYTES``, else 256 MiB."""
    value = os.environ.get("FIDTOOL_FEATURE_BYTES", "")
    return int(value) if value.isascii() and value.isdecimal() else DEFAULT_MEMORY_BYTES


class FeatureFile:
    """A matrix of float32, row by row, in memory or in a file without a name, which goes when its process goes.

    Args:
        count: number of rows.
        dims: length of a row.

    Raises:
        RunError: the cache's folder, where the file would be, cannot be written.
    """

    def __init__(self, count: int, dims: int) -> None:
        self._shape = count, dims
        self._memory: Features | None = None
        self._file: IO[bytes] | None = None
        if 4 * count * dims <= memory_bytes():
            self._memory = np.zeros(self._shape, dtype=np.float32)
            return
        try:
            cache_dir().mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=cache_dir())  # noqa: SIM115 - open as long as this object lives
        except OSError as error:
            raise self._full(error) from None

    def write(self, start: int, rows: Features) -> None:
        """Puts ``rows`` at row number ``start``.

        Raises:
            RunError: the disk is full.
        """
        if self._file is None:
            assert self._memory is not None
            self._memory[start : start + len(rows)] = rows
            return
        data = np.ascontiguousarray(rows, dtype=np.float32).data.cast("B")
        position = 4 * start * self._shape[1]
        try:
            while data:
                written = os.pwrite(self._file.fileno(), data, position)
                data, position = data[written:], position + written
        except OSError as error:
            raise self._full(error) from None

    def array(self) -> Features:
        """The matrix, to be read; a file is mapped."""
        if self._file is None:
            assert self._memory is not None
            return self._memory
        self._file.truncate(4 * self._shape[0] * self._shape[1])  # rows at the end may not have been written
        return np.memmap(self._file, dtype=np.float32, mode="r", shape=self._shape)

    def _full(self, error: OSError) -> RunError:
        size = 4 * self._shape[0] * self._shape[1] / 2**30
        return RunError(
            f"{size:.2f} GiB of features cannot be kept in {cache_dir()} ({error.strerror or error}): set "
            "FIDTOOL_CACHE to a folder with room, or leave out the metrics that need each image's features"
        )


class KeptFeatures:
    """The feature vectors of a set, each batch at its place in the plan.

    Args:
        sizes: number of images in each batch of the plan; fewer can come where files were skipped.
        dims: length of a feature vector.

    Attributes:
        counts: vectors that there are of each batch; -1 where it has not come.
    """

    def __init__(self, sizes: Sequence[int], dims: int) -> None:
        self.dims = dims
        self._sizes = np.array(sizes, dtype=np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.counts = np.full(len(sizes), -1, dtype=np.int64)
        self._file = FeatureFile(int(self._sizes.sum()), dims)

    def put(self, batch: int, features: Features) -> None:
        """Takes in the vectors of one batch: float32 array of shape (n, dims)."""
        if len(features):
            self._file.write(int(self._starts[batch]), features)
        self.counts[batch] = len(features)

    def start(self, batch: int) -> int:
        """Row at which a batch begins."""
        return int(self._starts[batch])

    def rows(self, batch: int) -> Features:
        """The vectors of a batch that has come."""
        start = self.start(batch)
        return self._file.array()[start : start + max(int(self.counts[batch]), 0)]

    def exchange(self, world: World) -> None:
        """Gives every rank all batches, in pieces of bounded size. A collective.

        Raises:
            RunError: the disk of a rank is full; on every rank, after the last piece.
        """
        if world.size == 1:
            return
        everyone = world.gather(self.counts)
        limit = max(1, _BLOCK_BYTES // world.size)
        queues = [_portions(counts, 4 * self.dims, limit) for counts in everyone]
        failure: RunError | None = None
        while any(portions := [next(queue, []) for queue in queues]):
            sizes = [int(counts[part].sum()) for counts, part in zip(everyone, portions, strict=True)]
            mine = [self.rows(batch) for batch in portions[world.rank]]
            packed = np.concatenate(mine) if mine else np.empty((0, self.dims), dtype=np.float32)
            boxes = world.gather_bytes(_as_bytes(packed), [4 * self.dims * size for size in sizes])
            for rank, (part, box) in enumerate(zip(portions, boxes, strict=True)):
                if rank != world.rank and failure is None:
                    try:
                        self._unpack(part, everyone[rank], box)
                    except RunError as error:  # the others wait for this rank's next piece
                        failure = error
        with world.together():
            if failure is not None:
                raise failure
        # Batches of which every file was skipped have come, too, and nothing of them travels.
        self.counts = np.maximum.reduce(everyone)

    def _unpack(self, batches: Sequence[int], counts: NDArray[np.int64], box: torch.Tensor) -> None:
        vectors = box.cpu().numpy().view(np.float32).reshape(-1, self.dims)
        for batch in batches:
            self.put(batch, vectors[: counts[batch]])
            vectors = vectors[counts[batch] :]

    def array(self) -> Features:
        """All vectors in the order of the plan, those of skipped files left out: float32, shape (images, dims)."""
        everything = self._file.array()
        if np.array_equal(self.counts, self._sizes):
            return everything
        packed, start = FeatureFile(int(self.counts.clip(0).sum()), self.dims), 0
        for batch, count in enumerate(self.counts):
            if count > 0:
                packed.write(start, self.rows(batch))
                start += int(count)
        return packed.array()


def _as_bytes(vectors: Features) -> torch.Tensor:
    import torch  # statistics files are opened without

    return torch.from_numpy(np.ascontiguousarray(vectors).reshape(-1).view(np.uint8))


def _portions(counts: NDArray[np.int64], row_bytes: int, limit: int) -> Iterator[list[int]]:
    """The batches with vectors in them, several at a time: as many as ``limit`` bytes hold, at least one."""
    portion: list[int] = []
    size = 0
    for batch in map(int, np.flatnonzero(counts > 0)):
        taken = row_bytes * int(counts[batch])
        if portion and size + taken > limit:
            yield portion
            portion, size = [], 0
        portion.append(batch)
        size += taken
    if portion:
        yield portion


def spread(features: Features | None, world: World) -> Features:
    """Rank zero's feature vectors on every rank. A collective.

    Args:
        features: float32 array of shape (n, dims) on rank zero, None on the others.

    Raises:
        RunError: the disk of a rank is full; on every rank.
    """
    shape = world.broadcast(None if features is None else features.shape)
    assert shape is not None
    count, dims = shape
    if world.size == 1:
        assert features is not None
        return features
    block = max(1, _BLOCK_BYTES // (4 * dims * world.size))
    starts = range(0, count, block)
    with world.together():
        kept = KeptFeatures([min(block, count - start) for start in starts], dims)
        if features is not None:
            for number, start in enumerate(starts):
                kept.put(number, features[start : start + block])
    kept.exchange(world)
    return kept.array()
