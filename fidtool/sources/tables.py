"""Parquet and Arrow tables with image bytes, such as those of Hugging Face datasets."""

from __future__ import annotations

import abc
import contextlib
import json
import mmap
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fidtool.errors import InputError, missing_package
from fidtool.sources.arrays import make_file_index, make_image_set
from fidtool.sources.contents import (
    ContainerReader,
    Files,
    Numbers,
    Read,
    open_with_errors,
    to_content,
)
from fidtool.sources.image_set import ImageSet, SourceFiles
from fidtool.sources.kinds import file_suffix
from fidtool.sources.labels import NO_LABELS, Labels, find_label_name

# A Hugging Face image column is a struct of this field and the file's path.
_BYTES = "bytes"
# End of an Arrow stream.
_END = b"\xff\xff\xff\xff\0\0\0\0"


def list_images(named: SourceFiles) -> ImageSet:
    """List the images in Parquet or Arrow files, one per row.

    The key is the column's name; the default is the only column that has image bytes.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing_package(f"reading {named.path}", "pyarrow", "parquet") from None
    is_arrow = file_suffix(named.files.paths[0]) == ".arrow"
    columns = []
    counts = []
    for file in range(len(named.files.paths)):
        with open_with_errors(named.files, file) as handle:
            if is_arrow:
                table = _map_arrow(handle)
                columns.append(_find_image_column(named, file, table.schema))
                counts.append(table.num_rows)
                _check_cells(named, table.column(columns[-1]))
            else:
                table = pyarrow.parquet.ParquetFile(handle)
                columns.append(_find_image_column(named, file, table.schema_arrow))
                counts.append(table.metadata.num_rows)
    if not sum(counts):
        raise InputError(f"no images in {named.path}: it contains no rows")
    file_index = make_file_index(named, counts)
    reader: ContainerReader = ParquetReader(named.files, file_index, True, columns)
    if is_arrow:
        # Local files are read in any order, remote ones sequentially, so that each rank downloads
        # only its own.
        reader = ArrowReader(named.files, file_index, named.files.remote, columns)
    return make_image_set(named, "Arrow table" if is_arrow else "Parquet table", counts, reader)


def _check_cells(named: SourceFiles, cells: Any) -> None:
    cells.validate(full=True)  # bytes at offsets out of range would be read from other memory
    if _is_struct(cells.type) and any(chunk.field(_BYTES).null_count for chunk in cells.chunks):
        # These images are other files, whose changes would not be noticed.
        named.files.versioned = False


def _map_arrow(handle: BinaryIO) -> Any:
    """Return the table in an Arrow file, a stream as the package datasets writes it or with an
    index, without a copy.

    Its memory map outlives ``handle``.
    """
    import pyarrow

    memory = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    if memory[:1] != _END[:1]:
        return pyarrow.ipc.open_file(pyarrow.py_buffer(memory)).read_all()
    if memory[-len(_END) :] != _END:
        raise EOFError("its end is missing")
    return pyarrow.ipc.open_stream(pyarrow.py_buffer(memory)).read_all()


def _find_image_column(named: SourceFiles, file: int, schema: Any) -> str:
    key = named.key
    binary: list[str] = [field.name for field in schema if _has_bytes(field.type)]
    structs = [name for name in binary if _is_struct(schema.field(name).type)]
    candidates = structs if len(structs) == 1 else binary
    if key in binary:
        return key
    if len(candidates) == 1 and not key:
        return candidates[0]
    has = ", ".join(f"{field.name} ({field.type})" for field in schema)[:300] or "none"
    advice = f"name the column of images, {named.path}:NAME"
    if not binary:
        advice = (
            "none contains image bytes, as Hugging Face's Image columns do; pass paths as a list "
            "(.txt)"
        )
    elif key:
        advice = f"{key} does not contain image bytes"
    raise InputError(f"{named.files.paths[file]} has the columns {has}:", advice)


def _has_bytes(kind: Any) -> bool:
    from pyarrow import types

    if _is_struct(kind):
        return bool(kind.get_field_index(_BYTES) >= 0 and _has_bytes(kind.field(_BYTES).type))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind))


class _TableReader(ContainerReader):
    """Reads a column of each table."""

    def __init__(
        self, files: Files, file_index: NDArray[np.int32], in_order: bool, columns: list[str]
    ) -> None:
        super().__init__(files, file_index, in_order, " ".join(columns))
        self._columns = columns
        self._opened = dict[int, Any]()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_opened": {}}

    def read_labels(self, items: Numbers, requested: bool) -> Labels:
        if not requested:
            return NO_LABELS
        values: list[object] = []
        stated: Any = None
        for file in range(len(self.files.paths)):
            with open_with_errors(self.files, file) as handle:
                labels = self.read_label_column(handle)
                if labels is None:
                    return NO_LABELS
                column = labels.schema.names[0]
                values += labels.column(column).to_pylist()
                stated = _find_class_names(labels.schema, column)
        return Labels.of(values, stated)

    @abc.abstractmethod
    def read_label_column(self, handle: BinaryIO) -> Any:
        """Return a pyarrow table of a file's labels alone; None if it has none."""


def _find_class_names(schema: Any, name: str) -> object:
    """Return the names of a column's classes by number, as Hugging Face's datasets stores them;
    None without them.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError):
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return features[name]["names"]
    return None


class ParquetReader(_TableReader):
    """Reads sequentially, and skips row groups that contain no requested rows."""

    def read_label_column(self, handle: BinaryIO) -> Any:
        from pyarrow.parquet import ParquetFile

        parquet = ParquetFile(handle)
        name = find_label_name(parquet.schema_arrow.names)
        return None if name is None else parquet.read(columns=[name])

    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        from pyarrow.parquet import ParquetFile

        column = self._columns[file]
        # The whole table may not fit into memory.
        parquet = ParquetFile(handle, buffer_size=1 << 20, pre_buffer=False)
        if _is_struct(parquet.schema_arrow.field(column).type):
            column = f"{column}.{_BYTES}"
        wanted = set(items)
        end = self.first_image(file)
        for group in range(parquet.num_row_groups):
            row = end
            end += parquet.metadata.row_group(group).num_rows
            if wanted.isdisjoint(range(row, end)):
                continue
            for batch in parquet.iter_batches(
                16, row_groups=[group], columns=[column], use_threads=False
            ):
                for value in batch.column(0):
                    if row in wanted:
                        yield to_content(value.as_py())
                    row += 1


class ArrowReader(_TableReader):
    """Reads rows through memory maps."""

    def read_label_column(self, handle: BinaryIO) -> Any:
        table = _map_arrow(handle)
        name = find_label_name(table.schema.names)
        return None if name is None else table.select([name])

    def walk(self, handle: BinaryIO, file: int, items: list[int]) -> Iterator[Read]:
        if file not in self._opened:
            self._opened[file] = _map_arrow(handle).column(self._columns[file])
        values = self._opened[file]
        first = self.first_image(file)
        return (to_content(values[item - first].as_py()) for item in items)
