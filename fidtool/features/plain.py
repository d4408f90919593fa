"""A plain module, which gets the images as they are, as a feature extractor."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from fidtool.features.device import Device
from fidtool.features.extractor import Extractor, LayerFeatures
from fidtool.features.hashes import hash_state_dict
from fidtool.features.network import freeze
from fidtool.features.protocol import DECODER, FEATURES, USUAL_STEP, Definition
from fidtool.features.resize import ImageTensors, Preparation

INPUT = (
    "the images as they are: uint8 tensors of shape (n, 3, height, width), with images of "
    "different sizes in separate batches"
)
"""What a plain module gets, for messages."""
# Of all plain modules, because several extractors can have the same one, or share a part of it.
_CALLING = threading.Lock()


class PlainExtractor(Extractor):
    """Its module maps images of one shape and dtype to features of shape (n, D). One thread at a
    time calls it.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        feature_step: int | None,
        device: Device,
        layer: str = FEATURES,
        precision: str = "fp32",
    ) -> None:
        module = freeze(module)
        definition = Definition(
            extractor=name,
            weights_sha256=hash_state_dict(module.state_dict()),
            dims=0,  # the length of a feature vector is unknown
            feature_step=USUAL_STEP if feature_step is None else feature_step,
            input_size=0,
            normalization="none",
            resize="none",
            decoder=DECODER,
            ddof=1,
        )
        super().__init__(
            module,
            {layer: definition},
            Preparation("bilinear"),
            (0.0,),
            (1.0,),
            device,
            precision,
            open_step=feature_step is None,
        )

    def preprocess(self, images: ImageTensors) -> ImageTensors:
        """Return copies of the images, of shape (3, height, width)."""
        channels_first = [image.permute(2, 0, 1) for image in images]
        return [image.clone(memory_format=torch.contiguous_format) for image in channels_first]

    def forward_layers(self, inputs: Sequence[ImageTensors]) -> LayerFeatures:
        """Return the feature vectors of a batch, of which those images are passed together that
        have the same shape and dtype.
        """
        images = [*chain.from_iterable(inputs)]
        alike = defaultdict[object, list[int]](list)
        for place, image in enumerate(images):
            alike[image.shape, image.dtype].append(place)
        rows: dict[int, Tensor] = {}
        ((layer, _),) = self.definitions.items()
        with _CALLING, torch.inference_mode():
            for places in alike.values():
                batch = torch.stack([images[place] for place in places])
                rows |= zip(places, self._forward_layers(batch)[layer], strict=True)
        return {layer: torch.stack([rows[place] for place in range(len(images))])}
