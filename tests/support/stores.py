"""Local stores with the same images in every format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fidtool
from support.places import TINY
from support.processes import free_port
from support.source_forms import make_forms, make_pair

COUNT = 22
ARGUMENTS = ("--extractor", TINY, "--no-cache", "--json", "--batch-size", 4)


def filled(place: Path) -> Path:
    """Write the images in every format, their statistics, and REAL."""
    make_forms(make_pair(place, COUNT) / "images")
    statistics = fidtool.compute_statistics(place / "images", extractor=TINY, cache=False)
    assert statistics is not None
    fidtool.write_statistics(place / "statistics.npz", statistics)
    return place


def folders_fid(place: Path) -> float:
    """Return the distance that every format must give."""
    return fidtool.compute(
        place / "real", place / "images", extractor=TINY, cache=False, batch_size=4
    ).frechet_distance


@contextlib.contextmanager
def s3_server(place: Path) -> Iterator[dict[str, str]]:
    """Run an S3-compatible server with a folder's files in ``bucket`` during a ``with`` block.

    Yields:
        The environment variables for its clients.
    """
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=free_port())
    server.start()
    _, port = server.get_host_and_port()
    s3 = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    s3["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    bucket = client(s3)
    bucket.create_bucket(Bucket="bucket")
    for file in place.rglob("*"):
        if file.is_file():
            bucket.upload_file(str(file), "bucket", str(file.relative_to(place)))
    try:
        yield s3
    finally:
        server.stop()


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
