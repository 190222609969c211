"""A headless Chromium, spoken to by its DevTools protocol over pipes: messages are JSON, each ended by a NUL. Needs no package."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = "chromium", "chromium-browser", "google-chrome"
PATIENCE = 30  # seconds
KEYS = {"Enter": ("\r", 13), "Escape": ("", 27)}


def found() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One window. What pages say in their console, and errors that they leave, are in `said`."""

    def __init__(self, command: str, folder: Path) -> None:
        here, there = os.pipe(), os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}"]  # fmt: skip

        def at_three_and_four() -> None:
            # Copied out of the way first: either end may have the other's number.
            ends = [os.dup(here[0]), os.dup(there[1])]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [command, *options, "about:blank"], preexec_fn=at_three_and_four, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(here[0])
        os.close(there[1])
        self.to, self.back = here[1], there[0]
        self.rest, self.count, self.session = b"", 0, None
        self.said: list[str] = []
        self.loaded = False
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]  # fmt: skip
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self.count:
                assert "error" not in told, told
                return told["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.back], [], [], PATIENCE)[0], (
                f"Chromium has said nothing for {PATIENCE} s"
            )
            more = os.read(self.back, 1 << 16)
            assert more, "Chromium ended"
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\0")
        told = json.loads(line)
        method, params = told.get("method"), told.get("params", {})
        self.loaded |= method == "Page.loadEventFired"
        if method == "Runtime.consoleAPICalled":
            self.said.append(str(params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.said.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.said.append(params["message"])
        return told

    def open(self, path: Path, place: str = "") -> float:
        """Seconds until the page was loaded and drawn."""
        began, self.loaded = time.perf_counter(), False
        self.said.clear()
        # Another address each time: a step within a page loads nothing.
        self.ask("Page.navigate", url=f"file://{path}?{self.count}{place}")
        while not self.loaded:
            self._next()
        self.drawn()
        return time.perf_counter() - began

    def drawn(self) -> None:
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        told = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def key(self, key: str) -> None:
        text, code = KEYS.get(key, (key, ord(key.upper()) if len(key) == 1 else 0))
        typed = {"key": key, "text": text, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **typed)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def until(self, script: str, seconds: float = 10.0) -> float:
        """Seconds until it is true."""
        began = time.perf_counter()
        while not self.run(script):
            assert time.perf_counter() - began < seconds, script
            time.sleep(0.01)
        return time.perf_counter() - began

    def looks(self, width: int = 1280, dark: bool = False, media: str = "screen") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        os.close(self.to)
        os.close(self.back)
