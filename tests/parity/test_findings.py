"""Findings about faulty images and about differences between sets, without false alarms for natural properties."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support import degenerate
from support.command_line import Run
from support.degenerate import compared
from support.places import CONFORMANCE, TINY
from support.shared_statistics import share_statistics


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Real images of the toy generator's kind, with different seeds."""
    return degenerate.distinct(tmp_path / "real", 120, first=10_000)


class TestPairs:
    """Differences between two sets, most of which are faults of the program that wrote FAKE."""

    @pytest.fixture(autouse=True)
    def kept(self, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
        """Cache the statistics of the photos that many of these tests compare with."""
        share_statistics(environment, tmp_path_factory.getbasetemp() / "findings-statistics")

    @staticmethod
    def codes(here: Run, real: Path, fake: Path) -> set[str]:
        return {each["code"] for each in compared(here, real, fake)[0]["diagnosis"]["findings"]}

    @pytest.fixture
    def photos(self) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        files = sorted((CONFORMANCE / "cifar10" / "test").glob("*.png"))
        if not files:
            pytest.skip("needs the conformance images")
        return [np.asarray(Image.open(file).convert("RGB")) for file in files]

    def test_channels_in_the_wrong_order(self, here: Run, tmp_path: Path, photos: list[Any]) -> None:
        fake = degenerate.write(tmp_path / "bgr", ((f"{i}.png", x[..., ::-1].copy()) for i, x in enumerate(photos)))
        assert self.codes(here, CONFORMANCE / "cifar10" / "train", fake) == {"swapped channels"}

    def test_values_from_minus_one(self, here: Run, tmp_path: Path, photos: list[Any]) -> None:
        clipped = ((x / 127.5 - 1).clip(0, 1) * 255 for x in photos)
        fake = degenerate.write(tmp_path / "n", ((f"{i}.png", x.astype(np.uint8)) for i, x in enumerate(clipped)))
        assert self.codes(here, CONFORMANCE / "cifar10" / "train", fake) == {"negative"}

    def test_values_from_zero_treated_as_from_minus_one(self, here: Run, tmp_path: Path, photos: list[Any]) -> None:
        pale = ((x / 255 + 1) / 2 * 255 for x in photos)
        fake = degenerate.write(tmp_path / "p", ((f"{i}.png", x.astype(np.uint8)) for i, x in enumerate(pale)))
        assert self.codes(here, CONFORMANCE / "cifar10" / "train", fake) == {"pale"}

    def test_a_fault_of_both_sets_is_reported(self, here: Run, tmp_path: Path, photos: list[Any]) -> None:
        """The same faulty program may have written both sets."""
        faults: dict[str, Callable[[Any], Any]] = {
            "unscaled": lambda x: x / 255,
            "pale": lambda x: (x / 255 + 1) / 2 * 255,
            "black": lambda x: 0 * x,
        }
        for code, fault in faults.items():
            sets = [tmp_path / code / name for name in ("real", "fake")]
            for folder, part in zip(sets, (photos[:100], photos[100:200]), strict=True):
                degenerate.write(folder, ((f"{i}.png", fault(x).astype(np.uint8)) for i, x in enumerate(part)))
            result, _, _ = compared(here, *sets)
            assert [each["code"] for each in result["diagnosis"]["findings"]] == [code, code]
            assert result["diagnosis"]["shared"]["count"] <= 2, "black images do not count as shared"

    def test_a_set_of_smaller_images_is_not_corrupt(self, here: Run, tmp_path: Path) -> None:
        flowers = sorted((CONFORMANCE / "flowers" / "roses").glob("*.jpg"))
        if not flowers:
            pytest.skip("needs the conformance images")
        small = (np.asarray(Image.open(file).convert("RGB").resize((32, 32))) for file in flowers)
        fake = degenerate.write(tmp_path / "small", ((f"{i}.png", x) for i, x in enumerate(small)))
        codes = self.codes(here, CONFORMANCE / "flowers" / "daisy", fake)
        assert "other size" in codes
        assert "rough" not in codes

    def test_values_that_were_not_scaled(self, here: Run, tmp_path: Path, photos: list[Any]) -> None:
        black = (x / 255 for x in photos)
        fake = degenerate.write(tmp_path / "u", ((f"{i}.png", x.astype(np.uint8)) for i, x in enumerate(black)))
        assert self.codes(here, CONFORMANCE / "cifar10" / "train", fake) == {"unscaled"}

    @pytest.mark.parametrize(
        ("make", "code"),
        [
            (lambda x: (x.astype(int) * 3 // 2) % 256, "rough"),
            (lambda x: (x.astype(int) * 3) % 256, "rough"),
            (lambda x: x.transpose(2, 0, 1).reshape(x.shape), "rough"),
            (lambda x: x.transpose(2, 0, 1).reshape(x.shape), "colourless"),
            (lambda x: x[..., [1, 1, 1]] + np.array([0, 1, 0], dtype=np.uint8), "colourless"),
            (lambda x: ((x / 255 - 0.45) / 0.23).clip(0, 1) * 255, "clipped"),
            (lambda x: 128 + (x.astype(float) - 128) * 0.3, "contrast"),
            (lambda x: x * 0.5, "brightness"),
        ],
    )
    def test_wrong_values_and_layouts(
        self, here: Run, tmp_path: Path, photos: list[Any], make: Callable[[Any], Any], code: str
    ) -> None:
        broken = (np.ascontiguousarray(make(x)).astype(np.uint8) for x in photos)
        fake = degenerate.write(tmp_path / "fake", ((f"{i}.png", x) for i, x in enumerate(broken)))
        codes = self.codes(here, CONFORMANCE / "cifar10" / "train", fake)
        assert code in codes
        assert "alike" not in codes
        # A few noise images add a finding and hide no other.
        noise = np.random.default_rng(2).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
        degenerate.write(fake, ((f"noise{i}.png", x) for i, x in enumerate(noise)))
        assert self.codes(here, CONFORMANCE / "cifar10" / "train", fake) == {*codes, "noise"}

    @pytest.mark.parametrize("kind", ["jitter", "shift"])
    @pytest.mark.parametrize("picture", [5, 17, 40])
    def test_a_collapsed_generator(self, here: Run, tmp_path: Path, photos: list[Any], kind: str, picture: int) -> None:
        """The images are similar but no duplicates."""
        rng = np.random.default_rng(1)

        def again(x: Any) -> Any:
            if kind == "shift":
                x = np.roll(x, rng.integers(-1, 2, 2), (0, 1))
            return (x + rng.integers(-20, 20, (1, 1, 3)) + rng.integers(-8, 8, x.shape)).clip(0, 255).astype(np.uint8)

        pictures = ((f"{i}.png", again(photos[picture])) for i in range(60))
        result, _, _ = compared(here, CONFORMANCE / "cifar10" / "train", degenerate.write(tmp_path / "fake", pictures))
        findings = result["diagnosis"]["findings"]
        assert not {each["code"] for each in findings} & {"contrast", "swapped channels", "colourless"}
        (alike,) = [each for each in findings if each["code"] == "alike"]
        assert (alike["set"], alike["severity"]) == ("fake", "high")
        assert any("has collapsed" in line for line in result["warnings"])

    @pytest.mark.parametrize("names", [("daisy", "roses"), ("roses", "daisy")])
    def test_varied_photos_have_no_findings(self, here: Run, names: tuple[str, str]) -> None:
        sets = [CONFORMANCE / "flowers" / name for name in names]
        if not sets[0].is_dir():
            pytest.skip("needs the conformance images")
        assert self.codes(here, *sets) == set()

    def test_black_borders_are_not_clipping(self, here: Run, tmp_path: Path, photos: list[Any]) -> None:
        def bordered(x: Any) -> Any:
            padded = np.zeros_like(x)
            padded[5:27] = x[5:27]
            return padded

        fake = degenerate.write(tmp_path / "bars", ((f"{i}.png", bordered(x)) for i, x in enumerate(photos)))
        assert self.codes(here, CONFORMANCE / "cifar10" / "train", fake) <= {"brightness"}

    def test_different_sizes(self, here: Run, real: Path, tmp_path: Path) -> None:
        fake = degenerate.write(tmp_path / "fake", ((f"{i}.png", degenerate.sample(i, 64)) for i in range(60)))
        assert "other size" in self.codes(here, real, fake)

    def test_different_compression(self, here: Run, tmp_path: Path) -> None:
        sets = [tmp_path / name for name in ("good", "bad")]
        for folder, first, quality in zip(sets, (0, 500), (95, 70), strict=True):
            pictures = ((f"{i}.jpg", degenerate.sample(first + i)) for i in range(60))
            degenerate.write(folder, pictures, quality=quality)
        assert self.codes(here, *sets) == {"other quality"}

    def test_gray_against_colour(self, here: Run, real: Path, tmp_path: Path) -> None:
        gray = (np.asarray(Image.fromarray(degenerate.sample(i)).convert("L")) for i in range(60))
        fake = degenerate.write(tmp_path / "gray", ((f"{i}.png", pixels) for i, pixels in enumerate(gray)))
        assert "grayscale" in self.codes(here, real, fake)


class TestNaturalProperties:
    """Properties that REAL has as well are not faults of FAKE."""

    @staticmethod
    def on_black(seed: int) -> degenerate.Pixels:
        """Return a coloured spot on a black background."""
        y, x = np.mgrid[:32, :32] - np.random.default_rng(seed).integers(8, 24, (2, 1, 1))
        spot = np.exp(-(x**2 + y**2) / 60)[..., None] * np.random.default_rng(seed).uniform(60, 255, 3)
        return spot.astype(np.uint8)

    @staticmethod
    def dithered(seed: int) -> degenerate.Pixels:
        """Return an image of black and white pixels only."""
        return np.asarray(Image.fromarray(degenerate.sample(seed)).convert("1").convert("L"))

    @staticmethod
    def dark(seed: int) -> degenerate.Pixels:
        """Return a dark image with sensor noise and a single bright point."""
        rng = np.random.default_rng(seed)
        pixels = rng.normal(12, 6, (32, 32, 3)).clip(0, 255).astype(np.uint8)
        pixels[tuple(rng.integers(0, 32, 2))] = 200
        return pixels

    @pytest.mark.parametrize("kind", ["on_black", "dithered", "dark"])
    def test_no_findings(self, here: Run, tmp_path: Path, kind: str) -> None:
        make = getattr(self, kind)
        sets = [
            degenerate.write(tmp_path / name, ((f"{i}.png", make(first + i)) for i in range(60)))
            for name, first in (("a", 0), ("b", 1000))
        ]
        for folder in sets:
            assert here("check", folder).stdout.endswith("no findings\n")
        result, line, _ = compared(here, *sets)
        assert (result["diagnosis"]["findings"], line) == ([], "")

    def test_duplicates_in_both_sets(self, here: Run, tmp_path: Path) -> None:
        """They are recorded without a warning. The gate counts them, and then there is a warning."""
        sets = [degenerate.distinct(tmp_path / name, 60, first) for name, first in (("a", 0), ("b", 1000))]
        for folder in sets:
            for i in range(6):
                shutil.copy(folder / f"{i:05}.png", folder / f"again-{i}.png")
        result, line, _ = compared(here, *sets)
        assert f"{sets[0]}: " in line, "REAL's duplicates are reported"
        assert not any(line.startswith(f"{sets[1]}: ") for line in result["warnings"])
        assert result["diagnosis"]["duplicates"]["fake"]["copies"] == 6
        gated = here("compute", *sets, "--extractor", TINY, "--max-duplicates", 0.05)
        assert gated.status == 3
        assert f"{sets[1]}: 6 of 66 images" in gated.stderr
