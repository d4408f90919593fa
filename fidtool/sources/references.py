"""The statistics that papers compare with: which projects publish which, where, and of what.

Their names and facts are read from the projects' code and documentation, which ``source`` names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from fidtool.errors import InputError
from fidtool.names import closest, folded, unknown

IMAGES = "arr_0"
"""Name of an array of images in a published file."""
FEATURES = "feats"
"""Name of an array of features, one row per image. clean-fid publishes it in a separate file, for KID."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Statistics that a project publishes.

    Attributes:
        name: name of the form ``adm:imagenet256``: the project, and what the statistics are of.
        url: address of the file, an ``.npz`` or a pickle.
        arrays: names of the arrays in the file, or of the entries of a pickle, and `FEATURES` if there are any.
        protocol: the protocol of the statistics; empty if fidtool has none that is equal.
        real_images: number of images that the statistics are of; None if unknown.
        fakes: number of generated images with which the project compares the statistics.
        shape: height and width of the images; None if they vary.
        framing: how the images were cropped to this shape: ``adm`` or ``edm`` for the centre crops of these projects;
            empty if they were not cropped, or this is unknown.
        source: where the facts are from.
        note: what else a user has to know.
        features_url: address of the file with `FEATURES`; empty if there is none.
        classes: number of classes of the data set; None if it has none, or they are not used.
    """

    name: str
    url: str
    arrays: tuple[str, ...] = ("mu", "sigma")
    protocol: str = "tensorflow"
    real_images: int | None
    fakes: int = 50_000
    shape: tuple[int, int] | None
    framing: str = ""
    source: str
    note: str = ""
    features_url: str = ""
    classes: int | None = None

    @property
    def statistics(self) -> tuple[str, ...]:
        """The arrays that are statistics, not images or features."""
        return tuple(array for array in self.arrays if array not in (IMAGES, FEATURES))

    @property
    def is_pickle(self) -> bool:
        """Whether the file is a pickle."""
        return self.url.endswith(".pkl")


_IMAGENET, _CLASSES = 1_281_167, 1000
"""Numbers of ImageNet's training images and classes."""
_ADM = "https://openaipublic.blob.core.windows.net/diffusion/jul-2021/ref_batches"
_EDM = "https://nvlabs-fi-cdn.nvidia.com/edm/fid-refs"
_EDM2 = "https://nvlabs-fi-cdn.nvidia.com/edm2/dataset-refs"
_CLEAN_FID = "https://www.cs.cmu.edu/~clean-fid/stats"
_COCO = "https://github.com/boomb0om/text2image-benchmark/releases/download/v0.0.1/MS-COCO_val2014_fid_stats.npz"


def _adm(name: str, file: str, size: int, real_images: int | None = None, framing: str = "") -> Reference:
    return Reference(
        name=f"adm:{name}",
        url=f"{_ADM}/{file}",
        arrays=("mu", "sigma", "mu_s", "sigma_s", IMAGES),
        real_images=real_images,
        shape=(size, size),
        framing=framing,
        source="openai/guided-diffusion, evaluations/README.md",
        note="precision and recall are between its 10,000 images (arr_0) and the generated ones",
        classes=_CLASSES if real_images == _IMAGENET else None,
    )


def _edm(name: str, file: str, size: int, real_images: int | None, framing: str = "", note: str = "") -> Reference:
    return Reference(
        name=f"edm:{name}",
        url=f"{_EDM}/{file}.npz",
        real_images=real_images,
        shape=(size, size),
        framing=framing,
        source="NVlabs/edm, README.md",
        note=f"{note}EDM reports the lowest of three evaluations",
        classes={"cifar10": 10, "imagenet64": _CLASSES, "imagenet64-baseline": _CLASSES}.get(name),
    )


def _edm2(name: str, size: int) -> Reference:
    return Reference(
        name=f"edm2:{name}",
        url=f"{_EDM2}/{name}.pkl",
        arrays=("fid", "fd_dinov2"),
        real_images=_IMAGENET,
        shape=(size, size),
        framing="adm",
        source="NVlabs/edm2, README.md and calculate_metrics.py",
        note="statistics of Inception (fid) and of DINOv2 ViT-L/14 (fd_dinov2)",
        classes=_CLASSES,
    )


_MODES = {"clean": "clean", "legacy_tensorflow": "tensorflow", "legacy_pytorch": "pytorch-fid"}
"""clean-fid's modes, and the protocols that equal them."""
_CLEAN_FID_SETS = (
    ("cifar10", 32, "train", 50_000, 50_000, ""),
    ("cifar10", 32, "test", 10_000, 10_000, ""),
    ("cifar100", 32, "test", 10_000, 10_000, "clean"),
    ("ffhq", 1024, "trainval", 50_000, 50_000, ""),
    ("ffhq", 256, "trainval", 50_000, 50_000, ""),
    ("ffhq", 1024, "trainval70k", 70_000, 50_000, ""),
    ("ffhq", 256, "trainval70k", 70_000, 50_000, ""),
    ("lsun_church", 256, "train", 50_000, 50_000, ""),
    ("lsun_church", 256, "trainfull", 126_227, 50_000, "clean"),
    ("lsun_horse", 256, "train", 50_000, 50_000, ""),
    ("lsun_horse", 256, "trainfull", 2_000_340, 50_000, "clean"),
    ("lsun_cat", 256, "train", 50_000, 50_000, ""),
    ("lsun_cat", 256, "trainfull", 1_657_264, 50_000, ""),
    ("afhq_cat", 512, "train", 5_153, 50_000, FEATURES),
    ("afhq_dog", 512, "train", 4_739, 50_000, FEATURES),
    ("afhq_wild", 512, "train", 4_738, 50_000, FEATURES),
    ("brecahad", 512, "train", 1_944, 50_000, FEATURES),
    ("metfaces", 1024, "train", 1_336, 50_000, FEATURES),
    ("horse2zebra", 256, "test", 140, 120, ""),
    ("cat2dog", 256, "test", 500, 500, ""),
)
"""Data set, size, split, number of real images, usual number of generated images; and `FEATURES` if they are published,
or the mode if the statistics are published for it only."""


def _clean_fid(mode: str) -> Iterator[Reference]:
    for data_set, size, split, real_images, fakes, published in _CLEAN_FID_SETS:
        if published not in ("", FEATURES, mode):
            continue
        with_features = published == FEATURES
        url = f"{_CLEAN_FID}/{data_set}_{mode}_{split}_{size}"
        yield Reference(
            name=f"clean-fid:{data_set}-{size}-{split}" + ("" if mode == "clean" else f"-{mode}"),
            url=f"{url}.npz",
            arrays=("mu", "sigma", FEATURES) if with_features else ("mu", "sigma"),
            protocol=_MODES[mode],
            real_images=real_images,
            fakes=fakes,
            shape=(size, size),
            source="GaParmar/clean-fid, README.md and cleanfid/features.py",
            features_url=f"{url}_kid.npz" if with_features else "",
        )


_ALL = (
    _adm("imagenet64", "imagenet/64/VIRTUAL_imagenet64_labeled.npz", 64, _IMAGENET, "adm"),
    _adm("imagenet128", "imagenet/128/VIRTUAL_imagenet128_labeled.npz", 128, _IMAGENET, "adm"),
    _adm("imagenet256", "imagenet/256/VIRTUAL_imagenet256_labeled.npz", 256, _IMAGENET, "adm"),
    _adm("imagenet512", "imagenet/512/VIRTUAL_imagenet512.npz", 512, _IMAGENET, "adm"),
    _adm("lsun-bedroom", "lsun/bedroom/VIRTUAL_lsun_bedroom256.npz", 256),
    _adm("lsun-cat", "lsun/cat/VIRTUAL_lsun_cat256.npz", 256),
    _adm("lsun-horse", "lsun/horse/VIRTUAL_lsun_horse256.npz", 256),
    _edm("cifar10", "cifar10-32x32", 32, 50_000),
    _edm("ffhq", "ffhq-64x64", 64, 70_000),
    _edm("afhqv2", "afhqv2-64x64", 64, None),
    _edm("imagenet64", "imagenet-64x64", 64, _IMAGENET, "edm", "for networks trained on EDM's images; "),
    _edm("imagenet64-baseline", "imagenet-64x64-baseline", 64, None, "", "for networks trained on ADM's images; "),
    _edm2("img64", 64),
    _edm2("img512", 512),
    *(reference for mode in _MODES for reference in _clean_fid(mode)),
    Reference(
        name="t2ibenchmark:coco-30k",
        url=_COCO,
        protocol="",
        real_images=None,
        fakes=30_000,
        shape=None,
        source="boomb0om/text2image-benchmark, README.md and T2IBenchmark/feature_extractors",
        note="pytorch-fid's network on a central square, resized by Pillow's bicubic filter to 299 x 299 in 8 bits: no "
        "protocol of fidtool equals this",
    ),
)
REFERENCES = {reference.name: reference for reference in _ALL}
"""All references by name."""
PROJECTS = tuple(dict.fromkeys(name.partition(":")[0] for name in REFERENCES))
"""The part of the names before the colon."""


def is_reference(path: str) -> bool:
    """Whether a path names a reference, known or unknown: a project, a colon, and no local file has this name."""
    project, colon, rest = path.partition(":")
    known = colon and not rest.startswith("//") and folded(project) in map(folded, PROJECTS)
    return bool(known) and not os.path.lexists(path)


def reference_at(path: str) -> Reference | None:
    """Return the reference that a path names, by its name or its URL; None if it names none."""
    if is_reference(path):
        return named_reference(path)[0]
    return next((each for each in REFERENCES.values() if path.startswith(each.url)), None)


def suggested_references(path: str) -> list[str]:
    """Return the names of references that may be meant by a path that does not exist."""
    _, _, name = path.rpartition(":")
    exact = [each for each in REFERENCES if folded(each.partition(":")[2]) == folded(name)]
    return exact or closest(path, REFERENCES) if "/" not in path and "." not in path else []


def named_reference(text: str) -> tuple[Reference, str]:
    """Return the reference of this name, and the array in it that the text names; empty if it names none.

    A name is ``adm:imagenet256`` or, with an array, ``adm:imagenet256:arr_0``. Case, hyphens and underscores do not
    matter. The name of the published file is accepted as well.
    """
    project, _, rest = text.partition(":")
    name, _, key = rest.partition(":")
    wanted = folded(f"{project}:{name}")
    for known, reference in REFERENCES.items():
        file = reference.url.rpartition("/")[2].rpartition(".")[0]
        if wanted in (folded(known), folded(f"{known.partition(':')[0]}:{file}")):
            break
    else:
        typed = f"{project}:{name}" if rest else project
        raise InputError(unknown("reference", typed, suggested_references(typed), "those of `fidtool refs`"))
    array = {folded(each): each for each in reference.arrays}.get(folded(key), "")
    if key and not array:
        raise InputError(f"{reference.name} has no array {key!r}; it has {', '.join(reference.arrays)}")
    return reference, array
