"""Ports of the stack's programs: the usual ones, or free ones if those are taken."""

import socket
from contextlib import ExitStack
from dataclasses import astuple, dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FreePorts:
    """Ports by program."""

    agent: int = 9935
    prometheus: int = 9090
    alertmanager: int = 9093
    grafana: int = 3000


USUAL = FreePorts()


def choose(wanted: FreePorts = USUAL) -> FreePorts:
    """The ports wanted, each replaced by a free one where somebody has it."""
    with ExitStack() as held:  # all until all are chosen, so that no two are the same
        return FreePorts(*(_free(port, held) for port in astuple(wanted)))


def _free(port: int, held: ExitStack) -> int:
    candidate = held.enter_context(socket.socket())
    # Connections of a stack that just ended linger for a minute, and hold no one up.
    candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        candidate.bind((LOOPBACK, port))
    except OSError:
        candidate.bind((LOOPBACK, 0))
    return int(candidate.getsockname()[1])
