"""What is hostile: answers of Slurm and the kubelet, lists of hosts, lines of nodes, files that
cannot be read, structures of NVML with any bits, refusals for good, web configurations, hours on
disk, configurations, and clients that behave badly."""

import os
import socket
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.cli import inventory
from agent.cli.table import local
from agent.config.configuration import read_toml
from agent.diagnosis.hours import _read
from agent.errors import BadInput
from agent.hardware.schedulers import pods
from agent.model import Absent
from exporters.web_file import WebFile
from tests.support.hidden_files import CHILD, HiddenFiles
from tests.support.machine_controls import reload_driver
from tests.support.random_faults import CALM, STRIKES, RandomFaults
from tests.support.served import hashed

NOTHING = "^$"
WRITTEN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HIDDEN = (CHILD, *WRITTEN["hidden"])
REFUSALS = WRITTEN["refusals"]
PIECES = (*WRITTEN["pieces"], "\udcff")
FILES = (
    *(text.encode() for text in WRITTEN["files"]),
    b"\xef\xbb\xbf{}",
    b"\xff\xfe",
    b"[" * 99_999,
    b"\0" * 99,
)
REQUESTS = (
    *(text.encode() for text in WRITTEN["requests"]),
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: a/b;q=\xff;q=9e9,,;=\r\n\r\n",
    b"GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50,
    b"GET /" + b"a" * 100_000,
    b"\x16\x03\x01\x02\x00" + b"\0" * 500,
)
MOST_CHANNELS = 90
"""Connections that nobody reads; one client may have 64."""


@dataclass(slots=True)
class HostileFaults(RandomFaults):
    """All that may be hostile; `refused` once a call was refused for good."""

    files: HiddenFiles = field(kw_only=True)
    folder: Path = field(kw_only=True)
    port: int = 0
    refused: bool = False
    bits: int = 0  # in structures of NVML, 0 for the right ones
    channels: list[socket.socket] = field(default_factory=list)
    web: WebFile | None = None
    wrong: list[str] = field(default_factory=list)

    def strike(self) -> None:
        strikes = STRIKES | HOSTILE
        name = self.random.choice(sorted(strikes))
        strikes[name](self)
        self.struck[name] = self.struck.get(name, 0) + 1

    def heal(self) -> None:
        self.files.hidden, self.bits = NOTHING, 0
        for channel in self.channels:
            channel.close()
        self.channels.clear()
        refused, self.refused = self.refused, False
        RandomFaults.heal(self)
        if refused:
            reload_driver(self.machine)
            self.machine.set_scenario("idle")
            self.machine.set_scenario(CALM)

    def words(self) -> str:
        return "".join(self.random.choices(PIECES, k=self.random.randrange(1, 12)))

    def tolerated(self, name: str, work: Callable[[], Any]) -> None:
        """Let work raise what its callers know how to say."""
        try:
            work()
        except (BadInput, Absent, ValueError, OSError):
            pass
        except Exception as error:
            self.wrong.append(f"{name}: {error!r}")

    def jobs(self) -> None:
        lines = range(self.random.randrange(20))
        self.slurm.answer = [f"JobId={n} UserId=eve Nodes={self.words()}" for n in lines]

    def lists(self) -> None:
        text = self.words()
        self.tolerated(f"list {text!r}", lambda: inventory.hosts_of(text))

    def nodes(self) -> None:
        text = f"NodeName=n1 Gres=gpu:8 State={self.words()}\n{self.words()}"
        self.tolerated(f"nodes {text!r}", lambda: list(inventory.slurm_nodes(text)))

    def kubelet(self) -> None:
        answer = self.random.randbytes(self.random.randrange(64))
        self.tolerated(f"kubelet {answer!r}", lambda: list(pods(answer)))

    def hide(self) -> None:
        self.files.hidden = self.random.choice((NOTHING, *HIDDEN))

    def structure(self) -> None:
        self.bits = self.random.getrandbits(32)

    def refuse(self) -> None:
        self.refused = True
        self.machine.driver.fail(f"nvmlDevice{self.random.choice(REFUSALS)}", 3, self.gpu())

    def guard(self) -> None:
        """Users must stay unless the file says that there are none."""
        assert self.web is not None
        path, text = Path(self.web.now.path), self.random.choice(FILES)
        before = path.read_bytes()
        path.write_bytes(text)
        self.web.poll()
        if not self.web.now.users and text.removeprefix(b"\xef\xbb\xbf") not in SAID:
            self.wrong.append(f"{text!r} opened the agent")
        path.write_bytes(USERS if self.random.random() < 0.5 or not before else before)
        self.web.poll()
        if not self.web.now.users:
            path.write_bytes(USERS)
            self.web.poll()

    def configure(self) -> None:
        path = self.folder / "config.toml"
        path.write_bytes(self.random.choice(FILES) + self.words().encode(errors="replace"))
        self.tolerated("configuration", lambda: read_toml(path))

    def hours(self) -> None:
        number = int(time.time() // 3600) - self.random.randrange(9)
        (self.folder / f"hour-{number}.json").write_bytes(self.random.choice(FILES))
        self.tolerated("hours", lambda: _read(self.folder))

    def client(self) -> None:
        """Nobody reads what comes back."""
        if len(self.channels) >= MOST_CHANNELS:
            self.channels.pop(0).close()
        channel = socket.socket()
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        channel.setblocking(False)
        with suppress(BlockingIOError):
            channel.connect(("127.0.0.1", self.port))
        self.channels.append(channel)
        for one in self.random.sample(self.channels, k=min(9, len(self.channels))):
            with suppress(OSError):
                one.send(self.random.choice(REQUESTS))

    def zone(self) -> None:
        os.environ["TZ"] = self.random.choice(["AAA-200", ":/etc/passwd", "\udcff", "<+99>-99"])
        time.tzset()
        self.tolerated("time zone", lambda: local(0.0))
        del os.environ["TZ"]
        time.tzset()


USERS = f"basic_auth_users: {{ada: {hashed('secret')}}}\n".encode()
SAID = (b"{}", b"basic_auth_users: {}\n")
HOSTILE: dict[str, Callable[[Any], None]] = {
    "jobs of Slurm": HostileFaults.jobs,
    "list of hosts": HostileFaults.lists,
    "lines of nodes": HostileFaults.nodes,
    "answer of the kubelet": HostileFaults.kubelet,
    "files hidden": HostileFaults.hide,
    "bits of a structure": HostileFaults.structure,
    "refusal for good": HostileFaults.refuse,
    "web configuration": HostileFaults.guard,
    "configuration file": HostileFaults.configure,
    "hours on disk": HostileFaults.hours,
    "client": HostileFaults.client,
    "time zone": HostileFaults.zone,
}


def with_bits(faults: HostileFaults) -> None:
    """Let NVML answer structures and masks with the bits of `faults`."""
    nvml: Any = faults.machine.nvml
    fabric, reasons = (
        getattr(nvml, f"nvmlDeviceGet{call}")
        for call in ("GpuFabricInfoV", "CurrentClocksEventReasons")
    )

    def odd_fabric(handle: Any, info: Any) -> None:
        fabric(handle, info)
        if faults.bits:
            info._obj.healthMask, info._obj.healthSummary = faults.bits, faults.bits % 256
            info._obj.state, info._obj.status = faults.bits % 16, faults.bits % 1000

    nvml.nvmlDeviceGetGpuFabricInfoV = odd_fabric
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: reasons(handle) | faults.bits
