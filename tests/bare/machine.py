"""A bare system while a command runs in it: files of its own, and the network of the host."""

import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bare.systems import HOME, NUMBER, USER, BareSystem, bare_root, furnish
from tests.support.patience import PATIENCE

SETTINGS = ("PIP_INDEX_URL", "PIP_CERT", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
"""Variables with which pip and apt reach their registries from here; all others stay outside."""


class BareMachine:
    """A bare system with a clone of this repository; `with` removes what has changed."""

    def __init__(self, system: BareSystem, rights: str, folder: str = "dgx-telemetry") -> None:
        self.rights = rights
        self.stage = Path(tempfile.mkdtemp(prefix="dgx-telemetry-bare-", dir="/var/tmp"))
        self.root = self.stage / "root"
        self.home = Path("root") if rights == "root" else HOME
        self.clone = self.home / folder
        # In memory: a copy, and files that come and go on a disk, take some 10 s of a processor.
        subprocess.run(["mount", "-t", "tmpfs", "bare", str(self.stage)], check=True)
        changed, work = self.stage / "changed", self.stage / "work"
        for made in (self.root, changed, work):
            made.mkdir()
        layers = f"lowerdir={bare_root(system, rights)},upperdir={changed},workdir={work}"
        mount = ["mount", "-t", "overlay", "bare", "-o", layers, str(self.root)]
        subprocess.run(mount, check=True)
        furnish(self.root, rights)

    def __enter__(self) -> "BareMachine":
        clone = ["git", "clone", "--quiet", "--no-hardlinks", str(Path(__file__).parents[2])]
        subprocess.run([*clone, str(self.root / self.clone)], check=True)
        if self.rights != "root":
            owner = f"{NUMBER}:{NUMBER}"
            subprocess.run(["chown", "-R", owner, str(self.root / self.clone)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.root), str(self.stage)], check=True)
        self.stage.rmdir()

    def start(self, line: str, *options: str, **environment: str) -> "Inside":
        """A line of shell, in the clone, by the user whose rights these are; `options` are for
        systemd-nspawn."""
        passed = {name: os.environ[name] for name in SETTINGS if name in os.environ}
        passed |= {name: os.environ[name] for name in PROXIES if name in os.environ}
        passed |= environment
        words = [
            *("env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            *(f"HOME=/{self.home}", "TERM=dumb", *(f"{k}={v}" for k, v in passed.items())),
            *("bash", "-c", f"cd {shlex.quote(f'/{self.clone}')} && {line}"),
        ]
        if self.rights != "root":
            words = ["runuser", "-u", USER, "--", *words]
        return Inside(
            [
                *("systemd-nspawn", "--quiet", "--directory", str(self.root), "--as-pid2"),
                *("--register=no", "--keep-unit", "--pipe", "--resolv-conf=copy-host"),
                "--timezone=off",  # mounted over a file that Ubuntu's tzdata replaces
                *options,
                *words,
            ]
        )


class Inside:
    """A command in a bare machine: its lines as they come, each with the seconds since it began."""

    def __init__(self, command: list[str]) -> None:
        self.began = time.monotonic()
        self.said: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def __enter__(self) -> "Inside":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End it, and everything it started, at once."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()

    def kill(self) -> None:
        """End all of it with signal 9: its first process takes every other along."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
        self.reader.join()

    def status(self) -> int:
        """Its exit status, once it has ended and all was read."""
        self.reader.join()
        return self.process.wait()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.said.append((self.seconds, line.rstrip("\n")))

    def text(self) -> str:
        return "\n".join(line for _, line in self.said)

    def wait_for(self, met: Callable[[], object], what: str) -> None:
        """Until it is so; raises AssertionError with all that was said where it is not in time."""
        deadline = time.monotonic() + PATIENCE
        while not met():
            ended = self.process.poll()
            assert ended is None, f"ended with status {ended} before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"not in {PATIENCE:g} s: {what}:\n{self.text()}"
            time.sleep(0.1)
