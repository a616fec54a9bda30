"""One page in Chromium: what it shows, what it complains of, what it asks for over the wire."""

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.browser.chromium import Chromium, Json
from tests.support.patience import PATIENCE

GRAVE = {"error", "warning", "assert"}  # what a console says that no one should overlook
Size = tuple[int, int]
WIDE, NARROW = (1400, 900), (390, 844)

NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""Chromium drops what it fetches when an interface comes, such as that of a container."""


class Page:
    """A tab of its own browser context: nothing is shared with other tabs but the process."""

    def __init__(self, browser: Chromium, size: Size = WIDE, theme: str = "light") -> None:
        self.browser = browser
        self.address = ""
        self.errors: list[str] = []  # of the console, exceptions, and what could not be fetched
        self.requests: list[str] = []
        self.headers: dict[str, Json] = {}  # of documents and files, by address
        self._context = browser.ask("Target.createBrowserContext")["browserContextId"]
        target = browser.ask(
            "Target.createTarget", url="about:blank", browserContextId=self._context
        )["targetId"]
        attached = browser.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        browser.listeners[self.session] = self._hear
        for domain in ("Page", "Runtime", "Network", "Log", "Performance"):
            self.ask(f"{domain}.enable")
        self.resize(size)
        self.use_theme(theme)

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.ask("Target.disposeBrowserContext", browserContextId=self._context)
        self.browser.listeners.pop(self.session, None)

    def ask(self, method: str, **parameters: Any) -> Json:
        return self.browser.ask(method, self.session, **parameters)

    def _hear(self, method: str, said: Json) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and said["type"] in GRAVE:
            self.errors.append(json.dumps(said["args"])[:500])
        elif method == "Log.entryAdded" and said["entry"]["level"] in GRAVE:
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Network.responseReceived":
            self.headers[said["response"]["url"]] = said["response"]["headers"]

    def resize(self, size: Size, scale: float = 1.0) -> None:
        """A window of so many CSS pixels; narrow ones are phones."""
        width, height = size
        metrics = {"width": width, "height": height, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", deviceScaleFactor=scale, **metrics)

    def use_theme(self, theme: str) -> None:
        """Prefer dark or light."""
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def go(self, address: str) -> None:
        self.address = address
        answer = self.ask("Page.navigate", url=address)
        assert not answer.get("errorText"), answer

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of an element; empty if there is none."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def all(self, selector: str, attribute: str) -> list[str]:
        """An attribute of every element that has it."""
        script = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".map((e) => e.getAttribute({json.dumps(attribute)}))"
        )
        return [str(value) for value in self.run(script)]

    def until(self, met: Callable[["Page"], object], what: str) -> None:
        """Wait until it is so."""
        began = time.monotonic()
        while not met(self):
            changed = [error for error in self.errors if NETWORK_CHANGED in error]
            if changed:
                self.errors = [error for error in self.errors if error not in changed]
                self.go(self.address)
            shown = self.text("#headline")
            assert time.monotonic() - began < PATIENCE, f"{what}, not shown: {shown}"
            self.browser.listen(0.05)

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        reported = {"key": key, "code": key, "windowsVirtualKeyCode": code, **text}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, **reported)

    def heap(self) -> int:
        """Bytes of live objects and of the buffers behind arrays, garbage collected first."""
        for _ in range(2):
            self.ask("HeapProfiler.collectGarbage")
        reported = self.ask("Runtime.getHeapUsage")
        return int(reported["usedSize"] + reported.get("backingStorageSize", 0))

    def nodes(self) -> int:
        """Nodes of the document."""
        return int(self.run("document.getElementsByTagName('*').length"))

    def picture(self, file: Path) -> None:
        """Save the whole page as PNG: in a window as tall as it, drawn again, for a capture beyond
        the window stretches canvases."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        self.resize((size["width"], size["height"]))
        self.run("new Promise((done) => setTimeout(done, 1200))")
        shot = self.ask("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(shot["data"]))
