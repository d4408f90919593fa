"""Downloads over HTTP: deadlines, retries that continue where the connection broke, and parts of a large file."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

T = TypeVar("T")

MAX_TRIES = 5
RETRIED_STATUSES = frozenset({408, 425, 429})
"""HTTP statuses below 500 with which a retry may help."""
_FIRST_DELAY = 0.5
"""Seconds before the second attempt. The delay doubles with each attempt; a random part of up to half is added."""
_SILENCE_SECONDS = 30.0
"""Seconds without data after which a connection is considered broken."""
_DOWNLOAD_SECONDS = 1800.0
"""Deadline of a download in seconds, to which the time of a large file at `_SLOWEST` is added."""
_SLOWEST = 1 << 18
"""Bytes per second that a large file must reach on average."""
_FIRST_BYTES = 1 << 16
"""Bytes of the first request, which finds out the size of the file and whether the server returns parts of it."""


class DownloadError(Exception):
    """A download failed. The message is the reason, and how much had arrived."""


def back_off(attempt: int) -> None:
    """Sleep before the next attempt, for a random time so that processes do not all retry at once."""
    time.sleep(_FIRST_DELAY * 2.0 ** (attempt - 1) * (1.0 + 0.5 * random.random()))


def megabytes(number: int) -> str:
    """Return a number of bytes as text: ``33.6 MB``."""
    return f"{number / 1e6:.1f} MB"


def fetched(url: str) -> bytes:
    """Return the file at ``url``.

    Raises:
        DownloadError: if the download fails.
    """
    with RemoteFile(url) as file:
        return file.readall()


class RemoteFile(io.RawIOBase):
    """A file on a web server, opened for reading. Sequential reads share one request.

    Args:
        url: the address, which may contain ``user:password@``.

    Attributes:
        size: size of the file in bytes; None if the server does not state it.
        ranges: whether the server returns parts of the file. If it does not, the file can only be read from its
            beginning to its end.
        stop: position at which the next requests end, if it is after their beginning; otherwise they end with the file.
            It keeps a server from sending more than will be read.

    Raises:
        DownloadError: if there is no such file, or the server cannot be reached; also on reading.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.size: int | None = None
        self.ranges = False
        self.stop = _FIRST_BYTES
        self._url = url
        self._response: Any = None
        self._position = self._reached = 0  # of this file, and of the open response
        self._end: int | None = None  # of the open response; None if the server does not state it
        self._answered = False
        self._failures = self._received = 0
        self._deadline = time.monotonic() + _DOWNLOAD_SECONDS
        self._repeated(self._open)

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
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size or 0}[whence]
        if start + offset < 0:
            raise ValueError(f"position {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read at least one byte into ``buffer``, unless the file ends here; return the number of bytes."""
        data = self._repeated(lambda: self._some(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()
        super().close()

    def _some(self, most: int) -> bytes:
        """Return up to ``most`` bytes of what has arrived; empty at the end of the file."""
        while self.size is None or self._position < self.size:
            if self._response is None or self._reached != self._position:
                self._open()
            data: bytes = self._response.read1(most)
            if data:
                self._position += len(data)
                self._reached = self._position
                self._received += len(data)
                self._failures = 0
                return data
            self._hang_up()
            if self._end is None:  # no length was promised
                self.size = self._position
            elif self._position < self._end:
                raise OSError("the connection was closed")
        return b""

    def _repeated(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which is repeated if it fails for a reason that may be temporary."""
        while time.monotonic() <= self._deadline:
            try:
                return work()
            except (OSError, ValueError, http.client.HTTPException) as error:
                self._hang_up()
                self._failures += 1
                status = error.code if isinstance(error, urllib.error.HTTPError) else 500 if self._answered else 0
                if isinstance(error, ValueError) or (status < 500 and status not in RETRIED_STATUSES):
                    raise DownloadError(f"{_reason(error)}{self._arrived()}") from None
                if self._position and not self.ranges:
                    problem = f"{_reason(error)}{self._arrived()}, and the server cannot send the rest alone"
                    raise DownloadError(problem) from None
                if self._failures == MAX_TRIES:
                    raise DownloadError(f"{_reason(error)}{self._arrived()}, in {MAX_TRIES} attempts") from None
            back_off(self._failures)
        raise DownloadError(f"it is incomplete after the deadline{self._arrived()}")

    def _arrived(self) -> str:
        if not self._received:
            return ""
        return f" after {self._received}{'' if self.size is None else f' of {self.size}'} bytes"

    def _open(self) -> None:
        """Request the part of the file from the position on."""
        self._hang_up()
        first = self._position
        last = (self.stop if self.stop > first else self.size or first + _FIRST_BYTES) - 1
        asked = request(self._url, {"Range": f"bytes={first}-{last}"})
        response = urllib.request.urlopen(asked, timeout=_SILENCE_SECONDS)
        with contextlib.ExitStack() as undone:
            undone.callback(response.close)
            self._end = self._described(response, first)
            undone.pop_all()
        self._response, self._reached, self._answered = response, first, True

    def _described(self, response: Any, first: int) -> int | None:
        """Check that a response begins at ``first`` and is of the same file as before; return its end."""
        length = response.headers.get("Content-Length")
        size = end = int(length) if length else None
        partial = getattr(response, "status", None) == http.client.PARTIAL_CONTENT
        if partial or first:
            content_range = response.headers.get("Content-Range") or ""
            part = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
            if part is None or int(part[1]) != first:
                raise ValueError(f"the server returned {content_range!r} for the bytes from {first} on")
            size, end = int(part[3]), int(part[2]) + 1
        if not self._answered:
            self.size, self.ranges = size, partial
            self._deadline += (size or 0) / _SLOWEST
        elif size != self.size:
            raise ValueError("the file changes while it is downloaded")
        return end

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
