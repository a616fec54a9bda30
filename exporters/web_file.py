"""The web configuration as its files are now. A thread of its own watches them: a file system that
hangs holds up neither requests nor the end of the agent."""

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from msgspec import structs

from agent.config.regular_file import in_time, read_regular
from agent.errors import BadInput, LogEvent
from exporters.passwords import require_bcrypt
from exporters.web_config import ClientAuth, Tls, WebConfig, WebConfigError, parse

VERSIONS = {None: None, "TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: dict[ClientAuth, ssl.VerifyMode] = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # asks for one, and lets in who has none or any
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


def context_of(tls: Tls) -> ssl.SSLContext:
    """A server's context, of regular files. Raises WebConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[tls.min_version] or ssl.TLSVersion.TLSv1_2
    context.maximum_version = VERSIONS[tls.max_version] or ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.verify_mode = CLIENT_AUTH[tls.client_auth_type or "NoClientCert"]
    what = f"{tls.client_ca_file}: holds no certificates"
    try:
        if tls.client_ca_file:
            context.load_verify_locations(tls.client_ca_file)
        what = f"{tls.cert_file} and {tls.key_file}: are not a certificate with its key"
        # Without a function for it OpenSSL would ask for a password on the terminal.
        context.load_cert_chain(tls.cert_file or "", tls.key_file, password=lambda: "")
    except (OSError, ValueError) as error:  # the reason alone: no numbers, no lines of C
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        reason = str(why).replace("_", " ").lower()
        raise WebConfigError(f"tls_server_config: {what}: {reason}") from error
    return context


class NewestContext(ssl.SSLContext):
    """Wraps each connection in the context that holds when it comes: what is renewed takes effect
    with the next handshake, and whole, which loading a pair into a context in use could not do."""

    _newest: Callable[[], ssl.SSLContext | None]

    @classmethod
    def of(cls, newest: Callable[[], ssl.SSLContext | None]) -> "NewestContext":
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._newest = newest
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        newest = self._newest()
        assert newest is not None  # who listens with TLS goes on with it
        return newest.wrap_bio(*arguments, **named)


log = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two readings of the files: they are small, and whatever changed in them shows."""

LARGEST = 64 * 1024
"""Bytes of the web configuration; certificates may stand in it."""

LARGEST_PEM = 1024 * 1024
"""Bytes of a file with certificates: an authority may come with hundreds."""


@dataclass(frozen=True, slots=True)
class Web:
    """One reading: the files by path, what they say, and the TLS context that follows from it."""

    path: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    config: WebConfig = field(default_factory=WebConfig)
    context: ssl.SSLContext | None = None

    @property
    def is_guarded(self) -> bool:
        """True if clients must authenticate to read or to ask."""
        return self.context is not None or bool(self.config.users)


def load(path: str) -> Web:
    """Read file and certificates; raises WebConfigError. With no path: plain HTTP for everybody."""
    if not path:
        return Web()
    files = {path: content(path, LARGEST)}
    config = parse(files[path], Path(path))
    if config.users:
        require_bcrypt()
    tls = config.tls_server_config
    if tls is None:
        return Web(path, files, config)
    files |= {file: content(file) for file in tls.files}
    return Web(path, files, config, context_of(tls))


def content(file: str, most: int = LARGEST_PEM) -> bytes:
    """Return the content of a file; raises WebConfigError."""
    try:
        return read_regular(Path(file), most)
    except OSError as error:
        raise WebConfigError(f"{file}: cannot be read: {error.strerror}") from error


class WebFile:
    """Keeps the newest reading that was good: `now` is what holds for who comes now.

    Whether TLS is served is settled at the start; all else, certificates too, follows the file.
    """

    def __init__(self, path: str = "") -> None:
        """Raises WebConfigError: at the start there is nothing older to keep."""
        try:
            self.now = in_time(lambda: load(path))
        except TimeoutError as error:
            raise WebConfigError(f"{path}: cannot be read: {error.strerror}") from error
        self._error = ""  # what is wrong with the files as they are now
        self._end = Event()
        self.context = NewestContext.of(lambda: self.now.context) if self.now.context else None

    @property
    def good(self) -> bool:
        """True if the present file was valid when it was last read."""
        return not self._error

    def watch(self) -> None:
        """Follow the file, if there is one, until `end`."""
        if self.now.path:
            Thread(target=self._watch, name="web-config", daemon=True).start()

    def end(self) -> None:
        self._end.set()

    def poll(self) -> None:
        """Take the files as they are now, where they changed."""
        before, web, wrong = self.now, self.now, ""
        try:
            if not self.good or {file: content(file) for file in before.files} != before.files:
                web = load(before.path)
        except Exception as error:  # whatever is wrong with it, the agent goes on as before
            wrong = str(error) if isinstance(error, BadInput) else repr(error)
        if web is not before:
            self._take(web)
            log.info(LogEvent("web_config_loaded", file=web.path))
        elif wrong and wrong != self._error:
            log.error(LogEvent("web_config_failed", file=before.path, error=wrong))
        self._error = wrong

    def _watch(self) -> None:
        while not self._end.wait(POLL_INTERVAL):
            self.poll()

    def _take(self, web: Web) -> None:
        before = self.now
        if bool(web.context) != bool(before.context):
            here, new = ("https" if one.context else "http" for one in (before, web))
            where = {"key": "tls_server_config", "file": web.path}
            log.warning(LogEvent("needs_a_restart", **where, in_force=here, new=new))
            tls = before.config.tls_server_config
            config = structs.replace(web.config, tls_server_config=tls)
            web = replace(web, config=config, context=before.context)
        if before.is_guarded and not web.is_guarded:
            advice = "neither TLS nor passwords are asked for any more"
            log.warning(LogEvent("guard_dropped", file=web.path, advice=advice))
        self.now = web
