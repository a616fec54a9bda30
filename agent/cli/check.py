"""The `dgx-telemetry check` command. It reports the system, its faults, and absent metrics."""

import argparse
import gzip
import io
import json
import platform
import re
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent import __version__
from agent.cli.assembly import Hardware
from agent.cli.doctor import BROKEN, Answer, in_child
from agent.cli.once import StatusView, verdict
from agent.cli.options import first_look, settings_of
from agent.cli.running_agent import ONE_LOOK, asked
from agent.cli.table import USUAL_COLUMNS, prose, table, terminal_width
from agent.clock import SystemClock
from agent.config.atomic_file import atomic_write, check_target
from agent.diagnosis.disclosure import without_names
from agent.errors import BadInput, printable
from agent.faults.findings import USUAL, by_kind
from agent.hardware.kernel_log import LogLine, RealKernelLog, nameless
from agent.hardware.nvml import real_library
from agent.model import Absent, Snapshot
from agent.replay.masks import HOST_NAME_FILES, Masks
from agent.series import Derived, SampleStore
from agent.sources.gpu import INFO
from agent.status.links import limit_rows
from agent.status.model import Level, Status
from exporters.documents import document

STATUS = {Level.GOOD: 0, Level.INFO: 0, Level.WARNING: 1, Level.CRITICAL: 3}
"""Exit status by level. It is never 2, the status of usage errors."""

FOLDER = "dgx-telemetry-bundle/"
DAY = 86_400.0


def run(arguments: argparse.Namespace) -> int:
    """Print the report, and return the exit status for its most severe finding. The check runs in a
    child process, because opening a file may block."""
    width = terminal_width()
    longest = DAY if arguments.replay else arguments.timeout  # a recording cannot hang
    answer = in_child(lambda: look_at(arguments, width), longest)
    if answer is None or BROKEN in answer:
        answer = without_answer((answer or {}).get(BROKEN, ""), arguments.timeout)
    with suppress(BrokenPipeError):  # the reader has gone, but the status counts
        if arguments.bundle:
            texts = answer["texts"]
            written = in_child(lambda: {"listed": write(arguments.bundle, texts)}, 1.0) or {}
            listed = written.get("listed", "it could not be written in time")
            print(f"{arguments.bundle}: {listed}", file=sys.stderr)
        print(json.dumps(answer["document"], indent=2) if arguments.json else answer["text"])
    return int(answer["document"]["status"])


def without_answer(why: str, seconds: float) -> Answer:
    """Return the result of a check that failed with the error `why`, or took over `seconds`."""
    if why:  # a bug in this program is not a fault of the node and must not drain it
        severity, kind, alert = Level.WARNING, "look_failed", ""
        sentence = f"this check failed: {why}"
        do = "Report this with the sentence above; the node itself may be well."
    else:
        fault = by_kind(USUAL)["driver_hangs"]
        severity, kind, alert = Level(fault.severity), "no_answer", fault.alert
        hangs = "its driver or its kernel hangs"
        sentence = f"this machine did not respond within {seconds:g} s: {hangs}"
        do = str(fault.do)
    finding = {"severity": severity.value, "kind": kind, "sentence": sentence, "alert": alert}
    text = printable(f"{severity}: {sentence}\n  {do}{f' ({alert})' if alert else ''}")
    document = {"status": STATUS[severity], "findings": [finding | {"action": do}]}
    texts = {"check.txt": text, "check.json": json.dumps(document, indent=2)}
    return {"document": document, "text": text, "texts": texts}


def look_at(arguments: argparse.Namespace, width: int) -> Answer:
    """Check the machine of the running agent or, without an agent, this machine. Return the report
    as text and as a JSON document, and the contents of the bundle files."""
    settings = settings_of(arguments)
    path = arguments.bundle
    if path and (found := check_target(path)) and found.st_size and not is_bundle(path):
        raise BadInput(f"{path}: exists, expected a free name or an earlier bundle")
    agent, note = (None, "") if path else asked(arguments, settings)
    if agent:
        look = StatusView(agent.first, runbook=f"{agent.place}/runbook.html")
        text = printable("\n".join(page(look, width)))
        return {"document": values(look.status, agent.snapshot()), "text": text, "texts": {}}
    longest = max(2.0, arguments.timeout - 4.5)  # s; reads that hang must not use up the timeout
    # The kernel log is read for as long as the window of DgxGpuXid.
    hardware, last, status = first_look(arguments, settings, 1800.0, longest)
    said = note if arguments.replay else f"{note} {ONE_LOOK}".lstrip()
    text = printable("\n".join(page(StatusView(status), width, said)))
    texts = bundled(hardware, last, status, text) if path else {}
    return {"document": values(status, document(last, last.at)), "text": text, "texts": texts}


def values(status: Status, snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON document of the exit status, the values in the snapshot, and the findings."""
    found = [
        {
            "kind": one.kind,
            "severity": one.level,
            "sentence": one.text,
            "action": one.do or "",
            "alert": one.alert.name if one.alert else "",
        }
        for one in status.findings
    ]
    levels = [one.level for one in status.findings]
    # Every GPU gives its used memory or its state, unless the driver does not respond.
    known = any(gpu.state or gpu.figures.memory_used_bytes is not None for gpu in status.gpus)
    if status.level is Level.CRITICAL or (status.gpus and not known):
        levels.append(Level.CRITICAL)
    return {"status": max((STATUS[n] for n in levels), default=0), **snapshot, "findings": found}


def bundled(hardware: Hardware, last: Snapshot, status: Status, text: str) -> dict[str, str]:
    """Return the contents of the bundle files, by name. Host names and serial numbers are masked,
    as in recordings. User names are omitted, even if the settings enable them."""
    from exporters.prometheus import Exposition  # importing prometheus_client reads /proc

    last = without_names(last, Derived())
    exposition = Exposition(lambda: last, SystemClock().monotonic, process=False)
    host, real = hardware.host, hardware.library is real_library
    own = RealKernelLog(DAY) if real else host.kernel_log  # this host has not that of a recording
    try:
        lines = kernel_lines(own.all())
    except Absent as absent:
        lines = f"{absent}\n"
    texts = {
        "check.txt": f"{text}\n",
        "check.json": json.dumps(values(status, document(last, last.at)), indent=2),
        "metrics.prom": exposition.page("text/plain;version=0.0.4").plain.decode(),
        "kernel.log": lines,
        "versions.txt": f"dgx-telemetry {__version__}\nPython {sys.version}\n"
        f"{platform.platform()}\n{platform.freedesktop_os_release().get('PRETTY_NAME', '')}\n",
    }
    masks = Masks()
    for path in sorted(HOST_NAME_FILES):
        with suppress(OSError):
            masks.host_name(host.files.read(path))
    for info in SampleStore.of(last).labelled(INFO):
        if info["serial"]:
            masks.serial(info["serial"])
    return {name: masks.text(text) for name, text in texts.items()}


def kernel_lines(lines: Iterable[LogLine]) -> str:
    """Return the drivers' kernel log lines. A line is cut before the name of a program."""
    drivers = (  # other lines may contain output of programs
        r"NVRM: |nvidia[\w-]*[: ]|mlx5_core |nvme\d* |nvme nvme|md[\d:/]|EXT4-fs error|pcieport |"
        r"\{\d+\}\[Hardware Error\]"
    )
    own = (line for line in lines if re.match(drivers, line.text, re.IGNORECASE))
    return "".join(f"[{line.at:12.6f}] {nameless(line.text)}\n" for line in own)


def is_bundle(path: Path) -> bool:
    """Return whether a file is an earlier bundle, which a new one may replace."""
    with suppress(OSError, EOFError, zlib.error), gzip.open(path) as file:
        return file.read(len(FOLDER)) == FOLDER.encode()
    return False


def write(path: Path, texts: Mapping[str, str]) -> str:
    """Write `texts` to an archive with mode 0600. Return its file names, separated by commas."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f"{FOLDER}{name}")
            entry.size, entry.mode = len(text.encode()), 0o600
            archive.addfile(entry, io.BytesIO(text.encode()))
    atomic_write(path, packed.getvalue())
    return ", ".join(texts)


def page(look: StatusView, width: int = USUAL_COLUMNS, note: str = "") -> Iterator[str]:
    """Yield the lines of the report on the system, sources, limits, absent values, and faults."""
    status = look.status
    machine = status.machine
    yield from prose(machine.text, width, indent="")
    if machine.gpus is not None:
        named = f"{machine.title} ({machine.system})" if machine.system else "not recognised"
        yield f"  system: {named}"
        yield f"  product name: {machine.product or 'the firmware gives none'}"
    yield ""
    yield "Sources:"
    for state in ("up", "down", "off"):
        if sources := " ".join(one.source for one in status.sources if one.state == state):
            yield from prose(f"{state}: {sources}", width, hanging="    ")
    yield ""
    yield "Limits:"
    header = ("path", "device", "direction", "limit", "origin", "source")
    yield from table(header, limit_rows(status.paths), width=width)
    yield from prose("[P] is a public document; [U] is not verified", width)
    yield ""
    yield "Absent values:"
    metrics: dict[str, list[str]] = {}
    for one in status.absences:
        metrics.setdefault(one.text, []).append(one.metric)
    for text, names in metrics.items():
        yield from prose(text, width, hanging="  ")
        yield from prose(" ".join(names), width, indent="      ")
    yield ""
    yield from verdict(look, width)
    if note:
        yield ""
        yield from prose(note, width, indent="")
