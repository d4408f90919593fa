"""Statistics files that are damaged, malicious, not statistics, or computed with a different
protocol.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidtool import Statistics, read_statistics
from fidtool.errors import InputError
from fidtool.reading.decode import ImageProperties
from support.command_line import Run, messages
from support.pictures import make_pictures
from support.places import TINY

DIMS = 16
GOOD: dict[str, Any] = {"mu": np.zeros(DIMS), "sigma": np.eye(DIMS)}
SMALL = ("--extractor", TINY)
DEFINITION = {
    "extractor": "x",
    "weights_sha256": "0",
    "dims": DIMS,
    "feature_step": 18,
    "input_size": 32,
    "normalization": "x",
    "resize": "bilinear",
    "decoder": "pillow",
    "ddof": 1,
}


def npz(**arrays: Any) -> bytes:
    """Return an archive of valid arrays updated with ``arrays``; None removes an array."""
    buffer = io.BytesIO()
    np.savez(
        buffer, **{name: array for name, array in {**GOOD, **arrays}.items() if array is not None}
    )
    return buffer.getvalue()


def saved(array: np.ndarray[Any, Any]) -> bytes:
    """Return the contents of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def claims(**changes: Any) -> bytes:
    """Return valid statistics with these changes to the fingerprint."""
    return npz(fingerprint=np.array(json.dumps({**DEFINITION, **changes})))


FAULTS: dict[str, bytes] = {
    # Further ones are in tests/unit/statistics, where each is read without a command.
    "empty": b"",
    "an array and no archive": saved(GOOD["sigma"]),
    "a fingerprint of a thousand brackets": npz(fingerprint=np.array("[" * 100_000)),
    "a fingerprint of infinite dims": claims(dims=float("inf")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_statistics_file_is_refused(here: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.npz").write_bytes(FAULTS[name])
    (tmp_path / "good.npz").write_bytes(npz())
    outcome = here("compute", "good.npz", "bad.npz")
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
    assert "bad.npz" in outcome.error


class _Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (open, (str(self.file), "w"))


@pytest.mark.parametrize("kind", ["an array", "a pickle", "a fingerprint"])
def test_pickled_code_is_never_run(here: Run, tmp_path: Path, kind: str) -> None:
    created = tmp_path / "created"
    bomb = np.array([_Bomb(created)], dtype=object)
    data = {
        "an array": lambda: npz(mu=bomb),
        "a pickle": lambda: pickle.dumps(_Bomb(created)),
        "a fingerprint": lambda: npz(fingerprint=bomb),
    }[kind]()
    (tmp_path / "bad.npz").write_bytes(data)
    (tmp_path / "good.npz").write_bytes(npz())
    outcome = here("compute", "good.npz", "bad.npz")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "bad.npz" in outcome.error
    assert "never loaded" in outcome.error
    assert not created.exists()
    # Unpickling creates the file; otherwise the test could not fail.
    pickle.loads(pickle.dumps(_Bomb(created))).close()
    assert created.exists()


def test_damage_anywhere_is_an_input_error_or_harmless(tmp_path: Path) -> None:
    """One bit of each byte in turn is flipped. If the file can still be read, the values must be
    the original ones.
    """
    file = tmp_path / "bad.npz"
    sigma = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.savez(file, mu=np.array([3.0, 4.0]), sigma=sigma, count=np.int64(7))
    good = file.read_bytes()
    refusals = 0
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
        try:
            found: Statistics = read_statistics(file)
        except InputError:
            refusals += 1
            continue
        assert (found.mu.tolist(), found.sigma.tolist()) == ([3.0, 4.0], sigma.tolist())
        assert found.count in (7, None)
    assert refusals > len(good) / 3


def test_further_keys_in_the_record_of_the_run_are_ignored(tmp_path: Path) -> None:
    """A newer version may have written them."""
    record = {"arithmetic": {"precision": "fp32"}, "traits": {"lossy": 2, "new": 1}, "new": [1]}
    (tmp_path / "new.npz").write_bytes(npz(run=np.array(json.dumps(record)), count=np.int64(5)))
    found = read_statistics(tmp_path / "new.npz")
    assert (found.count, found.arithmetic, found.traits) == (
        5,
        {"precision": "fp32"},
        ImageProperties(lossy=2),
    )


# --- different dims and protocols -----------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder of 20 images, which is enough for no warning at 16 dimensions."""
    return make_pictures(tmp_path / "real", 20)


def test_different_dims_are_refused(here: Run, real: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "four.npz", mu=np.zeros(4), sigma=np.eye(4))
    (tmp_path / "good.npz").write_bytes(npz())
    for arguments in (["four.npz", "real", *SMALL], ["good.npz", "four.npz"]):
        outcome = here("compute", *arguments, "--allow-mismatch")
        assert (outcome.status, outcome.stdout) == (2, "")
        assert {"four", "4", "16"} <= set(re.findall(r"\w+", outcome.error))


def test_another_protocol_is_refused_or_warned_about(here: Run, real: Path, tmp_path: Path) -> None:
    assert here("stats", "real", "-o", "tf.npz", *SMALL, "--protocol", "tensorflow").status == 0
    refused = here("compute", "real", "tf.npz", *SMALL)
    assert (refused.status, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    texts = ("tf.npz", "bilinear-tf1", "--allow-mismatch", "--protocol tensorflow")
    assert [text for text in texts if text not in refused.error] == []
    allowed = here("compute", "real", "tf.npz", *SMALL, "--allow-mismatch", "--json", "--quiet")
    assert allowed.json["protocol"]["name"] == "pytorch-fid", "that of REAL"
    warning, *others = messages(allowed.json["results"][0])
    assert "different protocols" in warning
    assert allowed.stderr == "".join(f"warning: {line}\n" for line in (warning, *others))
    agreed = here(
        "compute", "real", "tf.npz", *SMALL, "--protocol", "tensorflow", "--json", "--quiet"
    )
    assert messages(agreed.json["results"][0]) == others
    assert agreed.fid == pytest.approx(0, abs=1e-9)


def test_a_requested_protocol_must_match_the_files(here: Run, real: Path) -> None:
    assert here("stats", "real", "-o", "tf.npz", *SMALL, "--protocol", "tensorflow").status == 0
    refused = here("compute", "tf.npz", "tf.npz", "--protocol", "pytorch-fid")
    assert (refused.status, refused.stdout) == (2, "")
    assert "tf.npz was computed with the protocol tensorflow, not pytorch-fid" in refused.error
    assert here("compute", "tf.npz", "tf.npz", "--protocol", "tensorflow").status == 0
    assert (
        here("compute", "tf.npz", "tf.npz", "--protocol", "pytorch-fid", "--allow-mismatch").status
        == 0
    )


def test_another_network_is_refused(here: Run, real: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.py"
    copy.write_text(
        Path(TINY.rpartition(":")[0]).read_text().replace("manual_seed(7)", "manual_seed(8)")
    )
    assert here("stats", "real", "-o", "other.npz", "--extractor", f"{copy}:network").status == 0
    refused = here("compute", "real", "other.npz", *SMALL)
    assert (refused.status, refused.stdout) == (2, "")
    assert [
        text for text in ("other.npz", "weights_sha256", "copy.py") if text not in refused.error
    ] == []
