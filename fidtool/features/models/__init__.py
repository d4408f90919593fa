"""The networks that fidtool knows, a file for each family."""
