"""Benchmarks of fidtool: the modules behind ``python scripts/bench``."""
