"""Playback equals the recording: the same answers at the same times, and nothing that
identifies."""

import gzip
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.clock import SystemClock
from agent.model import Metric
from agent.replay.answers import UNTAPED, TapedBuffer, encode
from agent.replay.masks import Masks
from agent.replay.player import Tape, TapePlayer
from agent.replay.recorder import TapeRecorder
from agent.sources import activity, gpu, nvlink, pcie, process, system
from tests.support import taped_machine
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import AgentBench, taped
from tests.support.repository import TAPES
from tests.support.taped_machine import HOST, UUIDS, MachineQuestions, fake_host, machine, record


@pytest.mark.parametrize("step", [1.0, 0.2, 0.06])
def test_a_replay_answers_as_the_machine_did(tmp_path: Path, step: Any) -> None:
    path = tmp_path / "x.tape"
    taped = record(path, ticks=9, step=step)
    assert taped_machine.replay(path, ticks=9, step=step) == taped


def test_a_gpu_that_falls_off_the_bus_does_so_again(tmp_path: Path) -> None:
    path = tmp_path / "x.tape"
    taped = record(path, lose_at=4)
    played = taped_machine.replay(path)
    assert played == taped
    assert "NVMLError_GpuIsLost" not in played[3][1][1]
    assert set(filter(None, played[4][1][1])) == {"NVMLError_GpuIsLost", "mismatch"}


def test_the_recorder_changes_nothing_for_its_callers(tmp_path: Path) -> None:
    clock = FrozenClock()
    bare = MachineQuestions(machine(clock).nvml, fake_host(clock))
    bare_seen = [bare.all()]
    recorder = TapeRecorder(machine(clock).nvml, fake_host(clock), clock)
    assert [MachineQuestions(recorder.nvml, recorder.host).all()] == bare_seen
    assert taped_machine.ask_for_secrets(recorder)[0] == UUIDS[:2]
    assert recorder.host.files.read("/proc/sys/kernel/hostname") == f"{HOST}\n"
    assert recorder.nvml.NVML_CLOCK_SM == pynvml.NVML_CLOCK_SM
    assert recorder.nvml.NVMLError is pynvml.NVMLError
    with pytest.raises(AttributeError):
        recorder.nvml.nvmlDeviceGetNonsense  # noqa: B018


@pytest.mark.parametrize("name", ["pt_autograd_0", "py_xla_execute", "pt_data_worker"])
def test_names_that_decide_what_a_gpu_waits_for_are_taped(name: str) -> None:
    stat = f"7 ({name}) S 1 7 7 0"
    assert Masks().contents("/proc/7/task/7/stat", stat) == stat
    other = Masks().contents("/proc/7/task/7/stat", f"7 (secret_{name}) S 1 7 7 0")
    assert "secret" not in other


def test_what_identifies_the_machine_never_reaches_the_tape(good: Any) -> None:
    text = gzip.decompress(good.read_bytes()).decode()
    names = (HOST, taped_machine.SERVER, taped_machine.TOKEN, *taped_machine.SERIALS)
    for secret in (*names, *UUIDS, UUIDS[0][4:12], "10.9.8", "de:ad"):
        assert secret not in text
    player = TapePlayer(Tape(good), FrozenClock())
    uuids, serials, (mounts, motd), job = taped_machine.ask_for_secrets(player)
    numbers = [uuid.rpartition("-")[2] for uuid in uuids]
    assert uuids == [f"GPU-00000000-0000-0000-0000-{number}" for number in numbers]
    assert len({*numbers}) == 2
    assert serials == [f"{1:013d}", f"{2:013d}"]
    assert f"--gpu={uuids[1]}\0--sn={serials[0]}" in motd
    assert job == "job-host-001"
    assert "--host=host-001" in motd
    assert mounts == (
        "host-002:/x/data /data nfs4 rw,clientaddr=host-003,addr=host-004 0 0\n"
        "//host-002/share /smb cifs rw 0 0\n/dev/md1 /raid ext4 rw 0 0\n"
    )
    paths = ("/proc/sys/kernel/hostname", "/sys/class/net/eth0/address", "/proc/77/cmdline")
    for path in paths:
        with pytest.raises(FileNotFoundError):
            player.host.files.read(path)


def test_what_was_never_asked_is_not_there(good: Any) -> None:
    player = TapePlayer(Tape(good), FrozenClock())
    handle = player.nvml.nvmlDeviceGetHandleByIndex(0)
    for ask in (
        lambda: player.nvml.nvmlDeviceGetFanSpeed(handle),
        lambda: player.nvml.nvmlDeviceGetTemperature(handle, 9),
        lambda: player.nvml.nvmlDeviceGetHandleByIndex(7),
        lambda: player.nvml.nvmlDeviceInvented(handle),
    ):
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            ask()  # type: ignore[no-untyped-call]
    assert player.nvml.nvmlDeviceGetFieldValues(handle, [4242])[0].nvmlReturn == 3
    with pytest.raises(FileNotFoundError):
        player.host.files.read("/etc/passwd")
    with pytest.raises(FileNotFoundError):
        player.host.psutil.disk_io_counters(perdisk=False)
    with pytest.raises(AttributeError):
        player.nvml.NVML_NONSENSE  # noqa: B018


def test_fields_may_be_asked_in_any_company(good: Any) -> None:
    clock = FrozenClock()
    player = TapePlayer(Tape(good), clock)
    handle = player.nvml.nvmlDeviceGetHandleByIndex(1)
    clock.advance(1)
    asked = [(138, taped_machine.TOTAL), 82, 193]
    counter, memory, refused = player.nvml.nvmlDeviceGetFieldValues(handle, asked)
    assert counter.value.ullVal > 10_000_000
    assert counter.timestamp == int(clock.time() * 1e6)
    assert memory.valueType == 1
    assert 20 < memory.value.uiVal < 110
    assert refused.nvmlReturn == 3


def test_a_field_that_was_asked_twice_in_a_call_has_both_answers_and_their_distance(
    tmp_path: Path,
) -> None:
    clock = FrozenClock()
    recorder = TapeRecorder(machine(clock).nvml, fake_host(clock), clock)
    recorder.nvml.nvmlInit()
    clock.advance(1)
    device = recorder.nvml.nvmlDeviceGetHandleByIndex(0)
    before, after = recorder.nvml.nvmlDeviceGetFieldValues(device, [198, 198])
    recorder.write(tmp_path / "x.tape")
    player = TapePlayer(Tape(tmp_path / "x.tape"), FrozenClock())
    device = player.nvml.nvmlDeviceGetHandleByIndex(0)
    played, again = player.nvml.nvmlDeviceGetFieldValues(device, [198, 198])
    assert again.value.ullVal - played.value.ullVal == after.value.ullVal - before.value.ullVal > 0
    assert again.timestamp - played.timestamp == after.timestamp - before.timestamp == 150


def test_gpm_wants_two_samples_of_one_gpu(good: Any) -> None:
    player = TapePlayer(Tape(good), FrozenClock())
    request = player.nvml.c_nvmlGpmMetricsGet_t()
    samples = [player.nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    request.sample1, request.sample2 = samples
    for index, sample in enumerate(samples):
        player.nvml.nvmlGpmSampleGet(player.nvml.nvmlDeviceGetHandleByIndex(index), sample)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        player.nvml.nvmlGpmMetricsGet(request)


def test_header_and_end(good: Any) -> None:
    clock = FrozenClock()
    tape = Tape(good)
    assert tape.seconds == 4.0
    assert taped_machine.lines_of(good)[0]["recorded_at"] == 1_700_000_000.0
    player = TapePlayer(tape, clock)
    clock.advance(100)
    assert not player.finished
    last = MachineQuestions(player.nvml, player.host)
    clock.advance(2.9)
    last.all()
    assert not player.finished
    clock.advance(0.1)  # the last tick of the recording
    at_end = last.nvml.nvmlDeviceGetPowerUsage(last.handles[0])
    clock.advance(9)
    assert last.nvml.nvmlDeviceGetPowerUsage(last.handles[0]) == at_end
    assert player.finished


def test_an_answer_that_does_not_change_is_taped_once(good: Any) -> None:
    text = gzip.decompress(good.read_bytes()).decode()
    assert text.count('"nvmlDeviceGetName(0)"') == 1
    assert text.count('"0,190,0"') == 1
    assert text.count('"nvmlDeviceGetPowerUsage(0)"') == 4


def test_a_question_first_asked_later_answers_before(tmp_path: Path) -> None:
    clock = FrozenClock()
    recorder = TapeRecorder(machine(clock).nvml, fake_host(clock), clock)
    recorder.nvml.nvmlInit()
    clock.advance(3)
    recorder.host.files.read("/proc/loadavg")
    recorder.write(tmp_path / "x.tape")
    player = TapePlayer(Tape(tmp_path / "x.tape"), FrozenClock())
    assert player.host.files.read("/proc/loadavg") == "3.00 1/2 77\n"


def test_a_call_that_hung_for_a_while_hangs_as_long_and_then_has_its_answer(tmp_path: Path) -> None:
    clock = FrozenClock()

    class SlowFiles(taped_machine.FakeFiles):
        def read(self, path: Any) -> Any:
            if path != "/proc/loadavg":
                return super().read(path)
            clock.advance(10.0 if clock.monotonic() == 5.0 else 0.0)
            return "slow" if clock.monotonic() == 15.0 else "prompt"

    host = replace(fake_host(clock), files=SlowFiles(clock))
    recorder = TapeRecorder(machine(clock).nvml, host, clock)
    for second in (0.0, 5.0):
        clock.advance(second - clock.monotonic())
        recorder.host.files.read("/proc/loadavg")
    recorder.write(tmp_path / "x.tape")
    clock = FrozenClock()
    player = TapePlayer(Tape(tmp_path / "x.tape"), clock)
    for until, expected in ((4.9, "prompt"), (5.0, None), (14.9, None), (15.1, "slow")):
        player.now()
        clock.advance(until - clock.monotonic())
        try:
            found = player.host.files.read("/proc/loadavg")
        except TimeoutError:
            found = None
        assert found == expected, until


def test_a_jittering_replay_in_real_time_skips_no_frame(tmp_path: Path) -> None:
    clock = FrozenClock()
    recorder = TapeRecorder(machine(clock).nvml, fake_host(clock), clock)
    taped = []
    for _ in range(5):
        taped.append(recorder.host.psutil.net_io_counters(pernic=True))
        clock.advance(1)
    recorder.write(tmp_path / "x.tape")

    class Jittering(SystemClock):
        at = 0.0

        def monotonic(self) -> Any:
            return self.at

    jittering = Jittering()
    psutil = TapePlayer(Tape(tmp_path / "x.tape"), jittering).host.psutil
    for counters, jittering.at in zip(taped, (0.0, 1.004, 1.997, 3.002, 3.999), strict=True):
        assert encode(psutil.net_io_counters(pernic=True)) == encode(counters)


@pytest.mark.parametrize("name", UNTAPED)
def test_what_is_not_taped_is_not_in_the_library(name: str, good: Any) -> None:
    clock = FrozenClock()
    recorder = TapeRecorder(machine(clock).nvml, fake_host(clock), clock)
    for library in (recorder.nvml, TapePlayer(Tape(good), clock).nvml):
        with pytest.raises(AttributeError, match="not taped"):
            getattr(library, name)


def test_threads_may_ask_at_once(tmp_path: Path) -> None:
    clock = SystemClock(speed=50)
    recorder = TapeRecorder(machine(clock).nvml, fake_host(clock), clock)
    questions = MachineQuestions(recorder.nvml, recorder.host)
    until = time.monotonic() + 0.4
    failures = []

    def ask() -> Any:
        try:
            while time.monotonic() < until:
                questions.all()
                recorder.write(tmp_path / "x.tape")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    recorder.write(tmp_path / "x.tape")
    assert (Tape(tmp_path / "x.tape").seconds or 0.0) > 10


def test_recording_goes_on_after_writing(tmp_path: Path) -> None:
    clock = FrozenClock()
    recorder = TapeRecorder(machine(clock).nvml, fake_host(clock), clock)
    for seconds in (1, 2):
        recorder.host.files.read("/proc/loadavg")
        clock.advance(1)
        recorder.write(tmp_path / "x.tape")
        assert Tape(tmp_path / "x.tape").seconds == seconds
        assert len(taped_machine.lines_of(tmp_path / "x.tape")) == seconds + 2


def test_a_minute_of_eight_gpus_is_small(tmp_path: Path) -> None:
    path = tmp_path / "x.tape"
    record(path, ticks=60, count=8)
    assert path.stat().st_size < 400_000


def test_a_buffer_gives_each_sample_when_the_driver_had_it() -> None:
    """A tape whose readings came every 5 s answers readings of each second."""
    buffer = TapedBuffer()
    stamps = [1_000_000 * n for n in range(11)]
    buffer.extend(5_250, 1, stamps[:6], [0.0] * 6)
    buffer.extend(10_250, 1, stamps[6:], [100.0] * 5)
    assert [stamp for stamp, _ in buffer.newer(5_000_000, 7_250)] == stamps[6:8]
    assert buffer.newer(7_000_000, 8_249) == []
    assert [stamp for stamp, _ in buffer.newer(-1, 10_250)] == stamps
    assert TapedBuffer().newer(0, 10) == []


LINKS = 18 * 25e9


def rates(bench: AgentBench, metric: Metric, seconds: int) -> list[float]:
    """Units per second of every GPU over the next seconds of the tape."""
    before = {key: bench.samples.point(metric, *key) for key in bench.samples.all(metric)}
    bench.run(seconds)
    found = []
    for key, first in before.items():
        last = bench.samples.point(metric, *key)
        assert first is not None
        assert last is not None
        found.append((last[1] - first[1]) / (last[0] - first[0]))
    return found


def test_all_reduce_on_four_h200_moves_what_nccl_says() -> None:
    bench = taped(TAPES / "h200-x4-all-reduce.tape").run(28)
    assert bench.samples.value(system.GPUS) == 4
    payload = rates(bench, nvlink.TRANSMITTED, 15)
    nccl_bus = 352.75e9  # bytes per second that NCCL moved in each direction on each GPU
    assert payload == pytest.approx([nccl_bus] * 4, rel=0.01)
    assert rates(bench, nvlink.WIRE_RECEIVED, 5) == pytest.approx([0.92 * LINKS] * 4, rel=0.03)
    assert set(bench.samples.all(nvlink.LINKS).values()) == {18.0}
    assert set(bench.samples.all(process.PROCESSES).values()) == {1.0}


def test_nccl_spins_read_as_utilisation_and_hardly_as_sm() -> None:
    bench = taped(TAPES / "h200-x4-all-reduce.tape").run(35)
    assert min(bench.samples.all(gpu.UTILIZATION).values()) > 0.95
    assert max(bench.samples.all(activity.SM_ACTIVE).values()) < 0.3


def test_bare_copies_are_no_activity() -> None:
    bench = taped(TAPES / "h100-copies.tape").run(16)
    (received,) = rates(bench, pcie.RECEIVED, 5)
    assert received > 0.8 * 63e9
    assert max(bench.samples.all(gpu.UTILIZATION).values()) > 0.95
    assert max(bench.samples.all(activity.ACTIVITY).values()) < 0.01


def test_matrix_products_are_activity() -> None:
    bench = taped(TAPES / "h100-matrices.tape").run(14)
    (active,) = rates(bench, activity.ACTIVE_SECONDS, 4)
    assert active == pytest.approx(0.97, abs=0.03)


def test_an_idle_gpu_rests() -> None:
    bench = taped(TAPES / "h100-idle.tape").run(12)
    assert list(bench.samples.all(activity.ACTIVITY).values()) == [0.0]
    assert list(bench.samples.all(process.PROCESSES).values()) == [0.0]
