"""Secrets in addresses are removed from messages."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import fidtool
from fidtool.system import download
from support.command_line import Run


def test_errors_and_warnings_in_python_have_no_secrets(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors, warnings and their causes may be logged."""
    monkeypatch.setattr(download, "FIRST_DELAY", 0.01)
    address = "http://bob:hunter2@127.0.0.1:9/none.tar?token=SECRET"
    for ask in (lambda: fidtool.compute(address, address), lambda: fidtool.check(address)):
        with pytest.raises(fidtool.FidtoolError) as caught:
            ask()
        printed = "".join(traceback.format_exception(caught.value))
        assert "hunter2" not in printed
        assert "SECRET" not in printed
        assert "none.tar" in printed


def test_a_password_in_an_s3_address_is_refused(here: Run) -> None:
    """s3fs would take it as part of the bucket's name and print it."""
    pytest.importorskip("fsspec", reason="needs fidtool[remote]")
    run = here("check", "s3://bob:hunter2@bucket/fake.zip?token=SECRET")
    assert run.status == 2
    words = (
        "an S3 URL cannot contain a user name or password: set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY"
    )
    assert run.error == f"error: s3://bucket/fake.zip: {words}, or AWS_PROFILE"
