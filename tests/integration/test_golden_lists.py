"""The images of a set, their order, and the images of a sample, for every form of source.

Values depend on them: error bars, KID and samples select images by index.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from support.command_line import Run
from support.goldens import Golden
from support.printed import shown

NAMES = ("sub/c.png", "B.png", "sub-d.png", "a.png", "10.png", "9.png", "sub/deep/e.PNG", "f.jpg")
"""In an order that no sorting would produce."""


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(file: Path, names: Sequence[str]) -> None:
    with tarfile.open(file, "w:gz" if file.suffix == ".gz" else "w") as archive:
        for number, name in enumerate(names):
            member, data = tarfile.TarInfo(name), picture(number)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_zip(file: Path, names: Sequence[str]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(name, picture(number))


def make_sets(place: Path) -> None:
    """Write a folder, lists of its files, archives and arrays."""
    for number, name in enumerate(NAMES):
        (place / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "set" / name).write_bytes(picture(number))
    (place / "list.txt").write_text("".join(f"set/{name}\n" for name in NAMES))
    write_tar(place / "one.tar", NAMES)
    write_tar(place / "one.tar.gz", NAMES)
    write_zip(place / "one.zip", NAMES)
    for part in ("9", "10", "b", "a"):
        write_tar(place / f"s-{part}.tar", ["2.png", "1.png"])
        write_zip(place / f"s-{part}.zip", ["2.png", "1.png"])
        np.save(place / f"s-{part}.npy", np.zeros((2, 8, 8, 3), np.uint8))
    arrays = {"arr_1": np.zeros(5), "arr_0": np.zeros((5, 8, 8, 3), np.uint8)}
    np.save(place / "one.npy", arrays["arr_0"])
    np.savez(place / "one.npz", **arrays)
    np.savez_compressed(place / "packed.npz", **arrays)


FORMS = (
    *("set", "list.txt", "one.tar", "one.tar.gz", "one.zip", "one.npy", "one.npz", "packed.npz"),
    *("s-*.tar", "s-[a-z].zip", "s-{9..10}.npy", "s-{b,1?,a}.zip"),
)
"""As typed on the command line. Files that match a wildcard are sorted; those of braces keep the
order given.
"""


def test_lists(golden: Golden, here: Run, tmp_path: Path) -> None:
    """All images of each form, and a sample of three."""
    make_sets(tmp_path)
    found = {}
    for form in FORMS:
        whole, some = (
            shown(here("check", form, "--list", *more), tmp_path) for more in ((), ("--num", 3))
        )
        found[form] = {"whole": whole, "some": some}
    golden("sources/lists", found)
