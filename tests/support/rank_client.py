"""Stands in for a process: has rank_server.py fork one that does its work, and ends as that one does.

rank_client.py SOCKET PROGRAM ARGUMENTS… gives the fork its environment, folder, and standard descriptors, and forwards
SIGTERM and SIGINT. Imports next to nothing, so that it starts in hundredths of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys


def main() -> None:
    """Hands the order over and waits for the fork's end."""
    place, program, *arguments = sys.argv[1:]
    order = {
        "program": program,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(place)
    socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
    forward_signals(server)
    answer = server.recv(16)
    if not answer:
        sys.exit("the rank server has gone")
    end_like(int(answer))


def forward_signals(server: socket.socket) -> None:
    """From now on the fork gets them instead of this process; one that came earlier ends both."""

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(OSError):  # the fork has just ended, and its status is on the way
            server.send(bytes([number]))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)


def end_like(status: int) -> None:
    """Ends with this status or, where it is negative, of the same signal."""
    if status >= 0:
        sys.exit(status)
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    main()
