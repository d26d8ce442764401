"""Do five tasks in the console as a person would, in Chromium, and print clicks, keys, pages and seconds of each.

`python tools/console_tasks.py` runs a service of its own on simulated GPUs, with accounts on TLS. It needs root,
podman, busybox-static and Chromium. A click is a press of the mouse at a place where the thing is seen, a key one that
is typed; a dialog's OK is a click. Seconds are the machine's, without the time in which a person reads and thinks.
"""

# ruff: noqa: S101  a program for developers: what is not as it should be ends it
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

import browser
import home as homes

_PATIENCE_S: Final = 60.0
_BEAT_S: Final = 0.02
_TEMPLATES: Final = """[notebook]
about = "a page from busybox, in place of JupyterLab"
image = "{image}"
command = ["sh", "-c", "mkdir /tmp/page; echo a notebook >/tmp/page/index.html; exec httpd -f -p 8000 -h /tmp/page"]
home = "/home/me"
port = 8000
"""
_PLACE: Final = """(() => {{ const one = {find}; if (!one) return null;
  one.scrollIntoView({{block: "center", behavior: "instant"}}); const at = one.getBoundingClientRect();
  const x = at.x + at.width / 2, y = at.y + at.height / 2, top = document.elementFromPoint(x, y);
  return at.width && top && (one === top || one.contains(top)) ? [x, y] : null; }})()"""


@dataclass
class Effort:
    """What a task took."""

    clicks: int = 0
    keys: int = 0
    pages: int = 0
    seconds: float = 0.0


class Person:
    """A person at a browser, who sees, clicks and types."""

    def __init__(self, page: browser.Page) -> None:
        self.page, self.effort = page, Effort()

    def sees(self, text: str) -> None:
        """Wait until a text stands on the page."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE_S
        while not self._ask(script):
            assert time.monotonic() < end, (
                script,
                self.page.ask("location.href + document.body.innerText.slice(0, 800)"),
            )
            time.sleep(_BEAT_S)

    def click(self, find: str, *, leads: bool = True, says_ok: bool = False) -> None:
        """Click what an expression finds. Args: leads: to another page.   says_ok: to the question that is asked."""
        self.until(f"{_PLACE.format(find=find)} !== null")
        x, y = self.page.ask(_PLACE.format(find=find))
        self.page.ask("window.__here = true" + ("; window.confirm = () => true" if says_ok else ""))
        for kind in ("mousePressed", "mouseReleased"):
            self.page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.effort.clicks += 1 + says_ok
        if leads:
            self._led()

    def types(self, text: str, *, leads: bool = False) -> None:
        """Type into what has the focus."""
        self.page.ask("window.__here = true")
        self.page.type(text)
        self.effort.keys += len(text)
        if leads:
            self._led()

    def fills(self, id_: str, text: str) -> None:
        """Click a field and type."""
        self.click(f"document.getElementById('{id_}')", leads=False)
        self.types(text)

    def chooses(self, id_: str, value: str) -> None:
        """Choose of a list: a click that opens it, and one on the line."""
        self.page.ask(f"document.getElementById('{id_}').value = {json.dumps(value)}")
        self.effort.clicks += 2

    def _led(self) -> None:
        self.until("!window.__here && document.readyState === 'complete'")
        self.effort.pages += 1

    def _ask(self, script: str) -> Any:
        try:
            return self.page.ask(script)
        except (AssertionError, KeyError):  # between two pages there is nothing to ask
            return None


def link(text: str, within: str = "document") -> str:
    """Return what finds a link or button by its text."""
    said = f"one.innerText.trim() === {json.dumps(text)}"
    return f"[...{within}.querySelectorAll('a, button')].find(one => {said} && one.offsetParent)"


def run_a_notebook(person: Person) -> None:
    """Run a notebook and open its page."""
    person.click(link("Run"))
    person.click("document.getElementById('begin-notebook')")
    person.click("document.getElementById('publish')")
    person.click("document.querySelector('#run button[value=run]')")
    person.until("document.getElementById('open') !== null")
    address = person.page.ask("document.getElementById('open').href")
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310  (http, a port of this machine)
                text = answer.read().decode()
            break
        except OSError:
            assert time.monotonic() < end, address
            time.sleep(_BEAT_S)
    person.click("document.getElementById('open')", leads=False)
    assert "a notebook" in text, text


def find_why_mine_waits(person: Person) -> None:
    """Find why one's container waits, and behind whom."""
    person.types("/more\n", leads=True)
    person.sees("Waiting for 8 GPUs")
    person.sees("Held by")


def see_who_wastes_gpus(person: Person) -> None:
    """See which held GPU does least, and whose it is."""
    person.sees("Load")
    held = "[...document.querySelectorAll('.board')].filter(one => one.querySelector('.cell.taken'))"
    load = (
        "parseFloat([...one.querySelectorAll('dt')].find(dt => dt.innerText === 'Load').nextElementSibling.innerText)"
    )
    least = f"{held}.sort((a, b) => (one => {load})(a) - (one => {load})(b))[0]"
    person.click(f"{least}.querySelector('h3 a')")
    person.sees("Held by")


def give_a_colleague_access(person: Person, key: str) -> None:
    """Make an account with a key, and give it a role in a tenancy."""
    person.click(link("Accounts"))
    person.fills("name", "ben")
    person.fills("confirm", key)
    person.click(link("Make it"))
    person.click(link("make one"))
    person.fills("confirm", key)
    person.click("document.querySelector('form[action=\"/console/keys\"][method=post] button[type=submit]')")
    person.sees("flk_")
    person.click(link("Tenancies"))
    person.click(link("red"))
    person.fills("account", "ben")
    person.chooses("role", "developer")
    person.click(link("Give the role"))
    person.until("document.getElementById('members') && document.body.innerText.includes('ben')")


def stop_one_of_three(person: Person) -> None:
    """Stop one container of three."""
    person.click(link("Containers"))
    person.click(link("train-2"))
    person.click("document.getElementById('stop')", says_ok=True)
    person.sees("train-2 is being stopped.")


@contextmanager
def machine() -> Iterator[tuple[homes.Home, str, str]]:
    """Give a service with a tenancy and containers, its address, and an administrator's key."""
    image = "localhost/fairlead-tasks/box:1"
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        homes.make_image(Path(folder), image)
        templates = Path(folder) / "templates.toml"
        templates.write_text(_TEMPLATES.format(image=image))
        extra = {"FAIRLEAD_API_LISTEN": "127.0.0.1:0", "FAIRLEAD_SESSION_TEMPLATES": str(templates)}
        try:
            with homes.machine_of_tenancies(image, **extra) as one:
                one.extra["HOME"] = str(one.folder)
                one.up()
                one.ok("tenancy", "create", "red", "--network", "none")
                one.ok("user", "create", "op", "--administrator")
                for number in range(1, 4):
                    one.start(f"train-{number}", "-g", "1")
                one.ok("run", "-d", "--name", "more", "-g", "8", image, "--", "true")
                key = one.ok("key", "create", "--user", "op").out.strip()
                yield one, f"{one.ask('/v1/status')['address']}/console", key
        finally:
            subprocess.run(("podman", "rmi", "-f", image), check=False, capture_output=True)


def main() -> int:
    """Do the tasks, each from the overview, and print what they took; 1 where one could not be done."""
    with machine() as (_, address, key), browser.opened("--ignore-certificate-errors") as page:
        page.look(width=1280)
        page.open(f"{address}/")
        page.ask(f"document.getElementById('key').value = {json.dumps(key)}")
        page.press("document.querySelector('button[type=submit]').click()")
        tasks: dict[str, Callable[[Person], None]] = {
            "run a notebook and open it": run_a_notebook,
            "find why mine waits": find_why_mine_waits,
            "see who wastes GPUs": see_who_wastes_gpus,
            "give a colleague access": lambda person: give_a_colleague_access(person, key),
            "stop one container of three": stop_one_of_three,
        }
        print(f"{'task':<30}{'clicks':>8}{'keys':>8}{'pages':>8}{'seconds':>9}")
        is_done = True
        for name, task in tasks.items():
            page.open(f"{address}/")
            person, begin = Person(page), time.monotonic()
            try:
                task(person)
            except AssertionError as error:
                is_done = False
                print(f"{name}: could not be done: {error}")
                continue
            taken = person.effort
            seconds = time.monotonic() - begin
            print(f"{name:<30}{taken.clicks:>8}{taken.keys:>8}{taken.pages:>8}{seconds:>9.1f}", flush=True)
    return 0 if is_done else 1


if __name__ == "__main__":
    sys.exit(main())
