"""Every fault, in the groups in which Prometheus evaluates them."""

from collections.abc import Callable

from agent.faults.fabric import fabric_faults
from agent.faults.gpus import gpu_faults
from agent.faults.host import host_faults
from agent.faults.memory import memory_faults
from agent.faults.model import Fault, Group
from agent.faults.monitoring import monitoring_faults
from agent.faults.parameters import RuleParameters
from agent.faults.pcie import pcie_faults
from agent.faults.xids import HAD, recent, xid_faults

Faults = Callable[[RuleParameters], tuple[Fault, ...]]

HARDWARE = (gpu_faults, memory_faults, xid_faults, fabric_faults, pcie_faults, host_faults)


def hardware(parameters: RuleParameters) -> Group:
    """What somebody must repair, reset or cool."""
    faults = _rules(*HARDWARE, parameters=parameters)
    title = "Hardware: repair, reset, cool"
    return Group("dgx-hardware", (HAD, recent(parameters), *faults), title)


def monitoring(parameters: RuleParameters) -> Group:
    """What must work for any alert to be believed."""
    rules = _rules(monitoring_faults, parameters=parameters)
    return Group("dgx-agent", rules, "Monitoring: missing data")


def _rules(*parts: Faults, parameters: RuleParameters) -> tuple[Fault, ...]:
    return tuple(
        fault for part in parts for fault in part(parameters) if fault.when and fault.alert
    )


def found_by_look(parameters: RuleParameters) -> tuple[Fault, ...]:
    """The faults that one look at a machine finds."""
    parts = *HARDWARE, monitoring_faults
    return tuple(fault for part in parts for fault in part(parameters) if fault.kind)
