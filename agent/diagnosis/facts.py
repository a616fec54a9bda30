"""Facts: those that support a verdict, and those about missing evidence."""

from enum import StrEnum

from agent.model import Fact, Figure

RATIO, RATE, SECONDS, CORES, COUNT = "ratio", "bytes_per_second", "seconds", "cores", "count"
"""Units of figures."""

Found = tuple[Fact, ...]
"""The facts that support a state and cause (possibly none), most important first."""


class FactKind(StrEnum):
    """Kinds of facts. The comment on a kind names its figures."""

    NO_PROCESS = "no_process"
    WITHOUT_PROCESS = "without_process"  # activity: work that belongs to no listed process
    AT_REST = "at_rest"  # no activity or traffic, and it is unknown whether a process is present
    HOLDING = "holding"  # processes, quiet_for
    HUNG_SPINNING = "hung_spinning"  # time: every GPU of the job waits for the others
    HUNG_AT_REST = "hung_at_rest"  # time
    THERMAL_SLOWDOWN = "thermal_slowdown"  # time, sm_clock
    POWER_BRAKE = "power_brake"
    POWER_CAP = "power_cap"
    VOLTAGE_LIMIT = "voltage_limit"
    CLOCKS_SET = "clocks_set"  # sm_clock: application or locked clocks
    COPIES_TO_GPU = "copies_to_gpu"  # traffic
    COPIES_FROM_GPU = "copies_from_gpu"
    UPLINK_FULL = "uplink_full"  # traffic; names: port of the switch
    SM_ACTIVITY = "sm_activity"  # sm
    POWER_DRAW = "power_draw"  # power, as a fraction of the limit
    NVLINK_TRAFFIC = "nvlink_traffic"  # traffic, share; names: direction
    INFINIBAND_TRAFFIC = "infiniband_traffic"  # traffic, share; names: direction, device
    PEER_PCIE_TRAFFIC = "peer_pcie_traffic"  # between GPUs
    BUSIER_PEER = "busier_peer"  # sm, peer_sm, or power, peer_power; gpu: the peer
    SLOW_PEER = "slow_peer"  # peer_activity
    ACTIVE = "active"  # activity
    DISK_READS = "disk_reads"  # read, busy; names: device
    DISK_WRITES = "disk_writes"  # busy
    NETWORK_MOUNTED = "network_mounted"  # names: file system types; local disks are quiet
    ONE_THREAD = "one_thread"  # cores, activity
    WORKERS_RUNNING = "workers_running"  # workers, cores
    BLOCKED = "blocked"  # time: in uninterruptible sleep
    THREADS_QUEUED = "threads_queued"  # time: runnable, but without a core
    JOB_READS = "job_reads"  # rate
    JOB_WRITES = "job_writes"  # rate
    JOB_RECEIVES = "job_receives"  # rate
    JOB_EXCHANGES = "job_exchanges"  # rate
    QUIET = "quiet"  # held_after: idle, but not yet for long enough to count as held
    UNEXPLAINED = "unexplained"  # activity
    NO_REQUESTS = "no_requests"  # activity: occurs in bursts
    SERVER_POLLS = "server_polls"  # cores: used by the launching thread of the server
    PROCESSES_HIDDEN = "processes_hidden"  # doubt; names: why
    WITHOUT_GPM = "without_gpm"  # doubt
    GPM_AT_ZERO = "gpm_at_zero"  # doubt; power


def ratio(name: str, value: float, limit: float | None = None) -> Figure:
    """Return a figure with a ratio (0-1) and, if any, the threshold of the rule."""
    return Figure(name, value, limit, RATIO)


def traffic(name: str, share: float, limit: float) -> Figure:
    """Return a figure with the traffic on a path in bytes per second: `share` times `limit`."""
    return Figure(name, share * limit, limit, RATE)
