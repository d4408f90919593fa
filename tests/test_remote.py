"""Images in remote stores: an S3-compatible server and a web server, both on this machine, in good health and bad."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, Run, free_port
from http_store import HttpStore, http_store
from source_forms import make_forms, make_squares, names_in

from fidtool.sources import asking, remote, store
from fidtool.sources.contents import ContentError
from fidtool.sources.files import Extent, Stamps
from fidtool.sources.names import Names, Prefixed

COUNT = 22
ARGUMENTS = ("--extractor", TINY, "--no-cache", "--json", "--batch-size", 4)
SERVER = """
import sys, time
from pathlib import Path
from moto.server import ThreadedMotoServer
import boto3
port, folder = int(sys.argv[1]), Path(sys.argv[2])
ThreadedMotoServer("127.0.0.1", port).start()
client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
client.create_bucket(Bucket="bucket")
for file in folder.rglob("*"):
    if file.is_file():
        client.upload_file(str(file), "bucket", str(file.relative_to(folder)))
print("ready", flush=True)
time.sleep(1e6)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures in every form, statistics, and REAL."""
    import fidtool

    place = tmp_path_factory.mktemp("store")
    make_forms(make_squares(place / "images", COUNT))
    make_squares(place / "real", COUNT, 1)
    statistics = fidtool.compute_statistics(place / "images", extractor=TINY, cache=False)
    assert statistics is not None
    fidtool.write_statistics(place / "statistics.npz", statistics)
    return place


@pytest.fixture(scope="module")
def expected(place: Path) -> float:
    import fidtool

    return fidtool.compute(place / "real", place / "images", extractor=TINY, cache=False, batch_size=4).fid


@pytest.fixture(scope="module")
def s3(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that lead to a server with all of this in a bucket."""
    port = free_port()
    credentials = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    import os

    log = tmp_path_factory.mktemp("s3") / "log"
    with open(log, "wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port), str(place)],
            env={**os.environ, **credentials},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert server.stdout is not None
    lines = iter(server.stdout.readline, "")
    assert any(line == "ready\n" for line in lines), log.read_text()
    yield {**credentials, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    server.kill()
    server.wait()


def client(s3: dict[str, str]) -> Any:
    """What changes the bucket's contents behind fidtool's back."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=s3["AWS_ENDPOINT_URL"],
        aws_access_key_id="x",
        aws_secret_access_key="x",
        region_name="us-east-1",
    )


@pytest.fixture
def to_s3(s3: dict[str, str], here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def web(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpStore]:
    """A server of the same; waits between tries are short."""
    monkeypatch.setattr(asking, "_FIRST_WAIT", 0.01)
    with http_store(place) as store:
        yield store


S3_FORMS = (
    *("images", "images.zip", "images.tar", "images.tar.gz", "shard-*.tar", "shard-{000..002}.tar", "images.npz"),
    *("packed.npz", "images.npy", "several.pt:images", "images.safetensors", "images.parquet", "statistics.npz"),
)


@pytest.mark.parametrize("form", S3_FORMS)
def test_s3_gives_the_folders_number(here: Run, place: Path, expected: float, to_s3: None, form: str) -> None:
    run = here("compute", place / "real", f"s3://bucket/{form}", *ARGUMENTS)
    assert run.fid == pytest.approx(expected, rel=1e-12) if form == "statistics.npz" else run.fid == expected


@pytest.mark.parametrize("form", ["images", "images.zip", "images.tar.gz", "images.parquet"])
def test_and_so_on_three_ranks(
    fidtool: Run, place: Path, expected: float, s3: dict[str, str], to_s3: None, form: str
) -> None:
    run = fidtool("compute", place / "real", f"s3://bucket/{form}", *ARGUMENTS, ranks=3, **s3)
    assert run.fid == expected


def test_decoding_processes_have_connections_of_their_own(
    fidtool: Run, place: Path, expected: float, s3: dict[str, str]
) -> None:
    """REAL is fetched by this process first: its forks must not use what it has open."""
    arguments = ("compute", "s3://bucket/real", "s3://bucket/images", *ARGUMENTS, "--num-workers", 2)
    assert fidtool(*arguments, **s3).fid == expected


@pytest.mark.parametrize(
    "form", ["images/", "images.txt", "images.zip", "images.tar.xz", "images.npz", "statistics.npz"]
)
def test_the_web_gives_the_folders_number(here: Run, place: Path, expected: float, web: HttpStore, form: str) -> None:
    assert here("compute", place / "real", f"{web.url}{form}", *ARGUMENTS).fid == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["images.zip", "images.npz", "statistics.npz"])
def test_an_address_may_ask_for_something(here: Run, place: Path, expected: float, web: HttpStore, form: str) -> None:
    run = here("compute", place / "real", f"{web.url}{form}?token=1", *ARGUMENTS)
    assert run.fid == pytest.approx(expected, rel=1e-12)


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [[503, 503], ["cut"], [500, "cut", 429]])
@pytest.mark.parametrize("form", ["images/", "images.zip", "packed.npz"])
def test_what_fails_for_a_moment_is_asked_for_again(
    here: Run, place: Path, expected: float, web: HttpStore, form: str, faults: list[int | str]
) -> None:
    name = f"images/{names_in(place / 'images')[0]}" if form == "images/" else form
    web.faults[name] = [*faults]
    assert here("compute", place / "real", f"{web.url}{form}", *ARGUMENTS).fid == expected
    assert web.faults[name] == []


@pytest.mark.parametrize("form", ["images/", "images.zip", "packed.npz"])
def test_what_fails_each_time_ends_the_run(here: Run, place: Path, web: HttpStore, form: str) -> None:
    """Also where bad files are skipped: the number must not depend on the weather."""
    name = "images/007.png" if form == "images/" else form
    web.faults[name], web.lasting = [503], True
    run = here("compute", place / "real", f"{web.url}{form}", *ARGUMENTS, "--on-error", "skip", "--max-skip", "0.5")
    assert run.status == 1
    assert f"{web.url}{name} could not be read in 5 tries" in run.error
    assert "503" in run.error
    assert web.asked[name] >= asking.TRIES


@pytest.mark.parametrize(("status", "words"), [(404, "not there"), (410, "not there")])
def test_what_no_second_try_would_change_is_not_asked_again(
    here: Run, place: Path, web: HttpStore, status: int, words: str
) -> None:
    web.faults["images/007.png"], web.lasting = [status], True
    arguments = ("compute", place / "real", f"{web.url}images/", *ARGUMENTS)
    run = here(*arguments)
    assert run.status == 2
    assert f"cannot read {web.url}images/007.png: " in run.error
    assert words in run.error.lower()
    assert web.asked["images/007.png"] == 1
    skipping = here(*arguments, "--on-error", "skip", "--max-skip", "0.1")
    assert skipping.json["results"][0]["count"]["fake"] == COUNT - 1


def test_whoever_may_read_no_more_skips_nothing(here: Run, place: Path, web: HttpStore) -> None:
    """As when a token expires in the middle: the others would all be skipped, up to what is allowed."""
    web.faults["images/007.png"], web.lasting = [403], True
    arguments = ("compute", place / "real", f"{web.url}images/", *ARGUMENTS)
    run = here(*arguments, "--on-error", "skip", "--max-skip", "0.9")
    assert run.status == 2
    assert f"{web.url}images/007.png may not be read: the store says 403: access denied" in run.error
    assert web.asked["images/007.png"] == 1


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("none.zip", ["there is no", "none.zip"]),
        ("none/", ["there is nothing below", "none/"]),
        ("none.npz", ["there is no", "none.npz"]),
        ("shard-{000..005}.tar", ["there is no", "shard-003.tar"]),
    ],
)
def test_what_is_not_there_is_said(here: Run, place: Path, web: HttpStore, form: str, words: list[str]) -> None:
    run = here("compute", place / "real", f"{web.url}{form}", *ARGUMENTS)
    assert run.status == 2
    assert [word for word in words if word not in run.error] == [], run.error


def test_a_server_that_sends_no_pieces_is_of_no_use_for_archives(here: Run, place: Path, web: HttpStore) -> None:
    web.faults["images.zip"], web.lasting = ["whole"], True
    run = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert run.status == 2
    assert "sends whole files where pieces are asked for" in run.error


def test_no_server_at_all(here: Run, place: Path, web: HttpStore) -> None:
    run = here("compute", place / "real", f"http://127.0.0.1:{free_port()}/images.zip", *ARGUMENTS)
    assert run.status == 1
    assert "could not be read in 5 tries" in run.error
    assert "onnect" in run.error


@pytest.mark.parametrize("url", ["nosuch://bucket/images", "s3://"])
def test_an_address_that_is_none(here: Run, place: Path, to_s3: None, url: str) -> None:
    run = here("compute", place / "real", url, *ARGUMENTS)
    assert run.status == 2
    assert url in run.error


@pytest.mark.parametrize(
    ("module", "form", "extra"),
    [
        ("fsspec.core", "memory://images", "fidtool[remote]"),
        ("s3fs", "s3://bucket/images", "fidtool[remote]"),
        ("pyarrow.parquet", "images.parquet", "fidtool[parquet]"),
    ],
)
def test_a_missing_extra_is_named(
    here: Run, place: Path, monkeypatch: pytest.MonkeyPatch, module: str, form: str, extra: str
) -> None:
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    run = here("compute", place / "real", form if "://" in form else place / form, *ARGUMENTS)
    assert run.status == 2
    assert extra in run.error


# --- versions --------------------------------------------------------------------------------------------------------


def test_versions_decide_what_the_cache_has(here: Run, tmp_path: Path, web: HttpStore) -> None:
    web.folder = tmp_path / "web"
    make_squares(web.folder / "images", COUNT)

    def computed() -> int:
        run = here("compute", f"{web.url}images.npy", f"{web.url}images.npy", "--extractor", TINY, "--json")
        return int(run.json["run"]["images_computed"])

    import numpy as np
    from source_forms import pixels_in

    pixels = pixels_in(web.folder / "images")
    np.save(web.folder / "images.npy", pixels)
    assert [computed(), computed()] == [COUNT, 0]
    np.save(web.folder / "images.npy", 255 - pixels)
    assert [computed(), computed()] == [COUNT, 0]
    web.tagged = False
    assert [computed(), computed()] == [COUNT, COUNT], "nobody can tell whether it is still the same"
    run = here("compute", f"{web.url}images.npy", f"{web.url}images.npy", "--extractor", TINY, "--checkpoint", "kept")
    assert run.status == 2
    assert "--checkpoint cannot tell whether" in run.error


def test_a_store_that_does_not_answer_is_not_waited_for_forever(
    place: Path, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_PATIENCE", 0.2)
    monkeypatch.setattr(HttpStore, "fault", lambda self, name: time.sleep(1.0))
    names = Names(["images/000.png"])
    files = remote.RemoteFiles(Prefixed(web.url, names), remote.np.zeros((1, 5), dtype=int))
    whole: Extent = (0, 0, -1)
    (answer,) = files.fetch([whole])
    assert isinstance(answer, remote.StoreError)
    assert "in 5 tries" in str(answer)


def test_a_store_that_says_nothing_of_an_object_is_not_waited_for_forever(
    here: Run, place: Path, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_ANSWER", 0.2)
    monkeypatch.setattr(HttpStore, "described", lambda self: time.sleep(1.0))
    run = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert run.status == 1
    assert "could not be read in 5 tries: no answer within 0.2 s" in run.error


def test_a_program_does_not_wait_for_what_it_asked(place: Path, web: HttpStore) -> None:
    """Whoever has given up on a store that never answers can end: its threads do not hold the interpreter."""
    program = f"""
import threading
from fidtool.sources.asking import in_background
from fidtool.sources.store import remote_files
next(remote_files("{web.url}images.zip").flow([(0, 0, 10), (0, 4_000_000, 10)]), None)
in_background(threading.Event().wait)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_nothing_of_an_object_is_nothing(web: HttpStore) -> None:
    """A request for an empty piece would bring the whole object."""
    files = store.remote_files(f"{web.url}images.zip")
    before = web.asked["images.zip"]
    assert files.fetch([(0, 5, 0), (0, 0, 2)]) == [b"", b"PK"]
    assert list(files.flow([(0, 5, 0)])) == [b""]
    assert web.asked["images.zip"] == before + 1


def test_an_object_that_would_fill_the_memory_is_not_fetched() -> None:
    stamps = np.array([[1 << 40, 1, 0, 0, 0]])
    (answer,) = remote.RemoteFiles(["http://127.0.0.1:1/000.png"], stamps).fetch([(0, 0, -1)])
    assert isinstance(answer, ContentError)
    assert "no image file has more than" in str(answer)


def test_s3_is_asked_whether_an_object_is_still_the_same(place: Path, s3: dict[str, str], to_s3: None) -> None:
    """s3fs answers from what it has listed, were it not told to forget that."""
    objects = client(s3)
    objects.put_object(Bucket="bucket", Key="lists/a.txt", Body=b"one")
    assert len(asking.file_system("s3://bucket/lists").ls("s3://bucket/lists")) == 1
    files = store.remote_files("s3://bucket/lists/a.txt")
    stamps = files.stamps()
    assert files.changed(stamps) == []
    objects.put_object(Bucket="bucket", Key="lists/a.txt", Body=b"two")
    assert files.changed(stamps) == [0]
    assert (store.remote_files("s3://bucket/lists/a.txt").stamps() != stamps).any()


def test_a_remote_folder_that_changes_meanwhile(
    here: Run, place: Path, s3: dict[str, str], to_s3: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = client(s3)
    for name in names_in(place / "images"):
        objects.upload_file(str(place / "images" / name), "bucket", f"moving/{name}")
    run = here("compute", place / "real", "s3://bucket/moving", *ARGUMENTS)
    assert run.status == 0
    assert "changed while" not in str(run.json)
    look = store.RemoteFolder.changed

    def meanwhile(self: store.RemoteFolder, stamps: Stamps) -> list[int]:
        objects.upload_file(str(place / "real" / "005.png"), "bucket", "moving/005.png")
        objects.delete_object(Bucket="bucket", Key="moving/003.png")
        return look(self, stamps)

    monkeypatch.setattr(store.RemoteFolder, "changed", meanwhile)
    run = here("compute", place / "real", "s3://bucket/moving", *ARGUMENTS)
    assert "2 files of s3://bucket/moving changed while they were being read" in str(run.json)


def test_a_store_that_is_gone_at_the_end_takes_no_number_along(
    here: Run, place: Path, expected: float, web: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: remote.RemoteFiles, stamps: object) -> list[int]:
        raise remote.StoreError("it does not answer")

    monkeypatch.setattr(remote.RemoteFiles, "changed", gone)
    run = here("compute", place / "real", f"{web.url}images.zip", *ARGUMENTS)
    assert run.fid == expected
    assert "changed while it was being read is not known: it does not answer" in str(run.json)


def test_names_that_stores_allow(here: Run, place: Path, expected: float, s3: dict[str, str], to_s3: None) -> None:
    """Names that begin with a slash, and brackets that are no pattern."""
    objects = client(s3)
    names = names_in(place / "images")
    objects.upload_file(str(place / "images.zip"), "bucket", "run[1]/images.zip")
    for name in names:
        objects.upload_file(str(place / "images" / name), "bucket", f"slashes//{name}")
    objects.upload_file(str(place / "images" / names[0]), "bucket", f"slashes/{names[0]}")
    assert here("compute", place / "real", "s3://bucket/run[1]/images.zip", *ARGUMENTS).fid == expected
    run = here("check", "s3://bucket/slashes", "--list", "--quiet")
    wanted = {f"s3://bucket/slashes//{name}" for name in names} | {f"s3://bucket/slashes/{names[0]}"}
    assert set(run.stdout.split()) == wanted


def test_an_object_counts_once(here: Run, place: Path, web: HttpStore) -> None:
    run = here("compute", place / "real", f"{web.url}{{images,images}}.zip", *ARGUMENTS)
    assert run.status == 2
    assert "names an object twice" in run.error


def test_what_an_address_asks_for_has_colons(here: Run, place: Path, expected: float, web: HttpStore) -> None:
    run = here("compute", place / "real", f"{web.url}images.npz?signature=a:b", *ARGUMENTS)
    assert run.fid == expected


def test_a_checkpoint_goes_on_wherever_the_program_is_started(
    here: Run, place: Path, s3: dict[str, str], to_s3: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resumed() -> int:
        arguments = ("compute", place / "real", "s3://bucket/images.zip", *ARGUMENTS, "--checkpoint", tmp_path / "kept")
        return int(here(*arguments).json["run"]["images_resumed"])

    assert resumed() == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resumed() == 2 * COUNT


def test_an_object_that_went_is_not_asked_for_again(place: Path, s3: dict[str, str], to_s3: None) -> None:
    files = store.remote_files("s3://bucket/images/000.png")
    gone = remote.RemoteFiles(["s3://bucket/images/none.png"], files.stamps())
    (answer,) = gone.fetch([(0, 0, -1)])
    assert isinstance(answer, FileNotFoundError)
