"""Layouts of other tools' statistics: which arrays they have, what these mean, and which protocol follows from them.

====================================  ===================================================================
arrays                                written by
====================================  ===================================================================
``mu``, ``sigma``                     pytorch-fid, clean-fid, EDM and many others
the same, ``mu_s``, ``sigma_s``       ADM's evaluator (guided-diffusion): ``tensorflow``
``ref_mu``, ``ref_sigma``             MeanFlow and its successors
``feats``; ``pool_3``; ``reps``       clean-fid for KID; score_sde; dgm-eval: the features of each image
``num_items``, ``raw_mean``, …        StyleGAN2-ADA and StyleGAN3, which pickle sums: ``stylegan``
``{"fid": {"mu", "sigma"}, …}``       EDM2, which pickles them by network: ``tensorflow`` for Inception
``{name: {"mu", "sigma"}, …}``        FD-Loss, which pickles several files as one
====================================  ===================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError
from fidtool.features.protocol import (
    EMBEDDING,
    FEATURES,
    INCEPTION_DIMS,
    INCEPTION_FEATURE_STEP,
    SPATIAL,
    SPATIAL_DIMS,
    protocol_named,
)
from fidtool.sources.array_files import SAMPLES, array_headers
from fidtool.sources.contents import ContentError, Files, head_of
from fidtool.sources.image_set import canonical_order
from fidtool.sources.opening import suffix_of
from fidtool.statistics.feature_buffer import Features, reordered
from fidtool.statistics.named_arrays import (
    EDM2_INCEPTION,
    LAYOUTS,
    NPZ,
    PICKLE,
    TORCH,
    ZIP,
    NamedArrays,
    arrays_of,
    entries_of,
    kind_of,
    known_layout,
    pickle_in,
    read_pickle,
)
from fidtool.statistics.set_statistics import Statistics

_SUFFIXES = {FEATURES: "", SPATIAL: "_s", EMBEDDING: "_embedding"}
"""Suffixes of the names of a layer's arrays; ADM's reference files have ``mu_s`` and ``sigma_s``. The suffix of any
other layer is ``_`` and its name."""
_ADM = "ADM's evaluator (it has mu_s)"
_STYLEGAN = "StyleGAN2-ADA or StyleGAN3 (it has raw_mean)"
_WRITERS = {
    "ref_mu": "MeanFlow's code (it has ref_mu)",
    "feats": "clean-fid (it has feats)",
    "pool_3": "score_sde (it has pool_3)",
    "reps": "dgm-eval (it has reps)",
}
_PROTOCOLS = {_ADM: "tensorflow", EDM2_INCEPTION: "tensorflow", _STYLEGAN: "stylegan"}
"""The protocols of Inception's statistics by the tools that have one protocol only."""
_ALL_FEATURES = "all_features"
"""StyleGAN's list of the features of each batch."""
_CHUNK_ROWS = 1024
_USUAL = (1.0, 31.0)
"""Range of the largest feature for which Inception's feature step is used."""
_ROUNDING = 1e-12
"""Relative rounding error of a sum of squares."""


def array_suffix(layer: str) -> str:
    """Returns the suffix of the names of a layer's arrays in fidtool's own files."""
    return _SUFFIXES.get(layer, f"_{layer}")


def layers_in(names: Collection[str]) -> list[str]:
    """Returns the layers with ``mu`` and ``sigma`` in a file, given the names of its arrays."""
    # Only layers with a fingerprint, which other tools do not write: the meaning of their arrays is unknown.
    own = [name.removeprefix("fingerprint_") for name in names if name.startswith("fingerprint_")]
    layers = [*_SUFFIXES, *(layer for layer in own if f"_{layer}" not in _SUFFIXES.values())]
    return [layer for layer in layers if {f"mu{array_suffix(layer)}", f"sigma{array_suffix(layer)}"} <= {*names}]


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """What a file holds, by its bytes.

    Attributes:
        kind: ``npz`` or ``pickle``; empty if it is neither.
        images: the array of images that is read if none is named; empty if there is none.
    """

    kind: str = ""
    statistics: bool = False
    images: str = ""


def layout_of(files: Files) -> FileLayout:
    """Returns what the first of ``files`` holds, without reading its large arrays.

    Of a damaged file, as much as can be read is returned.
    """
    kind = kind_of(head_of(files))
    # Of an archive that begins with another member, not every member is read: it may have a million images.
    if kind == NPZ or (kind == ZIP and suffix_of(files.paths[0]) == ".npz"):
        headers = array_headers(files)
        images = [name for name, each in headers.items() if name == SAMPLES or len(each.shape) in (3, 4)]
        images = images or [name for name, each in headers.items() if len(each.shape) > 4]
        others = headers.keys() - {*images}
        return FileLayout(
            kind=NPZ,
            statistics=any(name in others for layout in LAYOUTS for name in layout),
            images=SAMPLES if SAMPLES in images else next(iter(images), ""),
        )
    if kind in (PICKLE, TORCH):
        value: Any = None
        with contextlib.suppress(InputError, OSError, ContentError, ValueError, BadZipFile), files.open(0) as handle:
            value = read_pickle(files.paths[0], pickle_in(handle) if kind == TORCH else handle)
        statistics = bool(entries_of(value) or (isinstance(value, dict) and known_layout(arrays_of(value))))
        if kind == PICKLE or statistics:  # without statistics, a file of torch.save may have tensors, which are images
            return FileLayout(kind=PICKLE, statistics=statistics)
    return FileLayout()


def read_foreign(path: str, arrays: NamedArrays, features_of: Collection[str] | None) -> Statistics | None:
    """Reads statistics in another layout than ``mu`` and ``sigma``; None if the file has these."""
    layout = known_layout(arrays.names)
    wanted = features_of is None or FEATURES in features_of
    if layout == ("ref_mu", "ref_sigma"):
        mu, sigma = checked_gaussian(path, *(arrays.array(name) for name in layout), names=layout)
        return replace(Statistics.of(mu, sigma), origin=_WRITERS["ref_mu"])
    if len(layout) == 1:
        (name,) = layout
        return replace(of_features(arrays.rows(name), wanted, ddof=1), origin=_WRITERS[name])
    return _of_stylegan(path, arrays, wanted) if layout and layout[0] == "num_items" else None


def _of_stylegan(path: str, arrays: NamedArrays, wanted: bool) -> Statistics:
    """Reads sums of features and of their outer products, or the features, of which StyleGAN stores one or both."""
    count = checked_count(path, arrays.array("num_items"), "num_items")
    has_features = _ALL_FEATURES in arrays.names
    has_sums = "capture_mean_cov" not in arrays.names or bool(arrays.array("capture_mean_cov"))
    found: Statistics | None = None
    if has_features and (wanted or not has_sums):
        found = of_features(arrays.rows(_ALL_FEATURES), wanted, ddof=0)
        if found.count != count:
            raise InputError(f"the statistics file {path} has features of {found.count} images, but {count} images")
    if has_sums:
        names = ("raw_mean", "raw_cov")
        total, squares = checked_gaussian(path, *(arrays.array(name) for name in names), names=names)
        if found is not None and found.dims != len(total):
            raise InputError(f"the statistics file {path} has features of {found.dims} dims, but sums of {len(total)}")
        mu = total / count
        sigma = squares / count - np.outer(mu, mu)
        # Rounding can make the variance of a constant feature negative.
        rounded = np.abs(sigma.diagonal()) < _ROUNDING * squares.diagonal() / count
        np.fill_diagonal(sigma, np.where(rounded, 0.0, sigma.diagonal()))
        mu, sigma = checked_gaussian(path, mu, sigma)
        features, order = (None, None) if found is None else (found.features, found.order)
        found = replace(Statistics.of(mu, sigma, count, features=features), order=order)
    if found is None:
        raise InputError(f"the statistics file {path} has neither sums nor features of its {count} images")
    return replace(found, origin=_STYLEGAN)


def of_features(rows: Features, wanted: bool, ddof: int) -> Statistics:
    """Returns the statistics of features, which are kept in canonical order if they are ``wanted``."""
    mu, sigma = _moments(rows, ddof)
    order = canonical_order(len(rows)) if wanted else None
    features = None if order is None else reordered(rows, order)
    return replace(Statistics.of(mu, sigma, len(rows), features=features), order=order)


def _moments(rows: Features, ddof: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the exact mean and covariance, as of features that fidtool computes."""
    import torch  # deferred: most statistics files are read without it

    from fidtool.statistics.moments import ExactMoments, better_step

    chunks = [rows[start : start + _CHUNK_ROWS] for start in range(0, len(rows), _CHUNK_ROWS)]
    largest = max(float(np.abs(chunk).max()) for chunk in chunks)
    usual = _USUAL[0] <= largest < _USUAL[1] or largest == 0
    # Features of an unknown network may have any scale.
    moments = ExactMoments(rows.shape[1], INCEPTION_FEATURE_STEP if usual else better_step(0, largest))
    for chunk in chunks:
        moments.add(torch.from_numpy(np.array(chunk)))  # a copy, because mapped memory cannot be written
    found = moments.mean_covariance(ddof)
    return found.mu, found.sigma


def checked_gaussian(
    path: str, mu: NDArray[Any], sigma: NDArray[Any], *, names: tuple[str, ...] = ("mu", "sigma")
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns a mean and a covariance as float64 after checking them."""
    mean, covariance = (_as_float64(path, *each) for each in zip(names, (mu, sigma), strict=True))
    first, second = names
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)) or len(mean) == 0:
        raise InputError(
            f"the statistics file {path} has {first} of shape {mean.shape} and {second} of shape {covariance.shape}; "
            "they should be (D,) and (D, D)"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise InputError(f"the statistics file {path} contains NaN or infinite values", "compute it again")
    if np.abs(covariance - covariance.T).max() > 1e-6 * np.abs(covariance).max() or covariance.diagonal().min() < 0:
        raise InputError(f"{second} in {path} is not a covariance: it is not symmetric, or has a negative variance")
    return mean, covariance


def _as_float64(path: str, name: str, value: NDArray[Any]) -> NDArray[np.float64]:
    if value.dtype.kind not in "fiu":
        raise InputError(f"{name} in the statistics file {path} has dtype {value.dtype}; it should be float64")
    return value.astype(np.float64)


def checked_count(path: str, value: NDArray[Any], name: str = "count") -> int:
    """Returns the number of images in a file."""
    if value.dtype.kind not in "iu" or value.ndim != 0 or int(value) < 1:
        raise InputError(f"the statistics file {path} has a {name} that is not a positive integer")
    return int(value)


def with_origin(statistics: Statistics, writer: str) -> Statistics:
    """Returns statistics with their origin and with the definitions of its protocol, as far as they are known."""
    spatial = statistics.layers.get(SPATIAL)
    origin = writer or statistics.origin or (_ADM if spatial is not None and spatial.dims == SPATIAL_DIMS else "")
    return with_protocol(replace(statistics, origin=origin), _PROTOCOLS.get(origin, ""))


def with_protocol(statistics: Statistics, protocol: str) -> Statistics:
    """Returns Inception's statistics with the definitions of a protocol."""
    # The other networks of these tools have other dimensions.
    if not protocol or statistics.dims != max(INCEPTION_DIMS):
        return statistics
    from fidtool.features.catalogue import inception_definition, spatial_definition
    from fidtool.features.models.inception_weights import TENSORS_SHA256

    spatial = statistics.layers.get(SPATIAL)
    definition = inception_definition(protocol_named(protocol), statistics.dims, TENSORS_SHA256)
    layers = {**statistics.layers, FEATURES: replace(statistics.layers[FEATURES], definition=definition)}
    if spatial is not None and spatial.dims == SPATIAL_DIMS:
        layers[SPATIAL] = replace(spatial, definition=spatial_definition(definition))
    return replace(statistics, layers=layers)
