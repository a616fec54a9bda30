"""From the names of the web configuration, which are Go's, to a TLS context of Python."""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from exporters.web_config import ClientAuth, Tls, Version, WebConfigError

VERSIONS: dict[Version, ssl.TLSVersion] = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}

CLIENT_AUTH: dict[ClientAuth, ssl.VerifyMode] = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # asks for one, and lets in who has none or any
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


def context_of(tls: Tls, files: Mapping[str, bytes]) -> ssl.SSLContext:
    """A server's context, of these files by path. Raises WebConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[tls.min_version or "TLS12"]
    context.maximum_version = VERSIONS[tls.max_version or "TLS13"]
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.verify_mode = CLIENT_AUTH[tls.client_auth_type or "NoClientCert"]
    if context.verify_mode is not ssl.CERT_NONE:
        _trust_authority(context, tls, files)
    _load_certificate(context, tls, files)
    return context


class NewestContext(ssl.SSLContext):
    """Wraps each connection in the context that holds when it comes: what is renewed takes effect
    with the next handshake, and whole, which loading a pair into a context in use could not do."""

    _newest: Callable[[], ssl.SSLContext | None]

    @classmethod
    def of(cls, newest: Callable[[], ssl.SSLContext | None]) -> "NewestContext":
        """A context to listen with."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._newest = newest
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """As the newest context does."""
        newest = self._newest()
        assert newest is not None  # who listens with TLS goes on with it
        return newest.wrap_bio(*arguments, **named)


def _wrong(sentence: str) -> WebConfigError:
    return WebConfigError(f"tls_server_config: {sentence}")


def _trust_authority(context: ssl.SSLContext, tls: Tls, files: Mapping[str, bytes]) -> None:
    with _in_memory(tls.client_ca_file, files) as file:
        try:
            context.load_verify_locations(file)
        except (OSError, ValueError) as error:
            raise _wrong(f"{tls.client_ca_file}: holds no certificates: {why(error)}") from error


def _load_certificate(context: ssl.SSLContext, tls: Tls, files: Mapping[str, bytes]) -> None:
    with _in_memory(tls.cert_file, files) as cert, _in_memory(tls.key_file, files) as key:
        try:
            # Without a function for it OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(cert, key, password=lambda: "")
        except (OSError, ValueError) as error:
            files_named = f"{tls.cert_file} and {tls.key_file}"
            sentence = f"{files_named}: are no certificate with its key: {why(error)}"
            raise _wrong(sentence) from error


@contextmanager
def _in_memory(file: str | None, files: Mapping[str, bytes]) -> Iterator[str]:
    """A path in memory with what was read from a file: certificate and key are of one reading, and
    OpenSSL reads paths alone."""
    memory = os.memfd_create("pem")
    try:
        os.write(memory, files[file or ""])
        yield f"/proc/self/fd/{memory}"
    finally:
        os.close(memory)


def why(error: Exception) -> str:
    """The reason alone: no numbers, no lines of C."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower()
