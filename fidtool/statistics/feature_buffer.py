"""Storage of one row per image (feature vector or record): in memory for small sets, in a file for large ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import DTypeLike, NDArray

from fidtool.cache_dir import byte_limit, cache_dir
from fidtool.distributed.world import World
from fidtool.errors import RunError
from fidtool.images.batches import stored_order
from fidtool.sources.array_files import read_header
from fidtool.sources.contents import BadFile
from fidtool.sources.image_set import ImageSet

if TYPE_CHECKING:
    import torch

DEFAULT_MEMORY_BYTES = 1 << 28
_CHUNK_BYTES = 1 << 26
"""Bytes that are read, written or sent at once."""

Features = NDArray[np.float32]
"""Feature vectors of images, of shape (images, dims)."""


def memory_bytes() -> int:
    """Returns the largest size of rows that are stored in memory: ``FIDTOOL_FEATURE_BYTES``, else 256 MiB."""
    return byte_limit("FIDTOOL_FEATURE_BYTES", DEFAULT_MEMORY_BYTES)


class RowStorage:
    """A matrix that is written row by row: in memory, or in an unnamed temporary file that the system deletes."""

    def __init__(self, count: int, dims: int, dtype: DTypeLike = np.float32) -> None:
        self._shape, self._dtype = (count, dims), np.dtype(dtype)
        self._memory: NDArray[Any] | None = None
        self._file: IO[bytes] | None = None
        if self._bytes(count) <= memory_bytes():
            self._memory = np.zeros(self._shape, dtype=self._dtype)
            return
        try:
            cache_dir().mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=cache_dir())  # noqa: SIM115 - open during this object's lifetime
        except OSError as error:
            raise self._no_room(error) from None

    def _bytes(self, rows: int) -> int:
        return rows * self._shape[1] * self._dtype.itemsize

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Writes consecutive rows."""
        if self._file is None:
            assert self._memory is not None
            self._memory[start : start + len(rows)] = rows
            return
        data = np.ascontiguousarray(rows, dtype=self._dtype).data.cast("B")
        position = self._bytes(start)
        try:
            while data:
                written = os.pwrite(self._file.fileno(), data, position)
                data, position = data[written:], position + written
        except OSError as error:
            raise self._no_room(error) from None

    def array(self) -> NDArray[Any]:
        """Returns the matrix for reading: shape (count, dims), memory-mapped if it is stored in a file."""
        if self._file is None:
            assert self._memory is not None
            return self._memory
        self._file.truncate(self._bytes(self._shape[0]))  # the last rows may not have been written
        return np.memmap(self._file, dtype=self._dtype, mode="r", shape=self._shape)

    def _no_room(self, error: OSError) -> RunError:
        size = self._bytes(self._shape[0]) / 2**30
        return RunError(
            f"{size:.2f} GiB of features cannot be stored in {cache_dir()} ({error.strerror or error}):",
            "set FIDTOOL_CACHE to a folder with enough space",
            "omit the metrics that need per-image features",
        )


class FeatureBuffer:
    """One row per image of a set, batch by batch in the order of the plan.

    ``sizes`` has the number of images in each batch; it has fewer rows if files were skipped. ``counts`` has the number
    of rows of each batch, -1 for batches not added yet: int64 array of shape (batches,).
    """

    def __init__(self, sizes: Sequence[int], dims: int, dtype: DTypeLike = np.float32) -> None:
        self.dims, self.dtype = dims, np.dtype(dtype)
        self._sizes = np.array(sizes, dtype=np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.counts = np.full(len(sizes), -1, dtype=np.int64)
        self._storage = RowStorage(int(self._sizes.sum()), dims, dtype)

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return self.dims * self.dtype.itemsize

    def put(self, batch: int, rows: NDArray[Any]) -> None:
        """Adds the rows of one batch."""
        if len(rows):
            self._storage.write(int(self._starts[batch]), rows)
        self.counts[batch] = len(rows)

    def rows(self, batch: int) -> NDArray[Any]:
        """Returns the rows of a batch: shape (n, dims), with n = 0 if the batch has not been added."""
        start = int(self._starts[batch])
        return self._storage.array()[start : start + max(int(self.counts[batch]), 0)]

    def absorb(self, other: FeatureBuffer, first: int) -> None:
        """Adds all batches of another buffer; ``first`` is the number of its first batch here."""
        for batch in map(int, np.flatnonzero(other.counts >= 0)):
            self.put(first + batch, other.rows(batch))

    def merge(self, world: World) -> None:
        """Gives all ranks the batches of all ranks, a limited number of bytes at a time. A collective."""
        if world.size == 1:
            return
        import torch  # deferred: reading statistics files does not need it

        everyone = world.gather(self.counts)
        limit = max(1, _CHUNK_BYTES // world.size)
        queues = [_portions(counts, self.row_bytes, limit) for counts in everyone]
        failure: RunError | None = None
        while any(portions := [next(queue, []) for queue in queues]):
            sizes = [int(counts[part].sum()) for counts, part in zip(everyone, portions, strict=True)]
            mine = [self.rows(batch) for batch in portions[world.rank]]
            packed = np.concatenate(mine) if mine else np.empty((0, self.dims), dtype=self.dtype)
            flat = torch.from_numpy(np.ascontiguousarray(packed).reshape(-1).view(np.uint8))
            received = world.gather_bytes(flat, [self.row_bytes * size for size in sizes])
            for rank, (part, data) in enumerate(zip(portions, received, strict=True)):
                if rank != world.rank and failure is None:
                    try:
                        self._unpack(part, everyone[rank], data)
                    except RunError as error:  # the other ranks still need this rank's rows
                        failure = error
        with world.together():
            if failure is not None:
                raise failure
        # This includes batches whose files were all skipped, for which nothing was sent.
        self.counts = np.maximum.reduce(everyone)

    def _unpack(self, batches: Sequence[int], counts: NDArray[np.int64], data: torch.Tensor) -> None:
        rows = data.cpu().numpy().view(self.dtype).reshape(-1, self.dims)
        for batch in batches:
            self.put(batch, rows[: counts[batch]])
            rows = rows[counts[batch] :]

    def array(self) -> NDArray[Any]:
        """Returns all rows in the order of the plan, without gaps for skipped files: shape (images, dims)."""
        everything = self._storage.array()
        if np.array_equal(self.counts, self._sizes):
            return everything
        packed, start = RowStorage(int(self.counts.clip(0).sum()), self.dims, self.dtype), 0
        for batch, count in enumerate(self.counts):
            if count > 0:
                packed.write(start, self.rows(batch))
                start += int(count)
        return packed.array()


def _portions(counts: NDArray[np.int64], row_bytes: int, limit: int) -> Iterator[list[int]]:
    """Yields the batches that have rows, as many at a time as fit into ``limit`` bytes, but at least one."""
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


def broadcast_features(features: Features | None, world: World) -> Features | None:
    """Returns rank zero's features, float32 of shape (n, dims), on all ranks; None if it has none. A collective."""
    shape = world.broadcast(None if features is None else features.shape)
    if shape is None or world.size == 1:
        return features
    count, dims = shape
    chunk = max(1, _CHUNK_BYTES // (4 * dims * world.size))
    starts = range(0, count, chunk)
    with world.together():
        buffer = FeatureBuffer([min(chunk, count - start) for start in starts], dims)
        if features is not None:
            for number, start in enumerate(starts):
                buffer.put(number, features[start : start + chunk])
    buffer.merge(world)
    return buffer.array()


def in_canonical_order(images: ImageSet, rows: NDArray[Any], skipped: Sequence[BadFile]) -> NDArray[Any]:
    """Returns the rows of a set's images in the canonical order of the set, by which subsets are drawn.

    The ``rows``, without those of ``skipped`` images, have the order of the plan. They are returned themselves if that
    is the canonical order; otherwise the result is a copy, memory-mapped if it is large.
    """
    if not images.in_order:
        return rows
    planned = stored_order(images)
    if skipped:
        left_out = {bad.file for bad in skipped}
        planned = planned[[images.file(int(index)) not in left_out for index in planned]]
    return reordered(rows, np.argsort(planned))


def reordered(rows: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Returns ``rows[order]``, memory-mapped from an unnamed file if it is large."""
    storage = RowStorage(len(rows), rows.shape[1], rows.dtype)
    chunk = max(1, _CHUNK_BYTES // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), chunk):
        storage.write(start, rows[order[start : start + chunk]])
    return storage.array()


def read_features(archive: NpzFile, name: str) -> Features:
    """Reads feature vectors from a statistics file, see `store_features`."""
    assert archive.zip is not None
    with archive.zip.open(f"{name}.npy") as member:
        shape, by_column, dtype = read_header(member)
        if len(shape) != 2 or 0 in shape or by_column or dtype.kind != "f":
            raise ValueError(f"{name} has shape {shape} and dtype {dtype}; it should contain floats, one row per image")
        return store_features(name, *shape, _chunks(member, name, *shape, dtype))


def _chunks(
    member: IO[bytes], name: str, count: int, dims: int, dtype: np.dtype[Any]
) -> Iterator[NDArray[np.floating[Any]]]:
    chunk = max(1, _CHUNK_BYTES // (dtype.itemsize * dims))
    for start in range(0, count, chunk):
        rows = min(chunk, count - start)
        data = member.read(rows * dims * dtype.itemsize)
        if len(data) != rows * dims * dtype.itemsize:
            raise ValueError(f"{name} is truncated")
        yield np.frombuffer(data, dtype=dtype).reshape(rows, dims)


def store_features(name: str, count: int, dims: int, chunks: Iterable[NDArray[np.floating[Any]]]) -> Features:
    """Stores feature vectors that are read in chunks of shape (n, dims), so that they need not fit into memory.

    Returns a float32 array of shape (count, dims), memory-mapped from an unnamed file if it is large.
    """
    storage, start = RowStorage(count, dims), 0
    for chunk in chunks:
        values = chunk.astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"{name} contains NaN or infinite values")
        storage.write(start, values)
        start += len(values)
    return storage.array()
