"""The web configuration: TLS, passwords, headers and a rate limit, in the YAML format that the
Prometheus exporters share (exporter-toolkit). What is unknown is an error, in one sentence.

What another key of that format asks for and Python's TLS cannot do is refused, never ignored.
"""

import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from agent.config.decoding import Mismatch, TextCheck, decode
from agent.errors import BadInput

HASH = re.compile(r"\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""Cost, 22 characters of salt (two bits of the last), 31 of hash. A check at cost 14 takes about a
second of a core, and each step of the cost doubles it."""

DURATION = re.compile(r"((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+")
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class WebConfigError(BadInput):
    """One sentence: where, which key, what was expected."""


def seconds_of(duration: str) -> float:
    """Seconds of a duration as Go writes it; infinite for what is none."""
    if not DURATION.fullmatch(duration):
        return float("inf")
    parts = re.findall(r"([\d.]+)([a-zµ]+)", duration)
    return sum(float(number) * UNITS[unit] for number, unit in parts)


Text = str | None
"""A string; a key without a value counts as left out."""

Version = Literal["TLS12", "TLS13"]
ClientAuth = Literal[
    "NoClientCert", "RequestClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
]
"""Without the two of Go that would let in any certificate."""

VERIFYING = ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")

Line = Annotated[str, TextCheck(str.isprintable, "printable text on one line")]
Nosniff = Annotated[str, TextCheck(("", "nosniff").__contains__, "nosniff")]
Framing = Annotated[str, TextCheck(("", "deny", "sameorigin").__contains__, "deny or sameorigin")]
Duration = TextCheck(lambda text: isfinite(seconds_of(text)), "a duration such as 1s")
Hash = TextCheck(
    lambda text: HASH.fullmatch(text) is not None,
    "a bcrypt hash of a cost from 4 to 14 (htpasswd -nBC 10 prints one)",
)


class WebSection(Struct, frozen=True, forbid_unknown_fields=True):
    """One mapping of the file; its fields are the keys."""

    def __repr__(self) -> str:
        """No values: some are secrets."""
        return f"{type(self).__name__}(...)"


class Tls(WebSection, frozen=True):
    """`tls_server_config`. Files are absolute or relative to the web configuration."""

    cert_file: Text = None
    key_file: Text = None
    client_ca_file: Text = None
    client_auth_type: ClientAuth | None = None
    client_allowed_sans: tuple[str, ...] | None = None
    min_version: Version | None = None
    max_version: Version | None = None

    def __post_init__(self) -> None:
        """Refuse keys that do not go together."""
        if not self.is_on:
            return
        for name in ("cert_file", "key_file"):
            if not getattr(self, name):
                raise Mismatch(name, "", "given with tls_server_config")
        if (self.min_version or "") > (self.max_version or "TLS13"):
            raise Mismatch("min_version", "", "at most max_version")
        policy = self.client_auth_type or "NoClientCert"
        if self.client_allowed_sans and policy != "RequireAndVerifyClientCert":
            needed = "RequireAndVerifyClientCert, which client_allowed_sans needs"
            raise Mismatch("client_auth_type", "", needed)
        if bool(self.client_ca_file) != (policy in VERIFYING):
            needed = "given" if policy in VERIFYING else "left out"
            raise Mismatch("client_ca_file", "", f"{needed} with client_auth_type {policy}")

    @property
    def is_on(self) -> bool:
        """Whether anything switches TLS on, as in the toolkit."""
        return bool(self.files) or self.client_auth_type is not None

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it names."""
        return tuple(f for f in (self.cert_file, self.key_file, self.client_ca_file) if f)

    def within(self, folder: Path) -> "Tls":
        """With its files' whole paths."""
        named = {n: getattr(self, n) for n in ("cert_file", "key_file", "client_ca_file")}
        return replace(self, **{n: str(folder / file) for n, file in named.items() if file})


class Headers(WebSection, frozen=True):
    """`http_server_config.headers`: those that can be set."""

    policy: Line | None = field(default=None, name="Content-Security-Policy")
    transport: Line | None = field(default=None, name="Strict-Transport-Security")
    sniffing: Nosniff | None = field(default=None, name="X-Content-Type-Options")
    framing: Framing | None = field(default=None, name="X-Frame-Options")
    scripting: Line | None = field(default=None, name="X-XSS-Protection")


class HttpServer(WebSection, frozen=True):
    """`http_server_config`."""

    http2: bool | None = None
    headers: Headers | None = None


class RateLimit(WebSection, frozen=True):
    """`rate_limit`: a token every `interval`, at most `burst` of them saved up."""

    interval: Annotated[str | int, Duration] | None = None
    burst: Annotated[int, Meta(ge=0, le=10**9, description="a whole number to 10^9")] | None = None

    def __post_init__(self) -> None:
        """Refuse what the types cannot: a number without a unit that is not 0; no tokens at all."""
        if isinstance(self.interval, int) and self.interval:
            raise Mismatch("interval", "a number without unit", Duration.description)
        if self.seconds and not self.burst:
            raise Mismatch("burst", "0", "at least 1, or no one is ever answered")

    @property
    def seconds(self) -> float:
        """The interval; 0 for no limit."""
        return seconds_of(self.interval) if isinstance(self.interval, str) else 0.0


class WebConfig(WebSection, frozen=True):
    """The whole file; without TLS HTTP is plain, without users no one is asked."""

    tls_server_config: Tls | None = None
    http_server_config: HttpServer | None = None
    basic_auth_users: dict[str, Annotated[str, Hash]] | None = None
    rate_limit: RateLimit | None = None

    @property
    def http2(self) -> bool:
        """Whether HTTP/2 is asked for, which is not served."""
        return self.http_server_config is not None and bool(self.http_server_config.http2)

    @property
    def users(self) -> Mapping[str, str]:
        """Password hashes by user."""
        return self.basic_auth_users or {}

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that every answer gets."""
        chosen = self.http_server_config.headers if self.http_server_config else None
        if chosen is None:
            return {}
        names = zip(chosen.__struct_encode_fields__, chosen.__struct_fields__, strict=True)
        return {name: text for name, key in names if (text := getattr(chosen, key))}


def parse(content: bytes, path: Path) -> WebConfig:
    """The configuration that stands in the file of this path; raises WebConfigError. Certificates
    are not looked at here."""
    from exporters.web_yaml import parse_yaml  # a megabyte of memory that most agents never need

    try:
        document = parse_yaml(content)
        config = decode({} if document is None else document, WebConfig)
    except Mismatch as error:  # without what stands there: it may be a secret
        demand = f"{error.key or 'the file'} must be {error.expected}"
        raise WebConfigError(f"{path}: {error if error.of_key else demand}") from error
    except ValueError as error:
        raise WebConfigError(f"{path}: is not YAML in UTF-8: {error}") from error
    tls = config.tls_server_config
    tls = tls.within(path.parent) if tls and tls.is_on else None
    return replace(config, tls_server_config=tls)
