"""Chromium over its debugging pipe: commands of the DevTools protocol, no further library."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests.support.patience import PATIENCE

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-features=Translate,OptimizationHints"),
    "--force-color-profile=srgb",
)
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

Json = dict[str, Any]


def program() -> str | None:
    """Return the path of Chromium, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One browser process; events are kept by session until somebody asks for them."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        pipes = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        profile = f"--user-data-dir={self._profile.name}"
        command = (program() or "chromium", *FLAGS, profile, "about:blank")
        self._process = subprocess.Popen(
            ["bash", "-c", pipes, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = bytearray()
        self._number = 0
        self._answers: dict[int, Json] = {}
        self.listeners: dict[str, Callable[[str, Json], None]] = {}

    def close(self) -> None:
        """End it, and everything it started."""
        try:
            self.ask("Browser.close")
            self._process.wait(PATIENCE)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def ask(self, method: str, session: str = "", **parameters: Any) -> Json:
        """The answer to one command; an error of the browser is raised."""
        self._number += 1
        number = self._number
        command = {"id": number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while number not in self._answers:
            assert time.monotonic() < deadline, f"Chromium does not answer {method}"
            self.listen(0.5)
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: Json = answer["result"]
        return result

    def listen(self, seconds: float) -> None:
        """Take what has come, at most so long after now."""
        ready, _, _ = select.select([self._in], [], [], seconds)
        if not ready:
            return
        received = os.read(self._in, 1 << 20)
        assert received, "Chromium has ended"
        self._buffer += received
        *messages, rest = self._buffer.split(b"\0")
        self._buffer = bytearray(rest)
        for message in messages:
            self._take(json.loads(message))

    def _take(self, message: Json) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif listener := self.listeners.get(message.get("sessionId", "")):
            listener(message["method"], message["params"])
