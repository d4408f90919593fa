"""Warnings about a result that follow from its statistics and from the kinds of files, each with a remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fidtool.diagnose.findings import property_warnings
from fidtool.errors import option
from fidtool.features.protocol import EMBEDDING, FEATURES, SPATIAL, layer_prefix
from fidtool.statistics.set_statistics import Statistics


def set_warnings(sets: Mapping[str, Statistics], gaussians: Collection[str] = (FEATURES,)) -> list[str]:
    """Returns warnings about sets, each by itself; ``gaussians`` are the layers whose covariance is compared."""
    found = [
        f"{name} does not state its protocol: the result is only correct if it was made with the protocol of this run"
        for name, statistics in sets.items()
        if statistics.definition is None
    ]
    if gaussians:
        found += _covariance_warnings(sets, gaussians)
    for name, statistics in sets.items():
        found += _image_warnings(name, statistics)
    return found


def _image_warnings(name: str, statistics: Statistics) -> list[str]:
    found = []
    count, traits = statistics.count, statistics.traits
    if count is not None and count > 1 and not statistics.sigma.any():
        found.append(
            f"{name}: all {count} images have the same features: either they are all the same image, or the network "
            "ignores its input"
        )
    found += [f"{name}: {text}" for text in (property_warnings(vars(traits)).values() if traits else ())]
    if statistics.skipped:
        example, number = statistics.skipped[0].file, len(statistics.skipped)
        files = f"{number} files could not be read and were skipped (for example {example})"
        if number == 1:
            files = f"1 file could not be read and was skipped ({example})"
        found.append(f"{name}: {files}" + ("" if count is None else f"; {count} images were used"))
    return found


def _covariance_warnings(sets: Mapping[str, Statistics], gaussians: Collection[str]) -> list[str]:
    largest, dims = FEATURES, 0
    for statistics in sets.values():
        for layer in gaussians:
            if layer in statistics.layers and statistics.layers[layer].dims > dims:
                largest, dims = layer, statistics.layers[layer].dims
    counts = {name: statistics.count for name, statistics in sets.items() if statistics.count is not None}
    found = [
        f"{name} has a single image: its covariance is taken to be zero" for name, count in counts.items() if count == 1
    ]
    distances = "sFID values" if largest == SPATIAL else "Fréchet distances"
    if few := {name: count for name, count in counts.items() if 1 < count <= dims}:
        found.append(
            f"{_have_images(few)} for {dims} dimensions: {distances} are far too high; use more than {dims}, and to "
            "compare with a paper as many as it used (most use 50,000)"
        )
    return found


def _have_images(counts: Mapping[str, int]) -> str:
    (first, number), *others = counts.items()
    if others and {*counts.values()} == {number}:
        return f"{' and '.join(counts)} have only {number} images each"
    return " and ".join([f"{first} has only {number} images", *(f"{name} {count}" for name, count in others)])


def pair_warnings(
    real_name: str, real: Statistics, fake_name: str, fake: Statistics, frechet: bool = True
) -> list[str]:
    """Returns warnings about the comparison of two sets, in addition to the `set_warnings` of each."""
    found = []
    if frechet and real.count is not None and fake.count is not None:
        ratio = max(real.count, fake.count) / min(real.count, fake.count)
        if ratio > 2:
            found.append(
                f"the sets differ in size by {ratio:.1f}x ({real.count} against {fake.count} images): the bias of the "
                "Fréchet distance depends on the smaller one; use equal numbers of images, for example with "
                f"{option('num')}"
            )
    if real.arithmetic is not None and fake.arithmetic is not None:
        both = real.arithmetic.keys() & fake.arithmetic.keys()  # earlier versions did not store the kernels
        keys = ["device", "precision", "torch", *(["kernels"] if "kernels" in both else [])]
        differing = [key for key in keys if real.arithmetic.get(key) != fake.arithmetic.get(key)]
        if "precision" in differing:
            found.append(
                f"{real_name} was computed in {real.arithmetic.get('precision')} and {fake_name} in "
                f"{fake.arithmetic.get('precision')}: part of their distance is due to that; compute both in the same "
                "precision"
            )
        elif differing:
            pairs = ", ".join(
                f"{key} {real.arithmetic.get(key)} against {fake.arithmetic.get(key)}" for key in differing
            )
            found.append(f"{real_name} and {fake_name} were computed differently ({pairs}): the last digits may differ")
        elif real.arithmetic.get("batch_size") == fake.arithmetic.get("batch_size") and (
            layer := _changed_code(real, fake)  # on a GPU the probe batch has the batch size
        ):
            network = {FEATURES: "the extractor", SPATIAL: "the extractor", EMBEDDING: "CMMD's network"}.get(layer)
            network = network or f"the network of {layer!r}"
            found.append(
                f"{real_name} and {fake_name} were computed by networks that give different features for the same "
                f"image, although the file and the tensors of {network} are the same: code or files that it imports or "
                "reads have changed; compute both again"
            )
    return found


def _changed_code(real: Statistics, fake: Statistics) -> str:
    """Returns the layer whose features of the probe batch differ despite equal definitions; empty if there is none."""
    assert real.arithmetic is not None
    assert fake.arithmetic is not None
    for layer in real.layers:
        if layer not in fake.layers or real.layers[layer].definition != fake.layers[layer].definition:
            continue
        probe = f"{layer_prefix(layer, '_')}probe"
        if real.arithmetic.get(probe) != fake.arithmetic.get(probe):
            return layer
    return ""
