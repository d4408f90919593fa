"""Texts that belong to images, such as their classes and captions: in a table, or in files named
like the images.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from os.path import isdir, join, splitext
from pathlib import Path

from fidtool.errors import InputError, option
from fidtool.names import counted, folded
from fidtool.sources.contents import explained
from fidtool.sources.kinds import TABLES, TEXT
from fidtool.sources.listing import columns_of_paths, path_of, rows_of
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

    def of(
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
        named = option(self.setting, self.place or None)
        if self.listed:
            if len(self.listed) != count:
                rows, images = counted(len(self.listed), self.what), counted(count, "image")
                raise InputError(
                    f"{named} has {rows} without paths of images, but {path} has {images}",
                    setting=self.setting,
                )
            found: list[str | None] = [self.listed[number] for number in numbers]
        else:
            found = [
                self.named.get(_key(prefix + name)) or self.named.get(splitext(name)[0])
                for name in names
            ]
        lacking = [name for name, text in zip(names, found, strict=True) if not text]
        if len(lacking) == len(names) and not self.listed:
            return None
        if lacking:
            raise InputError(
                f"{named} has no {self.what} of {counted(len(lacking), 'image')} of {path} "
                f"({lacking[0]})",
                setting=self.setting,
            )
        return [text for text in found if text]


def read_texts(place: str, setting: str, what: str, columns: Sequence[str]) -> Texts:
    """Read the texts that a setting names: a .csv, .tsv, .jsonl or .txt, or a folder of .txt files.

    Args:
        columns: usual names of the column of texts, as `fidtool.names.folded`.

    Raises:
        InputError: if the file cannot be read, or has no such column, or an image twice with
            different texts.
    """
    if isdir(place):
        with explained(place):
            texts = {
                str(file.relative_to(place).with_suffix("")): _utf8(
                    _text_in(file).strip(), f"{file}", setting
                )
                for file in Path(place).rglob("*.txt")
            }
        return Texts(place, setting, what, texts)
    suffix = splitext(place)[1].lower()
    if suffix == TEXT:
        with explained(place):
            content = StringIO(_text_in(place))
        lines = [
            _utf8(line.strip(), f"{place}, line {number}", setting)
            for number, line in enumerate(content, 1)
        ]
        return Texts(place, setting, what, {}, lines)
    if suffix not in TABLES:
        forms = (
            f"a table ({', '.join(TABLES)}), a {TEXT} with one {what} per line, or a folder of "
            "such files"
        )
        raise InputError(f"{option(setting, place)} must be {forms}", setting=setting)
    named, listed, folder = dict[str, str](), list[str](), os.path.dirname(place)
    with explained(place):
        for line, fields in rows_of(read_file(place), place, suffix):
            where = f"{place}, line {line}"
            column = _column(where, fields, columns, setting)
            text = fields[column]
            if not isinstance(text, str | int):
                raise InputError(f"{where} has no {what} in the column {column}", setting=setting)
            listed.append(_utf8(f"{text}".strip(), where, setting))
            for each in columns_of_paths({name: fields[name] for name in fields if name != column})[
                :1
            ]:
                given = f"{path_of(fields[each])}"
                for key in (splitext(given)[0].removeprefix("./"), _key(join(folder, given))):
                    if named.setdefault(key, listed[-1]) != listed[-1]:
                        raise InputError(f"{where}: {given} has a second {what}", setting=setting)
    if not listed:
        raise InputError(f"{place} is empty", setting=setting)
    return Texts(place, setting, what, named, [] if named else listed)


def _column(where: str, fields: Mapping[str, object], columns: Sequence[str], setting: str) -> str:
    """The column of texts of a row."""
    for name in columns:
        likely = [column for column in fields if folded(column) == name]
        if len(likely) > 1:
            raise InputError(
                f"{where} has the columns {likely[0]} and {likely[1]}:",
                "rename or remove one",
                setting=setting,
            )
        if likely:
            return likely[0]
    raise InputError(
        f"{where} has no column {columns[0]}; it has {', '.join(fields)}", setting=setting
    )


def _utf8(text: str, where: str, setting: str) -> str:
    """The text itself; an InputError if bytes of it were not UTF-8, which are lone surrogates in
    it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{where} is not UTF-8 text:", "save the file as UTF-8", setting=setting
        ) from None
    return text


def _text_in(file: str | Path) -> str:
    return read_file(file).decode("utf-8-sig", "surrogateescape")


def _key(path: str) -> str:
    return splitext(path if "://" in path else os.path.abspath(path))[0]
