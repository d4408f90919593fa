"""Command line, one module per command. Commands import torch lazily, when they need it."""
