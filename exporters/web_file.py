"""The web configuration file: TLS and passwords, in the YAML format that Prometheus exporters share
(exporter-toolkit). An unknown key is an error.

A separate thread reads the files. A file system that hangs thus does not delay requests or the
agent's shutdown.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from agent.config.configuration import ConfigError, file_content
from agent.config.decoding import Mismatch, decode
from agent.errors import BadInput, LogEvent, log
from agent.threads import in_time
from exporters.access_control import require_bcrypt

if TYPE_CHECKING:  # not loaded unless TLS is used
    from ssl import SSLContext, SSLObject

POLL_INTERVAL = 1.0  # Seconds between two reads of the files

HASH = r"\A\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}\Z"
"""Pattern of a bcrypt hash: cost, 22 characters of salt (the last has two bits), and 31 characters
of hash. At cost 14, a check takes about a second of CPU time. Each step of the cost doubles it."""

EXPECTED = "a bcrypt hash of a cost from 4 to 14 (htpasswd -nBC 10 prints one)"
Hash = Annotated[str, Meta(pattern=HASH, description=EXPECTED)]
GUARDS = ("tls_server_config", "basic_auth_users")
File = Annotated[str, Meta(min_length=1, description="the name of a file")]


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """The `tls_server_config` table. Paths may be relative to the web configuration file."""

    cert_file: File
    key_file: File
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class WebConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the web configuration file. Without their table, TLS or passwords are off."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, Hash] | None = None


def parse(content: bytes, path: str) -> WebConfig:
    """Return the configuration in a file's contents. Raise ConfigError if they are invalid. The
    message does not quote them, because they may be secret. Certificates are not checked here."""
    import yaml  # a megabyte of memory that most agents never need

    try:
        document = yaml.safe_load(content.decode())
        return decode({} if document is None else document, WebConfig)
    except Mismatch as error:
        advice = "; else use a proxy" if "unknown field" in str(error) else ""
        raise ConfigError(f"{path}: {error}{advice}") from error
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}: is not YAML in UTF-8: {error.problem}{where}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not YAML in UTF-8: {why}") from error


def context_of(certificate: str, key: str, *, least: str = "TLS12") -> "SSLContext":
    """Return a TLS server context for a certificate file and a key file. Raise ConfigError if the
    files cannot be read or do not match."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion[least.replace("TLS1", "TLSv1_")]
    try:
        # Without a password callback, OpenSSL would ask for a password on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # only the reason, without C source lines
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        reason = str(why).replace("_", " ").lower()
        what = f"{certificate} and {key}: are not a certificate with its key: {reason}"
        raise ConfigError(f"tls_server_config: {what}") from error
    return context


def end_of(certificate: str) -> float | None:
    """Return the Unix time at which the first certificate in a file expires, or None if unknown."""
    import ssl

    try:
        # The only certificate parser in the standard library, used in CPython's own tests.
        found = ssl._ssl._test_decode_cert(certificate)  # type: ignore[attr-defined] # noqa: SLF001
        return float(ssl.cert_time_to_seconds(found["notAfter"]))
    except (OSError, ValueError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class Web:
    """A loaded web configuration: contents by path, password hashes by user, and TLS context."""

    path: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    context: "SSLContext | None" = None
    certificate_ends: float | None = None  # s since the epoch

    @property
    def is_guarded(self) -> bool:
        """Whether connections are encrypted or passwords are required."""
        return self.context is not None or bool(self.users)


def load(path: str) -> Web:
    """Load the web configuration file at `path` and its certificates. Raise ConfigError if one of
    them is invalid. If `path` is empty, return a configuration without TLS and passwords."""
    if not path:
        return Web()
    files = {path: content(path)}
    config = parse(files[path], path)
    users, tls = config.basic_auth_users or {}, config.tls_server_config
    if users:
        require_bcrypt()
    if tls is None:
        return Web(path, files, users)
    pair = [str(Path(path).parent / file) for file in (tls.cert_file, tls.key_file)]
    files |= {file: content(file) for file in pair}
    return Web(path, files, users, context_of(*pair, least=tls.min_version), end_of(pair[0]))


def content(file: str) -> bytes:
    """Return the contents of a file. Raise ConfigError if the file cannot be read."""
    try:
        return file_content(file)
    except (OSError, ValueError) as error:  # a NUL or an incomplete character in the path
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: cannot be read: {why}") from error


class WebFile:
    """Reads the web configuration periodically, and keeps the latest valid one (`now`).

    Whether TLS is used is determined at startup. All other settings may change with the files.
    """

    def __init__(self, path: str = "") -> None:
        """Load the configuration. Raise ConfigError if it is invalid: no earlier one exists."""
        try:
            self.now = in_time(lambda: load(path))
        except TimeoutError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        if path and not self.now.is_guarded:
            log.warning(LogEvent("no_guard", file=path, expected=" or ".join(GUARDS)))
        self._error = ""  # the error in the files at present
        self.context = self.now.context  # to listen with
        if self.context:  # renewed certificates apply to new handshakes
            self.context.sni_callback = self._newest

    def _newest(self, connection: "SSLObject", _name: str | None, _: "SSLContext") -> None:
        if self.now.context:
            connection.context = self.now.context

    @property
    def good(self) -> bool:
        return not self._error

    def watch(self) -> None:
        if self.now.path:
            Thread(target=self._watch, name="web-config", daemon=True).start()

    def poll(self) -> None:
        """Load the web configuration again if a file has been modified."""
        before, web, wrong = self.now, self.now, ""
        try:
            if not self.good or {file: content(file) for file in before.files} != before.files:
                web = load(before.path)
        except Exception as error:  # on any error, the previous configuration is kept
            wrong = str(error) if isinstance(error, BadInput) else repr(error)
        if before.is_guarded and not web.is_guarded:  # the file may be half written
            web, wrong = before, f"{before.path}: has no {' and no '.join(GUARDS)} any more"
        if web is not before:
            self._take(web)
            log.info(LogEvent("web_config_loaded", file=web.path))
        elif wrong and wrong != self._error:
            log.error(LogEvent("web_config_failed", file=before.path, error=wrong))
        self._error = wrong

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_INTERVAL)
            self.poll()

    def _take(self, web: Web) -> None:
        before = self.now
        if bool(web.context) != bool(before.context):
            here, new = ("https" if one.context else "http" for one in (before, web))
            where = {"key": "tls_server_config", "file": web.path}
            log.warning(LogEvent("needs_a_restart", **where, in_force=here, new=new))
            end = before.certificate_ends
            web = replace(web, context=before.context, certificate_ends=end)
        self.now = web
