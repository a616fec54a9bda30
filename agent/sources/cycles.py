"""Cycles that GPM counts since the machine began (driver R610): none between two reads is lost."""

from collections.abc import Iterator

from agent.hardware.gpm import NO_GPM, Cycles, Gpm
from agent.model import GPU_LABELS, Absent, GpuMetric, Reason, counter
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, refused_read
from agent.sources.gpu_context import GpuContext

_METRIC = "nvmlGpmMetricsGet, metric{} (driver 610 and newer)"

FASTEST = 1e12
"""Cycles per second that no GPU's SMs have together."""

ELAPSED = GpuMetric.counter(
    "dgx_gpu_sm_elapsed_cycles_total",
    "SM cycles that passed since the machine began: the whole of which the active ones are a part.",
    _METRIC.format(" 248"),
    fastest=FASTEST,
)
ACTIVE = GpuMetric.counter(
    "dgx_gpu_sm_active_cycles_total",
    "SM cycles in which a warp was resident; their growth over that of "
    "dgx_gpu_sm_elapsed_cycles_total is the SM activity over any range, without a gap.",
    _METRIC.format(" 249"),
    fastest=FASTEST,
)
PIPES = counter(
    "dgx_gpu_pipe_active_cycles_total",
    "SM cycles in which this pipe was active: tensor, of which hmma, imma, dmma and dfma are "
    "parts; integer; fp64, fp32, fp16.",
    _METRIC.format("s 250-254, 257-260"),
    (*GPU_LABELS, "kind"),
    fastest=FASTEST,
)

ALL = (ELAPSED, ACTIVE, PIPES)
SINCE = (610,)
TOO_OLD = Absent(Reason.DRIVER, "this driver's GPM counts no cycles: R610 and newer do")


class CycleRead:
    """What GPM has counted up to its last measurement."""

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm

    def read(self, out: ReadOutput) -> None:
        if self._gpm.measurement() is None:
            out.pending = True
            return
        for which, answer in self._gpm.cycles().items():
            metric = {Cycles.ELAPSED: ELAPSED, Cycles.ACTIVE: ACTIVE}.get(which, PIPES)
            labels = (which.name.lower(),) if metric is PIPES else ()
            out.add(metric, answer, *labels)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The read of one GPU."""
    if gpu_context.gpm is None:
        run, every = refused_read(NO_GPM), intervals.TOPOLOGY
    elif gpu_context.device.nvml.driver < SINCE:
        run, every = refused_read(TOO_OLD), intervals.TOPOLOGY
    else:
        run, every = CycleRead(gpu_context.gpm).read, intervals.ENERGY
    yield gpu_context.read("activity", "cycles", ALL, run, every)
