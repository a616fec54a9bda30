"""The web configuration: TLS, passwords, headers and a rate limit, in the YAML format that the
Prometheus exporters share (exporter-toolkit). What is unknown is an error, in one sentence.

What another key of that format asks for and Python's TLS cannot do is refused, never ignored.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.refusal import BadInput


class WebConfigError(BadInput):
    """One sentence: where, which key, what was expected."""


@dataclass(frozen=True, slots=True)
class Tls:
    """`tls_server_config`. Files are absolute or relative to the web configuration; what stands
    in it itself (`cert`, `key`, `client_ca`) is PEM text."""

    cert: str = ""
    key: str = field(default="", repr=False)
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: str = "NoClientCert"
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it names."""
        return tuple(f for f in (self.cert_file, self.key_file, self.client_ca_file) if f)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token every `interval` seconds, at most `burst` of them saved up; 0 seconds: no limit."""

    interval: float = 0.0
    burst: int = 0


@dataclass(frozen=True, slots=True)
class WebConfig:
    """One file, read and checked; without `tls` HTTP is plain, without `users` nobody is asked."""

    tls: Tls | None = None
    http2: bool = False  # asked for
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit = field(default_factory=RateLimit)


Take = Callable[[WebConfig, Any, Path], WebConfig]
"""Enters the value of one top-level key; `Path` is the file, for messages and relative paths."""


def read(path: Path) -> WebConfig:
    """The configuration in a file; raises WebConfigError. Certificates are not looked at here."""
    from exporters.web_yaml import load  # a megabyte of memory that most agents never need

    try:
        content = load(path)
    except OSError as error:
        raise WebConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise WebConfigError(f"{path}: is not YAML in UTF-8: {error}") from error
    config = WebConfig()
    for key, value in _table({} if content is None else content, "the file", path).items():
        take = SECTIONS.get(key)
        if take is None:
            expected = ", ".join(SECTIONS)
            raise WebConfigError(f"{path}: {key!r} is no known key, expected one of {expected}")
        if value is not None:
            config = take(config, value, path)
    return config


def _table(value: Any, key: str, path: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise WebConfigError(f"{path}: {key} must be a mapping of keys to values")
    return value


def _fields(value: Any, key: str, kinds: Mapping[str, type], path: Path) -> dict[str, Any]:
    """A mapping with no keys but these, and values of their types; None counts as left out."""
    found = {}
    for name, entry in _table(value, key, path).items():
        kind = kinds.get(name)
        if kind is None:
            shown = name if str(name).isprintable() else repr(name)
            expected = ", ".join(kinds)
            raise WebConfigError(f"{path}: {key}.{shown} is no known key, expected {expected}")
        if entry is None:
            continue
        if kind is tuple:
            texts = isinstance(entry, list) and all(isinstance(text, str) for text in entry)
            entry = tuple(entry) if texts else entry  # noqa: PLW2901
        if type(entry) is not kind:
            # not what stands there: it may be a secret
            raise WebConfigError(f"{path}: {key}.{name} must be {KINDS[kind]}")
        found[name] = entry
    return found


KINDS = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    tuple: "a list of strings",
    dict: "a mapping of keys to values",
}
TLS_KEYS: dict[str, type] = {
    **dict.fromkeys(("cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file"), str),
    **dict.fromkeys(("client_auth_type", "min_version", "max_version"), str),
    **dict.fromkeys(("cipher_suites", "curve_preferences", "client_allowed_sans"), tuple),
    "prefer_server_cipher_suites": bool,
}


def _tls(config: WebConfig, value: Any, path: Path) -> WebConfig:
    key = "tls_server_config"
    found = _fields(value, key, TLS_KEYS, path)
    for name in ("cert_file", "key_file", "client_ca_file"):
        if found.get(name):
            found[name] = str(path.parent / found[name])
    tls = Tls(**found)
    if not (tls.files or tls.cert or tls.key or tls.client_ca or "client_auth_type" in found):
        return config  # as the toolkit: nothing that switches TLS on
    for name in ("cert", "key"):
        if bool(getattr(tls, name)) == bool(getattr(tls, f"{name}_file")):
            raise WebConfigError(f"{path}: {key} must have one of {name} and {name}_file")
    if tls.client_ca and tls.client_ca_file:
        raise WebConfigError(f"{path}: {key} must not have both client_ca and client_ca_file")
    return replace(config, tls=tls)


HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that can be set, with their values where only some are good."""


def _http(config: WebConfig, value: Any, path: Path) -> WebConfig:
    key = "http_server_config"
    found = _fields(value, key, {"http2": bool, "headers": dict}, path)
    headers = _fields(found.get("headers", {}), f"{key}.headers", dict.fromkeys(HEADERS, str), path)
    for name, text in headers.items():
        good = HEADERS[name]
        if good and text and text not in good:
            expected = " or ".join(good)
            raise WebConfigError(f"{path}: {key}.headers.{name} must be {expected}, not {text!r}")
        if not text.isprintable():
            raise WebConfigError(f"{path}: {key}.headers.{name} must be printable, on one line")
    http2 = found.get("http2", False)
    return replace(config, http2=http2, headers={n: text for n, text in headers.items() if text})


HASH = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""Cost, 22 characters of salt (two bits of the last), 31 of hash."""


def _users(config: WebConfig, value: Any, path: Path) -> WebConfig:
    users = _table(value, "basic_auth_users", path)
    for user, stored in users.items():
        if not isinstance(user, str):
            raise WebConfigError(f"{path}: basic_auth_users: {user!r} must be a string")
        if not isinstance(stored, str) or not HASH.fullmatch(stored):
            message = f"{path}: basic_auth_users: the password of {user!r} must be a bcrypt hash"
            raise WebConfigError(f"{message} (htpasswd -nBC 10 prints one)")
    return replace(config, users=users)


DURATION = re.compile(r"((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+")
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _rate_limit(config: WebConfig, value: Any, path: Path) -> WebConfig:
    key = "rate_limit"
    interval = _table(value, key, path).get("interval")
    if type(interval) is int and interval == 0:
        value = {**value, "interval": "0s"}
    found = _fields(value, key, {"interval": str, "burst": int}, path)
    text, burst = found.get("interval", "0s"), found.get("burst", 0)
    if not DURATION.fullmatch(text):
        raise WebConfigError(f"{path}: {key}.interval must be a duration such as 1s, not {text!r}")
    parts = re.findall(r"([\d.]+)([a-zµ]+)", text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if burst < 0 or (seconds and not burst):
        raise WebConfigError(f"{path}: {key}.burst must be at least 1, or nobody is ever answered")
    return replace(config, rate_limit=RateLimit(seconds, burst))


SECTIONS: dict[str, Take] = {
    "tls_server_config": _tls,
    "http_server_config": _http,
    "basic_auth_users": _users,
    "rate_limit": _rate_limit,
}
