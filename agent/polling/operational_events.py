"""GPU Operational Events (driver R615 and newer): the XID errors among them.

Never seen on a real driver: this follows the declarations of nvidia-ml-py 13.615. Events have a set
of their own, so that what a driver makes of them cannot cost those that NVML has had for long.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from agent.errors import LogEvent
from agent.hardware.device import text_of
from agent.hardware.nvml import Nvml
from agent.model import Absent

log = logging.getLogger(__name__)

RECOVERABLE, LEVEL_ALL = 30, 0
"""The least severity and level that are asked for: an XID error is recoverable or worse."""

OPERATIONAL = 1  # NVML_EVENT_DATA_TYPE_GPU_OPERATIONAL_EVENT
LEGACY_XID = 1  # NVML_GPU_OPERATIONAL_EVENT_CONTEXT_TYPE_LEGACY_XID
MOST_AT_ONCE, MOST_CONTEXTS = 100, 16


class OperationalEvents:
    """One connection's events; none where its driver or its bindings refuse them."""

    def __init__(self, nvml: Nvml, uuids: Iterable[str]) -> None:
        self._nvml = nvml
        self._events: Any = None
        try:
            self._events = nvml.call("nvmlEventSetCreate")
            for uuid in uuids:
                config = nvml.library.c_nvmlGpuOperationalEventConfig_v1_t(
                    uuid.encode(), LEVEL_ALL, RECOVERABLE
                )
                nvml.call("nvmlEventSetRegisterGpuOperationalEvents_v1", self._events, config)
        except (Absent, AttributeError) as refused:
            log.debug(LogEvent("operational_events_off", why=str(refused)))
            self.close()

    def close(self) -> None:
        """Give the event set back."""
        events, self._events = self._events, None
        if events is not None:
            with suppress(Absent):
                self._nvml.call("nvmlEventSetFree", events)

    def xids(self) -> Iterator[tuple[str, int]]:
        """UUID and code of each XID error that came since; waits for none."""
        for _ in range(MOST_AT_ONCE if self._events is not None else 0):
            event = self._nvml.library.c_nvmlEventSetWait_v3_t()
            try:
                self._nvml.call("nvmlEventSetWait_v3", self._events, event)
                if event.dataType == OPERATIONAL:
                    uuid = text_of(event, "uuid")
                    yield from ((uuid, code) for code in self._codes())
            except Absent:  # nothing more, or the driver has gone
                return

    def _codes(self) -> Iterator[int]:
        """The XID codes that the event of the last wait carries."""
        library = self._nvml.library
        count = library.c_nvmlEventSetGetContextCount_v1_t()
        self._nvml.call("nvmlEventSetGetContextCount_v1", self._events, count)
        for index in range(min(count.count, MOST_CONTEXTS)):
            info = library.c_nvmlEventSetGetContextInfo_v1_t(index=index)
            self._nvml.call("nvmlEventSetGetContextInfo_v1", self._events, info)
            if info.nvmlGpuOperationalEventContextType == LEGACY_XID:
                found = library.c_nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1_t(
                    index=index
                )
                self._nvml.call(
                    "nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1", self._events, found
                )
                yield int(found.xidCode)
