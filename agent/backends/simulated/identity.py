"""Who a GPU is: the part of NVML that hardly ever changes."""

from typing import Any

import pynvml

from agent.backends.simulated import drivers, refusals
from agent.backends.simulated.gate import Facade, device_call, library_call, refuse
from agent.backends.simulated.gpu import LANES, Gpu
from agent.backends.simulated.silicon import HOPPER

RENAMED_SINCE = (470,)
"""First driver that puts the maker's name before that of GeForce, TITAN and A100."""

SUBSYSTEM = 0x118F10DE
FABRIC_COMPLETED = 3


class Identity(Facade):
    """Names, addresses, limits."""

    def nvmlShutdown(self) -> None:
        self.gate.close()

    @library_call
    def nvmlSystemGetDriverVersion(self) -> str:
        return self.world.driver_version

    @library_call
    def nvmlSystemGetNVMLVersion(self) -> str:
        return drivers.nvml_version(self.world.driver_version)

    @library_call
    def nvmlDeviceGetCount(self) -> int:
        return len(self.world.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.gate.enter("nvmlDeviceGetHandleByIndex", index)
        if not 0 <= index < len(self.world.gpus):
            refuse(refusals.INVALID_ARGUMENT)
        if self.world.gpus[index].lost:
            refuse(refusals.GPU_IS_LOST)
        return self.gate.handle(index)

    @device_call
    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    @device_call
    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        renamed = gpu.model.renamed and self.world.driver >= RENAMED_SINCE
        return f"NVIDIA {gpu.model.name}" if renamed else gpu.model.name

    @device_call
    def nvmlDeviceGetSerial(self, gpu: Gpu) -> str:
        return str(1_320_000_000_000 + 1_000_003 * gpu.index + gpu.model.device_id % 997)

    @device_call
    def nvmlDeviceGetVbiosVersion(self, gpu: Gpu) -> str:
        return gpu.model.vbios

    @device_call
    def nvmlDeviceGetArchitecture(self, gpu: Gpu) -> int:
        return gpu.model.architecture

    @device_call
    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> Any:
        return pci_info(gpu.bus, gpu.model.device_id)

    @device_call
    def nvmlDeviceGetPersistenceMode(self, gpu: Gpu) -> int:
        return int(self.world.system.dgx)

    @device_call
    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        return [int(gpu.mig), int(gpu.mig)]

    @device_call
    def nvmlDeviceGetMemoryBusWidth(self, gpu: Gpu) -> int:
        return gpu.model.bus_width

    @device_call
    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: Gpu) -> int:
        return round(gpu.model.power_limit * 1000)

    @device_call
    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: Gpu) -> int:
        return round(gpu.model.power_limit * 1000)

    @device_call
    def nvmlDeviceGetTemperatureThreshold(self, gpu: Gpu, threshold: int) -> int:
        if not 0 <= threshold < pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
            refuse(refusals.INVALID_ARGUMENT)
        known = gpu.model.thresholds
        limit = known[threshold] if threshold < len(known) else None
        if limit is None:
            raise pynvml.NVMLError(refusals.NOT_SUPPORTED)
        return limit

    @device_call
    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: Gpu) -> int:
        return gpu.model.pcie_generation

    @device_call
    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: Gpu) -> int:
        return LANES

    @device_call
    def nvmlDeviceGetGpuFabricInfoV(self, gpu: Gpu, info: Any) -> int:
        """Fills what the reference points to, as the driver does."""
        target = getattr(info, "_obj", info)
        versions = (pynvml.nvmlGpuFabricInfo_v2, pynvml.nvmlGpuFabricInfo_v3)
        if target.version not in versions:
            refuse(refusals.VERSION_MISMATCH)
        registered = gpu.model.architecture >= HOPPER
        target.state = FABRIC_COMPLETED if registered else 0
        target.status = target.cliqueId = target.healthMask = 0
        return int(pynvml.NVML_SUCCESS)


def pci_info(bus: int, device_id: int) -> Any:
    """The address of a device on this PCI bus."""
    info = pynvml.nvmlPciInfo_t()
    info.domain, info.bus, info.device = 0, bus, 0
    info.pciDeviceId, info.pciSubSystemId = device_id, SUBSYSTEM
    info.busIdLegacy = f"0000:{bus:02X}:00.0".encode()
    info.busId = f"00000000:{bus:02X}:00.0".encode()
    return info
