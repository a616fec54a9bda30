"""The doctor: severity, action and alert of each finding; an end whatever hangs; the bundle."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from agent.cli.assembly import Agent, recorded, simulated_hardware
from agent.cli.check import bundled, kernel_lines, look_at, page, values, write
from agent.cli.doctor import BROKEN, in_child
from agent.cli.parser import parser
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.faults.findings import USUAL, by_kind
from agent.faults.model import alert_names
from agent.faults.thresholds import AlertPatch, AlertPatches
from agent.hardware.kernel_log import KernelLog, LogLine
from tests.stack.running import run_to_end
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import laptop
from tests.support.statuses import shown, status_of


def check(*words: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-m", "agent", "check", "--timeout", "30", *words])


def test_every_kind_of_finding_has_a_remedy_and_its_alert_exists() -> None:
    assert {fault.alert for fault in by_kind(USUAL).values()} - {""} <= alert_names()
    steps = [fault.do for fault in by_kind(USUAL).values() if fault.do]
    assert all(step.endswith(".") for step in steps)
    assert not [step for step in steps if "`dgx-telemetry check`" in step], "it shows them itself"
    assert all(
        fault.sentence and (fault.do or (fault.finding and fault.finding.do))
        for fault in by_kind(USUAL).values()
    )


@pytest.mark.parametrize(
    ("machine", "status", "alert"),
    [
        ("k40:training", 0, None),
        ("dgx-station-v100:training+pages-pending", 1, "DgxGpuPagesPending"),
        ("dgx-station-v100:xid-62", 3, "DgxGpuXid"),
        ("dgx-station-v100:driver-hang", 3, "DgxAgentBlind"),
    ],
)
def test_the_status_shows_the_worst(machine: str, status: int, alert: str | None) -> None:
    end = check("--json", "--simulate", machine)
    found = json.loads(end.stdout)
    assert (end.returncode, found["status"]) == (status, status)
    first = (found["findings"] or [{"alert": None}])[0]
    assert first["alert"] == alert
    assert alert is None or (first["severity"] and first["sentence"] and first["action"])


def test_an_alert_that_does_not_fire_is_named_only_with_the_reason(tmp_path: Path) -> None:
    """That of values without a driver fires for late reads alone; another one is disabled."""
    missing = {one.kind: one.alert for one in status_of(laptop(tmp_path).run(3)).findings}
    assert missing["values_absent"] is None
    off = AlertPatches({"DgxGpuHot": AlertPatch(enabled=False)})
    (hot,) = shown("k40:gpu-hot", off).run(60).status.findings
    assert hot.alert is not None
    assert hot.alert.text.endswith("is disabled in the configuration")


def test_a_look_that_hangs_is_left_behind() -> None:
    def hang() -> dict[str, object]:
        threading.Event().wait()
        return {}

    assert in_child(hang, timeout=3.0) is None


def test_a_look_without_a_processor_says_nothing_of_the_driver() -> None:
    """A node whose processors are all in use is no node to drain."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})  # what is started here stays on it
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]

    def look() -> dict[str, object]:
        os.nice(19)
        while True:
            pass

    try:
        answer = in_child(look, 3.0)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        os.sched_setaffinity(0, usual)
    assert answer is not None
    assert "for a processor" in answer[BROKEN]


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\1\0{"])
def test_a_look_that_dies_is_reported(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its answer, and in the middle of it, as when the kernel ends it for its memory."""

    def die(pipe: Connection, _: bytes) -> None:
        os.write(pipe.fileno(), sent)
        os._exit(1)

    monkeypatch.setattr(Connection, "send_bytes", die)
    assert in_child(dict, timeout=1e6) == {BROKEN: "the look ended without a word"}


def test_a_wrong_input_of_the_look_is_reported() -> None:
    def look() -> dict[str, object]:
        raise BadInput("no such sheet")

    with pytest.raises(BadInput, match="no such sheet"):
        in_child(look, timeout=1e6)


def test_kernel_lines_of_drivers_alone_are_in_a_bundle() -> None:
    lines = [
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=alice secret, Ch 00000008",
        "alice_nvidia[77]: segfault at 0 ip 0 sp 0 error 4 in libnvidia-ml.so",
        "EXT4-fs error (device md0): ext4_lookup:1855: inode #12: comm alice: deleted",
        "mlx5_core 0000:18:00.0: Port module event",
    ]
    text = kernel_lines(LogLine(1.0, line) for line in lines)
    assert "alice" not in text
    assert [line.partition("] ")[2] for line in text.splitlines()] == [
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=...",
        "EXT4-fs error (device md0): ext4_lookup:1855: inode #12: comm ...",
        "mlx5_core 0000:18:00.0: Port module event",
    ]


def test_a_bundle_holds_what_it_says_and_names_no_one(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(Path(__file__).with_name("secrets.toml").read_text(encoding="utf-8"))
    bundle = tmp_path / "bundle.tar.gz"
    write(bundle, {"earlier": ""})
    words = ("--bundle", str(bundle), "--config", str(config))
    end = check(*words, "--simulate", "dgx-station-v100:training+xid-31")
    assert end.stderr.endswith("check.txt, check.json, metrics.prom, kernel.log, versions.txt\n")
    with tarfile.open(bundle) as archive:
        texts = {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    names = {"check.txt", "check.json", "metrics.prom", "kernel.log", "versions.txt"}
    assert set(texts) == names
    assert not re.search("hooks|secret|alice|example", "".join(texts.values()))
    assert "GPU-00000000-0000-0000-0000-000000000001" in texts["metrics.prom"]
    assert bundle.stat().st_mode & 0o077 == 0


def test_a_recording_is_judged_to_its_end(tmp_path: Path) -> None:
    """Its GPU is lost after ten seconds; of a part of it nothing is known."""
    clock, path = FrozenClock(), tmp_path / "lost.tape"
    hardware, recorder = recorded(simulated_hardware("dgx-station-v100:gpu-lost", clock), clock)
    agent = Agent(Settings(), hardware, clock, inline=True)
    asyncio.run(agent.poller.run(lambda: clock.monotonic() > 40.0))
    recorder.write(path)
    given = parser().parse_args(["check", "--replay", f"{path}", "--bundle", f"{tmp_path}/bundle"])
    found = look_at(given, 80)
    kinds = {one["kind"] for one in found["document"]["findings"]}
    assert (found["document"]["status"], {"gpu_lost", "xid"} - kinds) == (3, set())
    assert "/dev/kmsg" not in found["text"]
    assert re.search(r"NVRM: Xid \(PCI:.*\): 79, ", found["texts"]["kernel.log"])
    path.write_bytes(path.read_bytes()[:-9999])
    with pytest.raises(BadInput, match=r"lost\.tape is cut short after \d+ s of 4\d s, expected"):
        look_at(given, 80)


@pytest.mark.parametrize(
    ("hung", "status", "expected"),
    [((0, 1, 2), 3, {"driver_hangs"}), ((1,), 1, {"gpu_not_answering"}), ((), 0, set())],
)
def test_a_recording_of_calls_that_hang_is_one_of_calls_that_hang(
    tmp_path: Path, hung: tuple[int, ...], status: int, expected: set[str]
) -> None:
    """Whoever asks these GPUs has no answer from second 20 to the end of the recording, which is
    read at once: it takes a second, and no GPU hangs because this machine is slow."""
    clock, path = FrozenClock(), tmp_path / "hung.tape"
    machine = simulated_hardware("dgx-a100:training", clock)
    silent, over = threading.Semaphore(0), threading.Event()

    class Hanging:
        """The driver of that machine, whose calls hang once the first 20 seconds are over."""

        def __getattr__(self, name: str) -> Any:
            return getattr(machine.library(), name)

        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
            if clock.monotonic() > 20.0:
                silent.release()
                over.wait()
            return machine.library().nvmlDeviceGetHandleByIndex(index)

    hardware, recorder = recorded(replace(machine, library=Hanging), clock)
    agent = Agent(Settings(), hardware, clock, inline=True)
    asyncio.run(agent.poller.run(lambda: clock.monotonic() > 20.0))
    with ThreadPoolExecutor() as asking:
        for index in hung:
            asking.submit(recorder.nvml.nvmlDeviceGetHandleByIndex, index)
            silent.acquire()
        clock.advance(8.0)
        recorder.write(path)
        over.set()
    given = parser().parse_args(["check", "--replay", f"{path}"])
    found = look_at(given, 80)["document"]
    kinds = {one["kind"] for one in found["findings"] if one["severity"] != "info"}
    kinds.discard("values_absent")  # the recording has no power of the other GPUs meanwhile
    assert (found["status"], kinds) == (status, expected)


def test_a_bundle_of_a_recording_has_no_kernel_log_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.cli.check.RealKernelLog", None)
    machine = shown("k40:training").run(3)
    host = replace(machine.bench.hardware.host, kernel_log=KernelLog())  # as of a tape
    tape = replace(machine.bench.hardware, simulated=False, host=host)
    texts = bundled(tape, machine.bench.latest, machine.status, "")
    assert texts["kernel.log"] == "no kernel log here\n"


def test_what_waits_for_the_look_has_opened_nothing_that_could_hang() -> None:
    """psutil reads /proc when it is imported."""
    words = "import sys, agent.cli.check; print('psutil' in sys.modules)"
    assert run_to_end([sys.executable, "-c", words]).stdout == "False\n"


def test_limits_are_a_table_with_origin_and_source() -> None:
    lines = list(page(shown("dgx-1-v100:pcie-degraded").run(12).look, width=240))
    table = lines[lines.index("Limits:") + 1 : lines.index("Absent values:") - 1]
    assert table[0].split() == ["path", "device", "direction", "limit", "origin", "source"]
    rows = [re.sub(r"(\d) ([GM]b?B?/s)", r"\1\2", row).split(maxsplit=5) for row in table[1:]]
    found = {(path, device, way): rest for path, device, way, *rest in rows if path != "infiniband"}
    assert found["pcie", "gpu0", "both"][:2] == ["7.9GB/s", "hardware"]
    assert found["pcie", "gpu1-7", "both"][:2] == ["16GB/s", "spec"]
    assert "NVIDIA DGX-1" in found["disk", "md0", "read"][2]
    assert ("disk", "md0", "write") not in found


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-1-p100@580", "k40"])
def test_it_fits_eighty_columns(system: str) -> None:
    assert max(map(len, page(shown(system).run(12).look))) <= 80


def test_a_finding_shows_whom_its_alert_calls_and_where_to_read_on() -> None:
    machine = shown("dgx-h100:nvlink-down").run(8)
    said = " ".join(" ".join(page(machine.look)).split())
    assert re.search(
        r"GPU 0: 1 NVLink is down \(link 2\). .* reset all its GPUs together .* alert "
        r"DgxNvlinkDown \(critical: pages on-call immediately\) would fire in "
        r"2 min; more: RUNBOOK.md#dgx",
        said,
    )
    assert values(machine.status, {})["status"] == 3
    assert values(shown("dgx-h100:starved-disk").run(8).status, {})["status"] == 0
