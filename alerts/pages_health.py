"""The runbook for what the driver, the fabric and the rest of the box say of their health."""

from alerts.page import Page

RECOVERY = Page(
    "DgxGpuRecoveryNeeded",
    "The driver (R570 and newer) asks for an action on the GPU: 1 reset, 2 reboot, 3 end "
    "peer-to-peer traffic, 4 end it and reset, 5 restart IMEX. New jobs on that GPU fail or give "
    "doubtful results until it is done. While an alert for a critical XID error of the GPU fires, "
    "this one is held back.",
    (
        "`nvidia-smi -q -i GPU | grep -i 'recovery action'`, `dgx-telemetry check`.",
        "`sudo dmesg -T | grep -i xid` shows what came before.",
    ),
    (
        "Drain the node (Slurm: `scontrol update nodename=NODE state=drain reason=gpu`).",
        "Save a bug report: `sudo nvidia-bug-report.sh`.",
        "1 and 4: [reset the GPU](#reset). 2: reboot. 3: end the jobs that use several GPUs. 5: "
        "`sudo systemctl restart nvidia-imex` on each node of the NVLink domain, without jobs.",
        "If the driver asks again after that: reboot once; then open a support case.",
    ),
    "Never while jobs are to run there.",
)

NOT_ANSWERING = Page(
    "DgxGpuNotAnswering",
    "Driver calls of one GPU take longer than a second (`sign` slow), or fail for no reason that "
    "is normal for it (`sign` failing). The agent reads the other GPUs meanwhile, and tries this "
    "one again after 2 s, 4 s and so on up to 5 min. What is absent of it says since when. Its job "
    "may still run; nvidia-smi hangs with it. A driver that hangs for all GPUs is DgxAgentBlind, "
    "and a GPU that fell off the bus DgxGpuMissing; while either fires, this one is held back.",
    (
        "`dgx-telemetry check`; `dgx_gpu_read_seconds`, `dgx_gpu_read_failures_total` of the GPU.",
        "`sudo dmesg -T | grep -i xid`: 119 and 120 are its system processor, 79 is the bus.",
        "`nvidia-smi -q -i GPU & sleep 15; jobs`: is it still running?",
    ),
    (
        "Let its job end or save a checkpoint, drain the node, and [reset the GPU](#reset); if the "
        "reset hangs, reboot.",
        "Without persistence mode the driver starts a GPU for each call: `nvidia-smi -pm 1`.",
        "If it comes back: save `sudo nvidia-bug-report.sh`, and open a support case.",
    ),
    "While a GPU is being reset.",
)

PENDING = Page(
    "DgxGpuPagesPending",
    "Rows (Ampere and newer) or pages (before Ampere) of the GPU's memory are broken, and will be "
    "replaced at its next reset. Until then programs that touch them can fail again.",
    (
        "`nvidia-smi -q -d ROW_REMAPPER -i GPU` (before Ampere `-d PAGE_RETIREMENT`)",
        "`dgx_gpu_row_remap_pending`, `dgx_gpu_retired_pages_pending`.",
    ),
    (
        "Let running jobs end; let no new one begin on the GPU.",
        "[Reset the GPU](#reset); before Ampere unload and load the driver, or reboot.",
        "Look again: nothing may be pending, and no remapping may have failed.",
    ),
    "Until today's jobs have ended, if they write checkpoints.",
)

RISING = Page(
    "DgxGpuEccRising",
    "The memory wears out: it corrects many errors (`sign` corrected), or has nearly used up its "
    "spare rows or pages (`sign` rows, pages). Corrected errors hurt no job; a row or page that "
    "was replaced for an uncorrectable error did.",
    (
        "`nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT -i GPU`",
        '`increase(dgx_gpu_ecc_errors_total{severity="corrected"}[1d])`: compare it with the other '
        "GPUs.",
    ),
    (
        "When the node is drained: `dcgmi discovery -l` shows the number N that DCGM has for the "
        "GPU; `dcgmi diag -r 3 -i N` (some 15 minutes; nvidia-dcgm must run, and no job).",
        "Open a support case with its result; at the limit the GPU qualifies for replacement.",
    ),
    "A burst after the node was moved or its cooling failed, once it is over.",
)

FABRIC = Page(
    "DgxFabricFault",
    "The NVSwitch fabric has a fault. `sign`: `manager`, the Fabric Manager does not run; "
    "`state`, GPUs have not joined; `health`, the fabric reports a fault of a GPU (`kind`); "
    "`switch`, an NVSwitch had a fatal error (SXid). CUDA fails on several GPUs, or on all.",
    (
        "`systemctl status nvidia-fabricmanager`, `tail /var/log/fabricmanager.log`",
        "`nvidia-smi -q | grep -A6 Fabric`; `sudo dmesg -T | grep -i sxid`",
        "`dgx_fabric_manager_running`, `dgx_nvlink_fabric_state`, `dgx_nvlink_fabric_health`, "
        "`dgx_nvswitch_errors_total`.",
    ),
    (
        "manager: `sudo systemctl start nvidia-fabricmanager`. If it stops again, compare "
        "`nv-fabricmanager --version` with `cat /proc/driver/nvidia/version`: they must be equal; "
        "install the Fabric Manager of the driver's version.",
        "state: drain the node (a restart can end every CUDA program on it), `sudo systemctl "
        "restart nvidia-fabricmanager`; if GPUs still have not joined after a minute, reset all "
        "GPUs or reboot.",
        "health, switch: drain the node, save a bug report, [reset all GPUs](#reset) at once "
        "(without `-i`), or reboot; if it comes back, open a support case.",
    ),
    "While the driver or the Fabric Manager is updated.",
)

REPLAYS = Page(
    "DgxPcieReplays",
    "The PCIe link of the GPU has to send packets again, more often than a link of its generation "
    "may. Copies are slower, and such a link fails in the end.",
    (
        "`nvidia-smi -q -i GPU | grep -i replay`, `sudo dmesg -T | grep -i aer`",
        "`rate(dgx_pcie_replays_total[1h])` of all GPUs: one alone: its seat; all: the board.",
    ),
    (
        "Plan a stop of the node: reseat the GPU, the riser or the cable.",
        "If it comes back: open a support case.",
    ),
    "A burst when the GPU is reset.",
)

IB_ERRORS = Page(
    "DgxInfinibandErrors",
    "An InfiniBand port counts more errors than a sound one (`sign` errors, by `kind`), or was up "
    "within the last day and is down (`sign` down). Jobs over several nodes are slow or fail.",
    (
        "`ibstat DEVICE`, `mlxlink -d DEVICE -c`, `perfquery` of port and switch port",
        "`increase(dgx_infiniband_errors_total[1h])` by kind.",
    ),
    (
        "Look at the far end: errors on both mean the cable.",
        "Reseat or replace cable and transceiver; then try another port of the switch.",
    ),
    "Cables that are pulled on purpose; a switch that is rebooted.",
)

FLAPPING = Page(
    "DgxInfinibandFlapping",
    "A port went down and came up again, several times in half a day. Each time collectives of "
    "jobs over several nodes hang or fail.",
    ("`sudo dmesg -T | grep -i mlx5`, `mlxlink -d DEVICE -c`", "`dgx_infiniband_link_up`"),
    (
        "Drain the node if its jobs span nodes: each of them fails at the next flap.",
        "`mlxlink -d DEVICE -c` here and at the switch's port (`iblinkinfo` names it): errors and "
        "low light at both ends mean the cable.",
        "Ask for the cable or transceiver to be replaced, and optical ends to be cleaned; then "
        "another port of the switch, then the adapter.",
    ),
    "While somebody works at the cabling.",
)

RAID = Page(
    "DgxRaidDegraded",
    "A software array lacks a member. A mirror works on without redundancy; a stripe (RAID 0) has "
    "lost its data, or will.",
    (
        "`cat /proc/mdstat`, `sudo mdadm --detail /dev/DEVICE`: its level, which member is gone.",
        "`sudo dmesg -T | grep -iE 'nvme|ata|md'`, `lsblk -o NAME,MODEL,SERIAL`: the serial "
        "number tells which disk to pull.",
    ),
    (
        "`cat /proc/mdstat`: raid1, raid5, raid6, raid10 work on, and there is time until "
        "tomorrow; but the next disk that fails may take the data along: see that there is a copy.",
        "raid0 (the scratch space of a DGX, `/raid`): programs that use it fail. Drain the node, "
        "copy off what can still be read, and make it anew when the disk is replaced.",
        "Replace the disk; `sudo mdadm --manage /dev/DEVICE --add /dev/DISK`, and watch "
        "/proc/mdstat.",
    ),
    "While the array is rebuilt.",
)

DISK = Page(
    "DgxDiskFailing",
    "A disk shows a sign of failing (`kind`): controller, the kernel has given it up; temperature, "
    "it reports that it is too hot; file_system, its file system has recorded errors; smart, the "
    "disk itself says that it fails (told where udisks2 runs).",
    (
        "`sudo dmesg -T | grep -iE 'nvme|ata|ext4'`",
        "`smartctl -a /dev/DISK` or `nvme smart-log /dev/DISK` (as root)",
    ),
    (
        "controller: replace it. temperature: fans and air.",
        "file_system: unmount, `fsck`; if SMART reports media errors, replace the disk.",
        "smart: copy off what is needed, then replace the disk.",
    ),
    "An old error of a file system that was repaired: `fsck` clears its count.",
)

CHASSIS = Page(
    "DgxChassisFault",
    "A fan, a power supply or a temperature sensor of the box raises its alarm (`kind`, `sensor`).",
    ("`sensors`", "`ipmitool sdr`, `ipmitool sel list` (as root), or the page of the BMC"),
    (
        "fan: replace it before the GPUs get hot.",
        "power_supply: look at its cable and feed; replace it. The box may slow its GPUs down.",
        "temperature: the air of the room, the fans.",
    ),
    "While the box is opened.",
)

PAGES = (
    *(NOT_ANSWERING, RECOVERY, PENDING, RISING, FABRIC, REPLAYS),
    *(IB_ERRORS, FLAPPING, RAID, DISK, CHASSIS),
)
