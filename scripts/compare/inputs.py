"""Inputs of the cases: small images in every format, unusual and damaged files, statistics of other tools, networks."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image, ImageFilter

HERE = Path(__file__).resolve().parent
COUNT = 24
SIDE = 24
SHARDS = 3


def make_inputs(folder: Path) -> None:
    """Write all inputs to a folder. The bytes are the same each time."""
    _write_set(folder / "real", COUNT, 1)
    _write_set(folder / "fake", COUNT, 2)
    _write_set(folder / "step100", COUNT, 3)
    _write_set(folder / "step200", COUNT, 4)
    _write_set(folder / "few", 6, 5, sides=(48, 64))
    _write_set(folder / "less", 6, 6, sides=(56,))
    _write_set(folder / "many", 240, 7, side_of_noise=5)
    _write_set(folder / "much", 240, 8, side_of_noise=6)
    _write_deep(folder / "deep")
    _write_odd(folder / "odd")
    _write_suspicious(folder)
    _write_broken(folder)
    _write_forms(folder)
    _write_arrays(folder)
    _write_statistics(folder)
    _write_networks(folder)
    for name in ("networks", "programs"):
        (folder / "modules").mkdir(exist_ok=True)
        shutil.copy(HERE / f"{name}.py", folder / "modules" / f"{name}.py")


def _images(count: int, seed: int, sides: Sequence[int] = (SIDE,), coarse: int = 6) -> list[Image.Image]:
    rng = np.random.RandomState(seed)
    small = [Image.fromarray(rng.randint(0, 256, (coarse, coarse, 3)).astype(np.uint8)) for _ in range(count)]
    return [
        each.resize((sides[number % len(sides)],) * 2, Image.Resampling.BICUBIC) for number, each in enumerate(small)
    ]


def _write_set(folder: Path, count: int, seed: int, sides: Sequence[int] = (SIDE,), side_of_noise: int = 6) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(_images(count, seed, sides, side_of_noise)):
        image.save(folder / f"{number:03}.png")


def _write_deep(folder: Path) -> None:
    """Write images in a subfolder, files that are no images, and an image with an unusual name."""
    _write_set(folder, 12, 9)
    _write_set(folder / "sub", 8, 10)
    (folder / "notes.txt").write_text("no image")
    (folder / "labels.csv").write_text("a,b")
    shutil.copy(folder / "000.png", folder / "picture.data")


def _write_odd(folder: Path) -> None:
    """Write mixed sizes, formats and modes: images that Pillow converts, and images that cause a warning."""
    _write_set(folder, 12, 11, sides=(20, 31, 48))
    first, *others = _images(8, 12, sides=(40, 33))
    first.convert("L").save(folder / "gray.png")
    others[0].convert("P").save(folder / "palette.png")
    others[1].convert("CMYK").save(folder / "cmyk.jpg")
    others[2].putalpha(80)
    others[2].save(folder / "alpha.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    others[3].save(folder / "turned.jpg", exif=turned, quality=60)
    others[4].save(folder / "moving.gif", save_all=True, append_images=[others[5]])
    others[6].save(folder / "web.webp", quality=30)
    deep = (np.arange(32 * 32, dtype=np.uint16).reshape(32, 32)) * 60
    Image.fromarray(deep).save(folder / "deep.png")


def _write_suspicious(folder: Path) -> None:
    """Write sets in which the diagnosis finds something."""
    images = _images(COUNT, 13)
    for name, count in (("copies", 4), ("dark", 0), ("swapped", 0), ("noise", 0), ("leaked", 0)):
        (folder / name).mkdir()
        for number, image in enumerate(images):
            if name == "copies":
                image = images[number // count]
            if name == "dark":
                image = image.point(lambda value: value // 60)
            if name == "swapped":
                image = Image.merge("RGB", image.split()[::-1]).filter(ImageFilter.GaussianBlur(1))
            if name == "noise":
                rng = np.random.RandomState(number)
                image = Image.fromarray(rng.randint(0, 256, (SIDE, SIDE, 3)).astype(np.uint8))
            if name == "leaked" and number % 2:
                image = Image.open(folder / "real" / f"{number:03}.png")
            where = f"rank{number % 4}_{number // 4:03}.png" if name == "copies" else f"{number:03}.png"
            image.save(folder / name / where)


def _write_broken(folder: Path) -> None:
    """Write files that cannot be read."""
    for name in ("empty", "texts"):
        (folder / name).mkdir()
    (folder / "texts" / "a.txt").write_text("no image")
    shutil.copytree(folder / "fake", folder / "broken")
    whole = (folder / "broken" / "007.png").read_bytes()
    (folder / "broken" / "007.png").write_bytes(whole[: len(whole) // 2])
    (folder / "broken" / "011.png").write_bytes(b"")
    (folder / "broken" / "013.png").write_text("<!doctype html><title>404</title>")
    shutil.copytree(folder / "fake", folder / "cracked")
    (folder / "cracked" / "011.png").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("something else")
    (folder / "bad.zip").write_bytes(b"something else")
    (folder / "wrong.pth").write_bytes(b"something else")
    (folder / "twice.txt").write_text("real/000.png\nreal/000.png\n")
    np.savez(folder / "damaged.npz", mu=np.zeros(16), sigma=np.eye(16))
    (folder / "damaged.npz").write_bytes((folder / "damaged.npz").read_bytes()[:900])


def names_in(folder: Path) -> list[str]:
    """Return the sorted relative names of the images in a folder."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*.png"))


def _pixels(folder: Path) -> NDArray[np.uint8]:
    return np.stack([np.asarray(Image.open(folder / name)) for name in names_in(folder)])


def _write_tar(file: Path, folder: Path, names: Sequence[str], mode: str = "w") -> None:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]
        for name in reversed(names):
            archive.add(folder / name, name)
            label = tarfile.TarInfo(f"{name}.cls")
            label.size = 1
            archive.addfile(label, io.BytesIO(b"7"))


def _write_zip(file: Path, folder: Path, names: Sequence[str], method: int) -> None:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in reversed(names):
            archive.write(folder / name, name)


def _write_forms(place: Path) -> None:
    """Write the images of ``fake`` as archives, lists and tables."""
    folder = place / "fake"
    names = names_in(folder)
    _write_zip(place / "images.zip", folder, names, zipfile.ZIP_DEFLATED)
    _write_zip(place / "stored.zip", folder, names, zipfile.ZIP_STORED)
    for kind in ("", "gz", "xz", "bz2"):
        _write_tar(place / f"images.tar{kind and '.'}{kind}", folder, names, f"w:{kind}")
    for shard in range(SHARDS):
        part = names[len(names) * shard // SHARDS : len(names) * (shard + 1) // SHARDS]
        _write_tar(place / f"shard-{shard:03}.tar", folder, part)
    (place / "images.txt").write_text("".join(f"fake/{name}\n" for name in names))
    with zipfile.ZipFile(place / "samples.zip", "w") as archive:
        for number, name in enumerate(names):
            archive.write(folder / name, f"{number:03}.output.png")
            archive.writestr(f"{number:03}.input.png", b"no image")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:  # both versions then report that it is missing
        (place / "images.parquet").write_bytes(b"PAR1")
        return
    rows = [{"bytes": (folder / name).read_bytes(), "path": name} for name in names]
    table = pyarrow.table({"image": rows, "label": list(range(len(names)))})
    parquet.write_table(table, place / "images.parquet", row_group_size=5)


def _write_arrays(place: Path) -> None:
    """Write the images of ``fake`` as arrays and tensors."""
    pixels = _pixels(place / "fake")
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    floats = (pixels / 255).astype(np.float32)
    np.savez(place / "images.npz", pixels, np.arange(len(pixels)))
    np.savez_compressed(place / "packed.npz", pixels)
    np.savez(place / "two.npz", images=pixels, others=pixels[::-1].copy())
    np.save(place / "images.npy", pixels)
    np.save(place / "planes.npy", pixels.transpose(0, 3, 1, 2).copy())
    np.save(place / "gray.npy", pixels[..., 0].copy())
    np.save(place / "floats.npy", floats)
    np.save(place / "beyond.npy", floats * 1.2)
    np.save(place / "signed.npy", (floats * 2 - 1).astype(">f8"))
    np.save(place / "fortran.npy", np.asfortranarray(pixels))
    torch.save(planes, place / "images.pt")
    torch.save({"images": planes.contiguous(), "labels": torch.zeros(3)}, place / "several.pt")
    try:
        from safetensors.torch import save_file
    except ImportError:
        (place / "images.safetensors").write_bytes(b"")
    else:
        save_file({"images": planes.contiguous()}, place / "images.safetensors")
    rng = np.random.RandomState(14)  # FID-infinity needs at least 5,014 images
    np.save(place / "thousands.npy", rng.randint(0, 256, (5020, 8, 8, 3)).astype(np.uint8))


def _write_statistics(place: Path) -> None:
    """Write statistics files in the formats of other tools, and invalid ones."""
    rng = np.random.RandomState(15)

    def moments(dims: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = rng.standard_normal((3 * dims, dims)) / 4 + 0.3
        return rows.mean(0), np.cov(rows, rowvar=False)

    mu, sigma = moments(16)
    np.savez(place / "foreign.npz", mu=mu, sigma=sigma)
    for dims in (64, 100):
        further = moments(dims)
        np.savez(place / f"foreign{dims}.npz", mu=further[0], sigma=further[1])
    np.savez(place / "adm.npz", mu=mu, sigma=sigma, mu_s=mu[:8], sigma_s=sigma[:8, :8])
    np.savez(place / "shapes.npz", mu=mu, sigma=sigma[:4])
    np.savez(place / "nan.npz", mu=mu * np.nan, sigma=sigma)
    np.savez(place / "asymmetric.npz", mu=mu, sigma=sigma + np.triu(np.ones_like(sigma)))
    np.savez(place / "nothing.npz", labels=np.arange(9))


class _Exported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 12, 5, stride=3, bias=False)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            self.convolution.weight.copy_(torch.randn(12, 3, 5, 5, generator=generator) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.convolution(x)).mean((2, 3))


def _write_networks(place: Path) -> None:
    """Write exported programs, and random weights of published networks. They are the same each time."""
    settings = json.dumps({"input_size": 24, "mean": [0.5] * 3, "std": [0.5] * 3, "feature_step": 17})
    script = torch.jit.script(_Exported().eval())
    torch.jit.save(script, str(place / "script.pt"), _extra_files={"fidtool.json": settings})
    batches: Any = {0: torch.export.Dim("n")}
    program = torch.export.export(_Exported().eval(), (torch.zeros(2, 3, 24, 24),), dynamic_shapes=(batches,))
    torch.export.save(program, place / "program.pt2", extra_files={"fidtool.json": settings})
    torch.export.save(program, place / "silent.pt2")
    torch.manual_seed(0)
    shufflenet = torchvision.models.shufflenet_v2_x0_5()
    for module in shufflenet.modules():
        if isinstance(module, torch.nn.Conv2d):  # otherwise the features would be rounded to 0
            torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    torch.save(shufflenet.state_dict(), place / "shufflenet.pth")
    try:
        import timm
    except ImportError:
        return
    torch.save(timm.create_model("test_vit", pretrained=False).state_dict(), place / "vit.pth")


def finish_weights(folder: Path) -> None:
    """Add a random classifier to one copy of the cached weights, and truncate the other copy."""
    for file in (folder / "classifier" / "weights").glob("*.pt"):
        payload = torch.load(file, weights_only=True)
        generator = torch.Generator().manual_seed(0)
        payload["state"]["fc.weight"] = torch.randn(1008, 2048, generator=generator) / 20
        payload["state"]["fc.bias"] = torch.randn(1008, generator=generator)
        torch.save(payload, file)
    for file in (folder / "damaged" / "weights").glob("*.pt"):
        file.write_bytes(file.read_bytes()[:5000])


def make_photos(folder: Path, count: int, side: int = 256) -> None:
    """Write JPEGs for speed measurements: two sets for the real network, two larger ones for decoding."""
    for seed, name, times in ((21, "photos", 1), (22, "samples", 1), (23, "crowd", 8), (24, "throng", 8)):
        (folder / name).mkdir()
        for number, image in enumerate(_images(count * times, seed, (side,), 40)):
            image.save(folder / name / f"{number:04}.jpg", quality=90)


if __name__ == "__main__":
    target, *what = sys.argv[1:]
    if not what:
        make_inputs(Path(target))
    elif what[0] == "weights":
        finish_weights(Path(target))
    else:
        make_photos(Path(target), int(what[0]))
