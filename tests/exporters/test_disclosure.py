"""Names of people, programs and jobs leave the agent only while job.info is on: asked by every way
out, with planted names, wired as `run` wires it."""

import asyncio
import gzip
import logging
import re
import tarfile
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession

from agent import simulator
from agent.cli import check
from agent.cli.assembly import Agent, Hardware, recorded
from agent.cli.once import StatusView, page
from agent.cli.options import board_of
from agent.cli.run import _listen
from agent.cli.running_agent import asked
from agent.config.settings import Settings
from agent.diagnosis.disclosure import Disclosure
from agent.diagnosis.hours import HourlySums
from agent.hardware.files import FileTree
from agent.sources.process import ProcessConfig
from agent.sources.workload import JobConfig
from agent.status.model import Status
from exporters.live.page import Feed
from exporters.server import Server
from exporters.settings import DcgmConfig, HttpConfig
from exporters.web_file import WebFile
from tests.agent.report.test_report import report
from tests.support.frozen_clock import FrozenClock

UID, JOB = "61999", "4244777"
PLANTED = re.compile(rf"planted|(?<![\d.]){UID}(?!\d)|{JOB}")
FILES = {
    "cmdline": "planted-python\0planted.py\0",
    "cgroup": f"0::/system.slice/slurmstepd.scope/job_{JOB}/step_0/user/task_0\n",
    "environ": f"SLURM_JOB_ID={JOB}\0SLURM_JOB_PARTITION=planted-p\0SLURM_JOB_ACCOUNT=planted-a\0"
    "APPTAINER_NAME=planted.sif\0POD_NAME=planted-pod\0",
}
PATHS = (
    *("/metrics", "/metrics/dcgm", "/api/v1/snapshot", "/api/v1/jobs", "/api/v1/hours", "/"),
    *("/-/healthy", "/-/ready", "/api/v1/nothing"),
)


@dataclass
class PlantedFiles(FileTree):
    """/proc of a simulated machine whose processes have names that are met nowhere else."""

    files: FileTree

    def read(self, path: str) -> str:
        _, proc, pid, *rest = [*path.split("/"), ""]
        if proc != "proc" or not pid.isdigit():
            return self.files.read(path)
        name = "/".join(rest).rstrip("/")
        if name in FILES:
            return FILES[name]
        text = self.files.read(path).replace("python3", "planted-python")
        return re.sub(r"^(Uid:.*)$", f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}", text, flags=re.MULTILINE)

    def names(self, path: str) -> list[str]:
        return self.files.names(path)

    def link(self, path: str) -> str:
        return self.files.link(path)


def settings(*, info: bool) -> Settings:
    listen = HttpConfig(listen="127.0.0.1:0")
    return Settings(JobConfig(info=info), ProcessConfig(series=3), DcgmConfig(enabled=True), listen)


class Planted:
    """An agent of such a machine, as `run` builds it."""

    def __init__(self, state: Path, *, info: bool) -> None:
        self.clock = FrozenClock()
        self.machine = simulator.SimulatedSystem(simulator.parse("gtx-1080:training"), self.clock)
        host = replace(
            self.machine.host,
            files=PlantedFiles(self.machine.host.files),
            login=lambda uid: f"planted-user-{uid}",
        )
        self.hardware = Hardware(lambda: self.machine.nvml, host, simulated=True)
        self.agent = Agent(settings(info=info), self.hardware, self.clock, inline=True)
        self.reload(info=info)
        shown = Disclosure(self.agent.configuration)
        self.hours = HourlySums(self.agent.diagnosis.accounts, state, lambda: shown.names)
        self.board = board_of(self.agent, self.hardware)
        self.feed = Feed(self.board)
        self.agent.poller.listeners += [self.feed, self.hours]

    def reload(self, *, info: bool) -> None:
        self.agent.configuration.current = self.agent.complete(settings(info=info))

    async def tick(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.agent.poller.tick()
            self.clock.advance(1.0)

    async def lives(self) -> None:
        """A job ends, another begins."""
        await self.tick(30)
        self.machine.set_scenario("idle")
        await self.tick(15)
        self.machine.set_scenario("training")
        await self.tick(30)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Server]:
        server = await _listen(self.agent, WebFile(), self.board, self.feed, self.hours.document)
        try:
            yield server
        finally:
            await self.feed.close()
            await server.cleanup()

    async def said(self, folder: Path) -> dict[str, str]:
        """Return the text of each output."""
        found: dict[str, str] = {}
        async with self.served() as server, ClientSession() as client:
            await self.tick(3)
            base = f"http://127.0.0.1:{server.addresses[0][1]}"
            for path in PATHS:
                async with client.get(base + path) as answer:
                    found[path] = await answer.text()
                    assert answer.headers["Cache-Control"] == "no-store", path
                async with client.get(base + path, headers={"Host": "rebound.example"}) as answer:
                    assert answer.status == 421, path
            openmetrics = {"Accept": "application/openmetrics-text;version=1.0.0"}
            async with client.get(f"{base}/metrics", headers=openmetrics) as answer:
                found["openmetrics"] = await answer.text()
            async with client.get(f"{base}/api/v1/stream") as answer:
                text = ""
                while "event: status" not in text or not text.endswith("\n\n"):
                    text += (await answer.content.readany()).decode()
                found["stream"] = text
            options = Namespace(simulate=None, replay=None, agent=base)
            asking, _ = await asyncio.to_thread(asked, options, self.agent.settings)
            assert asking
            shown = page(StatusView(asking.first), 200)
            found["once --agent"] = "\n".join([as_text(asking.first), *shown])
            for by in ("node", "job", "user", "account"):
                html = folder / f"{by}.html"
                words = ("--agent", base, "--by", by, "--html", str(html))
                await asyncio.to_thread(report, *words)
                found[f"report by {by}"] = html.read_text()
        found |= self.of_commands(folder)
        return found

    def of_commands(self, folder: Path) -> dict[str, str]:
        """Return the texts of `once`, `check` and its bundle on the same agent."""
        status = self.board.status()
        said = "\n".join(check.page(StatusView(status)))
        texts = check.bundled(self.hardware, self.agent.poller.latest, status, said)
        check.write(folder / "bundle.tar.gz", texts)
        with tarfile.open(folder / "bundle.tar.gz") as archive:
            files = [archive.extractfile(member) for member in archive.getmembers()]
            packed = b"".join(one.read() for one in files if one)
        return {
            "once": as_text(status) + "\n".join(page(StatusView(status), 200)),
            "check": texts["check.txt"],
            "bundle": packed.decode(),
        }


def as_text(status: Status) -> str:
    return msgspec.json.encode(status).decode()


NAMING = {
    *("/metrics", "/api/v1/snapshot", "/api/v1/jobs", "/api/v1/hours", "openmetrics", "stream"),
    *("/", "once", "once --agent", "report by job", "report by user"),
}
"""The ways by which names leave where they may. Slurm, which is not asked here, names accounts."""


@pytest.mark.parametrize("case", ["on", "never", "off by a reload", "off after a restart"])
async def test_names_leave_only_while_they_may(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    state = tmp_path / "state"
    state.mkdir()
    planted = Planted(state, info=case != "never")
    await planted.lives()
    if case.startswith("off"):
        planted.reload(info=False)
    if case == "off after a restart":
        planted.hours.close()
        assert PLANTED.search("".join(p.read_text() for p in state.iterdir()))
        planted = Planted(state, info=False)
    found = await planted.said(tmp_path)
    planted.machine.set_scenario("idle")
    await planted.tick(15)
    planted.hours.close()
    found = found | {"log": caplog.text, "output": "".join(capsys.readouterr())}
    leaks = {way for way, text in found.items() if PLANTED.search(text)}
    assert leaks == (NAMING if case == "on" else set())
    assert all(found[way] for way in ("/metrics/dcgm", "bundle", "check"))


async def test_a_tape_names_no_one(tmp_path: Path) -> None:
    """A tape names no user, whether names may be shown or not."""
    planted = Planted(tmp_path, info=True)
    hardware, recorder = recorded(planted.hardware, planted.clock)
    agent = Agent(settings(info=True), hardware, planted.clock, inline=True)
    for _ in range(10):
        await agent.poller.tick()
        planted.clock.advance(1.0)
    recorder.write(tmp_path / "x.tape")
    text = gzip.decompress((tmp_path / "x.tape").read_bytes()).decode()
    assert "slurmstepd.scope/job_1/step_0" in text
    assert not PLANTED.search(text)
