"""Texts that belong to images, such as their classes and captions: in a table, or in files named
like the images.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from os.path import isdir, join, splitext
from pathlib import Path

from fidtool.errors import InputError, option, prefix_errors
from fidtool.names import fold, format_count
from fidtool.sources.contents import explain_errors
from fidtool.sources.kinds import TABLES, TEXT
from fidtool.sources.listing import find_path_columns, get_path, read_rows
from fidtool.system.local_files import read_file


@dataclass(frozen=True)
class Texts:
    """The texts in a table or folder; ``what`` is what one of them is, such as ``caption``.

    Attributes:
        place: the table or folder, the value of ``setting``.
        named: texts by the image's path, as written and absolute, without suffix.
        listed: texts in the stored order of a set, if the table has no column of paths.
    """

    place: str
    setting: str
    what: str
    named: Mapping[str, str]
    listed: Sequence[str] = ()

    @property
    def named_setting(self) -> str:
        """The setting with its value, if that is a table or folder, for messages."""
        return option(self.setting, self.place or None)

    def for_images(
        self, path: str, prefix: str, names: Sequence[str], numbers: Iterable[int], count: int
    ) -> list[str] | None:
        """Return the texts of images of the set ``path``; None if the table names none of them.

        Args:
            prefix, names: precede and name each image, as in `ImageSet`.
            numbers: their numbers in the stored order of the set, which has ``count`` images.

        Raises:
            InputError: if some have none, or the table has another number of rows than the set has
                images.
        """
        texts: list[str | None] = []
        if self.listed:
            if len(self.listed) != count:
                without = " without paths of images" if self.place else ""
                raise InputError(
                    f"{self.named_setting} has {format_count(len(self.listed), self.what)}"
                    f"{without}, but {path} has {format_count(count, 'image')}"
                )
            texts.extend(self.listed[number] for number in numbers)
        else:
            for name in names:
                texts.append(self.named.get(_key(prefix + name)) or self.named.get(_stem(name)))
        missing = [name for name, text in zip(names, texts, strict=True) if not text]
        if len(missing) == len(names) and not self.listed:
            return None
        if missing:
            raise InputError(
                f"{self.named_setting} has no {self.what} for "
                f"{format_count(len(missing), 'image')} of {path} ({missing[0]})"
            )
        return [text for text in texts if text]


def read_texts(place: str, setting: str, what: str, columns: Sequence[str]) -> Texts:
    """Read the texts that a setting names: a .csv, .tsv, .jsonl or .txt, or a folder of .txt files.

    Args:
        columns: usual names of the column of texts, as `fidtool.names.fold` returns
            them.

    Raises:
        InputError: if the file cannot be read, or has no such column, or an image twice with
            different texts.
    """
    with prefix_errors(setting=setting), explain_errors(place):
        if isdir(place):
            named = {}
            for file in Path(place).rglob("*.txt"):
                stem = str(file.relative_to(place).with_suffix(""))
                named[stem] = _check_utf8(_read_text(file).strip(), str(file))
            return Texts(place, setting, what, named)
        suffix = splitext(place)[1].lower()
        if suffix == TEXT:
            listed = [
                _check_utf8(line.strip(), f"{place}, line {number}")
                for number, line in enumerate(StringIO(_read_text(place)), 1)
            ]
            return Texts(place, setting, what, {}, listed)
        if suffix not in TABLES:
            raise InputError(
                f"{option(setting, place)} must be a table ({', '.join(TABLES)}), a {TEXT} with "
                f"one {what} per line, or a folder of such files"
            )
        return _read_text_table(place, suffix, setting, what, columns)


def _read_text_table(
    place: str, suffix: str, setting: str, what: str, columns: Sequence[str]
) -> Texts:
    named: dict[str, str] = {}
    listed: list[str] = []
    folder = os.path.dirname(place)
    for line, fields in read_rows(BytesIO(read_file(place)), place, suffix):
        where = f"{place}, line {line}"
        column = _column(where, fields, columns)
        text = fields.pop(column)
        if not isinstance(text, str | int):
            raise InputError(f"{where} has no {what} in the column {column}")
        listed.append(_check_utf8(f"{text}".strip(), where))
        paths = find_path_columns(fields)
        if not paths:
            continue
        path = f"{get_path(fields[paths[0]])}"
        for key in (_stem(path).removeprefix("./"), _key(join(folder, path))):
            if named.setdefault(key, listed[-1]) != listed[-1]:
                raise InputError(f"{where}: {path} has a second {what}")
    if not listed:
        raise InputError(f"{place} is empty")
    return Texts(place, setting, what, named, [] if named else listed)


def _column(where: str, fields: Mapping[str, object], columns: Sequence[str]) -> str:
    for name in columns:
        likely = [column for column in fields if fold(column) == name]
        if len(likely) > 1:
            raise InputError(
                f"{where} has the columns {likely[0]} and {likely[1]}:", "rename or remove one"
            )
        if likely:
            return likely[0]
    raise InputError(f"{where} has no column {columns[0]}; it has {', '.join(fields)}")


def _check_utf8(text: str, where: str) -> str:
    """The text itself; an InputError if bytes of it were not UTF-8, which are lone surrogates in
    it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} is not UTF-8 text:", "save the file as UTF-8") from None
    return text


def _read_text(file: str | Path) -> str:
    return read_file(file).decode("utf-8-sig", "surrogateescape")


def _key(path: str) -> str:
    return _stem(path if "://" in path else os.path.abspath(path))


def _stem(path: str) -> str:
    return splitext(path)[0]
