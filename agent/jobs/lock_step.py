"""Groups of GPUs that take the same steps, where nothing else shows that they work for one job.
Pure.

Ranks in containers of their own share no ancestor, and NCCL's service is out of reach in another
network namespace. What they do joins them: in a collective each sends as many bytes over NVLink as
the next. Two jobs of the same model send almost as much a second, and drift apart within minutes.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Set
from itertools import combinations
from typing import NamedTuple

from agent.model import GpuKey

LONGEST = 300.0
"""Seconds of bytes that are compared."""

LEAST = 120.0
"""Seconds below which nothing is said."""

EQUAL = 3e-4
"""Relative difference, at most, of what GPUs in lock-step have sent. Readings of one tick that are
10 ms apart make 1e-4 of two minutes. Chosen, not measured: the counters of real ranks were never
compared over minutes."""

TOGETHER = 0.2
"""Seconds by which the readings of two GPUs may be apart."""


class SentBytes(NamedTuple):
    """The processes on a GPU, and the bytes that it had sent over NVLink when it was last read, at
    this monotonic second."""

    pids: Set[int]
    at: float
    sent: float


class _Both(NamedTuple):
    at: float
    one: float
    other: float


class _Pair:
    """Two GPUs with the same processes as before."""

    def __init__(self) -> None:
        self.in_lock_step = False
        self._sent: deque[_Both] = deque()

    def take(self, one: SentBytes, other: SentBytes) -> None:
        """Take the bytes that both had sent at their last read; ignore the reading if neither
        sends: a job that hangs is still one."""
        sent = self._sent
        if abs(one.at - other.at) > TOGETHER or (sent and one.at <= sent[-1].at):
            return
        if sent and (one.sent < sent[-1].one or other.sent < sent[-1].other):
            sent.clear()  # counted from 0 again
        sent.append(_Both(one.at, one.sent, other.sent))
        while one.at - sent[0].at > LONGEST:
            sent.popleft()
        grown = one.sent - sent[0].one, other.sent - sent[0].other
        if one.at - sent[0].at >= LEAST and max(grown) > 0:
            self.in_lock_step = max(grown) - min(grown) <= EQUAL * max(grown)


class LockSteps:
    """Fed each tick with every GPU that processes are on."""

    def __init__(self) -> None:
        self._pids: dict[GpuKey, Set[int]] = {}
        self._pairs: dict[tuple[GpuKey, GpuKey], _Pair] = {}

    def take(self, now: Mapping[GpuKey, SentBytes]) -> Iterator[frozenset[GpuKey]]:
        """Pairs of GPUs that have taken the same steps for minutes."""
        pids = {gpu: one.pids for gpu, one in now.items()}
        changed = {gpu for gpu, before in self._pids.items() if pids.get(gpu) != before}
        self._pids = pids
        for gone in [pair for pair in self._pairs if changed & {*pair}]:
            del self._pairs[gone]
        for one, other in combinations(sorted(now), 2):
            pair = self._pairs.setdefault((one, other), _Pair())
            pair.take(now[one], now[other])
            if pair.in_lock_step:
                yield frozenset((one, other))
