"""The runbook for those who look after the hardware."""

from alerts.page import Page

MISSING = Page(
    "DgxGpuMissing",
    "Fewer GPUs answer than the system has. `sign` tells how it is known: `lost`, the agent saw "
    "this GPU go; `fewer`, it never saw it; `no_driver`, the machine had GPUs and now has no "
    "driver.",
    (
        "`nvidia-smi -L` and `dgx-telemetry check` list what answers.",
        "`dmesg | grep -i xid`: 79 means that the GPU fell off the bus.",
        "`lspci -d 10de:` shows whether it is still on the bus.",
    ),
    (
        "Drain the node: jobs that use the GPU are dead already.",
        "Reset the GPU (`nvidia-smi --gpu-reset -i GPU`), else reboot, else switch the machine off "
        "and on.",
        "A GPU that stays away, or goes again, is due for service.",
    ),
    "A GPU that was taken out on purpose: set `system` in the configuration, or a spec sheet of "
    "your own that says how many there are. While the driver is updated no GPU answers.",
)

XID = Page(
    "DgxGpuXid",
    "The driver reported an error by its XID code. Critical: codes after which the GPU must be "
    "reset or replaced. Info: codes that a program brings on itself (13, 31, 43, 45, 68, 69). "
    "Warning: any other. A GPU that is lost is told by DgxGpuMissing instead.",
    (
        "`dmesg -T | grep -i xid` gives the time and the process.",
        "`dgx_gpu_xid_errors_total` by GPU and code.",
    ),
    (
        "Critical: drain the node, reset the GPU, run the vendor's diagnosis (`dcgmi diag -r "
        "3`); if it comes back, ask for service.",
        "Info: tell the owner of the job; it is his program until the same code follows the GPU "
        "through several programs.",
        "Warning: look the code up in NVIDIA's XID catalogue.",
    ),
    "Errors that a known program causes while it is developed.",
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
        "Reset the GPU, so that the row is remapped or the page retired.",
        "If errors come back after the reset, ask for service.",
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
    "slows down next, and shuts down after that.",
    (
        "`nvidia-smi -q -d TEMPERATURE -i GPU`",
        "`dgx_gpu_temperature_margin_celsius` of all GPUs: one hot GPU is its heat sink, all of "
        "them the inlet air or the fans.",
    ),
    (
        "Look at fans, inlet temperature, dust, blanks of empty slots, neighbours in the rack.",
        "Move load away until it is cool.",
        "One GPU hotter than its neighbours under the same load: ask for service.",
    ),
    "Never; to be told earlier, raise `alerts.hot_margin`.",
)

NVLINK_DOWN = Page(
    "DgxNvlinkDown",
    "The GPU has fewer NVLinks up than the system should have. Jobs that use several GPUs are "
    "slow, fail, or fall back to PCIe. While a GPU is missing its links are not told.",
    (
        "`nvidia-smi nvlink -s -i GPU`; `dgx_nvlink_link_up == 0` names the links.",
        "With NVSwitches: `systemctl status nvidia-fabricmanager` and `dgx_nvlink_fabric_state`.",
        "`dmesg | grep -iE 'xid.*74|sxid'`",
    ),
    (
        "Drain the node, restart the Fabric Manager where there is one, reset the GPUs or reboot.",
        "Links that stay down are due for service.",
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
        "Reset the GPU at the next occasion; if errors come back, ask for service.",
    ),
    "A burst when the driver is loaded or a GPU is reset.",
)

PCIE = Page(
    "DgxPcieDegraded",
    "The GPU uses fewer PCIe lanes than it and its slot have (`sign` width), or a lower generation "
    "all the while that it was loaded (`sign` generation). Copies to and from it are slow. A "
    "link at rest lowers its generation to save power; that is not told.",
    (
        "`nvidia-smi -q -i GPU | grep -A8 'GPU Link Info'`",
        "`lspci -vv -s BUS | grep -E 'LnkCap|LnkSta'`",
    ),
    ("Reseat the GPU, the riser or the cable; look at the firmware's settings; ask for service.",),
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
    ("Look at cable or transceiver, at the port of the switch and at its settings.",),
    "Ports that are wired to a slower network on purpose: state it by a `[[limit]]` in the "
    "configuration.",
)

PAGES = (MISSING, XID, ECC, REMAP, HOT, NVLINK_DOWN, NVLINK_ERRORS, PCIE, LINK)
