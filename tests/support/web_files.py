"""Web configurations as tests write them, beside the certificates that they name."""

import ssl
from pathlib import Path

from tests.support.certificates import Authority

TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def make_certificates(folder: Path) -> Path:
    """An authority, two pairs of a server, and one that has expired."""
    authority = Authority(folder)
    for name in ("server", "newer"):
        authority.sign(name)
    authority.expired("expired")
    return folder


def web_file(folder: Path, text: str) -> str:
    """Write the web configuration as an editor does: another file under the same name."""
    (folder / "web.new").write_text(text)
    (folder / "web.new").replace(folder / "web.yml")
    return str(folder / "web.yml")


def trusting(folder: Path) -> ssl.SSLContext:
    """A client that trusts the authority."""
    return ssl.create_default_context(cafile=folder / "authority.crt")
