"""Paths: the repository's folders, optional data, and networks for ``--extractor``."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
SCRIPTS = ROOT / "scripts"
EXAMPLES = SCRIPTS / "examples"
SMALL_NETWORK = f"{SCRIPTS / 'bench' / 'networks.py'}:network"
"""Value of --extractor for the 64 features of the benchmarks' small network."""
PROGRAMS = SUPPORT / "programs"
"""Programs that tests run with torchrun."""
CONFORMANCE = ROOT.parent / "shared" / "conformance"
"""Optional data next to the repository. Tests that need it are skipped without it."""

TINY = f"{SUPPORT / 'tiny_network.py'}:network"
"""Value of --extractor for the small network of 16 features."""
FD = f"FD ({TINY})"
"""Name of its Fréchet distance in output."""
COLOURS = TINY.replace(":network", ":colours")
"""A network of 6 features, from the same file."""
FAULTY = f"{SUPPORT / 'faulty_network.py'}:network"
"""A network that fails as the environment variable FAULT says."""
