"""PSNR, SSIM, MS-SSIM and LPIPS against torchmetrics, scikit-image and the package lpips, and those
of Y against scikit-image and the steps of BasicSR, on the same images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import correlate1d

import fidtool
from fidtool.settings.presets import PRESETS
from support.command_line import Run
from support.places import CONFORMANCE
from support.reconstructions import (
    SIZES,
    lpips_of,
    make_reconstructions,
    rgb,
    write_backbone,
)

QUALITIES = (30, 60, 90)


def values_of(real: object, fake: object, *metrics: Any) -> dict[str, NDArray[np.float64]]:
    """Return the value of each pair by metric, in the order of the files' names."""
    (found,) = fidtool.compute(real, fake, metrics=[*metrics], cache=False, diagnose=False).results
    single = found.of_images
    order = np.argsort(single.files)
    for name, values in single.values.items():
        assert found.metrics[name] == pytest.approx(values.mean(), rel=1e-13)
        assert found.metrics[f"{name}_std"] == pytest.approx(values.std(ddof=1), rel=1e-10)
    return {name: values[order] for name, values in single.values.items()}


def batch(pixels: NDArray[np.uint8], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].to(dtype)


def peers(real: NDArray[np.uint8], fake: NDArray[np.uint8]) -> dict[str, tuple[float, float]]:
    """Return the values of torchmetrics and of scikit-image; each has one of the two windows of
    SSIM.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity
    from torchmetrics.functional.image import peak_signal_noise_ratio as tm_psnr
    from torchmetrics.functional.image import structural_similarity_index_measure as tm_ssim

    one, other = (batch(each) / 255 for each in (real, fake))
    return {
        "psnr": (
            float(tm_psnr(other, one, data_range=1.0)),
            peak_signal_noise_ratio(real, fake, data_range=255),
        ),
        "gaussian": (float(tm_ssim(other, one, data_range=1.0)),) * 2,
        "uniform": (float(structural_similarity(real, fake, channel_axis=2, data_range=255)),) * 2,
    }


def compare(pairs: Sequence[tuple[Path, Path]], real: object, fake: object) -> None:
    found = values_of(real, fake, fidtool.PSNR(), fidtool.SSIM())
    uniform = values_of(real, fake, fidtool.SSIM(window="uniform"))["ssim"]
    expected = [peers(*map(rgb, pair)) for pair in pairs]
    for name, own in (("psnr", found["psnr"]), ("gaussian", found["ssim"]), ("uniform", uniform)):
        for peer in (0, 1):
            np.testing.assert_allclose(
                own, [each[name][peer] for each in expected], rtol=1e-6, err_msg=name
            )


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_psnr_and_ssim_of_odd_sizes(mode: str, environment: dict[str, str], tmp_path: Path) -> None:
    real, recon = make_reconstructions(tmp_path, mode=lambda _: mode)
    compare([(file, recon / file.name) for file in sorted(real.iterdir())], real, recon)


@pytest.mark.parametrize(("scale", "black", "white"), [("signed", -1.0, 1.0), ("half", 0.0, 1.0)])
def test_ssim_of_other_scales(
    scale: Any, black: float, white: float, environment: dict[str, str], tmp_path: Path
) -> None:
    """Values in -1..1, and those in 0..1 with the constants of a range of 2."""
    from skimage.metrics import structural_similarity
    from torchmetrics.functional.image import structural_similarity_index_measure

    real, recon = make_reconstructions(tmp_path)
    pairs = [(file, recon / file.name) for file in sorted(real.iterdir())]
    expected: dict[str, list[float]] = {"gaussian": [], "uniform": []}
    for pair in pairs:
        one, other = (black + (white - black) * batch(rgb(file)) / 255 for file in pair)
        value = structural_similarity_index_measure(other, one, data_range=2.0)
        expected["gaussian"].append(float(value))
        planes = (image[0].permute(1, 2, 0).numpy() for image in (one, other))
        value = structural_similarity(*planes, channel_axis=2, data_range=2.0)
        expected["uniform"].append(value)
    for window, values in expected.items():
        metric = fidtool.SSIM(window=window, scale=scale)  # type: ignore[arg-type]
        np.testing.assert_allclose(values_of(real, recon, metric)["ssim"], values, rtol=1e-6)


def compare_scales(pairs: Sequence[tuple[Path, Path]], real: object, fake: object) -> None:
    from torchmetrics.functional.image import multiscale_structural_similarity_index_measure as peer

    expected = []
    for pair in pairs:
        one, other = (batch(rgb(file)) / 255 for file in pair)
        expected.append(float(peer(other, one, data_range=1.0)))
    np.testing.assert_allclose(values_of(real, fake, "ms-ssim")["ms_ssim"], expected, rtol=1e-6)


def test_ms_ssim_of_odd_sizes(environment: dict[str, str], tmp_path: Path) -> None:
    """The smallest side has 176 pixels, as in torchmetrics. The negative of an image has no
    similarity.
    """
    real, recon = make_reconstructions(tmp_path, ((176, 176), (177, 191), (176, 303), (257, 180)))
    Image.fromarray(255 - rgb(real / "001.png")).save(recon / "001.png")
    pairs = [(file, recon / file.name) for file in sorted(real.iterdir())]
    compare_scales(pairs, real, recon)
    assert (
        fidtool.MultiScaleSSIM().of_pair(*(torch.from_numpy(rgb(file).copy()) for file in pairs[1]))
        == 0
    )


def torchmetrics_lpips(net: str, weights: Path) -> Any:
    """Return torchmetrics' own copy of the network with the same weights."""
    from torchmetrics.functional.image import lpips as theirs

    model = theirs._LPIPS(pretrained=True, net=net, pnet_rand=True)
    tensors = torch.load(weights)
    for name, parameter in model.net.named_parameters():
        parameter.data.copy_(tensors[f"features.{name.split('.', 1)[1]}"])
    return model.eval()


def compare_lpips(
    net: str, pairs: Sequence[tuple[Path, Path]], real: object, fake: object, weights: Path
) -> None:
    metric = fidtool.LPIPS(net=net, weights=weights)  # type: ignore[arg-type]
    own = values_of(real, fake, metric)["lpips"]
    for model in (lpips_of(net, weights), torchmetrics_lpips(net, weights)):
        expected = []
        for pair in pairs:
            one, other = (batch(rgb(file), torch.float32) / 127.5 - 1 for file in pair)
            with torch.inference_mode():
                expected.append(float(model(one, other)))
        np.testing.assert_allclose(own, expected, rtol=1e-6)


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_lpips_of_odd_sizes(net: str, environment: dict[str, str], tmp_path: Path) -> None:
    sizes = [(max(35, width), max(35, height)) for width, height in SIZES]
    real, recon = make_reconstructions(tmp_path, sizes)
    pairs = [(file, recon / file.name) for file in sorted(real.iterdir())]
    compare_lpips(net, pairs, real, recon, write_backbone(tmp_path / "backbone.pth", net))


@pytest.fixture
def photos(tmp_path: Path) -> tuple[Path, dict[int, Path]]:
    """12 photos, at most 160 pixels long, and a folder of JPEG files of them for each quality."""
    if not CONFORMANCE.is_dir():
        pytest.skip("needs the conformance images")
    files = [
        file
        for kind in ("daisy", "roses")
        for file in sorted((CONFORMANCE / "flowers" / kind).glob("*.jpg"))[:6]
    ]
    assert len(files) == 12
    real, folders = (
        tmp_path / "real",
        {quality: tmp_path / f"quality{quality}" for quality in QUALITIES},
    )
    for place in (real, *folders.values()):
        place.mkdir()
    for number, file in enumerate(files):
        with Image.open(file) as image:
            image.thumbnail((160, 160))
            image.save(real / f"{number:03}.png")
        for quality, place in folders.items():
            Image.fromarray(rgb(real / f"{number:03}.png")).save(
                place / f"{number:03}.jpeg", quality=quality
            )
    return real, folders


def test_ms_ssim_of_photos(environment: dict[str, str], tmp_path: Path) -> None:
    if not CONFORMANCE.is_dir():
        pytest.skip("needs the conformance images")
    real, recon = tmp_path / "real", tmp_path / "recon"
    real.mkdir()
    recon.mkdir()
    for number, file in enumerate(sorted((CONFORMANCE / "flowers" / "daisy").glob("*.jpg"))[:12]):
        with Image.open(file) as image:
            image.convert("RGB").resize((176 + 9 * number, 200)).save(real / f"{number:02}.png")
        Image.fromarray(rgb(real / f"{number:02}.png")).save(
            recon / f"{number:02}.jpeg", quality=5 + 8 * number
        )
    compare_scales(
        [(file, recon / f"{file.stem}.jpeg") for file in sorted(real.iterdir())], real, recon
    )


@pytest.mark.slow  # torchmetrics' SSIM in float64 takes 0.1 s for each pair
def test_photos_and_their_jpeg_encodings(
    photos: tuple[Path, dict[int, Path]], environment: dict[str, str], tmp_path: Path
) -> None:
    real, folders = photos
    weights = write_backbone(tmp_path / "backbone.pth")
    for place in folders.values():
        pairs = [(file, place / f"{file.stem}.jpeg") for file in sorted(real.iterdir())]
        compare(pairs, real, place)
        compare_lpips("alex", pairs, real, place, weights)


def basicsr(
    real: NDArray[np.uint8], fake: NDArray[np.uint8], border: int, test_y_channel: bool
) -> tuple[float, float]:
    """Return PSNR and SSIM by the steps of BasicSR 1.4.2, basicsr/metrics/psnr_ssim.py: cut off the
    border, compute Y in float32 without rounding, then the rest in float64 with peak 255. SwinIR has
    the same steps.
    """
    images = []
    for image in (real, fake):
        height, width, _ = image.shape
        image = image[border : height - border, border : width - border]
        if test_y_channel:
            weighted = (image.astype(np.float32) / 255).dot([65.481, 128.553, 24.966]) + 16.0
            image = ((weighted / 255).astype(np.float32) * 255)[..., None]
        images.append(image.astype(np.float64))
    one, other = images
    psnr = 10 * np.log10(255**2 / np.mean((one - other) ** 2))
    places = np.arange(-5, 6)
    window = np.exp(-(places**2) / (2 * 1.5**2))
    window /= window.sum()

    def blur(values: NDArray[np.float64]) -> NDArray[np.float64]:
        for axis in (0, 1):
            values = correlate1d(values, window, axis)
        return values[5:-5, 5:-5]

    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    ssims = []
    for channel in range(one.shape[2]):
        x, y = one[..., channel], other[..., channel]
        mu1, mu2 = blur(x), blur(y)
        sigma1, sigma2 = blur(x * x) - mu1 * mu1, blur(y * y) - mu2 * mu2
        sigma12 = blur(x * y) - mu1 * mu2
        upper = (2 * mu1 * mu2 + c1) * (2 * sigma12 + c2)
        ssims.append(np.mean(upper / ((mu1**2 + mu2**2 + c1) * (sigma1 + sigma2 + c2))))
    return float(psnr), float(np.mean(ssims))


def skimage_of_y(
    real: NDArray[np.uint8], fake: NDArray[np.uint8], border: int
) -> tuple[float, float]:
    """Return PSNR and SSIM of scikit-image, whose documentation gives these parameters for the SSIM
    of Wang et al.
    """
    from skimage.color import rgb2ycbcr
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    inside = slice(border, -border or None)
    one, other = (rgb2ycbcr(image)[inside, inside, 0] for image in (real, fake))
    return peak_signal_noise_ratio(one, other, data_range=255), structural_similarity(
        one,
        other,
        data_range=255,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )


def enlarge(folder: Path, scale: int, count: int, side: int) -> list[tuple[Path, Path]]:
    """Write the centres of photos, and these after a reduction by the scale and bicubic
    enlargement; return the pairs.
    """
    if not CONFORMANCE.is_dir():
        pytest.skip("needs the conformance images")
    files = sorted((CONFORMANCE / "flowers").glob("*/*.jpg"))
    files = files[:: len(files) // count][:count]
    assert len(files) == count
    pairs = []
    for name in ("real", "fake"):
        (folder / name).mkdir(parents=True)
    for number, file in enumerate(files):
        pair = (folder / "real" / f"{number:03}.png", folder / "fake" / f"{number:03}.png")
        # Of different sizes, multiples of the scale, that are not squares.
        width, height = side + scale * (number % 5), side
        with Image.open(file) as image:
            left, top = (image.width - width) // 2, (image.height - height) // 2
            photo = image.convert("RGB").crop((left, top, left + width, top + height))
        photo.save(pair[0])
        small = photo.resize((width // scale, height // scale), Image.Resampling.BICUBIC)
        small.resize((width, height), Image.Resampling.BICUBIC).save(pair[1])
        pairs.append(pair)
    return pairs


@pytest.mark.parametrize("border", [0, 4])
def test_y_of_photos(border: int, environment: dict[str, str], tmp_path: Path) -> None:
    """Of 50 photos, reduced by 4 and enlarged: scikit-image, and the steps of BasicSR on Y and on
    RGB.
    """
    pairs = [[*map(rgb, pair)] for pair in enlarge(tmp_path, 4, 50, 96)]
    sets = tmp_path / "real", tmp_path / "fake"
    for channel in ("y", "rgb"):
        found = values_of(
            *sets,
            fidtool.PSNR(channel=channel, border=border),  # type: ignore[arg-type]
            fidtool.SSIM(channel=channel, border=border, window="gaussian-valid"),  # type: ignore[arg-type]
        )
        own = np.stack([found["psnr"], found["ssim"]], axis=1)
        expected = [basicsr(*pair, border, channel == "y") for pair in pairs]
        np.testing.assert_allclose(own, expected, rtol=1e-7)
        if channel == "y":
            expected = [skimage_of_y(*pair, border) for pair in pairs]
            np.testing.assert_allclose(own, expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [2, 3, 4, 8])
def test_presets_of_super_resolution(scale: int, here: Run, tmp_path: Path) -> None:
    """Of 200 photos, against the steps of the programs that they are named after."""
    pairs = [[*map(rgb, pair)] for pair in enlarge(tmp_path, scale, 200, 48)]
    name = f"sr-x{scale}"
    found = here("compute", "real", "fake", "--preset", name, "--json", "--no-diagnosis")
    assert found.json["run"]["config"]["preset"] == name
    expected = np.array([basicsr(*pair, scale, True) for pair in pairs])
    means = [found.metrics["psnr"], found.metrics["ssim"]]
    spreads = [found.metrics["psnr_std"], found.metrics["ssim_std"]]
    np.testing.assert_allclose(means, expected.mean(0), rtol=1e-7)
    np.testing.assert_allclose(spreads, expected.std(0, ddof=1), rtol=1e-6)
    assert {each for each in PRESETS if each.startswith("sr-")} == {
        "sr-x2",
        "sr-x3",
        "sr-x4",
        "sr-x8",
    }
