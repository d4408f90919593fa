"""Which files count as images, by their names and first bytes, and what else a source holds. Imports no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from os.path import splitext

from fidtool.errors import option


@dataclass(frozen=True)
class FileKind:
    """A kind of file that holds images, and is listed by a module of its own.

    Attributes:
        lister: the function that lists such files, as ``module:function`` in `fidtool.sources`. It takes a
            `fidtool.sources.image_set.NamedFiles` and returns an `ImageSet`.
        suffixes: of their names, in lower case.
        words: what such a file is, for people.
        magic: the bytes that such files have at ``magic_offset``; empty if nothing tells them.
        magic_offset: see ``magic``.
        keyed: a name after a colon selects a part of the file, as in ``samples.npz:images``.
        numbered: images in such a file have numbers instead of names.
        sharded: large sets are usually split into several of them.
        often_other: files with these suffixes are more often something else, such as a network's weights: one beside
            images is no surprise.
    """

    lister: str
    suffixes: tuple[str, ...]
    words: str = ""
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
        "a file of torch.save",
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
    FileKind("numpy_files:list_npy", (".npy",), "one array, as .npy files are", b"\x93NUMPY", numbered=True),
)
"""All kinds. A new one is a module with a lister, and a line here; of several with one magic, the first one's words
are used."""
ARCHIVE_SUFFIXES = tuple(suffix for kind in FILE_KINDS if not kind.often_other for suffix in kind.suffixes)
"""Of files that are surely meant to hold images."""

_SUFFIXES = "png jpg jpeg jfif bmp webp tif tiff ppm pgm gif avif heic heif jp2 j2k jpx"
IMAGE_SUFFIXES = frozenset(f".{name}" for name in _SUFFIXES.split())
"""File names that count as images, compared without case; whether this Pillow can decode them or not."""
_IGNORED = frozenset({"__MACOSX"})
_HIDDEN, _FOLDER = "hidden", "subfolder"
_FEW, _MOST = 64, 256
"""Number of files per suffix to open, and the number once one of them was an image: a million text files may lie
beside a million images."""
_MOST_KINDS = 64
"""Number of suffixes that are counted separately; all others share one count."""
_RARE = "other kinds"


@dataclass(frozen=True)
class PassedOver:
    """What a source holds beside the images that count.

    Attributes:
        images: number of files that are images by their first bytes, but not by their names.
        other: number of all other files; hidden folders are one each.
        example: path of one of the ``images``; empty if there is none.
        unseen: number of files whose first bytes were not looked at, of many or in a remote store: they are among the
            ``other`` ones, and some may be images.
        words: all of it for people: ``3 files (.txt), 1 hidden``; empty if there is nothing.
        formats: those that the ``images`` are in, as `fidtool.sources.census.format_of` names them.
    """

    images: int = 0
    other: int = 0
    example: str = ""
    unseen: int = 0
    words: str = ""
    formats: frozenset[str] = frozenset()

    @property
    def at_least(self) -> bool:
        """Whether there may be more than ``images``."""
        return self.unseen > 0

    def to_dict(self) -> dict[str, int | bool]:
        """As JSON has it."""
        return {"images": self.images, "other": self.other, "at_least": self.at_least}


NOTHING = PassedOver()


class Census:
    """Counts what is passed over.

    Args:
        looks: read the first bytes of files that no suffix makes images.

    Attributes:
        passed_over: how many there were, by suffix, of subfolders and of hidden names.
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
        """Whether a file's or folder's own name is hidden; counts it if so."""
        hidden = name.startswith(".") or name in _IGNORED
        self.passed_over[_HIDDEN] += hidden
        return hidden

    def folder(self) -> None:
        """Counts a subfolder."""
        self.passed_over[_FOLDER] += 1

    def is_image(self, name: str, file: str, head: Callable[[], bytes]) -> bool:
        """Whether a file's name is an image's; counts it if not.

        Args:
            name: its own.
            file: its path, for people.
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
        """Counts something else."""
        self.passed_over[kind] += 1

    def takes(self, path: str, file: str, head: Callable[[], bytes], key: str = "") -> bool:
        """Whether a path inside an archive is an image's; counts it if not.

        Args:
            path: with slashes.
            file, head: see `is_image`.
            key: what its name must have after the first dot; empty if that does not matter.
        """
        *folders, name = path.split("/")
        if any((folder.startswith(".") and folder.strip(".")) or folder in _IGNORED for folder in folders):
            self.other(_HIDDEN)
            return False
        if self.hides(name) or not self.is_image(name, file, head):
            return False
        if key and name.partition(".")[2] != key:
            self.other(f"other than {key}")
            return False
        return True

    def found(self, folders: bool = False) -> PassedOver:
        """What was passed over.

        Args:
            folders: see `words`.
        """
        images = len(self._images)
        files = self.passed_over.total() - self._folders
        example, words = min(self._images, default=""), self.words(folders=folders)
        return PassedOver(images, files - images, example, self._unseen, words, frozenset(self._formats))

    def nothing_found(self, path: str, kind: str, recursive: bool = True) -> str:
        """What to say where there are no images."""
        words = self.words(folders=True)
        if not words:
            return f"no images in {path}: the {kind} is empty"
        hint = ""
        if self._folders and not recursive:
            hint = f"; drop {option('recursive', False)} to look into the subfolders"
        if archive := self.archive():
            if kind == "folder":
                hint += f"; archives are read when they are named, as in '{path.rstrip('/')}/*{archive}'"
            elif kind != "place":
                hint += f"; archives in an archive are not read: name them, as in '*{archive}'"
        if self._images:
            hint += f"; {min(self._images)} is one by its first bytes: give such files an image's suffix"
        if kind == "place":
            hint += "; of an archive or array, the URL must have the suffix"
        return f"no images in {path}: it holds {words}; images are files named {_SUFFIXES}{hint}"

    def archive(self) -> str:
        """The suffix of the most frequent kind of archive that was passed over; empty if there is none."""
        return next((kind for kind, _ in self.passed_over.most_common() if kind in ARCHIVE_SUFFIXES), "")

    def beside(self, path: str) -> str:
        """What to say of a folder of images in which there are archives, too; empty where there are none."""
        if not (archive := self.archive()):
            return ""
        count = self.passed_over[archive]
        which = "file beside its images, which is" if count == 1 else "files beside its images, which are"
        return f"{path} holds {count} {archive} {which} not read"

    @property
    def _folders(self) -> int:
        return self.passed_over[_FOLDER]

    def words(self, folders: bool = False) -> str:
        """What was passed over, the most frequent first: ``3 files (.txt), 1 hidden``; and how much was not looked at.

        Args:
            folders: whether subfolders were passed over.
        """
        counts = Counter({kind: count for kind, count in self.passed_over.items() if count})
        below, hidden = counts.pop(_FOLDER, 0), counts.pop(_HIDDEN, 0)
        kinds = sorted(counts.items(), key=lambda each: (-each[1], each[0]))  # whatever order the system lists them in
        named = [f"{count} {'file' if count == 1 else 'files'} ({suffix})" for suffix, count in kinds[:4]]
        if more := sum(count for _, count in kinds[4:]):
            named.append(f"{more} other{'s' if more > 1 else ''}")
        if below and folders:
            named.append(f"{below} {_FOLDER}{'s' if below > 1 else ''}")
        if hidden:
            named.append(f"{hidden} {_HIDDEN}")
        if self._unseen:
            named.append(f"{self._unseen} of them not looked at")
        return ", ".join(named)


HEAD = 64
"""Number of first bytes that `format_of` needs."""
AVIF, HEIF, JPEG_2000, WEBP = "AVIF", "HEIF", "JPEG 2000", "WebP"
WITHOUT_SUFFIX = frozenset({"JPEG XL", "QOI", "PSD"})
"""No suffix that makes a file an image means these."""

_BMP_HEADERS = rb"[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0"
"""Sizes of the header that follows the file's own."""
_PPM_SPACE = rb"\s+(?:#[^\n]*\n\s*)*"
"""Between the numbers of a PPM's header there may be comments."""
_PPM_SIZES = _PPM_SPACE + rb"\d+" + _PPM_SPACE + rb"\d+"
_SIGNATURES = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
    "BMP": rb"BM.{4}.{4}.{4}" + _BMP_HEADERS,
    WEBP: rb"RIFF.{4}WEBP",
    # A caption, too, may begin with P2: only two colours leave out the largest value, which is the third number.
    "PPM": rb"P1" + _PPM_SIZES + rb"\s+[01]|P4" + _PPM_SIZES + rb"\s|P[2356]" + _PPM_SIZES + _PPM_SPACE + rb"\d+\s",
    JPEG_2000: rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": rb"\0\0\0\x0cJXL \r\n\x87\n",  # a bare codestream has two bytes, as other files may
    "QOI": rb"qoif",
    "PSD": rb"8BPS\0\x01",
    # A container's first brand may be one that both have; then the others tell.
    AVIF: rb".{4}ftyp(?:avif|avis|(?:mif1|msf1).{4}(?:.{4})*?(?:avif|avis))",
    HEIF: rb".{4}ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)",
}
_PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in _SIGNATURES.items()}


def format_of(head: bytes) -> str:
    """The image format that a file with these first bytes, `HEAD` of them, is in; empty if it is none of these.

    Pillow's plugins detect formats as well, but which plugins there are depends on how Pillow was built, and some
    only look at two letters with which a text file may begin.
    """
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(head[:HEAD])), "")
