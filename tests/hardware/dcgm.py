"""`/metrics/dcgm` between two readings of nvidia-smi, in the units of both generations."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporters.dcgm import DcgmExposition
from exporters.settings import DcgmConfig
from tests.hardware.bench import Figure, Watcher
from tests.hardware.brackets import TRIES, number, run_everything, smi

MIB = float(1 << 20)


class Pair(NamedTuple):
    """A field of nvidia-smi and the names for it; what was in its unit and what is by how much."""

    reference: str
    before: str
    since: str
    per: float = 1.0
    rounding: float = 0.5  # in nvidia-smi's unit; DCGM rounds down what nvidia-smi rounds


PAIRS = (
    Pair("clocks.sm", "SM_CLOCK", "SM_CLOCK_HERTZ", 1e6),
    Pair("clocks.mem", "MEM_CLOCK", "MEMORY_CLOCK_HERTZ", 1e6),
    Pair("clocks.max.sm", "MAX_SM_CLOCK", "SM_MAX_CLOCK_HERTZ", 1e6),
    Pair("temperature.gpu", "GPU_TEMP", "GPU_TEMP_CELSIUS"),
    Pair("temperature.memory", "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS"),
    Pair("power.draw", "POWER_USAGE", "BOARD_POWER_WATTS", rounding=0.006),
    Pair("enforced.power.limit", "ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    Pair("utilization.gpu", "GPU_UTIL", "GPU_UTIL_RATIO", 0.01),
    Pair("utilization.memory", "MEM_COPY_UTIL", "MEMORY_UTIL_RATIO", 0.01),
    Pair("utilization.encoder", "ENC_UTIL", "ENC_UTIL_RATIO", 0.01),
    Pair("utilization.decoder", "DEC_UTIL", "DEC_UTIL_RATIO", 0.01),
    Pair("memory.total", "FB_TOTAL", "FB_CAPACITY_BYTES", MIB, 1.0),
    Pair("memory.used", "FB_USED", "FB_USED_BYTES", MIB, 1.0),
    Pair("memory.free", "FB_FREE", "FB_FREE_BYTES", MIB, 1.0),
    Pair("memory.reserved", "FB_RESERVED", "FB_RESERVED_BYTES", MIB, 1.0),
    Pair(
        "remapped_rows.uncorrectable",
        "UNCORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_UNCORRECTABLE_TOTAL",
    ),
    Pair("remapped_rows.failure", "ROW_REMAP_FAILURE", "ROW_REMAP_FAILED"),
    Pair("ecc.errors.uncorrected.volatile.total", "ECC_DBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL"),
    Pair("pcie.link.gen.current", "PCIE_LINK_GEN", "PCIE_LINK_GEN"),
    Pair("pcie.link.width.current", "PCIE_LINK_WIDTH", "PCIE_LINK_WIDTH"),
)
Ask = Callable[[list[str], str], dict[str, str]]


def measure(watcher: Watcher, ask: Ask = smi) -> Iterator[Figure]:
    """One figure a name: whether it stood between two readings once, of the tries that it got."""
    poller = watcher.agent.poller
    shown = DcgmExposition(
        lambda: poller.latest,
        poller.samples,
        watcher.clock.monotonic,
        lambda: DcgmConfig(enabled=True),
    )
    poller.listeners.append(shown.tick)
    watcher.ticks(2.5)
    fields = [pair.reference for pair in PAIRS]
    wrong: dict[str, str] = {}
    right: set[str] = set()
    for _ in range(TRIES):
        before = ask(fields, "0")
        run_everything(watcher)
        watcher.ticks(0.5)
        page = values(shown)
        after = ask(fields, "0")
        for pair in PAIRS:
            ends = number(before[pair.reference]), number(after[pair.reference])
            for name, per in ((pair.before, 1.0), (pair.since, pair.per)):
                if name not in right:
                    wrong[name] = doubt(page.get(f"DCGM_FI_DEV_{name}"), ends, per, pair.rounding)
                    right |= {name} if not wrong[name] else set()
    for name, why in wrong.items():
        yield Figure(f"bracketed DCGM_FI_DEV_{name}", float(not why), 1, 1, "", why)


def values(shown: DcgmExposition) -> dict[str, float]:
    """The first GPU's."""
    text = shown.render("")[0].decode()
    return {
        family.name: sample.value  # the parser adds `_total` to the names of counters
        for family in parse_text(text)
        for sample in family.samples
        if sample.labels["gpu"] == "0"
    }


def doubt(
    mine: float | None, ends: tuple[float | None, float | None], per: float, rounding: float
) -> str:
    """Empty where a value stands between its references, or is absent as they are."""
    low, high = ends
    if mine is None or low is None or high is None:
        return "" if mine is None and low is None else f"reported {mine}, nvidia-smi {ends}"
    least, most = sorted((low * per, high * per))
    held = least - rounding * per <= mine <= most + rounding * per
    return "" if held else f"reported {mine:.9g}, nvidia-smi {least:.9g} to {most:.9g}"
