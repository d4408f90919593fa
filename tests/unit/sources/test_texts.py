"""Classes and captions in tables and text files: what is read, and which fault of a table a refusal
names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fidtool.errors import InputError
from fidtool.sources.texts import read_texts

COLUMNS = ("label", "class")
REFUSED = {
    "more.csv": (
        b"path,label\n0.png,a\n1.png,b,c\n",
        "more.csv, line 3 has more values than the header has columns",
    ),
    "doubled.csv": (
        b"path,label,label\n0.png,a,b\n",
        "line 1 has 2 columns 'label': rename or remove one",
    ),
    "alike.csv": (
        b"path,label,Label\n0.png,a,b\n",
        "line 2 has the columns label and Label: rename or remove one",
    ),
    "doubled.jsonl": (
        b'{"path": "0.png", "label": 1, "label": 2}',
        "line 1 has 2 columns 'label': rename",
    ),
    "list.jsonl": (b'["0.png", "a"]', "line 1 is not a JSON object"),
    "other.csv": (b"path,kind\n0.png,a\n", "line 2 has no column label; it has path, kind"),
    "short.csv": (b"path,label\n0.png,a\n1.png\n", "line 3 has no class in the column label"),
    "latin.csv": (
        "path,label\n0.png,a\n1.png,é\n".encode("latin-1"),
        "line 3 is not UTF-8 text: save the file as",
    ),
    "latin.tsv": (
        "path\tlabel\n0.png\té\n".encode("latin-1"),
        "line 2 is not UTF-8 text: save the file as",
    ),
    "latin.txt": ("a\né\n".encode("latin-1"), "line 2 is not UTF-8 text: save the file as"),
    "wide.csv": (
        "path,label\n0.png,a\n".encode("utf-16"),
        "wide.csv is not UTF-8 text: save it as UTF-8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_is_refused(tmp_path: Path, name: str) -> None:
    content, words = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_texts(str(tmp_path / name), "labels", "class", COLUMNS)


def test_a_file_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"cat\n")
    (tmp_path / "b.txt").write_bytes("é\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"b.txt is not UTF-8 text"):
        read_texts(str(tmp_path), "captions", "caption", ("caption",))


def test_other_columns_do_not_matter(tmp_path: Path) -> None:
    """Nor do rows that end early after the class, columns without names, and spaces around the
    class.
    """
    (tmp_path / "labels.csv").write_bytes("path,label,note,,\n0.png, é ,x\n1.png,b\n".encode())
    found = read_texts(str(tmp_path / "labels.csv"), "labels", "class", COLUMNS)
    assert (found.named["0"], found.named["1"]) == ("é", "b")
