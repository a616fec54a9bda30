"""Bytes that the TCP sockets of jobs received and sent, by the other end of the connection."""

from collections import Counter
from collections.abc import Mapping, Set
from contextlib import suppress

from agent.hardware.sockets import Found, Sockets, TcpSocket

WAYS = "opened", "accepted", "exchanged", "answered", "begun", "settled"
EVERY, HOLDS = 2.0, 60.0
"""The agent looks at sockets every EVERY seconds, for HOLDS seconds after more than MESSAGES were
received."""

MESSAGES = 0.25e6
"""Bytes per second below which data that processes read or write counts as log lines, and data that
they receive as requests. Some servers receive more (4 and 12 MB/s of sounds and recordings)."""


class JobSockets:
    """Counts the bytes of each job from its first look. A socket that appears later is younger than
    a look, so all of its bytes count. The bytes between a socket's last look and its end are lost.
    A job without any socket may be in another network namespace, and is not counted."""

    def __init__(self, ask: Sockets) -> None:
        self._ask = ask
        self._last: dict[str, dict[int, TcpSocket]] = {}
        self._at = self._received = self._until = 0.0
        self.counts: dict[str, Counter[str]] = {}  # by job key

    def due(self, at: float, received: float) -> bool:
        """Return whether to look at time `at`, until which `received` bytes arrived."""
        if at - self._at < 0.9 * EVERY:
            return False
        if received - self._received >= MESSAGES * (at - self._at):
            self._until = at + HOLDS
        self._at, self._received = at, received
        return bool(self.counts) or at < self._until

    def look(self, cgroups: Mapping[str, Set[str]]) -> None:
        """Count what the sockets of each job, by its key, did since the last look. `cgroups` are
        the paths of each job."""
        found: Found = {}
        if self._at < self._until and cgroups:
            with suppress(OSError):
                found = self._ask(set().union(*cgroups.values()))
        last, self._last = self._last, {}
        for job, paths in cgroups.items():
            sockets = {one.cookie: one for path in paths for one in found.get(path, ())}
            if sockets:
                self._last[job] = sockets
                grown = _grown(sockets, last.get(job, sockets))
                self.counts.setdefault(job, Counter()).update(grown)
        for job in self.counts.keys() - self._last.keys():
            del self.counts[job]


def _grown(sockets: Mapping[int, TcpSocket], last: Mapping[int, TcpSocket]) -> Counter[str]:
    """Return by how much the counts of a job have grown since the last look."""
    grown = Counter(settled=1)
    connected = [one for one in sockets.values() if not one.listens]
    own = {(one.address, one.port) for one in connected}
    ports = {one.port for one in sockets.values() if one.listens}
    for one in connected:
        before = last.get(one.cookie, one._replace(received=0, acked=0))
        received = one.received - before.received
        if (one.remote_address, one.remote_port) in own:
            grown["exchanged"] += received
        elif one.port in ports:
            grown.update(accepted=received, answered=one.acked - before.acked)
            grown["settled"] &= one.silent <= one.quiet
        else:
            grown.update(opened=received, begun=one.cookie not in last)
    ended = (one for cookie, one in last.items() if cookie not in sockets)
    grown["answered"] += sum(not one.listens and one.port in ports for one in ended)
    return grown
