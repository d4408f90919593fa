"""The settings of a run, the presets, and the record of both in a result."""
