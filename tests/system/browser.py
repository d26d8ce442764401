"""Drives a headless Chromium over its DevTools protocol: opens pages at a width, asks them, takes pictures.

`python3 browser.py URL WIDTH light|dark FILE.png` takes one picture of a whole page.
Source: Chrome DevTools Protocol, domains Page, Emulation, Runtime, Target.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync import client

PROGRAM = shutil.which("chromium")
_LISTENS = re.compile(r"DevTools listening on (ws://\S+)")
_NUMBERS = itertools.count(1 << 20)
"""Of questions to the browser itself, beside those of its tabs."""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--remote-debugging-port=0"),
)


class Page:
    """One tab."""

    def __init__(self, connection: client.ClientConnection, session: str) -> None:
        self._connection, self._session, self._number = connection, session, 0
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method and return its result; events meanwhile are dropped."""
        self._number += 1
        asked = {"id": self._number, "sessionId": self._session, "method": method, "params": params}
        self._connection.send(json.dumps(asked))
        result: dict[str, Any] = self._until(lambda said: said.get("id") == self._number)["result"]
        return result

    def _until(self, wanted: Any) -> dict[str, Any]:
        while True:
            said: dict[str, Any] = json.loads(self._connection.recv(timeout=30))
            if said.get("sessionId") == self._session and wanted(said):
                assert "error" not in said, said
                return said

    def look(self, *, width: int, scheme: str = "light", height: int = 900) -> None:
        """Set the window's width and the reader's scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media="screen", features=features)

    def open(self, url: str) -> None:
        """Open an address and wait until all of it is there."""
        self._number += 1
        asked = {"id": self._number, "sessionId": self._session, "method": "Page.navigate", "params": {"url": url}}
        self._connection.send(json.dumps(asked))
        self._until(lambda said: said.get("method") == "Page.loadEventFired")

    def press(self, script: str) -> None:
        """Do what leads to another page, and wait until all of it is there."""
        self._number += 1
        params = {"expression": f"setTimeout(() => {{ {script} }}, 0)"}
        asked = {"id": self._number, "sessionId": self._session, "method": "Runtime.evaluate", "params": params}
        self._connection.send(json.dumps(asked))
        self._until(lambda said: said.get("method") == "Page.loadEventFired")

    def type(self, text: str) -> None:
        """Press a key for each character; a line's end is Enter."""
        for one in text:
            key = (
                {"key": "Enter", "text": "\r", "windowsVirtualKeyCode": 13}
                if one == "\n"
                else {"key": one, "text": one}
            )
            self.call("Input.dispatchKeyEvent", type="keyDown", **key)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key["key"])

    def ask(self, script: str) -> Any:
        """Return the value of an expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def tab(self, host: str) -> Page:
        """Return the tab whose address has a host, once there is one: a link or a form may have opened it."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            for one in self._ask_browser("Target.getTargets")["targetInfos"]:
                if one["type"] == "page" and host in one["url"].partition("//")[2].partition("/")[0]:
                    asked = {"targetId": one["targetId"], "flatten": True}
                    return Page(self._connection, self._ask_browser("Target.attachToTarget", **asked)["sessionId"])
            time.sleep(0.2)
        raise AssertionError(f"no tab shows {host}: {self._ask_browser('Target.getTargets')}")

    def _ask_browser(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(_NUMBERS)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while (said := json.loads(self._connection.recv(timeout=30))).get("id") != number:
            pass
        result: dict[str, Any] = said["result"]
        return result

    def click(self, script: str) -> None:
        """Do what a person does with the mouse: browsers open no tab for what is not."""
        self.call("Runtime.evaluate", expression=script, userGesture=True)

    def picture(self, *, whole: bool = True) -> bytes:
        """Return the whole page, or what the window shows of it, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])


@contextlib.contextmanager
def opened(*flags: str) -> Iterator[Page]:
    """Start Chromium with one empty tab and more flags, and end it."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="fl-", ignore_cleanup_errors=True) as profile:
        argv = (PROGRAM, *_FLAGS, *flags, f"--user-data-dir={profile}", "about:blank")
        with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as browser:
            assert browser.stderr is not None
            found = next(match for line in browser.stderr if (match := _LISTENS.search(line)))
            try:
                with client.connect(found[1], max_size=None) as connection:
                    yield _attached(connection)
            finally:
                browser.terminate()


def _attached(connection: client.ClientConnection) -> Page:
    def call(number: int, method: str, **params: Any) -> dict[str, Any]:
        connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while (said := json.loads(connection.recv(timeout=30))).get("id") != number:
            pass
        result: dict[str, Any] = said["result"]
        return result

    target = call(1, "Target.createTarget", url="about:blank")["targetId"]
    session = call(2, "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    return Page(connection, session)


if __name__ == "__main__":
    url, width, scheme, file = sys.argv[1:]
    with opened() as page:
        page.look(width=int(width), scheme=scheme)
        page.open(url)
        height = min(page.ask("document.documentElement.scrollHeight"), 4000)
        page.look(width=int(width), scheme=scheme, height=height)
        Path(file).write_bytes(page.picture())
