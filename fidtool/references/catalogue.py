"""The statistics that papers compare with: which projects publish which, of what, and how they are
named.

Their names and facts are read from the projects' code and documentation, which ``source`` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fidtool.errors import InputError
from fidtool.names import find_similar, fold, unknown_name_error
from fidtool.sources.kinds import is_reference

IMAGES = "arr_0"
"""Name of an array of images in a published file."""
FEATURES = "feats"
"""Name of an array of features, one row per image. clean-fid publishes it in a separate file, for
KID.
"""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Statistics that a project publishes.

    Attributes:
        name: name of the form ``adm:imagenet256``: the project, and what the statistics are of.
        url: address of the file, an ``.npz`` or a pickle.
        arrays: names of the arrays in the file, or of the entries of a pickle, and `FEATURES` if
            there are any.
        protocol: the protocol of the statistics.
        real_images: number of images that the statistics are of; None if unknown.
        fakes: number of generated images with which the project compares the statistics.
        shape: height and width of the images; None if they vary.
        framing: how the images were cropped to this shape: the name of a crop, such as ``adm``;
            empty if they were not cropped, or this is unknown.
        source: where the facts are from.
        note: what else a user has to know.
        features_url: address of the file with `FEATURES`; empty if there is none.
        classes: number of classes of the dataset; None if it has none, or they are not used.
        crop_fake: the crop without which FAKE cannot be compared with it; empty if there is none.
        split: split of the dataset that they are of, `TRAINING` or `VALIDATION`; empty if it is
            not known, or the name has it.
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
    crop_fake: str = ""
    split: str = ""

    @property
    def project(self) -> str:
        """The project that publishes them, such as ``adm``."""
        return self.name.partition(":")[0]

    @property
    def statistics(self) -> tuple[str, ...]:
        return tuple(array for array in self.arrays if array not in (IMAGES, FEATURES))

    @property
    def is_pickle(self) -> bool:
        return self.url.endswith(".pkl")


TRAINING, VALIDATION = "training", "validation"
# Numbers of ImageNet's training images and classes.
_IMAGENET = 1_281_167
_CLASSES = 1000
SPLITS = {
    _IMAGENET: ("ImageNet", TRAINING),
    50_000: ("ImageNet", VALIDATION),
    82_783: ("COCO 2014", TRAINING),
    40_504: ("COCO 2014", VALIDATION),
}
"""Data sets and splits by their numbers of images, which no other split of these has. Another data
set can have as many.
"""
_ADM = "https://openaipublic.blob.core.windows.net/diffusion/jul-2021/ref_batches"
_EDM = "https://nvlabs-fi-cdn.nvidia.com/edm/fid-refs"
_EDM2 = "https://nvlabs-fi-cdn.nvidia.com/edm2/dataset-refs"
_CLEAN_FID = "https://www.cs.cmu.edu/~clean-fid/stats"
FD_LOSS = {
    "guided_diffusion_stats.npz": "",
    "convnext_in256_t224_stats.npz": "fdr_convnext",
    "vit_large_patch14_dinov2_lvd142m_in256_t256_stats.npz": "fdr_dinov2",
    "vit_large_patch16_224_mae_in256_t224_stats.npz": "fdr_mae",
    "vit_so400m_patch16_siglip_256_v2_webli_in256_t224_stats.npz": "fdr_siglip",
    "vit_large_patch14_clip_224_openai_in256_t256_stats.npz": "fdr_clip",
}
"""Entries of FD-Loss's pickle and the layers of the features of their networks; empty for
Inception.
"""
_COCO = "https://github.com/boomb0om/text2image-benchmark/releases/download/v0.0.1/MS-COCO_val2014_fid_stats.npz"


def _adm(name: str, file: str, size: int, real_images: int | None = None) -> Reference:
    return Reference(
        name=f"adm:{name}",
        url=f"{_ADM}/{file}",
        arrays=("mu", "sigma", "mu_s", "sigma_s", IMAGES),
        real_images=real_images,
        shape=(size, size),
        framing="adm" if real_images else "",
        source="openai/guided-diffusion, evaluations/README.md",
        note="precision and recall compare its 10,000 images (arr_0) with the generated ones",
        classes=_CLASSES if real_images else None,
        split=TRAINING,
    )


def _edm(
    name: str,
    file: str,
    size: int,
    real_images: int | None = None,
    classes: int | None = None,
    framing: str = "",
    trained_on: str = "",
) -> Reference:
    """Return a reference of EDM; ``trained_on`` is on whose images the networks were trained, if
    it matters.
    """
    note = "EDM reports the lowest of three evaluations"
    if trained_on:
        note = f"for networks trained on {trained_on}'s images; {note}"
    return Reference(
        name=f"edm:{name}",
        url=f"{_EDM}/{file}.npz",
        real_images=real_images,
        shape=(size, size),
        framing=framing,
        source="NVlabs/edm, README.md",
        note=note,
        classes=classes,
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
        split=TRAINING,
    )


# clean-fid's modes, and the protocols that equal them.
_MODES = {"clean": "clean", "legacy_tensorflow": "tensorflow", "legacy_pytorch": "pytorch-fid"}
# Data set, size, split, number of real images, usual number of generated images; and `FEATURES` if
# they are published, or the mode if the statistics are published for it only.
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


def _clean_fid() -> Iterator[Reference]:
    for mode, protocol in _MODES.items():
        for data, size, split, real_images, fakes, published in _CLEAN_FID_SETS:
            if published not in ("", FEATURES, mode):
                continue
            name = f"clean-fid:{data}-{size}-{split}"
            if mode != "clean":
                name += f"-{mode}"
            url = f"{_CLEAN_FID}/{data}_{mode}_{split}_{size}"
            arrays = ["mu", "sigma"]
            features_url = ""
            if published == FEATURES:
                arrays.append(FEATURES)
                features_url = f"{url}_kid.npz"
            yield Reference(
                name=name,
                url=f"{url}.npz",
                arrays=tuple(arrays),
                protocol=protocol,
                real_images=real_images,
                fakes=fakes,
                shape=(size, size),
                source="GaParmar/clean-fid, README.md and cleanfid/features.py",
                features_url=features_url,
            )


_ALL = (
    _adm("imagenet64", "imagenet/64/VIRTUAL_imagenet64_labeled.npz", 64, _IMAGENET),
    _adm("imagenet128", "imagenet/128/VIRTUAL_imagenet128_labeled.npz", 128, _IMAGENET),
    _adm("imagenet256", "imagenet/256/VIRTUAL_imagenet256_labeled.npz", 256, _IMAGENET),
    _adm("imagenet512", "imagenet/512/VIRTUAL_imagenet512.npz", 512, _IMAGENET),
    _adm("lsun-bedroom", "lsun/bedroom/VIRTUAL_lsun_bedroom256.npz", 256),
    _adm("lsun-cat", "lsun/cat/VIRTUAL_lsun_cat256.npz", 256),
    _adm("lsun-horse", "lsun/horse/VIRTUAL_lsun_horse256.npz", 256),
    _edm("cifar10", "cifar10-32x32", 32, 50_000, 10),
    _edm("ffhq", "ffhq-64x64", 64, 70_000),
    _edm("afhqv2", "afhqv2-64x64", 64),
    _edm("imagenet64", "imagenet-64x64", 64, _IMAGENET, _CLASSES, "edm", "EDM"),
    _edm("imagenet64-baseline", "imagenet-64x64-baseline", 64, classes=_CLASSES, trained_on="ADM"),
    _edm2("img64", 64),
    _edm2("img512", 512),
    *_clean_fid(),
    Reference(
        name="fd-loss:imagenet256",
        url="https://huggingface.co/jjiaweiyang/FD-Loss/resolve/main/data/fid_stats/paper_ref_stats.pkl",
        arrays=tuple(FD_LOSS),
        real_images=_IMAGENET,
        shape=(256, 256),
        framing="adm",
        source="cwhoaon/FD-Loss, README.md and scripts/ref",
        note="statistics of six networks; the Inception statistics are ADM's",
        classes=_CLASSES,
        split=TRAINING,
    ),
    Reference(
        name="t2ibenchmark:coco-30k",
        url=_COCO,
        protocol="pytorch-fid",
        real_images=None,
        fakes=30_000,
        shape=(299, 299),
        framing="t2ibenchmark",
        crop_fake="t2ibenchmark:299",
        source="boomb0om/text2image-benchmark, README.md and T2IBenchmark/feature_extractors",
        note="pytorch-fid's network on a central square, resized by Pillow's bicubic filter to "
        "299 x 299 in 8 bits: the preset coco-t2ibenchmark crops FAKE as well",
        split=VALIDATION,
    ),
)
REFERENCES = {reference.name: reference for reference in _ALL}
"""All references by name."""
# The same by their names and those of their published files, without case, hyphens and underscores.
_BY_NAME = {fold(f"{item.project}:{Path(item.url).stem}"): item for item in _ALL}
_BY_NAME |= {fold(name): item for name, item in REFERENCES.items()}


def match_reference(path: str) -> Reference | None:
    """Return the reference that a path names, by its name or its URL; None if it names none."""
    if is_reference(path):
        return find_reference(path)[0]
    for reference in _ALL:
        if path.startswith(reference.url):
            return reference
    return None


def find_reference_by_file(path: str) -> Reference | None:
    """Return the reference whose published file has the name of this one; None if none has."""
    name = Path(path).name
    return next((reference for reference in _ALL if Path(reference.url).name == name), None)


def suggest_references(path: str) -> list[str]:
    """Return the names of references that may be meant by a path that does not exist."""
    if "/" in path or "." in path:
        return []
    _, _, name = path.rpartition(":")
    exact = [known for known in REFERENCES if fold(known.partition(":")[2]) == fold(name)]
    return exact or find_similar(path, REFERENCES)


def find_reference(text: str) -> tuple[Reference, str]:
    """Return the reference of this name, and the array in it that the text names; empty if it names
    none.

    A name is ``adm:imagenet256`` or, with an array, ``adm:imagenet256:arr_0``. Case, hyphens and
    underscores do not matter. The name of the published file is accepted as well.
    """
    project, _, rest = text.partition(":")
    name, _, key = rest.partition(":")
    reference = _BY_NAME.get(fold(f"{project}:{name}"))
    if reference is None:
        typed = f"{project}:{name}" if rest else project
        raise unknown_name_error(
            "reference",
            typed,
            (),
            ("the names that `fidtool refs` lists"),
            close=suggest_references(typed),
        )
    if not key:
        return reference, ""
    for array in reference.arrays:
        if fold(array) == fold(key):
            return reference, array
    raise InputError(f"{reference.name} has no array {key!r}; it has {', '.join(reference.arrays)}")
