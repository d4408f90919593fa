"""Images that a program has in memory or produces on demand, on one rank and on several."""

from __future__ import annotations

import functools
import io
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile

import fidtool
from fidtool.errors import InputError, ProgramError
from fidtool.sources.contents import comparable_bytes
from support.given_forms import (
    Refilled,
    Rows,
    Samples,
    Streamed,
    animated,
    in_twos,
    opened,
    refilled,
)
from support.places import TINY
from support.source_forms import make_pair, names_in, pixels_in

COUNT = 22
SETTINGS: dict[str, Any] = {
    "extractor": TINY,
    "cache": False,
    "batch_size": 4,
    "metrics": ["fid", fidtool.KID(subset_size=9, subsets=5)],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("given"), COUNT)


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, float]:
    return dict(fidtool.compute(place / "real", place / "images", **SETTINGS).results[0].metrics)


Given = Callable[[Path, NDArray[np.uint8]], Any]
FORMS: dict[str, Given] = {
    "a list of PIL images": lambda folder, _: opened(folder),
    "a list of paths": lambda folder, _: fidtool.Images(
        [folder / name for name in names_in(folder)]
    ),
    "a list of tensors of floats": lambda folder, pixels: list(
        torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    ),
    "a tensor": lambda folder, pixels: torch.from_numpy(pixels).permute(0, 3, 1, 2),
    "a list of dicts": lambda folder, pixels: [
        {"img": 255 - each, "image": each} for each in pixels
    ],
    "an array of floats": lambda folder, pixels: (pixels / 255).astype(np.float32),
    "a Dataset": lambda folder, pixels: Samples(pixels),
    "a DataLoader": lambda folder, pixels: fidtool.Images(
        iter(torch.utils.data.DataLoader(Samples(pixels), 6))
    ),
    "a generator of lists": lambda folder, pixels: (
        list(pixels[n : n + 4]) for n in range(0, len(pixels), 4)
    ),
    "a generator of two files at a time": lambda folder, _: in_twos(
        [(folder / name).read_bytes() for name in names_in(folder)]
    ),
    "rows of a table": lambda folder, pixels: Rows(pixels),
    "a generator with one piece of memory": lambda folder, pixels: refilled(pixels),
    "frames of an animation": lambda folder, pixels: animated(
        folder.parent / "animation.tif", pixels
    ),
    "a sequence with one piece of memory": lambda folder, pixels: Refilled(pixels),
    "an IterableDataset that knows its length": lambda folder, pixels: Streamed(pixels),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_folders_values(
    place: Path, expected: dict[str, float], environment: dict[str, str], form: str
) -> None:
    given = FORMS[form](place / "images", pixels_in(place / "images"))
    evaluation = fidtool.compute(place / "real", given, value_range=(0, 1), **SETTINGS)
    assert evaluation.results[0].metrics == expected
    assert evaluation.results[0].fake.name == "fake"


def test_a_dataset_is_read_by_decoding_workers(
    place: Path, expected: dict[str, float], environment: dict[str, str]
) -> None:
    given = Samples(pixels_in(place / "images"))
    evaluation = fidtool.compute(
        place / "real", given, value_range="0,1", num_workers=2, **SETTINGS
    )
    assert evaluation.results[0].metrics == expected


def test_sets_have_names(
    place: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = pixels_in(place / "images")
    named = fidtool.Images(pixels, name="step 100")
    evaluation = fidtool.compute(
        pixels, [named, place / "images", fidtool.Images(iter(pixels))], **SETTINGS
    )
    assert [result.fake.name for result in evaluation.results] == [
        "step 100",
        str(place / "images"),
        "fake",
    ]
    assert [result.real.name for result in evaluation.results] == ["real"] * 3
    assert len({result.frechet_distance for result in evaluation.results}) == 1
    monkeypatch.chdir(place)
    (place / "fake").symlink_to("images")
    alike = fidtool.compute(255 - pixels, ["fake", fidtool.Images(pixels)], **SETTINGS)
    assert [result.fake.name for result in alike.results] == ["fake", "fake 2"]
    same = fidtool.compute(pixels, pixels, **SETTINGS)
    assert any("the same set as REAL" in line for line in map(str, same.results[0].warnings))


def test_num_limits_an_endless_iterable(place: Path, environment: dict[str, str]) -> None:
    pixels = pixels_in(place / "images")
    taken: list[int] = []

    def endless() -> Iterator[NDArray[np.uint8]]:
        while True:
            taken.append(len(taken))
            yield pixels[taken[-1] % COUNT]

    evaluation = fidtool.compute(
        place / "real",
        endless(),
        num=17,
        **{**SETTINGS, "metrics": ["fid", fidtool.KID(subset_size=5)]},
    )
    assert evaluation.results[0].fake.count == 17
    assert len(taken) == 17, "no more images are taken than needed"


def test_an_iterable_may_have_any_number_of_batches(environment: dict[str, str]) -> None:
    """Room for them is made as they come."""
    images = [*np.random.default_rng(0).integers(256, size=(150, 8, 8, 3), dtype=np.uint8)]
    listed, streamed = (
        fidtool.compute_statistics(
            each, extractor=TINY, batch_size=1, metrics="kid", diagnose=False
        )
        for each in (images, iter(images))
    )
    assert listed is not None
    assert streamed is not None
    assert np.array_equal(listed.sigma, streamed.sigma)
    assert np.array_equal(listed.layers["features"].features, streamed.layers["features"].features)


def test_statistics_and_checks_of_images_in_memory(
    place: Path, environment: dict[str, str]
) -> None:
    pixels = pixels_in(place / "images")
    folder, given = (
        fidtool.compute_statistics(source, extractor=TINY)
        for source in (place / "images", iter(pixels))
    )
    assert folder is not None
    assert given is not None
    np.testing.assert_array_equal(given.mu, folder.mu)
    assert fidtool.check(pixels).images.images == COUNT


def test_generators_use_the_programs_random_state_and_threads(
    place: Path, environment: dict[str, str]
) -> None:
    """A generator's draws advance the program's random state, so that the next call gives different
    images.
    """
    threads = torch.get_num_threads()
    seen: list[int] = []

    def drawn() -> Iterator[torch.Tensor]:
        for _ in range(COUNT):
            seen.append(torch.get_num_threads())
            yield torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8)

    torch.set_num_threads(2)
    try:
        torch.manual_seed(5)
        alone = list(drawn())
        after = torch.get_rng_state()
        torch.manual_seed(5)
        evaluation = fidtool.compute(alone, drawn(), **SETTINGS)
        assert evaluation.frechet_distance < 1e-9, "the same images"
        assert torch.equal(torch.get_rng_state(), after)
        assert seen == [2] * 2 * COUNT
    finally:
        torch.set_num_threads(threads)


# --- refusals -------------------------------------------------------------------------------------


def broken() -> Iterator[NDArray[np.uint8]]:
    yield np.zeros((24, 24, 3), np.uint8)
    raise torch.cuda.OutOfMemoryError("no memory for the sampler")


def cut_off(folder: Path) -> Image.Image:
    return Image.open(io.BytesIO((folder / "000.png").read_bytes()[:-300]))


class Broken(Samples):
    def __init__(self, pixels: NDArray[np.uint8], error: Exception) -> None:
        super().__init__(pixels)
        self.error = error

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raise self.error


class UnsendableError(Exception):
    def __init__(self, what: object, why: object) -> None:
        super().__init__(what)


class Unsized(Samples):
    def __len__(self) -> int:
        raise NotImplementedError("of unknown length")


def empty(folder: Path) -> Path:
    """Return a folder without images beside another."""
    place = folder.parent / "empty"
    place.mkdir(exist_ok=True)
    return place


def open_archive(folder: Path, pixels: Any) -> Any:
    """Return an ``.npz`` of images that NumPy has opened: a mapping, as is a dict of sets."""
    place = folder.parent / "opened.npz"
    np.savez(place, arr_0=pixels)
    return np.load(place)


REFUSED: dict[str, tuple[Given, type[Exception], str]] = {
    "None": (
        lambda f, p: None,
        InputError,
        "fake is None, which only ranks other than rank 0 may pass",
    ),
    "a function without a number": (
        lambda f, p: lambda n: p[:n],
        InputError,
        r"any number.*: pass num_fake=\.\.\.",
    ),
    "a network": (
        lambda f, p: torch.nn.Sequential(torch.nn.Linear(3, 3)),
        InputError,
        r"is a network \(Sequential\).*: pass fidtool.Images\(network, latent=512\) .* lambda n: network",
    ),
    "nothing": (lambda f, p: iter(()), InputError, "no images in fake"),
    "a dict without an image": (lambda f, p: iter([{"x": 1}]), InputError, "dict with the keys x"),
    "iterators": (
        lambda f, p: [iter([p]), iter([p])],
        InputError,
        "list_iterator, not an image; to compare",
    ),
    "an image and its mask": (lambda f, p: iter([(p[0], p[1])]), InputError, "a tuple of 2 images"),
    "a dict of no sets": (
        lambda f, p: {"a": 1},
        InputError,
        "a is of type int, which is neither a",
    ),
    "a dict in a dict": (
        lambda f, p: {"a": {"b": p}},
        InputError,
        "a is of type dict, which is not a sequence of images",
    ),
    "an opened archive": (open_archive, InputError, "fake is an opened .npz file: pass its path"),
    "an empty dict": (lambda f, p: {}, InputError, "there is no FAKE to compare"),
    "a number as a name": (
        lambda f, p: {1: p},
        InputError,
        "the keys of fake are names of sets, and 1 is not a name: use strings",
    ),
    "an empty name": (lambda f, p: {"": p}, InputError, "and '' is not a name: use strings"),
    "the name of REAL": (
        lambda f, p: {f"{f.parent / 'real'}/": p},
        InputError,
        "two sets have the name .*/real/: choose another",
    ),
    "two spellings of a name": (
        lambda f, p: {"a": p, "./a": p},
        InputError,
        "two sets have the name ./a",
    ),
    "an iterable under two names": (
        lambda f, p: dict.fromkeys("ab", iter(p)),
        InputError,
        "a and b are the same iterable, .*: pass a list",
    ),
    "a named folder without images": (
        lambda f, p: {"a": empty(f)},
        InputError,
        "a: no images in .*empty",
    ),
    "a mean and a covariance": (
        lambda f, p: {"mu": np.zeros(3), "sigma": np.zeros((3, 3))},
        InputError,
        "a mean and a covariance are not images: pass fidtool.Statistics.of",
    ),
    "latents": (lambda f, p: iter([torch.zeros(4, 8, 8)]), InputError, "four channels"),
    "a batch in a sequence": (lambda f, p: [p, p], InputError, "contains 22 images"),
    "a Dataset whose exception cannot be sent": (
        lambda f, p: Broken(p, UnsendableError(1, 2)),
        ProgramError,
        r"fake\[\d+\] raised UnsendableError: 1 \(test_given.py, line \d+\)",
    ),
    "a Pillow image that was cut off": (
        lambda f, p: [*opened(f)[1:], cut_off(f)],
        InputError,
        r"cannot read fake\[21\]: .*truncated",
    ),
    "bytes that are no image": (
        lambda f, p: iter([b"text"]),
        InputError,
        r"cannot decode fake\[0\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_images_are_refused(
    place: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    make, error, words = REFUSED[case]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as training scripts often do
    settings = {**SETTINGS, "metrics": "fid", "num_workers": 1}
    with pytest.raises(error, match=words) as refused:
        fidtool.compute(
            place / "real", make(place / "images", pixels_in(place / "images")), **settings
        )
    assert type(refused.value) is error


@pytest.mark.parametrize("way", ["n", "n and seed", "seed by name", "n and a default", "network"])
def test_a_function_generates_the_images(
    place: Path, environment: dict[str, str], way: str
) -> None:
    """Its batches are seeded, whatever it does with the seed, and the program's random state is
    restored.
    """
    calls: list[tuple[int, ...]] = []
    network = torch.nn.Sequential(
        torch.nn.Linear(7, 192), torch.nn.Dropout(), torch.nn.Unflatten(1, (3, 8, 8))
    )

    def drawn(n: int, *seed: int) -> torch.Tensor:
        calls.append((n, *seed))
        return torch.randint(0, 255, (n, 3, 24, 24), dtype=torch.uint8)

    given = {
        "n": lambda n: drawn(n),
        "n and seed": lambda count, s: list(drawn(count, s)),
        "seed by name": lambda n, steps=5, *, seed=None: drawn(n, steps),
        "n and a default": lambda n, seed=None: drawn(n, seed).numpy(),
        "network": fidtool.Images(network, latent=7),
    }[way]
    state = torch.get_rng_state()
    settings = {**SETTINGS, "metrics": "fid", "value_range": (-9, 9), "batch_size": 8, "seed": 3}
    first, second = (
        fidtool.compute(place / "real", given, num_fake=22, **settings).results[0] for _ in range(2)
    )
    assert first.metrics == second.metrics
    assert (first.fake.count, first.real.count) == (22, COUNT)
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training
    seeds = [fidtool.sample_seed(3, start) for start in (0, 8, 16)]
    further = {"n": [()] * 3, "seed by name": [(5,)] * 3, "network": []}.get(
        way, [(seed,) for seed in seeds]
    )
    assert calls == [(n, *rest) for n, rest in zip((8, 8, 6), further, strict=False)] * 2


def drawn(n: int) -> torch.Tensor:
    return torch.randint(0, 255, (n, 3, 24, 24), dtype=torch.uint8)


def yielding(n: int) -> Iterator[torch.Tensor]:
    for _ in range(n):
        yield drawn(1)[0]


def endless() -> Iterator[torch.Tensor]:
    while True:
        yield drawn(1)[0]


RETURNED: dict[str, Callable[..., Any]] = {
    "no argument": lambda: drawn(3),
    "one image": lambda seed: drawn(1)[0],
    "too many": lambda n: drawn(n + 1),
    "too few": lambda n: drawn(n)[torch.rand(n) < 0.5],
    "a generator": yielding,
    "an endless generator": endless,
}


@pytest.mark.parametrize("way", RETURNED)
def test_a_function_is_called_until_there_are_enough(
    place: Path, environment: dict[str, str], way: str
) -> None:
    images = fidtool.Images(RETURNED[way])
    first, second = (
        [comparable_bytes(read) for read in images.generated(8, 5, None)] for _ in range(2)
    )
    assert len(set(first)) == 8
    assert first == second
    result = fidtool.compute(place / "real", RETURNED[way], num_fake=9, **SETTINGS).results[0]
    assert result.fake.count == 9


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda n: drawn(0), r"^fake\(\d\) returned no images 20 times, but must return \d"),
        (lambda n: next(iter(())), r"^fake raised StopIteration: its iterator has too few"),
        (
            lambda n: SimpleNamespace(images=drawn(n)),
            r"is of type SimpleNamespace, not an image: return its \.images",
        ),
    ],
)
def test_what_a_function_must_return(
    place: Path, environment: dict[str, str], given: Given, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        fidtool.compute(place / "real", given, num=9, **SETTINGS)


def test_statistics_in_memory_are_those_of_a_file(
    place: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    real, fake = (
        fidtool.compute_statistics(place / name, extractor=TINY) for name in ("real", "images")
    )
    assert real is not None
    assert fake is not None
    fidtool.write_statistics(tmp_path / "real.npz", real)
    stored = fidtool.compute(
        tmp_path / "real.npz", place / "images", cache=False, extractor=TINY
    ).results[0]
    one, two = (
        each.results[0]
        for each in (
            fidtool.compute(real, x, cache=False, extractor=TINY) for x in (place / "images", fake)
        )
    )
    assert one.metrics == two.metrics == stored.metrics
    assert (one.real.name, two.fake.name, two.fake.count) == ("real", "fake", COUNT)
    several = fidtool.compute(
        real, [fake, place / "images", real], cache=False, extractor=TINY
    ).results
    assert [each.value("fid") for each in several[:2]] == [one.value("fid")] * 2
    assert any("the same set as REAL" in line for line in map(str, several[2].warnings))
    pixels = pixels_in(place / "images")
    mixed: list[Any] = [fake, pixels, lambda n: pixels[:n], place / "images"]
    found = fidtool.compute(real, mixed, num_fake=COUNT, cache=False, extractor=TINY)
    assert [each.fake.name for each in found.results[:3]] == ["fake", "fake 2", "fake 3"]
    assert "fake has statistics: num_fake does not apply to it" in map(
        str, found.results[0].warnings
    )
    swapped = fidtool.compute(
        pixels, fidtool.Statistics.of(np.zeros(16), np.eye(16), 99), extractor=TINY
    )
    assert any(
        "fake: statistics are compared as fake" in line
        for line in map(str, swapped.results[0].warnings)
    )
    with pytest.raises(InputError, match=r"images has statistics already: pass the images"):
        fidtool.compute_statistics(real)
    for given in (
        (real.mu, real.sigma),
        [torch.ones(2), torch.eye(2)],
        {"mu": real.mu, "sigma": real.sigma},
    ):
        with pytest.raises(InputError, match=r"pass fidtool\.Statistics\.of\(mu, sigma\)"):
            fidtool.compute(given, place / "images")
    with pytest.raises(InputError, match="needs the features of each image"):
        fidtool.compute(real, place / "images", metrics="kid", extractor=TINY)


def test_what_a_program_is_shown(
    place: Path,
    environment: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Short representations, the progress, and the steps in the log."""
    pixels, seen = pixels_in(place / "images"), []
    fakes = [fidtool.Images(pixels, name="a<b"), fidtool.Images(iter(pixels[:9]), name="c")]
    settings = {
        "extractor": TINY,
        "cache": False,
        "metrics": ["fid", fidtool.KID(subset_size=5)],
        "batch_size": 8,
    }
    with caplog.at_level(logging.INFO, "fidtool"):
        evaluation = fidtool.compute(
            pixels, fakes, progress=lambda *step: seen.append(step), **settings
        )
    first, second = repr(evaluation).splitlines()
    assert re.fullmatch(
        r"<FD \S* 0, KID \S* \S+: 22 images of a<b against 22 images of real; \d warnings?>",
        re.sub(r"\(.*?\)", "(x)", first),
    )
    assert "9 images of c" in second
    table = evaluation._repr_html_()
    assert (table.count("<tr>"), table.count("<td>a&lt;b</td>"), table.count("<td>9</td>")) == (
        3,
        1,
        1,
    )
    assert [seen[0], seen[3], seen[-1]] == [("real", 0, 22), ("real", 22, 22), ("c", 9, None)]
    lines = [record.getMessage() for record in caplog.records]
    assert [lines[0], lines[2]] == ["real: processing 22 images", "comparing a<b with real"]
    assert capsys.readouterr().err == ""
    checkup = fidtool.check(pixels, progress=True)
    assert "images: " in capsys.readouterr().err
    for shown in (
        checkup,
        fidtool.compute_statistics(pixels, extractor=TINY),
        fidtool.Statistics.of(np.ones(2), np.eye(2)),
    ):
        assert len(repr(shown)) < 600
    with pytest.raises(
        InputError,
        match="progress must be True or a function, not <class 'list'>: pass progress=True",
    ):
        fidtool.compute("a", "b", progress=list)
    with pytest.raises(InputError, match=r"not functools.partial\(<class 'list'>, 1\): pass"):
        fidtool.compute("a", "b", progress=functools.partial(list, 1))
    with pytest.raises(InputError, match="progress must be True or a function, not 3"):
        fidtool.check(pixels, progress=3)


FAULTS: dict[str, tuple[Given, type[Exception], str]] = {
    "a generator": (lambda f, p: broken(), torch.cuda.OutOfMemoryError, "in broken"),
    "a Dataset": (lambda f, p: Broken(p, KeyError("image")), KeyError, "in __getitem__"),
    "a length": (lambda f, p: Unsized(p), NotImplementedError, "in __len__"),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("case", FAULTS)
def test_a_programs_own_exception_is_raised_as_it_is(
    place: Path, environment: dict[str, str], case: str, num_workers: int
) -> None:
    make, error, where = FAULTS[case]
    settings = {**SETTINGS, "metrics": "fid", "num_workers": num_workers}
    with pytest.raises(error) as raised:
        fidtool.compute(
            place / "real", make(place / "images", pixels_in(place / "images")), **settings
        )
    assert type(raised.value) is error
    shown = "".join(traceback.format_exception(raised.value))
    assert where in shown
    assert "fidtool.errors" not in shown
    if sys.version_info >= (3, 11) and case != "a length":
        assert f"raised {error.__name__}: " in "".join(raised.value.__notes__)


def test_an_iterable_cannot_be_used_twice(
    place: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    pixels = pixels_in(place / "images")
    with pytest.raises(InputError, match=r"fidtool\.Images|can be indexed"):
        fidtool.check(iter(pixels))
    for given, words in ((iter(pixels), "iterable"), (pixels, "cannot detect whether")):
        with pytest.raises(InputError, match=words):
            fidtool.compute(place / "real", given, checkpoint=tmp_path / "kept", **SETTINGS)
    with pytest.raises(InputError, match="asks for 30 images"):
        fidtool.compute(pixels, iter(pixels), num=30, **SETTINGS)
    with pytest.raises(InputError, match="expect"):
        fidtool.compute(place / "real", iter(pixels), expect=23, **SETTINGS)
    pair = iter(pixels)
    with pytest.raises(InputError, match="no images in real: the iterable yielded none"):
        fidtool.compute(pair, pair, crop="adm:32", **SETTINGS)


def test_a_bad_image_is_named_before_a_later_failure_of_the_iterable(
    place: Path,
) -> None:
    """However many batches are read ahead of the first forward pass."""
    pixels = pixels_in(place / "images")

    def images() -> Iterator[object]:
        yield from pixels[:2]
        yield b"no image"
        raise ValueError("later")

    settings = {"extractor": TINY, "batch_size": 1, "num_workers": 0, "device": "cpu"}
    with pytest.raises(fidtool.InputError, match=r"cannot decode fake\[2\]"):
        fidtool.compute(pixels, images(), **settings, cache=False)
