"""Messages of several ranks about a failure, for goldens. Values that depend on the machine or the
time are masked.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from support.goldens import Golden, placed
from support.places import TESTS


def compare(
    golden: Golden, fault: str, said: str, place: Path, chance: Mapping[str, str] | None = None
) -> None:
    """Compare one line with the golden of a fault, with process ids, ports, the host and the
    folders masked.

    Args:
        golden: the fixture.
        fault: name of the golden.
        said: the line.
        place: the folder in which the ranks ran.
        chance: replacements for other parts that may vary, by regular expression.
    """
    masks = {
        # Chance decides which of a rank's images is the first.
        r"/\S+/(real|fake)/\d{5}\.png": r"\1/IMAGE",
        re.escape(str(place)): "PLACE",
        re.escape(str(TESTS)): "TESTS",
        rf"(?<=[ (]){re.escape(socket.gethostname())}(?=\))": "HOST",
        r"\bprocess \d+": "process N",
        r"\bnetwork@[0-9a-f]{12}\b": "network@DIGEST",
        r"\b(127\.0\.0\.1|localhost):\d+": r"\1:PORT",
        # The system's messages, which differ between systems.
        r"(?<=within \d s )\([^)]*\)": "(…)",
        r"(?<=the rendezvous store )\([^)]*\)": "(…)",
        r"(?<=a decoding worker died )\(.*?\)(?=: it was)": "(…)",
        **(chance or {}),
    }
    name = re.sub("[^a-z0-9]+", "_", fault.lower()).strip("_")
    golden(f"failures/ranks/{name}", placed(said, masks))


def refusals(stderr: str) -> list[str]:
    """Return the messages of the training package's errors in a program of the folder ``programs``,
    on any rank.

    Masked are the rank that gave up waiting first, and the numbers of calls.
    """
    always = {r" \(reported by rank \d\)": "", r"\b(number|of metric) \d+": r"\1 N"}
    found = [json.loads(line) for line in re.findall(r"^refused: (.*)", stderr, re.MULTILINE)]
    return sorted({placed(message, always) for message in found})
