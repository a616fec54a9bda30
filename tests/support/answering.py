"""HTTP servers with one answer for all who ask."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Silent(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, body: bytes, kind: str) -> None:
        """Send all of an answer of this content type."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def answering(content: bytes, status: int = 200, times: int = 1) -> Iterator[str]:
    """The address, HOST:PORT, of a server that answers with this content so many times over."""

    class Handler(Silent):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            with suppress(OSError):  # the client has had enough, or is gone
                for _ in range(times):
                    self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
