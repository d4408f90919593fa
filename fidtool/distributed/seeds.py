"""Seeds for samples and ranks: every sample differs, and none depends on the number of ranks."""

from __future__ import annotations

import hashlib
from operator import index as as_index

from fidtool.distributed.launch import discover
from fidtool.errors import InputError

_HALF = 1 << 16
_SEED_LIMIT = 1 << 32


def sample_seed(seed: int, index: int) -> int:
    """Return the seed of sample ``index`` of a run. It does not depend on the rank that draws the
    sample.

    >>> generator = torch.Generator().manual_seed(fidtool.sample_seed(0, 17))  # doctest: +SKIP

    Two samples of a run never share a seed, nor the low 32 bits of one, which are all that torch's
    CPU generator uses. The low bits are a permutation of the index that depends on the run's seed.
    (With a hash instead, two of 50,000 samples would share them in about every third run.) The
    result is the same in all versions of fidtool.

    Args:
        seed: the run's seed, any integer.
        index: number of the sample in the run, from 0 to 2 ** 32 - 1.

    Returns:
        An integer from 0 to 2 ** 63 - 1, suitable for ``torch.manual_seed``,
        ``torch.Generator.manual_seed`` and ``numpy.random.default_rng``. For ``numpy.random.seed``
        and Lightning's ``seed_everything``, take it modulo 2 ** 32.

    Raises:
        InputError: if an argument is not an integer, or ``index`` is out of range.
    """
    return _seed("sample", seed, "index", index)


def rank_seed(seed: int, rank: int | None = None) -> int:
    """Return a different seed for each rank, for randomness that may depend on the world size,
    such as augmentation.

    Args:
        seed: the run's seed, any integer.
        rank: the rank. None means this process's rank in torch's process group or, without a group,
            the rank that its launcher set. (A Lightning Trainer that starts the ranks itself sets
            none before ``fit``.)

    Returns:
        An integer in the range of `sample_seed`. The seeds of the two functions are independent.

    Raises:
        InputError: if an argument is not an integer, or ``rank`` is out of range.
    """
    return _seed("rank", seed, "rank", discover().rank if rank is None else rank)


def _seed(purpose: str, seed: int, name: str, number: int) -> int:
    try:
        seed = as_index(seed)
        number = as_index(number)
    except TypeError:
        raise InputError(f"seed and {name} must be integers, not {seed!r} and {number!r}") from None
    if not 0 <= number < _SEED_LIMIT:
        raise InputError(f"the {name} must be from 0 to 2**32 - 1, not {number}")
    # A Feistel network is a permutation of the 32-bit integers for any round function.
    left, right = divmod(number, _HALF)
    for turn in range(6):
        mixed = left ^ (_hash(f"{purpose} {seed} {turn} {right}") % _HALF)
        left = right
        right = mixed
    return (
        (_hash(f"{purpose} {seed} {number}") % (_SEED_LIMIT >> 1)) * _SEED_LIMIT
        + left * _HALF
        + right
    )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
