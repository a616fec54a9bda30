"""The configuration: a TOML file, then the environment, then flags. What is unknown is an error.

The dataclasses below are the schema: a field is a key, its type is the type expected, its default
the default. `deploy/config.toml` is the commented example.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from agent.diagnosis.thresholds import Thresholds
from agent.refusal import BadInput
from agent.sources.options import DEFAULT_IGNORE_DISKS, DEFAULT_IGNORE_NETWORKS
from alerts.checks import CHECKS as CHECKS_OF_ALERTS
from alerts.receivers import Receivers
from alerts.thresholds import Thresholds as AlertThresholds

ENVIRONMENT_PREFIX = "DGX_TELEMETRY_"
DEFAULT_PATH = Path("/etc/dgx-telemetry/config.toml")
LARGEST = 64 * 1024
"""Bytes of a file: ten times the example. The parser's time may grow as the square of it."""
DEFAULT_LISTEN = "127.0.0.1:9935"


class ConfigError(BadInput):
    """One sentence: where, which key, what was expected."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the agent logs to standard error."""

    level: str = "info"
    format: str = "logfmt"


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Per-process series: the largest processes of each GPU, at most so many; 0 for none."""

    series: int = 0


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Whether the jobs on each GPU are exported by name, with their users."""

    info: bool = False


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """Disks whose name matches `ignore` (a regular expression) are left out."""

    ignore: str = DEFAULT_IGNORE_DISKS


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Interfaces whose name matches `ignore` (a regular expression) are left out."""

    ignore: str = DEFAULT_IGNORE_NETWORKS


@dataclass(frozen=True, slots=True)
class SaturationConfig:
    """The share of its limit from which a path is saturated; 0 (which no user can set) stands for
    what the spec sheets say."""

    nvlink: float = 0.0
    pcie: float = 0.0
    hbm: float = 0.0
    disk: float = 0.0
    network: float = 0.0
    infiniband: float = 0.0

    @property
    def configured(self) -> Mapping[str, float]:
        """The shares that are set, by path."""
        shares = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {path: share for path, share in shares.items() if share}


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """A limit that its owner knows better: bytes per second of one path, device and direction."""

    path: str
    device: str
    direction: str
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be configured."""

    listen: str = DEFAULT_LISTEN
    system: str = ""
    specs: str = ""
    web_config_file: str = ""
    log: LogConfig = field(default_factory=LogConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    job: JobConfig = field(default_factory=JobConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    diagnosis: Thresholds = field(default_factory=Thresholds)
    saturation: SaturationConfig = field(default_factory=SaturationConfig)
    alerts: AlertThresholds = field(default_factory=AlertThresholds)
    alertmanager: Receivers = field(default_factory=Receivers)
    limit: tuple[LimitConfig, ...] = ()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return parse_listen(self.listen)


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT`; raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(text)
    if host.startswith("[") and host.endswith("]"):
        return str(ipaddress.IPv6Address(host[1:-1])), int(port)
    if ":" in host:
        raise ValueError(text)
    return host or "0.0.0.0", int(port)


def _is_listen(value: Any) -> bool:
    try:
        parse_listen(value)
    except ValueError:
        return False
    return True


def _is_regex(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("logfmt", "json")

CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "listen": (_is_listen, "HOST:PORT with a port from 0 to 65535"),
    "log.level": (LEVELS.__contains__, "one of " + ", ".join(LEVELS)),
    "log.format": (FORMATS.__contains__, "one of " + ", ".join(FORMATS)),
    "process.series": (lambda n: 0 <= n <= 1000, "a number from 0 to 1000"),
    "diagnosis.held_after": (lambda n: 1 <= n <= 86_400, "a number of seconds from 1 to 86400"),
    "diagnosis.thread_least": (lambda n: 0 < n <= 1024, "a number of cores above 0"),
    "diagnosis.thread_most": (lambda n: 0 < n <= 1024, "a number of cores above 0"),
    "disk.ignore": (_is_regex, "a regular expression"),
    "network.ignore": (_is_regex, "a regular expression"),
    **CHECKS_OF_ALERTS,
}
"""What a value must be besides its type, by key."""

ANY: tuple[Callable[[Any], bool], str] = (lambda _: True, "")
CHECKS_OF_TYPE: dict[type, tuple[Callable[[Any], bool], str]] = {
    float: (lambda n: 0 < n <= 1, "a number above 0 and at most 1"),
}
"""What a value of a type must be where its key has no check of its own: numbers are shares."""

SENT_OR_RECEIVED = ("transmit", "receive")
DIRECTIONS = {
    "nvlink": SENT_OR_RECEIVED,
    "pcie": SENT_OR_RECEIVED,
    "hbm": ("total",),
    "disk": ("read", "write"),
    "network": SENT_OR_RECEIVED,
    "infiniband": SENT_OR_RECEIVED,
}
"""The data paths that a limit can be configured for, and their directions."""

MOST_RATE = 1e18
"""Bytes per second, and the largest of all numbers here; TOML knows no bounds, and floats do."""

TYPE_NAMES = {str: "a string", int: "an integer", bool: "true or false", float: "a number"}


def load(
    path: Path | None,
    environment: Mapping[str, str] = os.environ,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration from a file (if any), then the environment, then flags that are not None.

    Raises ConfigError with one sentence that names the place, the key and what was expected.
    """
    config = Config()
    if path is not None:
        content = _read(path)
        config = replace(config, limit=tuple(_limits(content.pop("limit", []), str(path))))
        for key, value in _flatten(content, ""):
            config = _with(config, key, value, str(path))
    for key, kind in _keys(Config):
        name = ENVIRONMENT_PREFIX + key.replace(".", "_").upper()
        if name in environment:
            config = _with(config, key, _from_text(environment[name], key, kind, name), name)
    for key, value in (flags or {}).items():
        if value is not None:
            config = _with(config, key, value, f"--{key}")
    least, most = config.diagnosis.thread_least, config.diagnosis.thread_most
    if least > most:
        raise ConfigError(
            f"diagnosis.thread_least ({least:g}) must not be above diagnosis.thread_most ({most:g})"
        )
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(f"{path}: has more than {LARGEST} bytes, expected a TOML file")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text, expected a TOML file") from error
    except (ValueError, RecursionError) as error:  # its own errors, or Python's limits
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and any(k.startswith(f"{prefix}{key}.") for k in _known()):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _limits(entries: Any, where: str) -> Iterator[LimitConfig]:
    """The `[[limit]]` tables of a file."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{where}: limit must be a list of tables, written as [[limit]]")
    names = [entry.name for entry in fields(LimitConfig)]
    seen: set[tuple[str, ...]] = set()
    for number, entry in enumerate(entries, 1):
        place = f"{where}: limit {number}"
        if sorted(entry) != sorted(names):
            raise ConfigError(f"{place} must have the keys {', '.join(names)}, and no others")
        directions = DIRECTIONS.get(entry["path"]) if isinstance(entry["path"], str) else None
        if directions is None:
            raise ConfigError(f"{place}: path must be one of {', '.join(DIRECTIONS)}")
        if entry["direction"] not in directions:
            raise ConfigError(f"{place}: direction must be one of {', '.join(directions)}")
        if not isinstance(entry["device"], str) or not entry["device"]:
            raise ConfigError(f"{place}: device must be a name such as md0, eth0 or gpu0")
        if not _is_rate(entry["bytes_per_second"]):
            expected = f"a number above 0 and at most {MOST_RATE:g}"
            raise ConfigError(f"{place}: bytes_per_second must be {expected}")
        path = tuple(entry[name] for name in names[:3])
        if path in seen:
            raise ConfigError(f"{place}: {' '.join(path)} has a limit already, expected one")
        seen.add(path)
        yield LimitConfig(**{**entry, "bytes_per_second": float(entry["bytes_per_second"])})


def _is_rate(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value <= MOST_RATE


def _keys(schema: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Every key with its type, tables flattened with dots."""
    for entry in fields(schema):
        kind = cast(type, entry.type)
        if entry.name == "limit":  # a list of tables: in the file only
            continue
        if is_dataclass(kind):
            yield from _keys(kind, f"{prefix}{entry.name}.")
        else:
            yield prefix + entry.name, kind


def _known() -> dict[str, type]:
    return dict(_keys(Config))


def _with(config: Config, key: str, value: Any, where: str) -> Config:
    """The configuration with one key set, after its checks."""
    known = _known()
    if key not in known:
        shown = f"{key:.60}" if key.isprintable() else f"{key!r:.60}"
        expected = ", ".join(known)
        raise ConfigError(f"{where}: {shown} is not a known key, expected one of {expected}")
    kind = known[key]
    if kind is float and type(value) is int and abs(value) <= MOST_RATE:
        value = float(value)
    if type(value) is not kind:
        shown = f"{value!r:.60} ({type(value).__name__})"
        raise ConfigError(f"{where}: {key} must be {TYPE_NAMES[kind]}, not {shown}")
    check, expected = CHECKS.get(key) or CHECKS_OF_TYPE.get(kind, ANY)
    if not check(value):
        raise ConfigError(f"{where}: {key} must be {expected}, not {value!r:.60}")
    table, _, name = key.rpartition(".")
    if table:
        name, value = table, replace(getattr(config, table), **{name: value})
    changes: dict[str, Any] = {name: value}
    return replace(config, **changes)


def _from_text(text: str, key: str, kind: type, where: str) -> Any:
    """A value from an environment variable."""
    read = FROM_TEXT.get(kind)
    if read is None:
        return text
    try:
        return read(text)
    except (ValueError, KeyError) as error:
        shown = f"{TYPE_NAMES[kind]}, not {text!r:.60}"
        raise ConfigError(f"{where}: {key} must be {shown}") from error


FROM_TEXT: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
}
"""How each type is written in the environment; text is itself."""
