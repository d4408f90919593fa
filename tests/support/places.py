"""Where things lie: the repository's folders, optional data, the networks that tests give to ``--extractor``."""

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
"""Programs that tests run under torchrun."""
CONFORMANCE = ROOT.parent / "shared" / "conformance"
"""Optional data beside the checkout; what needs it skips without it."""

TINY = f"{SUPPORT / 'tiny_network.py'}:network"
"""Value of --extractor for the small network of 16 features."""
FD = f"FD ({TINY})"
"""What its Fréchet distance is called."""
COLOURS = TINY.replace(":network", ":colours")
"""Another of the same file, of 6 features."""
FAULTY = f"{SUPPORT / 'faulty_network.py'}:network"
"""A network that fails as the variable FAULT says."""
