"""What silences what: one message for one fault.

An alert that silences must be there before the other one is sent. So the rules hold in steps: what
is counted each second and lost data (0 to 2 min), links and what the driver asks for (3 min),
lesser errors (5 min), what only waits for a reset (8 min and more).
tests/alerts/test_inhibitions.py holds them to it.
"""

from collections.abc import Sequence
from typing import Any

GPU_MISSING, REMAP_FAILURE, RECOVERY_NEEDED = (
    "DgxGpuMissing",
    "DgxGpuRowRemapFailure",
    "DgxGpuRecoveryNeeded",
)
XID, ECC, PAGES_PENDING, ECC_RISING = (
    "DgxGpuXid",
    "DgxGpuEccUncorrected",
    "DgxGpuPagesPending",
    "DgxGpuEccRising",
)
AGENT_DOWN, AGENT_BLIND, FABRIC_FAULT = "DgxAgentDown", "DgxAgentBlind", "DgxFabricFault"
NODE_MISSING, PORT_ERRORS = "DgxNodeMissing", "DgxInfinibandErrors"
LINKS_DOWN, LINK_ERRORS, FLAPPING = "DgxNvlinkDown", "DgxNvlinkErrors", "DgxInfinibandFlapping"

OF_MEMORY = 'xid=~"13|43|45|48|63|64|92|94|95|140|154|171|172"'
OF_LINKS = 'xid=~"45|74|14[4-9]|150|154|155"'
OF_SYSTEM_PROCESSOR = 'xid=~"119|120"'
CRITICAL, LESSER = 'severity="critical"', 'severity!="critical"'
OUR_ALERTS = 'alertname=~"Dgx.+"'

GPU, PORT, NODE = ("instance", "uuid"), ("instance", "device"), ("instance",)
RACK, CLUSTER = ("cluster", "rack"), ("cluster",)

Matchers = Sequence[str]


def _named(*names: str) -> str:
    return f'alertname=~"{"|".join(names)}"' if len(names) > 1 else f'alertname="{names[0]}"'


RULES: tuple[tuple[Matchers, Matchers, Sequence[str]], ...] = (
    # A node that does not answer: what was known of it is old. The watchdog has no instance.
    (
        (_named(AGENT_DOWN), 'sign="silence"'),
        (f'alertname!="{AGENT_DOWN}"', OUR_ALERTS, 'severity!="none"'),
        NODE,
    ),
    # A GPU that is lost: what it suffered from in its last minutes matters no more.
    ((_named(GPU_MISSING), 'uuid!=""'), (f'alertname!="{GPU_MISSING}"', OUR_ALERTS), GPU),
    # It hangs its job, and takes the links of its peers along.
    (
        (_named(GPU_MISSING),),
        (_named("DgxJobHung", "DgxGpuStraggler", LINKS_DOWN, LINK_ERRORS),),
        NODE,
    ),
    ((_named(GPU_MISSING),), (_named(FABRIC_FAULT), 'sign!="switch"'), NODE),
    # One fault of memory: the word that asks for most.
    ((_named(REMAP_FAILURE),), (_named(RECOVERY_NEEDED, ECC, PAGES_PENDING, ECC_RISING),), GPU),
    ((_named(REMAP_FAILURE),), (_named(XID), OF_MEMORY), GPU),
    ((_named(ECC),), (_named(RECOVERY_NEEDED, PAGES_PENDING, ECC_RISING),), GPU),
    ((_named(ECC),), (_named(XID), OF_MEMORY, LESSER), GPU),
    # (An XID that tells of lost data comes before the counters, which are read once a minute: the
    # rule of DgxGpuEccUncorrected leaves it to that XID.)
    # What the driver asks for comes from an XID that says why; lesser ones only follow it.
    ((_named(XID), CRITICAL), (_named(RECOVERY_NEEDED, PAGES_PENDING, ECC_RISING),), GPU),
    ((_named(XID), CRITICAL), (_named(XID), LESSER), GPU),
    ((_named(RECOVERY_NEEDED),), (_named(XID), LESSER), GPU),
    ((_named(RECOVERY_NEEDED),), (_named(PAGES_PENDING),), GPU),
    ((_named(XID), 'xid="94"'), (_named(PAGES_PENDING),), GPU),
    ((_named(PAGES_PENDING),), (_named(XID), 'xid="63"'), GPU),
    ((_named(ECC_RISING), 'sign="corrected"'), (_named(XID), 'xid="92"'), GPU),
    ((_named(XID), 'sign="nvlink5"'), (_named(XID), 'action="by_unit"'), GPU),
    # Links that are down have made errors before, and XIDs: a critical one says what to do.
    ((_named(XID), CRITICAL, OF_LINKS), (_named(LINKS_DOWN, LINK_ERRORS),), GPU),
    ((_named(LINKS_DOWN),), (_named(LINK_ERRORS),), GPU),
    ((_named(LINKS_DOWN),), (_named(XID), OF_LINKS, LESSER), GPU),
    ((_named(LINKS_DOWN),), (_named(FABRIC_FAULT), 'sign="health"'), GPU),
    # NVSwitches and who manages them, before GPUs and links that depend on both.
    ((_named(FABRIC_FAULT), 'sign="switch"'), (_named(FABRIC_FAULT), 'sign!="switch"'), NODE),
    (
        (_named(FABRIC_FAULT), 'sign="manager"'),
        (_named(FABRIC_FAULT), 'sign=~"state|health"'),
        NODE,
    ),
    ((_named(FABRIC_FAULT), 'sign=~"manager|switch"'), (_named(LINKS_DOWN, LINK_ERRORS),), NODE),
    ((_named(FABRIC_FAULT), 'sign="manager"'), (_named(XID), OF_LINKS, LESSER), NODE),
    ((_named(FABRIC_FAULT), 'sign="switch"'), (_named(XID), OF_LINKS), NODE),
    # One link, one port, one array.
    ((_named("DgxPcieDegraded"),), (_named("DgxPcieReplays"),), GPU),
    ((_named("DgxGpuHot"), CRITICAL), (_named("DgxGpuThrottled"),), GPU),
    ((_named("DgxGpuHot"), CRITICAL), (_named("DgxGpuHot"), LESSER), GPU),
    ((_named(FLAPPING),), (_named(PORT_ERRORS),), PORT),
    ((_named(PORT_ERRORS), 'sign="errors"'), (_named(PORT_ERRORS), 'sign="peers"'), PORT),
    ((_named("DgxRaidDegraded"),), (_named("DgxDiskFailing"), 'kind="controller"'), NODE),
    # A driver that hangs: all that it told is old. Where an XID says why, that one is told.
    (
        (_named(AGENT_BLIND), 'sign="sources"'),
        (_named("DgxGpu.+", "DgxNvlink.+", "DgxPcie.+", "DgxJob.+"), LESSER),
        NODE,
    ),
    ((_named(XID), OF_SYSTEM_PROCESSOR), (_named(AGENT_BLIND),), NODE),
    # A rack, or a switch above several: one message, and none for each node behind it.
    ((_named(NODE_MISSING), 'sign="rack"'), (_named(AGENT_DOWN), 'sign="silence"'), RACK),
    ((_named(NODE_MISSING), 'sign="cluster"'), (_named(AGENT_DOWN), 'sign="silence"'), CLUSTER),
    ((_named(NODE_MISSING), 'sign="cluster"'), (_named(NODE_MISSING), 'sign="rack"'), CLUSTER),
)
"""Source, target, and what both must have in common."""


def inhibitions() -> list[dict[str, Any]]:
    """As Alertmanager reads them."""
    return [
        {"source_matchers": list(source), "target_matchers": list(target), "equal": list(equal)}
        for source, target, equal in RULES
    ]
