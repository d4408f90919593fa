"""A rank that fails before it meets the others tells them that it will not come. Imports no torch.

It does so by a process of its own, ``python -m fidtool.distributed.absence MESSAGE STATUS SECONDS``: a signal may have
broken into the import of torch, which cannot be begun again.
"""

from __future__ import annotations

import subprocess
import sys
import time

from fidtool.distributed.failure import Cause, claimed, located, post
from fidtool.distributed.launch import discover
from fidtool.distributed.rendezvous import address, client, keys_prefix, namespaced, problem_of_server
from fidtool.errors import FidtoolError

_POLL_SECONDS = 0.1


def tell_absence(error: FidtoolError, seconds: float) -> bool:
    """Leaves ``error`` where the ranks meet, for rank zero to find when it calls the roll.

    Args:
        error: why this rank will not come.
        seconds: how long to try, and to wait until somebody has told the user.

    Returns:
        Whether somebody has.
    """
    order = [sys.executable, "-m", __name__, str(error), str(error.exit_code), str(seconds)]
    try:
        ended = subprocess.run(
            order, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, timeout=seconds
        )
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return False
    return ended.returncode == 0


def _tell(message: str, status: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    launch = discover()
    place = address(launch)
    while problem_of_server(place, deadline):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    store = namespaced(client(place, max(1.0, deadline - time.monotonic())), keys_prefix(0))
    error = FidtoolError(message)
    error.exit_code = status
    post(store, Cause.of(located(error, launch.rank, launch.world_size), launch.rank))
    while time.monotonic() < deadline:
        if claimed(store):
            return True
        time.sleep(_POLL_SECONDS)
    return False


if __name__ == "__main__":
    sys.exit(not _tell(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
