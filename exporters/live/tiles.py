"""One tile a GPU: its verdict in words, and its meters."""

from typing import Any, NamedTuple

from agent.diagnosis.accounting import Account, Diagnosis
from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.diagnosis.verdict import Pair
from agent.model import Metric
from agent.sources import activity, clocks, memory, power, temperature
from exporters.live.shelf import Shelf

Document = dict[str, Any]


class Meter(NamedTuple):
    """A figure of a GPU; `labels` are those beyond the GPU's, `digits` what a browser needs."""

    name: str
    unit: str
    digits: int
    metric: Metric
    labels: tuple[str, ...] = ()


METERS = (
    Meter("activity", "ratio", 3, activity.ACTIVITY),
    Meter("sm", "ratio", 3, activity.SM_ACTIVE),
    Meter("memory", "bytes", 0, memory.USED),
    Meter("power", "watts", 1, power.POWER),
    Meter("temperature", "celsius", 0, temperature.TEMPERATURE),
    Meter("clock", "hertz", 0, clocks.CLOCK, ("sm",)),
)
LIMITS: dict[str, tuple[Metric, tuple[tuple[str, ...], ...]]] = {
    "memory": (memory.TOTAL, ((),)),
    "power": (power.POWER_LIMIT, ((),)),
    "temperature": (temperature.LIMIT, ((temperature.OPERATING,), (temperature.SLOWDOWN,))),
    "clock": (clocks.CLOCK_LIMIT, (("sm",),)),
}
"""The limit of a meter: the first of these labels that answers. A ratio ends at 1."""

UNKNOWN: Document = {
    "state": None,
    "cause": None,
    "seconds": None,
    "summary": "",
    "sentence": "",
    "evidence": [],
    "doubts": [],
    "advice": "",
    "grade": None,
}
UNJUDGED = "its activity is not known"
LOST = "lost: it no longer answers"
LOST_ADVICE = (
    "See the kernel's log for its XID (dmesg). A GPU that fell off the bus needs a reset of the "
    "machine, and if it happens again, service."
)


def still(index: int, uuid: str, model: str, shelf: Shelf) -> Document:
    """What seldom changes of one GPU."""
    gpu = str(index), uuid
    meters = [
        {"name": meter.name, "unit": meter.unit, "limit": _limit(meter, gpu, shelf)}
        for meter in METERS
    ]
    return {"gpu": gpu[0], "uuid": uuid, "model": model, "meters": meters}


def _limit(meter: Meter, gpu: tuple[str, str], shelf: Shelf) -> float | None:
    if meter.unit == "ratio":
        return 1.0
    metric, options = LIMITS[meter.name]
    found = (shelf.value(metric, *gpu, *labels) for labels in options)
    return next((limit for limit in found if limit is not None), None)


def moving(index: int, uuid: str, shelf: Shelf, account: Account | None, *, lost: bool) -> Document:
    """What one GPU does at this tick."""
    gpu = str(index), uuid
    values = [_value(meter, gpu, shelf) for meter in METERS]
    return {**judged(account, shelf.now, lost=lost), "lost": lost, "values": values}


def _value(meter: Meter, gpu: tuple[str, str], shelf: Shelf) -> float | None:
    value = shelf.value(meter.metric, *gpu, *meter.labels)
    return None if value is None else round(value, meter.digits or None)


def judged(account: Account | None, now: float, *, lost: bool) -> Document:
    """The verdict in words; without one, why not."""
    verdict = None if lost or account is None or account.at != now else account.verdict
    if verdict is None or account is None:
        why = LOST if lost else (account and account.failure) or UNJUDGED
        return {**UNKNOWN, "summary": why, "sentence": why, "advice": LOST_ADVICE if lost else ""}
    summary = SUMMARIES[verdict.pair]
    return {
        "state": verdict.state.value,
        "cause": verdict.cause.value,
        "seconds": round(now - account.since),
        "summary": summary,
        "sentence": f"{summary}: {', '.join(verdict.evidence)}",
        "evidence": verdict.evidence,
        "doubts": verdict.doubts,
        "advice": ADVICE.get(verdict.pair, ""),
        "grade": verdict.grade.value,
    }


def pair_of(diagnosis: Diagnosis, uuid: str, now: float) -> Pair | None:
    """State and cause of a GPU that was judged at this tick."""
    account = diagnosis.accounts.get(uuid)
    if account is None or account.at != now or account.verdict is None:
        return None
    return account.verdict.pair
