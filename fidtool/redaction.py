"""Addresses without what may be secret in them. Imports nothing of fidtool's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SCHEME = re.compile(r"(?<![\w+.-])([\w+.-]*://)")
"""Where an address begins. Each rule here looks at a character a fixed number of times: texts may be hostile ones."""
_ACCOUNTS = ("abfs", "abfss", "az", "wasb", "wasbs")
"""Of these, abfs://container@account names a place."""
_PARAMETER = re.compile(r"[?#&][^\s/?#&=]*=")
_WEB_PARAMETER = re.compile(r"[?#&](?=\S)")
"""On the web a question mark is no wildcard."""
_HOST_AND_PORT = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+|\[[\da-fA-F:.]+\]):\d{1,5}(?![^/?#\s])")
"""Ahead of which there is no password: what has no dot, and digits behind a colon, may be a user and one."""
_CLOSING = "]}>'\"),.:;"
"""What ends a sentence or a call is not part of the address before it."""


def redacted(text: str) -> str:
    """``text`` without what may be secret in the addresses in it: users, passwords, queries and fragments.

    Where it is in doubt what belongs to them, more is left out: of a password that should have been escaped, everything
    up to the last ``@`` before the next address or the closing quote.
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
    """What names the place in an address, and the sentence behind it.

    Args:
        scheme: in small letters.
        address: all behind ``://``.
    """
    host = re.split("[/?#]", address, maxsplit=1)[0]
    if _HOST_AND_PORT.match(address):
        place = address
    elif ":" in host:  # before a port, or before a password, in which slashes and blanks may not have been escaped
        user, _, place = address.rpartition("@")
        if "?" in user or "#" in user:
            place = f"?={place}"  # the @ may be one in a query, of which this is the rest
    elif scheme in _ACCOUNTS:
        place = address
    else:
        place = address[host.rfind("@") + 1 :]
    return _without_query(place, _WEB_PARAMETER if "http" in scheme else _PARAMETER)


def _without_query(place: str, parameter: re.Pattern[str]) -> str:
    """``place`` without all from its first parameter to the end of the word with the last one."""
    starts = [each.start() for each in parameter.finditer(place)]
    begin = next((start for start in starts if place[start] != "&"), None)
    if begin is None:
        return place
    last = place[starts[-1] :].split(maxsplit=1)[0]
    end = starts[-1] + len(last.rstrip(_CLOSING))
    return place[:begin] + place[max(begin, end) :]


def without_secrets(record: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON has of a run, with every text in it `redacted`, keys too; tuples become lists."""
    return {_cleaned(key): _cleaned(value) for key, value in record.items()}


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return without_secrets(value)
    return [_cleaned(each) for each in value] if isinstance(value, (list, tuple)) else value
