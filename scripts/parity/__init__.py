"""Comparison of fidtool with other tools: the modules behind ``python scripts/parity``."""
