"""Stands in for a process: rank_server.py forks a process that does the work, and this one exits
with its status.

rank_client.py SOCKET PROGRAM ARGUMENTS… passes its environment, folder and standard descriptors to
the fork, and forwards SIGTERM and SIGINT. It imports almost nothing, so that it starts in
hundredths of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys


def main() -> None:
    """Send the order and wait for the end of the fork."""
    place, program, *arguments = sys.argv[1:]
    environment, folder = dict(os.environ), os.getcwd()
    order = {
        "program": program,
        "arguments": arguments,
        "environment": environment,
        "folder": folder,
    }
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(place)
    socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
    forward_signals(server)
    server.recv(16)  # the fork's pid
    answer = server.recv(16)
    if not answer:
        sys.exit("the rank server has gone")
    end_like(int(answer))


def forward_signals(server: socket.socket) -> None:
    """Forward signals to the fork from now on. An earlier signal ends both processes."""

    def forward(number: int, _: object) -> None:
        # The fork has just exited, and its status is about to arrive.
        with contextlib.suppress(OSError):
            server.send(bytes([number]))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)


def end_like(status: int) -> None:
    """Exit with this status or, if it is negative, by the same signal."""
    if status >= 0:
        sys.exit(status)
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    main()
