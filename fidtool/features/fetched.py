"""A file from the network, whole or not at all."""

from __future__ import annotations

import base64
import re
import time
import urllib.request
from urllib.parse import unquote_to_bytes

_SILENCE_SECONDS = 30.0
_DOWNLOAD_SECONDS = 1800.0


def fetched(url: str) -> bytes:
    """Everything at ``url``; gives up after a silence of 30 s, or after half an hour in all.

    Raises:
        OSError, ValueError, http.client.HTTPException: nothing came, or not all of it.
    """
    deadline = time.monotonic() + _DOWNLOAD_SECONDS
    blocks = []
    with urllib.request.urlopen(_request(url), timeout=_SILENCE_SECONDS) as response:
        promised = response.headers.get("Content-Length")
        while block := response.read(1 << 20):
            blocks.append(block)
            if time.monotonic() > deadline:
                raise OSError(f"not complete after {_DOWNLOAD_SECONDS / 60:.0f} minutes")
    data = b"".join(blocks)
    if promised is not None and len(data) != int(promised):
        raise OSError(f"the connection broke off after {len(data)} of {promised} bytes")
    return data


def _request(url: str) -> str | urllib.request.Request:
    """The request for ``url``, with its ``user:password@`` as Basic authentication, which urllib takes for the host."""
    found = re.fullmatch("(https?://)([^/?#]*)@(.*)", url, re.IGNORECASE | re.DOTALL)
    if found is None:
        return url
    scheme, user, place = found.groups()
    return urllib.request.Request(
        f"{scheme}{place}", headers={"Authorization": f"Basic {base64.b64encode(unquote_to_bytes(user)).decode()}"}
    )
