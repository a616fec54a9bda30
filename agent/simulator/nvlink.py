"""NVLink as NVML reports it: state, far ends, error counters."""

from typing import Any

import pynvml

from agent.simulator import refusals
from agent.simulator.call_guard import NvmlPart, device_call, refuse
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.gpu_models import AMPERE, HOPPER
from agent.simulator.identity import pci_info

GPU_PEER, SWITCH_PEER = 0, 2
SWITCH_BUSES = (0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9)
SWITCH_DEVICE = 0x1AF110DE
ALL_ONES = 0xFFFFFFFF
ERROR_NAMES = ("replay", "recovery", "crc", "crc_data", "ecc")
"""Meter names by `nvmlNvLinkErrorCounter_t`."""


class SimulatedNvLink(NvmlPart):
    """One link at a time."""

    @device_call
    def nvmlDeviceGetNvLinkState(self, gpu: SimulatedGpu, link: int) -> int:
        self._need(gpu, link)
        return int(gpu.active(gpu.links[link]))

    @device_call
    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: SimulatedGpu, link: int) -> Any:
        self._need_active(gpu, link)
        peer = gpu.links[link].peer
        if peer is not None:
            return pci_info(self.machine.gpus[peer].bus, gpu.model.device_id)
        if gpu.model.architecture < HOPPER:
            return pci_info(SWITCH_BUSES[link % len(SWITCH_BUSES)], SWITCH_DEVICE)
        return _nowhere()

    @device_call
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: SimulatedGpu, link: int) -> int:
        self._need_active(gpu, link)
        return SWITCH_PEER if gpu.links[link].peer is None else GPU_PEER

    @device_call
    def nvmlDeviceGetNvLinkErrorCounter(self, gpu: SimulatedGpu, link: int, counter: int) -> int:
        self._need(gpu, link)
        if not 0 <= counter < len(ERROR_NAMES):
            refuse(refusals.INVALID_ARGUMENT)
        if ERROR_NAMES[counter] == "ecc" and gpu.model.architecture < AMPERE:
            refuse(refusals.NOT_SUPPORTED)
        return int(gpu.meter.read(f"{ERROR_NAMES[counter]}{link}", self.machine.now))

    def _need(self, gpu: SimulatedGpu, link: int) -> None:
        refuse(refusals.link_code(link, self.guard.asked(gpu)))

    def _need_active(self, gpu: SimulatedGpu, link: int) -> None:
        """The far end of a link that is down is not reported."""
        self._need(gpu, link)
        if not gpu.active(gpu.links[link]):
            refuse(refusals.NOT_SUPPORTED)


def _nowhere() -> Any:
    """The address of an NVSwitch of the fourth generation: all ones."""
    info = pynvml.nvmlPciInfo_t()
    info.domain = info.bus = info.device = ALL_ONES
    info.pciDeviceId = info.pciSubSystemId = ALL_ONES
    info.busIdLegacy = b"FFFF:FF:FF.0"
    info.busId = b"FFFFFFFF:FF:FF.0"
    return info
