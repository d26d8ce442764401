"""Sessions on a real machine: opened, led to, stopped, and reopened by their name with the home that they left."""

from __future__ import annotations

import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import COMMAND, Home, machine_of_tenancies

pytestmark = [pytest.mark.podman, pytest.mark.slow]
_TEMPLATE = """
[page]
image = "{image}"
command = ["sh", "-c", '''
  trap 'exit 0' TERM; [ -n "$PAGE_TOKEN" ] && cd /home/me && echo "$PAGE_TOKEN" >index.html
  httpd -f -p 127.0.0.1:8000 -h . & wait
''']
home = "/home/me"
port = 8000
path = "/?token={{token}}"
token = "PAGE_TOKEN"
gpus = 1
"""


@pytest.fixture(scope="module")
def machine(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    file = tmp_path_factory.mktemp("templates") / "templates.toml"
    file.write_text(_TEMPLATE.format(image=image))
    with machine_of_tenancies(image, FAIRLEAD_SESSION_TEMPLATES=str(file)) as home:
        home.up()
        yield home


def _opened(machine: Home, *words: str) -> tuple[str, str]:
    """Open a notebook; return how to get there, and its token."""
    way, address = machine.ok("notebook", "--template", "page", "-d", *words).out.splitlines()
    return way, address.partition("token=")[2]


def test_a_notebook_is_found_again_by_its_name_with_its_home_and_token(machine: Home) -> None:
    way, token = _opened(machine, "work")
    assert (way, len(token)) == ("fairlead port-forward work 8000", 48)
    assert _opened(machine, "work") == (way, token)
    assert len(machine.show("work")["gpu_ids"]) == 1, "the template's"
    machine.ok("exec", "work", "--", "sh", "-c", "echo mine >/home/me/kept")
    assert "-rw-------" in machine.ok("exec", "work", "--", "ls", "-l", "/home/me/.fairlead/token").out
    for words in (("inspect", "work"), ("ps", "-o", "json"), ("logs", "work"), ("describe", "work"), ("audit",)):
        assert token not in machine(*words).out, words
    machine.ok("stop", "work")
    assert _opened(machine, "work") == (way, token)
    machine.rm("work")
    assert _opened(machine, "work") == (way, token)
    assert machine.ok("exec", "work", "--", "cat", "/home/me/kept").out == "mine\n"


def test_a_notebook_is_led_to_until_ctrl_c_and_goes_on(machine: Home) -> None:
    process = subprocess.Popen(
        (*COMMAND, "notebook", "--template", "page", "-g", "0", "page"), env=machine.env, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        base, _, token = address.partition("?token=")
        with urllib.request.urlopen(base, timeout=10) as answer:  # noqa: S310
            assert answer.read().decode().strip() == token
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 0
    assert machine.show("page")["state"] == "running"


def test_a_shell_keeps_its_home_and_stops_at_once(machine: Home) -> None:
    options = ("shell", "--image", machine.image, "box")
    first = machine(*options, stdin="pwd; echo kept >note; exit 7\n")
    assert (first.code, first.out) == (7, "/root\n"), first
    machine.ok("stop", "box", timeout_s=8)
    assert machine("shell", "box", stdin="cat note\n").out == "kept\n"


def test_an_image_of_another_user_may_write_its_home(machine: Home, tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text(f"FROM {machine.image}\nUSER 1000\n")
    name = f"{machine.image}-user"
    machine.ok("image", "build", str(tmp_path), name)
    try:
        _, token = _opened(machine, "--image", name, "theirs")
        assert len(token) == 48
        shown = machine("shell", "--image", name, "box", stdin="touch x && stat -c %u x\n")
        assert (shown.code, shown.out) == (0, "1000\n"), shown
    finally:
        machine.clear()
        machine.podman("rmi", "-f", name)


def test_what_a_session_cannot_be_is_said_with_what_to_do(machine: Home) -> None:
    _opened(machine, "work")
    machine.start("plain")
    for words, code, said in (
        (("shell", "work"), 4, 'container "work" is there already, and is a session of the template page'),
        (("shell", "plain"), 4, "is no session"),
        (("notebook", "--template", "page", "-g", "2", "work"), 4, "fairlead rm -f work"),
        (("notebook", "--template", "none"), 2, "one of notebook, page, shell"),
        (("notebook", "--template", "shell"), 2, "fairlead shell --template shell"),
        (("notebook", "--template", "page", "-d", "../x"), 2, "../x"),
        (("shell", "--", "--rm"), 2, "--rm"),
    ):
        refused = machine(*words)
        assert (refused.code, said in refused.err) == (code, True), (words, refused)
    machine.rm("plain", "work")
    waits = machine("notebook", "--template", "page", "-g", "9", "--wait", "1s", "-d", "big")
    assert waits.code != 0
    assert "Insufficient nvidia.com/gpu" in waits.err, waits
