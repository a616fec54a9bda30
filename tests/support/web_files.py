"""Web configurations as tests write them, beside the certificates that they name."""

import ssl
from pathlib import Path

from tests.support.certificates import Authority, Pair

TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def make_certificates(folder: Path) -> Path:
    """An authority, pairs of a server and of two clients, and a client of another authority."""
    authority = Authority(folder)
    for name in ("server", "newer"):
        authority.sign(name)
    authority.sign("prometheus", "DNS:prometheus.example")
    authority.sign("visitor", "DNS:visitor.example", "IP:192.0.2.7")
    authority.expired("expired")
    Authority(folder, "stranger").sign("impostor", "DNS:prometheus.example")
    return folder


def web_file(folder: Path, text: str) -> str:
    """Write the web configuration as an editor does: another file under the same name."""
    (folder / "web.new").write_text(text)
    (folder / "web.new").replace(folder / "web.yml")
    return str(folder / "web.yml")


def trusting(folder: Path, pair: str = "") -> ssl.SSLContext:
    """A client that trusts the authority and shows a certificate where one is named."""
    context = ssl.create_default_context(cafile=folder / "authority.crt")
    if pair:
        shown = Pair(folder / f"{pair}.crt", folder / f"{pair}.key")
        context.load_cert_chain(shown.cert, shown.key)
    return context
