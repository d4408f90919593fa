"""What several ranks say of a failure, as goldens have it: masked is what tells one machine or moment from another."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from support.goldens import Golden, placed
from support.places import TESTS


def masked_line(said: str, place: Path, chance: Mapping[str, str] | None = None) -> str:
    """``said`` without the numbers of processes and ports, the host, and the folders.

    Args:
        said: one line.
        place: the folder in which the ranks ran.
        chance: what else may vary, by regular expression, and what stands for it.
    """
    masks = {
        re.escape(str(place)): "PLACE",
        re.escape(str(TESTS)): "TESTS",
        rf"(?<=[ (]){re.escape(socket.gethostname())}(?=\))": "HOST",
        r"\bprocess \d+": "process N",
        r"\bnetwork@[0-9a-f]{12}\b": "network@DIGEST",
        r"\b(127\.0\.0\.1|localhost):\d+": r"\1:PORT",
        # What the system says, of which there is more than one kind.
        r"(?<=within \d s )\([^)]*\)": "(…)",
        r"(?<=the rendezvous store )\([^)]*\)": "(…)",
        r"(?<=a decoding worker died )\(.*?\)(?=: it was)": "(…)",
        **(chance or {}),
    }
    masked: str = placed(said, masks)
    return masked


def compare(golden: Golden, fault: str, said: str, place: Path, chance: Mapping[str, str] | None = None) -> None:
    """Compares the line with the golden of that fault."""
    golden(f"failures/ranks/{re.sub('[^a-z0-9]+', '_', fault.lower()).strip('_')}", masked_line(said, place, chance))


def refusals(stderr: str) -> list[str]:
    """What training's own errors said in a program of the folder ``programs``, on whatever rank.

    Which rank was the first to give up waiting is chance, and so are the numbers of a program's calls; differences of
    modules with random numbers are the processor's.
    """
    always = {r" \(reported by rank \d\)": "", r"\b(number|of metric) \d+": r"\1 N"}
    random = {r"\bby [\d.e-]+ on rank": "by N on rank"}
    found = [json.loads(line) for line in re.findall(r"^refused: (.*)", stderr, re.MULTILINE)]
    drawn = re.compile("replicas of (ArcFaceLoss|Sequential) ")
    return sorted({placed(message, {**always, **(random if drawn.search(message) else {})}) for message in found})
