"""Advice for each verdict, for the owner of the job, and for each XID error.

Advice about a verdict never ends, stops or restarts anything: an apparently idle GPU may be a
server or a checkpoint.
"""

from collections.abc import Iterable
from enum import StrEnum

from agent.diagnosis.facts import FactKind, Found
from agent.model import Cause, Fact, Pair, Severity, State, Verdict

SUMMARIES: dict[Pair, str] = {
    (State.IDLE, Cause.NONE): "idle",
    (State.IDLE, Cause.REQUESTS): "waiting for requests",
    (State.HELD, Cause.NONE): "occupied by an idle process",
    (State.HUNG, Cause.NONE): "hung",
    (State.THROTTLED, Cause.THERMAL): "slowed down by heat",
    (State.THROTTLED, Cause.POWER): "power-limited",
    (State.THROTTLED, Cause.RELIABILITY): "slowed down by its voltage limit",
    (State.STARVED, Cause.PCIE): "starved by PCIe",
    (State.STARVED, Cause.PEER): "starved by a slow peer",
    (State.STARVED, Cause.DISK): "starved by disk",
    (State.STARVED, Cause.NETWORK): "starved by the network",
    (State.STARVED, Cause.CPU): "starved by the CPU",
    (State.STARVED, Cause.HOST_THREAD): "starved by its launching thread",
    (State.STARVED, Cause.UNKNOWN): "starved, cause unknown",
    (State.COMMUNICATING, Cause.NVLINK): "communicating over NVLink",
    (State.COMMUNICATING, Cause.INFINIBAND): "communicating over InfiniBand",
    (State.COMMUNICATING, Cause.PCIE): "communicating with its peers over PCIe",
    (State.BUSY, Cause.NONE): "busy",
}


def of_each(summary: str) -> str:
    """Return a summary for several GPUs, each with its own thread or limit."""
    return summary.replace(" by its ", ", each by its ")


def hang_advice(who: str = "each rank", pid: str = "PID") -> str:
    """Return the advice to examine a process of a hung job before its end destroys the evidence."""
    return (
        f"Look at {who} first with `py-spy dump --pid {pid}` (stopped, waiting for input, an "
        "exception?), "
        "before its owner ends it; start the next run with NCCL_DEBUG=INFO."
    )


def peer_advice(who: str = "the GPU that it waits for") -> str:
    """Return the advice for a GPU that other GPUs wait for."""
    return (
        f"Look at {who} (`dgx-telemetry once`), and mend what slows it down; else balance the work "
        "of the ranks."
    )


ALERTS: dict[State, tuple[str, Severity]] = {
    State.HELD: ("DgxGpuHeldIdle", Severity.INFO),
    State.HUNG: ("DgxJobHung", Severity.CRITICAL),
    State.THROTTLED: ("DgxGpuThrottled", Severity.WARNING),
    State.STARVED: ("DgxGpuStarved", Severity.WARNING),
    State.COMMUNICATING: ("DgxExposedCommunication", Severity.INFO),
}
"""The alert of each avoidable state, for a page with details, and its severity while nothing else
is wrong."""


def severity(pair: Pair) -> Severity | None:
    """Return the severity of a state, the same in every view; None for a healthy state."""
    if pair == (State.STARVED, Cause.UNKNOWN):
        return Severity.INFO  # a notebook or a server without requests waits too
    return ALERTS[pair[0]][1] if pair[0] in ALERTS else None


class Advice(StrEnum):
    """First step against a loss; its text is in TEXTS."""

    ASK_OWNER = "ask_owner"
    FIND_RANK = "find_rank"
    COOL = "cool"
    RAISE_POWER = "raise_power"
    CHECK_VOLTAGE = "check_voltage"
    MOVE_FEWER_BYTES = "move_fewer_bytes"
    BALANCE = "balance"
    READ_OR_WRITE = "read_or_write"
    READ_FASTER = "read_faster"
    CHECKPOINT = "checkpoint"
    RECEIVE_OR_SEND = "receive_or_send"
    RECEIVE_LESS = "receive_less"
    ADD_LOADERS = "add_loaders"
    RELIEVE_THREAD = "relieve_thread"
    PROFILE = "profile"
    SHOW_PROCESSES = "show_processes"
    OVERLAP_NVLINK = "overlap_nvlink"
    OVERLAP_INFINIBAND = "overlap_infiniband"
    PLACE_RANKS = "place_ranks"


READ_FASTER = (
    "Read ahead, larger files, a local copy or a cache; below the disk's limit more loaders help."
)
RECEIVE_LESS = (
    "Copy what is read to the local disks first, cache it, or send it compressed; where a port is "
    "at its limit, use more ports, else look at the storage server."
)
CHECKPOINT = (
    "Write checkpoints asynchronously, less often or to a faster disk; do not end one that is "
    "being written."
)
OVERLAP = "Overlap communication with work, or send fewer bytes (compression, accumulation)"

TEXTS: dict[Advice, str] = {
    Advice.ASK_OWNER: "Ask its owner whether the process is still needed: it holds memory "
    "and does no work.",
    Advice.FIND_RANK: hang_advice(),
    Advice.COOL: "Check the cooling: fans, inlet temperature, dust, neighbours in the rack.",
    Advice.RAISE_POWER: "Look at the power supplies and at the power limit "
    "(`nvidia-smi -q -d POWER`).",
    Advice.CHECK_VOLTAGE: "Look at `nvidia-smi -q -d PERFORMANCE`; if it lasts, ask the vendor.",
    Advice.MOVE_FEWER_BYTES: "Pin memory and overlap copies with work; move fewer bytes: keep "
    "data on the GPU, send smaller types, decode on the GPU.",
    Advice.BALANCE: peer_advice(),
    Advice.READ_OR_WRITE: "If it reads: read ahead, larger files, a local copy or a cache. "
    "Checkpoints: write asynchronously, less often or to a faster disk; let a running one finish.",
    Advice.READ_FASTER: READ_FASTER,
    Advice.CHECKPOINT: CHECKPOINT,
    Advice.RECEIVE_OR_SEND: "If the job reads: copy it to the local disks first, cache it, use "
    "more ports or a faster server. If it writes: write checkpoints asynchronously.",
    Advice.RECEIVE_LESS: RECEIVE_LESS,
    Advice.ADD_LOADERS: "Start more loader processes while cores are free, give the job "
    "cores where its threads wait for them, or decode and augment on the GPU.",
    Advice.RELIEVE_THREAD: "Relieve the thread that launches: CUDA graphs or "
    "torch.compile for many small kernels, loader processes for what it prepares itself.",
    Advice.PROFILE: "The host shows no reason: normal for a server without requests or a "
    "notebook. A job that should be at work waits for a service, a lock or the like: "
    "profile it (`py-spy`, Nsight Systems).",
    Advice.SHOW_PROCESSES: "Let the agent see the processes on this GPU: as root, with "
    "CAP_SYS_PTRACE where /proc is mounted with hidepid, in the pid namespace of the host if it "
    "is in a container. Until then it cannot see what they wait for.",
    Advice.OVERLAP_NVLINK: f"{OVERLAP}; else accept it: the links do what they can.",
    Advice.OVERLAP_INFINIBAND: f"{OVERLAP}; check that every port runs at its rate and that "
    "GPUDirect is in use.",
    Advice.PLACE_RANKS: "Place the ranks of a job on GPUs that share NVLink or a PCIe switch.",
}

OF_PAIR: dict[Pair, Advice] = {
    (State.HELD, Cause.NONE): Advice.ASK_OWNER,
    (State.HUNG, Cause.NONE): Advice.FIND_RANK,
    (State.THROTTLED, Cause.THERMAL): Advice.COOL,
    (State.THROTTLED, Cause.POWER): Advice.RAISE_POWER,
    (State.THROTTLED, Cause.RELIABILITY): Advice.CHECK_VOLTAGE,
    (State.STARVED, Cause.PCIE): Advice.MOVE_FEWER_BYTES,
    (State.STARVED, Cause.PEER): Advice.BALANCE,
    (State.STARVED, Cause.DISK): Advice.READ_OR_WRITE,
    (State.STARVED, Cause.NETWORK): Advice.RECEIVE_OR_SEND,
    (State.STARVED, Cause.CPU): Advice.ADD_LOADERS,
    (State.STARVED, Cause.HOST_THREAD): Advice.RELIEVE_THREAD,
    (State.STARVED, Cause.UNKNOWN): Advice.PROFILE,
    (State.COMMUNICATING, Cause.NVLINK): Advice.OVERLAP_NVLINK,
    (State.COMMUNICATING, Cause.INFINIBAND): Advice.OVERLAP_INFINIBAND,
    (State.COMMUNICATING, Cause.PCIE): Advice.PLACE_RANKS,
}
"""Healthy pairs have no advice."""

ADVICE: dict[Pair, str] = {pair: TEXTS[one] for pair, one in OF_PAIR.items()}

BY_FACT: dict[FactKind, Advice] = {
    FactKind.DISK_READS: Advice.READ_FASTER,
    FactKind.JOB_READS: Advice.READ_FASTER,
    FactKind.JOB_RECEIVES: Advice.RECEIVE_LESS,
    FactKind.DISK_WRITES: Advice.CHECKPOINT,
    FactKind.JOB_WRITES: Advice.CHECKPOINT,
    FactKind.PROCESSES_HIDDEN: Advice.SHOW_PROCESSES,
}
"""Better advice than that of the pair, if this fact decided it, or if this doubt left the cause
unknown."""


def advised(pair: Pair, found: Found, doubts: Iterable[Fact] = ()) -> Advice | None:
    """Return the advice that fits the facts of a second; None for a healthy state."""
    if pair not in OF_PAIR:
        return None
    kinds = [fact.kind for fact in (*doubts, *found[:1])]
    return next((one for kind, one in BY_FACT.items() if kind in kinds), OF_PAIR[pair])


def advice(verdict: Verdict, pair: Pair | None = None) -> str:
    """Return the first step against a loss of a GPU, the loss of the verdict unless another `pair`
    of its account is given; empty for a healthy state."""
    pair = pair or verdict.pair
    if pair == (State.STARVED, Cause.PEER) and verdict.waits_for is not None:
        return peer_advice(f"GPU {verdict.waits_for.index}")
    found = verdict.advice.get(pair) or OF_PAIR.get(pair)
    return TEXTS[Advice(found)] if found else ""
