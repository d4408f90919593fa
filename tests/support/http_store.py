"""Local web servers with configurable failures: one supports range requests, one serves a single
file.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class HttpStore:
    """Serves a folder.

    Attributes:
        url: address, with a trailing slash.
        faults: responses to a file's first GETs: a status such as 503, ``cut`` in the middle,
            ``whole``, which ignores the requested range, or ``whole cut``, which is both; None if
            there is no fault. The last fault is repeated if ``lasting``.
        lasting: see ``faults``.
        tagged: whether files have ETags.
        asked: number of requests for each file.
        sent: number of bytes of each file that were sent.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}/"
        self.faults: dict[str, list[int | str | None]] = {}
        self.lasting, self.tagged = False, True
        self.asked: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def described(self) -> None:
        """Called on a request for the properties of a file."""

    def fault(self, name: str) -> int | str | None:
        """Return the fault of this GET, if any."""
        self.asked[name] += 1
        planned = self.faults.get(name, [])
        if self.lasting and len(planned) == 1:
            return planned[0]
        return planned.pop(0) if planned else None


class _Handler(BaseHTTPRequestHandler):
    store: HttpStore
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Print no log of requests."""

    def do_HEAD(self) -> None:
        self.store.described()
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        name = unquote(urlsplit(self.path).path).lstrip("/")
        file = self.store.folder / name
        fault = self.store.fault(name) if body else None
        if isinstance(fault, int) or not file.exists():
            self._send(fault if isinstance(fault, int) else 404, b"", {})
            return
        if file.is_dir():
            links = "".join(
                f'<a href="{each.name}{"/" * each.is_dir()}">x</a>'
                for each in sorted(file.iterdir())
            )
            self._send(200, links.encode() if body else b"", {"Content-Type": "text/html"})
            return
        data, headers = file.read_bytes(), {"Accept-Ranges": "bytes"}
        if self.store.tagged:
            headers["ETag"] = f'"{hash(data)}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted and fault not in ("whole", "whole cut"):
            first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self.store.sent[name] += last + 1 - first
            self._send(206, data[first : last + 1], headers, cut=fault == "cut")
        elif body:
            self.store.sent[name] += len(data)
            self._send(200, data, headers, cut=fault in ("cut", "whole cut"))
        else:
            self._send(200, b"", headers, length=len(data))

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], cut: bool = False, length: int = -1
    ) -> None:
        self.send_response(status)
        for name, value in {
            **headers,
            "Content-Length": str(len(data) if length < 0 else length),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that was killed, as decoding workers are."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def http_store(folder: Path) -> Iterator[HttpStore]:
    """Run a server during a ``with`` block."""
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    store = HttpStore(folder, server.server_address[1])
    handler.store = store  # type: ignore[attr-defined]
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    yield store
    server.shutdown()
    server.server_close()


def kept(cache: Path) -> list[str]:
    """Return the names of all files in the cache, including temporary ones."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


@contextlib.contextmanager
def server(
    payload: bytes = b"",
    status: int = 200,
    sent: int | None = None,
    raw: bytes | None = None,
    halfway: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, list[str]]]:
    """Serve ``payload``, only its first ``sent`` bytes, or ``raw`` instead of HTTP; yields the URL
    and the requests.
    """
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers['Authorization'] or ''}".strip())
            if raw is not None:
                self.wfile.write(raw)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            body = payload[:sent]
            self.wfile.write(body[: len(body) // 2])
            halfway()
            self.wfile.write(body[len(body) // 2 :])

        def log_message(self, format: str, *args: object) -> None:
            """Print no log of requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/weights.pth", requests
        finally:
            http.shutdown()
            thread.join()
