"""Names, addresses and limits of a GPU: what hardly ever changes."""

from typing import Any

import pynvml

from agent.simulator import driver, refusals
from agent.simulator.call_guard import NvmlPart, device_call, library_call, refuse
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.gpu_models import HOPPER
from agent.simulator.system_models import address

SUBSYSTEM = 0x118F10DE
THIRD_FABRIC = (570,)
"""First driver that answers in the third version of nvmlGpuFabricInfo_t."""

CHASSIS, SLOT, TRAY = b"1820000000001", 14, 4
"""Where a tray is, as nvidia-smi of a GB200 reports it: slots count the switches' trays too."""


class SimulatedIdentity(NvmlPart):
    """Names, addresses, limits."""

    def nvmlShutdown(self) -> None:
        self.guard.close()

    @library_call
    def nvmlSystemGetDriverVersion(self) -> str:
        return self.machine.driver.version

    @library_call
    def nvmlSystemGetNVMLVersion(self) -> str:
        return driver.nvml_version(self.machine.driver.version)

    @library_call
    def nvmlDeviceGetCount(self) -> int:
        return len(self.machine.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.guard.enter("nvmlDeviceGetHandleByIndex", index)
        if not 0 <= index < len(self.machine.gpus):
            refuse(refusals.INVALID_ARGUMENT)
        if self.machine.gpus[index].lost:
            refuse(refusals.GPU_IS_LOST)
        return self.guard.handle(index)

    @device_call
    def nvmlDeviceGetUUID(self, gpu: SimulatedGpu) -> str:
        return gpu.uuid

    @device_call
    def nvmlDeviceGetName(self, gpu: SimulatedGpu) -> str:
        """Drivers from some branch on put the maker before GeForce, TITAN and A100."""
        since = gpu.model.prefixed_since
        prefixed = since is not None and self.machine.driver.numbers[0] >= since
        return f"NVIDIA {gpu.model.name}" if prefixed else gpu.model.name

    @device_call
    def nvmlDeviceGetSerial(self, gpu: SimulatedGpu) -> str:
        return str(1_320_000_000_000 + 1_000_003 * gpu.index + gpu.model.device_id % 997)

    @device_call
    def nvmlDeviceGetVbiosVersion(self, gpu: SimulatedGpu) -> str:
        return gpu.model.vbios

    @device_call
    def nvmlDeviceGetArchitecture(self, gpu: SimulatedGpu) -> int:
        return gpu.model.architecture

    @device_call
    def nvmlDeviceGetPciInfo(self, gpu: SimulatedGpu) -> Any:
        return pci_info(gpu.bus, gpu.model.device_id)

    @device_call
    def nvmlDeviceGetPersistenceMode(self, gpu: SimulatedGpu) -> int:
        return int(self.machine.system.dgx)

    @device_call
    def nvmlDeviceGetMigMode(self, gpu: SimulatedGpu) -> list[int]:
        return [int(gpu.mig), int(gpu.mig)]

    @device_call
    def nvmlDeviceGetMemoryBusWidth(self, gpu: SimulatedGpu) -> int:
        return gpu.model.bus_width

    @device_call
    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: SimulatedGpu) -> int:
        return round(gpu.model.power_limit * 1000)

    @device_call
    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: SimulatedGpu) -> int:
        return round(gpu.model.power_limit * 1000)

    @device_call
    def nvmlDeviceGetTemperatureThreshold(self, gpu: SimulatedGpu, threshold: int) -> int:
        if not 0 <= threshold < pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
            refuse(refusals.INVALID_ARGUMENT)
        known = gpu.model.thresholds
        limit = known[threshold] if threshold < len(known) else None
        if limit is None:
            raise pynvml.NVMLError(refusals.NOT_SUPPORTED)
        return limit

    @device_call
    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: SimulatedGpu) -> int:
        return gpu.model.pcie_generation

    @device_call
    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: SimulatedGpu) -> int:
        return gpu.model.lanes

    @device_call
    def nvmlDeviceGetGpuFabricInfoV(self, gpu: SimulatedGpu, info: Any) -> int:
        """Fills what the reference points to, as the driver does."""
        target = getattr(info, "_obj", info)
        newest = self.machine.driver.numbers >= THIRD_FABRIC
        versions = (pynvml.nvmlGpuFabricInfo_v2, newest and pynvml.nvmlGpuFabricInfo_v3)
        if target.version not in versions:
            refuse(refusals.VERSION_MISMATCH)
        target.healthMask = gpu.health.fabric_mask if gpu.model.architecture >= HOPPER else 0
        return _register(gpu, target)

    @device_call
    def nvmlDeviceGetGpuFabricInfo(self, gpu: SimulatedGpu, info: Any) -> int:
        """The first version of the answer, without a mask."""
        return _register(gpu, getattr(info, "_obj", info))

    @device_call
    def nvmlDeviceGetPlatformInfo(self, gpu: SimulatedGpu, info: Any) -> int:
        """Fills what the reference points to. Only a tray of a rack has a place in a chassis."""
        target = getattr(info, "_obj", info)
        if target.version != pynvml.nvmlPlatformInfo_v2:
            refuse(refusals.VERSION_MISMATCH)
        if self.machine.system.rack:
            target.chassisSerialNumber = CHASSIS
            target.slotNumber, target.trayIndex = bytes((SLOT,)), bytes((TRAY,))
        target.hostId, target.peerType = b"\x01", b"\x01"
        target.moduleId = bytes((gpu.index + 1,))
        return int(pynvml.NVML_SUCCESS)


def _register(gpu: SimulatedGpu, target: Any) -> int:
    """Write into an answer of any version whether the GPU joined the fabric, and with what code."""
    target.state = gpu.health.fabric_state if gpu.model.architecture >= HOPPER else 0
    target.status, target.cliqueId = gpu.health.fabric_status, 0
    return int(pynvml.NVML_SUCCESS)


def pci_info(bus: int, device_id: int) -> Any:
    """The address of a device on this PCI bus."""
    info = pynvml.nvmlPciInfo_t()
    info.domain, info.bus, info.device = *divmod(bus, 256), 0
    info.pciDeviceId, info.pciSubSystemId = device_id, SUBSYSTEM
    info.busIdLegacy = address(bus).upper().encode()
    info.busId = f"0000{address(bus).upper()}".encode()
    return info
