"""GPU-seconds of this machine by state and hour, kept for 7 days: in memory and, where systemd
gives a folder (StateDirectory=), on disk. Each hour is a file, replaced whole.

A disk may hang: whatever touches it runs on a thread of its own. Hours that are not over yet by the
clock are set aside under another name, and taken back when it reaches them: it may have been wrong
before, or be wrong now."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import time

import msgspec

from agent.bounds import DISK_HANGS, HOUR, HOURS_KEPT, HOURS_SAVED_EVERY, LARGEST_HOUR, MOST_OWNERS
from agent.config.atomic_file import atomic_write
from agent.config.configuration import read_regular
from agent.diagnosis.accounting import GpuStateTime
from agent.diagnosis.energy import NAMES as JOULE_NAMES
from agent.errors import BadInput, LogEvent
from agent.model import Metric, Snapshot
from agent.polling import intervals
from agent.sources import activity, workload

log = logging.getLogger(__name__)

LATER = ".later"
"""Suffix of the name of an hour that is set aside."""

Who = tuple[str, str, str, str]
"""Job, user, partition, account, as far as `job.info` allows."""

NO_OWNER: Who = ("", "", "", "")
ANY_OWNER: Who = ("x", "x", "x", "x")
NAMES = ("job_id", "user", "partition", "account")


class HourRow(msgspec.Struct):
    """GPU-seconds by `state/cause`, and joules, by these too, and seconds at the tensor peak where
    they are known, of one job; of no job, or of several that shared a GPU, the names are empty."""

    job_id: str = ""
    user: str = ""
    partition: str = ""
    account: str = ""
    seconds: dict[str, float] = {}
    joules: float | None = None
    tensor: float | None = None
    joules_by_state: dict[str, float] = {}


class Hour(msgspec.Struct):
    """One hour; `hour` counts from 1970, `gpus` are the seconds of each by its UUID; nothing of it
    is known before `since` (wall time; 0: all of it is)."""

    hour: int
    rows: list[HourRow]
    gpus: dict[str, dict[str, float]] = {}
    since: float = 0.0


class HourlySums:
    """A listener of the poller. `accounts` are the seconds of each GPU by its UUID; `shown` makes
    of the owner of a row what may leave the agent. What may no longer leave it is not kept, either:
    not in memory, nor on disk."""

    def __init__(
        self,
        accounts: Mapping[str, GpuStateTime],
        folder: Path | None,
        shown: Callable[[Who], Who] = lambda who: who,
    ) -> None:
        self._accounts = accounts
        self._folder = folder
        self._shown = shown
        self._past: dict[int, bytes] = {}  # hours before this one, and those that are set aside
        self._hour = 0
        self._rows: dict[Who, HourRow] = {}
        self._gpus: dict[str, dict[str, float]] = {}
        self._since = 0.0
        self._seen: dict[str, dict[str, float]] = {}  # seconds by UUID, at the last look
        self._spent: dict[str, dict[str, float]] = {}  # joules: the most of any look
        self._tensor: dict[str, float] = {}
        self._jobs: dict[str, Who] = {}
        self._looked = self._saved = 0.0
        self._latest: Snapshot | None = None
        self._unsaved: set[int] = set()
        self._named = True  # whether what is kept may name somebody
        self._read: dict[int, bytes] | None = {} if folder is None else None
        self._disk = threading.Thread(target=self._load, name="hours", daemon=True)
        if folder is not None:
            self._disk.start()
            self._disk.join(DISK_HANGS)

    def __call__(self, snapshot: Snapshot) -> None:
        """Take in a tick."""
        self._latest = snapshot
        self._take_read()
        may_name = self._shown(ANY_OWNER) == ANY_OWNER
        if self._named and not may_name:
            self._forget_names()
            self._looked = -intervals.ENERGY
        self._named = may_name
        hour = int(snapshot.wall // HOUR)
        jobs = _jobs(snapshot)
        due = self._looked + intervals.ENERGY
        if (hour, jobs) == (self._hour, self._jobs) and snapshot.at < due:
            return
        self._look(snapshot)
        self._jobs, self._looked = jobs, snapshot.at
        if hour != self._hour:
            self._begin(hour, snapshot.wall)
            self._saved = snapshot.at
        elif snapshot.at >= self._saved + HOURS_SAVED_EVERY:
            self._unsaved.add(hour)
            self._saved = snapshot.at
        self._save()

    def document(self) -> bytes:
        """All hours as JSON: `{"hours": [{"hour", "rows": [{"job_id", ...}], "gpus": {uuid: {}}}]}`
        with seconds by `state/cause`."""
        self._take_read()
        self._catch_up()
        now = self._hour or time() // HOUR
        past = [self._past[hour] for hour in sorted(self._past) if hour <= now]
        return b'{"hours":[' + b",".join(map(self._as_shown, [*past, self._text()])) + b"]}"

    def close(self) -> None:
        """Write what is not yet written."""
        self._wait(DISK_HANGS)
        self._take_read()
        self._catch_up()
        if self._hour:
            self._unsaved.add(self._hour)
        self._save()
        self._wait(DISK_HANGS)

    def _wait(self, seconds: float) -> None:
        if self._disk.ident is not None:
            self._disk.join(seconds)

    def _as_shown(self, content: bytes) -> bytes:
        """An hour whose rows name what may leave; rows of the same owner are one."""
        hour = msgspec.json.decode(content, type=Hour)
        merged: dict[Who, HourRow] = {}
        for row in hour.rows:
            _add(merged, self._shown((row.job_id, row.user, row.partition, row.account)), row)
        shown = Hour(hour.hour, list(merged.values()), hour.gpus, hour.since)
        return msgspec.json.encode(shown)

    def _catch_up(self) -> None:
        if self._latest is not None:
            self._look(self._latest)

    def _look(self, snapshot: Snapshot) -> None:
        """Book what GPUs did since the last look for the jobs that were on them then."""
        tensor = _counts(snapshot, activity.TENSOR_SECONDS)
        for uuid, account in self._accounts.items():
            row = self._row(self._jobs.get(uuid, NO_OWNER))
            seconds = {"/".join(pair): value for pair, value in account.booked.seconds.items()}
            for total in (row.seconds, self._gpus.setdefault(uuid, {})):
                _grow(total, seconds, self._seen.get(uuid, {}))
            self._seen[uuid] = seconds
            spent = {"/".join(JOULE_NAMES[p]): j for p, j in account.booked.energy.spent().items()}
            if spent:  # what was estimated since the counter was read may fall
                before = self._spent.setdefault(uuid, {})
                row.joules = (row.joules or 0.0) + _grow(row.joules_by_state, spent, before)
                before |= {pair: max(j, before.get(pair, 0.0)) for pair, j in spent.items()}
            if uuid in tensor:
                grown = max(0.0, tensor[uuid] - self._tensor.get(uuid, tensor[uuid]))
                row.tensor = (row.tensor or 0.0) + grown
        self._tensor = tensor

    def _row(self, who: Who) -> HourRow:
        if who not in self._rows and len(self._rows) >= MOST_OWNERS:
            who = NO_OWNER
        return self._rows.setdefault(who, HourRow(*who, seconds={}))

    def _begin(self, hour: int, wall: float) -> None:
        """Another hour: a new one, the one in which this agent was started again, or one that the
        clock was set back to."""
        if self._hour:
            self._past[self._hour] = self._text()
            self._unsaved.add(self._hour)
        else:  # what came before the first tick belongs to it
            self._rows.clear()
            self._gpus.clear()
        since = 0.0 if hour == self._hour + 1 else wall
        read = _hour(self._past.pop(hour, b""), since)
        self._hour, self._rows, self._gpus, self._since = hour, _rows(read), read.gpus, read.since

    def _take_read(self) -> None:
        """Take in what was on disk, once that is read."""
        if self._read is None or not self._read:
            return
        read, self._read = self._read, {}
        begun = _hour(read.pop(self._hour, b""), self._since)
        self._since = begun.since
        for row in begun.rows:
            _add(self._rows, (row.job_id, row.user, row.partition, row.account), row)
        for uuid, seconds in begun.gpus.items():
            _grow(self._gpus.setdefault(uuid, {}), seconds, {})
        self._past, self._named = read | self._past, True

    def _forget_names(self) -> None:
        for hour, content in [*self._past.items(), (self._hour, self._text())]:
            shown = self._as_shown(content)
            if shown == content:
                continue
            self._unsaved.add(hour)
            if hour == self._hour:
                self._rows = _rows(_hour(shown))
            else:
                self._past[hour] = shown
        self._jobs = {}

    def _text(self) -> bytes:
        hour = Hour(self._hour, list(self._rows.values()), self._gpus, self._since)
        return msgspec.json.encode(hour)

    # On a thread of its own

    def _save(self) -> None:
        """Write what is due, once the disk is free; what is not written stays due."""
        if self._folder is None or not self._unsaved or self._disk.is_alive():
            return
        due, self._unsaved = self._unsaved, set()
        old = [hour for hour in sorted(self._past) if hour < self._hour][: -HOURS_KEPT + 1]
        past = {hour: self._past[hour] for hour in due if hour in self._past}
        for hour in old:
            del self._past[hour]
        content = past | ({self._hour: self._text()} if self._hour in due else {})
        words = self._folder, content, old, self._hour
        self._disk = threading.Thread(target=self._write, args=words, name="hours", daemon=True)
        self._disk.start()

    def _write(
        self, folder: Path, content: Mapping[int, bytes], old: Iterable[int], now: int
    ) -> None:
        for hour, text in content.items():
            with _file_costs_itself():
                atomic_write(_file(folder, hour), text)
        for hour in old:
            with _file_costs_itself():
                _file(folder, hour).unlink(missing_ok=True)
        for hour in _hours(folder, ""):
            if hour > now:
                log.warning(LogEvent("hour_set_aside", file=_file(folder, hour).name))
                with _file_costs_itself():
                    _file(folder, hour).replace(_file(folder, hour, LATER))
        for hour in _hours(folder, LATER):
            with _file_costs_itself():
                if hour <= now and not _file(folder, hour).exists():
                    _file(folder, hour, LATER).replace(_file(folder, hour))

    def _load(self) -> None:
        try:
            self._read = _read(self._folder) if self._folder else {}
        except OSError as error:
            log.warning(LogEvent("hours_not_read", file="", reason=str(error)))


@contextmanager
def _file_costs_itself() -> Iterator[None]:
    try:
        yield
    except (BadInput, OSError) as error:
        log.warning(LogEvent("hours_not_kept", reason=str(error)))


def _hour(content: bytes, since: float = 0.0) -> Hour:
    return msgspec.json.decode(content, type=Hour) if content else Hour(0, [], since=since)


def _rows(hour: Hour) -> dict[Who, HourRow]:
    return {(row.job_id, row.user, row.partition, row.account): row for row in hour.rows}


def _add(rows: dict[Who, HourRow], who: Who, more: HourRow) -> None:
    """Add what a row sums up to the row of its owner."""
    row = rows.setdefault(who, HourRow(*who, seconds={}))
    _grow(row.seconds, more.seconds, {})
    _grow(row.joules_by_state, more.joules_by_state, {})
    for name in ("joules", "tensor"):
        if (grown := getattr(more, name)) is not None:
            setattr(row, name, (getattr(row, name) or 0.0) + grown)


def _grow(sums: dict[str, float], now: Mapping[str, float], before: Mapping[str, float]) -> float:
    """Add to sums what has grown since; how much that is together."""
    grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
    more = {name: value for name, value in grown.items() if value > 0}
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value
    return sum(more.values())


STATE = Path("/var/lib/dgx-telemetry")
"""Where systemd keeps the state of the service."""


def state_folder() -> Path | None:
    """The folder that systemd keeps for the service; None where there is none."""
    named = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(named) if named else None


def _jobs(snapshot: Snapshot) -> dict[str, Who]:
    """The one job on each GPU, by UUID; none where several share it, or names are off."""
    reading = snapshot.readings.get(workload.KEY)
    found: dict[str, set[Who]] = {}
    for sample in reading.samples if reading else ():
        if sample.metric is workload.JOB_INFO:
            labels = dict(zip(workload.JOB_INFO.labels, sample.labels, strict=True))
            job, user, partition, account = (labels[name] for name in NAMES)
            found.setdefault(labels["uuid"], set()).add((job, user, partition, account))
    return {uuid: next(iter(jobs)) for uuid, jobs in found.items() if len(jobs) == 1}


def _counts(snapshot: Snapshot, metric: Metric) -> dict[str, float]:
    """Return the value of a counter for each GPU, by UUID."""
    readings = (one for key, one in snapshot.readings.items() if key.source == "activity")
    samples = (sample for reading in readings for sample in reading.samples)
    return {one.labels[1]: one.value for one in samples if one.metric is metric}


def _file(folder: Path, hour: int, more: str = "") -> Path:
    return folder / f"hour-{hour}.json{more}"


def _hours(folder: Path, more: str) -> list[int]:
    """The hours that are on disk under such names."""
    names = (path.name for path in folder.glob(f"hour-*.json{more}"))
    numbers = (name.removeprefix("hour-").removesuffix(f".json{more}") for name in names)
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())


def _read(folder: Path) -> dict[int, bytes]:
    """The hours on disk, and those that are set aside; a file that is none costs only itself."""
    found = {}
    now = time() // HOUR
    for more in (LATER, ""):
        numbers = _hours(folder, more)
        past = [number for number in numbers if number <= now]
        for number in [*past[-HOURS_KEPT:], *numbers[len(past) :][:HOURS_KEPT]]:
            path = _file(folder, number, more)
            try:
                content = read_regular(path, LARGEST_HOUR)
                hour = msgspec.json.decode(content, type=Hour)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning(LogEvent("hours_not_read", file=path.name, reason=str(error)))
                continue
            if hour.hour == number:
                found[number] = content
    return found
