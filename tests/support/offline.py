"""The Inception weights that the extra 'offline' brings."""

from __future__ import annotations

import pytest

from fidtool.features.weights import offline_path

ORIGINAL = offline_path()
"""The package's file, or None where the extra is not installed."""
needs_weights = pytest.mark.skipif(ORIGINAL is None, reason="needs fidtool[offline]")
