"""Files of a simulated machine that report its health: NVSwitches, disks, fans, power supplies."""

from collections.abc import Callable

from agent.simulator.machine import Machine
from agent.simulator.system_models import DiskModel

Tree = dict[str, Callable[[], str]]

SERVICE = "1200"
"""The pid of the Fabric Manager."""

PMBUS = "/sys/class/hwmon/hwmon7"


def tree(machine: Machine) -> Tree:
    """Path to content."""
    system, host = machine.system, machine.host_health
    files: Tree = {}
    for disk in system.disks:
        files |= _disk(machine, disk)
    for number in range(system.nvswitches):
        place = f"/proc/driver/nvidia-nvswitch/devices/0000:{0x86 + number:02x}:00.0/information"
        files[place] = lambda: "Driver Version: \n"
    if system.chassis:
        files |= {
            f"{PMBUS}/name": lambda: "pmbus\n",
            f"{PMBUS}/fan1_fault": lambda: f"{int(host.fan_failed)}\n",
            f"{PMBUS}/fan1_label": lambda: "Fan 1\n",
            f"{PMBUS}/in1_alarm": lambda: f"{int(host.supply_failed)}\n",
            f"{PMBUS}/in1_label": lambda: "PSU 1\n",
        }
    return files


def unlisted(machine: Machine) -> Tree:
    """What is read by its path alone: the processes of the Fabric Manager and of the kernel."""
    if not machine.system.nvswitches:
        return {}

    def running() -> str:
        if not machine.host_health.fabric_service:
            raise FileNotFoundError(2, "No such process")
        return "nv-fabricmanage\n"

    return {
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid": lambda: f"{SERVICE}\n",
        f"/proc/{SERVICE}/comm": running,
        f"/proc/{SERVICE}/status": lambda: f"Name:\t{running()}Uid:\t0\t0\t0\t0\n",
        "/proc/2/comm": lambda: "kthreadd\n",
        "/proc/2/status": lambda: "Name:\tkthreadd\nUid:\t0\t0\t0\t0\n",
    }


class SimulatedSmart:
    """What udisks2 would report of the disks of a simulated machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def failing(self) -> dict[str, bool]:
        broken = self._machine.host_health.failing_disks
        return {disk.name: disk.name in broken for disk in self._machine.system.disks}


def _disk(machine: Machine, disk: DiskModel) -> Tree:
    host = machine.host_health
    nvme = disk.name.startswith("nvme")
    alive, dead = ("live", "dead") if nvme else ("running", "offline")
    device = f"/sys/block/{disk.name}/device"
    files: Tree = {
        f"{device}/state": lambda: f"{dead if disk.name in host.dead_disks else alive}\n",
        f"/sys/fs/ext4/{disk.name}/errors_count": lambda: f"{int(disk.name in host.damaged)}\n",
    }
    if nvme:
        alarm = f"{device}/hwmon3/temp1_alarm"
        files[alarm] = lambda: f"{int(disk.name in host.hot_disks)}\n"
    return files
