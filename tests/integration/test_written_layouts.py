"""Statistics files for other projects' evaluators: `fidtool stats --layout`, and
`fidtool.write_statistics`.
"""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fidtool
from fidtool.features.protocol import FEATURES, SPATIAL, WRITTEN_LAYOUTS
from support.command_line import Run
from support.layouts import of_inception
from support.offline import needs_weights
from support.pictures import make_pictures
from support.shared_statistics import share_statistics

COUNT = 6
ARRAYS = {
    "adm": {"mu", "sigma", "fingerprint", "mu_s", "sigma_s", "fingerprint_s", "arr_0"},
    "clean-fid": {"mu", "sigma", "fingerprint"},
    "edm": {"mu", "sigma", "fingerprint"},
    "pytorch-fid": {"mu", "sigma", "fingerprint"},
}
PROTOCOL = {
    "adm": "tensorflow",
    "clean-fid": "clean",
    "edm": "tensorflow",
    "pytorch-fid": "pytorch-fid",
}
IMAGES = np.arange(4 * 2 * 3 * 3, dtype=np.uint8).reshape(4, 2, 3, 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    for seed, name in enumerate(("real", "fake")):
        for file in make_pictures(folder / name, COUNT, seed).iterdir():
            Image.open(file).resize((24, 20)).save(file)
    return folder


@pytest.fixture(autouse=True)
def cached(environment: dict[str, str], place: Path) -> None:
    """Let these tests share their cache."""
    share_statistics(environment, place / "statistics")


def arrays_of(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def pixels_of(folder: Path) -> list[bytes]:
    return [np.asarray(Image.open(file)).tobytes() for file in sorted(folder.iterdir())]


@needs_weights
@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_the_file_gives_the_same_fid(here: Run, place: Path, tmp_path: Path, layout: str) -> None:
    done = here("stats", place / "real", "-o", "other.npz", "--layout", layout.upper())
    assert done.status == 0, done.stderr
    assert (
        f"wrote other.npz: 6 images, 2048 dimensions, layout {layout}, protocol {PROTOCOL[layout]}"
        in done.stderr
    )
    assert arrays_of(tmp_path / "other.npz").keys() == ARRAYS[layout]
    settings = ("--protocol", PROTOCOL[layout], "--metrics", WRITTEN_LAYOUTS[layout], "--json")
    expected = here("compute", place / "real", place / "fake", *settings).metrics
    file = "other_kid.npz" if layout == "clean-fid" else "other.npz"
    found = here("compute", file, place / "fake", *settings)
    assert found.metrics == expected
    assert found.json["run"]["images_computed"] == 0
    if layout == "clean-fid":
        assert (
            here("compute", "other.npz", place / "fake", *settings[:2], "--json").fid
            == expected["fid"]
        )
        (tmp_path / "other.npz").unlink()
        again = here("stats", place / "real", "-o", "other.npz", "--layout", layout)
        assert (again.status, again.error) == (
            2,
            "error: other_kid.npz exists; pass --force to overwrite it",
        )


@needs_weights
def test_images_for_adms_evaluator(here: Run, place: Path, tmp_path: Path) -> None:
    """All of them without --images, up to 10,000; a sample with it; without files that were
    skipped.
    """
    assert here("stats", place / "real", "-o", "all.npz", "--layout", "adm").status == 0
    images = arrays_of(tmp_path / "all.npz")["arr_0"]
    assert (images.dtype, images.shape) == (np.uint8, (COUNT, 20, 24, 3))
    assert sorted(image.tobytes() for image in images) == sorted(pixels_of(place / "real"))
    assert here("compute", "all.npz", "all.npz:arr_0", "--json").fid == pytest.approx(0, abs=1e-6)

    some = here(
        "stats", place / "real", "-o", "some.npz", "--layout", "adm", "--images", 4, "--seed", 1
    )
    assert some.stderr.endswith("protocol tensorflow, 4 of them in arr_0\n")
    sample = [image.tobytes() for image in arrays_of(tmp_path / "some.npz")["arr_0"]]
    assert len({*sample} & {*pixels_of(place / "real")}) == 4
    assert sample != pixels_of(place / "real")[:4], "a random sample"

    shutil.copytree(place / "real", tmp_path / "real")
    (tmp_path / "real" / "00000.png").write_bytes(b"broken")
    with tarfile.open(tmp_path / "real.tar.gz", "w:gz") as archive:
        archive.add("real")
    settings = ("--crop", "adm:8", "--on-error", "skip", "--max-skip", 0.5)
    five = here("stats", "real.tar.gz", "-o", "five.npz", "--layout", "adm", *settings)
    assert five.status == 0, five.stderr
    assert arrays_of(tmp_path / "five.npz")["arr_0"].shape == (COUNT - 1, 8, 8, 3)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--images", 3], "--images applies to --layout adm only"),
        (["--layout", "edm", "--images", 3], "--images applies to --layout adm only"),
        (["--layout", "adm", "--images", 7], "--images asks for 7 images but real has 6"),
        (["--layout", "adm", "--images", 0], "--images asks for 0 images but real has 6"),
        (
            ["--layout", "adm", "--protocol", "clean"],
            "--layout adm needs Inception's 2048 dimensions and the protocol tensorflow: omit "
            "--protocol",
        ),
        (["--layout", "clean-fid", "--preset", "adm"], "and the protocol clean: omit --preset"),
        (
            ["--layout", "edm", "--dims", 64],
            "Inception's 2048 dimensions and the protocol tensorflow: omit --dims",
        ),
        (["--layout", "edm", "--metrics", "kid"], "the protocol tensorflow: omit --metrics"),
        (["--layout", "edm", "--extractor", "dinov2"], "the protocol tensorflow: omit --extractor"),
        (
            ["--layout", "adm", "--config", "clean.toml"],
            "--protocol, which follows from it (protocol in clean.toml)",
        ),
        (
            ["--layout", "stylegan"],
            "'stylegan' is not one of 'adm', 'clean-fid', 'edm', 'pytorch-fid'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], problem: str
) -> None:
    monkeypatch.chdir(place)
    Path("clean.toml").write_text('protocol = "clean"')
    refused = here("stats", "real", "-o", "none.npz", *arguments)
    assert refused.status == 2
    assert problem in refused.error
    assert not (place / "none.npz").exists()


def test_images_of_several_sizes_are_refused_before_the_run(
    here: Run, place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "real", tmp_path / "real")
    Image.new("RGB", (9, 8)).save(tmp_path / "real" / "00004.png")
    refused = here("stats", "real", "-o", "none.npz", "--layout", "adm")
    assert refused.status == 2
    assert refused.error == (
        "error: the array arr_0 needs images of one size, but real has 24×20 and 9×8 "
        "(real/00004.png): pass "
        "--crop adm:256"
    )


@pytest.mark.parametrize("protocol", ["tensorflow", "clean"])
@pytest.mark.parametrize(
    "options", [(), ("--layout", "adm"), ("--layout", "edm"), ("--metrics", "kid")]
)
def test_statistics_have_no_images(
    here: Run, tmp_path: Path, protocol: str, options: tuple[str, ...]
) -> None:
    """Whatever else the file has or lacks, which is no reason to create it again or to compare it
    anyway.
    """
    fidtool.write_statistics(tmp_path / "real.npz", of_inception(protocol))
    refused = here("stats", "real.npz", "-o", "none.npz", *options)
    assert refused.error == "error: real.npz has statistics already: pass the images instead"


@needs_weights
def test_floats_are_bytes_in_the_sample(here: Run, tmp_path: Path) -> None:
    """They become bytes as for the network."""
    np.save(
        tmp_path / "floats.npy",
        np.linspace(-1, 1, 3 * 8 * 8 * 3, dtype=np.float32).reshape(3, 8, 8, 3),
    )
    written = here(
        "stats", "floats.npy", "-o", "REF.npz", "--layout", "adm", "--value-range", "-1,1"
    )
    assert written.status == 0, written.stderr
    images = arrays_of(tmp_path / "REF.npz")["arr_0"]
    assert (images.dtype, images.min(), images.max()) == (np.uint8, 0, 255)


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_the_file_keeps_its_protocol(here: Run, layout: str) -> None:
    """Without it, statistics of another protocol would be compared with them."""
    statistics = of_inception(PROTOCOL[layout])
    fidtool.write_statistics("real.npz", statistics, layout, IMAGES if layout == "adm" else None)
    for file in ("real.npz", "real_kid.npz") if layout == "clean-fid" else ("real.npz",):
        assert fidtool.read_statistics(file).definition == statistics.definition
        other = "clean" if layout != "clean-fid" else "tensorflow"
        outcome = here("compute", file, file, "--protocol", other)
        assert outcome.status == 2
        named = (
            f"{file} was computed with the protocol {PROTOCOL[layout]}, not {other}; pass "
            "--allow-mismatch"
        )
        assert named in outcome.error


def test_statistics_are_written_in_python(tmp_path: Path) -> None:
    """The features are in the order of the images, whatever that of the statistics is."""
    statistics = of_inception("tensorflow")
    fidtool.write_statistics(tmp_path / "adm.npz", statistics, layout="adm", images=IMAGES)
    found = arrays_of(tmp_path / "adm.npz")
    assert found.keys() == ARRAYS["adm"]
    assert np.array_equal(found["mu"], statistics.mu)
    assert np.array_equal(found["sigma_s"], statistics.layers[SPATIAL].sigma)
    assert np.array_equal(found["arr_0"], IMAGES)
    assert fidtool.read_statistics(tmp_path / "adm.npz").definition == statistics.definition

    order = np.random.RandomState(0).permutation(9)
    clean = of_inception("clean")
    rows = clean.features
    assert rows is not None
    shuffled = replace(clean.layers[FEATURES], features=rows[order])
    ordered = replace(clean, layers={FEATURES: shuffled}, order=order)
    fidtool.write_statistics(tmp_path / "set.npz", ordered, layout="clean-fid")
    assert np.array_equal(arrays_of(tmp_path / "set_kid.npz")["feats"], rows)


def test_other_statistics_are_refused_in_python(tmp_path: Path) -> None:
    """They would be taken for those of the project."""
    cases: list[tuple[fidtool.Statistics, str, Any, str]] = [
        (of_inception("pytorch-fid"), "edm", None, "protocol='tensorflow' and metrics='fid'"),
        (
            of_inception("tensorflow", spatial=False),
            "adm",
            IMAGES,
            "protocol='tensorflow' and metrics='fid,sfid'",
        ),
        (of_inception(""), "edm", None, "edm needs different statistics"),
        (
            fidtool.Statistics.of(np.zeros(64), np.eye(64), 9),
            "edm",
            None,
            "edm needs different statistics",
        ),
        (of_inception("tensorflow"), "adm", None, "need a sample of the images"),
        (of_inception("tensorflow"), "edm", IMAGES, "need a sample of the images"),
        (
            of_inception("tensorflow"),
            "adm",
            IMAGES / 255,
            "must be uint8 of shape (n, height, width, 3), not float64",
        ),
        (of_inception("tensorflow"), "adm", IMAGES[0], "not uint8 of shape (2, 3, 3)"),
        (
            of_inception("tensorflow"),
            "tensorflow",
            None,
            "layout 'tensorflow' is not one of adm, clean-fid",
        ),
    ]
    for statistics, layout, images, problem in cases:
        with pytest.raises(fidtool.InputError) as refused:
            fidtool.write_statistics(tmp_path / "none.npz", statistics, layout, images)
        assert problem in str(refused.value)
    assert not (tmp_path / "none.npz").exists()
