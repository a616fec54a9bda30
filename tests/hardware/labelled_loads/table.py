"""All labelled loads: how to run each, and where its true shares come from. No PyTorch here."""

from typing import Any

from tests.hardware.labelled_loads.load import ALONE, ARRIVAL, EVENTS, LabelledLoad


def _exposed(share: float, step: float, seconds: float = 11.0, **more: Any) -> LabelledLoad:
    name = f"exposed-{share * 100:.0f}-{step * 1000:.0f}ms"
    parameters = {"share": share, "step": step, **more}
    return LabelledLoad(name, "collectives.exposed", parameters, EVENTS, 2, seconds=seconds)


def _hang(way: str, seconds: float = 12.0) -> LabelledLoad:
    return LabelledLoad(
        f"hang-{way}",
        "hangs.hang",
        {"way": way, "after": 4.0},
        "events until both ranks are about to wait for ever; from then on hung",
        2,
        pulse=False,
        seconds=seconds,
        settles=16.0,
    )


def _late(by: float, task: str, batch: int, *, sleeping: bool) -> LabelledLoad:
    how = "sleeping" if sleeping else "computing"
    return LabelledLoad(
        f"late-{by * 100:.0f}-{how}",
        "data_parallel.late",
        {"task": task, "batch": batch, "by": by, "sleeping": sleeping},
        "events; the others: what a step takes longer than when all ranks came in time",
        2,
        seconds=12.0,
    )


def _fed(name: str, function: str, *, pulse: bool = False, **parameters: Any) -> LabelledLoad:
    # workers that finish together give bursts of short steps
    return LabelledLoad(
        name, f"feeding.{function}", {"batch": 64, **parameters}, ARRIVAL, pulse=pulse
    )


def _disk(way: str, bytes_per_image: int) -> LabelledLoad:
    return _fed(f"disk-{way}", "disk", way=way, bytes_per_image=bytes_per_image, workers=6)


def _parallel(name: str, **parameters: Any) -> LabelledLoad:
    function = "data_parallel.data_parallel"
    return LabelledLoad(name, function, parameters, ALONE, 2, healthy=True)


def _alone(name: str, **parameters: Any) -> LabelledLoad:
    return LabelledLoad(name, "alone.train", parameters, EVENTS, healthy=True)


_ALL = (
    _exposed(0.10, 0.2),
    _exposed(0.25, 0.02, mixed=True),
    _exposed(0.50, 0.2, mixed=True),
    _exposed(0.50, 0.02),
    _exposed(0.25, 2.0, seconds=16.0, mixed=True),
    _exposed(0.75, 2.0, seconds=16.0),
    LabelledLoad(
        "overlapped",
        "collectives.overlapped",
        {"step": 0.2, "covered": 0.6},
        EVENTS,
        2,
        healthy=True,
        environment={"NCCL_RAS_ENABLE": "0"},
    ),
    LabelledLoad(
        "all-to-all",
        "collectives.all_to_all",
        {"share": 0.35, "step": 0.1, "layers": 4},
        EVENTS,
        2,
    ),
    LabelledLoad(
        "pipeline", "collectives.pipeline", {"forward": 0.01, "microbatches": 4}, EVENTS, 2
    ),
    _hang("counts"),
    _hang("stopped"),
    _hang("first-stopped"),
    _hang("input"),
    _hang("creating"),
    LabelledLoad(
        "checkpoint", "hangs.checkpoint", {"every": 4.0, "writing": 1.5}, EVENTS, 2, seconds=15.0
    ),
    _late(0.05, "language", 32, sleeping=True),
    _late(0.10, "images", 256, sleeping=False),
    _late(0.20, "language", 16, sleeping=True),
    _fed("threads", "threads", cpu_seconds=0.3, workers=6),
    _fed("processes", "processes", cpu_seconds=0.3, workers=6),
    _fed("processes-nearly-enough", "processes", cpu_seconds=0.3, workers=8),
    _fed("main-process", "processes", pulse=True, cpu_seconds=0.03, workers=0),
    _disk("direct", 2 << 20),
    _disk("cached", 1 << 20),
    _disk("mapped", 1 << 20),
    _fed("network", "network", pulse=True, bytes_per_second=200e6),
    LabelledLoad(
        "compile",
        "alone.compile_first",
        {"layers": 12, "batch": 16},
        "the host's clock around the first step",
        pulse=False,
    ),
    _parallel("gpt", task="language", batch=32),
    _parallel("gpt-accumulating", task="language", batch=8, accumulate=4),
    _parallel("gpt-validating", task="language", batch=16, validate_every=50),
    LabelledLoad(
        "sharded",
        "data_parallel.sharded",
        {"batch": 16, "layers": 24, "width": 1024},
        "events; exposed communication: a step against one of the same network on one GPU",
        2,
        healthy=True,
        libraries=("torch._dynamo", "torch.distributed.fsdp"),
    ),
    _alone("resnet", task="images", batch=256),
    LabelledLoad(
        "little",
        "alone.little",
        {"batch": 16},
        "events; the launching thread's: a step against its replay as a CUDA graph",
    ),
    LabelledLoad(
        "resting",
        "collectives.resting",
        {"rest": 6.0, "share": 0.25, "step": 0.05},
        EVENTS,
        2,
        seconds=30.0,
    ),
)

LOADS = {load.name: load for load in _ALL}
