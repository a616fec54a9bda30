"""The web configuration as its file is now: looked at again for each connection and request."""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from agent.refusal import BadInput
from exporters.passwords import require_bcrypt
from exporters.tls import context_of
from exporters.web_config import WebConfig, read

log = logging.getLogger(__name__)

Signature = tuple[int, int, int] | None
"""Time of change, size and inode of a file; None for one that is not there."""


@dataclass(frozen=True, slots=True)
class Web:
    """One reading of the file: what it says, and the TLS context that follows from it."""

    config: WebConfig = field(default_factory=WebConfig)
    context: ssl.SSLContext | None = None

    @property
    def is_guarded(self) -> bool:
        """Whether not just anybody can read along or ask."""
        return self.context is not None or bool(self.config.users)


class WebFile:
    """Keeps the newest reading that was good. With no path: plain HTTP for everybody."""

    def __init__(self, path: str = "") -> None:
        """Raises WebConfigError: at the start there is nothing older to keep."""
        self.path = path
        self.good = True  # whether what is there now could be used when it was last read
        self._seen: dict[str, Signature] = {}
        self._web = self._load(path)

    def follow(self, path: str) -> None:
        """Take another file, or none; raises WebConfigError, and then stays with the old one."""
        seen = self._seen
        try:
            web = self._load(path)
        except BadInput:
            self._seen = seen
            raise
        self.path, self.good = path, True
        self._take(web)

    @property
    def now(self) -> Web:
        """What holds for who comes now."""
        if any(signature(file) != before for file, before in self._seen.items()):
            self._reload()
        return self._web

    def _reload(self) -> None:
        try:
            web = self._load(self.path)
        except BadInput as error:  # told once: the next look finds the same files
            self.good = False
            message = 'event=web_config_failed file="%s" error="%s"'
            log.error(message, self.path, error)  # noqa: TRY400  (one line)
        else:
            self.good = True
            self._take(web)
            log.info('event=web_config_loaded file="%s"', self.path)

    def _take(self, web: Web) -> None:
        if self._web.is_guarded and not web.is_guarded:
            advice = "neither TLS nor passwords are asked for any more"
            log.warning('event=guard_dropped file="%s" advice="%s"', self.path, advice)
        self._web = web

    def _load(self, path: str) -> Web:
        """Read file and certificates. Files are looked at before they are read: what changes
        meanwhile is found to have changed."""
        self._seen = {path: signature(path)} if path else {}
        config = read(Path(path)) if path else WebConfig()
        if config.users:
            require_bcrypt()
        if config.tls is None:
            return Web(config)
        self._seen |= {file: signature(file) for file in config.tls.files}
        return Web(config, context_of(config.tls))


def signature(file: str) -> Signature:
    """What tells whether a file is another than before."""
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
