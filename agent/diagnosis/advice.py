"""What to do about each verdict: one sentence for the person who pays for the GPU."""

from agent.model import Cause, Pair, State

SUMMARIES: dict[Pair, str] = {
    (State.IDLE, Cause.NONE): "idle",
    (State.HELD, Cause.NONE): "held by a process that does nothing",
    (State.HUNG, Cause.NONE): "hung: the GPUs of its job wait for one another",
    (State.THROTTLED, Cause.THERMAL): "slowed down by heat",
    (State.THROTTLED, Cause.POWER): "power-limited",
    (State.THROTTLED, Cause.RELIABILITY): "slowed down by its voltage limit",
    (State.STARVED, Cause.PCIE): "starved by PCIe",
    (State.STARVED, Cause.PEER): "starved by a slow peer",
    (State.STARVED, Cause.DISK): "starved by disk",
    (State.STARVED, Cause.NETWORK): "starved by the network",
    (State.STARVED, Cause.CPU): "starved by the CPU",
    (State.STARVED, Cause.HOST_THREAD): "limited by one launch thread",
    (State.STARVED, Cause.UNKNOWN): "waiting, cause unknown",
    (State.COMMUNICATING, Cause.NVLINK): "communicating over NVLink",
    (State.COMMUNICATING, Cause.INFINIBAND): "communicating over InfiniBand",
    (State.COMMUNICATING, Cause.PCIE): "communicating with its peers over PCIe",
    (State.BUSY, Cause.NONE): "busy",
}

ADVICE: dict[Pair, str] = {
    (State.HELD, Cause.NONE): "Ask its owner whether the process is still needed: it holds memory "
    "and does no work.",
    (State.HUNG, Cause.NONE): "Look at the ranks with py-spy dump and NCCL_DEBUG=INFO: one that "
    "launched less, stopped or waits for input holds up all others.",
    (State.THROTTLED, Cause.THERMAL): "Look after the cooling: fans, inlet temperature, dust, "
    "neighbours in the rack.",
    (State.THROTTLED, Cause.POWER): "Look at the power supplies and at the power limit "
    "(nvidia-smi -q -d POWER).",
    (State.THROTTLED, Cause.RELIABILITY): "Look at nvidia-smi -q -d PERFORMANCE; if it lasts, ask "
    "the vendor.",
    (State.STARVED, Cause.PCIE): "Move fewer bytes: keep data on the GPU, send smaller types, "
    "decode on the GPU; pin memory and overlap copies with work.",
    (
        State.STARVED,
        Cause.PEER,
    ): "Look at the GPU that it waits for: balance the work of the "
    "ranks, and cure what starves the slow one.",
    (State.STARVED, Cause.DISK): "Read less or faster: more read-ahead, a local copy on the array, "
    "larger files, a cache in memory; more loaders only help while the disk is not full.",
    (State.STARVED, Cause.NETWORK): "Copy the data to the local disks first, or cache it; look at "
    "the storage server and at the link's rate.",
    (State.STARVED, Cause.CPU): "Give the input pipeline more: more loader processes, more cores, "
    "or decode and augment on the GPU.",
    (State.STARVED, Cause.HOST_THREAD): "Launch fewer, larger pieces of work: larger batches, CUDA "
    "graphs, torch.compile, fused optimisers.",
    (State.STARVED, Cause.UNKNOWN): "Profile the process (py-spy, Nsight Systems): it waits for "
    "something that the host does not show, such as a service, a lock or a person.",
    (State.COMMUNICATING, Cause.NVLINK): "Overlap communication with work, send fewer or smaller "
    "gradients, or accept it: the wire is at work.",
    (State.COMMUNICATING, Cause.INFINIBAND): "Overlap communication with work, check that every "
    "port runs at its rate and that GPUDirect is in use.",
    (State.COMMUNICATING, Cause.PCIE): "Place the ranks of a job on GPUs that share NVLink or a "
    "PCIe switch.",
}
"""Nothing is said of pairs that are as they should be."""
