"""Bytes that the TCP sockets of cgroups received and sent, by the other end of the connection."""

from collections import Counter
from collections.abc import Collection, Mapping, Set
from contextlib import suppress

from agent.hardware.sockets import Found, Sockets, TcpSocket

WAYS = "opened", "accepted", "exchanged", "answered", "begun", "settled"
EVERY, HOLDS = 2.0, 60.0
"""The agent looks at sockets every EVERY seconds, until HOLDS seconds after more than MESSAGES."""

MESSAGES = 0.25e6
"""Bytes per second below which data that processes read or write counts as log lines, and data that
they receive as requests. Some servers receive more (4 and 12 MB/s of sounds and recordings)."""


class CgroupSockets:
    """Counts the bytes of each cgroup from its first look. A socket that appears later is younger
    than a look, so all of its bytes count. Bytes between a socket's last look and its end are lost.
    A cgroup without any socket is not counted if it may be in another network namespace."""

    def __init__(self, ask: Sockets) -> None:
        self._ask = ask
        self._last: dict[str, dict[int, TcpSocket]] = {}
        self._at = self._received = self._until = 0.0
        self.counts: dict[str, Counter[str]] = {}  # by path

    def due(self, at: float, received: float) -> bool:
        """Return whether to look at time `at`, until which `received` bytes arrived."""
        if at - self._at < 0.9 * EVERY:
            return False
        if received - self._received >= MESSAGES * (at - self._at):
            self._until = at + HOLDS
        self._at, self._received = at, received
        return bool(self.counts) or at < self._until

    def look(self, jobs: Collection[Set[str]], here: Set[str] = frozenset()) -> None:
        """Count what sockets did since the last look. `jobs` are the paths of the cgroups of each
        job, and `here` those that are in the agent's network namespace."""
        found: Found = {}
        if self._at < self._until and jobs:
            with suppress(OSError):
                found = self._ask(set().union(*jobs))
        last, self._last = self._last, {}
        for path, its in found.items():
            if its or path in here:
                near = set[str]().union(*(paths for paths in jobs if path in paths))
                ends = {(one.address, one.port) for other in near for one in found.get(other, ())}
                sockets = self._last[path] = {one.cookie: one for one in its}
                grown = _grown(sockets, last.get(path, sockets), ends)
                self.counts.setdefault(path, Counter()).update(grown)
        for path in self.counts.keys() - self._last.keys():
            del self.counts[path]


def _grown(
    sockets: Mapping[int, TcpSocket], last: Mapping[int, TcpSocket], own: Set[tuple[str, int]]
) -> Counter[str]:
    """Return by how much the counts of a cgroup have grown since the last look. `own` are the
    addresses and ports of the job's sockets."""
    grown = Counter(settled=1)
    ports = {one.port for one in sockets.values() if one.listens}
    for one in sockets.values():
        before = last.get(one.cookie, one._replace(received=0, acked=0))
        received = one.received - before.received
        if one.listens:
            continue
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
