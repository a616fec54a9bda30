"""Sums GPU-seconds by hour and state, and keeps the sums for 7 days in memory and, if systemd
provides a directory (StateDirectory=), on disk. Each hour has a file, which is always replaced as a
whole.

A disk may hang, so all disk access runs on a separate thread. Hours in the future, which a wrong
clock causes, are kept but not shown.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import time

import msgspec

from agent.bounds import DISK_HANGS, HOUR, HOURS_KEPT, HOURS_SAVED_EVERY, MOST_OWNERS
from agent.config.atomic_file import atomic_write
from agent.diagnosis.accounting import GpuStateTime
from agent.diagnosis.energy import NAMES
from agent.diagnosis.gpu_shares import JOB_SHARE, OF_JOB
from agent.diagnosis.gpu_shares import KEY as SHARES
from agent.diagnosis.job_record import Totals, totals
from agent.errors import LogEvent, log
from agent.model import Snapshot
from agent.polling import intervals
from agent.sources import workload

Who = tuple[str, str, str, str]
"""The owner of GPU time: job, user, partition, and account, if `job.info` allows these names."""

NO_OWNER: Who = ("", "", "", "")


class HourRow(msgspec.Struct):
    """Totals of an owner in an hour. `tensor` is the number of GPU-seconds that the work would take
    at the tensor core peak, if known. The first four fields are empty for time that belongs to no
    job, and for jobs that share a GPU in unknown proportions."""

    job_id: str = ""
    user: str = ""
    partition: str = ""
    account: str = ""
    seconds: dict[str, float] = {}
    joules: float | None = None
    tensor: float | None = None
    joules_by_state: dict[str, float] = {}


class Hour(msgspec.Struct):
    """Totals of an hour. `hour` is in hours since 1970, and `gpus` contains the seconds by GPU
    UUID. Time before `since` (wall clock) was not observed. `since` is 0 for a complete hour."""

    hour: int
    rows: list[HourRow]
    gpus: dict[str, dict[str, float]] = {}
    since: float = 0.0

    def row(self, who: Who) -> HourRow:
        """Return an owner's row, or add one. Owners beyond MOST_OWNERS share a row."""
        rows = {(row.job_id, row.user, row.partition, row.account): row for row in self.rows}
        if who not in rows:
            who = who if len(rows) < MOST_OWNERS else NO_OWNER
        if who not in rows:
            self.rows.append(HourRow(*who))
        return rows.get(who, self.rows[-1])

    def add(self, other: "Hour", *, named: bool = True) -> "Hour":
        """Add the totals in `other`, and return this hour. If `named` is false, omit owners."""
        for more in other.rows:
            who = (more.job_id, more.user, more.partition, more.account) if named else NO_OWNER
            row = self.row(who)
            _add(row.seconds, more.seconds)
            _add(row.joules_by_state, more.joules_by_state)
            if more.joules is not None:
                row.joules = (row.joules or 0.0) + more.joules
            if more.tensor is not None:
                row.tensor = (row.tensor or 0.0) + more.tensor
        for uuid, seconds in other.gpus.items():
            _add(self.gpus.setdefault(uuid, {}), seconds)
        return self


class HourlySums:
    """A listener of the poller that sums GPU time by hour. `accounts` contains the account of each
    GPU by UUID. `named` returns whether the names of owners may leave the agent. If not, they are
    kept neither in memory nor on disk."""

    def __init__(
        self,
        accounts: Mapping[str, GpuStateTime],
        folder: Path | None,
        named: Callable[[], bool] = lambda: True,
    ) -> None:
        self._accounts = accounts
        self._folder = folder
        self._named = named
        self._past: dict[int, bytes] = {}  # hours before and after the current hour
        self._now = Hour(0, [])
        self._seen: dict[str, Totals] = {}  # by UUID at the last pass, maximum so far
        self._jobs: dict[str, Mapping[Who, float]] = {}
        self._looked = self._saved = 0.0
        self._unsaved: set[int] = set()
        self._has_names = True
        self._read: dict[int, bytes] = {}  # from disk, until merged
        self._disk = threading.Thread(target=self._load, name="hours", daemon=True)
        if folder is not None:
            self._disk.start()
            self._disk.join(DISK_HANGS)

    def __call__(self, snapshot: Snapshot) -> None:
        """Add the GPU time since the last call, and start writing to disk if this is due."""
        self._take_read()
        if self._has_names and not self._named():
            self._forget_names()
            self._looked = -intervals.ENERGY
        self._has_names = self._named()
        hour = int(snapshot.wall // HOUR)
        jobs = _jobs(snapshot)
        due = self._looked + intervals.ENERGY
        if (hour, jobs) == (self._now.hour, self._jobs) and snapshot.at < due:
            return
        self._look()
        self._jobs, self._looked = jobs, snapshot.at
        if hour != self._now.hour:
            self._begin(hour, snapshot.wall)
            self._saved = snapshot.at
        elif snapshot.at >= self._saved + HOURS_SAVED_EVERY:
            self._unsaved.add(hour)
            self._saved = snapshot.at
        self._save()

    def document(self) -> bytes:
        """Return all hours as JSON: `{"hours": [{"hour", "rows": [{"job_id", ...}], "gpus": {uuid:
        {}}}]}`. Seconds are grouped by `state/cause`."""
        self._take_read()
        if self._now.hour:
            self._look()
        now = self._now.hour or time() // HOUR
        past = [self._past[hour] for hour in sorted(self._past) if hour <= now]
        found = [*past, msgspec.json.encode(self._now)]
        return b'{"hours":[' + b",".join(found if self._named() else map(_nameless, found)) + b"]}"

    def close(self) -> None:
        """Write all unsaved hours to disk, and wait until this is done."""
        self._wait()
        self._take_read()
        if self._now.hour:
            self._look()
            self._unsaved.add(self._now.hour)
        self._save()
        self._wait()

    def _wait(self) -> None:
        if self._disk.ident is not None:
            self._disk.join(DISK_HANGS)

    def _look(self) -> None:
        """Add each GPU's totals since the last call to the rows of the owners of its jobs."""
        for uuid, account in self._accounts.items():
            now, before = totals(account.booked, 0), self._seen.get(uuid, {})
            # an estimate of energy since the last counter reading may decrease
            grown = {key: more for key in now if (more := now[key] - before.get(key, 0.0)) > 0}
            self._seen[uuid] = before | {key: now[key] for key in grown}
            seconds, joules = (
                {"/".join(NAMES[pair]): more for (name, pair), more in grown.items() if name == of}
                for of in ("seconds", "joules")
            )
            _add(self._now.gpus.setdefault(uuid, {}), seconds)
            for who, part in self._jobs.get(uuid, {NO_OWNER: 1.0}).items():
                row = self._now.row(who)
                _add(row.seconds, seconds, part)
                _add(row.joules_by_state, joules, part)
                if joules:
                    row.joules = (row.joules or 0.0) + part * sum(joules.values())
                if (tensor := ("tensor", None)) in now:
                    row.tensor = (row.tensor or 0.0) + part * grown.get(tensor, 0.0)

    def _begin(self, hour: int, wall: float) -> None:
        """Start a new hour, or continue it after a restart or if the clock was set back."""
        before = self._now.hour
        if before:
            self._past[before] = msgspec.json.encode(self._now)
            self._unsaved.add(before)
        known = self._past.pop(hour, None)
        new = Hour(hour, [], since=0.0 if hour == before + 1 else wall)
        self._now = msgspec.json.decode(known, type=Hour) if known else new

    def _take_read(self) -> None:
        """If the hours on disk have been read, add them to those in memory."""
        read, self._read = self._read, {}
        if begun := read.pop(self._now.hour, None):
            self._now = msgspec.json.decode(begun, type=Hour).add(self._now)
        if read or begun:
            self._past, self._has_names = read | self._past, True

    def _forget_names(self) -> None:
        changed = {hour: _nameless(content) for hour, content in self._past.items()}
        self._unsaved |= {hour for hour in changed if changed[hour] != self._past[hour]}
        self._unsaved.add(self._now.hour)
        self._past, self._jobs = changed, {}
        self._now = msgspec.json.decode(_nameless(msgspec.json.encode(self._now)), type=Hour)

    # The following runs on a separate thread.

    def _save(self) -> None:
        """Start to write unsaved hours to disk, unless an earlier write is still running."""
        if self._folder is None or not self._unsaved or self._disk.is_alive():
            return
        kept: dict[int, bytes | None] = {**self._past}
        if self._now.hour:
            kept[self._now.hour] = msgspec.json.encode(self._now)
        due = {hour: kept[hour] for hour in self._unsaved if hour in kept}
        old = [hour for hour in sorted(self._past) if hour < self._now.hour]
        for hour in old[: 1 - HOURS_KEPT]:
            due[hour] = None
            del self._past[hour]
        self._unsaved = set()
        words = self._folder, due
        self._disk = threading.Thread(target=_write, args=words, name="hours", daemon=True)
        self._disk.start()

    def _load(self) -> None:
        try:
            self._read = _read(self._folder) if self._folder else {}
        except Exception as error:
            log.warning(LogEvent("hours_not_read", file="", reason=str(error)))


def _nameless(content: bytes) -> bytes:
    """Return the JSON of an hour with all its rows merged into one row without an owner."""
    hour = msgspec.json.decode(content, type=Hour)
    return msgspec.json.encode(Hour(hour.hour, [], since=hour.since).add(hour, named=False))


def _add(sums: dict[str, float], more: Mapping[str, float], part: float = 1.0) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + part * value


STATE = Path("/var/lib/dgx-telemetry")
"""The state directory of the service, which systemd creates."""


def state_folder() -> Path | None:
    """Return the state directory that systemd provides for the service, if any."""
    named = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(named) if named else None


def _jobs(snapshot: Snapshot) -> dict[str, Mapping[Who, float]]:
    """Return each job's and user's share of each GPU, by UUID. Omit GPUs that jobs share in unknown
    proportions. The result is empty if names are disabled."""
    reading = snapshot.readings.get(workload.KEY)
    found: dict[str, set[Who]] = {}
    for sample in reading.samples if reading else ():
        if sample.metric is workload.JOB_INFO:
            labels = dict(zip(workload.JOB_INFO.labels, sample.labels, strict=True))
            job, user, partition, account = (labels[name] for name in OF_JOB)
            found.setdefault(labels["uuid"], set()).add((job, user, partition, account))
    shares = snapshot.readings.get(SHARES)
    parts = {
        (sample.labels[1], sample.labels[2]): sample.value
        for sample in (shares.samples if shares else ())
        if sample.metric is JOB_SHARE
    }
    return {uuid: owners for uuid, jobs in found.items() if (owners := _owners(uuid, jobs, parts))}


def _owners(
    uuid: str, jobs: Iterable[Who], parts: Mapping[tuple[str, str], float]
) -> Mapping[Who, float]:
    """Return each job's and user's share of a GPU. The mapping is empty if they are unknown."""
    known = {who: parts[uuid, who[0]] for who in sorted(jobs) if (uuid, who[0]) in parts}
    if not known:
        return dict.fromkeys(jobs, 1.0) if len({*jobs}) == 1 else {}
    if len({who[0] for who in known}) < len(known):  # several users have jobs with the same name
        return {}
    return known | {NO_OWNER: max(0.0, 1.0 - sum(known.values()))}


def _write(folder: Path, due: Mapping[int, bytes | None]) -> None:
    """Write the files of the hours in `due`. If the content is None, delete the file."""
    for hour, content in due.items():
        path = folder / f"hour-{hour}.json"
        try:
            if content is None:
                path.unlink(missing_ok=True)
            else:
                atomic_write(path, content)
        except Exception as error:
            log.warning(LogEvent("hours_not_kept", reason=str(error)))


def _read(folder: Path) -> dict[int, bytes]:
    """Return the contents of the hour files on disk, by hour. Log and skip malformed files."""
    found = {}
    names = (path.stem.removeprefix("hour-") for path in folder.glob("hour-*.json"))
    numbers = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    past = [number for number in numbers if number <= time() // HOUR]
    for number in [*past[-HOURS_KEPT:], *numbers[len(past) :][:HOURS_KEPT]]:
        path = folder / f"hour-{number}.json"
        try:
            content = path.read_bytes() if path.is_file() else b""
            hour = msgspec.json.decode(content, type=Hour)
        except Exception as error:
            log.warning(LogEvent("hours_not_read", file=path.name, reason=str(error)))
            continue
        if hour.hour == number:  # a file from an older version lacks some keys
            found[number] = msgspec.json.encode(hour)
    return found
