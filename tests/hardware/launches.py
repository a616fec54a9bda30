"""Cost of a kernel that is launched by itself: `python -m tests.hardware.launches`.

Launches kernels of several kinds one by one, some with a pause after each, and prints for each the
launches a second, GPM's graphics activity, by how much longer (us) each counts as active than it
takes in a CUDA graph, and the bytes that the GPU sent and received over PCIe for each. Needs
PyTorch and a GPU with GPM on which no one else works. `agent/diagnosis/launches.py` lives by it.
"""

import time
from collections.abc import Callable
from typing import Any

import pynvml as nvml
import torch

ACTIVE, SENT, RECEIVED = 1, 20, 21  # NVML_GPM_METRIC_*
UNIT = 1_054_800
"""Bytes in what GPM calls a MiB of PCIe."""
SECONDS = 1.2
IN_GRAPH = 1000
PAUSES = (0.0, 20e-6)


def sample(device: Any) -> Any:
    taken = nvml.nvmlGpmSampleAlloc()
    nvml.nvmlGpmSampleGet(device, taken)
    return taken


def between(first: Any, last: Any) -> list[float]:
    """Graphics activity (0-1), bytes a second sent and received."""
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 3
    asked.sample1, asked.sample2 = first, last
    for place, metric in enumerate((ACTIVE, SENT, RECEIVED)):
        asked.metrics[place].metricId = metric
    nvml.nvmlGpmMetricsGet(asked)
    active, sent, received = (asked.metrics[place].value for place in range(3))
    return [active / 100, sent * UNIT, received * UNIT]


def kinds() -> dict[str, Callable[[], Any]]:
    with torch.device("cuda"):
        few, many = torch.zeros(8), torch.zeros(1 << 20)
        square, rows = torch.randn(64, 64), torch.randn(256, 512)
        listed = [torch.randn(32, 32) for _ in range(64)]
    sleeps = {f"sleep {c}": lambda c=c: torch.cuda._sleep(c) for c in (2000, 8000)}
    return {
        "add 8": lambda: few.add_(1.0),
        **sleeps,
        "add 2^20": lambda: many.add_(1.0),
        "multiply 64": lambda: torch.mm(square, square),
        "softmax": lambda: torch.softmax(rows, 1),
        "concatenate 64": lambda: torch.cat(listed),
        "add to 64": lambda: torch._foreach_add_(listed, 0.1),
    }


def seconds_in_graph(kernel: Callable[[], Any]) -> float:
    """Return the duration among others of its kind, launched together."""
    for _ in range(100):
        kernel()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            kernel()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(5):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / 5 / IN_GRAPH


def launched(kernel: Callable[[], Any], pause: float, seconds: float) -> float:
    """Launches a second, for so long."""
    number, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        kernel()
        number += 1
        while pause and time.perf_counter() < now + pause:
            pass
    return number / (time.perf_counter() - begin)


def main() -> None:
    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    print("kernel            launches/s  active  in a graph us  beside it us  sent B  received B")
    for name, kernel in kinds().items():
        alone = seconds_in_graph(kernel)
        for pause in PAUSES:
            launched(kernel, pause, 0.3)
            first = sample(device)
            rate = launched(kernel, pause, SECONDS)
            active, sent, received = between(first, sample(device))
            torch.cuda.synchronize()
            beside = (active - rate * alone) / rate
            print(
                f"{name:16s} {rate:11.0f} {active:7.3f} {alone * 1e6:14.2f} {beside * 1e6:13.2f} "
                f"{sent / rate:7.0f} {received / rate:11.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
