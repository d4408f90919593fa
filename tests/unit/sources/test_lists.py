"""Lists of paths: lines, null bytes, and tables with a column of paths."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from fidtool.errors import InputError
from fidtool.sources.image_set import Sampling
from fidtool.sources.listing import open_images

READ = {
    "a.txt": (b"\xef\xbb\xbf0.png\r\n\r\n1.png", ["0.png", "1.png"]),
    "null.txt": (b"a\nb.png\0 1.png\0", [" 1.png", "a\nb.png"]),
    "named.csv": (b"label,File_Name\r\n1,0.png\r\n\r\n2,1\r\n", ["0.png", "1"]),
    "marked.csv": (b"\xef\xbb\xbfpath\n0.png\n", ["0.png"]),
    "quoted.csv": (b'path,text\n"a, b.png","two\nlines"\n\xff.png,x\n', ["a, b.png", "\udcff.png"]),
    "likely.tsv": (b"id\tphoto\n1\t0.png\n", ["0.png"]),
    "two.csv": (b"image,path\ncat,0.png\n", ["0.png"]),
    "two.csv:Image": (b"Image,path\n1.png,0.png\n", ["1.png"]),
    "a.jsonl": (
        '{"text": "x", "file_name": "é.png"}\n\n{"file_name": "\\u00e8.png"}'.encode(),
        ["è.png", "é.png"],
    ),
    "semicolons.csv": (b"id;path;text\n1;0.png;a, b\n2;1.png;c\n", ["0.png", "1.png"]),
    "tabs.csv": (b"path\ttext\n0.png\ta, b\n", ["0.png"]),
    "image.jsonl": (b'{"image": {"path": "0.png"}, "label": 1}', ["0.png"]),
    "photo.jsonl": (
        b'{"photo": {"bytes": null, "path": "0.png"}, "label": {"path": 1}}',
        ["0.png"],
    ),
}
REFUSED = {
    "null.txt": (
        b"0.png\0\0" + b"1.png",
        "line 2 is too long or contains null bytes: write one path per line",
    ),
    "late.txt": (b"0.png\n" * 11_000 + b"a\0b\n", "line 11001 is too long or contains null bytes"),
    "long.txt": (b"0.png\n" + b"a" * 100_000, "line 2 is too long"),
    "twice.csv": (b"path\n0.png\n./0.png\n", "names 0.png 2 times, first in line 2"),
    "several.csv": (
        b"path,image\n0.png,1.png\n",
        "line 2 has 2 columns of paths; it has 'path', 'image': name",
    ),
    "none.csv": (
        b"a,b\n1,2\n",
        "line 2 has no columns of paths; it has 'a', 'b': name one, as in .*none.csv:COLUMN",
    ),
    "none.csv:c": (b"a,b\n1,2\n", "line 2 has no column 'c'; it has 'a', 'b'"),
    "headless.csv": (
        b"0.png,1\n1.png,2\n",
        "no header: its first line is '0.png', '1', not names of columns: add a first",
    ),
    "headless.csv:path": (
        b"0.png\n1.png\n",
        "no header: its first line is '0.png', not names of columns: add a first",
    ),
    "bytes.jsonl": (
        b'{"image": {"path": "0.png", "bytes": "iVBO"}}',
        "line 1, column image: {'path': .* is not a path",
    ),
    "empty.csv": (b"path\n", "empty.csv is empty: list one image per line"),
    "hole.csv": (b"path,label\n0.png,1\n,2\n", "line 3, column path: '' is not a path"),
    "comma.csv": (
        b"path\n0.png\na, b.png\n",
        "line 3 has more values than the header has columns .1.: put values",
    ),
    "doubled.csv": (b"path,label,path\n0.png,1,1.png\n", "line 1 has 2 columns 'path': rename"),
    "doubled.jsonl": (
        b'{"path": "0.png", "path": "1.png"}\n',
        "line 1 has 2 columns 'path': rename",
    ),
    "quote.csv": (b'path\n"0.png\n', "line 2: unexpected end of data"),
    "number.jsonl": (b'{"path": "0.png"}\n{"path": 7}\n', "line 2, column path: 7 is not a path"),
    "other.jsonl": (
        b'{"path": "0.png"}\n{"file": "1.png"}\n',
        "line 2 has no column 'path'; it has 'file'",
    ),
    "surrogate.jsonl": (
        b'{"path": "\\ud800.png"}',
        "line 1, column path: '.ud800.png' is not a path",
    ),
    "text.jsonl": (b'"0.png"\n', "line 1 is not a JSON object: write one object per line, such as"),
    "array.jsonl": (
        b'[{"path": "0.png"}]\n',
        "line 1 is not a JSON object: .*, or download it again if a server sent",
    ),
    "error.jsonl": (
        b'{"error": "x"}',
        "line 1 has no columns of paths; it has 'error': .*, or download it again if a server",
    ),
    "broken.jsonl": (
        b'{"path": "0.png"}\n\n{"path"\n',
        "line 3: Expecting ':' delimiter; write one object per line",
    ),
    "deep.jsonl": (b"[" * 100_000, "line 1: "),
}


@pytest.mark.parametrize("name", READ)
def test_a_list_is_read(tmp_path: Path, name: str) -> None:
    content, names = READ[name]
    (tmp_path / name.partition(":")[0]).write_bytes(content)
    listed = open_images(str(tmp_path / name))
    assert list(listed.stored) == names
    assert [listed.file(index) for index in range(len(listed))] == [
        f"{tmp_path}/{each}" for each in names
    ]
    assert list(open_images(f"file://{tmp_path}/{name}").stored) == names


@pytest.mark.parametrize("name", REFUSED)
def test_a_list_is_refused(tmp_path: Path, name: str) -> None:
    content, words = REFUSED[name]
    (tmp_path / name.partition(":")[0]).write_bytes(content)
    with pytest.raises(InputError, match=words) as refused:
        open_images(str(tmp_path / name))
    assert str(refused.value).startswith(f"the list {tmp_path}/{name.partition(':')[0]}")


def test_null_bytes_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    many = sorted(f"{number}/{'x' * 90}.png" for number in range(3000))
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(f"{each}\0" for each in many).encode()))
    )
    assert list(open_images("-").stored) == many
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"<!DOCTYPE html>\n0.png\n")))
    with pytest.raises(InputError, match=r"^standard input is a web page \(HTML\): "):
        open_images("-")


def test_missing_files_are_found_by_their_lines(tmp_path: Path) -> None:
    (tmp_path / "0.png").touch()
    (tmp_path / "a.csv").write_text("path,label\n2.png,0\n0.png,1\n1.png,1\n")
    listed = open_images(str(tmp_path / "a.csv"))
    assert listed.missing_lines() == [f"line 4: {tmp_path}/1.png", f"line 2: {tmp_path}/2.png"]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_the_first_of_a_list_are_its_first_lines(tmp_path: Path, name: str, scheme: str) -> None:
    """The whole list has the order that it has without ``first``."""
    rows = ["9.png", "10.png", "2.png", "sub/1.png", "a.png"]
    forms = {
        "a.txt": rows,
        "a.csv": ["path", *rows],
        "a.jsonl": [f'{{"path": "{each}"}}' for each in rows],
    }
    fsspec = pytest.importorskip("fsspec", reason="reads the list in a store")
    with fsspec.open(f"{scheme}{tmp_path}/{name}", "wt") as handle:
        handle.write("\n".join(forms[name]))
    listed = open_images(f"{scheme}{tmp_path}/{name}")
    first = listed.draw(Sampling(3, 0, first=True))
    assert {first.file(index) for index in range(3)} == {
        f"{scheme}{tmp_path}/{each}" for each in rows[:3]
    }
    assert (
        listed.draw(Sampling(5, 0, first=True)).order.tolist()
        == listed.draw(Sampling(None, 0)).order.tolist()
    )
