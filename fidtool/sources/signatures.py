"""Recognises what a file is by its first bytes, whatever its name."""

from __future__ import annotations

import contextlib
import itertools
import re
import zlib
from collections.abc import Container, Iterable, Mapping

from fidtool.errors import InputError

HEAD = 1024
"""Number of bytes that these functions need."""
AVIF, HEIF, JPEG_2000, WEBP = "AVIF", "HEIF", "JPEG 2000", "WebP"
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
ZIP, TAR, PARQUET, NPY = "a zip archive", "a tar archive", "a Parquet table", "a NumPy array (.npy)"
_CONTAINERS = {ZIP: rb"PK\x03\x04", TAR: rb".{257}ustar", PARQUET: rb"PAR1", NPY: rb"\x93NUMPY"}
_AGAIN = "download it again, as a server sent this in its place, for example a login or an error"
JSON = "JSON text: write a list of paths as .txt or .jsonl; if a server sent it as an error, download the file again"
PLAIN = "plain text: download or create the file again, or name it .txt if it is a list of paths"
DAMAGED = {
    "empty (0 bytes): copy or download it again": rb"\Z",
    "a Git LFS pointer, not the file itself: run `git lfs pull` in its repository": rb"version https://(git-lfs|hawser)",
    "a git-annex pointer, not the file itself: run `git annex get` in its repository": rb"/annex/objects/",
    f"a web page (HTML): {_AGAIN}": rb"(?i)\W*(<!--.*?-->\s*)?<(!doctype html|html|head|body|script|title)\b",
    f"a web page or XML in UTF-16: {_AGAIN}": rb"(\xff\xfe)?<\0[!?A-Za-z]\0|(\xfe\xff)?\0<\0[!?A-Za-z]",
    "text in UTF-16: save it in UTF-8 if it is a list of paths": rb"\xff\xfe[^\0]\0|\xfe\xff\0[^\0]",
    f"XML text: {_AGAIN}": rb"\W*<(\?xml|svg|Error)\b",
    JSON: rb"(\xef\xbb\xbf)?\s*(\{\s*[\"}]|\[\s*[\[\]{\"\d-])",
}
_WRITE = "write its images to a folder or a Parquet table, or in Python pass fidtool.Images(dataset)"
_CIFAR = rb"(data|(fine_|coarse_)?label(s|_names)|batch_label|filenames|num_cases_per_batch)[q\x94]"
_VIDEO = rb"\x1aE\xdf\xa3|RIFF.{4}AVI |FLV\x01|\0\0\x01[\xb3\xba]|0&\xb2u\x8ef\xcf\x11|.{4}(ftyp|moov|mdat)"
_DATASETS = {
    f"an HDF5 file, which h5py reads: {_WRITE}": rb"(.{512})?\x89HDF\r\n\x1a\n",
    f"a MATLAB file, which scipy.io.loadmat reads: {_WRITE}": rb"MATLAB 5\.0 MAT-file",
    f"an LMDB database, which lmdb reads: {_WRITE}": rb".{16}\xde\xc0\xef\xbe",
    f"a TFRecord file, which TensorFlow reads: {_WRITE}": rb".{4}\0{4}.{4}\n",  # its first field is a tf.train.Example
    f"an Arrow table, which datasets.load_from_disk reads: {_WRITE}": rb"ARROW1\0\0|\xff{4}..[\0-\x0f]\0\x10\0\0\0",
    f"an IDX file of MNIST, which torchvision reads: {_WRITE}": rb"\0\0\x08[\x01\x03]",
    # A pickled dict, by its first key, in any protocol from 2 on.
    f"a pickled batch of CIFAR, which torchvision reads: {_WRITE}": rb"\x80[\x02-\x05](\x95.{8})?\}(q.|\x94)?\("
    rb"(c_codecs\nencode\nq.)?([UC\x8c].|[TXB].{4})" + _CIFAR,
    "a video: write its frames to a folder, for example with `ffmpeg -i FILE frames/%06d.png`": _VIDEO,
    "a 7z, RAR or Zstandard archive: extract it and pass the folder": rb"7z\xbc\xaf'\x1c|Rar!\x1a|\x28\xb5\x2f\xfd",
}
_UTF_8 = rb"(?:[\t\n\f\r -~]|[\xc2-\xf4][\x80-\xbf]{1,3})+[\xc2-\xf4]?[\x80-\xbf]*\Z"  # may end within a character

_BINARY = re.compile(r"\b((data|test)_batch(_\d)?|(train|test|unlabeled)(_X)?)\.bin$")
"""Names of files of pixels without a signature."""


def _named(kinds: Mapping[str, bytes], head: bytes) -> str:
    return next((name for name, pattern in kinds.items() if re.match(pattern, head, re.DOTALL)), "")


def format_of(head: bytes) -> str:
    """Returns the image format of a file by its first `HEAD` bytes; empty if it is none of those listed here.

    Pillow's plugins also detect formats, but they depend on how Pillow was built, and some check only two letters,
    with which a text file may begin as well.
    """
    return _named(_IMAGES, head[:HEAD])


def container_of(head: bytes) -> str:
    """Returns `ZIP`, `TAR`, `PARQUET` or `NPY`; empty for other files."""
    return _named(_CONTAINERS, head)


def foreign_of(head: bytes) -> str:
    """Returns what a file is that has neither images nor statistics that fidtool reads, and what to do; else empty."""
    head = _decompressed(head[:HEAD])
    if format_of(head) or container_of(head):
        return ""
    return _named({**DAMAGED, **_DATASETS, PLAIN: _UTF_8}, head)


def _decompressed(head: bytes) -> bytes:
    """Returns the first bytes of what is compressed by gzip, as servers send pages; other bytes as they are."""
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD) or head
    return head


def refuse_foreign(name: str, head: bytes, but: Container[str] = ()) -> None:
    """Raises an InputError for a file with these first bytes if it is `foreign_of` any kind ``but`` these."""
    found = foreign_of(head)
    if not found and _BINARY.search(name) and not container_of(head):
        found = f"a binary file of CIFAR or STL-10, which torchvision downloads in a form that it reads: {_WRITE}"
    if found and found not in but:
        kind, _, remedy = found.partition(": ")
        packed = "" if _decompressed(head) == head else ", compressed by gzip"
        raise InputError(f"{name} is {kind}{packed}:", remedy)


def refuse_dataset(place: str, heads: Iterable[tuple[str, bytes]]) -> None:
    """Refuses a set without images of whose files, by name and first bytes, one has them in a form that is not read."""
    for name, head in itertools.islice(heads, 100):
        refuse_foreign(f"no images in {place}: {name}", head, [*DAMAGED, PLAIN])
