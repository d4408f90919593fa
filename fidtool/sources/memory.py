"""Images that a program has in its memory, or makes as it goes: sequences, datasets, iterables. Imports no torch."""

from __future__ import annotations

import copy
import os
import time
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.errors import InputError
from fidtool.sources.arrays import ValueRange, as_pixels, check_values, layout_of, refuse_objects
from fidtool.sources.contents import (
    ContentError,
    Extent,
    Files,
    ProgramError,
    Read,
    Reader,
    Stamps,
    pillow_defaults,
    words_of,
)
from fidtool.sources.image_set import ImageSet, ImageSource, Numbered
from fidtool.validation import MAX_PIXELS

_KEYS = ("image", "img")
"""Where a dict has its image."""


class Images:
    """Images for `fidtool.compute` that are in no file.

    An image is a PIL image, an array or tensor of bytes in the shape HWC, CHW or HW (of floats with a value range),
    an encoded file's bytes, or a file's path. In a tuple or list with something else it comes first, in a dict it is
    called ``image``.

    An iterable's own code runs under torch's settings as they are in the calling program, and while no network of
    fidtool computes. What can be indexed is read beside the network, under the settings of a run: one thread, float32
    by default, no autocast. It must leave those as they are that all threads share, such as ``torch.backends``.

    Args:
        images: what has a length and can be indexed, such as a list, an array of images or a map-style ``Dataset``;
            else an iterable, which is gone through once and may also yield batches: lists of images, arrays or tensors
            of four dimensions.
        name: what the set is called in results and messages; by default what it is there for.
        sharded: of an iterable under several ranks: True where each rank's yields images of its own, False where all
            yield the same ones in the same order. What can be indexed must be the same on every rank.
    """

    def __init__(self, images: object, *, name: str = "", sharded: bool | None = None) -> None:
        self.name, self.sharded = name, sharded
        name = name or "what was given"
        self._images: Any = images
        self.is_stream = not (hasattr(images, "__len__") and hasattr(images, "__getitem__")) or _only_iterable(images)
        if self.is_stream and not isinstance(images, Iterable):
            raise InputError(
                f"{name} is a {type(images).__name__}, which is neither a sequence of images nor an iterable"
            )
        if not self.is_stream and sharded:
            raise InputError(f"{name} can be indexed, so all ranks need the same:", "for shares pass iter(…) of it")
        if isinstance(images, (str, bytes, Mapping)):
            raise InputError(f"{name} is a {type(images).__name__}, which is no sequence of images")

    @property
    def kind(self) -> str:
        """What all ranks must have alike, for people."""
        if not self.is_stream:
            return f"a sequence of {len(self._images)}"
        return "an iterable" if self.sharded is None else f"an iterable (sharded={self.sharded})"

    def renamed(self, name: str) -> Images:
        """The same images under another name."""
        other = copy.copy(self)
        other.name = name
        return other

    def image_set(self, value_range: ValueRange | None) -> ImageSet:
        """The images of what can be indexed.

        Raises:
            InputError: there are none.
        """
        count = len(self._images)
        if not count:
            raise InputError(f"no images in {self.name}: it is empty")
        if getattr(self._images, "ndim", 0) in (3, 4):
            layout_of(self._images.shape, self.name)  # of one image alone, rows would count as images
        files, file_index = NoFiles(self.name), np.zeros(count, dtype=np.int32)
        reader = MemoryReader(self.name, self._images, value_range)
        kind = f"a program's {type(self._images).__name__}"
        return ImageSet.of(
            ImageSource(self.name, kind, Numbered(count), self.name, files, reader, file_index, time.time_ns())
        )

    def stream(self, value_range: ValueRange | None) -> Generator[Read, None, None]:
        """The images of an iterable, batches taken apart.

        Raises:
            InputError: something that is no image.
        """
        for number, item in enumerate(self._images):
            yield from contents_of(item, value_range, f"{self.name}[{number}]")


def _only_iterable(images: object) -> bool:
    """Whether it is torch's ``IterableDataset``, which has what sequences have, and raises when that is used."""
    return any(each.__name__ == "IterableDataset" and "__getitem__" not in vars(each) for each in type(images).__mro__)


class Named:
    """Finds names for what a program gave; paths are their own.

    Args:
        sources: all there are, so that no name is also a path.

    Attributes:
        in_memory: what is in no file, by name.
    """

    def __init__(self, *sources: object) -> None:
        self.in_memory: dict[str, Images] = {}
        self._paths = {os.fspath(each) for each in sources if isinstance(each, (str, os.PathLike))}
        self._seen: list[tuple[object, str]] = []

    def of(self, source: object, default: str) -> str:
        """The name under which a source goes; the same object has one.

        Args:
            source: a path, or images.
            default: what images without a name are called.

        Raises:
            InputError: it is no source.
        """
        if isinstance(source, (str, os.PathLike)):
            return os.fspath(source)
        for other, name in self._seen:
            if other is source:
                return name
        images = source if isinstance(source, Images) else Images(source)
        wanted = name = images.name or default
        number = 1
        while name in self.in_memory or name in self._paths:
            number += 1
            name = f"{wanted} {number}"
        self.in_memory[name] = images.renamed(name)
        self._seen.append((source, name))
        return name


def several(fake: Any) -> list[Any]:
    """The FAKEs that an argument means: a list of paths and `Images` is several, everything else is one."""
    if isinstance(fake, (list, tuple)) and all(isinstance(each, (str, os.PathLike, Images)) for each in fake):
        return list(fake)
    return [fake]


class NoFiles(Files):
    """Stands where other sources have files."""

    def __init__(self, name: str) -> None:
        self.paths = [name]

    @property
    def versioned(self) -> bool:
        return False

    def fetch(self, extents: Sequence[Extent]) -> list[bytes | Exception]:
        return [ContentError(f"{self.paths[0]} is in no file") for _ in extents]

    def open(self, file: int) -> Any:
        raise ContentError(f"{self.paths[0]} is in no file")

    def stamps(self) -> Stamps:
        return np.zeros((1, 5), dtype=np.int64)

    def expecting(self, sizes: NDArray[np.int64]) -> NoFiles:
        return self


class MemoryReader(Reader):
    """Indexes what a program gave.

    Args:
        name: what it is called.
        images: the sequence; None on the way to another rank, which has its own.
        value_range: what black and white are among floats.
    """

    scaled = True

    def __init__(self, name: str, images: Any, value_range: ValueRange | None) -> None:
        self._name, self._images, self._value_range = name, images, value_range

    def read(self, items: Sequence[int]) -> list[Read]:
        return [self._content(int(item)) for item in items]

    def _content(self, item: int) -> Read:
        what = f"{self._name}[{item}]"
        try:
            contents = contents_of(self._images[item], self._value_range, what)
        except InputError as error:
            return error
        except Exception as error:
            return ProgramError(f"{what} raised {exception_summary(error)}")
        if len(contents) != 1:
            return InputError(f"{what} holds {len(contents)} images: a sequence has one at each place")
        return contents[0]

    def expecting(self, sizes: NDArray[np.int64]) -> MemoryReader:
        return MemoryReader(self._name, None, self._value_range)


def exception_summary(error: Exception) -> str:
    """A program's exception with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


def contents_of(item: Any, value_range: ValueRange | None, what: str) -> list[Read]:
    """The images that a program's object is: one, or those of a batch.

    Args:
        item: see `Images`.
        value_range: what black and white are among floats.
        what: the object, for messages.

    Raises:
        InputError: it is no image.
    """
    if isinstance(item, Mapping):
        key = next((key for key in _KEYS if key in item), None)
        if key is None:
            raise InputError(
                f"{what} is a dict of {', '.join(map(str, list(item)[:8]))}: its image must be called image"
            )
        item = item[key]
    if isinstance(item, list) and len(item) > 1 and (_are_images(item) or all(map(_is_file, item))):
        return [content for each in item for content in contents_of(each, value_range, what)]
    if isinstance(item, tuple) and len(item) > 1 and _are_images(item):
        raise InputError(
            f"{what} is a tuple of {len(item)} images:", "yield a list of them, or the one that counts alone"
        )
    if isinstance(item, (tuple, list)) and item:
        item = item[0]
    if isinstance(item, (bytes, bytearray)):
        return [bytes(item)]
    if isinstance(item, (str, os.PathLike)):
        return [_file(item)]
    if hasattr(item, "convert") and hasattr(item, "getbands"):
        return [copy_image(item)]
    return _of_array(_as_array(item, what), value_range, what)


def _are_images(items: Sequence[Any]) -> bool:
    """Whether objects are surely one image each: Pillow's or arrays, all in colour or all gray.

    Beside an image in colour, two dimensions may be something else: a text's embedding, a mask.
    """
    pictures = (hasattr(item, "convert") and hasattr(item, "getbands") for item in items)
    dimensions = {3 if picture else getattr(item, "ndim", 0) for picture, item in zip(pictures, items, strict=True)}
    return dimensions in ({2}, {3})


def _is_file(item: Any) -> bool:
    """Whether it is a file's bytes or its path; beside one of these, in a tuple, the other may be a label."""
    return isinstance(item, (bytes, bytearray, str, os.PathLike))


def _file(path: str | os.PathLike[str]) -> Read:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError as error:
        return error


def _as_array(item: Any, what: str) -> NDArray[Any]:
    """A NumPy array of a tensor on whatever device, or of whatever else is one."""
    if hasattr(item, "detach"):
        item = item.detach().cpu()
        if str(item.dtype) == "torch.bfloat16":
            item = item.float()
        return np.asarray(item)
    if isinstance(item, np.ndarray) or hasattr(item, "__array__"):
        return np.asarray(item)
    raise InputError(f"{what} is a {type(item).__name__}, which is no image: see fidtool.Images for what is one")


def _of_array(values: NDArray[Any], value_range: ValueRange | None, what: str) -> list[Read]:
    batch = values if values.ndim == 4 else values[None]
    if batch.ndim == 4 and not len(batch):
        return []
    layout = layout_of(batch.shape, what)
    refuse_objects(values.dtype, what)
    check_values(values.dtype, layout, value_range, what)
    # Copies: a program may use its memory again.
    return [as_pixels(layout.image(image).copy(), value_range) for image in batch]


_KEPT = ("format", "quantization", "tag_v2")
"""What is known of an image's file, and what Pillow forgets when it copies the image."""


def copy_image(image: Any) -> Read:
    """A program's Pillow image as it is now: the program may go on with it, as with the frames of an animation.

    One that is too large is left as it is, to be refused.
    """
    if image.size[0] * image.size[1] > MAX_PIXELS:
        return image  # type: ignore[no-any-return]
    try:
        with pillow_defaults():
            copy: Image.Image = image.copy()
    except MemoryError as error:
        return error
    except Exception as error:  # it is decoded only now, and Pillow's plugins let many exceptions through
        return ContentError(words_of(error))
    for name in _KEPT:
        if (known := getattr(image, name, None)) is not None:
            setattr(copy, name, known)
    return copy
