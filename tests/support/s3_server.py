"""Runs an S3-compatible server with all files of a folder in its bucket ``bucket``; prints ``ready`` when it is up.

python tests/support/s3_server.py PORT FOLDER
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer


def main(port: int, folder: Path) -> None:
    """Fill the bucket and serve it until the process is killed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "any")
    ThreadedMotoServer("127.0.0.1", port).start()
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
    client.create_bucket(Bucket="bucket")
    for file in folder.rglob("*"):
        if file.is_file():
            client.upload_file(str(file), "bucket", str(file.relative_to(folder)))
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
