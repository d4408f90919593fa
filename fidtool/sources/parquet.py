"""Parquet tables with image bytes, such as those of Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from fidtool.errors import InputError
from fidtool.sources.arrays import set_of_rows
from fidtool.sources.contents import ContentError, Files, Read, SequentialReader, opened
from fidtool.sources.image_set import ImageSet, NamedFiles

_BYTES = "bytes"
"""A Hugging Face image column is a struct of this field and the file's path."""


def list_images(named: NamedFiles) -> ImageSet:
    """Lists the images in Parquet files, one per row.

    The key is the column's name; the default is the only column that has image bytes.
    """
    pyarrow, columns, counts = _pyarrow(named.path), [], []
    for file, name in enumerate(named.files.paths):
        with opened(named.files, file) as handle:
            table = pyarrow.parquet.ParquetFile(handle)
            columns.append(_column(name, table.schema_arrow, named.key, pyarrow.types))
            counts.append(table.metadata.num_rows)
    if not sum(counts):
        raise InputError(f"no images in {named.path}: it contains no rows")
    return set_of_rows(named, "Parquet table", counts, ParquetReader(named.files, columns, counts))


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"reading {path} needs the package pyarrow:", "pip install 'fidtool[parquet]'") from None
    return pyarrow


def _column(name: str, schema: Any, key: str, types: Any) -> str:
    binary = {field.name: field for field in schema if _has_bytes(types, field.type)}
    structs = [each for each, field in binary.items() if types.is_struct(field.type)]
    candidates = structs if len(structs) == 1 else list(binary)
    chosen = key or (candidates[0] if len(candidates) == 1 else "")
    if chosen in binary:
        return chosen
    has = ", ".join(f"{field.name} ({field.type})" for field in schema)[:300] or "none"
    advice = f"{key} does not contain image bytes" if key else f"name the column of images, {name}:NAME"
    if not binary:
        advice = "none contains image bytes, as Hugging Face's Image columns do; pass paths as a list (.txt)"
    raise InputError(f"{name} has the columns {has}:", advice)


def _has_bytes(types: Any, kind: Any) -> bool:
    if types.is_struct(kind):
        return bool(kind.get_field_index(_BYTES) >= 0 and _has_bytes(types, kind.field(_BYTES).type))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


class ParquetReader(SequentialReader):
    """Reads a column of each table sequentially, and skips row groups that contain no requested rows."""

    def __init__(self, files: Files, columns: list[str], counts: list[int]) -> None:
        super().__init__(files)
        self._ends, self._columns, self.variant = np.cumsum(counts), columns, " ".join(columns)

    def file_of(self, item: int) -> int:
        return int(np.searchsorted(self._ends, item, "right"))

    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        pyarrow, column = _pyarrow(""), self._columns[file]
        # The whole table may not fit into memory.
        parquet = pyarrow.parquet.ParquetFile(handle, buffer_size=1 << 20, pre_buffer=False)
        is_struct = pyarrow.types.is_struct(parquet.schema_arrow.field(column).type)
        column = f"{column}.{_BYTES}" if is_struct else column
        wanted, end = iter(items), int(self._ends[file - 1]) if file else 0
        row = next(wanted)
        for group in range(parquet.num_row_groups):
            start, end = end, end + parquet.metadata.row_group(group).num_rows
            if row >= end:
                continue
            for batch in parquet.iter_batches(16, row_groups=[group], columns=[column], use_threads=False):
                values = batch.column(0).field(_BYTES) if is_struct else batch.column(0)
                while row < start + len(values):
                    value = values[row - start]
                    yield value.as_py() if value.is_valid else ContentError("its row has no image bytes")
                    if (row := next(wanted, -1)) < 0:
                        return
                start += len(values)
        raise EOFError("it has fewer rows than when it was listed")
