"""Images in a local S3-compatible store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fidtool.sources import remote
from support.command_line import Run
from support.source_forms import names_in
from support.stores import ARGUMENTS, client, filled, folders_fid, s3_server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def expected(place: Path) -> float:
    return folders_fid(place)


@pytest.fixture(scope="module")
def s3(place: Path) -> Iterator[dict[str, str]]:
    with s3_server(place) as variables:
        yield variables


@pytest.fixture
def to_s3(s3: dict[str, str], here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # one of an earlier server would be used again
    for name, value in s3.items():
        monkeypatch.setenv(name, value)


S3_FORMS = (
    *("images", "images.zip", "images.tar.gz", "shard-*.tar", "shard-{000..002}.tar"),
    *("packed.npz", "several.pt:images", "images.parquet", "statistics.npz"),
)


@pytest.mark.parametrize("form", S3_FORMS)
def test_s3_gives_the_folders_value(
    here: Run, place: Path, expected: float, to_s3: None, form: str
) -> None:
    run = here("compute", place / "real", f"s3://bucket/{form}", *ARGUMENTS)
    assert (
        run.fid == pytest.approx(expected, rel=1e-12)
        if form == "statistics.npz"
        else run.fid == expected
    )


@pytest.mark.slow
def test_decoding_workers_open_their_own_connections(
    fidtool: Run, place: Path, expected: float, s3: dict[str, str]
) -> None:
    """The main process fetches REAL first. Its forks must not use the open connections."""
    arguments = (
        "compute",
        "s3://bucket/real",
        "s3://bucket/images",
        *ARGUMENTS,
        "--num-workers",
        2,
    )
    assert fidtool(*arguments, **s3).fid == expected


@pytest.mark.parametrize("url", ["nosuch://bucket/images", "s3://"])
def test_invalid_addresses_are_refused(here: Run, place: Path, to_s3: None, url: str) -> None:
    run = here("compute", place / "real", url, *ARGUMENTS)
    assert run.status == 2
    assert url in run.error


def test_changed_objects_are_detected_despite_s3fs_listings(
    place: Path, s3: dict[str, str], to_s3: None
) -> None:
    """s3fs would answer from its cached listing unless the listing is invalidated."""
    objects = client(s3)
    objects.put_object(Bucket="bucket", Key="lists/a.txt", Body=b"one")
    assert len(remote.file_system("s3://bucket/lists").ls("s3://bucket/lists")) == 1
    files = remote.remote_files("s3://bucket/lists/a.txt", print)
    assert files.find_changed() == []
    objects.put_object(Bucket="bucket", Key="lists/a.txt", Body=b"two")
    assert files.find_changed() == ["s3://bucket/lists/a.txt"]
    assert (remote.remote_files("s3://bucket/lists/a.txt", print).stamps != files.stamps).any()


def test_a_remote_folder_that_changes_during_the_run(
    here: Run, place: Path, s3: dict[str, str], to_s3: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = client(s3)
    for name in names_in(place / "images"):
        objects.upload_file(str(place / "images" / name), "bucket", f"moving/{name}")
    run = here("compute", place / "real", "s3://bucket/moving", *ARGUMENTS)
    assert run.status == 0
    assert "changed while" not in str(run.json)
    look = remote.RemoteFiles.find_changed

    def meanwhile(self: remote.RemoteFiles) -> list[str]:
        objects.upload_file(str(place / "real" / "005.png"), "bucket", "moving/005.png")
        objects.delete_object(Bucket="bucket", Key="moving/003.png")
        return look(self)

    monkeypatch.setattr(remote.RemoteFiles, "find_changed", meanwhile)
    run = here("compute", place / "real", "s3://bucket/moving", *ARGUMENTS)
    assert "2 files of s3://bucket/moving changed while they were read" in str(run.json)


def test_unusual_object_names(
    here: Run, place: Path, expected: float, s3: dict[str, str], to_s3: None
) -> None:
    """Names that begin with a slash, and brackets that are not a pattern."""
    objects = client(s3)
    names = names_in(place / "images")
    objects.upload_file(str(place / "images.zip"), "bucket", "run[1]/images.zip")
    for name in names:
        objects.upload_file(str(place / "images" / name), "bucket", f"slashes//{name}")
    objects.upload_file(str(place / "images" / names[0]), "bucket", f"slashes/{names[0]}")
    objects.upload_file(str(place / "shard-000.tar"), "bucket", "run1/images.zip")
    assert (
        here("compute", place / "real", "s3://bucket/run[1]/images.zip", *ARGUMENTS).fid == expected
    )
    run = here("check", "s3://bucket/slashes", "--list", "--quiet")
    wanted = {f"s3://bucket/slashes//{name}" for name in names} | {
        f"s3://bucket/slashes/{names[0]}"
    }
    assert set(run.stdout.split()) == wanted
