"""`python -m tests.hardware.xid [FAULT ...]`: XID errors that are provoked, and how they arrive.

Each fault is a kernel of one thread, in a process of its own that it ends; nothing else on the GPU
is touched and no setting is changed. It needs a GPU that no one else works on, the driver and no
CUDA toolkit: the kernels are PTX, which the driver translates. It ends within a minute.
"""

import ctypes
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from agent.errors import LogEvent
from agent.hardware.kernel_log import DEVICE, RECORD
from agent.model import Absent
from agent.polling.xid_watch import XidWatch
from agent.sources import xid
from tests.hardware.bench import Watcher
from tests.support.repository import ROOT

LIMIT = 58.0
"""Seconds after which this program ends, whatever hangs."""

BEFORE = 3.0  # s on the GPU before the fault: the agent has listed the process by then
AFTER = 4.0  # s watched after it
MOST = 9.0  # s that a process may take

HEAD = ".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry fault(.param .u64 where)"
BODY = "{{\n.reg .u64 %a, %v;\n.reg .u32 %w;\nld.param.u64 %a, [where];\n{}\nret;\n}}\n"


class Fault(NamedTuple):
    """One kernel; `offset` is added to the address of its buffer, None where it reads none."""

    xid: int
    what: str
    instructions: str
    offset: int | None = None


FAULTS = {
    "read": Fault(31, "reads from address 16", "ld.volatile.global.u32 %w, [%a];"),
    "misaligned": Fault(13, "reads 8 bytes at an odd one", "ld.volatile.global.u64 %v, [%a];", 1),
    "shared": Fault(
        13,
        "reads far beyond shared memory",
        "mov.u32 %w, 1073741824;\nld.volatile.shared.u32 %w, [%w];",
    ),
    "trap": Fault(43, "stops at a trap", "trap;"),
}


def ptx(fault: Fault) -> bytes:
    """The kernel's text, as the driver takes it."""
    return (HEAD + "\n" + BODY.format(fault.instructions)).encode() + b"\0"


class CudaError(Exception):
    """A call of the driver's API that failed."""


def provoke(fault: Fault) -> str:
    """Run the kernel on GPU 0; what CUDA says of it."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise CudaError(f"{name}: CUDA error {status}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, kernel, buffer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(1 << 20))
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx(fault)))
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"fault")
    time.sleep(BEFORE)
    where = ctypes.c_uint64(16 if fault.offset is None else buffer.value + fault.offset)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(where))
    one = [ctypes.c_uint(1)] * 6
    try:
        call("cuLaunchKernel", kernel, *one, ctypes.c_uint(0), None, arguments, None)
        call("cuCtxSynchronize")
    except CudaError as error:
        return str(error)
    return "no error"


class Judged(NamedTuple):
    """Something that was heard of an XID; `at` in seconds of CLOCK_MONOTONIC."""

    at: float
    code: int
    text: str = ""


class EventRecorder:
    """Every event of NVML as it comes, beside the agent's own counts."""

    def __init__(self) -> None:
        self.refused: Mapping[str, Absent] = {}
        self.heard: list[Judged] = []

    def note(self, uuid: str, code: int, way: str = "nvml") -> None:
        """An event."""
        self.heard.append(Judged(time.monotonic(), code, uuid))


class JournalLines(logging.Handler):
    """The lines that the agent writes of XID errors."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Judged] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is of an XID."""
        if isinstance(record.msg, LogEvent) and record.msg.name == "xid":
            code = int(str(record.msg.fields["xid"]))
            self.lines.append(Judged(time.monotonic(), code, str(record.msg)))


def kernel_lines() -> Callable[[], list[str]]:
    """A reader of the driver's new lines in the kernel's log: of the device, else of dmesg."""
    try:
        log = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
    except OSError as error:
        print(f"kernel log: {DEVICE}: {error.strerror}; dmesg is asked", flush=True)
        seen = set(_dmesg())
        return lambda: [line for line in _dmesg() if line not in seen]
    print(f"kernel log: {DEVICE} is read", flush=True)

    def read() -> list[str]:
        found: list[str] = []
        with suppress(BlockingIOError):
            while True:
                with suppress(BrokenPipeError):
                    found.append(os.read(log, RECORD).decode(errors="replace").split("\n")[0])
        return [line for line in found if _of_the_driver(line)]

    return read


def _dmesg() -> list[str]:
    with suppress(OSError, subprocess.TimeoutExpired):
        shown = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=3, check=False)
        return [line for line in shown.stdout.splitlines() if _of_the_driver(line)]
    return []


def _of_the_driver(line: str) -> bool:
    return re.search("NVRM|SXid|nvidia", line) is not None


def counted(watcher: Watcher) -> dict[int, float]:
    """Errors by code, of all GPUs."""
    found: dict[int, float] = {}
    for (name, labels), points in watcher.series.items():
        if name == xid.ERRORS.name:
            code = int(labels[2])
            found[code] = found.get(code, 0.0) + points[-1].value
    return found


def trial(name: str, watcher: Watcher, log: Callable[[], list[str]]) -> Iterator[str]:
    """One fault; lines that say what came of it."""
    fault = FAULTS[name]
    before = counted(watcher)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.hardware.xid", "--provoke", name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield f"== {name}: process {child.pid} {fault.what}: XID {fault.xid} is due"
    end = time.monotonic() + MOST
    while child.poll() is None and time.monotonic() < end:
        watcher.ticks(1)
    child.kill()
    yield f"CUDA: {child.communicate()[0].strip()} (status {child.returncode})"
    watcher.ticks(AFTER)
    more = {
        code: count - before.get(code, 0.0)
        for code, count in counted(watcher).items()
        if count != before.get(code, 0.0)
    }
    yield f"{'ok  ' if more == {fault.xid: 1.0} else 'OFF '} counted by the agent: {more or 'none'}"
    for line in log():
        yield f"kernel: {line}"


def watch(names: Sequence[str]) -> None:
    """Provoke the faults one after the other, with an agent beside them."""
    journal, events = JournalLines(), EventRecorder()
    logging.getLogger(xid.__name__).addHandler(journal)
    log = kernel_lines()
    watcher = Watcher()
    watcher.ticks(3)
    for listener in (watcher.agent.watch, XidWatch(watcher.agent.gpus.events, events)):
        listener.start()
    watcher.ticks(2)
    for name in names:
        start = time.monotonic()
        for line in trial(name, watcher, log):
            print(line, flush=True)
        for what, shown in (("NVML event", events.heard), ("agent's journal", journal.lines)):
            for at, code, text in shown:
                if at >= start:
                    print(f"{what}: {at - start:.2f} s: XID {code}: {text}", flush=True)


def _end_after(seconds: float) -> None:
    """End this process then, whatever hangs."""
    timer = threading.Timer(seconds, os._exit, (124,))
    timer.daemon = True
    timer.start()


def main(words: list[str]) -> None:
    """The trials, or (with --provoke) one fault in this process."""
    if words[:1] == ["--provoke"]:
        _end_after(MOST)
        print(provoke(FAULTS[words[1]]), flush=True)
        os._exit(0)  # a broken context is not taken down in order
    _end_after(LIMIT)
    watch(words or list(FAULTS))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
