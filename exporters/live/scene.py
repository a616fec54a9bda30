"""One tick as the open pages see it: what seldom changes, and what does."""

from collections.abc import Sequence, Set
from typing import Any

from agent.model import Metric, Snapshot
from agent.sources import (
    disk,
    ecc,
    gpu,
    nvlink,
    pcie,
    system,
    temperature,
)
from exporters.live import headline, tiles
from exporters.live.events import Event
from exporters.live.links import Links
from exporters.live.paths import COUNTERS, Moving, Roads
from exporters.live.shelf import Shelf
from exporters.live.understanding import Understanding
from exporters.live.view import View, silence

Document = dict[str, Any]

SOURCES = (
    *("activity", "memory", "power", "temperature", "clocks", "gpu", "nvlink", "pcie", "ecc"),
    *("disk", "network", "infiniband", "system"),
)
SHOWN: tuple[Metric, ...] = (
    *(meter.metric for meter in tiles.METERS),
    *COUNTERS,
    temperature.MARGIN,
)
WATCHED: tuple[Metric, ...] = (
    *(metric for metric, _ in tiles.LIMITS.values()),
    *(system.INFO, system.GPUS, system.GPUS_EXPECTED),
    *(gpu.INFO, gpu.RECOVERY_ACTION),
    *(nvlink.LINK_UP, nvlink.LINK_INFO, nvlink.LINKS, nvlink.LINKS_EXPECTED, nvlink.ERRORS),
    *(pcie.GENERATION, pcie.GENERATION_LIMIT, pcie.WIDTH, pcie.WIDTH_LIMIT),
    *(ecc.ERRORS, ecc.REMAP_PENDING, ecc.REMAP_FAILURE, disk.MEMBERS, disk.MEMBERS_EXPECTED),
)
"""A change of these is news: what seldom changes is worked out anew."""


class Scene:
    """Fed with each tick while a page is open."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._shelf = Shelf.of(SOURCES, SHOWN, WATCHED)
        self._roads = Roads(view.bandwidth)
        self._links = Links(view.bandwidth)
        self._fleet: object = None
        self._known = Understanding()
        self._events: Set[Event] | None = None
        self._snapshot = Snapshot(-1, 0.0, 0.0)
        self._hot: list[bool] = []
        self._silent = False
        self._began: float | None = None  # when the host did, on the agent's clock
        self._machine: Document = {}
        self.edition = 0
        self.stirred = True

    def take(
        self,
        snapshot: Snapshot,
        known: Understanding,
        events: Set[Event] | None = None,
    ) -> None:
        """Take in a tick, what was understood of it or of one before, and errors of late."""
        self._events = events
        shelf, fleet = self._shelf, self._view.diagnosis.fleet()
        shelf.take(snapshot)
        self._snapshot = snapshot
        anew = shelf.stirred or fleet is not self._fleet or known is not self._known
        self._fleet, self._known = fleet, known
        moved = self._roads.survey(shelf, anew=anew)
        if moved or anew:
            self._survey()
        self.stirred |= shelf.stirred or moved or self._turned()
        shelf.stirred = False

    def _turned(self) -> bool:
        """Whether what is judged by a line has crossed it: heat, and the driver's silence."""
        hot = [point.value < 0 for _, point in self._shelf.all(temperature.MARGIN)]
        silent = silence(self._snapshot) > 0
        turned = (hot, silent) != (self._hot, self._silent)
        self._hot, self._silent = hot, silent
        return turned

    def _survey(self) -> None:
        """What seldom changes, with a new edition where it has changed."""
        shelf, view = self._shelf, self._view
        self._links.survey(shelf, view.system())
        uptime = view.uptime()
        self._began = None if uptime is None else view.clock.monotonic() - uptime
        machine = {
            "machine": self._identity(),
            "gpus": [
                tiles.still(one.index, one.uuid, one.model, shelf)
                for one in view.diagnosis.fleet().gpus
            ],
            "paths": self._roads.still(),
            "links": self._links.still(),
            "graph": self._links.graph,
            "absent": self._known.absent,
        }
        if machine != self._machine:
            self.edition += 1
            self._machine = machine

    def _identity(self) -> Document:
        found = self._shelf.labelled(system.INFO)
        info = found[-1] if found else {}
        gpus = self._shelf.value(system.GPUS)
        expected = self._shelf.value(system.GPUS_EXPECTED)
        return {
            "system": info.get("system") or None,
            "title": info.get("title") or None,
            "product": info.get("product") or None,
            "driver_version": info.get("driver_version") or None,
            "gpus": None if gpus is None else int(gpus),
            "gpus_expected": None if expected is None else int(expected),
            "version": self._view.version,
            "simulated": self._view.simulated,
        }

    def machine(self) -> Document:
        """What seldom changes, as `frame` tells."""
        return {"edition": self.edition, **self._machine}

    def tick(self) -> Document:
        """This tick, as `frame` tells."""
        shelf, snapshot = self._shelf, self._snapshot
        fleet, accounts = self._view.diagnosis.fleet(), self._view.diagnosis.accounts
        gpus = [
            tiles.moving(
                one.index, one.uuid, shelf, accounts.get(one.uuid), lost=one.uuid in fleet.lost
            )
            for one in fleet.gpus
        ]
        paths = self._roads.moving(shelf, silent=self._silent)
        level, sentence = headline.headline(self._facts(paths))
        return {
            "tick": snapshot.tick,
            "timestamp": snapshot.wall,
            "second": int(snapshot.at),
            "edition": self.edition,
            "level": level,
            "headline": sentence,
            "uptime_seconds": None if self._began is None else int(snapshot.at - self._began),
            "findings": self._known.findings,
            "gpus": gpus,
            "paths": paths,
            "links": self._links.moving(shelf),
        }

    def _facts(self, paths: Sequence[Moving]) -> headline.Facts:
        fleet, snapshot = self._view.diagnosis.fleet(), self._snapshot
        return headline.Facts(
            ticked=snapshot.tick > 0,
            why_not=fleet.why_not,
            met=fleet.most > 0,
            silence=silence(snapshot),
            gpus=[self._gpu(one.index, one.uuid, fleet.lost) for one in fleet.gpus],
            full=[
                headline.Full(road, ratio, saturated)
                for road, (ratio, _, saturated) in zip(self._roads.roads, paths, strict=True)
                if ratio is not None and ratio >= headline.WORTH_TELLING
            ],
            findings=self._known.findings,
            events=self._events,
        )

    def _gpu(self, index: int, uuid: str, lost: frozenset[str]) -> headline.Gpu:
        account, now = self._view.diagnosis.accounts.get(uuid), self._snapshot.at
        pair = None if uuid in lost else tiles.pair_of(self._view.diagnosis, uuid, now)
        seconds = now - account.since if account and pair else 0.0
        return headline.Gpu(index, pair, seconds, uuid in lost)
