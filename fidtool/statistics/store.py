"""Statistics files: ``.npz`` archives that pytorch-fid reads too, and everyone else's as input."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidtool.cache_dir import atomic_write
from fidtool.errors import InputError
from fidtool.features.protocol import Definition
from fidtool.images.source import BadFile
from fidtool.images.traits import Traits


@dataclass(frozen=True)
class Statistics:
    """Mean and covariance of a set's features, with what is known of where they come from.

    Attributes:
        mu: float64 array of shape (dims,).
        sigma: float64 array of shape (dims, dims).
        count: number of images; None in files of other tools.
        definition: what defines the features; None in files of other tools.
        arithmetic: where and how they were computed (device, precision, batch size, versions); None likewise.
        traits: see `Traits`; None likewise.
        skipped: files that were left out because they cannot be read.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    count: int | None = None
    definition: Definition | None = None
    arithmetic: dict[str, Any] | None = None
    traits: Traits | None = None
    skipped: tuple[BadFile, ...] = ()

    @property
    def dims(self) -> int:
        return len(self.mu)


def write_statistics(path: str | Path, statistics: Statistics) -> None:
    """Writes a statistics file, atomically; an existing one is replaced.

    The archive holds ``mu`` and ``sigma`` (float64), and where known ``count``, ``fingerprint`` and ``run`` (JSON
    texts). pytorch-fid reads it.

    Raises:
        OSError: the file cannot be written; nothing is left behind.
    """
    extra: dict[str, Any] = {}
    if statistics.count is not None:
        extra["count"] = np.int64(statistics.count)
    if statistics.definition is not None:
        extra["fingerprint"] = np.array(statistics.definition.to_json())
    if statistics.arithmetic is not None and statistics.traits is not None:
        skipped = [[bad.file, bad.reason] for bad in statistics.skipped]
        run = {"arithmetic": statistics.arithmetic, "traits": asdict(statistics.traits), "skipped": skipped}
        extra["run"] = np.array(json.dumps(run, sort_keys=True))
    with atomic_write(Path(path)) as handle:
        np.savez(handle, mu=statistics.mu, sigma=statistics.sigma, **extra)


def read_statistics(path: str | Path) -> Statistics:
    """Reads a statistics file: ours, or one of pytorch-fid, clean-fid, ADM or EDM.

    Objects that would have to be unpickled are refused, never loaded.

    Raises:
        InputError: no such file, damaged, keys missing, wrong shapes, or values that are no mean and covariance.
    """
    fields = _read_arrays(Path(path))
    mu, sigma = (_as_float64(path, name, fields[name]) for name in ("mu", "sigma"))
    if mu.ndim != 1 or sigma.shape != (len(mu), len(mu)) or len(mu) == 0:
        raise InputError(
            f"the statistics file {path} has mu of shape {mu.shape} and sigma of shape {sigma.shape}; "
            "they should be (D,) and (D, D)"
        )
    if not (np.isfinite(mu).all() and np.isfinite(sigma).all()):
        raise InputError(f"the statistics file {path} holds NaN or infinite values; compute it anew")
    if np.abs(sigma - sigma.T).max() > 1e-6 * np.abs(sigma).max() or sigma.diagonal().min() < 0:
        raise InputError(f"the sigma in {path} is no covariance: it is not symmetric or has a negative variance")
    definition = _definition(path, fields["fingerprint"]) if "fingerprint" in fields else None
    if definition is not None and definition.dims != len(mu):
        raise InputError(f"the statistics file {path} says {definition.dims} dims but its mu has {len(mu)}")
    count = _count(path, fields["count"]) if "count" in fields else None
    return Statistics(mu, sigma, count, definition, *_run(path, fields.get("run")))


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(f"no statistics file {path}")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array; a statistics file is an .npz with mu and sigma")
        with archive:
            missing = [name for name in ("mu", "sigma") if name not in archive.files]
            if missing:
                has = ", ".join(archive.files[:8]) or "nothing"
                raise InputError(f"the statistics file {path} has no {' and no '.join(missing)}; it holds {has}")
            wanted = ("mu", "sigma", "count", "fingerprint", "run")
            return {name: archive[name] for name in wanted if name in archive.files}
    except InputError:
        raise
    except Exception as error:  # damaged archives and headers raise a dozen kinds
        if "pickle" in str(error).lower() and _starts_like_data(path):
            raise InputError(
                f"{path} holds pickled objects, which are never loaded because loading them can run code; "
                "write mu and sigma as plain float64 arrays with numpy.savez"
            ) from None
        message = " ".join(str(error).split()) or type(error).__name__
        if not _starts_like_data(path):
            message = "it is no .npz archive"
        raise InputError(f"the statistics file {path} cannot be read: {message}") from None


def _starts_like_data(path: Path) -> bool:
    """Whether a file begins as an .npz, an .npy or a pickle does."""
    with open(path, "rb") as handle:
        return handle.read(6).startswith((b"PK", b"\x93NUMPY", b"\x80"))


def _as_float64(path: str | Path, name: str, value: NDArray[Any]) -> NDArray[np.float64]:
    if value.dtype.kind not in "fiu":
        raise InputError(f"{name} in the statistics file {path} has dtype {value.dtype}; it should be float64")
    return value.astype(np.float64)


def _definition(path: str | Path, value: NDArray[Any]) -> Definition:
    try:
        return Definition.from_json(_text(path, value))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the protocol fingerprint in {path} cannot be read: {error}") from None


def _text(path: str | Path, value: NDArray[Any]) -> str:
    if value.dtype.kind != "U" or value.ndim != 0:
        raise InputError(f"the statistics file {path} has a fingerprint that is no text")
    return str(value)


def _count(path: str | Path, value: NDArray[Any]) -> int:
    if value.dtype.kind not in "iu" or value.ndim != 0 or int(value) < 1:
        raise InputError(f"the statistics file {path} has a count that is no positive integer")
    return int(value)


def _run(
    path: str | Path, value: NDArray[Any] | None
) -> tuple[dict[str, Any] | None, Traits | None, tuple[BadFile, ...]]:
    if value is None:
        return None, None, ()
    try:
        run = json.loads(_text(path, value))
        traits = Traits(**{name: int(number) for name, number in run["traits"].items()})
        skipped = tuple(BadFile(str(file), str(reason)) for file, reason in run.get("skipped", ()))
        return dict(run["arithmetic"]), traits, skipped
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        # Only a record of where the numbers came from; a newer version may have written it differently.
        return None, None, ()
