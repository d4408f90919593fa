"""Batches of what an iterable yields, or a generator makes, on all ranks."""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from fidtool.distributed.seeds import sample_seed
from fidtool.distributed.world import World
from fidtool.errors import InputError, mark_agreed
from fidtool.reading.batches import Batch, cut_batches, deal
from fidtool.reading.frames import split
from fidtool.sources.contents import Read, ValueRange, comparable_bytes
from fidtool.sources.image_set import ImageSet, Names, Numbered, Sampling, canonical_order
from fidtool.sources.memory import Images, MemoryReader

ProgramContext = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass
class Stream:
    """Reads this rank's batches of an iterable. All ranks must create and use it.

    ``sampling.num`` images are taken on all ranks together; None takes all. ``max_pixels`` is set
    if each frame of a file counts as an image. With several ranks, ``images.sharded`` must be set:
    otherwise an InputError.
    """

    images: Images
    value_range: ValueRange | None
    world: World
    batch_size: int
    sampling: Sampling
    max_pixels: int | None = None
    _count: int = field(default=0, init=False)
    _digest: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.world.size > 1 and self.images.sharded is None and not self.images.generates:
            raise mark_agreed(
                InputError(
                    f"{self.name} is an iterable, and there are {self.world.size} ranks:",
                    "pass fidtool.Images(…, sharded=True) if each rank's iterable yields different "
                    "images",
                    "sharded=False if all yield the same images",
                )
            )

    @property
    def name(self) -> str:
        return self.images.name

    @property
    def _sharded(self) -> bool:
        return bool(self.images.sharded) and self.world.size > 1

    def read(self, outside: ProgramContext) -> Generator[Batch, None, None]:
        """Yield the batches. The calling program's code runs in the context that ``outside``
        returns.
        """
        if self.images.generates:
            return self._generate(outside)
        return self._read_batches(outside)

    def _generate(self, outside: ProgramContext) -> Generator[Batch, None, None]:
        self._count = self.sampling.num or 0
        batches = list(enumerate(cut_batches(self._count, self.batch_size)))
        for number, positions in deal(batches, self.world.rank, self.world.size):
            seed = sample_seed(self.sampling.seed, positions.start)
            with outside():
                contents = self.images.generated(len(positions), seed, self.value_range)
            yield self._batch(number, positions, contents)

    def _read_batches(self, outside: ProgramContext) -> Generator[Batch, None, None]:
        contents = self.images.stream(self.value_range)
        frames: Iterator[Read] = contents
        if self.max_pixels is not None:
            frames = chain.from_iterable(split(content, self.max_pixels) for content in contents)
        count = self.sampling.num
        if count is not None and self._sharded:  # how many this rank takes
            count = len(deal(range(count), self.world.rank, self.world.size))
        frames = islice(frames, count)
        try:
            for number in itertools.count():
                with outside():
                    batch = list(islice(frames, self.batch_size))
                if not batch:
                    return
                self._count += len(batch)
                # `collect` compares the digests if all ranks should have read the same images.
                if self.world.size > 1 and not self._sharded:
                    for content in batch:
                        self._digest = zlib.crc32(comparable_bytes(content), self._digest)
                if self._sharded or number % self.world.size == self.world.rank:
                    start = number * self.batch_size
                    yield self._batch(number, range(start, start + len(batch)), batch)
        finally:
            with outside():
                contents.close()

    def _batch(self, number: int, positions: range, contents: list[Read]) -> Batch:
        prefix = f"{self.name}[{self.world.rank}:" if self._sharded else f"{self.name}["
        files = [f"{prefix}{position}]" for position in positions]
        return Batch(number, positions, contents=list(zip(files, contents, strict=True)))

    def collect(self) -> tuple[ImageSet, list[int], int]:
        """Return the images that all ranks have read, the sizes of their batches, and this rank's
        first. A collective.

        The set is in canonical order, and its contents cannot be read again. Call this after the
        end of iteration.

        Raises an InputError if there are no images or fewer than requested, or if ranks read
        different images although ``sharded`` is False.
        """
        read = self.world.gather((self._count, self._digest))
        counts = [count for count, _ in read]
        names: Sequence[str]
        per_rank = ""
        if self._sharded:
            names = Names(
                f"[{rank}:{position}]"
                for rank, count in enumerate(counts)
                for position in range(count)
            )
            per_rank = f" ({', '.join(map(str, counts))} on the individual ranks)"
        else:
            self._check_same(read)
            counts = counts[:1]
            names = Numbered(counts[0])
        total = len(names)
        if not total:
            raise mark_agreed(InputError(f"no images in {self.name}: the iterable yielded none"))
        if total < (self.sampling.num or 0):
            raise mark_agreed(self.sampling.too_few_error(f"{self.name} yielded {total}{per_rank}"))
        sizes = [[len(batch) for batch in cut_batches(count, self.batch_size)] for count in counts]
        first = sum(map(len, sizes[: self.world.rank])) if self._sharded else 0
        reader = MemoryReader(self.name, None, total, None, in_order=True)
        order = canonical_order(total, self.sampling.seed)
        images = ImageSet(self.name, "iterable", names, self.name, reader, order)
        return images, list(chain.from_iterable(sizes)), first

    def _check_same(self, read: Sequence[tuple[int, int]]) -> None:
        """Refuse ranks that have read different images, by their numbers and digests."""
        for rank, (count, _) in enumerate(read):
            if read[rank] != read[0]:
                raise mark_agreed(
                    InputError(
                        f"{self.name} yielded different images on rank {rank} and rank 0 ({count} "
                        f"and {read[0][0]} images):",
                        "pass sharded=True if each rank's iterable should yield different images",
                    )
                )
