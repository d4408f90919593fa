"""Results do not depend on the calling program's torch settings, which are restored afterwards."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fidtool
from fidtool.features.choice import NetworkChoice
from fidtool.features.weights import explain_download_errors, kept_file
from fidtool.run.networks import check_matrix_products
from fidtool.settings.settings import Settings
from support.caller_states import make_place, metrics, pixels_of, setting
from support.command_line import Run
from support.http_store import http_store
from support.places import TINY


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def pixels(place: Path) -> list[NDArray[np.uint8]]:
    return pixels_of(place)


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, tuple[dict[str, float], str | None]]:
    networks = {"convolution": TINY, "attention": f"{place / 'attention.py'}:network"}
    return {name: metrics(place, place / "fake", spec) for name, spec in networks.items()}


def flag(place: Any, name: str, value: object) -> AbstractContextManager[None]:
    return setting(lambda: getattr(place, name), lambda each: setattr(place, name, each), value)


def only_plain_attention() -> AbstractContextManager[None]:
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bfloat16 by autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64 by default": lambda: setting(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "a device's context": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "three threads": lambda: setting(torch.get_num_threads, torch.set_num_threads, 3),
    "deterministic algorithms": lambda: setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "no oneDNN": lambda: flag(torch.backends.mkldnn, "enabled", False),
    "plain attention": only_plain_attention,
    "no fast path": lambda: setting(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_the_callers_state_does_not_change_results(
    place: Path,
    pixels: list[NDArray[np.uint8]],
    expected: dict[str, Any],
    environment: dict[str, str],
    name: str,
) -> None:
    with STATES[name]():
        assert metrics(place, place / "fake", TINY) == expected["convolution"]
        assert (
            metrics(place, iter(pixels), f"{place / 'attention.py'}:network")
            == expected["attention"]
        )


def test_a_cublas_workspace_setting_is_refused_where_it_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    check_matrix_products(Settings(), gpu)
    for config in (Settings(extractor="dinov2"), Settings(metrics=("fid", "cmmd"))):
        with pytest.raises(
            fidtool.InputError, match=r"CUBLAS_WORKSPACE_CONFIG is set \(:4096:8\).*unset it"
        ):
            check_matrix_products(config, gpu)


def test_the_distance_does_not_depend_on_omp_num_threads(program: Run, tmp_path: Path) -> None:
    """torchrun sets OMP_NUM_THREADS=1. The distance is the same, and torch's number of threads is
    left unchanged.
    """
    random = np.random.RandomState(0)
    a, b = random.randn(900, 400), random.rand(900, 400)
    moments = [a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T)]
    np.savez(tmp_path / "moments.npz", *moments)
    code = (
        f"import numpy, torch, fidtool; moments = numpy.load({str(tmp_path / 'moments.npz')!r});"
        "print(fidtool.frechet_distance(*moments.values()).hex(), torch.get_num_threads())"
    )
    threads = "2" if torch.get_num_threads() == 1 else "1"
    expected = fidtool.frechet_distance(*moments).hex()
    assert program(code, OMP_NUM_THREADS=threads).stdout.split() == [expected, threads]


def test_a_program_keeps_its_umask_timeouts_logs_and_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They belong to the whole process, and its other threads would notice a change for a
    moment.
    """

    def refused(*_: object) -> Any:
        raise AssertionError("a setting of the whole process was changed")

    for owner, name in ((os, "umask"), (socket, "setdefaulttimeout"), (logging, "disable")):
        monkeypatch.setattr(owner, name, refused)
    stdout, logged = sys.stdout, list[str]()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", lambda record: logged.append(record.getMessage()))
    served, kept = tmp_path / "served" / "weights.pth", tmp_path / "kept"
    served.parent.mkdir()
    served.write_bytes(b"weights")

    def elsewhere() -> None:
        logging.warning("of the program")
        assert sys.stdout is stdout

    with (
        http_store(served.parent) as store,
        explain_download_errors(NetworkChoice("dinov2"), store.url, "A_MIRROR", lambda line: None),
    ):
        logging.warning("of a library")
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        file = kept_file(f"{store.url}weights.pth", kept, hashlib.sha256(b"weights").hexdigest())
    assert (file.read_bytes(), logged) == (b"weights", ["of the program"])
    usual = kept / "usual"
    usual.touch()
    assert file.stat().st_mode == usual.stat().st_mode
    assert {each.name for each in kept.iterdir()} == {"weights.pth", "usual"}
    logging.warning("afterwards")
    assert logged[1:] == ["afterwards"]
