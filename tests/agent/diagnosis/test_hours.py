"""The hourly sums of one agent: what they sum up to, how they outlast it, what bounds them."""

import json
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import bounds
from agent.config.atomic_file import atomic_write
from agent.config.settings import Settings
from agent.diagnosis import hours
from agent.diagnosis.gpu_shares import JOB_SHARE, OF_JOB
from agent.diagnosis.gpu_shares import KEY as SHARES
from agent.diagnosis.hours import HourlySums
from agent.model import Reading, Sample
from agent.sources import power, workload
from agent.sources.activity import TENSOR_SECONDS
from agent.sources.workload import JobConfig
from tests.agent.report.test_report import of_agent, report, server
from tests.support.machine_controls import lose, restore
from tests.support.machines import AgentBench, simulated

HOUR = 3600
NOW = int(time.time() // HOUR)
"""The present hour: a report looks back from there."""

JOB = ("4711", "eve", "slurm", "long", "bio", "", "", "")
USED = ("4711", "eve", "long", "bio")


@pytest.fixture
def bench() -> AgentBench:
    return simulated("gtx-1080:starved-disk", Settings(JobConfig(info=True)))


def play(
    bench: AgentBench,
    sums: HourlySums,
    seconds: int,
    hour: int,
    *jobs: tuple[str, ...],
    shares: tuple[float, ...] = (),
) -> None:
    """So many seconds of one hour, with these jobs on the GPU, which have these shares of it."""
    gpu = ("0", bench.machine.gpus[0].uuid)
    for _ in range(seconds):
        latest = bench.run(1).latest
        said = tuple(Sample(workload.JOB_INFO, gpu + job, 1.0) for job in jobs)
        readings = {**latest.readings, workload.KEY: Reading(workload.KEY, latest.at, 1.0, said)}
        parts = tuple(
            Sample(JOB_SHARE, (*gpu, job[0], "", ""), part)
            for job, part in zip(jobs, shares, strict=False)
        )
        readings[SHARES] = Reading(SHARES, latest.at, 1.0, parts)
        sums(replace(latest, wall=hour * HOUR + 5.0, readings=readings))


def rows(sums: HourlySums) -> list[dict[str, Any]]:
    """Each row with its hour."""
    said = json.loads(sums.document())["hours"]
    return [{"hour": hour["hour"], **row} for hour in said for row in hour["rows"]]


def together(sums: HourlySums) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows(sums):
        found.update(row["seconds"])
    return found


def booked(bench: AgentBench) -> dict[str, float]:
    (account,) = bench.agent.diagnosis.accounts.values()
    return {f"{s}/{c}": value for (s, c), value in account.booked.seconds.items() if value}


def test_all_seconds_are_in_some_hour_and_with_their_job(bench: AgentBench) -> None:
    sums = HourlySums(bench.agent.diagnosis.accounts, None)
    play(bench, sums, 20, NOW - 2)
    play(bench, sums, 20, NOW - 1, JOB)
    play(bench, sums, 20, NOW)
    play(bench, sums, 11, NOW, JOB, ("9", *JOB[1:]))  # two share it
    assert together(sums) == pytest.approx(booked(bench))
    of_gpu: Counter[str] = Counter()
    for hour in json.loads(sums.document())["hours"]:
        of_gpu.update(hour["gpus"][bench.machine.gpus[0].uuid])
    assert of_gpu == pytest.approx(booked(bench)), "each hour has its GPUs, too"
    used = [row for row in rows(sums) if row["job_id"]]
    assert {tuple(row[name] for name in OF_JOB) for row in used} == {USED}
    assert sum(sum(row["seconds"].values()) for row in used) == pytest.approx(20, abs=1.1)
    joules = bench.samples.value(power.ENERGY, "0", bench.machine.gpus[0].uuid)
    assert joules is not None
    assert sum(row["joules"] for row in rows(sums)) == pytest.approx(joules, rel=0.1)
    for row in rows(sums):
        assert sum(row["joules_by_state"].values()) == pytest.approx(row["joules"])
    (account,) = bench.agent.diagnosis.accounts.values()
    for pair, drawn in account.booked.energy.spent().items():
        name = "/".join(pair or ("unobserved", "none"))
        found = sum(row["joules_by_state"].get(name, 0.0) for row in rows(sums))
        assert found == pytest.approx(drawn, abs=0.03 * joules), name


def test_they_outlast_the_agent(bench: AgentBench, tmp_path: Path) -> None:
    first = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
    play(bench, first, 12, NOW - 1)
    play(bench, first, 12, NOW, JOB)
    first.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"hour-{NOW - 1}.json",
        f"hour-{NOW}.json",
    ]

    def since(sums: HourlySums) -> list[float]:
        return [hour["since"] for hour in json.loads(sums.document())["hours"]]

    begun = since(first)
    assert (NOW - 1) * 3600 <= begun[0] < NOW * 3600
    assert begun[1] == 0.0
    another = simulated("gtx-1080:starved-disk")
    second = HourlySums(another.agent.diagnosis.accounts, tmp_path)
    play(another, second, 12, NOW, JOB)
    expected = Counter(booked(bench))
    expected.update(booked(another))
    assert together(second) == pytest.approx(expected)
    assert since(second) == begun, "an agent that starts again adds to the record"


@pytest.mark.parametrize("restarted", [False, True])
def test_names_that_may_no_longer_leave_are_not_kept(
    bench: AgentBench, tmp_path: Path, *, restarted: bool
) -> None:
    """Neither in memory nor on disk, in hours to come too."""
    named, ahead = True, NOW + 1000
    sums = HourlySums(bench.agent.diagnosis.accounts, tmp_path, lambda: named)
    play(bench, sums, 12, NOW - 1, JOB)
    play(bench, sums, 12, ahead, JOB)
    sums.close()
    play(bench, sums, 12, NOW, JOB)
    sums.close()
    files = {f"hour-{NOW - 1}.json", f"hour-{NOW}.json", f"hour-{ahead}.json"}
    assert {path.name for path in tmp_path.iterdir() if b"eve" in path.read_bytes()} == files
    before = together(sums)
    os.mkfifo(tmp_path / f"hour-{NOW + 2000}.json")  # it costs no other file anything
    files |= {f"hour-{NOW + 2000}.json"}
    named = False
    if restarted:
        sums = HourlySums({}, tmp_path, lambda: named)
    play(bench, sums, 1, NOW)
    sums.close()
    assert {path.name for path in tmp_path.iterdir()} == files
    kept = [path for path in tmp_path.iterdir() if path.is_file()]
    assert not [path for path in kept if b"eve" in path.read_bytes()]
    named = True
    assert {row["user"] for row in rows(sums)} == {""}
    assert sum(together(sums).values()) == pytest.approx(sum(before.values()), abs=1.5)


def test_what_is_no_hour_costs_only_itself(
    bench: AgentBench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
    play(bench, first, 3, NOW - 1)
    first.close()
    (tmp_path / f"hour-{NOW - 3}.json").write_bytes(b'{"hour":')
    (tmp_path / f"hour-{NOW - 4}.json").write_bytes(b'{"hour":3,"rows":[]}')
    (tmp_path / f"hour-{NOW - 5}.json").write_bytes(b" ")
    (tmp_path / f"hour-{NOW - 6}.json").mkdir()
    os.mkfifo(tmp_path / f"hour-{NOW - 7}.json")
    again = HourlySums({}, tmp_path)
    assert {row["hour"] for row in rows(again)} == {NOW - 1}
    assert caplog.text.count("hours_not_read") == 4


def test_hours_to_come_are_kept_and_not_shown(bench: AgentBench, tmp_path: Path) -> None:
    """Of a clock that was wrong: they hide no hour and delete none, however many they are."""
    first = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
    for hour in range(NOW - 5, NOW):
        play(bench, first, 3, hour, JOB)
    first.close()
    text = '{{"hour":{},"rows":[{{"seconds":{{"busy/none":9.0}}}}]}}'
    for hour in range(NOW + 1, NOW + 3 * bounds.HOURS_KEPT):
        (tmp_path / f"hour-{hour}.json").write_text(text.format(hour))
    second = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
    play(bench, second, 3, NOW)
    assert {row["hour"] for row in rows(second)} == {*range(NOW - 5, NOW + 1)}
    second.close()
    assert len([*tmp_path.iterdir()]) == 5 + 3 * bounds.HOURS_KEPT
    play(bench, second, 3, NOW + 1)
    second.close()
    assert together(second)["busy/none"] > 9.0, "it is taken up again when the clock reaches it"
    assert {row["hour"] for row in rows(second)} == {*range(NOW - 5, NOW + 2)}


def test_a_disk_that_hangs_holds_up_neither_start_nor_ticks(
    bench: AgentBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due hours, and the end of an hour, are written once the disk answers."""
    before = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
    play(bench, before, 3, NOW - 2)
    play(bench, before, 3, NOW - 1, JOB)
    before.close()
    answers = threading.Event()
    read, write = hours._read, atomic_write

    def slow_read(folder: Path) -> dict[int, bytes]:
        answers.wait()
        return read(folder)

    monkeypatch.setattr(hours, "DISK_HANGS", 0.01)
    monkeypatch.setattr(hours, "_read", slow_read)
    sums = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
    play(bench, sums, 11, NOW - 1, JOB)
    play(bench, sums, 11, NOW, JOB)
    answers.set()
    sums._disk.join()
    answers.clear()
    monkeypatch.setattr(
        "agent.diagnosis.hours.atomic_write", lambda *words: (answers.wait(), write(*words))[1]
    )
    play(bench, sums, 11, NOW, JOB)
    play(bench, sums, 11, NOW + 1, JOB)
    answers.set()
    sums._disk.join()
    play(bench, sums, 11, NOW + 1, JOB)
    sums._disk.join()
    kept = json.loads((tmp_path / f"hour-{NOW}.json").read_text())
    (row,) = (row for row in kept["rows"] if row["job_id"])
    assert sum(row["seconds"].values()) >= 20
    (row,) = (row for row in rows(sums) if row["hour"] == NOW - 1 and row["job_id"])
    seconds = sum(row["seconds"].values())
    assert seconds >= 11 or seconds == pytest.approx(11), "what was read late is added"
    assert NOW - 2 in {row["hour"] for row in rows(sums)}


def test_it_is_bounded(bench: AgentBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "HOURS_KEPT", 9)
    monkeypatch.setattr(hours, "MOST_OWNERS", 5)
    sums = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
    for hour in range(9 + 3):
        play(bench, sums, 1, NOW + hour)
    sums.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) <= 9
    assert f"hour-{NOW}.json" not in names
    assert len(json.loads(sums.document())["hours"]) == 9
    for number in range(5 + 9):
        play(bench, sums, 1, NOW, (str(number), *JOB[1:]))
    listed = [row for row in rows(sums) if row["hour"] == NOW]
    assert len(listed) <= 5 + 1


def test_a_disk_that_is_full_is_reported_and_costs_nothing_else(
    bench: AgentBench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sums = HourlySums(bench.agent.diagnosis.accounts, tmp_path / "gone")
    play(bench, sums, 3, NOW)
    sums.close()
    assert "hours_not_kept" in caplog.text
    assert together(sums) == pytest.approx(booked(bench))


def test_jobs_that_share_a_gpu_have_their_parts_of_its_hours(bench: AgentBench) -> None:
    sums, other = HourlySums(bench.agent.diagnosis.accounts, None), ("4712", *JOB[1:])
    play(bench, sums, 40, NOW, JOB, other, shares=(0.75, 0.25))
    play(bench, sums, 20, NOW, JOB, other)  # in unknown parts
    found = {row["job_id"]: row for row in rows(sums)}
    whole = sum(together(sums).values())
    assert {name: sum(row["seconds"].values()) for name, row in found.items()} == pytest.approx(
        {"4711": 0.75 * (whole - 20), "4712": 0.25 * (whole - 20), "": 20.0}, abs=1.5
    )  # a change is noticed a second later
    (gpu,) = json.loads(sums.document())["hours"][0]["gpus"].values()
    assert sum(gpu.values()) == pytest.approx(whole)
    assert found["4711"]["joules"] == pytest.approx(3 * found["4712"]["joules"])


def test_a_report_of_them(bench: AgentBench, capsys: pytest.CaptureFixture[str]) -> None:
    sums = HourlySums(bench.agent.diagnosis.accounts, None)
    play(bench, sums, 20, NOW - 30, JOB)
    play(bench, sums, 20, NOW, JOB)
    play(bench, sums, 20, NOW)
    said = json.loads(sums.document())

    def asked(*words: str) -> list[dict[str, Any]]:
        assert report("--agent", f"http://{address}", "--json", *words) == 0
        listed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
        return listed

    with server(of_agent(**said)) as (address, _):
        (week,), (day,) = asked("--by", "node"), asked("--by", "node", "--since", "1d")
        (user,), (job,) = asked("--by", "user"), asked("--job", "4711")
    assert week["gpu_hours"] * HOUR == pytest.approx(60, abs=1.1)
    assert day["gpu_hours"] * HOUR == pytest.approx(40, abs=1.1)
    assert (user["name"], job["name"], job["account"]) == ("eve", "4711", "bio")
    assert user["gpu_hours"] * HOUR == pytest.approx(40, abs=1.1)
    assert job["gpu_hours_by_state"] == user["gpu_hours_by_state"]
    for row in (week, user, job):
        assert row["kwh"] > 0


@pytest.mark.parametrize("upgraded", [False, True])
def test_a_report_of_hours_that_version_0_2_0_kept(
    bench: AgentBench, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, upgraded: bool
) -> None:
    """From an agent of that version, and from one that found its files; it names no GPUs."""
    seconds = {"busy/none": 2700.0, "starved/disk": 900.0}
    row = dict(zip(OF_JOB, USED, strict=True)) | {"seconds": seconds, "joules": 3.6e6}
    said: dict[str, Any] = {"hours": [{"hour": NOW - 1, "rows": [row]}]}
    if upgraded:
        (tmp_path / f"hour-{NOW - 1}.json").write_text(json.dumps(said["hours"][0]))
        sums = HourlySums(bench.agent.diagnosis.accounts, tmp_path)
        play(bench, sums, 20, NOW)
        said = json.loads(sums.document())
    with server(of_agent(**said, timestamp=NOW * HOUR + 900.0)) as (address, _):
        for by in ("node", "user", "job"):
            assert report("--agent", f"http://{address}", "--by", by, "--json") == 0
            found = json.loads(capsys.readouterr().out)
            assert found["rows"][0]["gpu_hours"] == pytest.approx(1.0, abs=0.01)
            assert found["rows"][0]["kwh"] == pytest.approx(1.0, abs=0.01)
            part = pytest.approx(3600 / 4500, abs=0.02) if upgraded else None
            assert found["covered_share"] == part


def test_what_another_user_calls_alike_is_another_job(
    bench: AgentBench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anyone may give a program any name: no one is charged for it but who ran it."""
    sums = HourlySums(bench.agent.diagnosis.accounts, None)
    play(bench, sums, 20, NOW, JOB)
    play(bench, sums, 30, NOW, (JOB[0], "ada", *JOB[2:]))
    reported = json.loads(sums.document())
    with server(of_agent(**reported)) as (address, _):
        assert report("--agent", f"http://{address}", "--by", "job", "--json") == 0
        found = json.loads(capsys.readouterr().out)["rows"]
        assert report("--agent", f"http://{address}", "--job", "4711") == 0
    assert {row["user"]: round(row["gpu_hours"] * HOUR) for row in found} == {
        "eve": pytest.approx(20, abs=2),
        "ada": pytest.approx(30, abs=2),
    }
    assert capsys.readouterr().out.count("4711") >= 2


def test_hours_and_jobs_have_all_tensor_work_that_is_counted() -> None:
    """Also of a GPU that was lost meanwhile, whose counter starts again."""
    bench, counted = simulated("dgx-h100:training", gpus=2), []
    sums = HourlySums(bench.agent.diagnosis.accounts, None)
    for change in (lose, restore, restore):
        for _ in range(30):
            sums(bench.run(1).latest)
        counted.append(bench.samples.all(TENSOR_SECONDS).values())
        change(bench.machine, 1)
    expected = [*counted[0]][1] + sum(counted[2])
    assert sum(row["tensor"] for row in rows(sums)) == pytest.approx(expected)
    assert bench.jobs.running[0].receipt.tensor == pytest.approx(expected, abs=1.0)
