"""Requests to remote stores with fsspec: deadlines, retries and error messages."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from fidtool.distributed.signals import in_background
from fidtool.download import RETRIED_STATUSES, attempts
from fidtool.errors import InputError
from fidtool.redaction import redacted
from fidtool.sources.contents import StoreError, message_of

T = TypeVar("T")

_INFO_TIMEOUT = 30.0
"""Deadline of a query about one object in seconds."""
LISTING_TIMEOUT = 1800.0
"""Deadline of a listing in seconds. It is long because stores return a thousand names at a time."""
_RETRY_PERIOD = 120.0
"""Seconds after which a request is not retried."""
_PERMANENT = (PermissionError, IsADirectoryError, NotADirectoryError, ImportError, NotImplementedError, ValueError)
"""Errors that a retry would raise again."""
_ADVICE = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "http": "check the URL and its permissions",
    "https": "check the URL and its permissions",
}
_OTHER_ADVICE = "set the credentials as the store's documentation says"


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def file_system(url: str) -> Any:
    """Returns fsspec's file system for a URL. Each process has its own, because forks cannot share connections."""
    shown = redacted(url)
    try:
        from fsspec.config import conf
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"reading {shown} needs the package fsspec:", "pip install 'fidtool[remote]'") from None
    if _scheme(url) != url.partition("://")[0]:
        raise InputError(f"{shown} must begin with {_scheme(url)}:// in lower case")
    if _scheme(url) == "s3" and "@" in url.split("/")[2]:  # s3fs would treat it as part of the bucket's name
        raise InputError(f"{shown}: an S3 URL cannot contain a user name or password:", _ADVICE["s3"])
    settings: dict[str, Any] = {}
    if _scheme(url) in ("http", "https"):
        # If the server compressed the file for transfer, byte ranges would not be those of the file.
        settings["headers"] = {**conf.get(_scheme(url), {}).get("headers", {}), "Accept-Encoding": "identity"}
    try:
        return url_to_fs(url, **settings)[0]
    except ImportError as error:
        raise InputError(
            f"{shown}: {' '.join(str(error).split())} (pip install 'fidtool[remote]' installs those for s3 and http)"
        ) from None
    except ValueError as error:
        raise InputError(f"{shown}: {message_of(error)}") from None


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def with_retries(work: Callable[[], T], url: str, timeout: float | None = None) -> T:
    """Returns the result of ``work``, which is retried if it fails for a reason that may be temporary.

    ``timeout`` is the deadline of each attempt in seconds; by default, that of a query about one object.
    """
    shown, seconds = redacted(url), _INFO_TIMEOUT if timeout is None else timeout
    for attempt in attempts(_RETRY_PERIOD):
        try:
            return in_background(work).result(seconds)  # after a timeout, it continues in the background
        except Exception as error:
            try:
                raise_if_permanent(error)
            except FileNotFoundError:
                raise InputError(f"{shown} does not exist") from None
            except PermissionError:
                raise InputError(f"access to {shown} is denied:", _ADVICE.get(_scheme(url), _OTHER_ADVICE)) from None
            except Exception as final:
                reason = getattr(final, "strerror", None) or message_of(final)
                raise InputError(f"{shown} cannot be read: {reason}") from None
            late = isinstance(error, FutureTimeoutError) and not str(error)
            reason = f"no response within {seconds:g} s" if late else message_of(underlying_error(error))
            failure = f"after {attempt} attempt{'s' * (attempt > 1)}: {reason}"
    raise StoreError(f"{shown} could not be read {failure}")


def underlying_error(error: Exception) -> Exception:
    """Returns the cause of a FileNotFoundError, which fsspec's HTTP file system raises for any failure."""
    cause = error.__cause__
    hidden = isinstance(error, FileNotFoundError) and isinstance(cause, Exception)
    return cause if hidden and isinstance(cause, Exception) else error


def raise_if_permanent(error: Exception) -> None:
    """Raises an error if retrying a request that failed with ``error`` would not help; otherwise returns.

    It is ``error`` itself, or an OSError of the class that describes it.
    """
    error = underlying_error(error)
    status = _status(error)
    if "Credentials" in type(error).__name__:
        raise PermissionError(13, "no credentials found") from error
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        raise FileNotFoundError(2, "it does not exist") from error
    if isinstance(error, _PERMANENT):
        raise error
    if not isinstance(status, int) or status >= 500 or status in RETRIED_STATUSES or status < 400:
        return
    if status in (401, 403):
        raise PermissionError(13, f"the store returned HTTP status {status}: access denied") from error
    raise OSError(5, f"the store returned HTTP status {status} ({message_of(error)[:120]})") from error


def _status(error: Exception) -> Any:
    """Returns the HTTP status of a failed request; None if there is none. botocore's errors contain it in a dict."""
    response = getattr(error, "response", None)
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else getattr(error, "status", None)
