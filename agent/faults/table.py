"""Every fault, in the groups in which Prometheus evaluates them."""

from agent.faults.fabric import fabric_faults
from agent.faults.gpus import gpu_faults
from agent.faults.host import host_faults
from agent.faults.memory import memory_faults
from agent.faults.model import Fault, Group
from agent.faults.monitoring import monitoring_faults
from agent.faults.parameters import RuleParameters
from agent.faults.pcie import pcie_faults
from agent.faults.xids import HAD, recent, xid_faults

SHARED = (gpu_faults, memory_faults, xid_faults, fabric_faults, pcie_faults, host_faults)


def hardware(parameters: RuleParameters) -> Group:
    """What somebody must repair, reset or cool."""
    faults = (fault for part in SHARED for fault in part(parameters))
    return Group(
        "dgx-hardware",
        (HAD, recent(parameters), *faults),
        "Hardware: repair, reset, cool",
    )


def monitoring(parameters: RuleParameters) -> Group:
    """What must work for any alert to be believed."""
    return Group("dgx-agent", monitoring_faults(parameters), "Monitoring: missing data")


def found_by_look(parameters: RuleParameters) -> tuple[Fault, ...]:
    """The faults that one look at a machine finds."""
    groups = hardware(parameters), monitoring(parameters)
    rules = (rule for group in groups for rule in group.rules)
    return tuple(rule for rule in rules if isinstance(rule, Fault) and rule.kind)
