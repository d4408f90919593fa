"""Seeds that make every sample another one, and the same one at any number of ranks. Imports no torch by itself."""

from __future__ import annotations

import hashlib
from operator import index as as_index

from fidtool.distributed.launch import discover_here
from fidtool.errors import InputError

_HALF = 1 << 16
_MOST = 1 << 32
_ROUNDS = 6


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample number ``index`` of a run: whichever rank draws it, it is the same sample.

    >>> generator = torch.Generator().manual_seed(fidtool.sample_seed(0, 17))  # doctest: +SKIP

    Two samples of a run never share a seed, not even in its low 32 bits, which are all that torch's generator on the
    CPU takes (a hash would give two of 50,000 samples the same ones in every third run): the low bits are a
    permutation of the index that depends on the run's seed. The result never changes from one version to the next.

    Args:
        seed: the run's seed, any integer.
        index: number of the sample in the run, from 0 to 2 ** 32 - 1.

    Returns:
        An integer from 0 to 2 ** 63 - 1: for ``torch.manual_seed``, ``torch.Generator.manual_seed`` and
        ``numpy.random.default_rng``; ``% 2 ** 32`` of it for ``numpy.random.seed`` and Lightning's ``seed_everything``.

    Raises:
        InputError: no integers, or an index out of range.
    """
    return _seed("sample", _integer("seed", seed), _integer("index", index))


def rank_seed(seed: int, rank: int | None = None) -> int:
    """A seed of this rank's own, for what need not be the same at any world size: augmentation, dropout, noise.

    Args:
        seed: the run's seed, any integer.
        rank: whose; None is this process's rank in torch's process group, or among those its launcher announced (a
            Trainer of Lightning's that starts the ranks itself has none before it fits).

    Returns:
        See `sample_seed`, of whose seeds these are independent.

    Raises:
        InputError: no integers, or a rank out of range.
    """
    return _seed("rank", _integer("seed", seed), discover_here().rank if rank is None else _integer("rank", rank))


def _integer(name: str, value: object) -> int:
    try:
        return as_index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{name} must be an integer, not {value!r}") from None


def _seed(purpose: str, seed: int, number: int) -> int:
    if not 0 <= number < _MOST:
        raise InputError(f"the {'index' if purpose == 'sample' else purpose} must be from 0 to 2**32 - 1, not {number}")
    # A Feistel network: a permutation of the 32-bit integers, whatever its round function.
    left, right = divmod(number, _HALF)
    for turn in range(_ROUNDS):
        left, right = right, left ^ (_hashed(f"{purpose} {seed} {turn} {right}") % _HALF)
    return (_hashed(f"{purpose} {seed} {number}") % (_MOST >> 1)) * _MOST + left * _HALF + right


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
