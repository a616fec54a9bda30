"""The web configuration: TLS and passwords, in the YAML format that the Prometheus exporters share
(exporter-toolkit). What is unknown is an error, in one sentence: what another key of that format
asks for is refused, never ignored.
"""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from agent.config.decoding import Mismatch, TextCheck, decode
from agent.errors import BadInput

HASH = re.compile(r"\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""Cost, 22 characters of salt (two bits of the last), 31 of hash. A check at cost 14 takes about a
second of a core, and each step of the cost doubles it."""


class WebConfigError(BadInput):
    """One sentence: where, which key, what was expected."""


Text = str | None
"""A string; a key without a value counts as left out."""

Version = Literal["TLS12", "TLS13"]
ClientAuth = Literal[
    "NoClientCert", "RequestClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
]
"""Without the two of Go that would let in any certificate."""

VERIFYING = ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
FILES = ("cert_file", "key_file", "client_ca_file")
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
        return bool(self.files) or self.client_auth_type is not None

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file for name in FILES if (file := getattr(self, name)))

    def within(self, folder: Path) -> "Tls":
        named = {name: getattr(self, name) for name in FILES}
        return replace(self, **{n: str(folder / file) for n, file in named.items() if file})


class WebConfig(WebSection, frozen=True):
    """The whole file; without TLS HTTP is plain, without users no one is asked."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, Annotated[str, Hash]] | None = None

    @property
    def users(self) -> Mapping[str, str]:
        return self.basic_auth_users or {}


def parse(content: bytes, path: Path) -> WebConfig:
    """The configuration that stands in the file of this path; raises WebConfigError. Certificates
    are not looked at here."""
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


def parse_yaml(content: bytes) -> Any:
    """YAML in which a key is a string and stands once; raises ValueError with what is wrong and in
    which line, without a letter of the file, which may hold secrets."""
    import yaml  # a megabyte of memory that most agents never need

    class Strict(yaml.SafeLoader):
        """Refuses what YAML itself lets pass."""

        def construct_mapping(
            self, node: yaml.MappingNode, deep: bool = False
        ) -> dict[Hashable, Any]:
            keys = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                wrong = f"{key!r} stands twice" if isinstance(key, str) and key in keys else ""
                if not isinstance(key, str):
                    wrong = f"the key {key!r:.40} is not a string"
                if wrong:
                    raise yaml.constructor.ConstructorError(None, None, wrong, key_node.start_mark)
                keys.add(key)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(content.decode(), Loader=Strict)  # noqa: S506  (safe)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{error.problem}{where}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
