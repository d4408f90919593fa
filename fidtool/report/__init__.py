"""An evaluation as text, JSON, HTML page and plot."""
