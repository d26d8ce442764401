"""JupyterLab itself behind `fairlead open`, in Chromium: its page, a notebook's cell, a terminal, cookies, large files.

JupyterLab is PyPI's, in an environment that `setup.sh` makes; a container mounts that and runs it, as an image would
have it. It listens on the container's loopback alone: nothing of it is published.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
from browser import Page
from home import Home, machine_of_tenancies

LAB = Path.home() / ".cache/fairlead/jupyter"
pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(browser.PROGRAM is None, reason="Chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(not LAB.is_dir(), reason=f"no JupyterLab in {LAB}: tests/system/setup.sh makes it"),
]
TOKEN = "made-for-this-test"
OPTIONS = (
    *("--allow-root", "--no-browser", "--ServerApp.root_dir=/work", "--LabApp.expose_app_in_browser=True"),
    # Its own guard against names that lead to the loopback: the door asks for a cookie first, and keeps the name.
    *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=8888", "--ServerApp.allow_remote_access=True"),
    "--ServerApp.terminado_settings={'shell_command': ['/bin/sh']}",
)
PATIENCE_S = 180


@contextlib.contextmanager
def served(image: str) -> Iterator[Home]:
    """Give a machine with a container in which JupyterLab runs."""
    folders = (LAB, Path(sys.base_prefix), Path("/usr/lib"), Path("/lib"), Path("/lib64"))
    mounts = [part for path in folders if path.is_dir() for part in ("-v", f"{path}:{path}:ro")]
    with machine_of_tenancies(image, FAIRLEAD_API_LISTEN="127.0.0.1:0") as home:
        home.extra["HOME"] = str(home.folder)
        home.up()
        command = f"mkdir -p /work /root && cd /work && exec {LAB}/bin/jupyter-lab {' '.join(map(_quoted, OPTIONS))}"
        home.ok(
            *("run", "-d", "--name", "lab", "-e", f"JUPYTER_TOKEN={TOKEN}", "-e", "HOME=/root", *mounts),
            *(image, "--", "sh", "-c", command),
        )

        def is_up() -> bool:
            done = home("logs", "lab")
            return "is running at" in done.out + done.err

        home.until(is_up, what="JupyterLab is up", timeout_s=PATIENCE_S, detail=lambda: home("logs", "lab").err[-2000:])
        yield home


@pytest.fixture(scope="module")
def lab(image: str) -> Iterator[Page]:
    """JupyterLab's page, opened as `fairlead open` says; one for all tests, since it takes half a minute."""
    with served(image) as home, browser.opened("--ignore-certificate-errors") as page:
        page.look(width=1280)
        page.open(home.ok("open", "lab", "8888", "--path", f"/lab?token={TOKEN}").out.strip())
        _until(page, "window.jupyterapp && document.querySelector('#main') && document.title.includes('JupyterLab')")
        yield page


def test_its_page_is_its_own_and_its_cookies_too(lab: Page) -> None:
    assert lab.ask("location.hostname").endswith(".apps.localhost")
    assert lab.ask("location.pathname") == "/lab"
    assert "_xsrf" in lab.ask("document.cookie"), "JupyterLab's own cookie is set, on this host"
    assert "fairlead" not in lab.ask("document.cookie")
    assert lab.ask("fetch('/api/status').then((a) => a.status)") == 200
    assert lab.ask("fetch('/api/status').then((a) => a.headers.get('x-content-type-options'))") == "nosniff"


def test_a_cell_of_a_notebook_runs_and_shows_what_it_printed(lab: Page) -> None:
    lab.ask(_NOTEBOOK)
    _until(lab, "window.__ran")
    shown = "[...document.querySelectorAll('.jp-OutputArea-output')].map((one) => one.innerText).join()"
    _until(lab, f"{shown}.includes('42 in lab')")
    assert lab.ask("window.__ran") == "ran"
    saved = lab.ask("fetch('/api/contents/first.ipynb').then((a) => a.json()).then((a) => JSON.stringify(a.content))")
    assert "42 in lab" in saved


def test_a_terminal_types_and_answers(lab: Page) -> None:
    assert "answer=42" in lab.ask(_TERMINAL)


def test_a_large_file_is_saved_and_read_again(lab: Page) -> None:
    assert lab.ask(_LARGE) == [201, 3 << 20]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _until(page: Page, script: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not page.ask(f"Boolean({script})"):
        assert time.monotonic() < deadline, (script, page.ask("document.body.innerText.slice(0, 2000)"))
        time.sleep(0.3)


_CELL = "import socket\nprint(6 * 7, 'in', socket.gethostname())"
_NOTEBOOK = """(async () => {
  const app = window.jupyterapp;
  await app.restored;
  const cell = {cell_type: 'code', source: CELL, metadata: {}, outputs: [], execution_count: null, id: 'one'};
  const kernelspec = {name: 'python3', display_name: 'Python 3'};
  const content = {cells: [cell], metadata: {kernelspec}, nbformat: 4, nbformat_minor: 5};
  await app.serviceManager.contents.save('first.ipynb', {type: 'notebook', format: 'json', content});
  const panel = await app.commands.execute('docmanager:open', {path: 'first.ipynb', kernel: {name: 'python3'}});
  await panel.sessionContext.ready;
  (async () => {
    await app.commands.execute('notebook:run-all-cells');
    await app.commands.execute('docmanager:save');
    window.__ran = 'ran';
  })();
})()""".replace("CELL", json.dumps(_CELL))
_TERMINAL = """(async () => {
  const session = await window.jupyterapp.serviceManager.terminals.startNew();
  let text = '';
  return await new Promise((done, fail) => {
    setTimeout(() => fail(new Error('no answer: ' + text)), 20000);
    session.messageReceived.connect((_, message) => {
      if (message.type === 'stdout') text += message.content.join('');
      if (text.includes('answer=42')) done(text);
    });
    session.send({type: 'stdin', content: ['echo answer=$((6 * 7))\\r']});
  });
})()"""
_LARGE = """(async () => {
  const xsrf = document.cookie.match(/_xsrf=([^;]+)/)[1];
  const body = JSON.stringify({type: 'file', format: 'text', content: 'x'.repeat(3 << 20)});
  const put = await fetch('/api/contents/large.txt', {method: 'PUT', body, headers: {'X-XSRFToken': xsrf}});
  const got = await (await fetch('/files/large.txt')).text();
  return [put.status, got.length];
})()"""
