"""A local web server with the part of the Hugging Face Hub's API that its file system for fsspec
uses.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 9
"""Number of entries in a page of a listing."""


@dataclass
class Hub:
    """The datasets ``owner/NAME`` of the server, each a folder.

    Attributes:
        gated: names of the datasets whose files need the token ``hf_right``; their listings do not.
        asked: number of requests of each kind: ``info``, ``tree``, ``file``.
        faults: statuses of the next responses.
        sha: the commit that is ``main``.
    """

    folders: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    faults: list[int] = field(default_factory=list)
    url: str = ""
    sha: str = "0123456789" * 4

    @property
    def variables(self) -> dict[str, str]:
        """Environment of a program that uses this server."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": "",
            "HF_HUB_DISABLE_XET": "1",
        }


def _entry(root: Path, path: Path) -> dict[str, Any]:
    name = str(path.relative_to(root))
    if path.is_dir():
        return {
            "type": "directory",
            "path": name,
            "size": 0,
            "oid": hashlib.sha1(name.encode()).hexdigest(),
        }
    data = path.read_bytes()
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Print no log of requests."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.hub.faults:
            self._send(self.hub.faults.pop(0))
            return
        parts = urlsplit(self.path)
        match unquote(parts.path).strip("/").split("/"):
            case ["api", "datasets", "owner", name] | [
                "api",
                "datasets",
                "owner",
                name,
                "revision",
                _,
            ] if name not in self.hub.folders:
                self.hub.asked["info"] += 1
                self._send(404 if self._is_known() else 401, error="RepoNotFound")
            case ["api", "datasets", "owner", name] | [
                "api",
                "datasets",
                "owner",
                name,
                "revision",
                ("main" | "v1"),
            ]:
                self.hub.asked["info"] += 1
                self._send_json({"id": f"owner/{name}", "sha": self.hub.sha})
            case ["api", "datasets", "owner", name, "revision", revision] if (
                revision == self.hub.sha
            ):
                self.hub.asked["info"] += 1
                self._send_json({"id": f"owner/{name}", "sha": self.hub.sha})
            case ["api", "datasets", "owner", _, "revision", _]:
                self._send(404, error="RevisionNotFound")
            case ["api", "datasets", "owner", name, "tree", revision, *below]:
                assert revision == self.hub.sha, revision
                self.hub.asked["tree"] += 1
                self._list(self.hub.folders[name], "/".join(below), parse_qs(parts.query))
            case ["datasets", "owner", name, "resolve", revision, *below]:
                assert revision == self.hub.sha, revision
                self.hub.asked["file"] += 1
                self._file(name, self.hub.folders[name].joinpath(*below))
            case _:
                self._send(404, error="RepoNotFound")

    def _is_known(self) -> bool:
        return bool(self.headers.get("Authorization", "") == "Bearer hf_right")

    def _list(self, root: Path, below: str, query: dict[str, list[str]]) -> None:
        folder = root / below
        if not folder.is_dir():
            self._send(404, error="EntryNotFound")
            return
        is_recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        found = sorted(folder.rglob("*") if is_recursive else folder.iterdir())
        first = int(query.get("cursor", ["0"])[0])
        headers = {}
        if first + PAGE < len(found):
            path = urlsplit(self.path).path
            following = f"{self.hub.url}{path}?recursive={is_recursive}&cursor={first + PAGE}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._send_json([_entry(root, each) for each in found[first : first + PAGE]], headers)

    def _file(self, name: str, file: Path) -> None:
        if name in self.hub.gated and not self._is_known():
            self._send(403 if self.headers.get("Authorization") else 401, error="GatedRepo")
        elif not file.is_file():
            self._send(404, error="EntryNotFound")
        else:
            self._send(200, file.read_bytes())

    def _send_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(
            200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _send(
        self, status: int, data: bytes = b"", headers: dict[str, str] | None = None, error: str = ""
    ) -> None:
        self.send_response(status)
        named = {"X-Error-Code": error, "X-Error-Message": error} if error else {}
        for key, value in {**named, **(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(data)


@contextlib.contextmanager
def hub_server(**folders: Path) -> Iterator[Hub]:
    """Run a server of these datasets during a ``with`` block."""
    hub = Hub(folders)
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub})
    ) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
