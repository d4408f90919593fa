"""Presets against the steps of the programs that they are named after, on photos.

The steps are written here from the programs' code, with Pillow, torch, scikit-image, torchmetrics
and the networks of torch-fidelity and pytorch-fid. The FID is that of Inception's first 64
features, which the whole preparation passes through; those of all 2048 are compared elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import functional

from support.command_line import Outcome, Run
from support.offline import needs_weights, write_official_file
from support.places import CONFORMANCE
from support.reconstructions import lpips_of, write_backbone

pytest.importorskip("torch_fidelity", reason="needs torch-fidelity, of the extra 'test'")
pytest.importorskip("pytorch_fid", reason="needs pytorch-fid, of the extra 'test'")
pytest.importorskip("skimage", reason="needs scikit-image, of the extra 'test'")
pytest.importorskip("torchmetrics", reason="needs torchmetrics, of the extra 'test'")

pytestmark = [
    needs_weights,
    pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="needs the conformance images"),
]
Bytes = NDArray[np.uint8]
COUNT = int(os.environ.get("PRESET_PHOTOS", "8"))
"""Number of photos. With 200, a test takes a minute."""


@pytest.fixture
def weights(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    return write_official_file(tmp_path / "home")


def photo_files(count: int) -> list[Path]:
    """Return as many daisies as roses."""
    folders = [
        sorted((CONFORMANCE / "flowers" / kind).glob("*.jpg")) for kind in ("daisy", "roses")
    ]
    return [file for folder in folders for file in folder[: count // 2]]


def place_photos(folder: Path, count: int) -> list[Image.Image]:
    """Copy photos to a folder and return them, in the order of their names there."""
    folder.mkdir()
    photos = []
    for number, file in enumerate(photo_files(count)):
        (folder / f"{number:06}.jpg").write_bytes(file.read_bytes())
        photos.append(Image.open(file).convert("RGB"))
    assert len({photo.size for photo in photos}) > 5
    return photos


def save_all(folder: Path, images: Sequence[Bytes]) -> None:
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:06}.png")


def reconstruct(image: Tensor) -> Tensor:
    """Return values in about 0..1 of an image (3, height, width) of such values, without their
    details: a tokenizer.
    """
    blurred = torch.nn.functional.avg_pool2d(image[None], 4)
    large = torch.nn.functional.interpolate(blurred, scale_factor=4.0, mode="bilinear")[0]
    ripple = torch.linspace(0, 40, large.shape[-1]).sin() / 60
    return 1.02 * (0.8 * large + 0.2 * image) - 0.01 + ripple


def to_bytes(image: Tensor) -> Bytes:
    return image.to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


def frechet(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    import scipy.linalg

    (mu1, sigma1), (mu2, sigma2) = (
        (rows.mean(axis=0), np.cov(rows, rowvar=False)) for rows in (first, second)
    )
    root = scipy.linalg.sqrtm(sigma1 @ sigma2).real
    return float(((mu1 - mu2) ** 2).sum() + np.trace(sigma1 + sigma2 - 2 * root))


Extract = Callable[[Bytes], Tensor]
"""Returns the 64 features of an image."""


def torch_fidelity_network(weights: Path, dtype: str = "float32") -> Extract:
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    network = FeatureExtractorInceptionV3(
        "inception",
        ["64"],
        feature_extractor_weights_path=str(weights),
        feature_extractor_internal_dtype=dtype,
    )
    return lambda image: network(torch.from_numpy(image).permute(2, 0, 1)[None])[0][0]


def pytorch_fid_network(prepare: Callable[[Bytes], Tensor], **settings: Any) -> Extract:
    from pytorch_fid.inception import InceptionV3

    network = InceptionV3([0], **settings).eval()
    return lambda image: network(prepare(image)[None])[0].mean(dim=(2, 3))[0]


def fid_of(extract: Extract, first: Sequence[Bytes], second: Sequence[Bytes]) -> float:
    with torch.inference_mode():
        rows = [
            np.stack([extract(np.array(image)).double().numpy() for image in images])
            for images in (first, second)
        ]
    return frechet(*rows)


class Evaluated(NamedTuple):
    """What the steps of a tokenizer's program give.

    Attributes:
        originals, reconstructions: the images of its FID.
        extract: its Inception.
        values: its other values, by their keys.
    """

    originals: list[Bytes]
    reconstructions: list[Bytes]
    extract: Extract
    values: dict[str, float]


def adm_crop(photo: Image.Image, size: int = 256) -> Bytes:
    while min(*photo.size) >= 2 * size:
        photo = photo.resize((photo.width // 2, photo.height // 2), Image.Resampling.BOX)
    scale = size / min(*photo.size)
    sides = (round(photo.width * scale), round(photo.height * scale))
    pixels = np.array(photo.resize(sides, Image.Resampling.BICUBIC))
    top, left = ((side - size) // 2 for side in pixels.shape[:2])
    return pixels[top : top + size, left : left + size]


SIGNED = transforms.Normalize([0.5] * 3, [0.5] * 3)


def llamagen(photos: list[Image.Image], weights: Path) -> Evaluated:
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    originals, made, psnr, ssim = [], [], [], []
    for photo in photos:
        original = adm_crop(photo)
        image = SIGNED(functional.to_tensor(original))
        decoded = 2 * reconstruct((image + 1) / 2) - 1
        made.append(to_bytes((127.5 * decoded + 128.0).clamp(0, 255)))
        originals.append(to_bytes((127.5 * image + 128.0).clamp(0, 255)))
        restored = made[-1].astype(np.float32) / 255.0
        truth = (image.permute(1, 2, 0).numpy() + 1.0) / 2.0
        psnr.append(peak_signal_noise_ratio(restored, truth))
        ssim.append(structural_similarity(restored, truth, data_range=2.0, channel_axis=-1))
    values = {"psnr": np.mean(psnr), "ssim": np.mean(ssim)}
    return Evaluated(originals, made, torch_fidelity_network(weights), values)


def rae(photos: list[Image.Image], weights: Path) -> Evaluated:
    from torchmetrics.functional.image import structural_similarity_index_measure

    originals = [adm_crop(photo) for photo in photos]
    made, psnr, ssim = [], [], []
    for original in originals:
        decoded = reconstruct(functional.to_tensor(original)).clamp(0, 1)
        made.append(to_bytes(decoded.mul(255)))
        one, other = (functional.to_tensor(image)[None] for image in (original, made[-1]))
        error = ((one - other) ** 2).mean().clamp(min=1e-10)
        psnr.append(float(20.0 * torch.log10(1 / error.sqrt())))
        ssim.append(float(structural_similarity_index_measure(other, one, data_range=1.0)))
    values = {"psnr": np.mean(psnr), "ssim": np.mean(ssim)}
    return Evaluated(originals, made, torch_fidelity_network(weights), values)


def vavae(photos: list[Image.Image], weights: Path) -> Evaluated:
    """SSIM is of the bytes here; see `test_values_of_floats`."""
    measure = signed_ssim()
    originals, made, psnr, ssim = [], [], [], []
    for images, decoded in tensor_batches(photos):
        pairs = [map(to_bytes, (127.5 * each + 128.0).clamp(0, 255)) for each in (images, decoded)]
        for original, restored in zip(*pairs, strict=True):
            one, other = (
                torch.tensor(image, dtype=torch.float32) for image in (original, restored)
            )
            psnr.append(float(20 * torch.log10(255.0 / ((one - other) ** 2).mean().sqrt())))
            rounded = (SIGNED(functional.to_tensor(each))[None] for each in (restored, original))
            ssim.append(float(measure(*rounded)))
            originals.append(original)
            made.append(restored)
    values = {"psnr": np.mean(psnr), "ssim": np.mean(ssim)}
    return Evaluated(originals, made, pytorch_fid_network(functional.to_tensor), values)


def signed_ssim() -> Any:
    from torchmetrics.image import StructuralSimilarityIndexMeasure

    return StructuralSimilarityIndexMeasure(data_range=(-1.0, 1.0))


def tensor_batches(photos: list[Image.Image]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and reconstructions in -1..1, 8 at a time."""
    steps = [transforms.ToTensor(), transforms.Resize(256), transforms.CenterCrop(256), SIGNED]
    crop = transforms.Compose(steps)
    for start in range(0, len(photos), 8):
        images = torch.stack([crop(photo) for photo in photos[start : start + 8]])
        yield images, torch.stack([2 * reconstruct((image + 1) / 2) - 1 for image in images])


def titok(photos: list[Image.Image], weights: Path) -> Evaluated:
    bicubic = transforms.InterpolationMode.BICUBIC
    prepare = transforms.Compose(
        [
            transforms.Resize(256, interpolation=bicubic, antialias=True),
            transforms.CenterCrop(256),
            transforms.ToTensor(),
        ]
    )
    originals, made = [], []
    for photo in photos:
        image = prepare(photo)
        decoded = torch.round(reconstruct(image).clamp(0.0, 1.0) * 255.0) / 255.0
        made.append(to_bytes(decoded * 255))
        originals.append(to_bytes(image.clamp(0.0, 1.0) * 255))
    return Evaluated(originals, made, torch_fidelity_network(weights, "float64"), {})


TOKENIZERS = {
    "rfid-llamagen": llamagen,
    "rfid-rae": rae,
    "rfid-vavae": vavae,
    "rfid-titok": titok,
}


def compute(here: Run, name: str, *options: object) -> Outcome:
    outcome = here("compute", "real", "fake", "--preset", name, "--dims", 64, "--json", *options)
    assert outcome.status == 0, outcome.stderr
    return outcome


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(name: str, here: Run, tmp_path: Path, weights: Path) -> None:
    steps = TOKENIZERS[name](place_photos(tmp_path / "real", COUNT), weights)
    save_all(tmp_path / "fake", steps.reconstructions)
    metrics = ",".join(("fid", *steps.values))
    found = compute(here, name, "--metrics", metrics).metrics
    wanted = fid_of(steps.extract, steps.originals, steps.reconstructions)
    assert found["fid_64"] == pytest.approx(wanted, rel=1e-5)
    for key, value in steps.values.items():
        assert found[key] == pytest.approx(value, rel=1e-5), key


@pytest.mark.slow
def test_values_of_floats(here: Run, tmp_path: Path, weights: Path) -> None:
    """LightningDiT's SSIM and LPIPS are of floats that were not rounded. For LPIPS one VGG-16 with
    random weights is on both sides.
    """
    photos = place_photos(tmp_path / "real", 8)
    backbone = write_backbone(tmp_path / "vgg.pth", "vgg")
    network, measure = lpips_of("vgg", backbone), signed_ssim()
    made, lpips, ssim = [], [], []
    for images, decoded in tensor_batches(photos):
        made += map(to_bytes, (127.5 * decoded + 128.0).clamp(0, 255))
        ssim.append(float(measure(decoded, images)))
        with torch.inference_mode():
            lpips.append(float(network(decoded, images).mean()))
    save_all(tmp_path / "fake", made)
    options = ("--metrics", "lpips,ssim", "--lpips-weights", backbone)
    found = here("compute", "real", "fake", "--preset", "rfid-vavae", "--json", *options)
    assert found.json["settings"]["lpips"]["net"] == "vgg"
    print(found.metrics, np.mean(lpips), np.mean(ssim))
    assert found.metrics["lpips"] == pytest.approx(np.mean(lpips), rel=2e-3)
    assert found.metrics["ssim"] == pytest.approx(np.mean(ssim), abs=2e-3)


# --- text-to-image --------------------------------------------------------------------------------


def square(image: Image.Image) -> Image.Image:
    return functional.center_crop(image, min(image.size))


def clean_network() -> Extract:
    """Return clean-fid's preparation, and the network."""

    def prepare(image: Bytes) -> Tensor:
        planes = [
            np.asarray(
                Image.fromarray(plane.astype(np.float32)).resize(
                    (299, 299), Image.Resampling.BICUBIC
                )
            ).clip(0, 255)
            for plane in np.moveaxis(image, -1, 0)
        ]
        return (torch.from_numpy(np.stack(planes)) - 128) / 128

    return pytorch_fid_network(prepare, resize_input=False, normalize_input=False)


def generate(folder: Path, photos: Sequence[Image.Image], side: int) -> list[Image.Image]:
    """Write images to a folder and return them: photos without their colours' finest steps."""
    images = [
        photo.resize((side, side), Image.Resampling.BILINEAR).quantize(24).convert("RGB")
        for photo in photos
    ]
    save_all(folder, [np.array(image) for image in images])
    return images


# The network has 12 tokens, two of them for start and end: the last two are always cut.
WORDS = ("a rose", "two white flowers in the sun", "many " * 30, "a daisy by a wall of red bricks")


def test_gigagan(here: Run, tmp_path: Path, weights: Path) -> None:
    pytest.importorskip("open_clip", reason="needs open_clip, of the extra 'clip'")
    import open_clip

    from support.captioned import CONFIG, KEY, NAME, configs_restored, save_weights

    photos = place_photos(tmp_path / "real", COUNT)
    images = generate(tmp_path / "fake", photos, 384)
    captions = [f"{WORDS[number % len(WORDS)]} {number}" for number in range(COUNT)]
    (tmp_path / "captions.txt").write_text("\n".join(captions) + "\n")
    small = [square(image).resize((256, 256), Image.Resampling.LANCZOS) for image in images]
    with configs_restored():
        model = save_weights(tmp_path / "words.pt")
        extractor = f"{NAME}@weights=words.pt"
        options = ("--captions", "captions.txt", "--clip-score-extractor", extractor)
        found = compute(here, "coco-gigagan", *options)
        tokenize = open_clip.get_tokenizer(CONFIG.stem)
        length = tokenize.context_length
        prepare = open_clip.image_transform(
            56, is_train=False, mean=model.visual.image_mean, std=model.visual.image_std
        )
        lengths = [len(tokenize.encode(f"A photo depicts {caption}")) + 2 for caption in captions]
        cut = sum(tokens > length for tokens in lengths)
        cosines: dict[str, list[float]] = {"rounded": [], "truncated": []}
        for image, caption in zip(small, captions, strict=True):
            tokens = tokenize([caption])
            words = tokenize(["A photo depicts "])[:, 1:4]
            tokens = torch.cat([tokens[:, :1], words, tokens[:, 1:]], dim=1)[:, :length]
            if tokens[0, -1] > 0:
                tokens[0, -1] = 49407
            floats = SIGNED(functional.to_tensor(image))
            lowered = Image.fromarray(to_bytes(((floats + 1.0) * 127.5).clamp(0.0, 255.0)))
            with torch.inference_mode():
                text = model.encode_text(tokens)
                for kind, picture in (("rounded", image), ("truncated", lowered)):
                    embedding = model.encode_image(prepare(picture)[None])
                    cosine = torch.nn.functional.cosine_similarity(embedding, text)
                    cosines[kind].append(float(cosine))
    assert min(cosines["rounded"]) > 0  # those below zero are not clipped there
    assert found.metrics[KEY] == pytest.approx(np.mean(cosines["rounded"]), rel=1e-5)
    assert found.metrics[KEY] == pytest.approx(np.mean(cosines["truncated"]), abs=1e-3)
    assert found.metrics[KEY.replace("score", "score_cut", 1)] == cut > 0
    record = found.json["settings"]["clip-score"]
    assert (record["weight"], record["prefix"]) == (1.0, "A photo depicts")
    title = found.json["values"][KEY]["number"]["title"]
    assert title == "CLIP score of 1 × cosine with 'A photo depicts'"
    originals = [
        np.array(square(photo).resize((256, 256), Image.Resampling.LANCZOS)) for photo in photos
    ]
    wanted = fid_of(clean_network(), originals, [np.array(image) for image in small])
    assert found.metrics["fid_64"] == pytest.approx(wanted, rel=1e-5)


def test_t2ibenchmark(here: Run, tmp_path: Path, weights: Path) -> None:
    photos = place_photos(tmp_path / "real", COUNT)
    images = generate(tmp_path / "fake", photos, 384)

    def prepare(image: Bytes) -> Tensor:
        return 2 * functional.to_tensor(image) - 1

    def resized(image: Image.Image) -> Bytes:
        pixels = np.array(image)
        size = min(pixels.shape[:2])
        top, left = ((side - size) // 2 for side in pixels.shape[:2])
        cut = Image.fromarray(pixels[top : top + size, left : left + size])
        return np.array(cut.resize((299, 299), Image.Resampling.BICUBIC))

    extract = pytorch_fid_network(prepare, normalize_input=False)
    wanted = fid_of(extract, [*map(resized, photos)], [*map(resized, images)])
    found = compute(here, "coco-t2ibenchmark").metrics
    assert found["fid_64"] == pytest.approx(wanted, rel=1e-5)
