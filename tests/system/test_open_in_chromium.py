"""`Open` in a real Chromium: a notebook's page, a WebSocket, and a hostile page that gets nothing of the console."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import openedserver
import pytest
from browser import Page
from home import Home, machine_of_tenancies

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(browser.PROGRAM is None, reason="Chromium is not installed: apt-get install chromium"),
]
_TEMPLATE = """
[page]
image = "{image}"
command = ["sh", "-c", '''
  trap 'exit 0' TERM; cd /home/me && echo "<h1>notebook</h1>" >index.html
  httpd -f -p 127.0.0.1:8000 -h . & wait
''']
home = "/home/me"
port = 8000
path = "/index.html?token={{token}}"
token = "PAGE_TOKEN"
"""
_PORT = 9000
_TEXT = "document.body.innerText.slice(0, 3000)"


@pytest.fixture(scope="module")
def machine(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    file = tmp_path_factory.mktemp("templates") / "templates.toml"
    file.write_text(_TEMPLATE.format(image=image))
    settings = {"FAIRLEAD_API_LISTEN": "127.0.0.1:0", "FAIRLEAD_SESSION_TEMPLATES": str(file)}
    with machine_of_tenancies(image, **settings) as home:
        home.extra["HOME"] = str(home.folder)
        home.up()
        home.ok("tenancy", "create", "red", "--gpus", "2", "--network", "none")
        home.ok("user", "create", "ann")
        home.ok("user", "grant", "ann", "owner", "-T", "red")
        home.ok("user", "create", "op", "--administrator")
        yield home


@pytest.fixture
def page() -> Iterator[Page]:
    with browser.opened("--ignore-certificate-errors") as found:
        found.look(width=1280)
        yield found


def _log_in(machine: Home, page: Page, name: str) -> str:
    """Log in at `localhost`, as somebody at this machine does, and return the console's origin."""
    key = machine.ok("key", "create", "--user", name).out.strip()
    origin = str(machine.ask("/v1/status")["address"]).replace("127.0.0.1", "localhost")
    page.open(f"{origin}/console/")
    page.ask(f"document.getElementById('key').value = {json.dumps(key)}")
    page.press("document.querySelector('button[type=submit]').click()")
    assert page.ask("location.pathname") == "/console/"
    return origin


@contextlib.contextmanager
def _served(machine: Home, name: str) -> Iterator[Path]:
    """Run the test's server in the network of a container; yields the file of what it was asked."""
    label = f"label=io.kubernetes.pod.name={name}"
    own = machine.podman("ps", "--filter", label, "--format", "{{.Names}}").split()[-1]
    pid = machine.podman("inspect", "--format", "{{.State.Pid}}", own).strip()
    log = machine.folder / f"{name}.asked"
    argv = ("nsenter", "-t", pid, "-n", sys.executable, str(Path(openedserver.__file__)), str(_PORT))
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file) as server:
        try:
            yield log
        finally:
            server.terminate()


def _asked(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def _until(machine: Home, page: Page, script: str) -> None:
    machine.until(lambda: bool(page.ask(script)), what=script, timeout_s=30, detail=lambda: str(page.ask(_TEXT)))


def test_a_notebook_is_opened_by_a_click_and_the_address_that_stays_is_its_own(machine: Home, page: Page) -> None:
    machine.ok("notebook", "--template", "page", "-d", "work")
    token = machine.ok("exec", "work", "--", "cat", "/home/me/.fairlead/token").out.strip()
    origin = _log_in(machine, page, "op")
    page.open(f"{origin}/console/containers/default/work")
    page.click("document.getElementById('open-8000').click()")
    tab = page.tab(".apps.localhost")
    _until(machine, tab, "document.body && document.body.innerText.includes('notebook')")
    assert tab.ask("location.pathname + location.search") == f"/index.html?token={token}"
    assert "ticket" not in tab.ask("location.href")
    assert tab.ask("window.opener") is None
    assert tab.ask("document.cookie") == "", "the door's cookie is no script's"


def test_a_websocket_is_carried_and_a_hostile_page_gets_nothing(machine: Home, page: Page) -> None:
    for name in ("evil", "victim"):
        machine.ok("run", "-d", "--name", name, machine.image, "--", "sleep", "1000")
        machine.until_state(name, "running")
    origin = _log_in(machine, page, "op")
    with _served(machine, "evil") as evil, _served(machine, "victim") as victim:
        tabs: dict[str, Page] = {}
        origins: dict[str, str] = {}
        for name in ("victim", "evil"):
            body = json.dumps({"method": "POST", "body": "{}"})
            script = f"""(async () => (await (await fetch(
                "/v1/containers/{name}/ports/{_PORT}/door?namespace=default",
                {{...{body}, headers: {{"content-type": "application/json", "x-csrf-token": window.fairleadToken()}}}}
            )).json()))()"""
            found = page.ask(script)
            page.click(f"void window.open({json.dumps(found['address'])}, '_blank', 'noopener')")
            tabs[name] = page.tab(found["origin"].removeprefix("https://").partition(":")[0])
            _until(machine, tabs[name], "document.body && document.body.innerText.includes('served by a container')")
            origins[name] = found["origin"]
        tab = tabs["evil"]

        assert tab.ask(_WEBSOCKET) == "echo hello"
        before = len(_asked(victim))
        for what, script in _ATTACKS.items():
            said = tab.ask(script.replace("CONSOLE", origin).replace("VICTIM", origins["victim"]))
            assert said == "nothing", what
        assert len(_asked(victim)) == before, "pages of one container reach no other, though they are of one site"

        # It may have a worker of its own, below its own host.
        assert tab.ask("navigator.serviceWorker.register('/sw.js').then(() => 'mine', (e) => String(e))") == "mine"
        page.open(f"{origin}/console/containers")
        assert page.ask("navigator.serviceWorker.controller") is None
        assert page.ask("document.cookie") == "", "no cookie of a container's page is the console's"
        assert page.ask("document.title").startswith("Containers"), "and it is logged in still"
        for one in (*_asked(evil), *_asked(victim)):
            assert "__Host-fairlead" not in one["cookie"]

        # Logged out: what is open ends.
        page.press("document.querySelector('form[action=\"/console/logout\"] button').click()")
        _until(machine, tab, "fetch('/').then((a) => a.status === 401 || a.status === 404)")
        machine.until(lambda: tab.ask("window.__closed") == 1008, what="the socket is closed", timeout_s=20)


_WEBSOCKET = """new Promise((done, fail) => {
  const one = new WebSocket(location.origin.replace("https", "wss") + "/socket");
  one.onmessage = (event) => done(event.data);
  one.onerror = () => fail(new Error("refused"));
  one.onclose = (event) => { window.__closed = event.code; };
  one.onopen = () => one.send("hello");
  window.__socket = one;
})"""
_ATTACKS = {
    "read the API with the console's cookie": """fetch("CONSOLE/v1/self", {credentials: "include"})
        .then(async (a) => await a.text(), () => "nothing")""",
    "send a change with it": """fetch("CONSOLE/v1/containers/victim:stop", {method: "POST", credentials: "include",
        headers: {"x-csrf-token": "x"}}).then((a) => String(a.status), () => "nothing")""",
    "frame the console": """new Promise((done) => {
        const one = document.createElement("iframe");
        one.onload = () => { try { done(one.contentWindow.document.body.innerText); } catch { done("nothing"); } };
        one.src = "CONSOLE/console/"; document.body.append(one); setTimeout(() => done("nothing"), 5000); })""",
    "set the console's cookie": """(() => {
        for (const name of ["__Host-fairlead", "__Host-fairlead-open", "x"])
          for (const domain of ["localhost", "apps.localhost"])
            document.cookie = `${name}=1; Domain=${domain}; Path=/; Secure`;
        return document.cookie.includes("fairlead") ? document.cookie : "nothing"; })()""",
    "reach the window that opened it": "window.opener === null ? 'nothing' : 'a window'",
    "widen its origin": """(() => { try { document.domain = "localhost"; } catch { return "nothing"; }
        return document.domain.endsWith(".apps.localhost") ? "nothing" : document.domain; })()""",
    "ask another container in secret": """fetch("VICTIM/", {mode: "no-cors", credentials: "include"})
        .then((a) => a.type === "opaque" ? "nothing" : a.text(), () => "nothing")""",
    "read another container, which allows everybody": """fetch("VICTIM/")
        .then((a) => a.text(), () => "nothing")""",
    "open a socket of another container": """new Promise((done) => {
        const one = new WebSocket("VICTIM/socket".replace("https", "wss"));
        one.onopen = () => done("open"); one.onerror = () => done("nothing"); })""",
    "open a socket into a container by the console's cookie": """new Promise((done) => {
        const one = new WebSocket("CONSOLE/v1/containers/victim/exec?command=id".replace("https", "wss"));
        one.onopen = () => done("open"); one.onerror = () => done("nothing"); })""",
    "frame another container": """new Promise((done) => {
        const one = document.createElement("iframe");
        one.onload = () => { try { done(one.contentWindow.document.body.innerText); } catch { done("nothing"); } };
        one.src = "VICTIM/"; document.body.append(one); setTimeout(() => done("nothing"), 5000); })""",
}
