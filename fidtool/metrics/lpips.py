"""LPIPS: the distance of pairs of images in the features of a classifier."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fidtool.errors import InputError, Say, missing_package, rename_setting
from fidtool.features.choice import NetworkChoice
from fidtool.features.protocol import PIXELS
from fidtool.metrics.metric import METRICS, Number, not_computable_error
from fidtool.metrics.pairs import Compare, PairMetric
from fidtool.names import shorten
from fidtool.validation import File, Setting, path_text

if TYPE_CHECKING:
    import torch

    from fidtool.features.weights import State


@dataclass(frozen=True, kw_only=True)
class LPIPS(PairMetric):
    """LPIPS 0.1 (Zhang et al. 2018) of each pair of images, computed by the package lpips and
    averaged over the pairs.

    The value of a pair is the squared difference of normalised features, weighted per channel and
    averaged over places. It is at least 0, and 0 for equal images. The standard deviation over the
    pairs is returned as well.

    Raises:
        InputError: if the package is not installed, if the images are too small for the network, or
            if ``weights`` is neither a file nor the name of torchvision weights.
        RunError: if the weights cannot be downloaded.
    """

    net: Literal["alex", "vgg"] = Setting("alex", METRICS).help(
        "LPIPS: the network, AlexNet (alex) or VGG-16 (vgg)."
    )
    weights: File = Setting(None, METRICS, "FILE").help(
        "LPIPS: weights of torchvision's alexnet or vgg16: a file, or a name that torchvision "
        "knows.",
        default="the published weights, IMAGENET1K_V1",
    )

    name = "lpips"
    numbers = (
        Number(
            "lpips",
            "LPIPS",
            "lower",
            "mean over pairs",
            "lpips_std",
            layer=PIXELS,
            spread_kind="s.d.",
        ),
    )

    def of_pair(self, real: torch.Tensor, fake: torch.Tensor) -> float:
        # Of one pair; a run keeps the network.
        compare = self.on_device(self.fetch(print), real.device)
        return compare(real, fake)

    def fetch(self, say: Say) -> State:
        """Return the network's tensors: the linear layers of the package, and torchvision's
        convolutions.
        """
        from fidtool.features.weights import State, load_strictly

        if find_spec("lpips") is None:
            raise missing_package("LPIPS", "lpips", "lpips", "metrics")
        choice = self._backbone
        with rename_setting("weights", self.named("weights")):
            state = _read_torchvision_weights(choice, say)
            model = self._model()
            # slice2.3.weight in the package is features.3.weight in torchvision.
            tensors = {
                name: state.tensors.get(f"features.{name.partition('.')[2]}", tensor[:0])
                for name, tensor in model.net.state_dict().items()
            }
            load_strictly(model.net, State(tensors, state.origin), choice)
        return State(model.state_dict(), state.origin)

    @property
    def _backbone(self) -> NetworkChoice:
        net = "alexnet" if self.net == "alex" else "vgg16"
        return NetworkChoice(f"torchvision:{net}", path_text(self.weights), setting="metrics")

    def obtain(self, weights: str | None, images: bool, say: Say | None) -> None:
        # `all` never selects the metric; a package that is missing is reported by `fetch`.
        if say is not None and self.weights is None and find_spec("lpips") is not None:
            with rename_setting("weights", self.named("weights")):
                _read_torchvision_weights(self._backbone, say)

    def on_device(self, state: State | None, device: torch.device) -> Compare:
        import torch

        from fidtool.features.device import device_context

        assert state is not None
        model = self._model()
        model.load_state_dict(state.tensors)
        model.to(device)

        def compare(real: torch.Tensor, fake: torch.Tensor) -> float:
            # One pair at a time: the value does not depend on the other pairs of a batch.
            inputs = [image.permute(2, 0, 1)[None].float() / 127.5 - 1.0 for image in (real, fake)]
            with torch.inference_mode(), device_context(device):
                try:
                    return float(model(*inputs))
                except RuntimeError as error:
                    height, width, _ = real.shape
                    fault = shorten(str(error), 80)
                    raise not_computable_error(
                        self,
                        f"the network of LPIPS fails on images of {width}×{height} pixels "
                        f"({fault}):",
                    ) from None

        return compare

    def _model(self) -> Any:
        import lpips
        import torch

        with warnings.catch_warnings(), torch.random.fork_rng():
            # About an argument that the package passes to torchvision.
            warnings.simplefilter("ignore")
            return lpips.LPIPS(net=self.net, pnet_rand=True, verbose=False).requires_grad_(False)


def _read_torchvision_weights(choice: NetworkChoice, say: Say) -> State:
    """Read a file, or published weights of torchvision's alexnet or vgg16 from torch.hub's folder
    or a download.
    """
    import torch
    from torchvision.models import get_model_weights

    from fidtool.features.weights import (
        State,
        explain_download_errors,
        hub_folder,
        kept_file,
        read_tensors,
    )

    weights = choice.weights
    if weights is not None and os.path.isfile(weights):
        return State(read_tensors(Path(weights)), weights)
    entries = get_model_weights(choice.model)
    names = entries.__members__
    if weights not in (None, *names):
        problem = f"is neither a file nor a name of weights for {choice.model}: {', '.join(names)}"
        raise InputError(f"{choice.option('weights', weights)} {problem}")
    entry = entries[weights or "DEFAULT"]
    remedy = "TORCH_HOME to a folder that has the file in hub/checkpoints"
    with explain_download_errors(choice, entry.url, remedy, say):
        kept_file(entry.url, hub_folder(), torch.hub.HASH_REGEX.findall(entry.url)[-1])
        return State(dict(entry.get_state_dict(progress=False)), entry.url)
