"""From the names of the web configuration, which are Go's, to a TLS context of Python."""

import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.config.regular_file import read_regular
from exporters.web_config import Tls, WebConfigError

LARGEST = 1024 * 1024
"""Bytes of a file with certificates: an authority may come with hundreds."""

VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
OLD_VERSIONS = frozenset({"TLS10", "TLS11"})

CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # asks for one, and lets in whoever has none or any
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
UNVERIFIED = frozenset({"RequireAnyClientCert", "RequireClientCert"})

CIPHERS_OF_TLS13 = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
"""Always offered with TLS 1.3, by Go too, whatever the list says."""

KEY_EXCHANGES = {"RSA": "", "ECDHE_RSA": "ECDHE-RSA-", "ECDHE_ECDSA": "ECDHE-ECDSA-"}
BLOCK_CIPHERS = {
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
CIPHERS = {
    f"TLS_{exchange}_WITH_{cipher}": prefix + name
    for exchange, prefix in KEY_EXCHANGES.items()
    for cipher, name in BLOCK_CIPHERS.items()
    if (exchange, cipher) != ("RSA", "CHACHA20_POLY1305_SHA256")
}
"""OpenSSL's names of the suites up to TLS 1.2, by Go's."""

CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}


def context_of(tls: Tls) -> ssl.SSLContext:
    """A server's context; reads certificates and key. Raises WebConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _version(tls.min_version, "min_version", "TLS12")
    context.maximum_version = _version(tls.max_version, "max_version", "TLS13")
    if context.minimum_version > context.maximum_version:
        raise _wrong("min_version must not be above max_version")
    _set_ciphers(context, tls.cipher_suites or ())
    if tls.prefer_server_cipher_suites is False:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_curve(context, tls.curve_preferences or ())
    _set_clients(context, tls)
    _load_certificate(context, tls)
    return context


class NewestContext(ssl.SSLContext):
    """Wraps each connection in the context that holds when it comes: what is renewed takes effect
    with the next handshake, and whole, which loading a pair into a context in use could not do."""

    _newest: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, newest: Callable[[], ssl.SSLContext]) -> "NewestContext":
        """A context to listen with."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._newest = newest
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """As the newest context does."""
        return self._newest().wrap_bio(*arguments, **named)


def _wrong(sentence: str) -> WebConfigError:
    return WebConfigError(f"tls_server_config: {sentence}")


def _version(wanted: str | None, key: str, default: str) -> ssl.TLSVersion:
    name = default if wanted is None else wanted
    if name in OLD_VERSIONS:
        raise _wrong(f"{key} is {name}, which is not served any more: expected TLS12 or TLS13")
    if name not in VERSIONS:
        raise _wrong(f"{key} must be {' or '.join(VERSIONS)}, not {name!r}")
    return VERSIONS[name]


def _set_ciphers(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    for suite in suites:
        if suite not in CIPHERS and suite not in CIPHERS_OF_TLS13:
            raise _wrong(f"cipher_suites: {suite!r} is no cipher suite that Go calls secure")
    names = [CIPHERS[suite] for suite in suites if suite in CIPHERS]
    try:
        if names:
            context.set_ciphers(":".join(names))
        elif suites:  # none that TLS 1.2 could use
            context.minimum_version = ssl.TLSVersion.TLSv1_3
    except (ssl.SSLError, ValueError) as error:
        raise _wrong("cipher_suites: OpenSSL serves none of these") from error


def _set_curve(context: ssl.SSLContext, curves: Sequence[str]) -> None:
    for curve in curves:
        if curve not in CURVES:
            raise _wrong(f"curve_preferences: {curve!r} must be one of {', '.join(CURVES)}")
    if len(curves) > 1:  # SSLContext takes one; to serve another selection than asked is no answer
        raise _wrong("curve_preferences can name one curve; leave it out for OpenSSL's own order")
    if curves:
        context.set_ecdh_curve(CURVES[curves[0]])


def _set_clients(context: ssl.SSLContext, tls: Tls) -> None:
    policy = tls.client_auth_type or "NoClientCert"
    if policy in UNVERIFIED:
        expected = "RequireAndVerifyClientCert"
        raise _wrong(f"client_auth_type {policy} would let in any certificate: expected {expected}")
    if policy not in CLIENT_AUTH:
        raise _wrong(f"client_auth_type must be one of {', '.join(CLIENT_AUTH)}, not {policy!r}")
    if tls.client_allowed_sans and policy != "RequireAndVerifyClientCert":
        raise _wrong("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
    authority = tls.client_ca or tls.client_ca_file
    if bool(authority) != (CLIENT_AUTH[policy] is not ssl.CERT_NONE):
        needs = "needs client_ca_file" if not authority else "does not go with client_ca_file"
        raise _wrong(f"client_auth_type {policy} {needs}")
    if authority:
        with _pem(tls.client_ca, tls.client_ca_file) as file:
            try:
                context.load_verify_locations(file)
            except (OSError, ValueError) as error:
                place = tls.client_ca_file or "client_ca"
                raise _wrong(f"{place}: holds no certificates: {why(error)}") from error
    context.verify_mode = CLIENT_AUTH[policy]


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    with _pem(tls.cert, tls.cert_file) as cert, _pem(tls.key, tls.key_file) as key:
        try:
            # Without a function for it OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(cert, key, password=lambda: "")
        except (OSError, ValueError) as error:
            place = " and ".join((tls.cert_file or "cert", tls.key_file or "key"))
            sentence = f"{place}: are no certificate with its key: {why(error)}"
            raise _wrong(sentence) from error


@contextmanager
def _pem(text: str | None, path: str | None) -> Iterator[str]:
    """A path under which OpenSSL, which reads files only, finds what stands in the configuration
    or in the file that it names: in memory, so that it never waits for a FIFO."""
    try:
        content = text.encode() if text else read_regular(Path(path or ""), LARGEST)
    except OSError as error:
        raise _wrong(f"{path}: cannot be read: {error.strerror}") from error
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
