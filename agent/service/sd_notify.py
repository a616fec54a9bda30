"""News for the service manager (sd_notify): a datagram on the socket that it names, if it does."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import CLOCK_MONOTONIC, clock_gettime_ns

from agent.errors import LogEvent

log = logging.getLogger(__name__)

TIMEOUT = 0.1
"""Seconds for which a message may wait for room in the service manager's queue."""

MICROSECONDS = 1e-6
READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


def reloading() -> str:
    """That a reload begins, and when (systemd compares it with the time of its own request)."""
    return f"RELOADING=1\nMONOTONIC_USEC={clock_gettime_ns(CLOCK_MONOTONIC) // 1000}"


def status(sentence: str) -> str:
    return f"STATUS={' '.join(sentence.split())}"


@dataclass(slots=True, eq=False)
class NotifySocket:
    """The service manager as the environment describes it; without one, nothing is sent.

    `watchdog` is the number of seconds after which it takes silence for a hang; 0 for never.
    """

    address: str = ""
    watchdog: float = 0.0
    _failing: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "NotifySocket":
        """Read NOTIFY_SOCKET, and WATCHDOG_USEC unless WATCHDOG_PID names another process."""
        text = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = int(text) * MICROSECONDS if mine and text.isdecimal() else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), seconds)

    def send(self, *news: str) -> None:
        """Send news in one message; a service manager that is not there is reported once."""
        if not self.address or not news:
            return
        try:
            self._send("\n".join(news).encode())
        except OSError as error:
            if not self._failing:
                log.warning(LogEvent("notify_failed", socket=self.address, error=str(error)))
            self._failing = True
        else:
            self._failing = False

    @contextmanager
    def while_reloading(self) -> Iterator[None]:
        self.send(reloading())
        yield
        self.send(READY)

    def _send(self, message: bytes) -> None:
        """An address that begins with @ is abstract: the kernel writes it with a zero byte."""
        abstract = self.address.startswith("@")
        address = f"\0{self.address[1:]}" if abstract else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(TIMEOUT)
            channel.sendto(message, address)
