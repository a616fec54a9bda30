"""What silences what: one message for one fault.

An alert that silences must be there before the other one is sent. So the rules hold in steps: what
is counted each second and lost data (0 to 2 min), links and what the driver asks for (3 min),
lesser errors (5 min), what only waits for a reset (8 min and more).
tests/alerts/test_inhibitions.py holds them to it.
"""

from collections.abc import Sequence
from typing import Any

MISSING, REMAP, RECOVERY = "DgxGpuMissing", "DgxGpuRowRemapFailure", "DgxGpuRecoveryNeeded"
XID, ECC, PENDING, RISING = (
    "DgxGpuXid",
    "DgxGpuEccUncorrected",
    "DgxGpuPagesPending",
    "DgxGpuEccRising",
)
DOWN, BLIND, FABRIC = "DgxAgentDown", "DgxAgentBlind", "DgxFabricFault"
GONE, PORT_ERRORS = "DgxNodeMissing", "DgxInfinibandErrors"
LINKS_DOWN, LINK_ERRORS, FLAPPING = "DgxNvlinkDown", "DgxNvlinkErrors", "DgxInfinibandFlapping"

OF_MEMORY = 'xid=~"13|43|45|48|63|64|92|94|95|140|154|171|172"'
OF_LINKS = 'xid=~"45|74|14[4-9]|150|154|155"'
OF_SYSTEM_PROCESSOR = 'xid=~"119|120"'
CRITICAL, LESSER = 'severity="critical"', 'severity!="critical"'
OURS = 'alertname=~"Dgx.+"'

GPU, PORT, NODE = ("instance", "uuid"), ("instance", "device"), ("instance",)
RACK, CLUSTER = ("cluster", "rack"), ("cluster",)

Matchers = Sequence[str]


def _named(*names: str) -> str:
    return f'alertname=~"{"|".join(names)}"' if len(names) > 1 else f'alertname="{names[0]}"'


RULES: tuple[tuple[Matchers, Matchers, Sequence[str]], ...] = (
    # A node that does not answer: what was known of it is old. The watchdog has no instance.
    (
        (_named(DOWN), 'sign="silence"'),
        (f'alertname!="{DOWN}"', OURS, 'severity!="none"'),
        NODE,
    ),
    # A GPU that is lost: what it suffered from in its last minutes matters no more.
    ((_named(MISSING), 'uuid!=""'), (f'alertname!="{MISSING}"', OURS), GPU),
    # It hangs its job, and takes the links of its peers along.
    (
        (_named(MISSING),),
        (_named("DgxJobHung", "DgxGpuStraggler", LINKS_DOWN, LINK_ERRORS),),
        NODE,
    ),
    ((_named(MISSING),), (_named(FABRIC), 'sign!="switch"'), NODE),
    # One fault of memory: the word that asks for most.
    ((_named(REMAP),), (_named(RECOVERY, ECC, PENDING, RISING),), GPU),
    ((_named(REMAP),), (_named(XID), OF_MEMORY), GPU),
    ((_named(ECC),), (_named(RECOVERY, PENDING, RISING),), GPU),
    ((_named(ECC),), (_named(XID), OF_MEMORY, LESSER), GPU),
    # (An XID that tells of lost data comes before the counters, which are read once a minute: the
    # rule of DgxGpuEccUncorrected leaves it to that XID.)
    # What the driver asks for comes from an XID that says why; lesser ones only follow it.
    ((_named(XID), CRITICAL), (_named(RECOVERY, PENDING, RISING),), GPU),
    ((_named(XID), CRITICAL), (_named(XID), LESSER), GPU),
    ((_named(RECOVERY),), (_named(XID), LESSER), GPU),
    ((_named(RECOVERY),), (_named(PENDING),), GPU),
    ((_named(XID), 'xid="94"'), (_named(PENDING),), GPU),
    ((_named(PENDING),), (_named(XID), 'xid="63"'), GPU),
    ((_named(RISING), 'sign="corrected"'), (_named(XID), 'xid="92"'), GPU),
    ((_named(XID), 'sign="nvlink5"'), (_named(XID), 'action="by_unit"'), GPU),
    # Links that are down have made errors before, and XIDs: a critical one says what to do.
    ((_named(XID), CRITICAL, OF_LINKS), (_named(LINKS_DOWN, LINK_ERRORS),), GPU),
    ((_named(LINKS_DOWN),), (_named(LINK_ERRORS),), GPU),
    ((_named(LINKS_DOWN),), (_named(XID), OF_LINKS, LESSER), GPU),
    ((_named(LINKS_DOWN),), (_named(FABRIC), 'sign="health"'), GPU),
    # NVSwitches and who manages them, before GPUs and links that depend on both.
    ((_named(FABRIC), 'sign="switch"'), (_named(FABRIC), 'sign!="switch"'), NODE),
    ((_named(FABRIC), 'sign="manager"'), (_named(FABRIC), 'sign=~"state|health"'), NODE),
    ((_named(FABRIC), 'sign=~"manager|switch"'), (_named(LINKS_DOWN, LINK_ERRORS),), NODE),
    ((_named(FABRIC), 'sign="manager"'), (_named(XID), OF_LINKS, LESSER), NODE),
    ((_named(FABRIC), 'sign="switch"'), (_named(XID), OF_LINKS), NODE),
    # One link, one port, one array.
    ((_named("DgxPcieDegraded"),), (_named("DgxPcieReplays"),), GPU),
    ((_named("DgxGpuHot"), CRITICAL), (_named("DgxGpuThrottled"),), GPU),
    ((_named("DgxGpuHot"), CRITICAL), (_named("DgxGpuHot"), LESSER), GPU),
    ((_named(FLAPPING),), (_named(PORT_ERRORS),), PORT),
    ((_named(PORT_ERRORS), 'sign="errors"'), (_named(PORT_ERRORS), 'sign="peers"'), PORT),
    ((_named("DgxRaidDegraded"),), (_named("DgxDiskFailing"), 'kind="controller"'), NODE),
    # A driver that hangs: all that it told is old. Where an XID says why, that one is told.
    (
        (_named(BLIND), 'sign="sources"'),
        (_named("DgxGpu.+", "DgxNvlink.+", "DgxPcie.+", "DgxJob.+"), LESSER),
        NODE,
    ),
    ((_named(XID), OF_SYSTEM_PROCESSOR), (_named(BLIND),), NODE),
    # A rack, or a switch above several: one message, and none for each node behind it.
    ((_named(GONE), 'sign="rack"'), (_named(DOWN), 'sign="silence"'), RACK),
    ((_named(GONE), 'sign="cluster"'), (_named(DOWN), 'sign="silence"'), CLUSTER),
    ((_named(GONE), 'sign="cluster"'), (_named(GONE), 'sign="rack"'), CLUSTER),
)
"""Source, target, and what both must have in common."""


def inhibitions() -> list[dict[str, Any]]:
    """As Alertmanager reads them."""
    return [
        {"source_matchers": list(source), "target_matchers": list(target), "equal": list(equal)}
        for source, target, equal in RULES
    ]
