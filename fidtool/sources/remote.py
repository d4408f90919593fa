"""Files in remote stores, accessed with fsspec: ``s3://``, ``https://``, ``hf://``, ``gs://`` and
so on.

Images in a folder or a list are requested one by one. All other files are downloaded into the cache
and read there.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import os
import re
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from fidtool.errors import (
    FidtoolError,
    InputError,
    RunError,
    Say,
    format_message,
    format_reason,
    missing_package,
)
from fidtool.names import format_count
from fidtool.sources.contents import (
    MAX_BYTES,
    ContentError,
    Files,
    Numbers,
    Read,
    Reader,
    Stamps,
    too_large_error,
)
from fidtool.sources.image_set import ImageSet, Names
from fidtool.sources.kinds import URL_WILDCARD, IgnoredFiles, expand_braces
from fidtool.system.background import DaemonThreads, start_in_background
from fidtool.system.cache_dir import cache_dir, lock_file
from fidtool.system.download import MAX_TRIES, RETRIED_STATUSES, attempts, megabytes
from fidtool.system.variables import REMOTE_BYTES

T = TypeVar("T")

INFO_TIMEOUT = 30.0
"""Deadline of a query about one object in seconds."""
REQUEST_TIMEOUT = 120.0
"""Deadline of a request for an image in seconds, while `MAX_REQUESTS` run concurrently."""
SILENCE_SECONDS = 300.0
"""Seconds after which a download that has not written anything ends. s3fs writes 50 MB at a time,
of ten streams.
"""
# Deadline of a listing in seconds. It is long because stores return a thousand names at a time.
_LISTING_TIMEOUT = 1800.0
# Seconds to wait for another process of this machine that downloads the same file.
_COPY_TIMEOUT = 1800.0
# Seconds after which a request is not retried.
_RETRY_PERIOD = 120.0
MAX_REQUESTS = 64
"""Number of requests to run concurrently, of all decoding workers of a rank together."""
# The same of a worker, where there are many.
_MIN_REQUESTS = 2
# Number of images to request before the first of them is used: if it is late, others are requested
# meanwhile.
_PREFETCHED = 64
# Number of objects whose versions are compared at the end of a run.
_CHECKED_OBJECTS = 1024
MIN_REPORTED_BYTES = 100_000_000
"""Size of a download that is said in advance."""
# Age of a partial copy that no process writes any more.
_ABANDONED_SECONDS = 3600.0
# Keys with which stores describe an object's version.
_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "xet_hash", "LastModified", "mtime", "updated")
_ADVICE = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "hf": "set HF_TOKEN or run `hf auth login`, and ask for access on its page if it is gated",
}
# The extras for stores other than S3 and HTTP.
_EXTRAS = {"hf": "hf", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
# Matches the beginning of a URL in a repository of the Hugging Face Hub whose revision is a commit.
_IN_COMMIT = re.compile(r"hf://(?:\w+/)?[\w.-]+/[\w.-]+@[0-9a-f]{40}(?![^/])")


class RemoteFiles(Files):
    """Objects in one remote store, by their URLs.

    The stamps of an object are its size (-1 if unknown), a hash of its version (0 if the store
    states none), and zeros; all are zero if the store was not asked.
    """

    remote = True

    def __init__(self, paths: Sequence[str], stamps: Stamps | None = None) -> None:
        Reader.__init__(self, self)
        if stamps is None:
            stamps = np.zeros((len(paths), 5), dtype=np.int64)
        self.paths = paths
        self.stamps = stamps
        self.versioned = bool(stamps[:, 1].all())
        self._unversioned = uuid.uuid4().hex
        self._at_once = MAX_REQUESTS

    def for_processes(self, processes: int) -> RemoteFiles:
        mine = copy.copy(self)
        mine._at_once = max(_MIN_REQUESTS, MAX_REQUESTS // processes)
        return mine

    def find_changed(self) -> list[str]:
        if not self.versioned or _IN_COMMIT.match(self.paths[0]):
            return []
        count = len(self.paths)
        spread = np.linspace(0, count - 1, min(count, _CHECKED_OBJECTS)).astype(np.int64)
        checked = np.unique(spread).tolist()
        with ThreadPoolExecutor(MAX_REQUESTS, "fidtool-request") as pool:
            verdicts = list(pool.map(self._has_changed, checked))
        return [self.paths[file] for file in itertools.compress(checked, verdicts)]

    def _has_changed(self, file: int) -> bool:
        try:
            stamp = make_stamp(object_info(self.paths[file]))
        except InputError:  # it was deleted
            return True
        return not np.array_equal(stamp, self.stamps[file])

    def read(self, items: Numbers) -> Iterator[Read]:
        """Request objects, without a copy on this machine. As soon as one request has ended, the
        next begins.

        An iterator that is not read to its end waits for no request: Python may finalize it in
        fsspec's thread, on which all requests depend.
        """
        pool = DaemonThreads(min(self._at_once, len(items)))
        requested = deque[Future[bytes | Exception]]()
        try:
            for file in items.tolist():
                requested.append(pool.submit(self._read_whole, file))
                if len(requested) == _PREFETCHED:
                    yield requested.popleft().result()
            while requested:
                yield requested.popleft().result()
        finally:
            for future in requested:
                future.cancel()
            pool.close(0.0)

    def _read_whole(self, file: int) -> bytes | Exception:
        url = self.paths[file]
        size = int(self.stamps[file, 0])
        if size > MAX_BYTES:
            return too_large_error(size)
        try:
            data: bytes = retry_request(
                lambda: file_system(url).cat_file(url), url, REQUEST_TIMEOUT
            )
        except (ContentError, FidtoolError) as error:
            return error
        return too_large_error(len(data)) if len(data) > MAX_BYTES else data

    def open(self, file: int) -> BinaryIO:
        """Open a copy of the object on this machine, which all its processes share."""
        size = int(self.stamps[file, 0])
        if not size:
            return io.BytesIO()
        path = self.copy(file)
        with contextlib.suppress(FileNotFoundError):
            return _open_copy(path)
        with lock_file(f"remote-{path.name[:2]}", _COPY_TIMEOUT):
            if not path.exists():
                _download(self.paths[file], path, size)
            return _open_copy(path)

    def copy(self, file: int) -> Path:
        size, version, *_ = self.stamps[file].tolist()
        name = f"{self.paths[file]} {size} {version or self._unversioned}"
        return _copies() / hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:32]


def _copies() -> Path:
    return cache_dir() / "remote"


def _open_copy(path: Path) -> BinaryIO:
    handle = open(path, "rb")  # noqa: SIM115 - the caller closes it
    with contextlib.suppress(OSError):
        os.utime(path)  # the least recently used copies are deleted first
    return handle


def delete_copies() -> None:
    shutil.rmtree(_copies(), ignore_errors=True)


def _download(url: str, path: Path, size: int) -> None:
    """Download an object; its size is -1 if it is unknown."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")

    def moved() -> int:
        return part.stat().st_mtime_ns if part.exists() else 0

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(url, path.parent, max(0, size))
        _request_or_fail(
            lambda: file_system(url).get_file(url, str(part)), url, SILENCE_SECONDS, moved
        )
        received = part.stat().st_size
        if size not in (-1, received):
            raise RunError(
                f"{url} has {received} bytes, but had {size} when it was listed: run again"
            )
        os.replace(part, path)
    except OSError as error:
        raise InputError(
            f"{url} cannot be downloaded into {path.parent}: {format_reason(error)}"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _make_room(url: str, folder: Path, size: int) -> None:
    """Delete the least recently used copies until there is room for a file of this size within the
    limit.
    """
    copies = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            is_abandoned = time.time() - status.st_mtime > _ABANDONED_SECONDS
            if path.suffix != ".part" or is_abandoned:
                copies.append((status.st_mtime, status.st_size, path))
    excess = size - REMOTE_BYTES.byte_limit()
    excess += sum(copy_size for _, copy_size, _ in copies)
    for _, copy_size, path in sorted(copies):
        if excess > 0:
            path.unlink(missing_ok=True)  # a process that has opened it can still read it
            excess -= copy_size
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{url} has {megabytes(size)}, but {folder} has space for {megabytes(free)}:",
            "set FIDTOOL_CACHE to a folder on a larger disk",
        )


def object_info(url: str) -> Mapping[str, Any]:
    return _request_or_fail(lambda: file_system(url).info(url), url, INFO_TIMEOUT)


def make_stamp(info: Mapping[str, Any]) -> list[int]:
    """Return the stamp of an object from its metadata; see `RemoteFiles`."""
    size = info.get("size")
    versions = [str(info[name]) for name in _VERSIONS if info.get(name)]
    version = 0
    if versions:
        digest = hashlib.sha256("\0".join(versions).encode()).digest()
        version = int.from_bytes(digest[:7], "little")
    return [-1 if size is None else int(size), version, 0, 0, 0]


def list_remote_folder(url: str, recursive: bool) -> ImageSet:
    """List the images below a URL, sorted by relative name. Hidden names are ignored, as in a
    folder.
    """
    prefix = f"{url.removesuffix('/')}/"
    source = f"{_pin_revision(url).removesuffix('/')}/"
    store = file_system(source)
    depth = None if recursive else 1
    objects = _request_or_fail(
        lambda: store.find(source, maxdepth=depth, detail=True), url, _LISTING_TIMEOUT
    )
    if not objects:
        raise InputError(
            f"there is nothing below {url}:", "check that the URL is correct and can be listed"
        )
    root = store._strip_protocol(source).rstrip("/")
    passed_over = IgnoredFiles()
    stamps = {}
    for path, info in objects.items():
        # Remove one slash only: names in a store may begin with another one.
        name = path.removeprefix(root).removeprefix("/")
        if passed_over.accept(name):
            stamps[name] = make_stamp(info)
    if not stamps:
        raise passed_over.no_images_error(url, "location")
    names = Names(sorted(stamps))
    files = RemoteFiles(
        names.with_prefix(source), np.array([stamps[name] for name in names], dtype=np.int64)
    )
    order = np.arange(len(names), dtype=np.uint32)
    return ImageSet(url, "remote folder", names, prefix, files, order, passed_over)


def remote_files(url: str, say: Say) -> RemoteFiles:
    """Return the object that a URL names, or those that match a pattern such as
    ``shards-{000..127}.tar``.

    ``say`` prints the size of large ones, which are downloaded when they are opened.
    """
    urls: list[str] = []
    for pattern in expand_braces(_pin_revision(url)):
        urls += _matches(pattern)
    if len(set(urls)) < len(urls):
        raise InputError(f"{url} matches an object twice")
    with ThreadPoolExecutor(MAX_REQUESTS, "fidtool-request") as pool:
        # The first alone: the Hub's file system keeps its listing of the folder for the others.
        infos = [object_info(urls[0]), *pool.map(object_info, urls[1:])]
    for address, info in zip(urls, infos, strict=True):
        if info.get("type") == "directory":
            raise InputError(f"{address} is a folder, not a file")
    files = RemoteFiles(urls, np.array(list(map(make_stamp, infos)), dtype=np.int64))
    is_absent = [not files.copy(file).exists() for file in range(len(urls))]
    size = int(files.stamps[is_absent, 0].sum())
    if size >= MIN_REPORTED_BYTES:
        say(
            f"downloading {url} ({megabytes(size)}) into {_copies()}; FIDTOOL_CACHE selects "
            "another disk"
        )
    return files


def _matches(url: str) -> list[str]:
    """Return the objects that match a URL, which may have wildcards. A bracket may also be a part
    of a name.
    """
    if not URL_WILDCARD.search(url):
        return [url]
    if "[" in url:
        with contextlib.suppress(InputError):
            object_info(url)
            return [url]
    store = file_system(url)
    matches = _request_or_fail(lambda: store.glob(url), url, _LISTING_TIMEOUT)
    if not matches:
        raise InputError(
            f"no object matches {url}, or its location cannot be listed; braces ({{000..127}}) "
            "need no listing"
        )
    return sorted(map(store.unstrip_protocol, matches))


# --- requests -------------------------------------------------------------------------------------


def file_system(url: str) -> Any:
    """Return fsspec's file system for a URL. Each process has its own, because forks cannot share
    connections.
    """
    scheme = url.partition("://")[0]
    extra = _EXTRAS.get(scheme, "remote")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise missing_package(f"reading {url}", "fsspec", extra) from None
    if scheme != scheme.lower():
        raise InputError(f"{url} must begin with {scheme.lower()}:// in lower case")
    # s3fs would treat it as part of the bucket's name.
    if scheme == "s3" and "@" in url.split("/")[2]:
        raise InputError(f"{url}: an S3 URL cannot contain a user name or password:", _ADVICE["s3"])
    try:
        settings = _http_settings(scheme) if scheme in ("http", "https") else {}
        if _IN_COMMIT.match(url):
            return _hub()
        store = url_to_fs(url, **settings)[0]
    except ImportError as error:
        install = f"pip install 'fidtool[{extra}]'"
        if scheme not in _EXTRAS:
            install += " installs those for s3 and http"
        raise InputError(f"{url}: {format_message(error)} ({install})") from None
    except ValueError as error:
        raise InputError(f"{url}: {format_message(error)}") from None
    store.invalidate_cache()  # fsspec caches listings, which may be out of date
    return store


def _http_settings(scheme: str) -> dict[str, Any]:
    """Return the arguments of fsspec's file system for HTTP, with those that the user configured
    for it.
    """
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    own = conf.get(scheme, {})
    # If the server compressed the file for transfer, its size would not be that of the file.
    headers = {**own.get("headers", {}), "Accept-Encoding": "identity"}
    # By default a request, and so the download of a file, may take five minutes at most.
    timeout = ClientTimeout(total=None, sock_connect=INFO_TIMEOUT, sock_read=REQUEST_TIMEOUT)
    client = {"timeout": timeout, **own.get("client_kwargs", {})}
    return {"headers": headers, "client_kwargs": client}


@cache
def _hub() -> Any:
    """Return the file system of the Hugging Face Hub for commits, whose listings cannot be out of
    date.

    All threads share it, because others would list a folder again; to request an image, it does not
    list its folder.
    """
    from fsspec import get_filesystem_class

    class Commits(get_filesystem_class("hf")):  # type: ignore[misc]
        def isdir(self, path: str) -> bool:
            return False  # it asks so to find the address of a file

    return Commits(block_size=0, skip_instance_cache=True)


def _pin_revision(url: str) -> str:
    """Return the same address in the commit that is now its revision, which later ones do not
    change.
    """
    if not url.startswith("hf://") or url.startswith("hf://buckets/") or _IN_COMMIT.match(url):
        return url

    def resolve() -> str:
        store = file_system(url)
        from huggingface_hub import HfApi  # after the error that names the extra for it

        path = store.resolve_path(url)
        api = HfApi(store.endpoint, store.token)
        info = api.repo_info(path.repo_id, repo_type=path.repo_type, revision=path.revision)
        kind = path.unresolve().partition(path.repo_id)[0]  # such as datasets/
        return f"hf://{kind}{path.repo_id}@{info.sha}/{path.path_in_repo}"

    return _request_or_fail(resolve, url, INFO_TIMEOUT)


def _request_or_fail(
    work: Callable[[], T], url: str, seconds: float, moved: Callable[[], object] = lambda: None
) -> T:
    """Return the response to a request of which a failure ends the run: all exceptions are
    FidtoolErrors.
    """
    try:
        return retry_request(work, url, seconds, moved)
    except ContentError as error:
        raise InputError(f"{url} cannot be read: {error}") from None


def retry_request(
    work: Callable[[], T], url: str, seconds: float, moved: Callable[[], object] = lambda: None
) -> T:
    """Return the response to a request, of which ``moved`` must return something new within these
    ``seconds``.

    It is repeated over HTTP, where fsspec does not do so, if it fails for a reason that may be
    temporary.

    Raises:
        ContentError: if this object does not exist or cannot be requested.
        InputError: if access is denied.
        RunError: if the store fails or does not respond.
    """
    tries = MAX_TRIES if url.startswith(("http", "hf")) else 1
    for number in itertools.islice(attempts(_RETRY_PERIOD), tries):
        before = moved()
        future = start_in_background(work)  # after a timeout, it continues in the background
        try:
            while not wait([future], seconds).done:
                now = moved()
                if now == before:
                    raise TimeoutError(f"no response within {seconds:g} s")
                before = now
            return future.result()
        except Exception as error:
            cause: Any = error
            # fsspec's HTTP file system raises a FileNotFoundError for any failure.
            if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
                cause = error.__cause__
            lasting = _permanent_error(cause, url)
            if lasting is not None:
                raise lasting from None
            failure = f"after {format_count(number, 'attempt')}: {format_message(cause)}"
    raise RunError(f"{url} could not be read {failure}")


def _permanent_error(error: Exception, url: str) -> FidtoolError | ContentError | None:
    """Return what to raise if a retry of a request that failed with ``error`` would not help;
    otherwise None.
    """
    if isinstance(error, FidtoolError):
        return error
    status = _http_status(error)
    kind = type(error).__name__
    is_hidden = kind in ("RepositoryNotFoundError", "BucketNotFoundError")
    is_denied = isinstance(error, PermissionError) or status in (401, 403) or "Credentials" in kind
    if is_denied or is_hidden:
        reason = format_message(error)
        if status:
            reason = f"the store returned HTTP status {status}: access denied"
            if is_hidden:
                reason += " or no such repository"
        advice = _ADVICE.get(
            url.partition("://")[0], "check the address and the credentials for it"
        )
        return InputError(f"{url} cannot be read: {reason}:", advice)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return ContentError("it does not exist")
    if isinstance(
        error, (IsADirectoryError, NotADirectoryError, ImportError, NotImplementedError, ValueError)
    ):
        return ContentError(f"it cannot be requested: {format_message(error)}")
    if 400 <= status < 500 and status not in RETRIED_STATUSES:
        return ContentError(
            f"the store returned HTTP status {status} ({format_message(error)[:120]})"
        )
    return None


def _http_status(error: Any) -> int:
    """Return the HTTP status of a failed request; 0 if there is none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # Of aiohttp, or of the Hub.
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) else 0
