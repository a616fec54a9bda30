"""Advice for each verdict, for the owner of the job, and for each XID error.

Advice about a verdict never ends, stops or restarts anything: what looks idle may be a server or a
checkpoint.
"""

from agent.diagnosis.facts import FactKind
from agent.model import Cause, Pair, Severity, State, Verdict

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
    """Return a summary for several GPUs: each has its own thread or limit."""
    return summary.replace(" by its ", ", each by its ")


def hang_advice(who: str = "each rank") -> str:
    """Return the process to examine in a job that hangs, before its end destroys the evidence."""
    return (
        f"Look at {who} first with py-spy dump (stopped, waiting for input, or an exception?), "
        "before the job is ended; start the next run with NCCL_DEBUG=INFO."
    )


def peer_advice(who: str = "the GPU that it waits for") -> str:
    """Return the advice for a GPU that others wait for."""
    return f"Look at {who}: balance the work of the ranks, and fix what holds up the slow one."


def _small(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


READ_FASTER = (
    "Read less or faster: more read-ahead, a local copy on the array, larger files, a cache in "
    "memory; more loaders only help while the disk is not at its limit."
)
RECEIVE_LESS = (
    "Copy what is read to the local disks first, cache it, or send it compressed; where a port is "
    "at its limit, use more ports, else look at the storage server."
)
CHECKPOINT = (
    "Write checkpoints asynchronously, less often or to a faster disk; do not end one that is "
    "being written."
)

ALERTS: dict[State, tuple[str, Severity]] = {
    State.HELD: ("DgxGpuHeldIdle", Severity.INFO),
    State.HUNG: ("DgxJobHung", Severity.CRITICAL),
    State.THROTTLED: ("DgxGpuThrottled", Severity.WARNING),
    State.STARVED: ("DgxGpuStarved", Severity.WARNING),
    State.COMMUNICATING: ("DgxExposedCommunication", Severity.INFO),
}
"""The alert of each state that a job could do without, whose page says more, and how grave it is
while nothing else is wrong."""


def severity(pair: Pair) -> Severity | None:
    """Return the severity of a state, the same in every view; None for a healthy state."""
    if pair == (State.STARVED, Cause.UNKNOWN):
        return Severity.INFO  # a notebook or a server without requests waits too
    return ALERTS[pair[0]][1] if pair[0] in ALERTS else None


ADVICE: dict[Pair, str] = {
    (State.HELD, Cause.NONE): "Ask its owner whether the process is still needed: it holds memory "
    "and does no work.",
    (State.HUNG, Cause.NONE): hang_advice(),
    (State.THROTTLED, Cause.THERMAL): "Check the cooling: fans, inlet temperature, dust, "
    "neighbours in the rack.",
    (State.THROTTLED, Cause.POWER): "Look at the power supplies and at the power limit "
    "(nvidia-smi -q -d POWER).",
    (State.THROTTLED, Cause.RELIABILITY): "Look at nvidia-smi -q -d PERFORMANCE; if it lasts, ask "
    "the vendor.",
    (State.STARVED, Cause.PCIE): "Move fewer bytes: keep data on the GPU, send smaller types, "
    "decode on the GPU; pin memory and overlap copies with work.",
    (State.STARVED, Cause.PEER): peer_advice(),
    (State.STARVED, Cause.DISK): f"If the job reads: {_small(READ_FASTER)} If it writes: "
    f"{_small(CHECKPOINT)}",
    (State.STARVED, Cause.NETWORK): f"If the job reads: {_small(RECEIVE_LESS)} If it writes: "
    "write checkpoints asynchronously.",
    (State.STARVED, Cause.CPU): "Start more loader processes while cores are free, give the job "
    "cores where its threads wait for them, or decode and augment on the GPU.",
    (State.STARVED, Cause.HOST_THREAD): "Relieve the thread that launches: CUDA graphs or "
    "torch.compile for many small kernels, loader processes for what it prepares itself.",
    (
        State.STARVED,
        Cause.UNKNOWN,
    ): "The host shows no reason. That is normal for a server without requests or a notebook. A "
    "job that should be at work waits for a service, a lock or the like: "
    "profile it (py-spy, Nsight Systems).",
    (State.COMMUNICATING, Cause.NVLINK): "Overlap communication with work, or send fewer bytes "
    "(compression, accumulation); else accept it: the links do what they can.",
    (State.COMMUNICATING, Cause.INFINIBAND): "Overlap communication with work, check that every "
    "port runs at its rate and that GPUDirect is in use.",
    (State.COMMUNICATING, Cause.PCIE): "Place the ranks of a job on GPUs that share NVLink or a "
    "PCIe switch.",
}
"""Nothing is said of pairs that are as they should be."""

BY_FACT: dict[FactKind, str] = {
    FactKind.DISK_READS: READ_FASTER,
    FactKind.JOB_READS: READ_FASTER,
    FactKind.JOB_RECEIVES: RECEIVE_LESS,
    FactKind.DISK_WRITES: CHECKPOINT,
    FactKind.JOB_WRITES: CHECKPOINT,
    FactKind.PROCESSES_HIDDEN: "Let the agent see the processes on this GPU: as root, with "
    "CAP_SYS_PTRACE where /proc is mounted with hidepid, in the pid namespace of the host if it "
    "is in a container. Until then it cannot see what they wait for.",
}
"""Better advice than that of the pair, where this fact decided it or this doubt left the cause
unknown."""


def pair_advice(pair: Pair, waits_for: int | None = None) -> str:
    """Return the advice for a state and its cause; `waits_for` is the index of a GPU that is
    late."""
    if pair == (State.STARVED, Cause.PEER) and waits_for is not None:
        return peer_advice(f"GPU {waits_for}")
    return ADVICE.get(pair, "")


def advice(verdict: Verdict) -> str:
    """Return the advice for a verdict; empty for a healthy state."""
    doubts = verdict.doubts if verdict.cause is Cause.UNKNOWN else ()
    kinds = [fact.kind for fact in (*doubts, *verdict.evidence[:1])]
    late = verdict.waits_for.index if verdict.waits_for else None
    of_pair = pair_advice(verdict.pair, late)
    found = next((text for kind, text in BY_FACT.items() if kind in kinds), of_pair)
    return found if of_pair else ""
