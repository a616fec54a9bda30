"""An NVML library whose GPUs have no performance monitor (GPM): what older ones can report."""

from dataclasses import replace
from typing import Any

import pynvml

from agent.cli.assembly import Hardware


class WithoutGpm:
    """Another library's answers, but for GPM's."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def nvmlGpmQueryDeviceSupport(self, device: Any) -> Any:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def without_gpm(hardware: Hardware) -> Hardware:
    """The same hardware without GPM."""
    return replace(hardware, library=lambda: WithoutGpm(hardware.library()))
