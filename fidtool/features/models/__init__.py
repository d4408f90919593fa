"""The networks that fidtool knows: one file per family."""
