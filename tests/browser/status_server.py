"""A page with a status of its own: the files of the page, and a stream that says what a test wants.

Layout depends on the status alone: no agent, no machine and no speed of one.
"""

import json
import threading
from base64 import b64encode
from contextlib import suppress
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import guess_type
from typing import Any

from agent.model import PAIRS
from exporters.live.page import HEADERS, INDEX, PLACE, STATIC
from tests.support.answering import Silent
from tests.support.repository import ROOT

Json = dict[str, Any]
EXAMPLE = ROOT / "tests/agent/status/example.json"
STATES = [None, *(f"{state}/{cause}" for state, cause in PAIRS), "lost/none"]
WORDS = {pair: pair.replace("/none", "").replace("/", " by ") for pair in STATES if pair}
SECONDS, SO = 300, 30
"""Seconds of the history before a status: of work, but for the last that are as they are now."""


def example() -> Json:
    """A copy of the status written by hand: GPU 3 is lost, and its job hangs."""
    status: Json = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    return status


def history(status: Json) -> Json:
    """The seconds before a status."""
    scale = {"unit": "ratio", "scale": 0.005, "bytes": 1, "gap": 255}
    return {
        "whole": True,
        "newest": status["second"] - 1,
        "slots": SECONDS,
        "states": STATES,
        "words": WORDS,
        "series": {"share": scale, "activity": scale},
        "gpus": {gpu["uuid"]: columns(gpu) for gpu in status["gpus"]},
    }


def columns(gpu: Json) -> Json:
    state = f"{gpu['state']}/{gpu['cause']}" if gpu["state"] else "lost/none" * gpu["lost"] or None
    states = [STATES.index("busy/none")] * (SECONDS - SO) + [STATES.index(state)] * SO
    pairs = {"busy/none", state or "lost/none"} - {"lost/none"}
    shares = {p: [200 * (code == STATES.index(p)) for code in states] for p in pairs}
    return {
        "state": encoded(states),
        "shares": {pair: encoded(codes) for pair, codes in shares.items()},
        "activity": encoded([200] * SECONDS),
    }


def encoded(codes: list[int]) -> str:
    return b64encode(bytes(codes)).decode()


def later(status: Json) -> Json:
    """The same, a second later."""
    return {**deepcopy(status), "second": status["second"] + 1, "tick": status["tick"] + 1}


class StatusServer(ThreadingHTTPServer):
    """Serves one page; `with` ends it. `show` sends another status to all that are open."""

    daemon_threads = True

    def __init__(self, status: Json) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.documents: dict[str, Json] = {"/api/v1/hours": {"hours": []}}
        self.ended = False
        self.changed = threading.Condition()
        self.address = f"http://127.0.0.1:{self.server_port}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.shutdown()
        self.server_close()

    def show(self, status: Json) -> None:
        with self.changed:
            self.status = status
            self.changed.notify_all()

    def index(self) -> bytes:
        first = json.dumps([["history", history(self.status)], ["status", self.status]])
        text = (STATIC / INDEX).read_text(encoding="utf-8")
        return text.replace(PLACE, PLACE + first.replace("<", "\\u003c")).encode()


class Handler(Silent, BaseHTTPRequestHandler):
    server: StatusServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self.answer(self.server.index(), "text/html; charset=utf-8")
        elif path == "/api/v1/stream":
            self.stream()
        elif path in self.server.documents:
            self.answer(json.dumps(self.server.documents[path]).encode(), "application/json")
        else:
            file = STATIC / path[1:]
            self.answer(file.read_bytes(), guess_type(file.name)[0] or "")

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        """A status when it changes, and each second: a page is stale after three without one."""
        page = self.server
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        shown: Json | None = None
        with suppress(OSError):  # the page was closed
            self.event("history", history(page.status))
            while not page.ended:
                with page.changed:
                    if shown is page.status:
                        page.changed.wait(1)
                    shown = page.status
                self.event("status", shown)

    def event(self, name: str, data: Json) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
