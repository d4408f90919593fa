"""Downloads over HTTP: deadlines, retries that continue where the connection broke, and parts of a large file."""

from __future__ import annotations

import base64
import http.client
import io
import math
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

T = TypeVar("T")

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


class DownloadError(Exception):
    """A download failed. The message is the reason, and the position in the file."""


def attempts(seconds: float = math.inf) -> Iterator[int]:
    """Yield the numbers of the attempts at a request: no more than `MAX_TRIES`, and none after this time.

    Before each but the first, it sleeps for a random time, so that processes do not all retry at once.
    """
    end = time.monotonic() + seconds
    yield 1
    for attempt in range(2, MAX_TRIES + 1):
        if time.monotonic() > end:
            return
        time.sleep(_FIRST_DELAY * 2.0 ** (attempt - 2) * (1.0 + 0.5 * random.random()))
        yield attempt


def megabytes(number: int) -> str:
    """Return a number of bytes as text: ``33.6 MB``."""
    return f"{number / 1e6:.1f} MB"


def fetched(url: str) -> bytes:
    """Return the file at ``url``. Raises a DownloadError if the download fails."""
    with RemoteFile(url) as file:
        return file.readall()


class RemoteFile(io.RawIOBase):
    """A file on a web server, opened for reading. Sequential reads share one request.

    Raises a DownloadError if there is no such file, or the server cannot be reached; also on reading.

    Attributes:
        size: size of the file in bytes; None if the server does not state it.
        ranges: whether the server returns parts of the file. If it does not, the file can only be read from its
            beginning to its end.
        stop: position at which the next requests end, if it is after their beginning; otherwise they end with the file.
            It keeps a server from sending more than will be read.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.size: int | None = None
        self.ranges = False
        self.stop = _FIRST_BYTES
        self._url, self._position = url, 0
        self._response: Any = None
        self._end: int | None = None  # of the response; None if the server does not state it
        self._answered = False
        self._deadline = time.monotonic() + _DOWNLOAD_SECONDS
        self._repeated(self._open)
        self._deadline += (self.size or 0) / _SLOWEST

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Whether the server returns parts of the file."""
        return self.ranges

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; nothing is requested before the next read."""
        position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size or 0}[whence] + offset
        if position != self._position:
            self._hang_up()
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Read at least one byte into ``buffer``, unless the file ends here; return the number of bytes."""
        data = self._repeated(lambda: self._some(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()
        super().close()

    def _some(self, most: int) -> bytes:
        """Return up to ``most`` bytes of what has arrived; empty at the end of the file."""
        if self.size is not None and self._position >= self.size:
            return b""
        if self._response is None or self._position == self._end:
            self._open()
        data: bytes = self._response.read1(most)
        if not data and self.size is not None:
            raise OSError("the connection was closed")
        return data

    def _repeated(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which is repeated if it fails for a reason that may be temporary."""
        problem = ""
        for _ in attempts():
            total = "" if self.size is None else f" of {self.size}"
            place = f" at byte {self._position}{total}" if self._position else ""
            if time.monotonic() > self._deadline:
                raise DownloadError(f"it is incomplete after the deadline{place}")
            try:
                return work()
            except (OSError, ValueError, http.client.HTTPException) as error:
                self._hang_up()
                problem = f"{_reason(error)}{place}"
                status = error.code if isinstance(error, urllib.error.HTTPError) else 500 if self._answered else 0
                if isinstance(error, ValueError) or (status < 500 and status not in RETRIED_STATUSES):
                    raise DownloadError(problem) from None
                if self._position and not self.ranges:
                    raise DownloadError(f"{problem}, and the server cannot send the rest alone") from None
        raise DownloadError(f"{problem}, in {MAX_TRIES} attempts")

    def _open(self) -> None:
        """Request the file from the position on. The response must begin there and be of the same file as before."""
        self._hang_up()
        first = self._position
        last = (self.stop if self.stop > first else self.size or first + _FIRST_BYTES) - 1
        asked = request(self._url, {"Range": f"bytes={first}-{last}"})
        self._response = response = urllib.request.urlopen(asked, timeout=_SILENCE_SECONDS)
        length = response.headers.get("Content-Length")
        size = self._end = int(length) if length else None
        partial = getattr(response, "status", None) == http.client.PARTIAL_CONTENT
        if partial or first:
            content_range = response.headers.get("Content-Range") or ""
            part = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
            if part is None or int(part[1]) != first:
                raise ValueError(f"the server returned {content_range!r} for the bytes from {first} on")
            size, self._end = int(part[3]), int(part[2]) + 1
        if self._answered and size != self.size:
            raise ValueError("the file changes while it is downloaded")
        self.size, self.ranges, self._answered = size, partial, True

    def _hang_up(self) -> None:
        if self._response is not None:
            self._response.close()
        self._response = None


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
