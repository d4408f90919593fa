"""Decides which files count as images, and counts the files in a source that are ignored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from os.path import splitext

from fidtool.errors import option
from fidtool.names import counted


@dataclass(frozen=True)
class FileKind:
    """A kind of file that contains images.

    Attributes:
        lister: the function that lists the images of such files, as ``module:function`` in `fidtool.sources`. It takes
            a `fidtool.sources.image_set.NamedFiles` and returns an `ImageSet`.
        suffixes: file name suffixes, in lower case.
        description: display name, with article.
        magic: bytes at ``magic_offset`` that identify such a file; empty if there are none.
        magic_offset: position of ``magic`` in the file.
        keyed: whether a name after a colon selects a part of the file, as in ``samples.npz:images``.
        numbered: whether the images in such a file have numbers instead of names.
        sharded: whether large sets are usually split into several such files.
        often_other: whether such files usually contain something else, such as a network's weights. One of them in a
            folder of images is not reported.
    """

    lister: str
    suffixes: tuple[str, ...]
    description: str = ""
    magic: bytes = b""
    magic_offset: int = 0
    keyed: bool = False
    numbered: bool = False
    sharded: bool = False
    often_other: bool = False

    def begins(self, head: bytes) -> bool:
        """Whether a file with these first bytes is of this kind."""
        return bool(self.magic) and head.startswith(self.magic, self.magic_offset)


_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
FILE_KINDS = (
    FileKind("archives:list_zips", (".zip",), "a zip archive", b"PK\3\4", keyed=True),
    FileKind("tars:list_tars", _TAR_SUFFIXES, "a tar archive", b"ustar", 257, keyed=True, sharded=True),
    FileKind("numpy_files:list_npz", (".npz",), "a zip archive of arrays", b"PK\3\4", keyed=True, numbered=True),
    FileKind(
        "tensors:list_torch",
        (".pt", ".pth"),
        "a torch.save file",
        b"PK\3\4",
        keyed=True,
        numbered=True,
        often_other=True,
    ),
    FileKind(
        "tensors:list_safetensors", (".safetensors",), "a safetensors file", keyed=True, numbered=True, often_other=True
    ),
    FileKind(
        "parquet:list_parquet", (".parquet",), "a Parquet table", b"PAR1", keyed=True, numbered=True, sharded=True
    ),
    FileKind("numpy_files:list_npy", (".npy",), "a NumPy array (.npy)", b"\x93NUMPY", numbered=True),
)
"""All kinds. To add one, write a module with a lister and add a line here. If several kinds have the same magic bytes,
messages use the description of the first."""
ARCHIVE_SUFFIXES = tuple(suffix for kind in FILE_KINDS if not kind.often_other for suffix in kind.suffixes)
"""Suffixes of files that usually contain images."""

_SUFFIXES = "png jpg jpeg jfif bmp webp tif tiff ppm pgm gif avif heic heif jp2 j2k jpx"
IMAGE_SUFFIXES = frozenset(f".{name}" for name in _SUFFIXES.split())
"""Suffixes of file names that count as images, in lower case, regardless of whether this Pillow can decode them."""
_IGNORED = frozenset({"__MACOSX"})
_HIDDEN, _FOLDER = "hidden", "subfolder"
_FEW, _MOST = 64, 256
"""Number of files per suffix to open, and the number once one of them was an image. A limit is needed because a folder
may contain a million text files in addition to its images."""
_MOST_KINDS = 64
"""Number of suffixes with separate counts of opened files; all others share one count."""
_RARE = "other kinds"


@dataclass(frozen=True)
class PassedOver:
    """The files in a source that are ignored.

    Attributes:
        images: number of files that are images by their first bytes, but whose suffix is not that of an image.
        other: number of all other ignored files; a hidden folder counts as one.
        example: path of one of the ``images``; empty if there is none.
        unseen: number of files that were not opened, because there were too many or they are in a remote store. They
            are included in ``other``, and some may be images.
        words: a summary such as ``3 files (.txt), 1 hidden``; empty if no files were ignored.
        formats: formats of the ``images``, by the names that `fidtool.sources.census.format_of` returns.
    """

    images: int = 0
    other: int = 0
    example: str = ""
    unseen: int = 0
    words: str = ""
    formats: frozenset[str] = frozenset()

    @property
    def at_least(self) -> bool:
        """Whether there may be more images than ``images``."""
        return self.unseen > 0

    def to_dict(self) -> dict[str, int | bool]:
        """Returns the counts for the JSON result."""
        return {"images": self.images, "other": self.other, "at_least": self.at_least}


NOTHING = PassedOver()


class Census:
    """Counts the files that are ignored.

    Args:
        looks: read the first bytes of files without an image suffix, to find images among them.

    Attributes:
        passed_over: number of ignored files by suffix, of subfolders, and of hidden files and folders.
    """

    def __init__(self, looks: bool = True) -> None:
        self.passed_over: Counter[str] = Counter()
        self._looks = looks
        self._looked: Counter[str] = Counter()
        self._fruitful: set[str] = set()
        self._unseen = 0
        self._images: list[str] = []
        self._formats: set[str] = set()

    def hides(self, name: str) -> bool:
        """Whether the name of a file or folder (without its path) is hidden; if so, counts it."""
        hidden = name.startswith(".") or name in _IGNORED
        self.passed_over[_HIDDEN] += hidden
        return hidden

    def folder(self) -> None:
        """Counts a subfolder."""
        self.passed_over[_FOLDER] += 1

    def is_image(self, name: str, file: str, head: Callable[[], bytes]) -> bool:
        """Whether a file has an image suffix; if not, counts it as ignored.

        Args:
            name: the file's name, without its path.
            file: its path, for messages.
            head: returns its first bytes; empty if they cannot be read.
        """
        suffix = splitext(name)[1].lower()
        if suffix in IMAGE_SUFFIXES:
            return True
        kind = suffix or "no suffix"
        self.other(kind)
        self._look(kind, file, head)
        return False

    def _look(self, kind: str, file: str, head: Callable[[], bytes]) -> None:
        if kind not in self._looked and len(self._looked) >= _MOST_KINDS:
            kind = _RARE
        if not self._looks or self._looked[kind] >= (_MOST if kind in self._fruitful else _FEW):
            self._unseen += 1
            return
        self._looked[kind] += 1
        if found := format_of(head()):
            self._images.append(file)
            self._fruitful.add(kind)
            self._formats.add(found)

    def other(self, kind: str) -> None:
        """Counts an ignored file of this kind."""
        self.passed_over[kind] += 1

    def takes(self, path: str, file: str, head: Callable[[], bytes], key: str = "") -> bool:
        """Whether a path inside an archive is that of an image; if not, counts it as ignored.

        Args:
            path: the path, separated by slashes.
            file: see `is_image`.
            head: see `is_image`.
            key: what must follow the first dot of the name; empty accepts any name.
        """
        *folders, name = path.split("/")
        if any((folder.startswith(".") and folder.strip(".")) or folder in _IGNORED for folder in folders):
            self.other(_HIDDEN)
            return False
        if self.hides(name) or not self.is_image(name, file, head):
            return False
        if key and name.partition(".")[2] != key:
            self.other(f"not {key}")
            return False
        return True

    def found(self, folders: bool = False) -> PassedOver:
        """Returns the ignored files.

        Args:
            folders: whether subfolders were ignored.
        """
        images = len(self._images)
        files = self.passed_over.total() - self._folders
        example, words = min(self._images, default=""), self._summary(folders=folders)
        return PassedOver(images, files - images, example, self._unseen, words, frozenset(self._formats))

    def nothing_found(self, path: str, kind: str, recursive: bool = True) -> str:
        """Returns the error message for a source without images.

        Args:
            path: the source as passed by the caller.
            kind: its kind; ``location`` is a URL that names no file.
            recursive: whether subfolders were searched.
        """
        summary = self._summary(folders=True)
        if not summary:
            return f"no images in {path}: the {kind} is empty"
        hint = ""
        if self._folders and not recursive:
            hint = f"; omit {option('recursive', False)} to include subfolders"
        if archive := self._archive():
            if kind == "folder":
                hint += f"; to read archives, name them, as in '{path.rstrip('/')}/*{archive}'"
            elif kind != "location":
                hint += f"; archives inside an archive are not read: extract them and pass '*{archive}'"
        if self._images:
            hint += f"; {min(self._images)} is an image by its first bytes: rename such files to an image suffix"
        if kind == "location":
            hint += "; to read an archive or array, use a URL that ends in its suffix"
        return f"no images in {path}: it contains {summary}; image files are those named {_SUFFIXES}{hint}"

    def _archive(self) -> str:
        """Returns the suffix of the most frequent kind of archive among the ignored files; empty if there is none."""
        return next((kind for kind, _ in self.passed_over.most_common() if kind in ARCHIVE_SUFFIXES), "")

    def beside(self, path: str) -> str:
        """Returns a warning if a folder of images also contains archives; else an empty string."""
        if not (archive := self._archive()):
            return ""
        count = self.passed_over[archive]
        return f"{path} contains {count} {archive} {'file, which is' if count == 1 else 'files, which are'} not read"

    @property
    def _folders(self) -> int:
        return self.passed_over[_FOLDER]

    def _summary(self, folders: bool = False) -> str:
        """Returns a summary such as ``3 files (.txt), 1 hidden``, with the most frequent kind first.

        Args:
            folders: whether subfolders were ignored.
        """
        counts = Counter({kind: count for kind, count in self.passed_over.items() if count})
        below, hidden = counts.pop(_FOLDER, 0), counts.pop(_HIDDEN, 0)
        kinds = sorted(counts.items(), key=lambda each: (-each[1], each[0]))  # independent of the listing order
        named = [f"{counted(count, 'file')} ({suffix})" for suffix, count in kinds[:4]]
        if more := sum(count for _, count in kinds[4:]):
            named.append(f"{more} other{'s' if more > 1 else ''}")
        if below and folders:
            named.append(f"{below} {_FOLDER}{'s' if below > 1 else ''}")
        if hidden:
            named.append(f"{hidden} {_HIDDEN}")
        if self._unseen:
            named.append(f"{self._unseen} of them not opened")
        return ", ".join(named)


HEAD = 64
"""Number of bytes that `format_of` needs."""
AVIF, HEIF, JPEG_2000, WEBP = "AVIF", "HEIF", "JPEG 2000", "WebP"
WITHOUT_SUFFIX = frozenset({"JPEG XL", "QOI", "PSD"})
"""Formats that no suffix in `IMAGE_SUFFIXES` denotes."""

_BMP_HEADERS = rb"[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0"
"""Sizes of the DIB header, which follows the file header."""
_PPM_SPACE = rb"\s+(?:#[^\n]*\n\s*)*"
"""Whitespace between the numbers of a PPM header, which may include comments."""
_PPM_SIZES = _PPM_SPACE + rb"\d+" + _PPM_SPACE + rb"\d+"
_SIGNATURES = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
    "BMP": rb"BM.{4}.{4}.{4}" + _BMP_HEADERS,
    WEBP: rb"RIFF.{4}WEBP",
    # A text file may also begin with P2, so the numbers are checked: width, height and, except for bitmaps (P1, P4),
    # the largest value.
    "PPM": rb"P1" + _PPM_SIZES + rb"\s+[01]|P4" + _PPM_SIZES + rb"\s|P[2356]" + _PPM_SIZES + _PPM_SPACE + rb"\d+\s",
    JPEG_2000: rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": rb"\0\0\0\x0cJXL \r\n\x87\n",  # a bare codestream is excluded: its signature has only two bytes
    "QOI": rb"qoif",
    "PSD": rb"8BPS\0\x01",
    # The major brand may be one that AVIF and HEIF share; then the compatible brands decide.
    AVIF: rb".{4}ftyp(?:avif|avis|(?:mif1|msf1).{4}(?:.{4})*?(?:avif|avis))",
    HEIF: rb".{4}ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)",
}
_PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _SIGNATURES.items()}


def format_of(head: bytes) -> str:
    """Returns the image format of a file by its first `HEAD` bytes; empty if it is none of those listed here.

    Pillow's plugins also detect formats, but they depend on how Pillow was built, and some check only two letters,
    with which a text file may begin as well.
    """
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(head[:HEAD])), "")
