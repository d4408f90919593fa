"""The metrics. Each file defines one: its settings, what it needs, how it is computed and how it is shown."""
