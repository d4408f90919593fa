"""What a run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from operator import index

from fidtool.errors import InputError

PRECISIONS = ("fp32",)
LONGEST_SECONDS = 30.0 * 86400
"""No deadline is longer."""
MAX_PIXELS = 178_956_970
"""An image of more is taken for a decompression bomb: what Pillow, and so each of the peers, refuses by itself."""


@dataclass(frozen=True)
class Config:
    """Settings of a run; the command line's options and `fidtool.compute`'s arguments both end here.

    Attributes:
        protocol: name of a protocol; None is pytorch-fid's, or that of the statistics files where nothing else is
            compared.
        extractor: ``inception``, or ``path/to/file.py:factory`` for a network of your own (its code is run).
        dims: dimensions of Inception's features: 64, 192, 768 or 2048; None is 2048, or what your network has.
        precision: ``fp32``: float32 throughout, TF32 off.
        weights: file of Inception weights; None searches.
        num: images taken from every image set, by a fixed pseudo-random order; None takes all.
        seed: changes that order.
        expect: number of images that every FAKE must have.
        recursive: look for images in subfolders.
        on_error: ``fail`` ends the run at a file that cannot be read, ``skip`` leaves it out and says so.
        max_skip: the largest fraction of a set that ``skip`` may leave out.
        max_pixels: an image of more pixels counts as a decompression bomb and cannot be read.
        batch_size: images in a forward pass; None is the device's default.
        num_workers: processes a rank that decode; None is the device's default, 0 decodes in the main thread.
        device: ``cpu``, ``cuda``, ``cuda:1`` or ``mps``; None takes a GPU where there is one.
        cache: use and fill the cache of statistics.
        allow_mismatch: compare statistics whose protocols differ, with a warning instead of an error.
        fail_above: the gate: a FID above this makes the exit status 3.
        checkpoint: folder that keeps finished work, so that a run that was killed goes on from there; None keeps none.
        checkpoint_every: seconds from one writing to the next.
        peer_timeout: seconds without a sign of life after which a rank counts as lost.
        timeout: seconds that a rank waits for the others in one collective, and for its decoding processes to deliver.

    Raises:
        InputError: a value out of range.
    """

    protocol: str | None = None
    extractor: str = "inception"
    dims: int | None = None
    precision: str = "fp32"
    weights: str | None = None
    num: int | None = None
    seed: int = 0
    expect: int | None = None
    recursive: bool = True
    on_error: str = "fail"
    max_skip: float = 0.01
    max_pixels: int = MAX_PIXELS
    batch_size: int | None = None
    num_workers: int | None = None
    device: str | None = None
    cache: bool = True
    allow_mismatch: bool = False
    fail_above: float | None = None
    checkpoint: str | None = None
    checkpoint_every: float = 15.0
    peer_timeout: float = 20.0
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        self._check_types()
        for name, least in (("num", 1), ("expect", 1), ("batch_size", 1), ("num_workers", 0), ("max_pixels", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}, not {value}")
        if self.precision not in PRECISIONS:
            raise InputError(f"unknown precision {self.precision!r}; there is {', '.join(PRECISIONS)}")
        if self.fail_above is not None and not self.fail_above >= 0:
            raise InputError(f"fail_above must be a number of at least 0, not {self.fail_above}")
        self._check_kept_and_waited()
        if self.on_error not in ("fail", "skip"):
            raise InputError(f"on_error must be fail or skip, not {self.on_error!r}")
        if not 0 <= self.max_skip <= 1:
            raise InputError(f"max_skip is a fraction from 0 to 1, not {self.max_skip}")
        if self.dims is not None and self.extractor != "inception":
            raise InputError("dims chooses a layer of Inception; your own network's output decides its dims")

    def _check_kept_and_waited(self) -> None:
        for name, smallest in (("peer_timeout", 3.0), ("timeout", 1.0), ("checkpoint_every", 0.0)):
            if not smallest <= getattr(self, name) <= LONGEST_SECONDS:
                limits = f"from {smallest:g} to {LONGEST_SECONDS:g}"
                raise InputError(f"{name} is a number of seconds {limits}, not {getattr(self, name)}")
        if self.checkpoint == "":
            raise InputError("checkpoint must be the path of a folder, not empty")

    def _check_types(self) -> None:
        """From Python anything may come; NumPy's numbers become plain ones, which JSON takes."""
        for name in ("num", "seed", "expect", "dims", "batch_size", "num_workers", "max_pixels"):
            value = getattr(self, name)
            if value is None and name not in ("seed", "max_pixels"):
                continue
            try:
                object.__setattr__(self, name, index(value))
            except TypeError:
                raise InputError(f"{name} must be an integer, not {value!r}") from None
        for name in ("protocol", "extractor", "precision", "device", "on_error", "checkpoint"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in ("extractor", "precision", "on_error")):
                raise InputError(f"{name} must be a text, not {value!r}")
        for name in ("fail_above", "peer_timeout", "timeout", "checkpoint_every", "max_skip"):
            value = getattr(self, name)
            if value is None and name == "fail_above":
                continue
            if not isinstance(value, Real):
                raise InputError(f"{name} must be a number, not {value!r}")
            object.__setattr__(self, name, float(value))
