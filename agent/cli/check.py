"""`dgx-telemetry check`: the system, which metrics answer, and why others are absent."""

import argparse
import io
import json
import platform
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent import __version__
from agent.cli.assembly import Agent, Hardware
from agent.cli.doctor import BROKEN, Answer, in_child
from agent.cli.once import machine
from agent.cli.options import first_snapshot_now, hardware_of, settings_of, settled
from agent.cli.table import USUAL, prose, table, terminal_width
from agent.clock import SystemClock
from agent.config.atomic_file import atomic_write, check_target
from agent.diagnosis.advice import SUMMARIES, of_each
from agent.diagnosis.disclosure import without_names
from agent.errors import printable
from agent.faults.findings import action, by_kind, findings
from agent.faults.monitoring import ABSENT
from agent.faults.thresholds import AlertThresholds
from agent.hardware.kernel_log import LogLine, RealKernelLog
from agent.jobs.job import percent
from agent.limits.paths import LIMIT, LIMIT_INFO
from agent.model import LOST_STATES, Absent, Finding, Pair, Reason, Severity, Snapshot
from agent.polling.reads import OFF
from agent.ranges import device_ranges, ranges
from agent.replay.masks import HOST_NAME_FILES, Masks
from agent.series import SampleStore
from agent.sources import system
from agent.sources.agent_health import SOURCE_UP
from agent.sources.gpu import INFO
from agent.specs.sheets import SystemSpec
from exporters.live.page_state import identity
from exporters.messages import finding_notifies, finding_text, rate
from exporters.snapshot_json import document

MARKS = {"[P]": "[P] is a public document", "[U]": "[U] is not verified"}
STATUS = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 3}
"""Exit status by the worst finding; 2 stays bad usage."""

HISTORY = 1800.0
"""Seconds of the kernel's log that are looked through, as `DgxGpuXid` does."""

WASTED = 0.10
"""Share of the last seconds from which what GPUs lose without a fault is worth a look."""

DAY = 86_400.0
TO_SAY = 2.5
"""Seconds before the time is over by which what hangs is left out."""

TO_WRITE = 1.0
"""Seconds more for the bundle."""

SHORTEST = 2.0

DRIVERS = re.compile(
    r"NVRM: |nvidia[\w-]*[: ]|mlx5_core |nvme\d* |nvme nvme|md[\d:/]|EXT4-fs error|pcieport |"
    r"\{\d+\}\[Hardware Error\]",
    re.IGNORECASE,
)
"""Prefixes of the drivers' log lines; a program's lines begin with its name."""

NAMED = re.compile(r"((?:name|comm)[=: ]+).*")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; the exit status is that of the worst. This process touches no file that
    could hang: a child does."""
    width = terminal_width()
    answer = in_child(lambda: look_at(arguments, width), arguments.timeout)
    if answer is None or BROKEN in answer:
        answer = without_answer((answer or {}).get(BROKEN, ""), arguments.timeout)
    if arguments.bundle:
        texts = answer["texts"]
        written = in_child(lambda: {"listed": write(arguments.bundle, texts)}, TO_WRITE) or {}
        listed = written.get("listed", "it could not be written in time")
        print(f"{arguments.bundle}: {listed}", file=sys.stderr)
    print(json.dumps(answer["document"], indent=2) if arguments.json else answer["text"])
    return int(answer["document"]["status"])


def without_answer(why: str, seconds: float) -> Answer:
    """The answer where the child broke, and `why`; or where even it did not answer in time."""
    if why:  # a fault of this program says nothing of the machine: no node is drained for it
        severity, kind, alert = Severity.WARNING, "look_failed", ""
        sentence = f"this check failed: {why}"
        do = "Report this with the sentence above; the node itself may be well."
    else:
        severity, kind, alert = Severity.CRITICAL, "no_answer", "DgxAgentBlind"
        sentence = (
            f"this machine did not answer within {seconds:g} s: its driver or its kernel hangs"
        )
        do = "Drain the node, see dmesg, and reboot it."
    finding = {"severity": severity.value, "kind": kind, "sentence": sentence, "alert": alert}
    text = printable(f"{severity}: {sentence}\n  {do}{f' ({alert})' * bool(alert)}")
    document = {"status": STATUS[severity], "findings": [finding | {"action": do}]}
    texts = {"check.txt": text, "check.json": json.dumps(document, indent=2)}
    return {"document": document, "text": text, "texts": texts}


def look_at(arguments: argparse.Namespace, width: int) -> Answer:
    """One look: as text, as values, and what goes into a bundle."""
    settings = settings_of(arguments)
    if arguments.bundle:
        check_target(arguments.bundle)
    clock = SystemClock()
    hardware = settled(hardware_of(arguments, clock, history=HISTORY), clock)
    agent = Agent(settings, hardware, clock)
    longest = max(SHORTEST, arguments.timeout - TO_SAY)
    last = first_snapshot_now(agent, longest)
    spec = agent.recognise(agent.gpus.inventory)
    wrong = tuple(findings(last, spec, thresholds=agent.settings[AlertThresholds]))
    last = replace(last, findings=wrong)
    lines = [*page(last, spec, width)]
    text = printable("\n".join(lines))
    worst = max((STATUS[f.severity] for f in wrong), default=0)
    found = {"status": worst, **document(last, last.at)}
    texts = bundled(hardware, last, text, worst) if arguments.bundle else {}
    return {"document": found, "text": text, "texts": texts}


def bundled(hardware: Hardware, last: Snapshot, text: str, status: int) -> dict[str, str]:
    """The texts of the bundle, masked as tapes are, which name no user whatever the settings
    say."""
    from exporters.prometheus import Exposition  # its library reads /proc when it is imported

    last = without_names(last)
    exposition = Exposition(lambda: last, SystemClock().monotonic, process=False)
    own = RealKernelLog(DAY) if not hardware.simulated else hardware.host.kernel_log
    try:
        lines = kernel_lines(own.lines())
    except Absent as absent:
        lines = f"{absent}\n"
    texts = {
        "check.txt": f"{text}\n",
        "check.json": json.dumps({"status": status, **document(last, last.at)}, indent=2),
        "metrics.prom": exposition.render("text/plain;version=0.0.4")[0].decode(),
        "kernel.log": lines,
        "versions.txt": f"dgx-telemetry {__version__}\nPython {sys.version}\n"
        f"{platform.platform()}\n{platform.freedesktop_os_release().get('PRETTY_NAME', '')}\n",
    }
    masks = Masks()
    for path in sorted(HOST_NAME_FILES):
        with suppress(OSError):
            masks.host_name(hardware.host.files.read(path))
    for info in SampleStore.of(last).labelled(INFO):
        if info["serial"]:
            masks.serial(info["serial"])
    return {name: masks.text(text) for name, text in texts.items()}


def kernel_lines(lines: Iterable[LogLine]) -> str:
    """Those of drivers, up to where they name a program."""
    found = ((one.at, NAMED.sub(r"\1...", one.text)) for one in lines if DRIVERS.match(one.text))
    return "".join(f"[{at:12.6f}] {text}\n" for at, text in found)


def write(path: Path, texts: Mapping[str, str]) -> str:
    """Write the archive, readable by its owner alone; the names in it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f"dgx-telemetry-bundle/{name}")
            entry.size, entry.mode = len(text.encode()), 0o600
            archive.addfile(entry, io.BytesIO(text.encode()))
    atomic_write(path, packed.getvalue())
    return ", ".join(texts)


def page(snapshot: Snapshot, spec: SystemSpec | None, width: int = USUAL) -> Iterator[str]:
    """The findings in words; `spec` is the sheet of this system, where there is one."""
    samples = SampleStore.of(snapshot)
    yield machine(identity(samples))
    for info in samples.labelled(system.INFO):
        recognised = f"{info['title']} ({info['system']})" if info["system"] else "not recognised"
        yield f"  system: {recognised}"
        yield f"  product name: {info['product'] or 'the firmware gives none'}"
    yield ""
    yield "Sources:"
    states = sorted((source, up) for (source,), up in samples.all(SOURCE_UP).items())
    yield from prose("up: " + " ".join(s for s, up in states if up), width, hanging="    ")
    yield from (f"  down: {source}" for source, up in states if not up)
    off = sorted({key.source for key in snapshot.readings if key.part == OFF})
    yield from prose("off: " + " ".join(off), width, hanging="     ") if off else ()
    yield ""
    yield "Limits:"
    header = ("path", "device", "direction", "limit", "origin", "source")
    limits = list(_limits(samples))
    yield from table(header, limits, width=width)
    marks = [words for mark, words in MARKS.items() if any(mark in row[-1] for row in limits)]
    yield from prose("; ".join(marks), width) if marks else ()
    yield ""
    yield "Absent values:"
    yield from _absent(snapshot, width)
    yield ""
    wrong = findings(snapshot, spec) if snapshot.findings is None else snapshot.findings
    yield from doctor(list(wrong), waste(snapshot), width)


def doctor(wrong: Sequence[Finding], wasted: str, width: int) -> Iterator[str]:
    """Each finding with its severity, what to do, and its alert; what GPUs lose without a fault."""
    sound = all(finding.severity is Severity.INFO for finding in wrong)
    first = f"No hardware fault found. {wasted}" if sound else "Wrong:"
    yield from prose(first, width, indent="")
    for finding in wrong:
        alert = by_kind()[finding.kind].alert
        calls = finding_notifies(finding)
        page = f"; more: RUNBOOK.md#{alert}" * bool(alert)
        sentence = f"{finding.severity.value}: {finding_text(finding)}"
        yield from prose(sentence, width, hanging="  ")
        yield from prose(f"{action(finding)} ({calls}{page})", width, indent="    ")
    if not sound:
        yield from prose(wasted, width, indent="")


def waste(snapshot: Snapshot) -> str:
    """Return the largest loss of GPU time; empty if it is small."""
    lost: defaultdict[Pair, dict[int, float]] = defaultdict(dict)
    for gpu, verdict in snapshot.verdicts.items():
        for pair, share in verdict.shares.items():
            if pair[0] in LOST_STATES and share >= WASTED:
                lost[pair][gpu.index] = share
    if not lost:
        return ""
    pair, shares = max(lost.items(), key=lambda item: sum(item[1].values()))
    several = "s" * (len(shares) > 1)
    part = sum(shares.values()) / len(shares)
    of_time = f"{percent(part)} of the time"
    words = of_each(SUMMARIES[pair]) if several else SUMMARIES[pair]
    return f"GPU{several} {ranges(shares)} {words} {of_time}: see `once`."


def _limits(samples: SampleStore) -> Iterator[tuple[str, ...]]:
    """Every limit; devices and directions with the same one share a row, and single links are left
    to metrics."""
    ways: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for labels in samples.labelled(LIMIT_INFO):
        key = (labels["path"], labels["device"], labels["gpu"], labels["uuid"], labels["direction"])
        if labels["path"] != "nvlink" or ":" not in labels["device"]:
            speed = rate(samples.value(LIMIT, *key), None, labels["path"])
            row = labels["path"], speed, labels["origin"], labels["source"], labels["device"]
            ways[row].add(labels["direction"])
    devices: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for (path, speed, origin, source, device), directions in ways.items():
        way = "both" if len(directions) > 1 else min(directions)
        devices[path, way, speed, origin, source].add(device)
    for (path, way, speed, origin, source), names in sorted(devices.items()):
        yield path, device_ranges(names), way, speed, origin, source


def _absent(snapshot: Snapshot, width: int) -> Iterator[str]:
    """Return the absent values, grouped by reason: device, reason, then the names."""
    metrics: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    devices: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    for absence in snapshot.absences(snapshot.at):
        at = dict(zip(absence.metric.labels, absence.labels, strict=False))
        device = f"gpu{at['gpu']}" if at.get("gpu") else at.get("device", "")
        devices[absence.reason, absence.detail, absence.metric.name].add(device)
    for (reason, detail, metric), names in devices.items():
        metrics[reason, detail, device_ranges(names)].add(metric)
    for (reason, detail, where), names in sorted(metrics.items()):
        title = f"{ABSENT[reason]}{f' ({where})' if where else ''}: {detail}"
        yield from prose(title, width, hanging="  ")
        yield from prose(" ".join(sorted(names)), width, indent="      ")
