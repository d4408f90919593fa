"""The extractor of a network other than Inception: its weights are fetched, it is built, and
tried.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from fidtool.errors import InputError, ProgramError, RunError, Say, missing_package, prefix_errors
from fidtool.features.choice import NetworkChoice, no_protocol_error
from fidtool.features.device import Device, deterministic_mode, device_context
from fidtool.features.extractor import PROBE_SIZE, Extractor
from fidtool.features.hashes import hash_state_dict
from fidtool.features.models import tuned_inception, user_networks
from fidtool.features.network import Network, freeze
from fidtool.features.plain import INPUT, PlainExtractor
from fidtool.features.protocol import (
    DECODER,
    DEFAULT_PROTOCOL,
    FEATURES,
    USUAL_STEP,
    Definition,
    find_protocol,
)
from fidtool.features.resize import Preparation
from fidtool.features.weights import State

# Largest accepted difference between the features of an image alone and in a batch, relative to
# their norm. In bfloat16 they differ, because different kernels run.
_REPEATS = 0.02


def fetch_state(choice: NetworkChoice, say: Say) -> State | None:
    """Read or download the tensors of a network. This is called on rank 0 only, for all ranks."""
    family = choice.published
    if choice.tuned:
        with prefix_errors(choice.subject):
            return tuned_inception.fetch(choice, say)
    if family is None:
        return None  # custom networks come with their weights
    with prefix_errors(choice.subject), deterministic_mode():
        if find_spec(family.package) is None:
            named = choice.option("extractor", choice.full)
            raise missing_package(named, family.package, family.extra)
        state: State = _import_family(choice).fetch(choice, say)
        return state


def _import_family(choice: NetworkChoice) -> Any:
    """Import the module of a published network's family."""
    return import_module(f"fidtool.features.models.{choice.family}")


def build_extractor(
    choice: NetworkChoice,
    state: State | None,
    device: Device,
    precision: str = "fp32",
    layer: str = FEATURES,
    usual: str | None = None,
    size: tuple[int, int] = PROBE_SIZE,
) -> Extractor:
    """Return the extractor of a network that is not Inception, with what `fetch_state` returned, on
    every rank.

    Runs the file of a factory, and the network on probe images. ``usual`` is the protocol of a
    network that has neither its own preparation nor a protocol; None is the default one. The
    protocol determines resize and ddof; a network with its own preparation has ddof 1. ``size`` is
    that of images that a plain module can be tried with. If nobody states the step of the features,
    it is the usual one, and `Extractor.open_step` is set.
    """
    if isinstance(choice.given, nn.Module):
        return _build_plain(choice, choice.given, device, precision, layer, size)
    with prefix_errors(choice.subject):
        asked = None if choice.published else choice.protocol
        standard = find_protocol(asked or usual or DEFAULT_PROTOCOL)
        with deterministic_mode():
            network: Network
            if choice.tuned:
                assert state is not None
                network, name = tuned_inception.build(choice, state, standard)
            elif choice.published:
                name = choice.untagged
                network = _import_family(choice).build(choice, state)
            else:
                network, name = user_networks.build(choice)
        preparation = network.preparation
        ddof = 1
        if preparation is None:
            preparation = Preparation(standard.resize)
            ddof = standard.ddof
        elif asked:
            transform = f" ({preparation.describe(network.input_size)})"
            raise no_protocol_error(choice, standard.name, transform)
        step = network.feature_step if choice.feature_step is None else choice.feature_step
        module = freeze(network.module)
        definition = Definition(
            extractor=name,
            weights_sha256=hash_state_dict(module.state_dict()),
            dims=0,  # not known yet
            feature_step=USUAL_STEP if step is None else step,
            input_size=network.input_size,
            normalization=network.normalization,
            resize=preparation.describe(network.input_size),
            decoder=DECODER,
            ddof=ddof,
        )
        offset = tuple(255.0 * value for value in network.mean)
        scale = tuple(255.0 * value for value in network.std)
        extractor = Extractor(
            module, {layer: definition}, preparation, offset, scale, device, precision, step is None
        )
        extractor.define(dims=_probe_dims(extractor))
    return extractor


def _build_plain(
    choice: NetworkChoice,
    module: nn.Module,
    device: Device,
    precision: str,
    layer: str,
    size: tuple[int, int],
) -> Extractor:
    """Return the extractor of a plain module, which takes images of this ``size``.

    It is also tried with images of the usual size, if it takes these, so that what is recorded of
    it does not depend on the set.
    """
    name = choice.extractor
    if choice.protocol:
        raise InputError(
            f"{choice.option('protocol', choice.protocol)} cannot be combined with {name}, a plain "
            f"module, which gets {INPUT}:",
            "omit it",
            "wrap the module in fidtool.Network",
            setting="protocol",
        )
    with prefix_errors(choice.subject):
        extractor = PlainExtractor(module, name, choice.feature_step, device, layer, precision)
        extractor.probe_size = size
        try:
            dims = _probe_dims(extractor)
        except ProgramError as error:
            error.advise(f"check that the module takes {INPUT}", "wrap it in fidtool.Network")
            raise
        try:
            extractor.probe_size = PROBE_SIZE
            fits = _probe_dims(extractor) == dims
        except RunError:
            fits = False
        if not fits:
            extractor.probe_size = size
        extractor.define(dims=dims)
    return extractor


def _probe_dims(extractor: Extractor) -> int:
    """Run images through the network and return the length of a feature vector.

    Refuses a network whose features of an image are random or depend on the other images in the
    batch.
    """
    height, width = extractor.probe_size
    size = extractor.definition.input_size
    first, second = extractor.probe_images(2)
    with device_context(extractor.device.torch_device):
        with prefix_errors(f"for a 1x3x{size or height}x{size or width} input"):
            alone = extractor.extract([first])[0].cpu().double()
        # The neighbour is darker, because batch norm in training mode treats batches of the same
        # noise almost alike.
        together = extractor.extract([first, second // 4])[0].cpu().double()
    if not len(alone):
        raise RunError("the network returned no features for one image: an output of shape (1, 0)")
    norm = torch.maximum(together.norm(), alone.norm())
    # A value that is not finite is reported for the first batch of images.
    if norm.isfinite() and (together - alone).norm() > _REPEATS * norm:
        raise RunError(
            f"{extractor.definition.extractor} returns different features for the same image in "
            "another batch or at another time, for example because of dropout or batch norm in "
            "training mode: call model.eval() before exporting or tracing a program"
        )
    return len(alone)
