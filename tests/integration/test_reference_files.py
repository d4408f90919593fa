"""References are downloaded from a mirror: whole or in parts, after breaks."""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fidtool.errors import InputError, RunError
from fidtool.references import files as reference_files
from fidtool.references.catalogue import FEATURES, IMAGES, REFERENCES, Reference
from fidtool.references.files import fetch, folder, published_files
from fidtool.system import download
from support.command_line import Run
from support.http_store import HttpStore, http_store, kept
from support.processes import free_port

EDM = REFERENCES["edm:cifar10"]
EDM2 = REFERENCES["edm2:img64"]
ADM = REFERENCES["adm:imagenet256"]
METFACES = REFERENCES["clean-fid:metfaces-1024-train"]
STATISTICS = ("mu", "sigma", "mu_s", "sigma_s")


def served(url: str) -> str:
    """Return the name of a file on the mirror."""
    return url.partition("://")[2]


def statistics(seed: int, dims: int = 128) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return {"mu": rng.normal(size=dims), "sigma": rng.normal(size=(dims, dims))}


def publish(place: Path, url: str, **arrays: NDArray[np.generic]) -> Path:
    """Write a published ``.npz`` into the mirror's folder."""
    file = place / served(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)
    return file


def publish_adm(place: Path, seed: int = 1) -> Path:
    """Write a file like ADM's: small statistics after many images."""
    images = np.random.default_rng(seed).integers(0, 256, (60, 64, 64, 3), dtype=np.uint8)
    spatial = {f"{name}_s": value[:100] for name, value in statistics(seed + 1).items()}
    return publish(place, ADM.url, arr_0=images, **statistics(seed), **spatial)


@pytest.fixture
def mirror(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HttpStore]:
    """A mirror of three references, without waits between attempts."""
    place = tmp_path / "mirror"
    publish(place, EDM.url, **statistics(0))
    publish_adm(place)
    publish(place, METFACES.url, **statistics(3))
    publish(place, METFACES.features_url, feats=np.ones((5, 8), np.float32))
    pickled = place / served(EDM2.url)
    pickled.parent.mkdir(parents=True)
    pickled.write_bytes(pickle.dumps({"fid": statistics(4), "num_images": 7}))
    monkeypatch.setattr(download, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(reference_files, "WHOLE_BYTES", 1 << 19)  # the file like ADM's is larger
    with http_store(place) as store:
        for name, value in {"FIDTOOL_REFERENCES_URL": store.url, "no_proxy": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
            environment[name] = value
        yield store


def quiet(line: str) -> None:
    """Listener for messages that are not checked."""


def members(file: Path) -> dict[str, str]:
    """Return the SHA-256 of each array's data in an ``.npz``."""
    with zipfile.ZipFile(file) as archive:
        return {
            name.removesuffix(".npy"): hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
        }


def assert_same(found: tuple[Path, dict[str, str]], published: Path, *arrays: str) -> None:
    """The file has the published arrays, and their hashes are returned."""
    wanted = {array: members(published)[array] for array in arrays}
    path, sha256 = found
    assert sha256 == wanted
    assert {array: members(path)[array] for array in arrays} == wanted
    with np.load(path) as ours, np.load(published) as theirs:
        assert all(np.array_equal(ours[array], theirs[array]) for array in arrays)


def test_a_small_file_is_downloaded_once_and_whole(mirror: HttpStore) -> None:
    said: list[str] = []
    statistics = fetch(EDM, [], said.append)
    published = mirror.folder / served(EDM.url)
    assert_same(statistics, published, "mu", "sigma")
    assert statistics[0] == folder() / "edm-cifar10.npz"
    assert statistics[0].read_bytes() == published.read_bytes()
    assert said == [f"downloading edm:cifar10 from {mirror.url}{served(EDM.url)} (0.1 MB)"]
    asked = mirror.asked[served(EDM.url)]
    assert fetch(EDM, ["mu"], said.append) == (statistics[0], {"mu": statistics[1]["mu"]})
    assert (mirror.asked[served(EDM.url)], len(said)) == (asked, 1)


def test_only_the_statistics_of_a_large_file_are_downloaded(
    mirror: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "FIRST_BYTES", 1000)
    published, said = mirror.folder / served(ADM.url), []
    statistics = fetch(ADM, [], said.append)
    assert_same(statistics, published, *STATISTICS)
    wanted = sum(np.load(published)[array].nbytes for array in STATISTICS)
    size = published.stat().st_size
    assert size > 3 * wanted
    assert wanted < mirror.sent[served(ADM.url)] < wanted + 10_000
    assert said[0].startswith("downloading mu, sigma, mu_s, sigma_s of adm:imagenet256 from ")
    assert said[0].endswith(f"({wanted / 1e6:.1f} MB of {size / 1e6:.1f} MB)")
    assert [file.arrays for file in published_files(ADM)] == [STATISTICS]

    images = fetch(ADM, [IMAGES], quiet)  # with what was there, so that both are from the same file
    assert images[0] == statistics[0]
    assert_same(images, published, IMAGES)
    assert {*members(images[0])} == {IMAGES, *STATISTICS}


def test_a_server_without_ranges_sends_the_whole_file(mirror: HttpStore) -> None:
    published, said = mirror.folder / served(ADM.url), []
    mirror.faults[served(ADM.url)], mirror.lasting = ["whole"], True
    assert_same(fetch(ADM, [], said.append), published, *STATISTICS)
    assert "the whole file because the server cannot send only a part of it" in said[0]
    assert mirror.asked[served(ADM.url)] == 1


def test_features_are_in_a_file_of_their_own(mirror: HttpStore) -> None:
    statistics = fetch(METFACES, [FEATURES], quiet)
    assert_same(statistics, mirror.folder / served(METFACES.features_url), FEATURES)
    assert_same(fetch(METFACES, [], quiet), mirror.folder / served(METFACES.url), "mu", "sigma")
    assert kept(folder()) == [
        "clean-fid-metfaces-1024-train-kid.npz",
        "clean-fid-metfaces-1024-train.npz",
    ]
    with pytest.raises(InputError, match="edm:cifar10 has no file with feats"):
        fetch(EDM, [FEATURES], quiet)


def test_a_pickle_is_downloaded_whole(mirror: HttpStore) -> None:
    statistics = fetch(EDM2, ["fid"], quiet)
    data = (mirror.folder / served(EDM2.url)).read_bytes()
    assert statistics[0] == folder() / "edm2-img64.pkl"
    assert statistics[0].read_bytes() == data
    assert statistics[1] == {"img64.pkl": hashlib.sha256(data).hexdigest()}
    assert fetch(EDM2, [], quiet) == statistics
    assert mirror.sent[served(EDM2.url)] == len(data)


# --- breaks and failures --------------------------------------------------------------------------


def test_a_broken_download_continues(mirror: HttpStore) -> None:
    published = mirror.folder / served(EDM.url)
    mirror.faults[served(EDM.url)] = ["cut", 503, "cut", None, "cut"]
    assert_same(fetch(EDM, [], quiet), published, "mu", "sigma")
    assert mirror.asked[served(EDM.url)] > 5
    received = mirror.sent[served(EDM.url)]  # counts what was cut off, too
    assert received < 2.5 * published.stat().st_size


@pytest.mark.parametrize(
    ("fault", "reason", "attempts"),
    [
        (503, r"HTTP status 503: .*, in 5 attempts\)", 5),
        (404, r"HTTP status 404: Not Found\)", 1),
        (
            "whole cut",
            r"the connection was closed at byte \d+ of \d+, and the server cannot send",
            1,
        ),
    ],
)
def test_a_failed_download_says_what_to_do(
    mirror: HttpStore, fault: int | str, reason: str, attempts: int
) -> None:
    mirror.faults[served(ADM.url)], mirror.lasting = [fault], True
    with pytest.raises(RunError) as caught:
        fetch(ADM, [], quiet)
    message = str(caught.value)
    address, own = f"{mirror.url}{served(ADM.url)}", folder() / "adm-imagenet256.npz"
    assert message.startswith(f"adm:imagenet256 could not be downloaded from {address} (")
    instead = f"pass that file instead of {ADM.name}"
    assert f"download {ADM.url} by hand and {instead}, or put it at {own}" in message
    assert "https_proxy" in message
    assert "FIDTOOL_REFERENCES_URL" in message
    assert re.search(reason, message)
    assert mirror.asked[served(ADM.url)] == attempts
    assert kept(folder()) == []


def test_offline(mirror: HttpStore, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://bob:hunter2@127.0.0.1:{free_port()}/mirror"
    monkeypatch.setenv("FIDTOOL_REFERENCES_URL", address)
    outcome = here("refs", "--download", "edm:cifar10")
    assert (outcome.status, outcome.stdout) == (1, "")
    assert (
        f"{address.replace('bob:hunter2@', '')}/{served(EDM.url)} (Connection refused)"
        in outcome.error
    )
    assert "hunter2" not in outcome.stderr
    monkeypatch.setenv("FIDTOOL_REFERENCES_URL", "/data/mirror")
    refused = here("refs", "--download", "edm:cifar10")
    assert (
        "must be a URL such as https://mirror or file:///folder, not '/data/mirror'"
        in refused.error
    )


def test_a_file_brought_by_hand_is_used(mirror: HttpStore) -> None:
    folder().mkdir()
    shutil.copy(mirror.folder / served(ADM.url), folder() / "adm-imagenet256.npz")
    assert_same(fetch(ADM, [IMAGES, "mu"], quiet), mirror.folder / served(ADM.url), IMAGES, "mu")
    assert mirror.asked == {}


@pytest.mark.parametrize(("reference", "kind"), [(EDM, "npz"), (EDM2, "pickle")])
def test_what_is_no_reference_is_refused(
    mirror: HttpStore, reference: Reference, kind: str
) -> None:
    (mirror.folder / served(reference.url)).write_bytes(
        b"<html>Sign in to the hotel's network</html>"
    )
    with pytest.raises(RunError, match=rf"the download from http://.* is not a readable \.?{kind}"):
        fetch(reference, [], quiet)
    assert kept(folder()) == []


def test_a_missing_array_is_named(mirror: HttpStore) -> None:
    publish(mirror.folder, EDM.url, ref_mu=np.zeros(3), sigma=np.eye(3))
    with pytest.raises(
        InputError, match="the file of edm:cifar10 has no array mu; it has ref_mu, sigma"
    ):
        fetch(EDM, [], quiet)


def test_a_cache_that_cannot_be_written(
    mirror: HttpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FIDTOOL_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match=r"edm:cifar10 cannot be stored in .*: set FIDTOOL_CACHE"):
        fetch(EDM, [], quiet)


def test_a_damaged_copy_is_downloaded_again_or_refused(mirror: HttpStore) -> None:
    statistics = fetch(EDM, [], quiet)
    data = statistics[0].read_bytes()
    statistics[0].write_bytes(data[: len(data) // 2])
    assert fetch(EDM, [], quiet) == statistics
    assert statistics[0].read_bytes() == data
    statistics[0].write_bytes(data[:5000] + bytes(100) + data[5100:])
    with pytest.raises(
        InputError, match=r"cannot be read \(Bad CRC-32.*\): delete it to download it again"
    ):
        fetch(EDM, [], quiet)


# --- fidtool refs ---------------------------------------------------------------------------------


def test_the_list(mirror: HttpStore, here: Run) -> None:
    fetch(ADM, [], quiet)
    first, headings, *rows = here("refs").stdout.splitlines()
    size = (folder() / "adm-imagenet256.npz").stat().st_size / 1e6
    assert first == f"{folder()}: 1 file, {size:.1f} MB"
    assert headings.split() == [
        "name",
        "protocol",
        "real",
        "images",
        "fakes",
        "size",
        "in",
        "the",
        "cache",
    ]
    assert [row.split()[0] for row in rows] == [*REFERENCES]
    (row,) = (row for row in rows if row.startswith("adm:imagenet256 "))
    expected = (
        f"adm:imagenet256 tensorflow 1281167 50000 256 x 256 mu, sigma, mu_s, sigma_s ({size:.1f} "
        "MB)"
    )
    assert " ".join(row.split()) == expected
    of_project = here("refs", "EDM").stdout.splitlines()
    assert [row.split()[0] for row in of_project[2:]] == [
        name for name in REFERENCES if name.startswith("edm:")
    ]
    name, *details = here("refs", ADM.name).stdout.splitlines()
    assert (name, details[2]) == (ADM.name, "  protocol      tensorflow")
    (shown,) = here("refs", "--json", ADM.name).json["references"]
    assert (shown["url"], shown["cached"][0]["arrays"]) == (ADM.url, [*STATISTICS])


def test_download(mirror: HttpStore, here: Run) -> None:
    outcome = here("refs", "--download", "ADM:ImageNet-256")
    path, *hashes = outcome.stdout.splitlines()
    assert path == str(folder() / "adm-imagenet256.npz")
    assert [line.split() for line in hashes] == [
        [array, "SHA-256", digest] for array, digest in sorted(members(Path(path)).items())
    ]
    assert {*members(Path(path))} == {*STATISTICS}
    assert outcome.stderr.startswith(
        "downloading mu, sigma, mu_s, sigma_s of adm:imagenet256 from "
    )
    assert here("refs", "--download", "adm:imagenet256:arr_0").status == 0
    assert {*members(Path(path))} == {*STATISTICS, IMAGES}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["edm:cifar"], "unknown reference 'edm:cifar'; did you mean edm:cifar10?"),
        (["--json", "--download", "edm:cifar10"], "--json and --download cannot be combined"),
        (["edm", "--download", "edm:cifar10"], "edm and --download cannot be combined"),
    ],
)
def test_wrong_usage(mirror: HttpStore, here: Run, arguments: list[str], problem: str) -> None:
    outcome = here("refs", *arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert problem in outcome.error
    assert mirror.asked == {}
