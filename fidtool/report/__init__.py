"""An evaluation as text and as JSON."""
