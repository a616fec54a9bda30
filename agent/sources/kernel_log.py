"""The kernel log: counts NVSwitch errors, and passes GPU errors to the XID counts."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent.errors import LogEvent, log
from agent.hardware.kernel_log import KernelLog, KernelXid, SwitchError, parsed
from agent.metrics import declared_beside
from agent.model import Absent, ReadKey
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed

_METRICS = declared_beside(__file__)
READABLE = _METRICS["dgx_kernel_log_readable"]
SWITCH_ERRORS = _METRICS["dgx_nvswitch_errors_total"]
SWITCH_ERROR_AT = _METRICS["dgx_nvswitch_last_error_seconds"]
BURST = 60.0  # Seconds for which repeated errors of a switch with the same code are not logged


@dataclass(slots=True)
class KernelLogRead:
    """Reads new lines of the kernel log on every tick. It passes each GPU error to `xid`. It calls
    `answers` with True if the log can be read, and with False otherwise."""

    kernel_log: KernelLog
    xid: Callable[[KernelXid], None]
    answers: Callable[[bool], None]
    _switches: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _at: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _logged: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def read(self, out: ReadOutput) -> None:
        try:
            lines = self.kernel_log.lines()
        except Absent:
            self.answers(False)
            raise
        self.answers(True)
        for line in lines:
            found = parsed(line.text)
            if isinstance(found, SwitchError):
                self._switch(found, out.at)
            elif found is not None:
                self.xid(found)
        out.add(READABLE, 1)
        for labels, count in self._switches.items():
            out.add(SWITCH_ERRORS, count, *labels)
            out.add(SWITCH_ERROR_AT, self._at[labels], *labels)

    def _switch(self, error: SwitchError, now: float) -> None:
        severity = "fatal" if error.fatal else "non_fatal"
        key = error.switch, severity, str(error.code)
        self._switches[key] += 1
        self._at[key] = now
        if now - self._logged.get(key, -BURST) >= BURST:
            self._logged[key] = now
            log.error(LogEvent("sxid", switch=key[0], sxid=error.code, severity=severity))


def reads(
    kernel_log: KernelLog, xid: Callable[[KernelXid], None], answers: Callable[[bool], None]
) -> Iterator[Read]:
    run, metrics = KernelLogRead(kernel_log, xid, answers).read, (READABLE, SWITCH_ERRORS)
    key = ReadKey("kernel_log", "lines")
    yield Read(key, (*metrics, SWITCH_ERROR_AT), run, fixed(intervals.TICK))
