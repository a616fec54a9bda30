"""The kernel's log: real wordings of several drivers, shown once, whatever comes between them."""

import logging
import os
import time
import tomllib
from pathlib import Path
from threading import Event

import pytest

from agent.faults.findings import Search
from agent.hardware import kernel_log as hardware_log
from agent.hardware.kernel_log import (
    KernelXid,
    LogLine,
    RealKernelLog,
    SwitchError,
    parsed,
    record,
)
from agent.model import Absent, GpuIdentity
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import ReadOutput
from agent.sources import kernel_log, xid
from agent.threads import in_time
from tests.support.machine_controls import lose
from tests.support.machines import AgentBench, simulated

CASES = tomllib.loads(Path(__file__).with_name("kernel_log.toml").read_text("utf-8"))

SLOW = f"(PCI:0000:3b:00): 79, {'x' * 1_000_000}"
"""Takes minutes with a pattern that begins again at each letter."""

LINES = {**CASES["lines"], SLOW: 79}


@pytest.mark.parametrize("text", LINES, ids=lambda text: text[:40])
def test_xids_are_read_in_the_words_of_their_drivers(text: str) -> None:
    found = parsed(f"NVRM: Xid {text}")
    assert isinstance(found, KernelXid)
    assert found.code == LINES[text]


def test_nvlink_5_is_read_with_its_unit() -> None:
    words = "0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000"
    text = f"NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 ({words})"
    found = parsed(text)
    assert isinstance(found, KernelXid)
    assert (found.unit, found.fatal, found.first >> 20 & 0x3F) == ("NETIR_LINK_EVT", True, 37)


def test_switches_are_read() -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, "
    shown = parsed(head + "Non-fatal, Link 44 Minion Link DLREQ interrupt")
    assert shown == SwitchError("nvidia-nvswitch3", 22013, False)
    assert parsed(head + "Data {0x0000002b, 0x0000002b}") is None
    assert parsed(head + "Severity 0 Engine instance 44 Sub-engine instance 00") is None


XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
FATAL = "nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
FORGERIES = (
    f"train[4242]: segfault at 0 ip 0000 sp 00007f error 6 in {XID_79}[400000+1000]",
    f"traps: train[4242] general protection fault ip:40 sp:7f error:0 in {XID_79}[400000+1000]",
    f"train[4242]: segfault at 0 ip 0000 sp 00007f error 6 in {FATAL}[400000+1000]",
    "NVRM: Xid (PCI:[4242]: segfault at 0 ip 0 sp 0 error 6 in 0000:3b:00): 79, pid=1[40+1]",
    "NVRM: Xid (0[4242]: segfault at 0 ip 0 sp 0 error 6 in x): 79, GPU has fallen[40+1]",
    "NVRM: GPU 0000:[4242]: segfault at 0 in 3b:00.0: GPU has fallen off the bus.",
    f"audit: type=1701 comm={XID_79}",
)
"""A program is logged with the first 15 letters of its name, and a file that it mapped with all."""


def test_forged_lines_count_as_nothing() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(2)
    for text in FORGERIES:
        assert parsed(text) is None
        bench.machine.kernel_log.write(text)
    bench.run(2)
    assert not any(bench.samples.all(xid.XID_ERRORS).values())
    assert bench.samples.all(kernel_log.SWITCH_ERRORS) == {}


def claimed(code: int, bus: str = "1b:00") -> str:
    return f"NVRM: Xid (PCI:0000:{bus}): {code}, pid='<unknown>', name=<unknown>, words of it"


def test_what_a_program_writes_to_the_kernels_log_is_not_the_kernels() -> None:
    log = RealKernelLog()
    try:
        log.lines()
        device = os.open("/dev/kmsg", os.O_WRONLY)
    except (Absent, OSError) as error:
        pytest.skip(f"/dev/kmsg: {error}")
    for priority in ("", "<0>", "<3>", "<11>"):
        os.write(device, f"{priority}{claimed(79)} by test".encode())
    os.close(device)
    assert not [line for line in log.lines() if line.text.endswith("by test")]


@pytest.mark.parametrize(
    ("uuid", "hangs", "counted_as"),
    [("GPU-b", False, {("1", "GPU-b", "79"): 1.0}), ("", False, {}), ("GPU-b", True, {})],
    ids=["listed", "never started", "the driver's files hang"],
)
@pytest.mark.parametrize("text", CASES["losses"])  # at work, and when the driver was loaded
def test_a_gpu_that_was_lost_before_it_was_met_is_the_one_at_its_address(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    uuid: str,
    counted_as: dict[tuple[str, ...], float],
    *,
    hangs: bool,
) -> None:
    """The driver reports it with an XID beside, or without; it is one error."""
    there = GpuIdentity(0, "GPU-a", "V100", "volta", "0000:07:00.0", "", "")
    listed = {"0000:07:00.0": "GPU-a"} | ({"0000:52:00.0": uuid} if uuid else {})
    never = Event()
    monkeypatch.setattr(xid, "in_time", lambda work: in_time(work, 0.05 if hangs else 5.0))
    inventory = GpuInventory(gpus=(there,))
    counts = xid.XidCounts(lambda: inventory, lambda: listed if not hangs or never.wait() else {})
    for line in (text, "NVRM: Xid (PCI:0000:52:00): 79, pid='<unknown>', GPU has fallen off."):
        found = parsed(line)
        assert isinstance(found, KernelXid)
        counts.note_line(found)
    out = ReadOutput(5.0)
    counts.read(out)
    never.set()
    found_now = {s.labels: s.value for s in out.samples if s.metric is xid.XID_ERRORS and s.value}
    assert found_now == counted_as


OTHERS = CASES["others"]
"""Other messages of the driver."""


@pytest.mark.parametrize("text", OTHERS)
def test_what_comes_besides_reports_no_error(text: str) -> None:
    assert parsed(text) is None


def test_records_of_programs_are_not_the_kernels() -> None:
    assert record(b"3,100,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79\n SUBSYSTEM=pci\n") == LogLine(
        5.1409, "NVRM: Xid (PCI:0000:3b:00): 79"
    )
    assert record(b"11,100,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79") is None
    assert record(b"garbage") is None


def test_a_file_in_place_of_the_device_is_read_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"3,7,1000000,-;old")
    monkeypatch.setattr(hardware_log, "_descriptor", lambda: os.open(path, os.O_RDONLY))
    assert RealKernelLog().lines() == []
    since = RealKernelLog(history=time.monotonic())
    assert [line.text for line in since.lines()] == ["old"]


def test_an_agent_reads_what_came_while_none_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, kept = tmp_path / "kmsg", tmp_path / "kernel-log"
    monkeypatch.setattr(hardware_log, "_descriptor", lambda: os.open(device, os.O_RDONLY))

    def started() -> list[str]:
        return [line.text for line in RealKernelLog(kept=kept).lines()]

    device.write_bytes(b"3,7,1000000,-;before the first agent")
    assert started() == []
    later = round((time.monotonic() + 5) * 1e6)
    device.write_bytes(b"3,8,%d,-;between two" % later)
    assert started() == ["between two"]
    assert started() == []
    kept.write_text("another-boot 1.0")
    assert started() == []


def counted(bench: AgentBench, code: int) -> float:
    counts = bench.samples.all(xid.XID_ERRORS)
    return sum(count for (*_, which), count in counts.items() if which == str(code))


@pytest.mark.parametrize("driver", ["", "@450", "@470"])
def test_an_event_that_comes_both_ways_counts_once(driver: str) -> None:
    bench = simulated(f"dgx-a100{driver}:training", gpus=2).run(3)
    for _ in range(3):
        bench.machine.driver.xid(0, 31)
        bench.run(2)
    assert counted(bench, 31) == 3


def test_what_only_one_way_shows_counts_too(caplog: pytest.LogCaptureFixture) -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(3)
    lose(bench.machine, 1)
    bench.run(3)
    assert counted(bench, 79) == 1, "an XID and a line besides it, and no event of NVML"
    bench.machine.kernel_log.lines()
    bench.machine.driver.report(0, 48)
    with caplog.at_level(logging.ERROR):
        bench.run(3)
    assert counted(bench, 48) == 1, "an event of NVML that the log did not keep"
    assert [r for r in caplog.records if "xid=48 times=1 " in r.getMessage()]


@pytest.mark.parametrize("code", [0, (1 << 32) - 1, (1 << 64) - 1])
def test_a_code_that_cannot_be_is_no_error(code: int) -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(3)
    bench.machine.driver.report(0, code)
    bench.machine.kernel_log.write(claimed(0))
    bench.run(2)
    assert not any(bench.samples.all(xid.XID_ERRORS).values())
    assert not any(bench.samples.all(xid.LAST).values())
    assert not [f for f in Search().findings(bench.latest) if f.kind == "xid"]


def test_a_storm_is_counted_right_and_reported_in_a_line_a_burst(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = simulated("dgx-h100", gpus=2).run(5)
    with caplog.at_level(logging.ERROR):
        for _ in range(25):
            for number in range(300):
                bench.machine.kernel_log.write(OTHERS[number % len(OTHERS)])
                bench.machine.xid(31)
            bench.run(1)
    shown = [r.getMessage() for r in caplog.records if "event=xid " in r.getMessage()]
    assert counted(bench, 31) == 300 * 25
    assert len(shown) == 1
    assert "times=300 " in shown[0]


SM, ESR = "SM Warp Exception on (GPC {}, TPC 0): Misaligned Address", "Exception: ESR 0x50c7b0"
EXCEPTIONS = {
    "each line names the process": (
        [f"pid=7, name=train, Graphics {line}" for n in range(40) for line in (SM.format(n), ESR)],
        "pid=7, name=train, Graphics Exception: channel 0x00000008, Class 0000c7c0",
        "pid=8, name=train, Graphics SM Warp Exception",
    ),
    "the last line alone does, as driver 580 reports it on an H200": (
        [f"Graphics {SM.format(1)}", f"Graphics {ESR}"],
        "pid=598, name=python3, Graphics Exception: channel 0x0000000a, Class 0000cbc0",
        "",
    ),
}


@pytest.mark.parametrize("case", EXCEPTIONS)
def test_an_exception_of_many_lines_counts_once(case: str) -> None:
    bench, (lines, last, another) = simulated("dgx-h100:training", gpus=2).run(3), EXCEPTIONS[case]
    head = "NVRM: Xid (PCI:0000:1b:00): 13, "
    for line in lines:
        bench.machine.kernel_log.write(head + line)
    bench.run(1)
    bench.machine.kernel_log.write(head + last)
    bench.run(5)
    assert counted(bench, 13) == 1
    bench.machine.kernel_log.write(head + (another or lines[0]))
    bench.run(2)
    assert counted(bench, 13) == 2, "another process, or a later one"


def test_switch_errors_are_counted_by_severity() -> None:
    bench = simulated("dgx-h100:switch-fatal+switch-noise", gpus=2).run(10)
    found = {key[1:]: v for key, v in bench.samples.all(kernel_log.SWITCH_ERRORS).items()}
    assert found == {("fatal", "20034"): 1.0, ("non_fatal", "22013"): 1.0}


def test_a_line_that_came_before_its_gpu_was_met_is_counted() -> None:
    bench = simulated("dgx-h100:training", gpus=2)
    bench.machine.driver.log_xid(0, 94)
    bench.run(2)
    assert counted(bench, 94) == 1


@pytest.mark.parametrize("injected", [0, 1])
def test_an_injected_error_is_none(injected: int) -> None:
    text = (
        "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT Fatal XC0 "
        f"i{injected} Link 00 (0x004505c6 0x00000000 0x00000000 0x00000000)"
    )
    assert (parsed(text) is None) is bool(injected)
