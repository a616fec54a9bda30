"""Cases of the alerts at their boundaries, firing and quiet: the files in tests/alerts/cases.

A table of a file is one test. A case has the name of its alert and a title, the alerts that fire
at its end, and series with their points, `every` 15 seconds where it does not say:

    [hot.DgxGpuHot."just too short"]
    fires = []
    'dgx_gpu_temperature_margin_celsius{gpu 1}' = "5 for 5m, -1 for 1m30s"

`gpu 1` is the labels of that GPU, "GPU 1" its uuid, and `{0..3}` stands for four series. Points are
parts: "5" is a scrape with that value, "5 for 5m" all from a scrape to that five minutes later,
"+2/s for 5m" counts on from the scrape before, "none x3" is three scrapes without a value, and
"(1, 0) x4" repeats. `${gpus - 1}` computes with the fields of the system.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.diagnosis.accounting import STATE_SECONDS
from agent.faults.promql import seconds
from agent.faults.xids import xid_rules
from agent.model import CAUSES, Cause, State
from agent.sources import activity, gpu, xid
from tests.support.alert_input import SCRAPE, Case, Points, System, growing, named
from tests.support.repository import ROOT

COMPUTED = re.compile(r"\$\{(.+?)\}")
REPEATED = re.compile(r"\(([^)]*)\) x(\d+)")


@dataclass(frozen=True)
class Table:
    """Cases that one test plays, for each system."""

    name: str
    content: dict[str, dict[str, dict[str, Any]]]

    def __call__(self, system: System) -> Iterator[Case]:
        for alert, titles in self.content.items():
            for title, written in titles.items():
                yield _case(alert, title, written, system)
        for more in ALSO.get(self.name, ()):
            yield more(system)


def _case(alert: str, title: str, written: dict[str, Any], system: System) -> Case:
    found = dict(written)
    every = found.pop("every", SCRAPE)
    fires = tuple(
        {"severity": severity, **labels}
        for text in found.pop("fires", ())
        for severity, labels in _series(text, system)
    )
    series = {
        named(metric, **labels): points(_computed(text, system), every)
        for key, text in found.items()
        for metric, labels in _series(key, system)
    }
    return Case(alert, title, series, fires, every)


def _computed(text: str, system: System) -> str:
    return COMPUTED.sub(lambda found: str(eval(found[1], system._asdict())), text)


def _series(key: str, system: System) -> Iterator[tuple[str, dict[str, str]]]:
    """The names and labels for which a key stands."""
    key = _computed(key, system)
    if found := re.search(r"\{(\d+)\.\.(\d+)\}", key):
        for number in range(int(found[1]), int(found[2]) + 1):
            yield from _series(f"{key[: found.start()]}{number}{key[found.end() :]}", system)
        return
    name, _, inside = key.partition("{")
    inside = re.sub(r"\bgpu (\d+)", rf'gpu="\1", uuid="{system.uuid}-\1"', inside)
    inside = re.sub(r'"GPU (\d+)"', rf'"{system.uuid}-\1"', inside)
    yield name, dict(re.findall(r'(\w+)="([^"]*)"', inside))


def points(text: str, every: int) -> Points:
    """Points of a series, from its parts."""
    text = REPEATED.sub(lambda found: ", ".join([found[1]] * int(found[2])), text)
    found: Points = []
    for part in text.split(", "):
        value, _, lasting = part.partition(" for ")
        scrapes = round(sum(map(seconds, re.findall(r"\d+[hms]", lasting))) / every)
        if part.startswith("none"):
            found += [None] * int(part.partition(" x")[2] or 1)
        elif part.startswith("+"):
            each = float(value.removeprefix("+").removesuffix("/s"))
            found += growing((scrapes * every / 60, each), start=found[-1] or 0.0, every=every)[1:]
        else:
            found += [float(value)] * (scrapes + 1)
    return found


def _xids(system: System) -> Case:
    """The first of each kind of XID, each on a GPU of its own."""
    written: dict[str, Any] = {"fires": []}
    for number, (*_, last) in enumerate(xid_rules()):
        one = f'gpu {number}, xid="{last.code}"'
        written["fires"].append(f'{last.severity}{{{one}, action="{last.action}"}}')
        written[f"{xid.XID_ERRORS}{{{one}}}"] = "none x4, 1 for 10m"
        written[f'{gpu.INFO}{{gpu {number}, model="x"}}'] = "1 for 11m"
    return _case("DgxGpuXid", "the first of each kind", written, system)


def _by_cause(
    alert: str, state: State, share: float, lasting: str, *fires: str, every: int = SCRAPE
) -> Iterator[Callable[[System], Case]]:
    """A GPU that spends this share of the time in each cause of a state, and the rest at work."""
    for cause in CAUSES[state]:
        if cause in (Cause.DISK, Cause.UNKNOWN):  # these are in the files
            continue
        spent = f"{STATE_SECONDS}{{gpu 1, state="
        written = {
            f'{spent}"{state}", cause="{cause}"}}': f"0, +{share}/s for {lasting}",
            f'{spent}"busy", cause="none"}}': f"0, +{1 - share}/s for {lasting}",
            "fires": [text.format(cause) for text in fires],
            "every": every,
        }
        hours = " for hours" if every > SCRAPE else ""
        if hours:
            written[f"{activity.SM_ACTIVE}{{gpu 1}}"] = f"0.5 for {lasting}"
        yield partial(_case, alert, f"by {cause}{hours}", written)


def tables() -> list[Table]:
    return [
        Table(f"{path.stem}-{name}", content)
        for path in sorted((ROOT / "tests/alerts/cases").glob("*.toml"))
        for name, content in tomllib.loads(path.read_text(encoding="utf-8")).items()
    ]


STARVED = 'warning{{gpu 1, window="%s", cause="{}"}}'
DAY = 'info{{gpu 1, window="24h", cause="{}"}}'
THROTTLED = 'warning{{gpu 1, state="throttled", cause="{}"}}'
LONG = _by_cause("DgxGpuStarved", State.STARVED, 0.2, "12h30m", STARVED % "6h", DAY, every=120)
ALSO: dict[str, Collection[Callable[[System], Case]]] = {
    "hardware-error": [_xids],
    "jobs-starved": [*_by_cause("DgxGpuStarved", State.STARVED, 0.26, "20m", STARVED % "15m")],
    "jobs-starved_long": [*LONG],
    "jobs-throttled": [*_by_cause("DgxGpuThrottled", State.THROTTLED, 0.26, "20m", THROTTLED)],
}
"""Cases of each code and cause that the product knows, by their table."""
