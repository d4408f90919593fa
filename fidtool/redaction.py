"""Removes possible secrets from URLs. Imports nothing else from fidtool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_URL = re.compile(r"(?<![\w+.-])([\w+.-]*)://([^\s'\"]*)")
"""A scheme and the rest of the word. Every pattern here runs in linear time, because the text may be hostile."""
_USER = re.compile(r"(^|://)[^/?#]*@")
_ACCOUNTS = ("abfs", "abfss", "az", "wasb", "wasbs")
"""Azure's schemes: in abfs://container@account, the part before the @ is no user name."""
_PARAMETER = re.compile(r"[?#&][^/?#&=]*=")
_WEB_PARAMETER = re.compile(r"[?#].")
"""For HTTP, a question mark always starts a query; elsewhere it may be a wildcard."""
_CLOSING = "]}>),.:;"
"""Trailing punctuation that belongs to the surrounding text, not to the URL."""


def redacted(text: str) -> str:
    """Returns ``text`` with user names, passwords, queries and fragments removed from all URLs in it.

    A URL ends at a space or a quote, which must be escaped in it, as must a slash in a password.
    """
    return _URL.sub(_without_secrets, text) if "://" in text else text


def _without_secrets(url: re.Match[str]) -> str:
    scheme, address = url.groups()
    if scheme.lower() not in _ACCOUNTS:
        address = _USER.sub(r"\1", address)
    parameter = (_WEB_PARAMETER if "http" in scheme.lower() else _PARAMETER).search(address)
    if parameter is not None:
        start = parameter.start()
        address = address[:start] + address[max(start, len(address.rstrip(_CLOSING))) :]
    return f"{scheme}://{address}"


def without_secrets(value: T) -> T:
    """Returns a JSON value with all its strings `redacted`, including keys. Tuples become lists."""
    cleaned: Any = value
    if isinstance(value, str):
        cleaned = redacted(value)
    elif isinstance(value, Mapping):
        cleaned = {without_secrets(key): without_secrets(each) for key, each in value.items()}
    elif isinstance(value, (list, tuple)):
        cleaned = [without_secrets(each) for each in value]
    return cleaned  # type: ignore[no-any-return]
