"""Crops, bit for bit as the code that each is named after.

``crop_origins.json`` has hashes of what that code makes of 40 images in RGB: ``center_crop_arr`` of
guided-diffusion (22e0df8), ``make_transform`` of EDM's ``dataset_tool.py`` (008a4e5; EDM2's at
4bf8162 agrees), torchvision's transforms (0.29), the validation set of VAR's ``utils/data.py``
(78b9539), and the steps of 1d-tokenizer's ``ImageTransform`` (1c6df99), GigaGAN's ``evaluation.py``
(9fba242) and text2image-benchmark's ``Resizer`` (3a9238e). It was made once, with that code and Pillow 13.0; Pillow 11.3 and 12.2 agree but for the
tall images below "before Pillow 13".
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import transforms

import fidtool
from fidtool.errors import render
from fidtool.reading.decode import DecodeError, DecodeOptions, decode
from fidtool.settings.settings import Settings
from fidtool.sources.contents import Pixels
from fidtool.sources.crops import CROPS, FILTERS, Crop
from support.framed_images import SIZES, framed_images

ORIGINS = json.loads(Path(__file__).with_name("crop_origins.json").read_text())
HASHED = [name for name in CROPS if name != "tensor-center"]
"""Without the crop by torch's filter, whose last bits depend on the processor and on torch's
version.
"""
PILLOW_13 = int(PIL.__version__.partition(".")[0]) >= 13


def rgb(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def shortened_hash(pixels: NDArray[np.uint8]) -> str:
    return hashlib.sha256(pixels.tobytes()).hexdigest()[:12]


def expected(crop: str, name: str, place: int) -> str:
    """Return the hash of an image: of tall images, Pillow's filters give other values since version
    13.
    """
    of_crop = {} if PILLOW_13 else ORIGINS["before Pillow 13"].get(crop, {})
    return str(of_crop.get(name) or ORIGINS["origins"][crop].split()[place])


def test_the_filters_of_each_crop_are_known() -> None:
    assert FILTERS.keys() == CROPS.keys()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HASHED)
def test_decoded_images_are_framed_as_by_the_origin(name: str, size: int) -> None:
    crop, files = Crop(name, size), framed_images()
    pixels = [decode(data, DecodeOptions(crop=crop)).pixels for data in files.values()]
    assert len(pixels) == len(files) == 40
    assert {(each.shape, each.dtype) for each in pixels} == {((size, size, 3), np.dtype(np.uint8))}
    assert all(each.flags.c_contiguous for each in pixels)
    hashes = dict(zip(files, map(shortened_hash, pixels), strict=True))
    differing = [
        file for place, file in enumerate(files) if hashes[file] != expected(str(crop), file, place)
    ]
    assert not differing


@pytest.mark.parametrize("size", SIZES)
def test_tensors_as_by_torchvision(size: int) -> None:
    """With the installed version, also under settings of a program that change its tensors."""
    steps = [transforms.ToTensor(), transforms.Resize(size), transforms.CenterCrop(size)]
    transform = transforms.Compose([*steps, transforms.Normalize([0.5] * 3, [0.5] * 3)])
    images = [rgb(data) for data in framed_images().values()]
    wanted = [
        (127.5 * transform(image) + 128.0).clamp(0, 255).byte().permute(1, 2, 0).numpy()
        for image in images
    ]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = [Crop("tensor-center", size).apply(np.asarray(image)) for image in images]
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CROPS)
def test_other_contents_are_framed_alike(name: str) -> None:
    """Arrays, Pillow images, and views that are not contiguous."""
    data = framed_images()["RGB 131x257"]
    pixels, crop = np.asarray(rgb(data)), Crop(name, 64)
    wanted = decode(data, DecodeOptions(crop=crop)).pixels
    fortran = np.asfortranarray(pixels)
    contents = (Pixels(pixels), Image.open(io.BytesIO(data)), Pixels(fortran))
    for content in contents:
        result = decode(content, DecodeOptions(crop=crop))
        np.testing.assert_array_equal(result.pixels, wanted)
    np.testing.assert_array_equal(crop.apply(pixels[:, ::-1]), crop.apply(pixels[:, ::-1].copy()))


# --- limits ---------------------------------------------------------------------------------------


def test_max_pixels_is_about_the_image_and_what_is_made_of_it() -> None:
    def result(max_pixels: int, crop: Crop, size: tuple[int, int] = (1, 300)) -> str:
        options = DecodeOptions(max_pixels=max_pixels, crop=crop)
        try:
            decode(Pixels(np.zeros((*size, 3), np.uint8)), options)
        except DecodeError as error:
            return str(error)
        return ""

    assert result(300, Crop("edm", 17)) == ""
    assert result(299, Crop("edm", 2)).startswith(
        "it has 300 x 1 = 300 pixels, more than the limit of 299"
    )
    for name in ("adm", "center", "center-bicubic", "tensor-center"):
        assert result(30_000, Crop(name, 10)) == ""
        wanted = (
            f"resized for {name}:10, it has 3000 x 10 = 30000 pixels, more than the limit of 29999"
        )
        assert result(29_999, Crop(name, 10)).startswith(wanted)
    assert result(36_299, Crop("var", 10)).startswith(
        "resized for var:10, it has 3300 x 11 = 36300 pixels"
    )
    for name in ("edm", "gigagan", "t2ibenchmark", "resize"):
        assert result(399, Crop(name, 20)).startswith(
            f"resized for {name}:20, it has 20 x 20 = 400 pixels"
        )
    assert "max_pixels raises it" in render(str(result(10**8, Crop("adm", 99_999), (3, 3))))


# --- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "usual"),
    [
        ("adm:256", "adm:256"),
        ("ADM:64", "adm:64"),
        ("tensor_center:32", "tensor-center:32"),
        (" center:064 ", "center:64"),
    ],
)
def test_spellings(typed: str, usual: str) -> None:
    settings = Settings(crop=typed, crop_fake=typed)
    assert settings.crop == settings.crop_fake == Crop.parse(usual)
    assert str(settings.crop) == usual
    assert replace(settings, seed=1).crop == settings.crop


FORM = (
    "must be a crop (adm, edm, center, center-bicubic, tensor-center, var, gigagan, t2ibenchmark, "
    "resize) and the side of a square in pixels, such as adm:256, not "
)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("adm", FORM + "'adm'"),
        ("", FORM + "''"),
        ("adm:0", FORM),
        ("adm:256x256", FORM),
        ("adm:²", FORM),
        ("adm:" + "9" * 5000, FORM),
        ("adn:256", FORM + "'adn:256'"),
        ("nonsense", FORM),
        (256, FORM + "256"),
        (Path("adm:256"), FORM),
        ([*range(10**5)], FORM + "[0, 1, 2"),
    ],
)
def test_wrong_crops_are_refused(typed: object, words: str) -> None:
    for setting in ("crop", "crop_fake"):
        with pytest.raises(fidtool.InputError) as error:
            Settings(**{setting: typed})  # type: ignore[arg-type]
        assert words in str(error.value)
        assert len(str(error.value)) < 400
        assert str(error.value).startswith(setting)
        assert error.value.setting == setting
