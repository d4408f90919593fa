"""Downloads over HTTP: deadlines, retries that continue where the connection broke, and parts of a
large file.
"""

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
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from fidtool.errors import format_reason

MAX_TRIES = 5
RETRIED_STATUSES = frozenset({408, 425, 429})
"""HTTP statuses below 500 with which a retry may help."""
FIRST_DELAY = 0.5
"""Seconds before the second attempt. The delay doubles with each attempt, and up to half of it is
added.
"""
SILENCE_SECONDS = 30.0
"""Seconds without data after which a connection is considered broken."""
DOWNLOAD_SECONDS = 1800.0
"""Deadline of a download in seconds, to which the time of a large file at `MIN_BYTES_PER_SECOND` is
added.
"""
MIN_BYTES_PER_SECOND = 1 << 18
"""Bytes per second that a large file must reach on average."""
FIRST_BYTES = 1 << 16
"""Bytes of the first request, which finds out the size of the file and whether the server returns
parts of it.
"""
_BLOCK_BYTES = 1 << 20


class DownloadError(Exception):
    """A download failed. The message is the reason, and the position in the file."""


def attempts(seconds: float = math.inf) -> Iterator[int]:
    """Yield the numbers of the attempts at a request: no more than `MAX_TRIES`, and none after this
    time.

    Before each but the first, it sleeps for a random time, so that processes do not all retry at
    once.
    """
    end = time.monotonic() + seconds
    # Not the program's generator, whose numbers would depend on the network.
    delays = random.Random()
    yield 1
    for attempt in range(2, MAX_TRIES + 1):
        if time.monotonic() > end:
            return
        time.sleep(FIRST_DELAY * 2.0 ** (attempt - 2) * (1.0 + 0.5 * delays.random()))
        yield attempt


def megabytes(number: int) -> str:
    """Return a number of bytes as text: ``33.6 MB``."""
    return f"{number / 1e6:.1f} MB"


class RemoteFile:
    """A file on a web server, opened for reading, also by `zipfile.ZipFile`. Sequential reads share
    one request.

    Raises a DownloadError if there is no such file, or the server cannot be reached; also on
    reading.

    Attributes:
        size: size of the file in bytes; None if the server does not state it.
        stop: position at which the next requests end, if it is after their beginning; otherwise
            they end with the file. It keeps a server from sending more than will be read.
    """

    def __init__(self, url: str) -> None:
        self.size: int | None = None
        self.stop = FIRST_BYTES
        self._url = url
        self._position = 0
        self._response: Any = None
        self._end: int | None = None  # of the response, if the server states it
        self._ranges = False
        self._answered = False
        self._deadline = time.monotonic() + DOWNLOAD_SECONDS
        self._receive(0)
        self._deadline += (self.size or 0) / MIN_BYTES_PER_SECOND

    def seekable(self) -> bool:
        """Whether the server returns parts of the file. If not, it can only be read from its
        beginning to its end.
        """
        return self._ranges

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; nothing is requested before the next read."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size or 0}
        position = starts[whence] + offset
        if position != self._position:
            self._hang_up()
        self._position = position
        return position

    def read(self, count: int = -1) -> bytes:
        """Return this number of bytes, or all that are left if it is negative; fewer at the end of
        the file.
        """
        content = bytearray()
        while count < 0 or len(content) < count:
            left = count - len(content) if count >= 0 else _BLOCK_BYTES
            block = self._receive(min(left, _BLOCK_BYTES))
            if not block:
                break
            content += block
        return bytes(content)

    def _receive(self, most: int) -> bytes:
        """Return the next bytes, at most so many; none at the end. Requests that break are repeated
        from there.
        """
        if self._position == self.size:
            return b""
        problem = ""
        for _ in attempts():
            try:
                if self._response is None or self._position == self._end:
                    self._request()
                data: bytes = self._response.read1(most)
                if most and not data and self._end is not None:
                    raise OSError("the connection was closed")
            except (OSError, ValueError, http.client.HTTPException) as error:
                self._hang_up()
                problem = f"{_reason(error)}{self._format_position()}"
                if not self._is_temporary(error):
                    raise DownloadError(problem) from None
                if self._position and not self._ranges:
                    problem += ", and the server cannot send only the rest"
                    raise DownloadError(problem) from None
            else:
                self._position += len(data)
                self._check_time()
                return data
        raise DownloadError(f"{problem}, in {MAX_TRIES} attempts")

    def _is_temporary(self, error: Exception) -> bool:
        """Whether a retry may help."""
        if isinstance(error, urllib.error.HTTPError):
            return error.code >= 500 or error.code in RETRIED_STATUSES
        return self._answered and not isinstance(error, ValueError)

    def _request(self) -> None:
        """Request the file from the position on. The response must begin there and be of the same
        file as before.
        """
        self._check_time()
        first = self._position
        stop = self.stop
        if stop <= first:
            stop = self.size or first + FIRST_BYTES
        asked = request(self._url, {"Range": f"bytes={first}-{stop - 1}"})
        self._hang_up()
        self._response = urllib.request.urlopen(asked, timeout=SILENCE_SECONDS)
        length = self._response.headers.get("Content-Length")
        size = end = int(length) if length else None
        partial = getattr(self._response, "status", None) == http.client.PARTIAL_CONTENT
        if partial or first:
            content_range = self._response.headers.get("Content-Range") or ""
            part = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
            if part is None or int(part[1]) != first:
                raise ValueError(
                    f"the server returned {content_range!r} for the bytes from {first} on"
                )
            size = int(part[3])
            end = int(part[2]) + 1
        if self._answered and size != self.size:
            raise ValueError("the file changes while it is downloaded")
        self.size = size
        self._end = end
        self._ranges = partial
        self._answered = True

    def _hang_up(self) -> None:
        if self._response is not None:
            self._response.close()
        self._response = None

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise DownloadError(f"it was not complete at the deadline{self._format_position()}")

    def _format_position(self) -> str:
        total = "" if self.size is None else f" of {self.size}"
        return f" at byte {self._position}{total}" if self._position else ""


def _reason(error: Exception) -> str:
    """Return why a request failed, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}: {error.reason}"
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no data for {SILENCE_SECONDS:g} s"
    return format_reason(reason)


def request(url: str, headers: dict[str, str]) -> urllib.request.Request:
    """Return the request for ``url``, with ``user:password@`` as Basic authentication, which urllib
    does not support.

    The password is not sent to other servers to which the request is redirected.
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return urllib.request.Request(url, headers=headers)
    asked = urllib.request.Request(urlunsplit(parts._replace(netloc=host)), headers=headers)
    credentials = base64.b64encode(unquote_to_bytes(user)).decode()
    asked.add_unredirected_header("Authorization", f"Basic {credentials}")
    return asked
