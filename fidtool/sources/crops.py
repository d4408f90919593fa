"""Crops: how the images of a set are cropped and resized before anything else, bit for bit as
published code does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fidtool.errors import InputError, option, short_repr
from fidtool.names import fold

if TYPE_CHECKING:  # the settings import this module, and --help must be fast
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    Pixels = NDArray[np.uint8]

EXAMPLE = "adm:256"
# Pillow's filters, see its `Resampling`.
_LANCZOS = 1
_BICUBIC = 3
_BOX = 4
# Crops that resize a square that was cut out, or the whole image to a square.
_OF_SQUARES = ("edm", "gigagan", "t2ibenchmark", "resize")


@dataclass(frozen=True)
class Crop:
    """A crop, named as in `CROPS`, to a square with sides of ``size`` pixels. Smaller images are
    enlarged.

    Attributes:
        name: name of the crop: ``adm``, ``edm``, ``center``, ``center-bicubic``,
            ``tensor-center``, ``var``, ``gigagan``, ``t2ibenchmark`` or ``resize``.
        size: side of the square in pixels.
    """

    name: str
    size: int

    @classmethod
    def parse(cls, text: object, setting: str = "crop") -> Crop:
        """Return the crop that ``NAME:SIZE`` or a crop describes, in any spelling; an InputError
        for others.
        """
        spelled = str(text) if isinstance(text, (str, Crop)) else ""
        typed, _, size = spelled.strip().partition(":")
        if re.fullmatch("0*[1-9][0-9]{0,4}", size):
            for name in CROPS:
                if fold(name) == fold(typed):
                    return cls(name, int(size))
        raise InputError(
            f"{option(setting)} must be a crop ({', '.join(CROPS)}) and the side of a square in "
            f"pixels, such as {EXAMPLE}, not {short_repr(text)}"
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"

    @property
    def described(self) -> str:
        """The crop with its filters, such as ``edm:64 (Lanczos filter)``."""
        return f"{self} ({FILTERS[self.name]})"

    def apply(self, pixels: Pixels) -> Pixels:
        """Return the square, uint8 of shape (size, size, 3), of RGB pixels, uint8 of shape
        (height, width, 3).
        """
        import numpy as np
        from PIL import Image

        return np.asarray(CROPS[self.name](Image.fromarray(pixels), self.size))

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of the largest image that `apply` makes, up to rounding."""
        if self.name in _OF_SQUARES:
            return self.size, self.size
        side = _side_with_border(self.size) if self.name == "var" else self.size
        shorter = min(width, height)
        return side * width // shorter, side * height // shorter


def _adm(image: Image.Image, size: int) -> Image.Image:
    """``center_crop_arr`` of guided-diffusion, also in DiT, SiT, MAR, REPA and, as
    ``center-crop-dhariwal``, in EDM2.

    Both sides are halved with a box filter as long as the shorter one remains at least ``size``. A
    bicubic filter then makes the shorter side ``size``, and the centre is cut out.
    """
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), _BOX)
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), _BICUBIC)
    return _crop_center(image, size)


def _crop_center(image: Image.Image, side: int) -> Image.Image:
    left = (image.width - side) // 2
    top = (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _edm(image: Image.Image, size: int) -> Image.Image:
    """``dataset_tool.py --transform=center-crop`` of EDM and EDM2: the largest square in the
    centre, then Lanczos.
    """
    return _resize(_crop_center(image, min(image.size)), size)


def _center(image: Image.Image, size: int) -> Image.Image:
    """torchvision's ``Resize(size)`` and ``CenterCrop(size)`` of a Pillow image: bilinear, with
    antialiasing.
    """
    from torchvision.transforms import functional

    square: Image.Image = functional.center_crop(functional.resize(image, [size]), [size])
    return square


def _center_bicubic(image: Image.Image, size: int) -> Image.Image:
    """``ImageTransform`` of 1d-tokenizer (TiTok, ``data/webdataset_reader.py``), for evaluation.

    As `_center`, with a bicubic filter.
    """
    from torchvision.transforms import InterpolationMode, functional

    resized = functional.resize(image, [size], InterpolationMode.BICUBIC)
    square: Image.Image = functional.center_crop(resized, [size])
    return square


def _tensor_center(image: Image.Image, size: int) -> Pixels:
    """``evaluate_tokenizer.py`` of LightningDiT: torchvision's ``ToTensor``, ``Resize``,
    ``CenterCrop``, ``Normalize``.

    As in the reference images that it writes, the values x from -1 to 1 become bytes as ``127.5 * x
    + 128``, clamped to 0..255 and truncated, which rounds half up. torch's filter computes in
    float32, whose last bits depend on the vector instructions of the processor: between kinds of
    processors, one byte in some ten thousand differs by 1.
    """
    import torch
    from torchvision.transforms import functional

    planes = functional.pil_to_tensor(image).contiguous()
    # What ToTensor computes, which would depend on the default dtype of the program.
    values = functional.convert_image_dtype(planes, torch.float32)
    values = functional.center_crop(functional.resize(values, [size], antialias=True), [size])
    values = functional.normalize(values, [0.5] * 3, [0.5] * 3)
    rounded = (127.5 * values + 128.0).clamp(0, 255).to(torch.uint8)
    square: Pixels = rounded.permute(1, 2, 0).contiguous().numpy()
    return square


def _side_with_border(size: int) -> int:
    """Return the shorter side of the images from whose centre VAR cuts squares with sides of
    ``size`` pixels.
    """
    return round(1.125 * size)


def _var(image: Image.Image, size: int) -> Image.Image:
    """``build_dataset`` of VAR (``utils/data.py``), for the validation set: torchvision's
    ``Resize`` by Lanczos.

    The shorter side becomes 1.125 times ``size``, so that an image of that size loses its border.
    """
    from torchvision.transforms import InterpolationMode, functional

    resized = functional.resize(image, [_side_with_border(size)], InterpolationMode.LANCZOS)
    square: Image.Image = functional.center_crop(resized, [size])
    return square


def _gigagan(image: Image.Image, size: int) -> Image.Image:
    """``evaluation.py`` of GigaGAN, for COCO, also in LlamaGen and DMD2: torchvision's largest
    square in the centre, then Lanczos.

    torchvision rounds half a pixel to the even one, and `_edm` rounds it down.
    """
    from torchvision.transforms import functional

    return _resize(functional.center_crop(image, [min(image.size)]), size)


def _t2ibenchmark(image: Image.Image, size: int) -> Image.Image:
    """``build_resizer`` of text2image-benchmark, which resizes to Inception's 299 pixels: the
    largest square in the centre, then bicubic.
    """
    return _crop_center(image, min(image.size)).resize((size, size), _BICUBIC)


def _resize(image: Image.Image, size: int) -> Image.Image:
    """``dataset_tool.py`` of EDM without a transform: Lanczos to the square, whatever the aspect
    ratio.

    An image of that size is unchanged.
    """
    return image.resize((size, size), _LANCZOS)


FILTERS = {
    "adm": "box and bicubic filters",
    "edm": "Lanczos filter",
    "center": "bilinear filter with antialiasing",
    "center-bicubic": "bicubic filter",
    "tensor-center": "bilinear filter with antialiasing, of float32",
    "var": "Lanczos filter",
    "gigagan": "Lanczos filter",
    "t2ibenchmark": "bicubic filter",
    "resize": "Lanczos filter",
}
"""With which filters the crops resize, by their names: the PSNR of a pair depends on them."""


def crops_to_one_size(real: tuple[int, int] | None, fake: tuple[int, int] | None) -> str:
    """Return the settings with which the images of two sets become squares of one size, for
    messages.

    If those of one set are squares, the others are cropped to them, as REAL was for the training of
    the generator.

    Args:
        real, fake: width and height of the images of each set; None for one of them if they vary.
    """
    sizes = [size for size in (real, fake) if size is not None]
    squares = [width for width, height in sizes if width == height]
    side = min(squares or map(min, sizes))
    settings = {"crop": real, "crop_fake": fake}
    return " and ".join(
        option(name, f"adm:{side}") for name, size in settings.items() if size != (side, side)
    )


CROPS: dict[str, Callable[[Image.Image, int], Image.Image | Pixels]] = {
    "adm": _adm,
    "edm": _edm,
    "center": _center,
    "center-bicubic": _center_bicubic,
    "tensor-center": _tensor_center,
    "var": _var,
    "gigagan": _gigagan,
    "t2ibenchmark": _t2ibenchmark,
    "resize": _resize,
}
"""The crops, by name: functions of an RGB image and the side of the square."""
