"""Log records of the HTTP library: bad requests are dropped, a bug is logged now and then.

Anybody can send a thousand bad requests a second; the journal of the agent must not be theirs.
"""

import logging
from collections.abc import Callable
from time import monotonic
from traceback import walk_tb

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

REPEAT_AFTER = 3600.0
"""Seconds after which the same bug is reported once more."""


OF_THE_OTHER_END = (HttpProcessingError, RequestPayloadError, ConnectionError)


class RequestErrorFilter(logging.Filter):
    """Lets through what is worth a line."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._now = now
        self._logged_at: dict[tuple[object, ...], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return record.levelno > logging.INFO
        if isinstance(error, OF_THE_OTHER_END):
            return False
        frames = walk_tb(error.__traceback__)
        where = [(frame.f_code.co_filename, line) for frame, line in frames][-1:]
        place = type(error).__name__, *where  # few, however often it is provoked
        now = self._now()
        if now - self._logged_at.get(place, -REPEAT_AFTER) < REPEAT_AFTER:
            return False
        self._logged_at[place] = now
        return True


LOG = logging.getLogger("exporters.requests")
LOG.addFilter(RequestErrorFilter())
