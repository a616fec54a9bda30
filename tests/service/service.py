"""The service in a container, as its tests ask it."""

import base64
import json
import re
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.service.container import Container
from tests.stack.running import eventually

UNIT = "dgx-telemetry.service"
DROP_IN = f"/run/systemd/system/{UNIT}.d/test.conf"
CONFIGURATION = "/etc/dgx-telemetry/config.toml"
STATE = ("/var/lib/dgx-telemetry", "/var/lib/private/dgx-telemetry")
"""Folder where systemd keeps the agent's state, and its target."""

CHANGING = re.compile(
    r"^/(proc|sys|dev|run|tmp|mnt|var/(tmp|log|cache|backups)|var/lib/(systemd|dpkg|containers)"
    r"|etc/(machine-id|\.pwd\.lock|\.updated|hostname|resolv\.conf)|root/\.)"
    r"|/__pycache__/"
)
"""Files that a machine writes by itself, and packages list separately."""

PYTHON = "ls /usr/bin/python3.1[1-3] 2>/dev/null || true"
"""The Python that the package takes; each of the systems has one of these."""


class Service:
    """dgx-telemetry.service of a container."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.run = container.run

    def show(self, name: str) -> str:
        """One property."""
        return self.run(f"systemctl show --property {name} --value {UNIT}")

    @property
    def pid(self) -> int:
        """Its process; it must run, for `kill 0` would hit the tests themselves."""
        pid = int(self.show("MainPID"))
        assert pid, self.run(f"systemctl status {UNIT}", check=False)
        return pid

    def change(self, *lines: str) -> None:
        """Restart it with a drop-in; with no lines, as it is shipped."""
        if lines:
            self.container.write(DROP_IN, "[Service]\n" + "\n".join(lines) + "\n")
        else:
            self.run(f"rm -f {DROP_IN}")
        self.run(f"systemctl daemon-reload && systemctl restart {UNIT}")

    def sandbox_report(self, *words: object) -> Any:
        """Return the output of `sandbox_report`, run in place of the agent in the sandbox of the
        unit."""
        line = " ".join(map(str, ("/mnt/tests/service/sandbox_report.py", *words)))
        self.change(
            *(
                "Type=exec",
                "Restart=no",
                "WatchdogSec=0",
                "StandardOutput=truncate:/run/sandbox-report",
            ),
            "ExecStart=",
            f"ExecStart=/opt/dgx-telemetry/bin/python -OO {line}",
        )
        return self.testimony

    @property
    def testimony(self) -> Any:
        """Output of `sandbox_report`, once it has ended."""
        eventually(lambda: self.show("ActiveState") in {"inactive", "failed"}, "its end")
        said = self.run("cat /run/sandbox-report")
        assert said, self.journal("_TRANSPORT=stdout")
        return json.loads(said)

    def fetch(self, path: str, login: str = "") -> str:
        """A page of the agent, or the number of what it answers instead."""
        request = Request(f"http://127.0.0.1:9935{path}")
        if login:
            token = base64.b64encode(login.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")

        def page() -> str:
            try:
                with urlopen(request, timeout=10) as answer:
                    return str(answer.read().decode())
            except HTTPError as error:
                return str(error.code)

        return self.container.in_network(page)

    def metric(self, series: str) -> float | None:
        """The value of one series as it is written; None where there is none."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.fetch("/metrics"), re.MULTILINE)
        return float(found[1]) if found else None

    def journal(self, *matches: str) -> str:
        asked = f"--unit {UNIT} --no-pager --output cat {' '.join(matches)}"
        return self.run(f"journalctl --sync; journalctl {asked}")

    def events(self, since: float) -> list[tuple[float, str]]:
        """Return the lines that systemd itself logged of the unit: seconds of its clock,
        message."""
        asked = f"--unit {UNIT} --no-pager --output json _PID=1"
        said = self.run(f"journalctl --sync; journalctl {asked}")
        entries = [json.loads(line) for line in said.splitlines()]
        found = [(int(e["__MONOTONIC_TIMESTAMP"]) / 1e6, str(e["MESSAGE"])) for e in entries]
        return [(at, message) for at, message in found if at >= since]

    def active_again(self, before: int) -> None:
        """Wait until another process serves."""
        old = {"0", str(before)}
        eventually(
            lambda: self.show("ActiveState") == "active" and self.show("MainPID") not in old,
            "the service is back",
        )


def now() -> float:
    """The clock of the journal's monotonic timestamps, which a container shares."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def lasting(files: set[str]) -> set[str]:
    return {file for file in files if not CHANGING.search(file)}
