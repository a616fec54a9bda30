"""From the names of the web configuration, which are Go's, to a TLS context of Python."""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from exporters.web_config import CIPHERS, ClientAuth, Curve, Tls, Version, WebConfigError

VERSIONS: dict[Version, ssl.TLSVersion] = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}

CLIENT_AUTH: dict[ClientAuth, ssl.VerifyMode] = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # asks for one, and lets in whoever has none or any
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}

CURVES: dict[Curve, str] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}


def context_of(tls: Tls, files: Mapping[str, bytes]) -> ssl.SSLContext:
    """A server's context, of these files by path. Raises WebConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[tls.min_version or "TLS12"]
    context.maximum_version = VERSIONS[tls.max_version or "TLS13"]
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if tls.prefer_server_cipher_suites is False:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_ciphers(context, tls.cipher_suites or ())
    for curve in tls.curve_preferences or ():
        context.set_ecdh_curve(CURVES[curve])
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


def _set_ciphers(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    names = [CIPHERS[suite] for suite in suites if suite in CIPHERS]
    try:
        if names:
            context.set_ciphers(":".join(names))
        elif suites:  # none that TLS 1.2 could use
            context.minimum_version = ssl.TLSVersion.TLSv1_3
    except (ssl.SSLError, ValueError) as error:
        raise _wrong("cipher_suites: OpenSSL serves none of these") from error


def _trust_authority(context: ssl.SSLContext, tls: Tls, files: Mapping[str, bytes]) -> None:
    with _pem(tls.client_ca, tls.client_ca_file, files) as file:
        try:
            context.load_verify_locations(file)
        except (OSError, ValueError) as error:
            place = tls.client_ca_file or "client_ca"
            raise _wrong(f"{place}: holds no certificates: {why(error)}") from error


def _load_certificate(context: ssl.SSLContext, tls: Tls, files: Mapping[str, bytes]) -> None:
    cert_pem, key_pem = _pem(tls.cert, tls.cert_file, files), _pem(tls.key, tls.key_file, files)
    with cert_pem as cert, key_pem as key:
        try:
            # Without a function for it OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(cert, key, password=lambda: "")
        except (OSError, ValueError) as error:
            place = " and ".join((tls.cert_file or "cert", tls.key_file or "key"))
            sentence = f"{place}: are no certificate with its key: {why(error)}"
            raise _wrong(sentence) from error


@contextmanager
def _pem(text: str | None, file: str | None, files: Mapping[str, bytes]) -> Iterator[str]:
    """A path, in memory, under which OpenSSL, which reads files only, finds PEM."""
    try:
        content = text.encode() if text else files[file or ""]
    except ValueError as error:
        raise _wrong("what stands in the file must be text in PEM") from error
    memory = os.memfd_create("pem")
    try:
        os.write(memory, content)
        yield f"/proc/self/fd/{memory}"
    finally:
        os.close(memory)


def why(error: Exception) -> str:
    """The reason alone: no numbers, no lines of C."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower()
