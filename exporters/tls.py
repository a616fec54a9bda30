"""From the names of the web configuration, which are Go's, to a TLS context of Python."""

import ssl
from collections.abc import Callable
from typing import Any

from exporters.web_config import ClientAuth, Tls, WebConfigError

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
        what = f"{tls.cert_file} and {tls.key_file}: are no certificate with its key"
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
