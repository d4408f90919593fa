"""Which names count as images, and what else there was. Imports no torch."""

from __future__ import annotations

from collections import Counter
from os.path import splitext

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif"})
"""File names that count as images, compared without case."""
_ARCHIVES = frozenset({".tar", ".tgz", ".zip", ".parquet", ".npz", ".npy"})
_IGNORED = frozenset({"__MACOSX"})
_HIDDEN, _FOLDER = "hidden", "subfolder"


class Census:
    """Counts what is passed over.

    Attributes:
        passed_over: how many there were, by suffix, of subfolders and of hidden names.
    """

    def __init__(self) -> None:
        self.passed_over: Counter[str] = Counter()

    def hides(self, name: str) -> bool:
        """Whether a file's or folder's own name is hidden; counts it if so."""
        hidden = name.startswith(".") or name in _IGNORED
        self.passed_over[_HIDDEN] += hidden
        return hidden

    def folder(self) -> None:
        """Counts a subfolder."""
        self.passed_over[_FOLDER] += 1

    def is_image(self, name: str) -> bool:
        """Whether a file's name is an image's; counts it if not."""
        suffix = splitext(name)[1].lower()
        if suffix in IMAGE_SUFFIXES:
            return True
        self.other(suffix or "no suffix")
        return False

    def other(self, kind: str) -> None:
        """Counts something else."""
        self.passed_over[kind] += 1

    def takes(self, path: str, key: str = "") -> bool:
        """Whether a path inside an archive is an image's; counts it if not.

        Args:
            path: with slashes.
            key: what its name must have after the first dot; empty if that does not matter.
        """
        *folders, name = path.split("/")
        if any((folder.startswith(".") and folder.strip(".")) or folder in _IGNORED for folder in folders):
            self.other(_HIDDEN)
            return False
        if self.hides(name) or not self.is_image(name):
            return False
        if key and name.partition(".")[2] != key:
            self.other(f"other than {key}")
            return False
        return True

    def nothing_found(self, path: str, kind: str, recursive: bool = True) -> str:
        """What to say where there are no images."""
        words = self.words(folders=True)
        if not words:
            return f"no images in {path}: the {kind} is empty"
        hint = "; drop --no-recursive to look into the subfolders" if self._folders and not recursive else ""
        if archive := self.archive():
            if kind == "folder":
                hint += f"; archives are read when they are named, as in '{path.rstrip('/')}/*{archive}'"
            elif kind != "place":
                hint += f"; archives in an archive are not read: name them, as in '*{archive}'"
        if kind == "place":
            hint += "; of an archive or array, the URL must have the suffix"
        known = " ".join(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES))
        return f"no images in {path}: it holds {words}; images are files named {known}{hint}"

    def archive(self) -> str:
        """The suffix of the most frequent kind of archive that was passed over; empty if there is none."""
        return next((kind for kind, _ in self.passed_over.most_common() if kind in _ARCHIVES), "")

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
        """What was passed over, the most frequent first: ``3 files (.txt), 1 hidden``.

        Args:
            folders: whether subfolders were passed over.
        """
        counts = Counter({kind: count for kind, count in self.passed_over.items() if count})
        below, hidden = counts.pop(_FOLDER, 0), counts.pop(_HIDDEN, 0)
        kinds = [f"{count} {'file' if count == 1 else 'files'} ({suffix})" for suffix, count in counts.most_common(4)]
        if more := counts.total() - sum(count for _, count in counts.most_common(4)):
            kinds.append(f"{more} others")
        if below and folders:
            kinds.append(f"{below} {_FOLDER}{'s' if below > 1 else ''}")
        if hidden:
            kinds.append(f"{hidden} {_HIDDEN}")
        return ", ".join(kinds)
