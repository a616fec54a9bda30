"""Evidence from figures: one GPU (or several of a job) as its readings would show it."""

from collections.abc import Mapping

from agent.bandwidth import Bandwidth, Path
from agent.diagnosis.accounting import READ_BY_RULES, SOURCES
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.scene import Past, Scene
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.window import Window
from agent.limits import Limit, PathKey
from agent.model import Metric, Reading, ReadKey, Sample

NOW = 100.0
Labels = tuple[str, ...]
GPU = ("0", "GPU-0")
THRESHOLDS = {"nvlink": 0.85, "pcie": 0.80}

Figures = Mapping[tuple[Metric, Labels], float]
Wires = Mapping[tuple[str, str, Labels, str], tuple[float, float]]


def window(figures: Figures, seconds: int = 5) -> Window:
    """Every figure read once a second; a counter (`_total`) grows by its figure each second."""
    kept = Window(frozenset(m.name for m in READ_BY_RULES), SOURCES)
    for tick in range(seconds + 1):
        at = NOW - seconds + tick
        samples = tuple(
            Sample(metric, labels, value * (tick if metric.name.endswith("_total") else 1))
            for (metric, labels), value in figures.items()
        )
        kept.take(at, [Reading(ReadKey("process", "all"), at, 1.0, samples)])
    return kept


def bandwidth(wires: Wires) -> Bandwidth:
    """Wires by path, device, GPU labels and direction: their ratio and limit (bytes a second)."""
    found = Bandwidth(lambda path: THRESHOLDS.get(path, 0.90))
    limits = {}
    for (path, device, gpu, direction), (ratio, limit) in wires.items():
        key = PathKey(path, device, *(gpu or ("", "")), direction)
        limits[key] = Limit(limit, "spec", "test")
        found.paths[key] = Path(NOW, 0.0, NOW + 3, ratio)
    found.limits = limits
    return found


def evidence(
    figures: Figures,
    wires: Wires | None = None,
    past: Past | None = None,
    thresholds: Thresholds | None = None,
    pasts: Mapping[Labels, Past] | None = None,
) -> Evidence:
    """What the first GPU shows."""
    limits = thresholds or Thresholds()
    scene = Scene(window(figures), bandwidth(wires or {}), limits, pasts or {})
    return Evidence(GPU, scene, past or Past())
