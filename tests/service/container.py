"""A machine with systemd as its first process: a Debian in systemd-nspawn, booted in a second.

Its root is made once by mmdebstrap and kept in a cache; what happens in it lies in memory and is
gone with it. It has a network of its own, with nothing but loopback.
"""

import ctypes
import fcntl
import hashlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.stack.running import eventually
from tests.support.patience import PATIENCE

PACKAGES = ("systemd", "systemd-sysv", "dbus", "procps", "iproute2", "python3", "rpm")
"""No python3-venv: the agent must do without."""

JOBS = (
    *("slurmctld", "slurmd", "slurmdbd", "mariadb-server", "slurm-client", "munge"),
    *("podman", "crun", "uidmap", "catatonit"),
)
"""Only Debian has all of them in `main`. One root for all tests: a second one takes as much of a
processor to make as all that happens in it."""

STARTED_BY_HAND = ("slurm*", "munge*", "mariadb*", "podman*", "systemd-networkd*")
"""Units of these packages that do not start with the machine."""

UBUNTU = "deb [trusted=yes] http://archive.ubuntu.com/ubuntu"
"""Trusted, for Debian does not know the keys of Ubuntu."""

SUITES = {
    "bookworm": ("python3.11", ("http://deb.debian.org/debian",)),
    "trixie": ("python3.13", ("http://deb.debian.org/debian",)),
    # As DGX OS 6 and 7.
    "jammy": ("python3.11", (f"{UBUNTU} jammy main", f"{UBUNTU} jammy-updates main universe")),
    "noble": ("python3.12", (f"{UBUNTU} noble main",)),
}
SUITE = os.environ.get("DGX_SERVICE_SUITE", "bookworm")
"""Suite to test in; the usual tests take the first, and the others are asked for by hand."""

COMPILED = "-E -m compileall -q -o 2 /usr/lib/"
"""Debian compiles nothing for -OO, and the service keeps no bytecode: it compiled the standard
library in each of its starts."""

UNWANTED = ("apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer")

HIERARCHIES = ("", "devices", "freezer", "systemd", "unified")
"""Below /sys/fs/cgroup: where a container has control groups of its own, apart from other's."""

APART = """
for at in /sys/fs/cgroup{,/devices,/freezer,/systemd,/unified}; do
    [ ! -e $at/cgroup.procs ] || { mkdir $at/$0 && echo $$ >$at/$0/cgroup.procs; }
done
exec "$@"
"""

NAMESPACES = ("-m", "-u", "-i", "-p", "-n", "-C", "-r", "-w", "--")
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "LANG": "C.UTF-8", "SYSTEMD_PAGER": "", "HOME": "/root"}
GENERATORS = """
mkdir -p /run/systemd/system-generators && cd /usr/lib/systemd/system-generators
for name in *; do ln -s /dev/null /run/systemd/system-generators/$name; done
"""
"""After the boot none is needed, and each change of a unit would start all of them."""

NETWORK = 0x40000000  # CLONE_NEWNET
LIBC = ctypes.CDLL(None, use_errno=True)  # Python 3.11 has no setns

T = TypeVar("T")

NUMBERS = itertools.count()

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgx-telemetry-tests"


def cache(*more: str) -> Path:
    """The root of the machine, with more packages, made if it is not there."""
    python, mirrors = SUITES[SUITE]
    jobs = JOBS if "deb.debian.org" in mirrors[0] else ()
    packages = ",".join((*PACKAGES, python, *jobs, *more))
    key = hashlib.sha256(f"{mirrors} {packages} {COMPILED}".encode()).hexdigest()[:12]
    folder = CACHE / f"{SUITE}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # two workers want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(folder, packages, python, mirrors)
    return folder


def make(folder: Path, packages: str, python: str, mirrors: Sequence[str]) -> None:
    """Make the root."""
    part = folder.with_suffix(f".{os.getpid()}")
    compiled = f'--customize-hook=chroot "$1" {python} {COMPILED}{python}'
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}"]
    try:
        subprocess.run(
            [*command, compiled, SUITE, str(part), *mirrors], check=True, timeout=PATIENCE
        )
        (part / "etc/machine-id").unlink(missing_ok=True)
        for unit in UNWANTED:
            (part / "etc/systemd/system" / unit).symlink_to("/dev/null")
        preset = part / "etc/systemd/system-preset/00-tests.preset"
        preset.parent.mkdir(exist_ok=True)
        preset.write_text("".join(f"disable {unit}\n" for unit in STARTED_BY_HAND))
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


class Container:
    """The machine while it runs; `with` ends it. `shared` is its /mnt, read-only; `hierarchy` the
    cgroups that it sees: yes for version 2 alone, no for version 1."""

    def __init__(
        self, shared: Path, log: Path, packages: Sequence[str] = (), hierarchy: str = "yes"
    ) -> None:
        options = [
            *("--quiet", "--volatile=overlay", "--register=no", "--keep-unit"),
            *("--console=passive", "--private-network"),
            # Only with these does its systemd enforce DeviceAllow= and IPAddressDeny=.
            *("--capability=all", "--system-call-filter=bpf"),
            f"--bind-ro={shared}:/mnt",
        ]
        self.shared = shared
        self.group = f"dgx-telemetry-tests-{os.getpid()}-{next(NUMBERS)}"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    "bash",
                    "-c",
                    APART,
                    self.group,
                    "systemd-nspawn",
                    "-D",
                    str(cache(*packages)),
                    *options,
                    "--boot",
                ],
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": hierarchy},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.log = log
        self.first = 0

    def __enter__(self) -> "Container":
        try:
            eventually(self._runs, f"a running systemd, see {self.log}")
            self.run(GENERATORS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # powers off
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.first:  # it outlives an nspawn that was killed
            with suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)
        with suppress(AssertionError):  # what is left of the last process may take its time
            eventually(self._left_no_groups, "an end of its control groups")

    def _left_no_groups(self) -> bool:
        """Return whether its control groups are gone, once those without a process were removed."""
        places = [Path("/sys/fs/cgroup", name, self.group) for name in HIERARCHIES]
        for place in filter(Path.exists, places):
            for folder in (*sorted(place.rglob("*/"), reverse=True), place):
                with suppress(OSError):
                    folder.rmdir()
        return not any(map(Path.exists, places))

    def _found_first(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        self.first = int(children.split()[0]) if children.split() else 0
        return bool(self.first)

    def _runs(self) -> bool:
        """The first child of systemd-nspawn only starts the process that stays."""
        return self._found_first() and self.run("systemctl is-system-running", check=False) in {
            "running",
            "degraded",
        }

    def command(self, *words: str) -> list[str]:
        """Return the command that runs these words inside."""
        return ["nsenter", "-t", str(self.first), *NAMESPACES, *words]

    def run(self, line: str, *, check: bool = True, given: str = "") -> str:
        """Return the text of a shell line on both outputs, stripped; it must succeed."""
        ended = subprocess.run(
            self.command("sh", "-c", line),
            env=ENVIRONMENT,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            start_new_session=True,
            check=False,
        )
        assert not check or ended.returncode == 0, f"{line}\n{ended.stdout}"
        return ended.stdout.strip()

    def status(self, line: str) -> tuple[int, str]:
        """The exit status of a line of shell, and what it says."""
        *said, number = self.run(f"{line}; echo $?", check=False).splitlines()
        return int(number), "\n".join(said)

    def write(self, path: str, text: str) -> None:
        folder = shlex.quote(str(Path(path).parent))
        self.run(f"mkdir -p {folder} && cat > {shlex.quote(path)}", given=text)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A process inside that goes on until its input ends: `communicate` does that."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command(*words), env=ENVIRONMENT, stdin=pipe, stdout=pipe, text=True
        )

    def in_network(self, asked: Callable[[], T]) -> T:
        """The result of a function in the network of the machine: in a thread of its own, for a
        process that asks takes 50 ms of a processor."""

        def inside() -> T:
            with open(f"/proc/{self.first}/ns/net") as network:
                failed = LIBC.setns(network.fileno(), NETWORK)
            assert not failed, os.strerror(ctypes.get_errno())
            return asked()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(inside).result()

    def files(self) -> set[str]:
        """All files on its disk."""
        return set(self.run("find / -xdev -not -type d").splitlines())
