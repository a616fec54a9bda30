"""The Fabric Manager: whether it runs, where NVSwitches need it."""

from collections.abc import Iterator

from agent.hardware import processes
from agent.hardware.files import FileTree, names_in, text_or_nothing
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions

RUNNING = gauge(
    "dgx_fabric_manager_running",
    "1 if the Fabric Manager runs, 0 if it does not although the NVSwitches of this machine need "
    "it: then no program that uses several GPUs can start.",
    "/proc/driver/nvidia-nvswitch/devices, and root's processes named nv-fabricmanager",
)

SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
PID_FILE = "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
KERNEL = "2", "kthreadd"  # Its first thread, which every host has, and no container
PROGRAM = "nv-fabricmanage"  # As the kernel cuts it: fifteen letters


class FabricServiceRead:
    """Looks where its own file says, and only then through all processes."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._pid = ""

    def read(self, out: ReadOutput) -> None:
        if not names_in(self._files, SWITCHES):
            raise Absent(Reason.MISSING, f"{SWITCHES} lists no NVSwitch")
        if not self._is_roots(self._pid, PROGRAM):
            pids = [text_or_nothing(self._files, PID_FILE), *names_in(self._files, "/proc")]
            self._pid = next((pid for pid in pids if self._is_roots(pid, PROGRAM)), "")
        if not self._pid and not self._is_roots(*KERNEL):
            raise Absent(Reason.DENIED, "hidepid or a pid namespace hides what runs")
        out.add(RUNNING, bool(self._pid))

    def _is_roots(self, pid: str, name: str) -> bool:
        """Return whether root runs this program; of most processes the name is enough to say no."""
        if not pid.isdigit() or text_or_nothing(self._files, f"/proc/{pid}/comm") != name:
            return False
        try:
            return processes.is_roots(self._files, int(pid), name)
        except OSError:
            return False


def reads(host: Host, _options: HostOptions) -> Iterator[Read]:
    run, key = FabricServiceRead(host.files).read, ReadKey("fabric_service", "state")
    yield Read(key, (RUNNING,), run, fixed(intervals.MANAGER))
