"""Expected messages of each scenario at its receiver: DESIGN's table, with the figures of the
texts, in expected.toml."""

import tomllib
from pathlib import Path
from typing import NamedTuple

STATION = "dgx-station-v100"
GPU = r"GPU \d( \(GPU-[0-9a-f-]+\))? of [a-z-]+"
SHARE = r"[1-9]\d*(\.\d+)?% of the last"


class Alert(NamedTuple):
    """One alert: how urgent, what its text must say, and on which GPUs or devices."""

    name: str
    severity: str
    text: str  # a regular expression
    gpus: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    cause: str = ""

    @staticmethod
    def of(*, text: str, gpus: str = "", devices: tuple[str, ...] = (), **words: str) -> "Alert":
        text = text.replace("{GPU}", GPU).replace("{SHARE}", SHARE)
        return Alert(text=text, gpus=frozenset(gpus.split()), devices=frozenset(devices), **words)


class Scenario(NamedTuple):
    """A machine, and the alerts that it must raise: these and no others. `early` may come too,
    where what leads to the scenario fills a window that is a thirtieth of what users have."""

    system: str
    alerts: tuple[Alert, ...] = ()
    early: frozenset[str] = frozenset()


def _read() -> dict[str, Scenario]:
    written = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: Scenario(
            one["system"],
            tuple(Alert.of(**alert) for alert in one.get("alerts", ())),
            frozenset(one.get("early", ())),
        )
        for name, one in written.items()
    }


SCENARIOS = _read()
