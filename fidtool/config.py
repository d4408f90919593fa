"""What a run is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, inf
from numbers import Real
from operator import index

from fidtool.errors import InputError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
METRICS = ("fid", "kid", "is", "prdc", "sfid", "fid-infinity", "cmmd")
FRECHET = ("fid", "sfid", "fid-infinity")
"""Those that are Fréchet distances."""
TIES = ("strict", "inclusive")
LONGEST_SECONDS = 30.0 * 86400
"""No deadline is longer."""
MAX_PIXELS = 178_956_970
"""An image of more is taken for a decompression bomb: what Pillow, and so each of the peers, refuses by itself."""


_LEAST = {
    "num": 1,
    "expect": 1,
    "batch_size": 1,
    "num_workers": 0,
    "max_pixels": 1,
    "input_size": 1,
    "cmmd_input_size": 1,
    "kid_subset_size": 2,
    "kid_subsets": 1,
    "is_splits": 1,
    "nearest_k": 1,
}
_GATES = ("fail_above", "max_duplicates")
_OF_NETWORKS = ("input_size", "feature_step", "cmmd_input_size", "cmmd_feature_step")
WAYS = frozenset({"num_workers", "cache", "checkpoint", "checkpoint_every", "peer_timeout", "timeout"})
"""Settings of how the work is done that leave no trace in a set's statistics."""
_OPTIONAL_INTEGERS = frozenset({"num", "expect", "dims", "batch_size", "num_workers", *_OF_NETWORKS})


@dataclass(frozen=True)
class NetworkChoice:
    """A network as it is asked for.

    Attributes:
        extractor: as ``--extractor`` takes it.
        weights: value of ``--weights``: a file, or the name of published weights; None is the network's usual ones.
        input_size: side of the input of a program that does not say, in pixels.
        feature_step: in the place of the network's own, see `fidtool.Network`.
    """

    extractor: str
    weights: str | None = None
    input_size: int | None = None
    feature_step: int | None = None


@dataclass(frozen=True)
class Config:
    """Settings of a run; the command line's options and `fidtool.compute`'s arguments both end here.

    Attributes:
        protocol: name of a protocol; None is that of the statistics files, or pytorch-fid's, or the network's own
            preparation.
        extractor: ``inception``, or another network, see `fidtool.features.catalogue` (the code behind
            ``path/to/file.py:factory`` is run).
        inception_named: ``inception`` is what was asked for, and not the default, in whose place a statistics file's
            network is taken.
        dims: dimensions of Inception's features: 64, 192, 768 or 2048; None is what the statistics files have, or 2048,
            or what your network has.
        precision: of the network: ``fp32``, float32 throughout; ``tf32``, float32 whose products are rounded to 10 bits
            (NVIDIA GPUs); ``bf16`` or ``fp16``, 16 bits. The moments and distances are exact or float64 in each.
        compiled: run the network through torch.compile.
        weights: file of Inception's weights or of another published network's (there, the name of an entry of its
            library will do); None searches.
        input_size: side of the input of an exported program that does not say, in pixels.
        feature_step: features of a network other than Inception are rounded to multiples of 2 ** -feature_step; None is
            what the network says.
        num: images taken from every image set, by a fixed pseudo-random order; None takes all.
        seed: changes that order.
        expect: number of images that every FAKE must have.
        recursive: look for images in subfolders.
        value_range: what black and white are in arrays of floats: two numbers, or a text such as ``0,1``.
        on_error: ``fail`` ends the run at a file that cannot be read, ``skip`` leaves it out and says so.
        max_skip: the largest fraction of a set that ``skip`` may leave out.
        max_pixels: an image of more pixels counts as a decompression bomb and cannot be read.
        batch_size: images in a forward pass; None is the device's default.
        num_workers: processes a rank that decode; None is the device's default, 0 decodes in the main thread.
        device: ``cpu``, ``cuda``, ``cuda:1`` or ``mps``; None takes a GPU where there is one.
        cache: use and fill the cache of statistics.
        diagnose: look for copies and faulty pictures in each set, and keep what tells them with its statistics.
        uncertainty: give each Fréchet distance (``fid``) its error bars.
        influence: find the images of each FAKE that raise its Fréchet distance (``fid``).
        exhibits: keep what a report shows beside the numbers.
        allow_mismatch: compare statistics whose protocols differ, with a warning instead of an error.
        fail_above: the gate: where the first Fréchet distance among ``metrics`` (``fid``, ``sfid`` or
            ``fid-infinity``) is above this, the exit status is 3.
        max_duplicates: the gate on copies: a larger fraction of a FAKE that are copies of others in it likewise.
        metrics: what is computed, all of it from one pass over the images: ``fid`` (the Fréchet distance of the
            extractor's features, whatever network that is), ``kid``, ``is`` (Inception Score of each FAKE), ``prdc``
            (precision, recall, density, coverage), ``sfid``, ``fid-infinity``, ``cmmd``. A text with commas, or a
            sequence; here in the order in which they were asked for.
        kid_subset_size, kid_subsets, kid_seed: KID is the mean over so many pairs of random subsets of so many images.
        is_splits: the Inception Score is the mean over so many consecutive parts of a set.
        is_bias: add the classifier's bias, which the original code and its followers leave out.
        nearest_k: neighbours that a ball of precision, recall, density and coverage reaches to.
        ties: whether an image on the surface of a ball is in it: ``strict`` (no, as prdc) or ``inclusive`` (yes, as
            Kynkäänniemi et al., StyleGAN, torch-fidelity and ADM).
        cmmd_extractor, cmmd_weights, cmmd_input_size, cmmd_feature_step: the same of CMMD's network, if it is not CLIP
            ViT-L/14 at 336 pixels.
        checkpoint: folder that keeps finished work, so that a run that was killed goes on from there; None keeps none.
        checkpoint_every: seconds from one writing to the next.
        peer_timeout: seconds without a sign of life after which a rank counts as lost.
        timeout: seconds that a rank waits for the others in one collective, and for its decoding processes to deliver.

    Raises:
        InputError: a value out of range.
    """

    protocol: str | None = None
    extractor: str = "inception"
    inception_named: bool = False
    dims: int | None = None
    precision: str = "fp32"
    compiled: bool = False
    weights: str | None = None
    input_size: int | None = None
    feature_step: int | None = None
    num: int | None = None
    seed: int = 0
    expect: int | None = None
    recursive: bool = True
    value_range: tuple[float, float] | None = None
    on_error: str = "fail"
    max_skip: float = 0.01
    max_pixels: int = MAX_PIXELS
    batch_size: int | None = None
    num_workers: int | None = None
    device: str | None = None
    cache: bool = True
    diagnose: bool = True
    uncertainty: bool = False
    influence: bool = False
    exhibits: bool = False
    allow_mismatch: bool = False
    fail_above: float | None = None
    max_duplicates: float | None = None
    checkpoint: str | None = None
    checkpoint_every: float = 15.0
    peer_timeout: float = 20.0
    timeout: float = 1800.0
    metrics: tuple[str, ...] = ("fid",)
    kid_subset_size: int = 1000
    kid_subsets: int = 100
    kid_seed: int = 0
    is_splits: int = 10
    is_bias: bool = False
    nearest_k: int = 5
    ties: str = "strict"
    cmmd_extractor: str = "clip"
    cmmd_weights: str | None = None
    cmmd_input_size: int | None = None
    cmmd_feature_step: int | None = None

    def __post_init__(self) -> None:
        self._check_types()
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}, not {value}")
        object.__setattr__(self, "value_range", _two_numbers(self.value_range))
        self._check_metrics()
        if self.precision not in PRECISIONS:
            raise InputError(f"unknown precision {self.precision!r}; there are {', '.join(PRECISIONS)}")
        if self.fail_above is not None and not self.fail_above >= 0:
            raise InputError(f"fail_above must be a number of at least 0, not {self.fail_above}")
        self._check_duplicates()
        self._check_kept_and_waited()
        if self.on_error not in ("fail", "skip"):
            raise InputError(f"on_error must be fail or skip, not {self.on_error!r}")
        if not 0 <= self.max_skip <= 1:
            raise InputError(f"max_skip is a fraction from 0 to 1, not {self.max_skip}")
        self._check_network()

    @property
    def network(self) -> NetworkChoice:
        """The network of the features, as it is asked for."""
        return NetworkChoice(self.extractor, self.weights, self.input_size, self.feature_step)

    @property
    def cmmd_network(self) -> NetworkChoice:
        """CMMD's network likewise."""
        return NetworkChoice(self.cmmd_extractor, self.cmmd_weights, self.cmmd_input_size, self.cmmd_feature_step)

    @property
    def gated(self) -> str:
        """The metric that ``fail_above`` is about, the first Fréchet distance asked for; empty if there is none."""
        return next((name for name in self.metrics if name in FRECHET), "")

    def _check_duplicates(self) -> None:
        if self.max_duplicates is None:
            return
        if not 0 <= self.max_duplicates <= 1:
            raise InputError(f"max_duplicates is a fraction from 0 to 1, such as 0.05, not {self.max_duplicates}")
        if not self.diagnose:
            raise InputError("max_duplicates is a gate on copies, which diagnose=False (--no-diagnosis) leaves out")

    def most_skipped(self, count: int) -> int:
        """How many of ``count`` files ``on_error`` may leave out."""
        # As it was typed: 0.29 of 100 is 29, whatever the nearest binary fraction.
        return floor(Fraction(repr(self.max_skip)) * count) if self.on_error == "skip" else 0

    def _check_network(self) -> None:
        if self.dims is not None and self.extractor != "inception":
            raise InputError("dims chooses a layer of Inception; your own network's output decides its dims")
        if self.extractor == "inception" and not (self.input_size is None and self.feature_step is None):
            name = "feature_step" if self.input_size is None else "input_size"
            raise InputError(f"{name} is fixed for Inception, by which its numbers compare; it is for other extractors")
        for name in ("feature_step", "cmmd_feature_step"):
            value = getattr(self, name)
            if value is not None and not -100 <= value <= 100:
                raise InputError(f"{name} must lie in -100..100, not {value}")

    def _check_metrics(self) -> None:
        names = self.metrics.split(",") if isinstance(self.metrics, str) else self.metrics
        try:
            wanted = tuple(dict.fromkeys(str(name).strip() for name in names))
        except TypeError:
            raise InputError(f"metrics must be names of metrics, not {self.metrics!r}") from None
        for name in wanted:
            if name not in METRICS:
                raise InputError(f"unknown metric {name!r}; there are {', '.join(METRICS)}")
        if not wanted:
            raise InputError(f"metrics is empty; there are {', '.join(METRICS)}")
        object.__setattr__(self, "metrics", wanted)
        self._check_suits(wanted)

    def _check_suits(self, wanted: Sequence[str]) -> None:
        """Whether the other settings go with these metrics."""
        if self.fail_above is not None and not self.gated:
            names = " or ".join(FRECHET)
            raise InputError(f"fail_above is a gate on a Fréchet distance: add {names} to the metrics, or leave it out")
        if self.uncertainty and not self.diagnose:
            raise InputError("uncertainty needs the diagnosis: copies would narrow the interval (--no-diagnosis)")
        for name in ("uncertainty", "influence"):
            if getattr(self, name) and "fid" not in wanted:
                raise InputError(f"{name} is about the metric fid, which is not among those asked for")
        if self.ties not in TIES:
            raise InputError(f"ties must be {' or '.join(TIES)}, not {self.ties!r}")
        for name, title in (("is", "the Inception Score"), ("sfid", "sFID")):
            if name in wanted and self.extractor != "inception":
                raise InputError(f"{title} is a matter of Inception: leave out --extractor, or {name} of --metrics")
        if "is" in wanted and self.dims not in (None, 2048):
            raise InputError(f"the Inception Score needs 2048 dims, what the classifier takes, not {self.dims}")
        if "sfid" in wanted and self.dims in (64, 192):
            raise InputError(f"sFID needs Inception up to Mixed_6d: --dims 768 or 2048, not {self.dims}")

    def _check_kept_and_waited(self) -> None:
        for name, smallest in (("peer_timeout", 3.0), ("timeout", 1.0), ("checkpoint_every", 0.0)):
            if not smallest <= getattr(self, name) <= LONGEST_SECONDS:
                limits = f"from {smallest:g} to {LONGEST_SECONDS:g}"
                raise InputError(f"{name} is a number of seconds {limits}, not {getattr(self, name)}")
        if self.checkpoint == "":
            raise InputError("checkpoint must be the path of a folder, not empty")
        if self.checkpoint is not None and "://" in self.checkpoint:
            raise InputError(f"checkpoint takes a folder on this machine, and {self.checkpoint} is an address")

    def _check_types(self) -> None:
        """From Python anything may come; NumPy's numbers become plain ones, which JSON takes."""
        for name in (*_LEAST, "seed", "dims", "kid_seed", "feature_step", "cmmd_feature_step"):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL_INTEGERS:
                continue
            try:
                object.__setattr__(self, name, index(value))
            except TypeError:
                raise InputError(f"{name} must be an integer, not {value!r}") from None
        required = ("extractor", "precision", "on_error", "ties", "cmmd_extractor")
        for name in ("protocol", "device", "checkpoint", "cmmd_weights", *required):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in required):
                raise InputError(f"{name} must be a text, not {value!r}")
        for name in (*_GATES, "peer_timeout", "timeout", "checkpoint_every", "max_skip"):
            value = getattr(self, name)
            if value is None and name in _GATES:
                continue
            if not isinstance(value, Real):
                raise InputError(f"{name} must be a number, not {value!r}")
            object.__setattr__(self, name, float(value))


def _two_numbers(value: object) -> tuple[float, float] | None:
    """Black and white of a value range, as a text or as numbers."""
    if value is None:
        return None
    try:
        black, white = (float(part) for part in (value.split(",") if isinstance(value, str) else value))  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        raise InputError(f"value_range is black and white, two numbers such as 0,1 or -1,1, not {value!r}") from None
    if not -inf < black < white < inf:
        raise InputError(f"value_range must rise from black to white, as 0,1 or -1,1 do, not {value!r}")
    return black, white
