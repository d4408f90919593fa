"""The network of a metric, which others may share, and a differentiable version of it."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fidtool.errors import (
    InputError,
    SettingName,
    option,
    rename_setting,
    summarize_error,
    unwrap_program_errors,
)
from fidtool.features.building import build_extractor, fetch_state
from fidtool.features.choice import NetworkChoice, name_module
from fidtool.features.device import (
    Device,
    deterministic_mode,
    device_context,
    full_fp32,
    make_device,
)
from fidtool.features.extractor import Extractor
from fidtool.features.hashes import hash_state_dict
from fidtool.features.models.inception import Weights, inception_extractor, load_weights
from fidtool.features.network import Network
from fidtool.features.plain import PlainExtractor
from fidtool.features.protocol import (
    DEFAULT_PROTOCOL,
    FEATURES,
    INCEPTION_DIMS,
    PROTOCOLS,
    Definition,
    ProtocolName,
    find_protocol,
    inception_definition,
)
from fidtool.features.resize import ImageTensors
from fidtool.result.values import FeatureSource
from fidtool.settings.settings import CheckSettings, StatisticsSettings
from fidtool.system.cache_dir import lock_file
from fidtool.system.console import log_warning
from fidtool.training.inputs import (
    Convert,
    check_range,
    not_floats_error,
    parse_bool,
    warn_of_conversion,
)
from fidtool.validation import find_settings

PathLike = str | os.PathLike[str]
Feature = int | str | Network | nn.Module
WEIGHTS_SECONDS = 1800.0


class SharedNetwork:
    """A network that copies share, because it is large. It is not pickled, since it belongs to a
    device: unpickling makes it again from its arguments.
    """

    _arguments: tuple[Any, ...]

    def __deepcopy__(self, memo: object) -> SharedNetwork:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments


class SharedExtractor(SharedNetwork):
    """One network with one protocol, see `FeatureExtractor`.

    A custom network is copied, so that training it later does not change the features.

    Attributes:
        choice: the network; of a plain module only its name.
        plain: whether it is a plain module, which gets the images as they are.
    """

    def __init__(
        self,
        feature: Feature,
        protocol: str | None,
        weights: PathLike | None,
        feature_step: int | None = None,
    ) -> None:
        if isinstance(feature, Network):
            feature = replace(feature, module=_copy_module(feature.module))
        elif isinstance(feature, nn.Module):
            feature = _copy_module(feature)
        self._arguments = feature, protocol, weights, feature_step
        self.choice = choose_network(feature, protocol, weights)
        if isinstance(feature, Network):
            self.choice = replace(self.choice, feature_step=feature_step)
        self.plain = isinstance(feature, nn.Module)
        self._latest: dict[str, tuple[object, list[Tensor]]] = {}
        with rename_setting("extractor", "feature"), unwrap_program_errors(), deterministic_mode():
            self._extractor = self._load(feature, feature_step)
        self.definition = self._extractor.definition

    def compute_once(
        self, side: str, images: object, compute: Callable[[], list[Tensor]]
    ) -> list[Tensor]:
        """Return the features of batches of images, which several metrics pass in turn and the
        first computes.
        """
        if side not in self._latest or self._latest[side][0] != images:
            self._latest[side] = images, compute()
        return self._latest[side][1]

    @property
    def step_setting(self) -> SettingName:
        """What determines the step of the features, see `ExactMoments`."""
        return "" if self.choice.given else self.choice.step_setting

    def rounding(self, float_to_byte: str | None) -> str:
        """How floats become bytes, see `fidtool.settings.settings.StatisticsSettings.rounding`."""
        asked: str | None = find_settings(CheckSettings)["float_to_byte"].check(float_to_byte)
        # Some published networks have protocols of their own, which round as the default one does.
        protocol = PROTOCOLS.get(self.choice.protocol or "", PROTOCOLS[DEFAULT_PROTOCOL])
        return asked or protocol.float_to_byte

    def extractor(self, device: torch.device) -> Extractor:
        if device != self._extractor.device.torch_device:
            # Tensors that are moved in inference mode could not be used with gradients later.
            with torch.inference_mode(False), torch.no_grad():
                self._extractor.to(make_device(device))
        return self._extractor

    def _load(self, feature: Feature, feature_step: int | None) -> Extractor:
        choice = self.choice
        cpu = make_device(torch.device("cpu"))
        if isinstance(feature, nn.Module):
            return _PlainExtractor(feature, choice.extractor, feature_step, cpu)
        if choice.extractor == "inception":
            protocol = find_protocol(choice.protocol or DEFAULT_PROTOCOL)
            dims = choice.dims or max(INCEPTION_DIMS)
            definitions = {FEATURES: inception_definition(protocol, dims, "feature")}
            weights = inception_weights(choice.weights)
            return inception_extractor(protocol, definitions, weights.state, cpu)
        with lock_file("weights", WEIGHTS_SECONDS):
            state = fetch_state(choice, log_warning)
        return build_extractor(choice, state, cpu)

    def content_key(self) -> object:
        """Return an object that equals that of another network if the networks do: weights,
        attributes and hooks.

        If that cannot be told, it equals no other. It is valid as long as the network lives.
        """
        written = io.BytesIO()
        try:
            _Pickler(written).dump(self._arguments[0])
        except Exception:  # a custom module may raise anything
            return object()
        return self.definition, hashlib.sha256(written.getvalue()).hexdigest()


# The networks of the metrics that a program has, by their content.
_shared_extractors: weakref.WeakValueDictionary[object, SharedExtractor] = (
    weakref.WeakValueDictionary()
)


class _PlainExtractor(PlainExtractor):
    """Its images are as the program passed them, of any shape and dtype."""

    def to(self, device: Device) -> None:
        super().to(replace(device, forward_threads=min(1, device.forward_threads)))

    def preprocess(self, images: ImageTensors) -> ImageTensors:
        return images


class _Pickler(pickle.Pickler):
    """Pickles tensors as hashes, and what `copy.deepcopy` shares between copies, functions and
    classes, by identity.
    """

    def persistent_id(self, value: object) -> object:
        if isinstance(value, Tensor):
            return hash_state_dict({"": value})
        if isinstance(value, MethodType):
            return id(value.__func__), value.__self__
        if isinstance(value, (FunctionType, type)):
            return id(value)
        return None


def choose_network(
    feature: Feature, protocol: str | None, weights: PathLike | None
) -> NetworkChoice:
    """Return the network for a metric's arguments of these names. That of a plain module has only
    its name.
    """
    if isinstance(feature, (Network, nn.Module)) and weights is not None:
        problem = (
            "applies to Inception and named networks only; a custom network already has its own "
            "weights"
        )
        raise InputError(f"{option('weights')} {problem}")
    if isinstance(feature, nn.Module):
        if protocol is not None:
            raise InputError(
                "protocol cannot be combined with a plain module, which gets the images as they "
                "are:",
                "omit it, or wrap the module in fidtool.Network",
                setting="protocol",
            )
        return NetworkChoice(name_module(feature))
    if not isinstance(feature, (int, str, Network)):
        *first, last = INCEPTION_DIMS
        raise InputError(
            f"feature must be {', '.join(map(str, first))} or {last}, the name of a network, such "
            "as 'dinov2' or 'FILE.py:NAME', a fidtool.Network or a torch.nn.Module, not "
            f"{type(feature).__name__}",
            setting="feature",
        )
    if isinstance(feature, str) and feature in map(str, INCEPTION_DIMS):
        raise InputError(
            f"{option('feature', feature)} is a string, which names a network:",
            f"pass {option('feature', int(feature))} for a layer of Inception",
        )
    dims = None
    extractor: str | Network = "inception"
    if isinstance(feature, int):
        dims = feature
    else:
        extractor = feature
    with rename_setting("extractor", "feature"), rename_setting("dims", "feature"):
        settings = StatisticsSettings(
            extractor=extractor,  # type: ignore[arg-type]
            dims=dims,
            protocol=protocol,  # type: ignore[arg-type]
            weights=weights,
        )
    if settings.other_networks:
        raise InputError(
            f"{option('feature', feature)} names several networks:", "pass one of them"
        )
    apart = weights is not None or protocol is not None
    return replace(settings.network, setting="feature", apart=apart)


def features_of_network(choice: NetworkChoice, network: str) -> FeatureSource:
    """Return the features of a network, after which values are called in results. A factory's can
    have a name of its own, ``network``.
    """
    has_own_name = choice.runs_code and not choice.made(network)
    name = network if has_own_name else choice.extractor
    return FeatureSource.from_network(name, choice.dims or max(INCEPTION_DIMS))


def shared_extractor(
    feature: Feature,
    antialias: bool | None,
    protocol: str | None,
    weights: PathLike | None,
    feature_step: int | None,
) -> SharedExtractor:
    """Return the network for a metric's arguments of these names: that of another metric if it is
    the same.
    """
    if feature_step is not None and not isinstance(feature, (nn.Module, Network)):
        raise InputError(
            "feature_step applies to a plain module or a fidtool.Network as feature; other "
            "networks have their own step"
        )
    network = choose_network(feature, None, weights)
    if antialias is not None and (network.extractor == "inception" or network.tuned):
        selected = "torchmetrics" if parse_bool("antialias", antialias) else "tensorflow"
        if protocol is not None and find_protocol(protocol).name != selected:
            raise InputError(
                f"antialias={antialias} selects the protocol {selected!r}, but "
                f"protocol={protocol!r} selects another:",
                "pass only one of them",
                setting="protocol",
            )
        protocol = selected
    new = SharedExtractor(feature, protocol, weights, feature_step)
    return _shared_extractors.setdefault(new.content_key(), new)


def inception_weights(file: str | None, classifier: bool = False) -> Weights:
    with lock_file("weights", WEIGHTS_SECONDS):
        return load_weights(file, log_warning, classifier)


def _copy_module(module: nn.Module) -> nn.Module:
    if isinstance(module, DistributedDataParallel):
        module = module.module
    try:
        copied = copy.deepcopy(module)
    except Exception as error:  # a custom module may raise anything
        raise InputError(
            f"the metric cannot copy {type(module).__name__} ({summarize_error(error)}):",
            "pass 'FILE.py:NAME', which creates a fidtool.Network",
        ) from error
    copied.zero_grad(set_to_none=True)
    return copied


class FeatureExtractor(nn.Module):
    """Differentiable features of images, for training a generator through the feature extractor.

    The features equal those of ``fidtool compute`` with the same protocol, except that images are
    not rounded to 8 bits. The network is frozen (a `fidtool.Network` is copied), stays in
    evaluation mode, and computes in float32, also under autocast and with TF32 enabled. It is
    neither in the parameters nor in the state_dict. If the network's own preparation rounds to 8
    bits (DINOv2, CLIP, timm), the images are rounded as usual, and the gradient passes straight
    through the rounding.

    Args:
        feature: see `FrechetInceptionDistance`; a plain module is not accepted.
        protocol, weights: see `FrechetInceptionDistance`.

    Raises:
        fidtool.InputError: if there is no such layer, protocol or weights file.
    """

    def __init__(
        self,
        feature: int | str | Network = 2048,
        *,
        protocol: ProtocolName | None = None,
        weights: PathLike | None = None,
    ) -> None:
        super().__init__()
        self._features = SharedExtractor(feature, protocol, weights)

    @property
    def definition(self) -> Definition:
        """Definition of the features. The real statistics must have the same definition."""
        return self._features.definition

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of a batch.

        Args:
            images: floating-point tensor of shape (n, 3, height, width), values in 0..1, on any
                device, to which the network is moved. Checking the range waits for the device.

        Returns:
            float32 tensor of shape (n, dims).

        Raises:
            fidtool.InputError: if the shape, dtype or range is wrong.
        """
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise not_floats_error("images", "(n, 3, height, width)", images)
        scaled = images.float() * 255.0
        check_range(scaled.detach())
        with unwrap_program_errors(), device_context(images.device), full_fp32():
            return self._features.extractor(images.device).extract_with_grad(scaled)

    def _apply(self, fn: Convert, recurse: bool = True) -> FeatureExtractor:
        warn_of_conversion(self, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self
