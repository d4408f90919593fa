"""Datasets of the Hugging Face Hub, on a local server with its API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.registry import _registry

from support.command_line import Run, messages
from support.hub import PAGE, Hub, hub_server
from support.places import TINY
from support.source_forms import make_squares
from support.stores import ARGUMENTS, COUNT, filled, folders_fid

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, from the extra 'hf'")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def expected(place: Path) -> float:
    return folders_fid(place)


@pytest.fixture
def hub(place: Path) -> Iterator[Hub]:
    with hub_server(set=place) as found:
        yield found


FORMS = (
    "images",
    "images.zip",
    "images.parquet:image",
    "shard-{000..002}.tar",
    "shard-*.tar",
    "statistics.npz",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_dataset_gives_the_folders_value(
    fidtool: Run, place: Path, expected: float, hub: Hub, form: str
) -> None:
    run = fidtool(
        "compute", place / "real", f"hf://datasets/owner/set/{form}", *ARGUMENTS, **hub.variables
    )
    assert (
        run.fid == pytest.approx(expected, rel=1e-12)
        if form == "statistics.npz"
        else run.fid == expected
    )


def test_images_are_requested_once_each(
    fidtool: Run, place: Path, expected: float, hub: Hub
) -> None:
    """A folder is listed once, by rank zero: the Hub limits the requests of listings in five
    minutes.
    """
    url = "hf://datasets/owner/set@main/images/"
    run = fidtool(
        "compute", place / "real", url, *ARGUMENTS, "--num-workers", 2, ranks=2, **hub.variables
    )
    assert run.status == 0, run.stderr
    assert run.fid == expected
    sampled = 2 * 8  # by which the ranks check that they see the same images
    assert COUNT <= hub.asked["file"] < COUNT + sampled + 5  # some may be repeated
    assert hub.asked["tree"] == -(-(COUNT + 1) // PAGE)  # its subfolder has an entry


def test_archives_on_two_ranks(fidtool: Run, place: Path, expected: float, hub: Hub) -> None:
    url = "hf://datasets/owner/set/shard-{000..002}.tar"
    run = fidtool("compute", place / "real", url, *ARGUMENTS, ranks=2, **hub.variables)
    assert run.fid == expected
    assert hub.asked["file"] == 3
    assert not [line for line in messages(run.json["results"][0]) if "changed while" in line]


def test_the_cache_depends_on_the_contents(
    fidtool: Run, place: Path, hub: Hub, tmp_path: Path
) -> None:
    """Not on the commit: one that changes other files has the same images."""
    hub.folders = {"set": make_squares(tmp_path / "images", 5)}
    arguments = (
        "compute",
        place / "real",
        "hf://datasets/owner/set",
        "--extractor",
        TINY,
        "--json",
    )

    def computed() -> int:
        return int(fidtool(*arguments, **hub.variables).json["run"]["images_computed"])

    assert computed() >= 5
    assert computed() == 0
    hub.sha = "9876543210" * 4
    assert computed() == 0
    (tmp_path / "images/000.png").write_bytes((place / "real/000.png").read_bytes())
    assert computed() == 5


ADVICE = "set HF_TOKEN or run `hf auth login`, and ask for access on its page if it is gated"


@pytest.mark.parametrize("token", ["", "hf_wrong"])
@pytest.mark.parametrize("form", ["images/", "images.zip"])
def test_a_gated_dataset_is_refused(
    fidtool: Run, place: Path, hub: Hub, form: str, token: str
) -> None:
    hub.gated.add("set")
    variables = {**hub.variables, "HF_TOKEN": token}
    arguments = ("compute", place / "real", f"hf://datasets/owner/set/{form}", *ARGUMENTS)
    run = fidtool(*arguments, "--on-error", "skip", "--max-skip", "0.9", **variables)
    assert run.status == 2
    # Its library logs more.
    (error,) = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert (
        f"the store returned HTTP status {403 if token else 401}: access denied: {ADVICE}" in error
    )
    assert "hf://datasets/owner/set@" in error


def test_a_token_gives_access(fidtool: Run, place: Path, expected: float, hub: Hub) -> None:
    hub.gated.add("set")
    variables = {**hub.variables, "HF_TOKEN": "hf_right"}
    run = fidtool(
        "compute", place / "real", "hf://datasets/owner/set/images/", *ARGUMENTS, **variables
    )
    assert run.fid == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://datasets/owner/none/images/", f"access denied or no such repository: {ADVICE}"),
        ("hf://datasets/owner/none/images.zip", f"access denied or no such repository: {ADVICE}"),
        (
            "hf://datasets/owner/set@v9/images",
            "hf://datasets/owner/set@v9/images cannot be read: it does not exist",
        ),
        ("hf://datasets/owner/set/none.zip", "/none.zip cannot be read: it does not exist"),
        ("hf://datasets/owner/set/none", "there is nothing below hf://datasets/owner/set/none"),
        ("hf://datasets/set", "hf://datasets/set cannot be read: "),
    ],
)
def test_what_is_missing_is_reported(
    fidtool: Run, place: Path, hub: Hub, url: str, words: str
) -> None:
    for token in ("", "hf_right") if "none/" in url else ("",):
        run = fidtool(
            "compute", place / "real", url, *ARGUMENTS, **{**hub.variables, "HF_TOKEN": token}
        )
        assert run.status == 2
        assert words in run.error


def test_temporary_failures_are_retried(
    fidtool: Run, place: Path, expected: float, hub: Hub
) -> None:
    hub.faults = [503, 500]
    run = fidtool(
        "compute", place / "real", "hf://datasets/owner/set/images", *ARGUMENTS, **hub.variables
    )
    assert run.fid == expected
    assert hub.faults == []


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("hf://datasets/owner/set/images", "huggingface_hub", "hf"),
        ("gs://bucket/images", "gcsfs", "gcs"),
        ("az://container/images", "adlfs", "azure"),
        ("s3://bucket/images", "s3fs", "remote"),
    ],
)
def test_the_extra_of_a_store_is_named(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    for name in ("fsspec.core", module):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            # fsspec keeps the classes of stores that earlier tests of this process used.
            patch.delitem(_registry, url.partition("://")[0], raising=False)
            run = here("compute", place / "real", url, *ARGUMENTS)
        assert run.status == 2
        assert f"pip install 'fidtool[{extra}]'" in run.error
