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

    def takes(self, path: str) -> bool:
        """Whether a path inside an archive is an image's; counts it if not."""
        *folders, name = path.split("/")
        if any((folder.startswith(".") and folder.strip(".")) or folder in _IGNORED for folder in folders):
            self.other(_HIDDEN)
            return False
        return not self.hides(name) and self.is_image(name)

    def nothing_found(self, path: str, kind: str, recursive: bool = True) -> str:
        """What to say where there are no images."""
        words = self.words()
        if not words:
            return f"no images in {path}: the {kind} is empty"
        hint = "; drop --no-recursive to look into the subfolders" if self._folders and not recursive else ""
        if kind == "folder" and (archive := self.archive()):
            hint += f"; archives are read when they are named, as in '{path.rstrip('/')}/*{archive}'"
        known = " ".join(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES))
        return f"no images in {path}: it holds {words}; images are files named {known}{hint}"

    def archive(self) -> str:
        """The suffix of the most frequent kind of archive that was passed over; empty if there is none."""
        return next((kind for kind, _ in self.passed_over.most_common() if kind in _ARCHIVES), "")

    def beside(self, path: str) -> str:
        """What to say of a folder of images in which there are archives, too; empty where there are none."""
        if not (archive := self.archive()):
            return ""
        return f"{path} holds {self.passed_over[archive]} {archive} files beside its images, which are not read"

    @property
    def _folders(self) -> int:
        return self.passed_over[_FOLDER]

    def words(self) -> str:
        """What was passed over, the most frequent first: ``3 files (.txt), 1 hidden``."""
        counts = Counter({kind: count for kind, count in self.passed_over.items() if count})
        folders, hidden = counts.pop(_FOLDER, 0), counts.pop(_HIDDEN, 0)
        kinds = [f"{count} {'file' if count == 1 else 'files'} ({suffix})" for suffix, count in counts.most_common(4)]
        if folders:
            kinds.append(f"{folders} {_FOLDER}{'s' if folders > 1 else ''}")
        if hidden:
            kinds.append(f"{hidden} {_HIDDEN}")
        return ", ".join(kinds)
