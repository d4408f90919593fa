"""The statistics that papers compare with: which projects publish which, of what, and how they are
named.

Their names and facts are read from the projects' code and documentation, which ``source`` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fidtool.errors import InputError
from fidtool.names import closest, folded, unknown
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
        protocol: the protocol of the statistics; empty if fidtool has none that is equal.
        real_images: number of images that the statistics are of; None if unknown.
        fakes: number of generated images with which the project compares the statistics.
        shape: height and width of the images; None if they vary.
        framing: how the images were cropped to this shape: ``adm`` or ``edm`` for the centre crops
            of these projects; empty if they were not cropped, or this is unknown.
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
    def project(self) -> str:
        """The project that publishes them, such as ``adm``."""
        return self.name.partition(":")[0]

    @property
    def statistics(self) -> tuple[str, ...]:
        return tuple(array for array in self.arrays if array not in (IMAGES, FEATURES))

    @property
    def is_pickle(self) -> bool:
        return self.url.endswith(".pkl")


_IMAGENET, _CLASSES = 1_281_167, 1000
"""Numbers of ImageNet's training images and classes."""
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


_ADM_SETS = (
    ("imagenet64", "imagenet/64/VIRTUAL_imagenet64_labeled.npz", 64, _IMAGENET),
    ("imagenet128", "imagenet/128/VIRTUAL_imagenet128_labeled.npz", 128, _IMAGENET),
    ("imagenet256", "imagenet/256/VIRTUAL_imagenet256_labeled.npz", 256, _IMAGENET),
    ("imagenet512", "imagenet/512/VIRTUAL_imagenet512.npz", 512, _IMAGENET),
    ("lsun-bedroom", "lsun/bedroom/VIRTUAL_lsun_bedroom256.npz", 256, None),
    ("lsun-cat", "lsun/cat/VIRTUAL_lsun_cat256.npz", 256, None),
    ("lsun-horse", "lsun/horse/VIRTUAL_lsun_horse256.npz", 256, None),
)
"""Data set, file, size and number of real images."""
_EDM_SETS = (
    ("cifar10", "cifar10-32x32", 32, 50_000, "", 10, ""),
    ("ffhq", "ffhq-64x64", 64, 70_000, "", None, ""),
    ("afhqv2", "afhqv2-64x64", 64, None, "", None, ""),
    ("imagenet64", "imagenet-64x64", 64, _IMAGENET, "edm", _CLASSES, "EDM"),
    ("imagenet64-baseline", "imagenet-64x64-baseline", 64, None, "", _CLASSES, "ADM"),
)
"""Data set, file, size, number of real images, framing, classes, and on whose images the networks
were trained if it matters.
"""
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
"""Data set, size, split, number of real images, usual number of generated images; and `FEATURES` if
they are published, or the mode if the statistics are published for it only.
"""

_ALL = (
    *(
        Reference(
            name=f"adm:{name}",
            url=f"{_ADM}/{file}",
            arrays=("mu", "sigma", "mu_s", "sigma_s", IMAGES),
            real_images=real_images,
            shape=(size, size),
            framing="adm" if real_images else "",
            source="openai/guided-diffusion, evaluations/README.md",
            note="precision and recall are between its 10,000 images (arr_0) and the generated "
            "ones",
            classes=_CLASSES if real_images else None,
        )
        for name, file, size, real_images in _ADM_SETS
    ),
    *(
        Reference(
            name=f"edm:{name}",
            url=f"{_EDM}/{file}.npz",
            real_images=real_images,
            shape=(size, size),
            framing=framing,
            source="NVlabs/edm, README.md",
            note=f"for networks trained on {trained_on}'s images; " * bool(trained_on)
            + "EDM reports the lowest of three evaluations",
            classes=classes,
        )
        for name, file, size, real_images, framing, classes, trained_on in _EDM_SETS
    ),
    *(
        Reference(
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
        for name, size in (("img64", 64), ("img512", 512))
    ),
    *(
        Reference(
            name=f"clean-fid:{name}-{size}-{split}" + ("" if mode == "clean" else f"-{mode}"),
            url=f"{_CLEAN_FID}/{name}_{mode}_{split}_{size}.npz",
            arrays=("mu", "sigma", FEATURES) if published == FEATURES else ("mu", "sigma"),
            protocol=protocol,
            real_images=real_images,
            fakes=fakes,
            shape=(size, size),
            source="GaParmar/clean-fid, README.md and cleanfid/features.py",
            features_url=f"{_CLEAN_FID}/{name}_{mode}_{split}_{size}_kid.npz"
            if published == FEATURES
            else "",
        )
        for mode, protocol in _MODES.items()
        for name, size, split, real_images, fakes, published in _CLEAN_FID_SETS
        if published in ("", FEATURES, mode)
    ),
    Reference(
        name="fd-loss:imagenet256",
        url="https://huggingface.co/jjiaweiyang/FD-Loss/resolve/main/data/fid_stats/paper_ref_stats.pkl",
        arrays=tuple(FD_LOSS),
        real_images=_IMAGENET,
        shape=(256, 256),
        framing="adm",
        source="cwhoaon/FD-Loss, README.md and scripts/ref",
        note="statistics of six networks; those of Inception are ADM's",
        classes=_CLASSES,
    ),
    Reference(
        name="t2ibenchmark:coco-30k",
        url=_COCO,
        protocol="",
        real_images=None,
        fakes=30_000,
        shape=None,
        source="boomb0om/text2image-benchmark, README.md and T2IBenchmark/feature_extractors",
        note="pytorch-fid's network on a central square, resized by Pillow's bicubic filter to "
        "299 x 299 in 8 bits: no protocol of fidtool equals this",
    ),
)
REFERENCES = {reference.name: reference for reference in _ALL}
"""All references by name."""
_BY_NAME = {folded(f"{each.project}:{Path(each.url).stem}"): each for each in _ALL}
_BY_NAME |= {folded(name): each for name, each in REFERENCES.items()}
"""The same by their names and those of their published files, without case, hyphens and
underscores.
"""


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
    """Return the reference of this name, and the array in it that the text names; empty if it names
    none.

    A name is ``adm:imagenet256`` or, with an array, ``adm:imagenet256:arr_0``. Case, hyphens and
    underscores do not matter. The name of the published file is accepted as well.
    """
    project, _, rest = text.partition(":")
    name, _, key = rest.partition(":")
    reference = _BY_NAME.get(folded(f"{project}:{name}"))
    if reference is None:
        typed = f"{project}:{name}" if rest else project
        raise InputError(
            unknown("reference", typed, suggested_references(typed), "those of `fidtool refs`")
        )
    array = {folded(array): array for array in reference.arrays}.get(folded(key), "")
    if key and not array:
        raise InputError(
            f"{reference.name} has no array {key!r}; it has {', '.join(reference.arrays)}"
        )
    return reference, array
