"""What the HTTP library complains of: bad requests are no event of ours, a bug is told at times.

Anybody can send a thousand bad requests a second; the journal of the agent must not be theirs.
"""

import logging
from collections.abc import Callable
from time import monotonic

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

AGAIN = 3600.0
"""Seconds after which the same bug is told once more."""


OF_THE_OTHER_END = (HttpProcessingError, RequestPayloadError, ConnectionError)


class Complaints(logging.Filter):
    """Lets through what is worth a line."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._now = now
        self._told: dict[tuple[str, str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return record.levelno > logging.INFO
        if isinstance(error, OF_THE_OTHER_END):
            return False
        place = _place(error)
        now = self._now()
        if now - self._told.get(place, -AGAIN) < AGAIN:
            return False
        self._told[place] = now
        return True


def _place(error: BaseException) -> tuple[str, str, int]:
    """The kind of an error and the line that it rose in: few, however often it is provoked."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__, "", 0
    return type(error).__name__, trace.tb_frame.f_code.co_filename, trace.tb_lineno


LOG = logging.getLogger("exporters.requests")
LOG.addFilter(Complaints())
