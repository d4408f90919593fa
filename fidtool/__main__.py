"""Entry point of ``python -m fidtool``, which torchrun uses."""

from fidtool.cli.main import process

if __name__ == "__main__":
    process()
