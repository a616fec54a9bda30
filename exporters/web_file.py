"""The web configuration as its files are now. A thread of its own watches them: a file system that
hangs holds up neither requests nor the end of the agent."""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

from msgspec.structs import replace

from agent.config.regular_file import in_time
from agent.errors import BadInput, LogEvent
from exporters.passwords import require_bcrypt
from exporters.tls import NewestContext, context_of
from exporters.web_config import WebConfig, WebConfigError, read

log = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two checks of the files."""

RETRY_POLLS = 10
"""Polls after which what could not be used is read again, though no file seems to have changed."""

Signature = tuple[int, ...] | None
"""Times of change of content and of rights, size, inode and device of a file; None for one that
cannot be looked at."""


@dataclass(frozen=True, slots=True)
class Web:
    """One reading: what the file says, and the TLS context that follows from it."""

    config: WebConfig = field(default_factory=WebConfig)
    context: ssl.SSLContext | None = None

    @property
    def is_guarded(self) -> bool:
        """Whether not just anybody can read along or ask."""
        return self.context is not None or bool(self.config.users)


@dataclass(slots=True, eq=False)
class FileReading:
    """What was read from the file of this path, and how the files looked just before."""

    path: str
    web: Web = field(default_factory=Web)
    seen: dict[str, Signature] = field(default_factory=dict)

    def load(self) -> "FileReading":
        """Read file and certificates; raises WebConfigError. Files are looked at before they are
        read: what changes meanwhile is found to have changed."""
        if not self.path:
            return self
        self.seen = {self.path: signature(self.path)}
        config = read(Path(self.path))
        if config.users:
            require_bcrypt()
        context = None
        if (tls := config.tls_server_config) is not None:
            self.seen |= {file: signature(file) for file in tls.files}
            context = context_of(tls)
        self.web = Web(config, context)
        return self

    def is_current(self) -> bool:
        """Whether the files look as they did."""
        return all(signature(file) == before for file, before in self.seen.items())


class WebFile:
    """Keeps the newest reading that was good. With no path: plain HTTP for everybody.

    Whether TLS is served is settled at the start; all else, certificates too, follows the file.
    """

    def __init__(self, path: str = "") -> None:
        """Raises WebConfigError: at the start there is nothing older to keep."""
        self._reading = _loaded(path)
        self._web = self._reading.web
        self._prepared = self._reading
        self._changing = Lock()
        self._end = Event()
        self._watching: Thread | None = None
        self._said = ""  # what is wrong with the files as they are now
        self._polls = 0  # since they were read
        self.context = NewestContext.of(self._newest) if self._web.context else None

    @property
    def now(self) -> Web:
        """What holds for who comes now."""
        return self._web

    @property
    def path(self) -> str:
        """The file; empty for none."""
        return self._reading.path

    @property
    def good(self) -> bool:
        """Whether what is there now could be used when it was last read."""
        return not self._said

    def prepare(self, path: str) -> None:
        """Read another file, or none, for `follow`; raises WebConfigError. Not on the loop."""
        self._prepared = _loaded(path)

    def follow(self) -> None:
        """Put in force what was prepared."""
        with self._changing:
            self._take(self._prepared)
        self.watch()

    def watch(self) -> None:
        """Follow the file, if there is one, until `end`."""
        if self._watching is None and self.path:
            self._watching = Thread(target=self._watch, name="web-config", daemon=True)
            self._watching.start()

    def end(self) -> None:
        """Watch no longer."""
        self._end.set()

    def poll(self) -> None:
        """Read the files anew where they changed, or could not be used for some time."""
        before, self._polls = self._reading, self._polls + 1
        if before.is_current() and (self.good or self._polls < RETRY_POLLS):
            return
        self._polls = 0
        reading, said = FileReading(before.path), ""
        try:
            reading.load()
        except Exception as error:  # whatever is wrong with it, the agent goes on as before
            said = str(error) if isinstance(error, BadInput) else repr(error)
        with self._changing:
            if self._reading is not before:  # another file is followed by now
                return
            if not said:
                self._take(reading)
                log.info(LogEvent("web_config_loaded", file=reading.path))
                return
            if said != self._said:
                log.error(LogEvent("web_config_failed", file=reading.path, error=said))
            self._reading, self._said = reading, said

    def _watch(self) -> None:
        while not self._end.wait(POLL_INTERVAL):
            self.poll()

    def _newest(self) -> ssl.SSLContext:
        assert self._web.context is not None
        return self._web.context

    def _take(self, reading: FileReading) -> None:
        before, web = self._web, reading.web
        if bool(web.context) != bool(before.context):
            here, new = ("https" if one.context else "http" for one in (before, web))
            where = {"key": "tls_server_config", "file": str(reading.path)}
            log.warning(LogEvent("needs_a_restart", **where, in_force=here, new=new))
            tls = before.config.tls_server_config
            web = Web(replace(web.config, tls_server_config=tls), before.context)
        if before.is_guarded and not web.is_guarded:
            advice = "neither TLS nor passwords are asked for any more"
            log.warning(LogEvent("guard_dropped", file=reading.path, advice=advice))
        self._reading, self._web, self._said = reading, web, ""


def _loaded(path: str) -> FileReading:
    """A reading that does not take longer than it may; raises WebConfigError."""
    try:
        return in_time(FileReading(path).load)
    except OSError as error:
        raise WebConfigError(f"{path}: cannot be read: {error.strerror}") from error


def signature(file: str) -> Signature:
    """What tells whether a file is another than before."""
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev
