"""The distance has the same bits whatever the launcher set."""

from __future__ import annotations

from support.command_line import Run


def test_same_bits_whatever_the_launcher_set(program: Run) -> None:
    """torchrun sets OMP_NUM_THREADS=1; the distance does not depend on it, and leaves torch's setting alone."""
    code = (
        "import numpy as np, torch, fidtool; rng = np.random.RandomState(0);"
        "a, b = rng.randn(900, 400), rng.rand(900, 400);"
        "before = torch.get_num_threads();"
        "print(before, fidtool.frechet_distance(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T)).hex());"
        "assert torch.get_num_threads() == before"
    )
    ended = [program(code, OMP_NUM_THREADS=threads) for threads in ("1", "2")]
    assert [each.status for each in ended] == [0, 0], ended
    threads, bits = zip(*(each.stdout.split() for each in ended), strict=True)
    assert threads == ("1", "2")
    assert len(set(bits)) == 1
