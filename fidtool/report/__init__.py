"""An evaluation as text, as JSON, as a page and as a plot."""
