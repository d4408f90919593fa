"""Exact first and second moments: sums of integers, with the same bits for any order, batching or
sharding.

Each feature is rounded to a multiple of 2 ** -feature_step: an integer q with |q| < 2 ** 23.
Products of two such integers are below 2 ** 46, and sums of 128 products are at most 2 ** 53. A
float64 matrix product of up to 128 rows is therefore exact, regardless of the library, its blocking
and its threads. The products are added to int64 totals, and int64 totals to each other, which gives
the same bits in any order. Products are first added in float64 while the squares of the rows show
that this is exact, which is usually the case for a whole set.

On a GPU, the host does not wait for facts about the rows, such as the largest value. It then
assumes the largest squares that the range allows.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fidtool.distributed.launch import machine_memory
from fidtool.distributed.world import World
from fidtool.errors import RunError, SettingName, option
from fidtool.features.device import HostCopy
from fidtool.features.protocol import FEATURE_STEPS, USUAL_STEP
from fidtool.statistics.set_statistics import Gaussian, Totals

INTEGER_BITS = 23
"""Largest number of bits of a feature in units of its step: with more, the sums would not be
exact.
"""
MIN_BITS = 11
"""Bits that features must have on average in units of their step."""
# Number of rows whose Gram matrix is always exact in float64: 128 * 2 ** 46 = 2 ** 53.
_ROWS = 128
_LARGEST_SQUARE = 2.0 ** (2 * INTEGER_BITS)
# Number of matrices of 8-byte values that a comparison has in memory at the same time, about: sums,
# Gram matrix, covariances of both sets, and their products.
_MATRICES = 6
_EXACT = 2.0**53

# Bits that a chosen step leaves for larger features, and that it may leave unused on top.
_HEADROOM_BITS = 3
_SPARE_BITS = 4

_LIMB_BITS = 32
_LOW_BITS = (1 << _LIMB_BITS) - 1
# Columns of the matrices of `check_exact_products`, columns that differ, and bits omitted where
# 2048 products are added, so that the sums are below 2 ** 53.
_CHECKED_DIMS = 2048
_CHECKED_COLUMNS = 64
_CHECKED_SHIFT = 4


def suggest_step(feature_step: int, largest: float) -> int:
    """Return a step for features up to ``largest``, in units of the current step, with a margin of
    a factor of 4.
    """
    _, room = math.frexp(largest)
    return feature_step + INTEGER_BITS - 2 - room


def choose_step(largest: float) -> int:
    """Return a step for features, of which the ``largest`` of a few images is known.

    It has room for features 8 times as large. If the largest is in 0.125..4, it is 18, and
    otherwise even, so that features of other images mostly get the same.
    """
    if largest == 0.0 or not math.isfinite(largest):  # which is reported for the image
        return USUAL_STEP
    _, exponent = math.frexp(largest)
    finest = INTEGER_BITS - _HEADROOM_BITS - exponent
    if USUAL_STEP <= finest <= USUAL_STEP + _SPARE_BITS:
        return USUAL_STEP
    lowest, highest = FEATURE_STEPS
    return min(max(finest - finest % 2, lowest), highest)


def step_error(problem: str, setting: SettingName | None, better: int) -> RunError:
    """Return the error about features that a step does not suit; for ``setting`` see
    `ExactMoments`.
    """
    if not FEATURE_STEPS[0] <= better <= FEATURE_STEPS[1]:
        remedy = "scale the features in the network"
    elif setting is None:
        remedy = "check the weights, because Inception's step is fixed"
    elif not setting:
        remedy = f"set feature_step={better} where the network is specified"
    else:
        remedy = f"pass {option(setting, better)}"
    return RunError(problem, remedy, setting=setting)


def not_finite_error() -> RunError:
    """Return the error about features that cannot be added up."""
    return RunError(
        "the network returned a feature that is NaN or infinite:", "check its weights and input"
    )


def check_dims(dims: int) -> None:
    """Raise a RunError if the sums and covariances of features with so many dimensions do not fit
    into memory.
    """
    matrix = 8 * dims**2
    memory = machine_memory()
    if _MATRICES * matrix > memory:
        raise RunError(
            f"features of {dims} dimensions need {_MATRICES} matrices of {matrix / 1e9:.1f} GB "
            f"each, and this machine has {memory / 1e9:.1f} GB of memory:",
            "use a layer with fewer dimensions",
            "average its features in the network",
        )


class ExactMoments:
    """Count, sum and sum of outer products of feature vectors, as integers.

    Args:
        dims: length D of a feature vector. Memory is two int64 matrices of D x D.
        feature_step: features are rounded to multiples of 2 ** -feature_step.
        device: device of the sums; it must support float64.
        setting: setting that determines ``feature_step``, see `fidtool.errors.option`; None for
            Inception, whose step is fixed; empty for networks that are configured where they are
            named.

    Attributes:
        count: number of feature vectors added.
    """

    def __init__(
        self,
        dims: int,
        feature_step: int,
        device: torch.device | str = "cpu",
        setting: SettingName | None = "feature_step",
    ) -> None:
        check_dims(dims)
        self.count = 0
        self.dims = dims
        self.feature_step = feature_step
        self._setting = setting
        self._sum = torch.zeros(dims, dtype=torch.int64, device=device)
        # The value of an entry is high * 2 ** 32 + low, where 0 <= low < 2 ** 32: beyond about 4
        # million images it exceeds 64 bits.
        self._low = torch.zeros(dims, dims, dtype=torch.int64, device=device)
        self._high = torch.zeros_like(self._low)
        # The Gram matrix of the latest rows, in float64, and an upper bound of its entries.
        self._recent: torch.Tensor | None = None
        self._reach = 0.0
        # Facts about rows that the host has not read.
        self._unread: list[HostCopy] = []
        # In units of the step, of features that are not 0: the largest, the sum of the bit lengths,
        # and their number.
        self._largest = 0.0
        self._bits = 0
        self._nonzero = 0

    def add(self, features: torch.Tensor) -> None:
        """Add a batch. Its range is checked by `check_range`, and before the sums are used.

        Args:
            features: floating-point tensor of shape (n, dims), n >= 0.
        """
        scaled = features.to(self._low.device).to(torch.float64).mul(2.0**self.feature_step)
        for rows in torch.split(scaled, _ROWS):
            if rows.numel():
                self._add_rows(rows)

    def _add_rows(self, rows: torch.Tensor) -> None:
        integers = rows.round()
        facts = [
            rows.abs().amax(),  # propagates NaN
            torch.frexp(rows).exponent.clamp_(0, INTEGER_BITS).sum(),
            torch.count_nonzero(rows),
            integers.square().sum(0).max(),
        ]
        copy = HostCopy(torch.stack([fact.double() for fact in facts]))
        reach = len(rows) * _LARGEST_SQUARE
        if copy.is_ready:
            reach = self._read_facts(copy)
        else:
            self._unread.append(copy)
        # By Cauchy-Schwarz, no entry of a Gram matrix and no partial sum of one exceeds its largest
        # diagonal entry.
        if self._reach + reach > _EXACT:
            self._spill()
        self._reach += reach
        if self._recent is None:
            self._recent = integers.T @ integers
        else:
            self._recent.addmm_(integers.T, integers)
        self._sum += integers.sum(0).to(torch.int64)
        self.count += len(rows)

    def _read_facts(self, copy: HostCopy) -> float:
        """Note facts about rows, and return the largest sum of their squares."""
        largest, bits, nonzero, reach = copy.wait().tolist()
        self._largest = float(np.maximum(largest, self._largest))  # propagates NaN
        self._bits += int(bits)
        self._nonzero += int(nonzero)
        return float(reach)

    def check_range(self) -> None:
        """Check that all features can be added exactly. This waits for all that were added.

        Raises:
            RunError: if a feature is not finite or too large for the step; the message states a
                remedy. All later calls raise it again, because the features added together with it
                are lost.
        """
        for copy in self._unread:
            self._read_facts(copy)
        self._unread.clear()
        largest = self._largest
        step = self.feature_step
        if largest < 2.0**INTEGER_BITS - 0.5:
            return
        if not math.isfinite(largest):
            raise not_finite_error()
        raise step_error(
            f"a feature of size {largest / 2.0**step:g} is outside the range of the exact sums, "
            f"which is {2.0 ** (INTEGER_BITS - step):g} at feature_step {step}:",
            self._setting,
            suggest_step(step, largest),
        )

    def to(self, device: torch.device) -> None:
        """Move the sums to another device, which must support float64."""
        self._spill()
        self._sum = self._sum.to(device)
        self._low = self._low.to(device)
        self._high = self._high.to(device)

    def flush(self) -> None:
        """Add the sums in float64 to the integers, unless a feature is refused, see
        `check_range`.
        """
        self.check_range()
        self._spill()

    def _spill(self) -> None:
        if self._recent is not None:
            self._low += self._recent.to(torch.int64)
            self._carry()
            self._recent = None
            self._reach = 0.0

    def _carry(self) -> None:
        """Move the upper bits of the low limb to the high limb, without changing the value."""
        self._high += self._low >> _LIMB_BITS
        self._low &= _LOW_BITS

    def merge(self, world: World) -> None:
        """Sum over the ranks, in place: all ranks get the same totals. A collective."""
        self.flush()
        counts = torch.tensor([self.count, self._bits, self._nonzero], device="cpu")
        self.count, self._bits, self._nonzero = world.all_reduce_sum(counts).tolist()
        self._largest = max(world.gather(self._largest))
        for sums in (self._sum, self._high, self._low):
            world.all_reduce_sum(sums)
        self._carry()

    def totals(self) -> Totals:
        """Return the sums as arrays, for `absorb`. Of symmetric matrices, they hold the upper
        triangle.

        Returns:
            ``count`` and ``largest`` of shape (), ``sizes`` (the sum of the bit lengths and the
            number of nonzero features) of shape (2,), ``sum`` of shape (dims,), ``low`` and
            ``high`` of shape (dims * (dims + 1) / 2,). All are int64 except ``largest``, which is
            float64. While ``low`` can hold all sums, there is no ``high``.
        """
        self.flush()
        upper = np.tri(self.dims, dtype=bool).T
        low = self._low.cpu().numpy()[upper]
        high = self._high.cpu().numpy()[upper]
        totals = {
            "count": np.array(self.count),
            "largest": np.array(self._largest),
            "sizes": np.array([self._bits, self._nonzero], dtype=np.int64),
            "sum": self._sum.cpu().numpy(),
        }
        if high.max(initial=0) < 2**30:  # by Cauchy-Schwarz, all sums are below 2 ** 62 then
            return {**totals, "low": low + (high << _LIMB_BITS)}
        return {**totals, "low": low, "high": high}

    def absorb(self, totals: Totals) -> None:
        """Add sums from `totals`; a ValueError if they are damaged. Their order does not change
        the bits.
        """
        # Sums of earlier versions have no sizes.
        totals = {"sizes": np.zeros(2, dtype=np.int64), **totals}
        if not self._is_valid(totals):
            raise ValueError(f"the sums are damaged, or do not have {self.dims} dimensions")
        self.flush()
        bits, nonzero = totals["sizes"].tolist()
        self._bits += bits
        self._nonzero += nonzero
        self.count += int(totals["count"])
        self._largest = max(self._largest, float(totals["largest"]))
        self._sum += torch.from_numpy(totals["sum"]).to(self._sum.device)
        self._low += self._fill_symmetric(totals["low"])
        if "high" in totals:
            self._high += self._fill_symmetric(totals["high"])
        self._carry()

    def _is_valid(self, totals: Totals) -> bool:
        """Whether these may be sums from `totals` by their types, shapes and bounds."""
        upper = (self.dims * (self.dims + 1) // 2,)
        shapes: dict[str, tuple[int, ...]] = {
            "count": (),
            "largest": (),
            "sizes": (2,),
            "sum": (self.dims,),
            "low": upper,
        }
        if "high" in totals:
            shapes["high"] = upper
        if totals.keys() != shapes.keys():
            return False
        for name, array in totals.items():
            dtype = np.float64 if name == "largest" else np.int64
            if array.shape != shapes[name] or array.dtype != dtype:
                return False
        in_range = 0.0 <= totals["largest"] < 2.0**INTEGER_BITS
        return bool(in_range and totals["sizes"][1] <= totals["count"] * self.dims)

    def _fill_symmetric(self, upper: NDArray[np.int64]) -> torch.Tensor:
        """Return the symmetric matrix with this upper triangle, row by row."""
        rows, columns = np.triu_indices(self.dims)
        matrix = np.empty((self.dims, self.dims), dtype=np.int64)
        matrix[rows, columns] = upper
        matrix[columns, rows] = upper
        return torch.from_numpy(matrix).to(self._low.device)

    def check_precision(self, fewest: int = MIN_BITS) -> None:
        """Check that the step leaves the features at least ``fewest`` bits on average.

        Otherwise a RunError states a suitable step.
        """
        self.flush()
        bits = self._bits / max(self._nonzero, 1)
        if not self._nonzero or bits >= fewest:
            return
        step = self.feature_step
        better = suggest_step(step, self._largest)
        problem = (
            f"the features have {bits:.1f} bits on average at feature_step {step}, fewer than "
            f"{MIN_BITS} (the largest feature is {self._largest / 2.0**step:g}):"
        )
        if bits + better - step < MIN_BITS:
            problem += " no step suits both the small and the large features:"
            raise RunError(problem, "scale the features in the network", setting=self._setting)
        raise step_error(problem, self._setting, better)

    def mean_covariance(self, ddof: int) -> Gaussian:
        """Return the mean and covariance, exact except for the last few roundings of each entry to
        float64.

        In integer arithmetic, the second moments are shifted by the integer vector c nearest to the
        mean, so that features with a large mean and a small spread lose no digits: sum (q-c)(q-c)^T
        = sum q q^T - c s^T - s c^T + n c c^T with s = sum q.

        Args:
            ddof: the covariance is divided by count - ddof. A single image has covariance 0.

        Raises:
            RunError: if no images were added, or rounding leaves even the largest feature too few
                bits.
        """
        self.flush()
        if self.count == 0:
            raise RunError("no images were added")
        if 0.0 < self._largest < 2.0**MIN_BITS:
            self.check_precision()
        total = self._sum.cpu()
        centre = (total.double() / self.count).round_().long()
        # Wrapping int64 arithmetic gives the scatter about the centre modulo 2 ** 64. A float64
        # estimate, whose error is far below 2 ** 63, determines the missing multiple of 2 ** 64,
        # which is 0 below a few million images.
        low = self._low.cpu()
        high = self._high.cpu()
        wrapped = (high << _LIMB_BITS) + low
        wrapped.addr_(centre, self.count * centre - total).addr_(total, centre, alpha=-1)
        sigma = wrapped.double()
        if high.diagonal().max().item() >= 2 ** (62 - _LIMB_BITS):  # no other entry is larger
            sums = total.double()
            middle = centre.double()
            estimate = high.double() * 2.0**_LIMB_BITS + low
            estimate.addr_(middle, self.count * middle - sums).addr_(sums, middle, alpha=-1.0)
            sigma += ((estimate - wrapped) / 2.0**64).round_() * 2.0**64
        del wrapped  # a matrix less in memory
        rest = (total - self.count * centre).double()
        # Exactly symmetric, because both terms are.
        sigma.sub_(torch.outer(rest, rest).div_(self.count))
        sigma.mul_(2.0 ** (-2 * self.feature_step) / max(self.count - ddof, 1))
        mu = (centre + rest / self.count) * 2.0**-self.feature_step
        return Gaussian(mu.numpy(), sigma.numpy(), self.count)


def check_exact_products(device: torch.device) -> None:
    """Check that float64 matrix products on a device are exact where IEEE arithmetic is exact,
    else a RunError.

    A library may replace a float64 product by several products of lower precision, as cuBLAS does
    on request and only for large matrices. On an accelerator, the matrices therefore have the
    shapes of a run, which takes a few milliseconds. On the CPU, they are small and take less than
    one.
    """
    copies = 1 if device.type == "cpu" else _CHECKED_DIMS // _CHECKED_COLUMNS
    random = torch.Generator().manual_seed(0)
    bits = torch.randint(
        1 << INTEGER_BITS, (_ROWS, _CHECKED_COLUMNS), generator=random, device="cpu"
    )
    # Integers of all lengths and both signs, so that few rounding errors can cancel.
    rows = (bits >> torch.randint(INTEGER_BITS, bits.shape, generator=random, device="cpu")) * (
        1 - 2 * (bits & 1)
    )
    small = rows[:_CHECKED_COLUMNS] >> _CHECKED_SHIFT

    def tile(integers: torch.Tensor, down: int = copies) -> torch.Tensor:
        return integers.double().to(device).repeat(down, copies)

    one = tile(rows, down=1)
    gram = tile(rows.T @ rows)
    other = tile(small)
    products = tile(copies * (small @ small.T))
    squares = products.diagonal()
    # The Gram matrix of the sums, and inner products of as many terms as a feature has dimensions,
    # as in distances and resizes: a library may decide for each function.
    expected = [
        (one.T @ one, gram),
        (other @ other.T, products),
        (torch.addmm(squares, other, other.T, alpha=-2.0), squares - 2.0 * products),
        (torch.bmm(other[None], other.T[None])[0], products),
    ]
    if not all(torch.equal(found, exact) for found, exact in expected):
        raise RunError(
            f"float64 matrix products on {device} are not exact, so that results would not be "
            "reproducible:",
            "unset CUBLAS_EMULATE_DOUBLE_PRECISION and CUBLAS_EMULATION_STRATEGY, which replace "
            "float64 arithmetic",
            f"pass {option('device', 'cpu')}",
        )
