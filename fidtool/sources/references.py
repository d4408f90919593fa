"""The statistics that papers compare with: which projects publish which, of what, and their files in the cache.

Their names and facts are read from the projects' code and documentation, which ``source`` names.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from fidtool.cache_dir import atomic_write, cache_dir
from fidtool.download import DownloadError, RemoteFile, megabytes
from fidtool.errors import InputError, RunError
from fidtool.names import closest, folded, unknown
from fidtool.sources.kinds import is_reference

MIRROR = "FIDTOOL_REFERENCES_URL"
"""Environment variable with the address of a mirror, to which host and path of a reference's address are appended."""
_WHOLE_BYTES = 64 << 20
"""Size up to which a file is downloaded as a whole, even if only some of its arrays are needed."""
_BLOCK_BYTES = 1 << 20
_UNREADABLE = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError)
"""What ``zipfile`` raises for a file that is no archive, is damaged, or is packed in an unknown way."""
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
"""Entries of FD-Loss's pickle and the layers of the features of their networks; empty for Inception."""
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
"""Data set, file, size, number of real images, framing, classes, and on whose images the networks were trained if it
matters."""
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
            note="precision and recall are between its 10,000 images (arr_0) and the generated ones",
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
            features_url=f"{_CLEAN_FID}/{name}_{mode}_{split}_{size}_kid.npz" if published == FEATURES else "",
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
        note="pytorch-fid's network on a central square, resized by Pillow's bicubic filter to 299 x 299 in 8 bits: no "
        "protocol of fidtool equals this",
    ),
)
REFERENCES = {reference.name: reference for reference in _ALL}
"""All references by name."""
_BY_NAME = {folded(f"{each.project}:{Path(each.url).stem}"): each for each in _ALL}
_BY_NAME |= {folded(name): each for name, each in REFERENCES.items()}
"""The same by their names and those of their published files, without case, hyphens and underscores."""


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
    reference = _BY_NAME.get(folded(f"{project}:{name}"))
    if reference is None:
        typed = f"{project}:{name}" if rest else project
        raise InputError(unknown("reference", typed, suggested_references(typed), "those of `fidtool refs`"))
    array = {folded(array): array for array in reference.arrays}.get(folded(key), "")
    if key and not array:
        raise InputError(f"{reference.name} has no array {key!r}; it has {', '.join(reference.arrays)}")
    return reference, array


# --- files -----------------------------------------------------------------------------------------------------------

Say = Callable[[str], None]


@dataclass(frozen=True)
class PublishedFile:
    """A file of the reference of this ``name``, an ``.npz`` or a pickle, and its copy in the cache.

    ``pickle`` is a pickle's published name, which also stands for its only array; empty for an ``.npz``. ``arrays`` are
    those in the cache; none if the file is missing or not readable.
    """

    name: str
    url: str
    path: Path

    @property
    def pickle(self) -> str:
        return Path(self.url).name if self.url.endswith(".pkl") else ""

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        try:
            if self.pickle:
                return (self.pickle,) if self.path.exists() else ()
            with zipfile.ZipFile(self.path) as archive:
                return tuple(map(_array, archive.infolist()))
        except (OSError, *_UNREADABLE):
            return ()

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def __str__(self) -> str:
        """Return what is in the cache: ``mu, sigma (33.6 MB)``."""
        return f"{', '.join(self.arrays)} ({megabytes(self.size)})"


def _array(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def folder() -> Path:
    """Return the folder of the downloaded files. It may not exist yet."""
    return cache_dir() / "references"


def published_files(reference: Reference) -> list[PublishedFile]:
    """Return the file of a reference, and the one with its features if there is one."""
    name = reference.name.replace(":", "-")
    files = [PublishedFile(reference.name, reference.url, folder() / f"{name}{Path(reference.url).suffix}")]
    if reference.features_url:
        files.append(PublishedFile(reference.name, reference.features_url, folder() / f"{name}-kid.npz"))
    return files


def fetch(reference: Reference, arrays: Collection[str], say: Say) -> tuple[Path, dict[str, str]]:
    """Return a file with these arrays of a reference, which is downloaded if the cache has none, and their SHA-256s.

    Empty ``arrays`` mean all statistics. An SHA-256 is of the array's ``.npy`` data; for a pickle, it is of the whole
    file, by the file's name.
    """
    wanted = frozenset(arrays or reference.statistics)
    with_features = FEATURES in wanted
    if with_features and (len(wanted) > 1 or not reference.features_url):
        raise InputError(f"{reference.name} has no file with {', '.join(sorted(wanted))}")
    file = published_files(reference)[with_features]
    if file.pickle:
        wanted = frozenset({file.pickle})
    held = wanted.union(reference.arrays).intersection(file.arrays)
    if wanted <= held:
        try:
            with open(file.path, "rb") as handle:
                sha256 = _hashes(file, handle, wanted)
        except (OSError, *_UNREADABLE) as error:
            raise InputError(f"{file.path} cannot be read ({error}):", "delete it to download it again") from None
    else:
        sha256 = _download(file, wanted | held, say)
    return file.path, {array: sha256[array] for array in sorted(wanted)}


def _hashes(file: PublishedFile, handle: IO[bytes], wanted: Collection[str]) -> dict[str, str]:
    """Return the SHA-256 of each wanted array in an open file."""
    handle.seek(0)
    if file.pickle:
        if handle.read(1) != b"\x80":
            raise ValueError("it is not a pickle")
        handle.seek(0)
        return {file.pickle: _sha256(handle)}
    with zipfile.ZipFile(handle) as archive:
        hashes = {}
        for info in _members(file, archive, wanted):
            with archive.open(info) as member:
                hashes[_array(info)] = _sha256(member)
    return hashes


def _sha256(handle: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := handle.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _members(file: PublishedFile, archive: zipfile.ZipFile, wanted: Collection[str]) -> list[zipfile.ZipInfo]:
    """Return the members of an ``.npz`` that are the wanted arrays, in the order in which they are stored."""
    members = {_array(info): info for info in archive.infolist()}
    if missing := sorted(set(wanted) - members.keys()):
        named = f"the file of {file.name} has no array {', '.join(missing)}"
        raise InputError(f"{named}; it has {', '.join(members)} ({mirrored(file.url)})")
    return sorted((members[array] for array in wanted), key=lambda info: info.header_offset)


# --- downloads -------------------------------------------------------------------------------------------------------


def mirrored(url: str) -> str:
    """Return the address from which a file is downloaded: at the mirror, if there is one."""
    mirror = os.environ.get(MIRROR)
    if mirror and "://" not in mirror:
        raise InputError(f"{MIRROR} must be a URL such as https://mirror or file:///folder, not {mirror!r}")
    return f"{mirror.rstrip('/')}/{url.partition('://')[2]}" if mirror else url


def _download(file: PublishedFile, wanted: Collection[str], say: Say) -> dict[str, str]:
    """Put the wanted arrays into the cache and return their SHA-256s."""
    url = mirrored(file.url)
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file.path) as target:
            _copy(file, url, target, wanted, say)
            return _hashes(file, target, wanted)
    except InputError:  # a ValueError
        raise
    except DownloadError as error:
        raise RunError(
            f"{file.name} could not be downloaded from {url} ({error}):",
            f"download {file.url} by hand and pass that file instead of {file.name}",
            f"put it at {file.path}",
            f"set https_proxy, or {MIRROR} to a mirror",
        ) from None
    except _UNREADABLE as error:
        kind = "pickle" if file.pickle else ".npz file"
        raise RunError(
            f"{file.name}: the download from {url} is not a readable {kind} ({error}):",
            "check what the network or the mirror returns for this address",
        ) from None
    except OSError as error:
        raise RunError(
            f"{file.name} cannot be stored in {file.path.parent}: {error.strerror or error}", "set FIDTOOL_CACHE"
        ) from None


def _copy(file: PublishedFile, url: str, target: IO[bytes], wanted: Collection[str], say: Say) -> None:
    """Write the file, or an ``.npz`` with its wanted arrays."""
    remote = RemoteFile(url)
    size = remote.size or 0
    is_large = size > _WHOLE_BYTES and not file.pickle
    if not is_large or not remote.seekable():
        shown = megabytes(size) if size else "unknown size"
        partless = ", all of it because the server returns no parts of files" if is_large else ""
        say(f"downloading {file.name} from {url} ({shown}{partless})")
        _copy_blocks(remote, target, file.name, remote.size, say)
        return
    with zipfile.ZipFile(remote) as archive, zipfile.ZipFile(target, "w") as kept:
        members = _members(file, archive, wanted)
        starts = sorted([*(info.header_offset for info in archive.infolist()), archive.start_dir])
        names = ", ".join(map(_array, members))
        shown = f"{megabytes(sum(info.compress_size for info in members))} of {megabytes(size)}"
        say(f"downloading {names} of {file.name} from {url} ({shown})")
        for info in members:
            remote.stop = starts[bisect_right(starts, info.header_offset)]
            with archive.open(info) as member, kept.open(zipfile.ZipInfo(info.filename), "w", force_zip64=True) as out:
                _copy_blocks(member, out, f"{_array(info)} of {file.name}", info.file_size, say)


def _copy_blocks(source: Any, target: IO[bytes], name: str, size: int | None, say: Say) -> None:
    """Copy all that is left of ``source``, and say every ten seconds how much has arrived."""
    total = "" if size is None else f" of {megabytes(size)}"
    done, reported = 0, time.monotonic()
    while block := source.read(_BLOCK_BYTES):
        target.write(block)
        done += len(block)
        if time.monotonic() - reported >= 10.0:
            reported = time.monotonic()
            say(f"{name}: {megabytes(done)}{total}")
