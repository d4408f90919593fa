"""Removes possible secrets from URLs. Imports nothing else from fidtool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SCHEME = re.compile(r"(?<![\w+.-])([\w+.-]*://)")
"""Start of a URL. Every pattern here runs in linear time, because the text may be hostile."""
_ACCOUNTS = ("abfs", "abfss", "az", "wasb", "wasbs")
"""Azure's schemes: in abfs://container@account, the part before the @ is no user name."""
_PARAMETER = re.compile(r"[?#&][^\s/?#&=]*=")
_WEB_PARAMETER = re.compile(r"[?#&](?=\S)")
"""For HTTP, a question mark always starts a query; elsewhere it may be a wildcard."""
_HOST_AND_PORT = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+|\[[\da-fA-F:.]+\]):\d{1,5}(?![^/?#\s])")
"""A host with a port. A name without a dot is excluded: with digits after the colon it may be a user and a password."""
_CLOSING = "]}>'\"),.:;"
"""Trailing punctuation that belongs to the surrounding text, not to the URL."""


def redacted(text: str) -> str:
    """Returns ``text`` with user names, passwords, queries and fragments removed from all URLs in it.

    In ambiguous cases more is removed. If a password contains characters that should have been escaped, everything up
    to the last ``@`` before the next URL or the closing quote is removed.
    """
    if "://" not in text:
        return text
    before, *rest = _SCHEME.split(text)
    shown = [before]
    for scheme, address in zip(rest[::2], rest[1::2], strict=True):
        quote = shown[-1][-1:]
        inside, end, after = address.partition(quote) if quote in ("'", '"') else (address, "", "")
        shown += [scheme, f"{_place(scheme.removesuffix('://').lower(), inside)}{end}{after}"]
    return "".join(shown)


def _place(scheme: str, address: str) -> str:
    """Returns the part of a URL that is safe to show, and the text that follows the URL.

    Args:
        scheme: the scheme in lower case, without ``://``.
        address: everything after ``://``, up to the next URL or the closing quote.
    """
    host = re.split("[/?#]", address, maxsplit=1)[0]
    if _HOST_AND_PORT.match(address):
        place = address
    elif ":" in host:  # a port, or a password whose slashes and spaces may not have been escaped
        user, _, place = address.rpartition("@")
        if "?" in user or "#" in user:
            place = f"?={place}"  # the @ may be part of a query, and this the rest of that query
    elif scheme in _ACCOUNTS:
        place = address
    else:
        place = address[host.rfind("@") + 1 :]
    return _without_query(place, _WEB_PARAMETER if "http" in scheme else _PARAMETER)


def _without_query(place: str, parameter: re.Pattern[str]) -> str:
    """Removes everything from the first parameter to the end of the word that contains the last one."""
    starts = [each.start() for each in parameter.finditer(place)]
    begin = next((start for start in starts if place[start] != "&"), None)
    if begin is None:
        return place
    last = place[starts[-1] :].split(maxsplit=1)[0]
    end = starts[-1] + len(last.rstrip(_CLOSING))
    return place[:begin] + place[max(begin, end) :]


def without_secrets(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON record with all its strings `redacted`, including keys. Tuples become lists."""
    return {_cleaned(key): _cleaned(value) for key, value in record.items()}


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return without_secrets(value)
    return [_cleaned(each) for each in value] if isinstance(value, (list, tuple)) else value
