"""Requests to remote stores through fsspec: deadlines, retries, and words for what goes wrong. Imports no torch."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from fidtool.errors import InputError
from fidtool.redaction import redacted
from fidtool.sources.contents import StoreError, message_of

T = TypeVar("T")

MAX_TRIES = 5
_INFO_TIMEOUT = 30.0
"""Deadline of a query about one object, in seconds."""
LISTING_TIMEOUT = 1800.0
"""Deadline of a listing, in seconds: stores return a thousand names at a time."""
_RETRY_PERIOD = 120.0
"""Seconds after which a request is not retried."""
_FIRST_DELAY = 0.5
"""Seconds before the second try; each delay is twice as long as the one before, plus up to half of it at random."""
_PERMANENT = (PermissionError, IsADirectoryError, NotADirectoryError, ImportError, NotImplementedError, ValueError)
"""Errors that another try would raise again."""
_RETRIED_STATUSES = frozenset({408, 425, 429})
"""HTTP statuses below 500 that another try may not get."""
_ADVICE = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "http": "the server refuses",
    "https": "the server refuses",
}
_OTHER_ADVICE = "see the store's own way to name credentials"


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def file_system(url: str) -> Any:
    """fsspec's file system for a URL, this process's own: connections are not shared with forks.

    Raises:
        InputError: fsspec, or what it needs for this kind of store, is not installed; no such kind.
    """
    shown = redacted(url)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"{shown} needs fsspec:", "pip install 'fidtool[remote]'") from None
    if _scheme(url) != url.partition("://")[0]:
        raise InputError(f"{shown} should begin with {_scheme(url)}://, in small letters")
    if _scheme(url) == "s3" and "@" in url.split("/")[2]:  # which s3fs takes for a part of the bucket's name
        raise InputError(f"{shown}: the address of a bucket has no user and no password:", _ADVICE["s3"])
    try:
        return url_to_fs(url, **_settings(url))[0]
    except ImportError as error:
        raise InputError(
            f"{shown}: {' '.join(str(error).split())} (pip install 'fidtool[remote]' has s3 and http)"
        ) from None
    except ValueError as error:
        raise InputError(f"{shown}: {message_of(error)}") from None


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _settings(url: str) -> dict[str, Any]:
    """A web server must send files as they are: of what it has compressed on the way, pieces are none of the file."""
    from fsspec.config import conf

    if _scheme(url) not in ("http", "https"):
        return {}
    return {"headers": {**conf.get(_scheme(url), {}).get("headers", {}), "Accept-Encoding": "identity"}}


def in_background(work: Callable[[], T]) -> Future[T]:
    """Runs ``work`` in a daemon thread: the program can end while a store does not answer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="fidtool-request").start()
    return future


def with_deadline(seconds: float, work: Callable[[], T]) -> T:
    """Returns what ``work`` returns, or raises a TimeoutError and leaves it running."""
    try:
        return in_background(work).result(seconds)
    except FutureTimeoutError as error:  # a class of its own before Python 3.11
        raise TimeoutError(str(error) or f"no answer within {seconds:g} s") from error


def with_retries(work: Callable[[], T], url: str, timeout: float | None = None) -> T:
    """Returns what ``work`` returns, and retries it where that may help.

    Args:
        work: makes a request.
        url: what the request is about.
        timeout: deadline of each try in seconds; by default that of a query about one object.

    Raises:
        InputError: retrying would not help: there is nothing at the URL, or access is denied.
        StoreError: each try failed.
    """
    began, shown = time.monotonic(), redacted(url)
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return with_deadline(_INFO_TIMEOUT if timeout is None else timeout, work)
        except Exception as error:
            try:
                raise_if_permanent(error)
            except FileNotFoundError:
                raise InputError(f"there is no {shown}") from None
            except PermissionError:
                raise InputError(f"{shown} may not be read:", _ADVICE.get(_scheme(url), _OTHER_ADVICE)) from None
            except Exception as final:
                reason = getattr(final, "strerror", None) or message_of(final)
                raise InputError(f"{shown} cannot be read: {reason}") from None
            if attempt == MAX_TRIES or time.monotonic() - began > _RETRY_PERIOD:
                tries = "1 try" if attempt == 1 else f"{attempt} tries"
                raise StoreError(f"{shown} could not be read in {tries}: {message_of(underlying_error(error))}") from None
            back_off(attempt)
    raise AssertionError


def back_off(attempt: int) -> None:
    """Sleeps before the next try, for a random time: processes that failed together should not retry together."""
    time.sleep(_FIRST_DELAY * 2.0 ** (attempt - 1) * (1.0 + 0.5 * random.random()))


def underlying_error(error: Exception) -> Exception:
    """The error behind a FileNotFoundError, which fsspec's HTTP file system raises for any failure."""
    cause = error.__cause__
    hidden = isinstance(error, FileNotFoundError) and isinstance(cause, Exception)
    return cause if hidden and isinstance(cause, Exception) else error


def raise_if_permanent(error: Exception) -> None:
    """Raises an error if retrying would not help."""
    error = underlying_error(error)
    status = _status(error)
    if "Credentials" in type(error).__name__:
        raise PermissionError(13, "there are no credentials for it") from error
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        raise FileNotFoundError(2, "it is not there") from error
    if isinstance(error, _PERMANENT):
        raise error
    if not isinstance(status, int) or status >= 500 or status in _RETRIED_STATUSES or status < 400:
        return
    if status in (401, 403):
        raise PermissionError(13, f"the store says {status}: access denied") from error
    raise OSError(5, f"the store says {status} ({message_of(error)[:120]})") from error


def _status(error: Exception) -> Any:
    """HTTP's number for an answer, where there is one; botocore's errors have it deep inside."""
    response = getattr(error, "response", None)
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else getattr(error, "status", None)
