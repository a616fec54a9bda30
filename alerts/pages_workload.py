"""The runbook for the owner of the job."""

from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.model import CAUSES, State
from agent.sources import nccl
from alerts.page import Page


def cures(state: State) -> tuple[str, ...]:
    """What to do about each cause of a state."""
    return tuple(f"{SUMMARIES[state, c]}: {ADVICE[state, c]}" for c in CAUSES[state])


STARVED = Page(
    "DgxGpuStarved",
    "The GPU has a process and waits for something else for a good part of its time. All known "
    "causes count together, over 15 minutes, 6 hours and, as information, a day (the label "
    "`window`); the text names the two that take most. `unknown` has severity info: a notebook, a "
    "debugger and a service without requests wait too.",
    (
        "`dgx-telemetry once` shows the verdict with its evidence; so does the live page of the "
        "agent.",
        "`dgx_gpu_state == 1` is the verdict of this second, "
        "`rate(dgx_gpu_state_seconds_total[5m])` where the time of each GPU goes.",
        "For disk and network: `iostat -x 1`, `nstat`, `cat /proc/pressure/io`. For the CPU and "
        "one thread: `top -H`, `py-spy dump --pid PID`.",
    ),
    cures(State.STARVED),
    "A job that starts, loads a checkpoint or evaluates may wait for some minutes. If such phases "
    "last longer than they should alert, raise `alerts.starved_window`; a loss that you accept, "
    "`alerts.starved_hours_share` and `alerts.starved_day_share`.",
)

STRAGGLER = Page(
    "DgxGpuStraggler",
    "GPUs of one job wait for each other at every step, so the slowest sets the pace. The one that "
    "others wait for is named where it is on this machine; otherwise those that wait are named.",
    (
        "`rate(dgx_gpu_waits_for_seconds_total[5m])`: who waits for whom, by UUID.",
        "`dgx_gpu_sm_active_ratio` of all GPUs side by side (before Hopper `dgx_gpu_power_watts`): "
        "the waiting ones lie well below the one that they wait for.",
        '`dgx_gpu_clock_hertz{clock="sm"}` and `dgx_gpu_throttle_seconds_total`: is the slow one '
        "throttled?",
        "Other alerts of the same GPU: starved, throttled, hot, PCIe or NVLink degraded.",
    ),
    (
        "Nothing is broken yet: tell the owner of the job which GPU it is (`/api/v1/jobs` names "
        "the job), unless another alert of that GPU is about heat, throttling or links: cure that.",
        "Give each rank the same work: lengths of sequences, sizes of shards, stages of a "
        "pipeline, experts.",
        "Swap two GPUs between ranks: if the slowness stays with the GPU it is the hardware, if it "
        "moves it is the work.",
    ),
    "Pipelines wait by design at their ends; if that share is the one you planned, raise "
    "`alerts.starved_share`.",
)

HUNG = Page(
    "DgxJobHung",
    "Every GPU of a job waits: for a process that is stopped or sleeps, or for one another. The "
    "job will not go on by itself; NCCL ends it after its timeout (PyTorch: 10 minutes), or never. "
    "The alert names the process: the one that a signal has stopped, or that sleeps while the "
    "others spin, or, where `job.nccl` is on, that has launched fewer collectives.",
    (
        "`/api/v1/jobs` of the agent: since when, and which process the others wait for.",
        "`py-spy dump --pid PID` of the rank that is named, and of one that waits: where in the "
        "program does each stand? `cat /proc/PID/stack` and `ps -o state,wchan -p PID` for one in "
        "the kernel.",
        "`NCCL_DEBUG=INFO` cannot be set on a job that runs; where it was, the log has the last "
        "collective of each rank.",
        "NCCL's own report (`echo verbose status | nc localhost 28028`) can end the job that is "
        f"asked: {nccl.REPORTS}. "
        'Ask only where the job is lost anyway. `job.nccl = "hang"` lets the agent ask newer '
        "versions.",
        "The node of that rank: `dmesg` (out of memory, XID), `nvidia-smi`, the state of its "
        "network and file systems.",
    ),
    (
        "Look before anybody ends the job, for afterwards nothing can be seen: `py-spy dump --pid "
        "PID` of the rank that the alert names first (stopped, waiting for input, or an "
        "exception?); keep what it prints. Tell the owner of the job, and start the next run with "
        "`NCCL_DEBUG=INFO`.",
        "A rank that called another collective, or none (a branch that not all ranks take, an "
        "exception that was swallowed, unequal numbers of batches): cure the program, and start "
        "from the last checkpoint.",
        "A rank that was stopped or killed: end the job; that rank does not come back.",
        "A rank that waits for a file system or a lock: cure that, the job goes on by itself.",
    ),
    "A debugger that holds one rank hangs the others. A checkpoint that one rank writes is no "
    "hang: its process works, and the others are starved by a peer. A job on several hosts, none "
    "of whose processes here explains the wait, is called hung after 10 minutes.",
)

SLOWER = Page(
    "DgxJobSlower",
    "The steps of a job, counted from outside, take longer than in the job's own first hour. "
    "Nothing need be broken: but what was bought then is no longer delivered.",
    (
        "`/api/v1/jobs` of the agent, or the live page: since when, and what changed then (a "
        "clock, a temperature, a cause of waiting, another job on the host).",
        "`dgx_gpu_step_seconds / dgx_gpu_step_reference_seconds` over the life of the job.",
        "Other alerts of the same GPUs: throttled, hot, starved, a link degraded.",
    ),
    (
        "Cure what changed, if the host changed.",
        "If the program did (longer sequences, an evaluation, another phase of a curriculum), the "
        "slowdown is its own.",
    ),
    "Phases of one job differ; raise `alerts.slower_share` where they do by design.",
)

HELD = Page(
    "DgxGpuHeldIdle",
    "A process holds memory of the GPU, and neither the GPU nor that process has done anything for "
    "as long as the limit says. Nobody else can use the GPU.",
    (
        "`nvidia-smi` lists the process; `ps -o pid,user,etime,cmd -p PID` its owner and age.",
        '`dgx_gpu_state{state="held"} == 1` now, `dgx_gpu_memory_used_bytes` for what it holds.',
    ),
    (
        "Ask its owner whether it is still needed. The owner of a forgotten notebook shuts its "
        "kernel down; do not kill it. A server that waits for requests may be moved to a GPU that "
        "others share.",
    ),
    "A service that must answer at once may be held for hours. Silence it by its GPU, or raise "
    "`alerts.held_window`.",
)

UNUSED = Page(
    "DgxGpuAllocatedUnused",
    "Slurm or Kubernetes gave the GPU to a job, nobody else can have it, and the job has no "
    "process on it.",
    (
        "`dgx_gpu_allocated == 1` and `dgx_gpu_processes == 0` at the same time; with `job.info` "
        "on, `dgx_gpu_job_info` of the GPU names the job, its user and account.",
        "Slurm: `scontrol show job -d ID` lists the GPUs by Slurm's own numbers, which are the "
        "order of gres.conf, not that of nvidia-smi. Kubernetes: `kubectl describe pod`.",
    ),
    (
        "Tell the owner: many jobs ask for more GPUs than their program is started on "
        "(`--gres=gpu:8`, and one rank), or keep a node for an interactive session.",
        "If the owner does not answer, your site's rules decide: this alert is no reason to cancel "
        "a job at night.",
    ),
    "A job that first builds, downloads or waits for its other nodes touches its GPUs late: raise "
    "`alerts.unused_window`.",
)

THROTTLED = Page(
    "DgxGpuThrottled",
    "Something holds the clocks down, so the work takes longer: heat, a power brake or a power cap "
    "that costs clocks, or the voltage limit. A GPU at its power limit with high clocks is healthy "
    "and does not alert.",
    (
        "`nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i GPU`",
        "`rate(dgx_gpu_throttle_seconds_total[5m])` by reason.",
    ),
    (
        "One GPU or all? `nvidia-smi --query-gpu=index,temperature.gpu,power.draw,clocks.sm "
        "--format=csv`. All of a node, or of a rack: air or power of the room; call who runs it. "
        "One: its own cooler or cable; drain the node when its job has ended, and [open a support "
        "case](#case).",
        *cures(State.THROTTLED),
    ),
    "A power cap that you set yourself does what you asked for.",
)

LINK = Page(
    "DgxLinkSaturated",
    "NVLink, PCIe, InfiniBand or network: one direction was full for much of the time, against "
    "what this very system can carry. More work will not go faster over it.",
    (
        "`dgx_bandwidth_ratio` by path, device and direction; `dgx_bandwidth_limit_info` says "
        "where the limit comes from.",
        "`dgx-telemetry check` lists the limits with their sources.",
    ),
    (
        "nvlink, infiniband: overlap communication with work, send less (compression, larger "
        "accumulation steps), place ranks so that the wire carries less.",
        "pcie: keep data on the GPU, send smaller types, pin memory, decode on the GPU.",
        "network: copy the data to the local disks first, or cache it.",
    ),
    "NVLink alerts only where communication takes a tenth of the GPU's time or more. A job whose "
    "work is to move data (all-to-all, key-value caches) fills its links, and may.",
)

DISK = Page(
    "DgxDiskSaturated",
    "A disk or array delivered, or took, all that it can for much of the time.",
    (
        "`iostat -x 1` on the machine; `iotop` for who reads.",
        '`dgx_bandwidth_ratio{path="disk"}`; DgxGpuStarved with cause disk says what it costs.',
    ),
    (
        "Read less: a cache in memory, larger files, fewer random reads, compressed data.",
        "Read faster: a local copy on the array, read-ahead. More loaders do not help a full disk.",
    ),
    "Copies, checks of an array and checkpoints fill a disk for minutes; if no GPU starves, let "
    "them.",
)

PAGES = (STARVED, STRAGGLER, HUNG, SLOWER, HELD, UNUSED, THROTTLED, LINK, DISK)
