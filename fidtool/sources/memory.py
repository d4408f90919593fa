"""Images that are passed as Python objects: sequences, datasets, iterables, functions and networks
that generate.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import os
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fidtool.distributed.seeds import sample_seed
from fidtool.errors import FidtoolError, InputError, ProgramError, format_message, option
from fidtool.sources.arrays import (
    BFLOAT16,
    channel_axis,
    check_dtype,
    refuse_values,
    to_hwc,
    to_pixels,
    widen_bfloat16,
)
from fidtool.sources.contents import (
    ContentError,
    Files,
    Numbers,
    Read,
    Reader,
    ValueRange,
    pillow_defaults,
    to_content,
)
from fidtool.sources.image_set import ImageSet, Numbered
from fidtool.sources.labels import NO_LABELS, Labels, find_label_name, label_text
from fidtool.validation import MAX_PIXELS

if TYPE_CHECKING:
    import torch  # only then: the command line defers it

# Number of items that must agree with what a dataset states about their labels.
_SAMPLE = 16
_SEVERAL_SETS = "to compare several sets, wrap each in fidtool.Images"
# Keys of the image in a dict, the first that it has: as in Hugging Face's datasets, then as in
# WebDataset's.
_IMAGE_KEYS = ("image", "img", "jpg", "jpeg", "png", "webp")
# Types of what `to_content` takes.
_ENCODED_TYPES = (bytes, bytearray, str, os.PathLike, Mapping)
# Number of calls in a row after which a function that returns no images is refused.
_MAX_EMPTY_CALLS = 20
Items = Generator[Any, None, None]


class Images:
    """A set of images that are passed to `fidtool.compute` as Python objects.

    An image is a PIL image, an array or tensor of shape HWC, CHW or HW (integers in 0..255, uint16,
    bool, or floats with a value range), the bytes of an encoded file, or a path of a file. In a
    tuple or list with other objects, the image must be the first element; in a dict, its key must
    be ``image`` (or ``img``, ``jpg``, ``jpeg``, ``png``, ``webp``). The images of Hugging Face's
    datasets are used as they are stored, in their `datasets.Image` columns.

    An iterable runs under the calling program's torch settings, and never at the same time as
    fidtool's network. A sequence is read while the network computes, under the settings of a run:
    one thread, float32 as the default dtype, no autocast. It must not change settings that all
    threads share, such as ``torch.backends``.

    Args:
        images: a sequence (an object with a length that can be indexed), such as a list, an array
            of images or a map-style ``Dataset``; or an iterable, which is iterated over once. An
            iterable may also yield batches: lists of images, or arrays or tensors of four
            dimensions. Or a function ``generate()``, ``generate(n)`` or ``generate(n, seed)`` that
            returns or yields n images, as a list, array or tensor. If it returns fewer, it is
            called again; surplus images are cut off. It is called for batches until there are
            ``num`` images, and each rank generates its share. torch's generators are seeded before
            each call, so the images depend on the run's ``seed`` and ``batch_size``, but not on the
            number of ranks.
        name: name of the set in results and messages; by default, its role, such as the argument's
            name.
        sharded: for an iterable with several ranks: True if each rank's iterable yields different
            images, False if all yield the same images in the same order. A sequence must be the
            same on every rank.
        latent: for a network that generates ``images`` from standard normal noise, the noise's
            shape without its first dimension, such as 512. The network is called in evaluation
            mode.

    Raises:
        InputError: if ``images`` is neither a sequence nor an iterable, or a sequence is passed
            with ``sharded=True``.
    """

    def __init__(
        self,
        images: object,
        *,
        name: str = "",
        sharded: bool | None = None,
        latent: int | tuple[int, ...] | None = None,
    ) -> None:
        self.name = name
        self.sharded = sharded
        name = name or "the argument"
        kind = f"{name} is of type {type(images).__name__}, which is"
        _refuse_moments(images)
        self._images: Any = _keep_encoded(images)
        self._generate = make_generator(images, latent, name)
        self._peeked: tuple[int, int, list[Read]] = 0, 0, []
        self.generates = self._generate is not None
        self.is_stream = self.generates or not _is_sequence(images)
        if self.is_stream and not self.generates and not isinstance(images, Iterable):
            raise InputError(f"{kind} neither a sequence of images nor an iterable")
        if not self.is_stream and sharded:
            raise InputError(
                f"{name} is a sequence, which must be the same on all ranks:",
                "pass iter(…) of each rank's shard",
            )
        _refuse_splits(name, images)
        if isinstance(images, (str, bytes, Mapping, type)):
            raise InputError(f"{kind} not a sequence of images")

    @property
    def kind(self) -> str:
        """Description of the properties that must be equal on all ranks."""
        if self.generates:
            return "a function"
        if not self.is_stream:
            return f"a sequence of {len(self._images)}"
        return "an iterable" if self.sharded is None else f"an iterable (sharded={self.sharded})"

    def renamed(self, name: str) -> Images:
        other = copy.copy(self)
        other.name = name
        return other

    def image_set(self, value_range: ValueRange | None) -> ImageSet:
        images = self._images
        count = len(images)
        if not count:
            raise InputError(f"no images in {self.name}: it is empty")
        if getattr(images, "ndim", 0) > 1:
            # Refuses a single image, whose rows would count as images.
            channel_axis(images.shape, self.name)
        # Decoding workers are forks of this process, which cannot use its GPU.
        images = _to_cpu(images)
        reader = MemoryReader(self.name, images, count, value_range)
        if isinstance(images, (list, tuple)) or hasattr(images, "ndim"):  # others may take long
            refuse_values(reader, [0])
        kind = f"Python {type(self._images).__name__}"
        return ImageSet(self.name, kind, Numbered(count), self.name, reader, np.arange(count))

    def features(self) -> NDArray[Any] | None:
        """Return the array if it has two dimensions, as features of images have; of a list of
        them, all rows.
        """
        parts = self._images if isinstance(self._images, (list, tuple)) else [self._images]
        if not parts or any(getattr(part, "ndim", 0) != 2 for part in parts):
            return None
        return np.concatenate([widen_bfloat16(_as_array(part, self.name)) for part in parts])

    def stream(self, value_range: ValueRange | None) -> Generator[Read, None, None]:
        """Yield the images of an iterable, one at a time even if it yields batches."""
        with _reraise_errors(self.name):
            for number, item in enumerate(self._images):
                yield from to_contents(item, value_range, f"{self.name}[{number}]")

    def peek(self, count: int, seed: int, value_range: ValueRange | None) -> list[Read]:
        """Return the first image of an iterable, or the first ``count`` from a function, which
        `stream` or `generated` return again.
        """
        if self.generates:
            seed = sample_seed(seed, 0)
            self._peeked = count, seed, self.generated(count, seed, value_range)
            return self._peeked[-1]
        with _reraise_errors(self.name):
            items = iter(self._images)
            first = list(itertools.islice(items, 1))
            self._images = itertools.chain(first, items)
            read = (to_contents(item, value_range, f"{self.name}[0]") for item in first)
            return list(itertools.islice(itertools.chain.from_iterable(read), 1))

    def generated(self, count: int, seed: int, value_range: ValueRange | None) -> list[Read]:
        """Return images from a function, which is called again with a derived seed until there are
        enough.
        """
        assert self._generate is not None
        *asked, peeked = self._peeked
        if asked == [count, seed]:
            return peeked
        contents: list[Read] = []
        calls = 0
        in_vain = 0
        while len(contents) < count:
            before = len(contents)
            left = count - before
            items = self._generate(left, sample_seed(seed, calls) if calls else seed)
            with _reraise_errors(self.name), contextlib.closing(items):
                for item in items:
                    contents += to_contents(item, value_range, f"the result of {self.name}({left})")
                    if len(contents) >= count:
                        break
            calls += 1
            in_vain = in_vain + 1 if len(contents) == before else 0
            if in_vain == _MAX_EMPTY_CALLS:
                raise InputError(
                    f"{self.name}({left}) returned no images {in_vain} times, but must return "
                    f"{left}"
                )
        return contents[:count]


def _refuse_splits(name: str, images: Any) -> None:
    kind = type(images).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        raise InputError(
            f"{name} is of type {kind}, not a sequence of images:",
            *(f"pass its split {split!r}" for split in images),
        )


def _refuse_moments(images: Any) -> None:
    parts = images
    if isinstance(images, Mapping):
        parts = [images.get("mu"), images.get("sigma")]
    if not isinstance(parts, (list, tuple)) or len(parts) != 2:
        return
    mean, covariance = parts
    if getattr(mean, "ndim", 0) == 1 and getattr(covariance, "ndim", 0) == 2:
        raise InputError(
            "a mean and a covariance are not images:", "pass fidtool.Statistics.of(mu, sigma)"
        )


def _is_sequence(images: object) -> bool:
    # torch's IterableDataset has the methods of a sequence, but they raise.
    for base in type(images).__mro__:
        if base.__name__ == "IterableDataset" and "__getitem__" not in vars(base):
            return False
    return hasattr(images, "__len__") and hasattr(images, "__getitem__")


@contextlib.contextmanager
def _reraise_errors(what: str) -> Iterator[None]:
    """Raise what the program's own code raises as an error that says where."""
    try:
        yield
    except FidtoolError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, StopIteration):  # which Python replaces by a RuntimeError
            raise InputError(
                f"{what} raised StopIteration:", "its iterator has too few images"
            ) from error
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
        problem = f"{what} raised {type(error).__name__}: {' '.join(str(error).split())}{place}"
        if "CUDA" in str(error) and parent_process() is not None:
            # A decoding worker is a fork of the process that uses the GPU.
            raise ProgramError(
                f"{problem}:", "return tensors on the CPU", f"pass {option('num_workers', 0)}"
            ) from error
        raise ProgramError(problem) from error


@contextlib.contextmanager
def eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients. Restores the modules' modes and the random state
    afterwards.
    """
    import torch

    modes = {child: child.training for child in module.modules()}
    device = next(iter(module.parameters()), torch.zeros(0)).device
    if device.type != "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.device("cuda", torch.cuda.current_device())
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for child, mode in modes.items():
            child.training = mode


def make_generator(
    images: Any, latent: int | tuple[int, ...] | None, name: str
) -> Callable[[int, int], Items] | None:
    """Return a function that generates a number of images with a seed; None if ``images`` are no
    generator.

    Its iterator must be closed; until then, torch is in the generator's state.
    """
    import torch

    function = images
    module = torch.nn.Module()
    if isinstance(images, torch.nn.Module):
        if latent is None:
            raise InputError(
                f"{name} is a network ({type(images).__name__}), whose input is not known:",
                "pass fidtool.Images(network, latent=512) for normal noise",
                "pass a function, such as lambda n: network(torch.randn(n, 512))",
            )
        module = images
        shape = (latent,) if isinstance(latent, int) else latent
        device = next(module.parameters(), torch.zeros(0)).device
        function = lambda count: module(torch.randn(count, *shape, device=device))  # noqa: E731
    elif (
        not callable(images)
        or isinstance(images, type)
        or hasattr(images, "__iter__")
        or hasattr(images, "__len__")
    ):
        return None

    def generate(count: int, seed: int) -> Items:
        with eval_mode(module):
            torch.manual_seed(seed)
            result = _call_with_seed(function, count, seed)
            yield from result if isinstance(result, Iterator) else (result,)

    return generate


def _call_with_seed(function: Callable[..., Any], count: int, seed: int) -> Any:
    """Call a function with the arguments that it has: the number of images, and the seed."""
    parameters = inspect.signature(function).parameters
    asked = []
    for parameter in parameters.values():
        is_by_name = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
        if parameter.name != "seed" and not is_by_name:
            asked.append(parameter)
    arguments = [count] if asked else []
    if "seed" in parameters:
        return function(*arguments, seed=seed)
    if len(asked) > 1:
        second = asked[1]
        if second.kind is second.POSITIONAL_OR_KEYWORD and second.default is second.empty:
            arguments.append(seed)
    return function(*arguments)


def _is_tensor(item: Any) -> bool:
    """Whether an object is a tensor. Files can be detached as well, but have no device."""
    return hasattr(item, "detach") and hasattr(item, "device")


def _keep_encoded(images: Any) -> Any:
    """Return a dataset of Hugging Face with the bytes of its images, which tell their format and
    JPEG quality.
    """
    if not hasattr(images, "cast_column"):
        return images
    if getattr(images, "format", {}).get("type") == "custom":  # of with_transform
        return images
    for name, feature in (getattr(images, "features", None) or {}).items():
        is_image = type(feature).__name__ == "Image"
        if is_image and feature.decode and getattr(feature, "mode", None) is None:
            images = images.cast_column(name, type(feature)(decode=False))
    return images


def _to_cpu(images: Any) -> Any:
    """Return the same images with tensors of an accelerator and JAX arrays as such of the CPU.

    On the CPU, NumPy shares the memory of a JAX array.
    """
    if isinstance(images, (list, tuple)):
        moved = [_to_cpu(image) for image in images]
        return tuple(moved) if isinstance(images, tuple) else moved
    if isinstance(images, dict):
        return {key: _to_cpu(value) for key, value in images.items()}
    if hasattr(images, "sharding") and hasattr(images, "__array__"):
        return np.asarray(images)
    if _is_tensor(images) and images.device.type not in ("cpu", "meta"):
        return images.detach().cpu()
    return images


class NamedSet(NamedTuple):
    """A set as the caller passes it, under the caller's name for it."""

    name: str
    source: Any


def split_sets(fake: Any, given: type) -> list[Any]:
    """Return the FAKEs in an argument: a list or tuple of paths, or with sets in it (`Images`,
    objects of the type ``given`` or None in their place, functions), is several, as is a dict of
    names and sets; everything else is one.
    """
    if isinstance(fake, np.lib.npyio.NpzFile):
        raise InputError(
            f"{option('fake')} is an opened .npz file:", "pass its path", "pass one of its arrays"
        )
    if isinstance(fake, Mapping):
        _refuse_moments(fake)
        _refuse_splits(option("fake"), fake)
        for name in fake:
            if not isinstance(name, str) or not name:
                raise InputError(
                    f"the keys of {option('fake')} are names of sets, and {name!r} is not a name:",
                    "use strings such as 'epoch 1'",
                )
        return [NamedSet(name, source) for name, source in fake.items()]
    if not isinstance(fake, (list, tuple)):
        return [fake]
    for item in fake:
        if item is None or isinstance(item, (Images, given)) or callable(item):
            return list(fake)
    if all(isinstance(item, (str, os.PathLike)) for item in fake):
        return list(fake)
    return [fake]


class MemoryReader(Reader):
    """Reads the images of a sequence, which is not sent to other ranks: they use their own."""

    scaled = True

    def __init__(
        self,
        name: str,
        images: Any,
        count: int,
        value_range: ValueRange | None,
        in_order: bool = False,
    ) -> None:
        super().__init__(Files([]), np.zeros(count, dtype=np.int32), in_order)
        self._name = name
        self._images = images
        self._value_range = value_range
        self.encoded = not hasattr(images, "ndim")

    def read(self, items: Numbers) -> Iterator[Read]:
        return map(self._content, items.tolist())

    def read_labels(self, items: Numbers, requested: bool) -> Labels:
        """Return the labels of a dataset: its column, its ``targets`` if some of the items agree
        with them, or those in its items, which are read for this.
        """
        if not requested or hasattr(self._images, "ndim"):
            return NO_LABELS
        with _reraise_errors(self._name):
            if hasattr(self._images, "cast_column"):
                return _read_label_column(self._images)
            targets, classes = _find_targets(self._images)
        count = len(self._images)
        agree = len(targets) == count
        labels: dict[int, str] = {}
        unlabelled: list[int] = []
        for item in items.tolist():
            if (agree and len(labels) == _SAMPLE) or (not labels and len(unlabelled) == _SAMPLE):
                break
            with _reraise_errors(f"{self._name}[{item}]"):
                label = _item_label(self._images[item])
            agree = agree and label == targets[item]
            if label:
                labels[item] = label
            else:
                unlabelled.append(item)
        if not labels:
            return NO_LABELS
        if unlabelled:
            raise InputError(
                f"{self._name}[{unlabelled[0]}] has no label, but {self._name}[{min(labels)}] has "
                "one"
            )
        if agree:
            return Labels.of(targets, classes)
        known = Labels.of(labels.values(), classes)
        stored = dict.fromkeys(range(count), "")
        stored.update(zip(labels, known.of_images, strict=True))
        return Labels([*stored.values()], known.classes)

    def _content(self, item: int) -> Read:
        what = f"{self._name}[{item}]"
        try:
            with _reraise_errors(what):
                contents = to_contents(self._images[item], self._value_range, what)
        except FidtoolError as error:
            return error
        if len(contents) != 1:
            return InputError(
                f"{what} contains {len(contents)} images, but must be one image:",
                "for batches, pass iter(images)",
                _SEVERAL_SETS,
            )
        return contents[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_images": None}


def _read_label_column(dataset: Any) -> Labels:
    """Return the labels of a dataset of Hugging Face, by the names that its ``ClassLabel`` has."""
    name = find_label_name(dataset.features)
    if name is None:
        return NO_LABELS
    values = dataset.with_format(None).select_columns([name])[:][name]
    return Labels.of(values, getattr(dataset.features[name], "names", None))


def _find_targets(dataset: Any) -> tuple[Sequence[str], object]:
    """Return the labels that a dataset states, as torchvision's do, and the names of its classes;
    empty without them. A `torch.utils.data.Subset` has those of its dataset.
    """
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        targets, classes = _find_targets(dataset.dataset)
        return [targets[index] for index in dataset.indices] if targets else (), classes
    if getattr(dataset, "target_transform", None) is not None:
        return (), None
    targets = getattr(dataset, "targets", ())
    values = targets.tolist() if hasattr(targets, "tolist") else targets
    stated = [label_text(value) for value in values] if isinstance(values, (list, tuple)) else ()
    return stated, getattr(dataset, "classes", None)


def _item_label(item: Any) -> str:
    """Return the label beside an image; empty if it has none."""
    if isinstance(item, Mapping):
        name = find_label_name(item)
        return "" if name is None else label_text(item[name])
    if isinstance(item, (tuple, list)) and len(item) > 1:
        return label_text(item[1])
    return ""


def to_contents(item: Any, value_range: ValueRange | None, what: str) -> list[Read]:
    """Return the image that an object is, or the images of a batch."""
    if hasattr(item, "images"):  # as in diffusers
        raise InputError(
            f"{what} is of type {type(item).__name__}, not an image:", "return its .images"
        )
    if isinstance(item, Mapping) and "bytes" not in item:
        item = _get_dict_image(item, what)
    if isinstance(item, (tuple, list)) and item:
        are_images = len(item) > 1 and _are_images(item)
        if isinstance(item, list):
            # In a tuple, a string or bytes may also be a label.
            are_images |= all(isinstance(part, _ENCODED_TYPES) for part in item)
        elif are_images:
            raise InputError(
                f"{what} is a tuple of {len(item)} images:",
                "yield a list for a batch",
                "yield only the image to evaluate",
            )
        if are_images:
            contents = []
            for part in item:
                contents += to_contents(part, value_range, what)
            return contents
        item = item[0]
    if isinstance(item, _ENCODED_TYPES):
        return [to_content(item)]
    if isinstance(item, Image.Image):
        return [copy_image(item)]
    return _images_from_array(_as_array(item, what), value_range, what)


def _get_dict_image(item: Mapping[Any, Any], what: str) -> Any:
    for key in _IMAGE_KEYS:
        if key in item:
            return item[key]
    has = ", ".join(map(str, list(item)[:8]))
    raise InputError(f"{what} is a dict with the keys {has}; its image must have the key 'image'")


def _are_images(items: Sequence[Any]) -> bool:
    """Whether each object is an image: a Pillow image or an array, all in colour or all in
    grayscale.

    Together with an image in colour, an array of two dimensions may be something else, such as a
    mask or a text embedding.
    """
    axes = {3 if isinstance(item, Image.Image) else getattr(item, "ndim", 0) for item in items}
    return axes in ({2}, {3})


def _as_array(item: Any, what: str) -> NDArray[Any]:
    """Convert a tensor on any device, or any other array, to a NumPy array."""
    if _is_tensor(item):
        item = item.detach().cpu()
        if str(item.dtype) == "torch.bfloat16":
            import torch

            return np.asarray(item.view(torch.int16)).view(BFLOAT16)
        try:
            return np.asarray(item)
        except TypeError as error:
            raise InputError(
                f"{what} cannot be converted to an array ({item.dtype}, {error}):",
                "pass tensor.float()",
            ) from None
    if hasattr(item, "__array__"):
        array = np.asarray(item)
        if array.dtype.name == "bfloat16":  # of ml_dtypes, as JAX has it
            return array.view(BFLOAT16)
        return array
    remedy = "fidtool.Images documents what is accepted"
    if isinstance(item, Iterator):
        remedy = _SEVERAL_SETS
    raise InputError(f"{what} is of type {type(item).__name__}, not an image; {remedy}")


def _images_from_array(
    values: NDArray[Any], value_range: ValueRange | None, what: str
) -> list[Read]:
    batch = values if values.ndim > 3 else values[None]
    if batch.ndim == 4 and not len(batch):
        return []
    axis = channel_axis(batch.shape, what, single=values.ndim == 3)
    check_dtype(values.dtype, what)
    # Copy, because the program may overwrite the memory.
    return [to_pixels(to_hwc(image, axis).copy(), value_range, what) for image in batch]


def copy_image(image: Image.Image) -> Read:
    """Copy a program's Pillow image, because the program may change it, for example to the next
    frame.
    """
    # Decoding refuses it, before the memory of a copy is needed.
    if image.width * image.height > MAX_PIXELS:
        return image
    try:
        with pillow_defaults():
            copy = image.copy()
    except MemoryError as error:
        return error
    except Exception as error:  # the copy decodes, and Pillow's plugins raise many kinds
        return ContentError(format_message(error))
    # What describes the file, which Pillow's copy drops.
    for name in ("format", "quantization", "tag_v2"):
        if getattr(image, name, None) is not None:
            setattr(copy, name, getattr(image, name))
    with contextlib.suppress(Exception):  # damaged files
        # At another frame than the first, the program chose it.
        copy.is_animated = image.is_animated and image.tell() == 0  # type: ignore[attr-defined]
    return copy
