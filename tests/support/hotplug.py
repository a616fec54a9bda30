"""A host whose disks, NICs and InfiniBand adapters come and go, each under a name of its own."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.hardware.files import FileTree
from agent.hardware.host import Host
from agent.simulator.host import SimulatedDiskCounters, SimulatedNicCounters

MOVED = 10_000_000
"""Bytes a look, in each direction."""


def _disk(name: str) -> dict[str, str]:
    folder = f"/sys/block/{name}"
    return {f"{folder}/size": "1000", f"{folder}/device/model": "Stick"}


def _nic(name: str) -> dict[str, str]:
    folder = f"/sys/class/net/{name}"
    facts = {"operstate": "up", "carrier": "1", "speed": "10000", "device/vendor": "0x15b3"}
    return {f"{folder}/{name}": text for name, text in facts.items()}


def _adapter(name: str) -> dict[str, str]:
    port = f"/sys/class/infiniband/{name}/ports/1"
    facts = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "100 Gb/sec (4X EDR)"}
    counters = {f"counters/{flow}_data": "0" for flow in ("port_rcv", "port_xmit")}
    return {f"{port}/{file}": text for file, text in {**facts, **counters}.items()}


KINDS: dict[str, Callable[[str], dict[str, str]]] = {"sdx": _disk, "eth": _nic, "mlx5_9": _adapter}
"""Names of the devices of each kind, and their files."""


@dataclass(slots=True)
class Hotplug:
    """Devices plugged in beside those of a host; no name comes twice."""

    host: Host
    devices: dict[str, str] = field(default_factory=dict)  # name to kind
    _texts: dict[str, str] = field(default_factory=dict)  # path to content
    _looks: Counter[str] = field(default_factory=Counter)
    _plugged: int = 0

    def plug(self, kind: str) -> None:
        """A new device of this kind."""
        self._plugged += 1
        self.devices[f"{kind}{self._plugged}"] = kind
        self._write()

    def unplug(self, name: str) -> None:
        """The device is gone for good."""
        del self.devices[name], self._looks[name]
        self._write()

    def _write(self) -> None:
        self._texts = {}
        for name, kind in self.devices.items():
            self._texts |= KINDS[kind](name)

    def wrapped(self) -> Host:
        """The host with what is plugged in."""
        return replace(self.host, files=PluggedFiles(self), psutil=PluggedPsutil(self))

    def text(self, path: str) -> str | None:
        """The content of a file of a device, or None where it is none."""
        return self._texts.get(path)

    def below(self, folder: str) -> set[str]:
        """The names that devices add to a folder."""
        start = folder.rstrip("/") + "/"
        rests = (path[len(start) :] for path in self._texts if path.startswith(start))
        return {rest.partition("/")[0] for rest in rests}

    def counted(self, kind: str, make: Callable[[int], Any]) -> dict[str, Any]:
        """Return the bytes that the devices of a kind have moved by now."""
        names = [name for name, of in self.devices.items() if of == kind]
        self._looks.update(names)
        return {name: make(self._looks[name] * MOVED) for name in names}


@dataclass(frozen=True, slots=True)
class PluggedFiles(FileTree):
    """Files of the host and of the devices."""

    plugs: Hotplug

    @property
    def _inner(self) -> FileTree:
        return self.plugs.host.files

    def read(self, path: str) -> str:
        text = self.plugs.text(path)
        return self._inner.read(path) if text is None else text

    def names(self, path: str) -> list[str]:
        added = self.plugs.below(path)
        try:
            return sorted({*self._inner.names(path), *added})
        except OSError:
            if added:
                return sorted(added)
            raise

    def link(self, path: str) -> str:
        if self.plugs.text(path) is not None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return self._inner.link(path)


@dataclass(frozen=True, slots=True)
class PluggedPsutil:
    """psutil of the host, with the devices in it; the disks count no busy time."""

    plugs: Hotplug

    @property
    def _inner(self) -> Any:
        return self.plugs.host.psutil

    def disk_io_counters(self, perdisk: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        counted = self.plugs.counted("sdx", lambda n: SimulatedDiskCounters(n, n, 0))
        return {**self._inner.disk_io_counters(perdisk=perdisk, nowrap=nowrap), **counted}

    def net_io_counters(self, pernic: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        counted = self.plugs.counted("eth", lambda n: SimulatedNicCounters(n, n))
        return {**self._inner.net_io_counters(pernic=pernic, nowrap=nowrap), **counted}

    def cpu_times(self) -> Any:
        return self._inner.cpu_times()
