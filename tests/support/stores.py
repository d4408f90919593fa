"""Local stores with the same images in every format."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fidtool
from support.command_line import Run
from support.places import TESTS, TINY
from support.processes import free_port
from support.source_forms import make_forms, make_pair

COUNT = 22
ARGUMENTS = ("--extractor", TINY, "--no-cache", "--json", "--batch-size", 4)

SERVER = TESTS / "support" / "s3_server.py"


def filled(place: Path) -> Path:
    """Write the images in every format, their statistics, and REAL."""
    make_forms(make_pair(place, COUNT) / "images")
    statistics = fidtool.compute_statistics(place / "images", extractor=TINY, cache=False)
    assert statistics is not None
    fidtool.write_statistics(place / "statistics.npz", statistics)
    return place


def folders_fid(place: Path) -> float:
    """Return the distance that every format must give."""
    return fidtool.compute(place / "real", place / "images", extractor=TINY, cache=False, batch_size=4).frechet_distance


@contextlib.contextmanager
def s3_server(place: Path, log: Path) -> Iterator[dict[str, str]]:
    """Run a server with a folder's files in a bucket during a ``with`` block; yields the environment variables."""
    port = free_port()
    credentials = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    with open(log, "wb") as errors:
        server = subprocess.Popen(
            [sys.executable, str(SERVER), str(port), str(place)],
            env={**os.environ, **credentials},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert server.stdout is not None
    lines = iter(server.stdout.readline, "")
    assert any(line == "ready\n" for line in lines), log.read_text()
    try:
        yield {**credentials, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    finally:
        server.kill()
        server.wait()


def client(s3: dict[str, str]) -> Any:
    """Return a client with which tests change the contents of the bucket."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=s3["AWS_ENDPOINT_URL"],
        aws_access_key_id="x",
        aws_secret_access_key="x",
        region_name="us-east-1",
    )


def make_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("store"))


def make_expected(place: Path) -> float:
    return folders_fid(place)


def make_s3(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the environment variables for a server with these files in a bucket."""
    with s3_server(place, tmp_path_factory.mktemp("s3") / "log") as variables:
        yield variables


def make_to_s3(s3: dict[str, str], here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
