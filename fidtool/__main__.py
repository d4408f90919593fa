"""``python -m fidtool``, which is how torchrun starts it."""

from fidtool.cli.main import process

if __name__ == "__main__":
    process()
