"""Where the GPU-seconds of this machine went, hour by hour: kept for 7 days, in memory and, where
systemd gives a folder for it (StateDirectory=), on disk. Each hour is a file, replaced whole."""

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.config.whole_file import write_whole
from agent.diagnosis.accounting import Account
from agent.errors import BadInput, LogEvent
from agent.model import Pair, Snapshot
from agent.sources import power, workload

log = logging.getLogger(__name__)

KEPT = 7 * 24
"""Hours."""

MOST_ROWS = 64
"""Jobs of one hour that are kept apart; the time of others is nobody's."""

EVERY = 10.0
"""Seconds between two looks while no job comes or goes."""

SAVED_EVERY = 300.0
CLOSING = 5.0  # s, for a disk that hangs
LARGEST = 1 << 18  # bytes of a file
HOUR = 3600.0

Who = tuple[str, str, str, str]
"""Job, user, partition, account, as far as `job.info` lets them be told."""

NOBODY: Who = ("", "", "", "")
NAMES = ("job_id", "user", "partition", "account")


class HourRow(msgspec.Struct):
    """GPU-seconds by `state/cause`, and joules where they are known, of one job; of no job, or of
    several that shared a GPU, the names are empty."""

    job_id: str = ""
    user: str = ""
    partition: str = ""
    account: str = ""
    seconds: dict[str, float] = {}
    joules: float | None = None


class Hour(msgspec.Struct):
    """One hour; `hour` counts from 1970."""

    hour: int
    rows: list[HourRow]


class HourlySums:
    """A listener of the poller. `accounts` are the seconds of each GPU by its UUID."""

    def __init__(self, accounts: Mapping[str, Account], folder: Path | None) -> None:
        self._accounts = accounts
        self._folder = folder
        self._past: dict[int, bytes] = {} if folder is None else _read(folder)
        self._hour = 0
        self._rows: dict[Who, HourRow] = {}
        self._seen: dict[str, dict[Pair, float]] = {}  # by UUID, at the last look
        self._joules: dict[str, float] = {}
        self._jobs: dict[str, Who] = {}
        self._looked = self._saved = 0.0
        self._latest: Snapshot | None = None
        self._writer: threading.Thread | None = None

    def __call__(self, snapshot: Snapshot) -> None:
        """Take in a tick."""
        self._latest = snapshot
        hour = int(snapshot.wall // HOUR)
        jobs = _jobs(snapshot)
        if (hour, jobs) == (self._hour, self._jobs) and snapshot.at < self._looked + EVERY:
            return
        self._look(snapshot)
        self._jobs, self._looked = jobs, snapshot.at
        if hour != self._hour:
            self._begin(hour)
        elif snapshot.at >= self._saved + SAVED_EVERY:
            self._save()
        else:
            return
        self._saved = snapshot.at

    def document(self) -> bytes:
        """All hours, as JSON: `{"hours": [{"hour", "rows": [{"job_id", ..., "seconds"}]}]}`."""
        self._catch_up()
        return b'{"hours":[' + b",".join([*self._past.values(), self._text()]) + b"]}"

    def close(self) -> None:
        """Write what is not yet written."""
        if self._writer is not None:
            self._writer.join(CLOSING)
        self._catch_up()
        if self._folder is not None and self._hour:
            _write(self._folder, self._hour, self._text())

    def _catch_up(self) -> None:
        if self._latest is not None:
            self._look(self._latest)

    def _look(self, snapshot: Snapshot) -> None:
        """Book what GPUs did since the last look for the jobs that were on them then."""
        joules = _joules(snapshot)
        for uuid, account in self._accounts.items():
            seconds = dict(account.booked.seconds)
            before = self._seen.get(uuid)
            self._seen[uuid] = seconds
            if before is None:  # what an agent booked before its first look is less than a tick
                before = dict.fromkeys(seconds, 0.0)
            grown = {p: value - before.get(p, 0.0) for p, value in seconds.items()}
            row = self._row(self._jobs.get(uuid, NOBODY))
            for (state, cause), part in grown.items():
                if part > 0:
                    key = f"{state}/{cause}"
                    row.seconds[key] = row.seconds.get(key, 0.0) + part
            energy = joules.get(uuid, 0.0) - self._joules.get(uuid, joules.get(uuid, 0.0))
            if uuid in joules and energy >= 0:
                row.joules = (row.joules or 0.0) + energy
        self._joules = joules

    def _row(self, who: Who) -> HourRow:
        if who not in self._rows and len(self._rows) >= MOST_ROWS:
            who = NOBODY
        return self._rows.setdefault(who, HourRow(*who, seconds={}))

    def _begin(self, hour: int) -> None:
        """Another hour: a new one, the one in which this agent was started anew, or one that the
        clock was set back to."""
        if self._hour:
            self._past[self._hour] = self._text()
            self._save()
        else:  # what came before the first tick belongs to it
            self._rows.clear()
        known = self._past.pop(hour, b"")
        rows = msgspec.json.decode(known, type=Hour).rows if known else []
        self._rows = {(row.job_id, row.user, row.partition, row.account): row for row in rows}
        self._hour = hour
        for old in sorted(self._past)[: -KEPT + 1]:
            del self._past[old]
            if self._folder is not None:
                _file(self._folder, old).unlink(missing_ok=True)

    def _text(self) -> bytes:
        return msgspec.json.encode(Hour(self._hour, list(self._rows.values())))

    def _save(self) -> None:
        """On a thread of its own: a disk may hang."""
        if self._folder is None or (self._writer is not None and self._writer.is_alive()):
            return
        words = self._folder, self._hour, self._text()
        self._writer = threading.Thread(target=_write, args=words, name="hours", daemon=True)
        self._writer.start()


def state_folder() -> Path | None:
    """The folder that systemd keeps for the service; None where there is none."""
    named = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(named) if named else None


def _jobs(snapshot: Snapshot) -> dict[str, Who]:
    """The one job on each GPU, by UUID; none where several share it, or names are not told."""
    reading = snapshot.readings.get(workload.KEY)
    found: dict[str, set[Who]] = {}
    for sample in reading.samples if reading else ():
        if sample.metric is workload.JOB_INFO:
            labels = dict(zip(workload.JOB_INFO.labels, sample.labels, strict=True))
            job, user, partition, account = (labels[name] for name in NAMES)
            found.setdefault(labels["uuid"], set()).add((job, user, partition, account))
    return {uuid: next(iter(jobs)) for uuid, jobs in found.items() if len(jobs) == 1}


def _joules(snapshot: Snapshot) -> dict[str, float]:
    """What each GPU's counter of energy says, by UUID."""
    readings = (one for key, one in snapshot.readings.items() if key.source == "power")
    samples = (sample for reading in readings for sample in reading.samples)
    return {one.labels[1]: one.value for one in samples if one.metric is power.ENERGY}


def _file(folder: Path, hour: int) -> Path:
    return folder / f"hour-{hour}.json"


def _write(folder: Path, hour: int, content: bytes) -> None:
    try:
        write_whole(_file(folder, hour), content)
    except BadInput as error:
        log.warning(LogEvent("hours_not_kept", reason=str(error)))


def _read(folder: Path) -> dict[int, bytes]:
    """The newest hours on disk; a file that is none of these costs only itself."""
    found = {}
    for path in sorted(folder.glob("hour-*.json"))[-4 * KEPT :]:
        number = path.stem.removeprefix("hour-")
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST + 1)
            hour = msgspec.json.decode(content[:LARGEST], type=Hour)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning(LogEvent("hours_not_read", file=path.name, reason=str(error)))
            continue
        if str(hour.hour) == number:
            found[hour.hour] = content
    return {hour: found[hour] for hour in sorted(found)[-KEPT:]}
