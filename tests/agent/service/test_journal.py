"""One line an event, whatever the values hold."""

import asyncio
import json
import logging
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from agent.errors import Failure, LogEvent
from agent.model import Reading, ReadKey
from agent.polling.poller import Poller
from agent.polling.reads import ReadCosts
from agent.polling.worker import InlineWorker
from agent.service.journal import AgentFormatter, LogConfig, is_journal, start_logging
from agent.simulator import SCENARIOS
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import simulated

CASES = tomllib.loads(Path(__file__).with_name("journal.toml").read_text("utf-8"))

LOGFMT, JSON = (AgentFormatter(form, journal=True) for form in ("logfmt", "json"))
ODD = 'ValueError: bad "thing" in key=5\nand \\ more'


def record() -> logging.LogRecord:
    event = LogEvent("failed", source="gpu", n=3, error=ODD)
    return logging.LogRecord("agent.x", logging.ERROR, "", 0, event, (), None)


def test_logfmt_keeps_to_one_line_and_escapes() -> None:
    line = LOGFMT.format(record())
    assert "\n" not in line
    assert r'error="ValueError: bad \"thing\" in key=5 and \\ more"' in line


def test_a_name_commands_no_terminal() -> None:
    event = LogEvent("gpu_found", model="K\x1b[2J\r\u202e\udc80")
    shown = logging.LogRecord("agent", logging.INFO, "x", 1, event, (), None)
    assert LOGFMT.format(shown).endswith(r"model=K\x1b[2J\r\u202e\udc80")
    assert (
        logging.Formatter().format(shown).encode()
        == rb"event=gpu_found model=K\x1b[2J\r\u202e\udc80"
    )


def test_json_gives_the_value_back() -> None:
    assert json.loads(JSON.format(record())[3:]) == {
        "level": "error",
        "logger": "agent.x",
        "event": "failed",
        "source": "gpu",
        "n": 3,
        "error": ODD,
    }


def test_what_is_no_event_of_ours_keeps_its_text() -> None:
    shown = logging.LogRecord(
        "asyncio", logging.WARNING, "", 0, "took %s key=1\nlong", ("2 s",), None
    )
    assert json.loads(JSON.format(shown)[3:])["message"] == "took 2 s key=1\nlong"
    assert LOGFMT.format(shown) == "<4>level=warning logger=asyncio took 2 s key=1 long"


@pytest.mark.parametrize(("value", "shown"), CASES["quoted"])
def test_a_value_is_quoted_where_it_is_not_one_word(value: str | float, shown: str) -> None:
    assert str(LogEvent("x", key=value)) == f"event=x key={shown}"


def test_a_traceback_stays_on_the_line() -> None:
    try:
        json.loads("{")
    except ValueError:
        info = sys.exc_info()
    shown = logging.LogRecord("agent.x", logging.ERROR, "", 0, "event=failed", (), info)
    line = LOGFMT.format(shown)
    assert "\n" not in line
    assert json.loads(line.partition("traceback=")[2]).startswith("Traceback (most recent call")
    assert "JSONDecodeError" in json.loads(JSON.format(shown)[3:])["traceback"]


@pytest.fixture
def root() -> Iterator[Callable[[], list[logging.Handler]]]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    before = logger.level, logger.handlers[:]
    yield lambda: logger.handlers
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("name", ["logfmt", "json"])
def test_priorities_stand_first_where_the_journal_reads(
    name: Literal["logfmt", "json"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stderr"
    with file.open("w") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setattr(sys, "stderr", stream)
        for journal in (f"{found.st_dev}:{found.st_ino}", "1:2"):
            monkeypatch.setenv("JOURNAL_STREAM", journal)
            assert is_journal(stream, os.environ) == (journal != "1:2")
            start_logging(LogConfig(format=name))
            for level in (logging.INFO, logging.WARNING, logging.ERROR):
                logging.getLogger("agent.x").log(level, "event=tried")
    lines = file.read_text().splitlines()
    assert [line[:3] for line in lines[:3]] == ["<6>", "<4>", "<3>"]
    stamp = re.compile(r'(time=|"time": ")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z(", | )')
    assert [len(stamp.findall(line)) for line in lines] == [0, 0, 0, 1, 1, 1]
    assert [line[3:] for line in lines[:3]] == [stamp.sub("", line) for line in lines[3:]]
    assert name == "logfmt" or all(json.loads(line)["time"] for line in lines[3:])


def test_what_is_closed_is_no_journal() -> None:
    closed = Path(os.devnull).open()  # noqa: SIM115
    closed.close()
    assert not is_journal(closed, {"JOURNAL_STREAM": "1:2"})


TROUBLES = ("gpu-lost", "nvlink-errors", "ecc")
assert set(TROUBLES) <= set(SCENARIOS)


@pytest.mark.parametrize("scenario", TROUBLES)
def test_a_bad_state_is_reported_when_it_begins_and_not_again(
    scenario: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    simulated(f"dgx-a100:{scenario}", gpus=3).run(20).skip(60).run(5).skip(60).run(5)
    shown = Counter(r.getMessage() for r in caplog.records)
    assert set(shown.values()) == {1}
    assert len(shown) <= 3, shown


def test_a_link_that_flaps_and_a_gpu_that_comes_and_goes_are_reported_by_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = simulated("dgx-a100:training", gpus=2).run(5)
    for _ in range(2):
        for scenario in ("nvlink-down", "gpu-lost", "training"):
            bench.machine.set_scenario(scenario)
            bench.run(15)
    events = Counter(r.getMessage().split()[0] for r in caplog.records)
    assert events["event=gpu_lost"] == events["event=gpu_back"] == events["event=xid"] == 2
    assert set(events) == {"event=nvml_connected", "event=gpu_lost", "event=gpu_back", "event=xid"}


def test_a_read_that_fails_at_the_same_place_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures: list[Failure | None] = [Failure("KeyError", "a.py:1", f"{n}") for n in range(20)]
    failures += [Failure("KeyError", "a.py:2", "19"), Failure("ValueError", "a.py:2", "19"), None]
    left = iter(failures)
    key = ReadKey("odd", "all")
    worker = InlineWorker(
        "odd",
        lambda emit: emit(Reading(key, 0.0, 1.0, failure=next(left))),
        lambda: True,
        FrozenClock(),
    )
    poller = Poller([worker], ReadCosts(), worker.clock)
    caplog.set_level(logging.INFO)
    for _ in failures:
        asyncio.run(poller.tick())
    assert [line.split(" error=")[-1] for line in caplog.messages[:3]] == [
        '"KeyError: 0 (a.py:1)"',
        '"KeyError: 19 (a.py:2)"',
        '"ValueError: 19 (a.py:2)"',
    ]
    assert caplog.messages[3].startswith("event=read_recovered")
    assert len(caplog.messages) == 4
