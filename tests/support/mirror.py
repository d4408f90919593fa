"""A mirror of the weights on this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def kept(cache: Path) -> list[str]:
    """Names of the files below the cache, temporary ones too."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


@contextlib.contextmanager
def server(
    payload: bytes = b"",
    status: int = 200,
    sent: int | None = None,
    raw: bytes | None = None,
    halfway: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, list[str]]]:
    """Serves ``payload``, or only its first ``sent`` bytes, or ``raw`` in place of HTTP; gives URL and requests."""
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
            """Silence."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/weights.pth", requests
        finally:
            http.shutdown()
            thread.join()
