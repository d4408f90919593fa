"""Future versions read statistics files of version 0.1.0 and of other tools, and write the same
files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fidtool
from support.exact_sets import beside_network
from support.goldens import Golden
from support.old_files import FILES, SHA256, make_sets, of_layers, statistics

STATISTICS = sorted(name for name in SHA256 if name.endswith(".npz") and "/" not in name)
_LISTED = 16


def test_old_files_are_unchanged() -> None:
    """They were created once and must not be created again, see `support.old_files`."""
    found = {
        file.relative_to(FILES).as_posix(): file for file in FILES.rglob("*") if file.is_file()
    }
    assert {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in sorted(found.items())
    } == SHA256


def shown(array: NDArray[Any] | None) -> Any:
    """Describes an array to the last bit."""
    if array is None:
        return None
    whole = np.ascontiguousarray(array)
    described: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size <= _LISTED and array.dtype.names is None:
        return described | {"values": array.tolist()}
    return described | {"sha256": hashlib.sha256(whole.tobytes()).hexdigest()}


def read(found: fidtool.Statistics) -> dict[str, Any]:
    """Returns everything that a program can read from a file."""
    pictures, definition, traits = found.pictures, found.definition, found.traits
    return {
        "count": found.count,
        "found": found.found,
        "dims": found.dims,
        "mu": shown(found.mu),
        "sigma": shown(found.sigma),
        "definition": None if definition is None else json.loads(definition.to_json()),
        "fingerprint": None if definition is None else definition.fingerprint,
        "arithmetic": found.arithmetic,
        "traits": None if traits is None else dict(sorted(vars(traits).items())),
        "config": None if found.config is None else dict(found.config),
        "skipped": [[bad.file, bad.reason] for bad in found.skipped],
        "features": shown(None if found.features is None else np.asarray(found.features)),
        "pictures": None
        if pictures is None
        else {
            "files": [pictures.file(0), pictures.file(len(pictures) - 1)],
            "records": shown(pictures.records),
            "fields": {
                name: pictures.records[name][0].tolist()
                for name in pictures.records.dtype.names or ()
            }
            | {name: pictures.records[name][0].decode() for name in ("format", "mode")},
        },
        "further": {
            name: read(fidtool.Statistics({"features": each}, found.count))
            for name, each in sorted(found.layers.items())
            if name != "features"
        },
    }


def test_old_statistics_are_read(golden: Golden) -> None:
    found = {name: read(fidtool.read_statistics(FILES / name)) for name in STATISTICS}
    golden("statistics/old_files", found)


def arrays(file: Path) -> dict[str, Any]:
    """Returns the content of an archive in its order, as seen by another tool; strings are
    parsed.
    """
    with np.load(file, allow_pickle=False) as archive:
        return {name: _content(archive[name]) for name in archive.files}


def _content(array: NDArray[Any]) -> Any:
    if array.dtype.kind == "U":
        return {
            "json": json.loads(str(array)),
            "text": "as sorted" if _is_sorted(str(array)) else "in another order",
        }
    described = shown(array)
    described["dtype"] = array.dtype.descr if array.dtype.names else array.dtype.str
    return described


def _is_sorted(text: str) -> bool:
    return text == json.dumps(json.loads(text), sort_keys=True)


@pytest.fixture
def place(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the images that the old files were computed from."""
    monkeypatch.chdir(beside_network(tmp_path))
    make_sets(tmp_path)
    return tmp_path


def test_new_statistics_equal_the_old_ones(place: Path) -> None:
    """They have the same names in the same order, the same types and, for an exact network, the
    same bits.
    """
    fidtool.write_statistics(place / "own.npz", statistics())
    fidtool.write_statistics(place / "features.npz", statistics(metrics="fid,kid"))
    shutil.copytree(place / "real", place / "skipping")
    (place / "skipping" / "broken.png").write_bytes(b"no image")
    skipping = statistics("skipping", num=None, on_error="skip", max_skip=0.1)
    fidtool.write_statistics(place / "skipped.npz", skipping)
    own = fidtool.read_statistics(place / "own.npz")
    fidtool.write_statistics(
        place / "bare.npz", fidtool.Statistics.of(own.mu, own.sigma, own.count)
    )
    for name in ("own.npz", "features.npz", "skipped.npz", "bare.npz"):
        new, old = arrays(place / name), arrays(FILES / name)
        if name == "skipped.npz":  # the reason is Pillow's message
            for each in (new, old):
                ((file, _),) = each["run"]["json"]["skipped"]
                each["run"]["json"]["skipped"] = file
        if name != "bare.npz":  # newer than the old files
            arithmetic = new["run"]["json"]["arithmetic"]
            # Of the network, not of its place.
            (probe,) = (each for each in arithmetic if each.endswith("_probe"))
            arithmetic["probe"] = arithmetic.pop(probe)
            assert [
                new["run"]["json"]["traits"].pop(trait) for trait in ("bands", "most_bands")
            ] == [0, 0]
        # Newer than the old files, like the order.
        sums = [new.pop(each) for each in list(new) if each.startswith("sums_")]
        assert len(sums) == (5 if "records" in new else 0)
        for each in ("details", "stamps"):
            assert (new.pop(each, None) is None) == ("records" not in new)
        if name == "features.npz":
            stored = fidtool.read_statistics(place / name).order
            assert stored is not None
            assert new.pop("order")["shape"] == [own.count]
            assert len({*stored.tolist()}) == own.count
        assert list(new) == list(old), name
        assert new == old, name


def test_new_layers_equal_the_old_ones(tmp_path: Path) -> None:
    old = fidtool.read_statistics(FILES / "layers.npz")
    fidtool.write_statistics(tmp_path / "layers.npz", old)
    assert list(arrays(tmp_path / "layers.npz").items()) == list(
        arrays(FILES / "layers.npz").items()
    )
    again = of_layers(old.definition)
    assert np.array_equal(again.mu, old.mu)
    assert sorted(again.layers) == sorted(old.layers)


DAMAGED: dict[str, dict[str, Any]] = {
    "no sigma": {"sigma": None},
    "neither": {"mu": None, "sigma": None},
    "a shape": {"mu": np.zeros((2, 6))},
    "another shape": {"sigma": np.eye(11)},
    "not finite": {"mu": np.full(12, np.nan)},
    "not symmetric": {"sigma": np.triu(np.ones((12, 12)))},
    "a negative variance": {"sigma": -np.eye(12)},
    "texts": {"mu": np.array(["a"] * 12)},
    "a count of none": {"count": np.int64(0)},
    "a count that is none": {"count": np.float64(20)},
    "dims that differ": {"mu": np.zeros(11), "sigma": np.eye(11)},
    "features of others": {"features": np.zeros((3, 12), np.float32)},
    "a fingerprint that is none": {"fingerprint": np.array(3)},
    "a fingerprint that is no JSON": {"fingerprint": np.array("{")},
    "a fingerprint of a newer version": {"fingerprint": {"colour_space": "linear"}},
    "a fingerprint with a huge number": {"fingerprint": {"input_size": 10**400}},
    "a fingerprint that lacks something": {"fingerprint": np.array("{}")},
}


def damaged(changes: dict[str, Any], file: Path) -> None:
    """Writes ``features.npz`` with some arrays changed or left out."""
    with np.load(FILES / "features.npz") as archive:
        found = {name: archive[name] for name in archive.files}
    if isinstance(stated := changes.get("fingerprint"), dict):
        later = json.loads(str(found["fingerprint"])) | stated
        changes = {"fingerprint": np.array(json.dumps(later))}
    found |= changes
    np.savez(file, **{name: array for name, array in found.items() if array is not None})


def test_damaged_statistics_are_refused(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {}
    for name, changes in DAMAGED.items():
        damaged(changes, tmp_path / "bad.npz")
        with pytest.raises(fidtool.InputError) as error:
            fidtool.read_statistics("bad.npz")
        said[name] = str(error.value)
    for name, data in (
        ("no archive", b"something else"),
        ("cut off", (FILES / "own.npz").read_bytes()[:3000]),
    ):
        (tmp_path / "bad.npz").write_bytes(data)
        with pytest.raises(fidtool.InputError) as error:
            fidtool.read_statistics("bad.npz")
        said[name] = str(error.value)
    golden("statistics/damaged_files", said)
