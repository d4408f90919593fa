"""Comparison of two versions of fidtool: the modules behind ``python scripts/compare``."""
