"""Receivers of alerts: a webhook, which Slack's may be too, and an SMTP server, in this process."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.answering import Silent


@dataclass(frozen=True)
class Delivery:
    """One alert of one message."""

    at: float  # monotonic seconds
    path: str
    status: str  # firing or resolved
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def name(self) -> str:
        return self.labels["alertname"]

    @property
    def instance(self) -> str:
        return self.labels.get("instance", "")

    @property
    def text(self) -> str:
        return f"{self.annotations.get('summary')} {self.annotations.get('description')}"


@dataclass
class Inbox:
    """Everything that arrived, in order."""

    port: int = 0
    deliveries: list[Delivery] = field(default_factory=list)
    mails: list[str] = field(default_factory=list)
    slack: list[dict[str, str]] = field(default_factory=list)  # title and text of each message

    def of(self, instance: str, path: str = "/alerts") -> list[Delivery]:
        return [d for d in list(self.deliveries) if d.instance == instance and d.path == path]

    def firing(self, instance: str) -> dict[tuple[tuple[str, str], ...], Delivery]:
        """The newest delivery of each alert that has not been resolved, by its labels."""
        newest = {tuple(sorted(d.labels.items())): d for d in self.of(instance)}
        return {key: d for key, d in newest.items() if d.status == "firing"}

    def names(self, instance: str) -> set[str]:
        """The alerts that are firing."""
        return {d.name for d in self.firing(instance).values()}


@contextmanager
def webhook() -> Iterator[Inbox]:
    """An HTTP server that keeps what Alertmanager posts, by path."""
    inbox = Inbox()

    class Handler(Silent, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            now = time.monotonic()
            inbox.deliveries += [
                Delivery(now, self.path, a["status"], a["labels"], a["annotations"])
                for a in body.get("alerts", ())
            ]
            inbox.slack += body.get("attachments", ())
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as inbox.port:
        yield inbox


class _Mailbox(socketserver.StreamRequestHandler):
    """As much SMTP as a message needs."""

    def handle(self) -> None:
        self._say("220 sink")
        while line := self.rfile.readline().decode().strip():
            verb = line.split(" ", 1)[0].upper()
            if verb == "DATA":
                self._say("354 go on")
                lines = iter(lambda: self.rfile.readline().decode(), ".\r\n")
                mail = "".join(line.removeprefix(".") for line in lines)  # RFC 5321, 4.5.2
                self.server.inbox.mails.append(mail)  # type: ignore[attr-defined]
            self._say({"QUIT": "221 bye"}.get(verb, "250 ok"))
            if verb == "QUIT":
                return

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def mailbox(inbox: Inbox) -> Iterator[int]:
    """An SMTP server that keeps what it is sent; its port."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mailbox)
    server.inbox = inbox  # type: ignore[attr-defined]
    with _serving(server) as port:
        yield port


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
