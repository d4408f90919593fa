"""Decides what a file is, by its first bytes or its suffix, counts ignored files, and expands
patterns of paths.
"""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from fidtool.errors import InputError, option
from fidtool.names import fold, format_count

HEAD = 1024
"""Number of bytes that these functions need."""
AVIF = "AVIF"
HEIF = "HEIF"
JPEG_2000 = "JPEG 2000"
WEBP = "WebP"
_IMAGES = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
    WEBP: rb"RIFF.{4}WEBP",
    JPEG_2000: rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    # The major brand may be one that AVIF and HEIF share; then the compatible brands decide.
    AVIF: rb".{4}ftyp(?:avif|avis|(?:mif1|msf1).{4}(?:.{4}){,11}?(?:avif|avis))",
    HEIF: rb".{4}ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)",
}
ZIP = "a zip archive"
TAR = "a tar archive"
PARQUET = "a Parquet table"
NPY = "a NumPy array (.npy)"
ARROW = "an Arrow table"
_CONTAINERS = {
    ZIP: rb"PK\x03\x04",
    TAR: rb".{257}ustar",
    PARQUET: rb"PAR1",
    NPY: rb"\x93NUMPY",
    ARROW: rb"ARROW1\0\0|\xff{4}..[\0-\x0f]\0\x10\0\0\0",
}
_DOWNLOAD_AGAIN = (
    "download it again, because a server sent this in its place, for example a login page or an "
    "error"
)
JSON = (
    "JSON text: write a list of paths as .txt or .jsonl; if a server sent it as an error, "
    "download the file again"
)
PLAIN = "plain text: download or create the file again, or name it .txt if it is a list of paths"
EMPTY = "empty (0 bytes): copy or download it again"
_GIT_LFS = "a Git LFS pointer, not the file itself: run `git lfs pull` in its repository"
_GIT_ANNEX = "a git-annex pointer, not the file itself: run `git annex get` in its repository"
_TAG = rb"(!doctype html|html|head|body|script|title)"
DAMAGED = {
    EMPTY: rb"\Z",
    _GIT_LFS: rb"version https://(git-lfs|hawser)",
    _GIT_ANNEX: rb"/annex/objects/",
    f"a web page (HTML): {_DOWNLOAD_AGAIN}": rb"(?i)\W*(<!--.*?-->\s*)?<" + _TAG + rb"\b",
    f"a web page or XML in UTF-16: {_DOWNLOAD_AGAIN}": (
        rb"(\xff\xfe)?<\0[!?A-Za-z]\0|(\xfe\xff)?\0<\0[!?A-Za-z]"
    ),
    "text in UTF-16: save it in UTF-8 if it is a list of paths": (
        rb"\xff\xfe[^\0]\0|\xfe\xff\0[^\0]"
    ),
    f"XML text: {_DOWNLOAD_AGAIN}": rb"\W*<(\?xml|svg|Error)\b",
    JSON: rb"(\xef\xbb\xbf)?\s*(\{\s*[\"}]|\[\s*[\[\]{\"\d-])",
}
_WRITE = (
    "write its images to a folder or a Parquet table, or in Python pass fidtool.Images(dataset)"
)
_CIFAR = rb"(data|(fine_|coarse_)?label(s|_names)|batch_label|filenames|num_cases_per_batch)[q\x94]"
_VIDEO = "a video: write its frames to a folder, for example with `ffmpeg -i FILE frames/%06d.png`"
_DATASETS = {
    f"an HDF5 file, which h5py reads: {_WRITE}": rb"(.{512})?\x89HDF\r\n\x1a\n",
    f"a MATLAB file, which scipy.io.loadmat reads: {_WRITE}": rb"MATLAB 5\.0 MAT-file",
    f"an LMDB database, which lmdb reads: {_WRITE}": rb".{16}\xde\xc0\xef\xbe",
    # Its first field is a tf.train.Example.
    f"a TFRecord file, which TensorFlow reads: {_WRITE}": rb".{4}\0{4}.{4}\n",
    f"an IDX file of MNIST, which torchvision reads: {_WRITE}": rb"\0\0\x08[\x01\x03]",
    # A pickled dict, by its first key, in any protocol from 2 on.
    f"a pickled batch of CIFAR, which torchvision reads: {_WRITE}": (
        rb"\x80[\x02-\x05](\x95.{8})?\}(q.|\x94)?\("
        rb"(c_codecs\nencode\nq.)?([UC\x8c].|[TXB].{4})" + _CIFAR
    ),
    _VIDEO: (
        rb"\x1aE\xdf\xa3|RIFF.{4}AVI |FLV\x01|\0\0\x01[\xb3\xba]|0&\xb2u\x8ef\xcf\x11"
        rb"|.{4}(ftyp|moov|mdat)"
    ),
    "a 7z, RAR or Zstandard archive: extract it and pass the folder": (
        rb"7z\xbc\xaf'\x1c|Rar!\x1a|\x28\xb5\x2f\xfd"
    ),
}
# May end within a character.
_UTF_8 = rb"(?:[\t\n\f\r -~]|[\xc2-\xf4][\x80-\xbf]{1,3})+[\xc2-\xf4]?[\x80-\xbf]*\Z"


def _match_head(head: bytes, kinds: Mapping[str, bytes]) -> str:
    """Return the first kind whose pattern these first bytes match; empty if there is none."""
    for kind, pattern in kinds.items():
        if re.match(pattern, head, re.DOTALL):
            return kind
    return ""


def detect_format(head: bytes) -> str:
    """Return the image format of a file by its first `HEAD` bytes; empty if it is none of those
    listed here.

    Pillow's plugins also detect formats, but they depend on how Pillow was built, and some check
    only two letters, with which a text file may begin as well.
    """
    return _match_head(head[:HEAD], _IMAGES)


def first_member(head: bytes) -> bytes:
    """Return the name of the first member of a zip archive with these first bytes; empty if it is
    none.
    """
    if not head.startswith(b"PK\x03\x04"):
        return b""
    # The local header has 30 bytes, of which two state the length of the name (PKWARE's APPNOTE,
    # 4.3.7).
    length = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + length]


def detect_container(head: bytes) -> str:
    """Return `ZIP`, `TAR`, `PARQUET`, `NPY` or `ARROW`; empty for other files."""
    return _match_head(head, _CONTAINERS)


def describe_foreign(head: bytes) -> str:
    """Return what a file is that has neither images nor statistics that fidtool reads, and what to
    do; else empty.
    """
    head = _decompress_head(head)
    if detect_format(head) or detect_container(head):
        return ""
    return _match_head(head, {**DAMAGED, **_DATASETS, PLAIN: _UTF_8})


def _decompress_head(head: bytes) -> bytes:
    """Return the first bytes of what is compressed by gzip, as servers send pages; other bytes as
    they are.
    """
    head = head[:HEAD]
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD) or head
    except zlib.error:
        return head


def refuse_foreign(name: str, head: bytes, but: Container[str] = ()) -> None:
    """Raise an InputError for a file with these first bytes if it is of any foreign kind ``but``
    these, see `describe_foreign`.
    """
    foreign = describe_foreign(head)
    if foreign and foreign not in but:
        kind, _, remedy = foreign.partition(": ")
        if _decompress_head(head) != head[:HEAD]:
            kind += ", compressed by gzip"
        raise InputError(f"{name} is {kind}:", remedy)


# --- suffixes -------------------------------------------------------------------------------------


FILE_KINDS = {
    ".zip": ("archives", ZIP),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), ("archives", TAR)),
    **dict.fromkeys((".npz", ".pt", ".pth"), ("array_files", ZIP)),
    ".safetensors": ("array_files", ""),
    ".parquet": ("tables", PARQUET),
    ".arrow": ("tables", ARROW),
    ".npy": ("array_files", NPY),
}
"""For each suffix of files that contain images, the module in `fidtool.sources` whose function
``list_images`` lists them, and what such a file is by its first bytes, see `detect_container`. The
function takes a `fidtool.sources.image_set.SourceFiles` and returns an `ImageSet`.
"""
UNREPORTED_SUFFIXES = (".pt", ".pth", ".safetensors")
"""Files that usually contain something else, such as a network's weights: in a folder of images not
reported.
"""
TEXT = ".txt"
TABLES = (".csv", ".tsv", ".jsonl")
"""Suffixes of lists of paths in a column, which can be selected as in ``list.csv:NAME``."""
LISTS = (TEXT, *TABLES)
"""Suffixes of lists of paths."""
KNOWN = (*FILE_KINDS, *LISTS)

_SUFFIXES = "png jpg jpeg jfif bmp webp tif tiff pfm ppm pgm gif avif heic heif jp2 j2k jpx"
# Suffixes of file names that count as images, in lower case, whether or not this Pillow can decode
# them.
_IMAGE_SUFFIXES = tuple(f".{name}" for name in _SUFFIXES.split())
HIDDEN = "hidden"
SUBFOLDER = "subfolder"
IS_HIDDEN = re.compile(r"(?:^|/)(?:\.+[^./]|__MACOSX(?:/|\Z))").search
"""Finds a hidden name in a path, separated by slashes; ``.`` and ``..`` are not hidden."""
# What lies beside images by custom, such as captions and labels, or is left out on request.
_EXPECTED_KINDS = {".txt", ".json", ".cls", HIDDEN, SUBFOLDER}
PROJECTS = ("adm", "edm", "edm2", "clean-fid", "fd-loss", "t2ibenchmark")
"""The projects of `fidtool.references.catalogue`; the part of the references' names before the
colon.
"""


def is_reference(path: str) -> bool:
    """Whether a path names a reference, known or unknown: a project, a colon, and no local file has
    this name.
    """
    project, colon, rest = path.partition(":")
    if not colon or rest.startswith("//") or os.path.lexists(path):
        return False
    return fold(project) in map(fold, PROJECTS)


def file_suffix(path: str) -> str:
    """Return the suffix in `KNOWN` with which a path ends, in any case; empty if there is none.

    The query of an HTTP URL is ignored.
    """
    name = path.lower()
    if re.match("https?://", name):
        name = name.partition("?")[0]
    return max(filter(name.endswith, KNOWN), key=len, default="")


def may_have_floats(name: str) -> bool:
    """Whether an image with this name may consist of floats; all others have the same bytes for any
    value range.
    """
    return not is_image_name(name) or name.lower().endswith((".tif", ".tiff", ".pfm"))


def is_image_name(name: str) -> bool:
    return name.lower().endswith(_IMAGE_SUFFIXES)


@dataclass(frozen=True)
class IgnoredFiles:
    """The files in a source that are ignored, with the numbers of each suffix, hidden names and
    subfolders.
    """

    kinds: Counter[str] = field(default_factory=Counter)

    def accept(self, path: str, key: str = "") -> bool:
        """Whether a path, separated by slashes, is that of an image; if not, counts it as ignored.

        ``key`` is what must follow the first dot of the name; empty accepts any name.
        """
        name = path.rpartition("/")[2]
        if IS_HIDDEN(path):
            self.kinds[HIDDEN] += 1
        elif not is_image_name(name):
            self.kinds[os.path.splitext(name)[1].lower() or "no suffix"] += 1
        elif key and name.partition(".")[2] != key:
            self.kinds[f"not {key}"] += 1
        else:
            return True
        return False

    def to_dict(self) -> dict[str, Any]:
        return {"other": self.other, "kinds": dict(self.kinds)}

    @property
    def other(self) -> int:
        """Number of ignored files; a hidden folder counts as one."""
        return self.kinds.total() - self.kinds[SUBFOLDER]

    @property
    def words(self) -> str:
        """A summary such as ``3 files (.txt), 1 hidden``, the most frequent kind first; empty if
        there are none.
        """
        # By name as well, so that it does not depend on the order of the listing.
        kinds = sorted(self.kinds, key=lambda kind: (-self.kinds[kind], kind))
        suffixes = [kind for kind in kinds if kind not in (SUBFOLDER, HIDDEN)]
        parts = [
            f"{format_count(self.kinds[suffix], 'file')} ({suffix})" for suffix in suffixes[:4]
        ]
        others = sum(self.kinds[suffix] for suffix in suffixes[4:])
        if others:
            parts.append(format_count(others, "other"))
        if self.kinds[SUBFOLDER]:
            parts.append(format_count(self.kinds[SUBFOLDER], SUBFOLDER))
        if self.kinds[HIDDEN]:
            parts.append(f"{self.kinds[HIDDEN]} {HIDDEN}")
        return ", ".join(parts)

    @property
    def note(self) -> str:
        """What to tell the user; empty if only files were ignored that usually lie beside
        images.
        """
        if self.kinds.keys() <= _EXPECTED_KINDS:
            return ""
        return (
            f"ignored {self.words}: if some of them are images, rename them or pass their paths "
            "as a list"
        )

    def no_images_error(self, path: str, kind: str, recursive: bool = True) -> InputError:
        if not self.kinds:
            return InputError(f"no images in {path}: the {kind} is empty")
        hint = (
            "to read an archive, an array or a table, pass its own path or URL, which must end "
            "in its suffix"
        )
        if self.kinds[SUBFOLDER] and not recursive:
            hint = f"omit {option('recursive', False)} to include subfolders"
        return InputError(
            f"no images in {path}: it contains {self.words}; image files have one of the suffixes "
            f"{_SUFFIXES}; {hint}"
        )


# --- patterns -------------------------------------------------------------------------------------


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
URL_WILDCARD = re.compile(r"[*\[]")
"""``?`` is no wildcard in URLs, where it starts a query."""
_MAX_FILES = 1_000_000


def is_pattern(path: str) -> bool:
    """Whether a path contains braces or wildcards. A local path that exists is not a pattern."""
    if "://" in path:
        return bool(_BRACES.search(path) or URL_WILDCARD.search(path))
    return bool(_BRACES.search(path) or glob.has_magic(path)) and not os.path.lexists(path)


def expand(path: str) -> list[str]:
    """Return the files that match a pattern, in the order of its braces; the matches of a wildcard
    are sorted.
    """
    files: list[str] = []
    for name in expand_braces(path):
        matches = sorted(glob.glob(name))
        if not matches:
            origin = "" if name == path else f" (from {path})"
            raise InputError(f"no such file: {name}{origin}")
        files += matches
    if len(set(files)) < len(files):
        raise InputError(f"{path} matches a file twice")
    for file in files:
        if os.path.isdir(file):
            raise InputError(
                f"{path} matches a folder, {file}, but patterns are for files:",
                "pass one folder",
                "omit the quotes, so that the shell passes each folder as a set",
            )
    return files


def expand_braces(path: str) -> list[str]:
    """Expand braces as a shell does: ``a{00..02}`` to ``a00``, ``a01``, ``a02``, and ``a{b,c}`` to
    ``ab``, ``ac``.
    """
    texts = _BRACES.split(path)  # every other one was in braces
    choices = [[text] for text in texts]
    choices[1::2] = [_expand_brace(text, path) for text in texts[1::2]]
    if math.prod(map(len, choices)) > _MAX_FILES:
        raise InputError(f"{path} matches more than {_MAX_FILES} files")
    return list(map("".join, itertools.product(*choices)))


def _expand_brace(inside: str, path: str) -> list[str]:
    span = _RANGE.fullmatch(inside)
    if span is None:
        return inside.split(",")
    first = int(span[1])
    last = int(span[2])
    if not 0 <= last - first < _MAX_FILES:
        raise InputError(
            f"{{{inside}}} in {path} is an empty range or has more than {_MAX_FILES} numbers"
        )
    return [str(number).zfill(len(span[1])) for number in range(first, last + 1)]
