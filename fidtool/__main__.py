"""``python -m fidtool``, which is how torchrun starts it."""

from fidtool.cli.main import main

if __name__ == "__main__":
    main()
