"""What goes wrong in one part of the exposition costs that part alone."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from agent.errors import LogEvent

log = logging.getLogger(__name__)


class Guard:
    """Errors of one metric cost only its own series; logged when they begin and end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failing = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A bug in one part must not blind Prometheus to the others."""
        try:
            yield
        except Exception:
            if not self._failing:
                log.exception(LogEvent("collector_failed", collector=self._name))
            self._failing = True
        else:
            if self._failing:
                log.info(LogEvent("collector_recovered", collector=self._name))
            self._failing = False
