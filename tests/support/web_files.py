"""Web configurations as tests write them, and certificates for them, made by OpenSSL."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority that lives in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        files = ("-keyout", str(self.pair.key), "-out", str(self.pair.cert))
        _openssl("req", "-x509", *CURVE, "-subj", f"/CN={name}", "-days", "2", *files)

    def sign(self, name: str, *names: str) -> Pair:
        """A pair with these names (DNS:..., IP:...) in its certificate."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        names = names or ("DNS:localhost", "IP:127.0.0.1")
        _openssl(
            *("req", "-x509", *CURVE, "-subj", f"/CN={name}", "-days", "2"),
            *("-CA", str(self.pair.cert), "-CAkey", str(self.pair.key)),
            *("-addext", f"subjectAltName={','.join(names)}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", str(pair.key), "-out", str(pair.cert)),
        )
        return pair

    def expired(self, name: str) -> Pair:
        """A pair without names whose time was over a day ago."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request = str(self._folder / f"{name}.csr")
        _openssl("req", *CURVE, "-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", request)
        of = ("-CA", str(self.pair.cert), "-CAkey", str(self.pair.key))
        _openssl("x509", "-req", "-in", request, *of, "-days", "-1", "-out", str(pair.cert))
        return pair


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
