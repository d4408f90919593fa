"""Decides which files count as images, and counts the ignored files of a source by suffix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from os.path import splitext

from fidtool.errors import option
from fidtool.names import counted
from fidtool.sources.signatures import NPY, PARQUET, TAR, ZIP


@dataclass(frozen=True)
class FileKind:
    """A kind of file that contains images.

    Attributes:
        lister: the function that lists the images of such files, as ``module:function`` in `fidtool.sources`. It takes
            a `fidtool.sources.image_set.NamedFiles` and returns an `ImageSet`.
        content: what such a file is by its first bytes, see `fidtool.sources.signatures.container_of`.
        keyed: whether a name after a colon selects a part of the file, as in ``samples.npz:images``.
        numbered: whether the images in such a file have numbers instead of names.
        often_other: whether such files usually contain something else, such as a network's weights. One of them in a
            folder of images is not reported.
    """

    lister: str
    suffixes: tuple[str, ...]
    content: str = ""
    keyed: bool = False
    numbered: bool = False
    often_other: bool = False


_SAFETENSORS = "a safetensors file"
_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
FILE_KINDS = (
    FileKind("archives:list_zips", (".zip",), ZIP, keyed=True),
    FileKind("archives:list_tars", _TAR_SUFFIXES, TAR, keyed=True),
    FileKind("array_files:list_npz", (".npz",), ZIP, keyed=True, numbered=True),
    FileKind("array_files:list_torch", (".pt", ".pth"), ZIP, keyed=True, numbered=True, often_other=True),
    FileKind(
        "array_files:list_safetensors", (".safetensors",), _SAFETENSORS, keyed=True, numbered=True, often_other=True
    ),
    FileKind("parquet:list_parquet", (".parquet",), PARQUET, keyed=True, numbered=True),
    FileKind("array_files:list_npy", (".npy",), NPY, numbered=True),
)
"""All kinds. To add one, write a module with a lister and add a line here."""
ARCHIVE_SUFFIXES = tuple(suffix for kind in FILE_KINDS if not kind.often_other for suffix in kind.suffixes)
"""Suffixes of files that usually contain images."""

_OF_FLOATS = "tif tiff pfm"
_SUFFIXES = f"png jpg jpeg jfif bmp webp {_OF_FLOATS} ppm pgm gif avif heic heif jp2 j2k jpx"
IMAGE_SUFFIXES = frozenset(f".{name}" for name in _SUFFIXES.split())
"""Suffixes of file names that count as images, in lower case, regardless of whether this Pillow can decode them."""
_WITHOUT_FLOATS = tuple(IMAGE_SUFFIXES - {f".{name}" for name in _OF_FLOATS.split()})
_IGNORED = frozenset({"__MACOSX"})
_HIDDEN, _FOLDER = "hidden", "subfolder"


def may_have_floats(name: str) -> bool:
    """Whether an image with this name may consist of floats; all others have the same bytes for any value range."""
    return not name.lower().endswith(_WITHOUT_FLOATS)


@dataclass(frozen=True)
class PassedOver:
    """The files in a source that are ignored.

    Attributes:
        other: number of ignored files; a hidden folder counts as one.
        words: a summary such as ``3 files (.txt), 1 hidden``; empty if no files were ignored.
    """

    other: int = 0
    words: str = ""

    def to_dict(self) -> dict[str, int]:
        """Returns the count for the JSON result."""
        return {"other": self.other}


NOTHING = PassedOver()


class Census:
    """Counts the files that are ignored, by suffix, and hidden names and subfolders."""

    def __init__(self) -> None:
        self.passed_over: Counter[str] = Counter()

    def hides(self, name: str) -> bool:
        """Whether the name of a file or folder (without its path) is hidden; if so, counts it."""
        hidden = name.startswith(".") or name in _IGNORED
        self.passed_over[_HIDDEN] += hidden
        return hidden

    def folder(self) -> None:
        """Counts a subfolder."""
        self.passed_over[_FOLDER] += 1

    def is_image(self, name: str) -> bool:
        """Whether a file has an image suffix; if not, counts it as ignored."""
        suffix = splitext(name)[1].lower()
        if suffix in IMAGE_SUFFIXES:
            return True
        self.other(suffix or "no suffix")
        return False

    def other(self, kind: str) -> None:
        """Counts an ignored file of this kind."""
        self.passed_over[kind] += 1

    def takes(self, path: str, key: str = "") -> bool:
        """Whether a path inside an archive is that of an image; if not, counts it as ignored.

        Args:
            path: the path, separated by slashes.
            key: what must follow the first dot of the name; empty accepts any name.
        """
        *folders, name = path.split("/")
        if any((folder.startswith(".") and folder.strip(".")) or folder in _IGNORED for folder in folders):
            self.other(_HIDDEN)
            return False
        if self.hides(name) or not self.is_image(name):
            return False
        if key and name.partition(".")[2] != key:
            self.other(f"not {key}")
            return False
        return True

    def found(self, folders: bool = False) -> PassedOver:
        """Returns the ignored files; ``folders`` is whether subfolders were ignored as well."""
        return PassedOver(self.passed_over.total() - self.passed_over[_FOLDER], self._summary(folders))

    def nothing_found(self, path: str, kind: str, recursive: bool = True) -> str:
        """Returns the error message for a source without images."""
        summary = self._summary(folders=True)
        if not summary:
            return f"no images in {path}: the {kind} is empty"
        hint = ""
        if self.passed_over[_FOLDER] and not recursive:
            hint = f"; omit {option('recursive', False)} to include subfolders"
        if archive := self._archive():
            if kind == "folder":
                hint += f"; to read archives, name them, as in '{path.rstrip('/')}/*{archive}'"
            elif kind != "location":
                hint += f"; archives inside an archive are not read: extract them and pass '*{archive}'"
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

    def _summary(self, folders: bool) -> str:
        """Returns a summary such as ``3 files (.txt), 1 hidden``, with the most frequent kind first."""
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
        return ", ".join(named)
