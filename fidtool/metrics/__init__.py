"""The metrics: one file each says its settings, what it needs, how it is computed and how it is shown."""
