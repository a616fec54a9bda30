"""The runbook for those who look after the hardware."""

from alerts.page import Page
from alerts.xids import table

MISSING = Page(
    "DgxGpuMissing",
    "Fewer GPUs answer than the system has. `sign`: `lost`, the GPU stopped answering; `fewer`, it "
    "has not answered since the agent started; `no_driver`, the machine had GPUs and now has no "
    "driver.",
    (
        "`nvidia-smi -L` and `dgx-telemetry check` list what answers.",
        "`sudo dmesg -T | grep -iE 'xid|fallen off|RmInitAdapter'`: XID 79 means that the GPU fell "
        "off the bus; `RmInitAdapter failed` names one that the driver could not start.",
        "`lspci -d 10de:` shows whether it is still on the bus.",
    ),
    (
        "Drain the node: jobs that use the GPU are dead already. Let others end or save a "
        "checkpoint before the reboot.",
        "Save a bug report: `sudo nvidia-bug-report.sh`.",
        "lost, fewer: reboot; a GPU that fell off the bus cannot be reset. If it does not come "
        "back, power cycle the machine through its service processor (BMC), off for 30 seconds.",
        "no_driver: `sudo modprobe nvidia`. If that fails, `sudo dmesg -T | grep -i nvrm` shows "
        "why; usually the driver does not fit the kernel: install it again, then reboot.",
        "If the GPU does not come back, or is lost again, open a support case.",
    ),
    "A GPU that was taken out on purpose: copy the system's sheet, set its `gpu_count`, and name "
    "the copy in `system` (agent/specs/README.md). While the driver is updated no GPU answers.",
)

XID = Page(
    "DgxGpuXid",
    "The driver reported an error by its XID code. The table below says what each code means, how "
    "severe it is and what to do first, from NVIDIA's catalogue; `action` on the alert is that "
    "first step. For a GPU that is lost, DgxGpuMissing fires instead.",
    (
        "`sudo dmesg -T | grep -i xid` gives the time, the process, and for 144 to 150 the unit.",
        "`dgx_gpu_xid_errors_total` by GPU and code; `dgx-telemetry check`.",
    ),
    (
        "Several codes on one GPU: act on the worst; 43, 45, 63 and 154 follow others.",
        "Before a reset or reboot, save a bug report: `sudo nvidia-bug-report.sh`.",
        "Do what the alert says first. `reset`: drain the node, [reset the GPU](#reset). `reboot`: "
        "drain, reboot; this GPU cannot be reset. `memory`: reset, then `nvidia-smi -q -d "
        "ROW_REMAPPER,PAGE_RETIREMENT -i GPU`; a failure there means replacement. `links`: "
        "`nvidia-smi nvlink -s -i GPU`, reset both ends. `restart_job`: tell the job's owner.",
        "If the same critical code comes again within a day of its reset or reboot: take the GPU "
        "out of use and open a support case.",
    ),
    "Codes of severity info that a known program causes while it is developed.",
    tuple(table()),
)

ECC = Page(
    "DgxGpuEccUncorrected",
    "The memory lost data that ECC could not restore. The program that used it was ended, or its "
    "results are in doubt.",
    (
        "`nvidia-smi -q -d ECC,ROW_REMAPPER -i GPU` (before Ampere `-d ECC,PAGE_RETIREMENT`)",
        '`dgx_gpu_ecc_errors_total{severity="uncorrected"}`, `dgx_gpu_row_remap_pending`.',
    ),
    (
        "Stop the job; go back to a checkpoint from before.",
        "Save a bug report, then [reset the GPU](#reset), so that the row is remapped or the page "
        "retired.",
        "If errors come back after the reset, open a support case.",
    ),
    "Never while jobs run on that GPU.",
)

REMAP = Page(
    "DgxGpuRowRemapFailure",
    "A broken row of memory could not be replaced: the spares of its bank are used up.",
    (
        "`nvidia-smi -q -d ROW_REMAPPER -i GPU`",
        "`dgx_gpu_row_remap_failure`, `dgx_gpu_remapped_rows_total`.",
    ),
    ("Take the GPU out of use, and ask for its replacement: it qualifies.",),
    "Never.",
)

HOT = Page(
    "DgxGpuHot",
    "The core, or the memory, is at the temperature that the GPU itself states as its limit. It "
    "slows down next, and shuts down after that. `sign` peers, as information: it is far from its "
    "limit, and 8 degrees warmer than the GPUs at its place in the other nodes of its job.",
    (
        "`nvidia-smi -q -d TEMPERATURE -i GPU`",
        "`dgx_gpu_temperature_margin_celsius` of all GPUs: one hot GPU is its heat sink, all of "
        "them the inlet air or the fans.",
    ),
    (
        "Look at fans, inlet temperature, dust, blanks of empty slots, neighbours in the rack.",
        "Move load away until it is cool.",
        "One GPU hotter than its neighbours under the same load: open a support case.",
    ),
    "Never; to be alerted earlier, raise `alerts.hot_margin`.",
)

NVLINK_DOWN = Page(
    "DgxNvlinkDown",
    "The GPU has fewer NVLinks up than the system should have. Jobs that use several GPUs are "
    "slow, fail, or fall back to PCIe. While a GPU is missing, this alert is not sent for its "
    "links.",
    (
        "`nvidia-smi nvlink -s -i GPU`; `dgx_nvlink_link_up == 0` names the links.",
        "With NVSwitches: `systemctl status nvidia-fabricmanager` and `dgx_nvlink_fabric_state`.",
        "`sudo dmesg -T | grep -iE 'xid .*: 74,|sxid'`",
    ),
    (
        "Drain the node, and save a bug report: `sudo nvidia-bug-report.sh`.",
        "[Reset the GPUs](#reset), all at once. With NVSwitches: `sudo systemctl restart "
        "nvidia-fabricmanager` after it. If that does not help, reboot.",
        "If links stay down, open a support case.",
    ),
    "While the Fabric Manager starts.",
)

NVLINK_ERRORS = Page(
    "DgxNvlinkErrors",
    "A link had to replay, to recover, or saw CRC errors, more often than a healthy one does. Each "
    "costs time, and a link that goes on so goes down in the end. Data errors that the link "
    "mends on the way (kinds crc_data and ecc_data) are normal and do not count.",
    (
        "`nvidia-smi nvlink -e -i GPU`",
        "`increase(dgx_nvlink_errors_total[1h])` by link and kind.",
    ),
    (
        "Look whether its far end counts errors too (`dgx_nvlink_link_info` names it).",
        "Reset the GPU at the next occasion; if errors come back, open a support case.",
    ),
    "A burst when the driver is loaded or a GPU is reset.",
)

PCIE = Page(
    "DgxPcieDegraded",
    "The GPU uses fewer PCIe lanes than it and its slot have (`sign` width), or a lower generation "
    "all the while that it was loaded (`sign` generation). Copies to and from it are slow. A "
    "link at rest lowers its generation to save power; that does not alert.",
    (
        "`nvidia-smi -q -i GPU | grep -A8 'GPU Link Info'`",
        "`lspci -vv -s BUS | grep -E 'LnkCap|LnkSta'`; BUS by "
        "`nvidia-smi --query-gpu=uuid,pci.bus_id --format=csv`.",
    ),
    (
        "Nothing is lost: jobs go on, and only copies to and from this GPU are slow. Keep what the "
        "two commands below say.",
        "When the job has ended: drain the node and reboot it; a link that was trained badly comes "
        "back whole.",
        "Not so, or it comes back: [open a support case](#case). GPU, riser or cable are to be "
        "reseated, with the power off, by whoever may open the machine.",
    ),
    "Boards that share the lanes of a slot: then the limit that the driver states is wrong.",
)

LINK = Page(
    "DgxLinkDegraded",
    "A NIC or InfiniBand port has carrier, and runs below the rate that the sheet of this system "
    "states.",
    (
        "`ethtool DEVICE`, `ibstat`, `mlxlink -d DEVICE`.",
        "`dgx_bandwidth_limit_bytes_per_second` against `dgx_bandwidth_spec_bytes_per_second`.",
    ),
    (
        "Jobs over this port go on, slower. See what both ends have agreed on (below): the port of "
        "the switch, its settings and its cable are those of whoever runs the network. Ask them.",
        "When the node is free: reseat the cable or transceiver at both ends, then replace it.",
        "The other ports of the node are right, and this one stays slow at another port of the "
        "switch: the adapter; [open a support case](#case).",
    ),
    "Ports that are wired to a slower network on purpose: state it by a `[[limit]]` in the "
    "configuration.",
)

PAGES = (MISSING, XID, ECC, REMAP, HOT, NVLINK_DOWN, NVLINK_ERRORS, PCIE, LINK)
