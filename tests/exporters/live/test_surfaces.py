"""Advice, severity and headline of every surface in each second: a page that is open all the
time, one that is opened now, `once`, `watch`, `/api/v1/status` and `/api/v1/jobs`."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agent.cli.once import StatusView, page
from agent.simulator import SCENARIOS
from agent.status.model import Status
from exporters.documents import jobs_document
from exporters.live.page import Client, Feed
from tests.support.nightly import shortly
from tests.support.statuses import Shown, shown

SECONDS = {False: 80, True: 240}
"""In the short form, and in the long one."""


@pytest.mark.parametrize("scenario", shortly(SCENARIOS, ("checkpoint", "gpu-lost")))
def test_all_surfaces_say_the_same_in_each_second(
    scenario: str, request: pytest.FixtureRequest
) -> None:
    seconds = SECONDS[request.config.getoption("--nightly")]
    machine = shown(f"dgx-h100:{scenario}", gpus=2)
    surfaces = Surfaces(machine)
    differing = [second for second in range(seconds) if [*surfaces.second()]]
    print(f"{scenario}: {len(differing)} of {seconds} s differ")
    assert differing == []


class Surfaces:
    """All ways to look at one machine."""

    def __init__(self, machine: Shown) -> None:
        self.machine = machine
        self.feed, self.open_page = Feed(machine.board), Client()

    def second(self) -> Iterator[str]:
        """Let a second pass; yield what differs from the API."""
        self.machine.run(1)
        api = json.loads(self.machine.board.json())
        sent = dict(_event(one) for one in self.feed.news(self.open_page))
        shown_first = dict(json.loads(self.feed.first()))
        status = msgspec.json.decode(json.dumps(sent["status"]), type=Status)
        if _meaning(sent["status"]) != _meaning(api):
            yield "open page"
        if _meaning(shown_first["status"]) != _meaning(api):
            yield "new page"
        terminal = "\n".join(page(StatusView(status), 10_000))
        yield from (f"terminal: {text}" for text in _said(api) if text not in terminal)
        yield from self._jobs(api)

    def _jobs(self, api: dict[str, Any]) -> Iterator[str]:
        listed = jobs_document(self.machine.board.source.jobs())["running"]
        for job, shown_job in zip(listed, api["jobs"], strict=True):
            if job["sentence"] not in shown_job["text"]:
                yield f"jobs: {job['sentence']}"
            if (job["hang"] or {}).get("action") != shown_job["do"]:
                yield "jobs: first step"


def _event(event: bytes) -> tuple[str, Any]:
    fields = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
    return fields["event"], json.loads(fields["data"])


def _meaning(status: dict[str, Any]) -> object:
    """Return level, headline and first steps."""
    parts = ("headline", "groups", "findings", "gpus", "jobs")
    own = ("level", "text", "do", "alert", "since")
    return status["level"], [[one.get(n) for n in own] for part in parts for one in status[part]]


def _said(status: dict[str, Any]) -> Iterator[str]:
    """Yield the sentences that a terminal must have."""
    for clause in status["headline"]:
        yield f"{clause['text']}."
        yield clause["do"] or ""
    hidden = (one["do"] for one in status["findings"] if one["hidden_by"] is None)
    yield from (step for step in hidden if step)
    yield from (group["do"] or "" for group in status["groups"])


TICK = {"k40": 25_000, "dgx-1-v100": 60_000, "dgx-h100": 75_000, "sixteen": 100_000}
"""Bytes that a tick may take at most; a machine in trouble says more than one that is busy."""

HISTORY_OF_A_SECOND = 8_000
"""Of sixteen GPUs, each of which starves for several causes at once."""


@pytest.mark.parametrize("name", TICK)
def test_a_tick_is_small(name: str) -> None:
    machine, client = shown(f"{name}:starved-disk").run(7), Client()
    feed = Feed(machine.board)
    feed.clients.add(client)
    found = {event.split(b"\n", 1)[0]: len(event) for event in feed.news(client)}
    print(name, found)
    assert found[b"event: status"] <= TICK[name]
    assert found[b"event: history"] <= HISTORY_OF_A_SECOND
