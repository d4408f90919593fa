"""Downloads over HTTP: deadlines, retries that continue where the connection broke, and parts of a large file."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import math
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

MAX_TRIES = 5
RETRIED_STATUSES = frozenset({408, 425, 429})
"""HTTP statuses below 500 with which a retry may help."""
_FIRST_DELAY = 0.5
"""Seconds before the second attempt. The delay doubles with each attempt, and up to half of it is added."""
_SILENCE_SECONDS = 30.0
"""Seconds without data after which a connection is considered broken."""
_DOWNLOAD_SECONDS = 1800.0
"""Deadline of a download in seconds, to which the time of a large file at `_SLOWEST` is added."""
_SLOWEST = 1 << 18
"""Bytes per second that a large file must reach on average."""
_FIRST_BYTES = 1 << 16
"""Bytes of the first request, which finds out the size of the file and whether the server returns parts of it."""
_BLOCK_BYTES = 1 << 20


class DownloadError(Exception):
    """A download failed. The message is the reason, and the position in the file."""


def attempts(seconds: float = math.inf) -> Iterator[int]:
    """Yield the numbers of the attempts at a request: no more than `MAX_TRIES`, and none after this time.

    Before each but the first, it sleeps for a random time, so that processes do not all retry at once.
    """
    end = time.monotonic() + seconds
    delays = random.Random()  # not the program's generator, whose numbers would depend on the network
    yield 1
    for attempt in range(2, MAX_TRIES + 1):
        if time.monotonic() > end:
            return
        time.sleep(_FIRST_DELAY * 2.0 ** (attempt - 2) * (1.0 + 0.5 * delays.random()))
        yield attempt


def megabytes(number: int) -> str:
    """Return a number of bytes as text: ``33.6 MB``."""
    return f"{number / 1e6:.1f} MB"


class RemoteFile:
    """A file on a web server, opened for reading, also by `zipfile.ZipFile`. Sequential reads share one request.

    Raises a DownloadError if there is no such file, or the server cannot be reached; also on reading.

    Attributes:
        size: size of the file in bytes; None if the server does not state it.
        stop: position at which the next requests end, if it is after their beginning; otherwise they end with the file.
            It keeps a server from sending more than will be read.
    """

    def __init__(self, url: str) -> None:
        self.size: int | None = None
        self._ranges = False
        self.stop = _FIRST_BYTES
        self._url, self._position, self._answered = url, 0, False
        self._deadline = time.monotonic() + _DOWNLOAD_SECONDS
        self._blocks = self._arriving(0)
        self._ahead = bytearray(next(self._blocks, b""))
        self._deadline += (self.size or 0) / _SLOWEST

    def seekable(self) -> bool:
        """Whether the server returns parts of the file. If not, it can only be read from its beginning to its end."""
        return self._ranges

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; nothing is requested before the next read."""
        position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size or 0}[whence] + offset
        if position != self._position:
            self._blocks.close()
            self._blocks, self._ahead = self._arriving(position), bytearray()
        self._position = position
        return position

    def read(self, count: int = -1) -> bytes:
        """Return this number of bytes, or all that are left if it is negative; fewer at the end of the file."""
        while (count < 0 or len(self._ahead) < count) and (block := next(self._blocks, b"")):
            self._ahead += block
        if count < 0:
            count = len(self._ahead)
        data = bytes(memoryview(self._ahead)[:count])
        del self._ahead[:count]
        self._position += len(data)
        return data

    def _arriving(self, position: int) -> Generator[bytes, None, None]:
        """Yield the file from this position on as it arrives. Requests that break are repeated from where they were."""
        tries = attempts()
        next(tries)
        while self.size is None or position < self.size:
            try:
                with self._request(position) as (response, end):
                    while data := response.read1(_BLOCK_BYTES):
                        position, tries = position + len(data), attempts()
                        next(tries)
                        yield data
                        self._check_time(position)
                if end is None:
                    return
                if position < end:
                    raise OSError("the connection was closed")
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = f"{_reason(error)}{self._place(position)}"
                status = error.code if isinstance(error, urllib.error.HTTPError) else 500 if self._answered else 0
                if isinstance(error, ValueError) or (status < 500 and status not in RETRIED_STATUSES):
                    raise DownloadError(problem) from None
                if position and not self._ranges:
                    raise DownloadError(f"{problem}, and the server cannot send the rest alone") from None
                if not next(tries, 0):
                    raise DownloadError(f"{problem}, in {MAX_TRIES} attempts") from None

    @contextlib.contextmanager
    def _request(self, first: int) -> Iterator[tuple[Any, int | None]]:
        """Request the file from ``first`` on; give the response, and where it ends if the server states it.

        The response must begin there and be of the same file as before.
        """
        self._check_time(first)
        last = (self.stop if self.stop > first else self.size or first + _FIRST_BYTES) - 1
        asked = request(self._url, {"Range": f"bytes={first}-{last}"})
        with urllib.request.urlopen(asked, timeout=_SILENCE_SECONDS) as response:
            length = response.headers.get("Content-Length")
            size = end = int(length) if length else None
            partial = getattr(response, "status", None) == http.client.PARTIAL_CONTENT
            if partial or first:
                content_range = response.headers.get("Content-Range") or ""
                part = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
                if part is None or int(part[1]) != first:
                    raise ValueError(f"the server returned {content_range!r} for the bytes from {first} on")
                size, end = int(part[3]), int(part[2]) + 1
            if self._answered and size != self.size:
                raise ValueError("the file changes while it is downloaded")
            self.size, self._ranges, self._answered = size, partial, True
            yield response, end

    def _check_time(self, position: int) -> None:
        if time.monotonic() > self._deadline:
            raise DownloadError(f"it is incomplete after the deadline{self._place(position)}")

    def _place(self, position: int) -> str:
        total = "" if self.size is None else f" of {self.size}"
        return f" at byte {position}{total}" if position else ""


def _reason(error: Exception) -> str:
    """Return why a request failed, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}: {error.reason}"
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no data for {_SILENCE_SECONDS:g} s"
    return getattr(reason, "strerror", None) or str(reason) or type(error).__name__


def request(url: str, headers: dict[str, str]) -> urllib.request.Request:
    """Return the request for ``url``, with ``user:password@`` as Basic authentication, which urllib does not support.

    The password is not sent to other servers to which the request is redirected.
    """
    found = re.fullmatch("(https?://)([^/?#]*)@(.*)", url, re.IGNORECASE | re.DOTALL)
    if found is None:
        return urllib.request.Request(url, headers=headers)
    scheme, user, place = found.groups()
    asked = urllib.request.Request(f"{scheme}{place}", headers=headers)
    asked.add_unredirected_header("Authorization", f"Basic {base64.b64encode(unquote_to_bytes(user)).decode()}")
    return asked
