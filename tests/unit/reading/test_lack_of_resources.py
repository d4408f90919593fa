"""Machines that run out of resources."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import fidtool as package
from support.pictures import make_pictures
from support.places import TINY


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (MemoryError(), r"cannot decode .*\.png: out of memory; raise the limits of this process"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            r"cannot read .*\.png: Too many open files; raise the limits",
        ),
    ],
)
def test_lack_of_resources_is_not_blamed_on_a_file(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lack: Exception,
    said: str,
) -> None:
    """Such files are not skipped, which would depend on the load. The error does not advise fixing
    or removing them.
    """
    images = make_pictures(tmp_path / "images", 5)

    def exhausted(*_: object) -> Any:
        raise lack

    monkeypatch.setattr("fidtool.reading.loader.decode_content", exhausted)
    for on_error in ("skip", "fail"):
        with pytest.raises(package.RunError, match=said) as failed:
            package.compute(images, images, extractor=TINY, on_error=on_error, max_skip=1)
        assert "skip" not in str(failed.value)
