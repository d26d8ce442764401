"""Notices of a real service: a person adds a mail address and a chat, and hears how their container ended."""

from __future__ import annotations

import dataclasses
import email
import email.policy
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import Home, machine_of_tenancies

from tests.unit.serve.webhooks import smtpsink
from tests.unit.serve.webhooks.smtpsink import Sink

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(200)]


class _Chat(http.server.BaseHTTPRequestHandler):
    said: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.said.append(json.loads(body)["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002


@pytest.fixture
def chat() -> Iterator[tuple[str, list[str]]]:
    """A chat's webhook: its address, and what was said there."""
    said: list[str] = []
    handler = type("Chat", (_Chat,), {"said": said})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/services/T/B/secretpath", said
        server.shutdown()
        thread.join()


def _subjects(sink: Sink) -> list[tuple[str, str]]:
    read = [email.message_from_bytes(body, policy=email.policy.default) for _, _, body in tuple(sink.mails)]
    return [(str(one["Subject"]), one.get_content()) for one in read]


def test_a_person_is_told_of_their_own_container_by_mail_and_in_a_chat(
    image: str, tmp_path: Path, chat: tuple[str, list[str]]
) -> None:
    address, said = chat
    with smtpsink.opened(Sink()) as sink:
        settings = {
            "FAIRLEAD_API_LISTEN": "127.0.0.1:0",
            "FAIRLEAD_WEBHOOKS_ALLOW": "127.0.0.0/8",
            "FAIRLEAD_MAIL_SERVER": "127.0.0.1",
            "FAIRLEAD_MAIL_PORT": str(sink.port),
            "FAIRLEAD_MAIL_SECURITY": "none",
            "FAIRLEAD_MAIL_SENDER": "fairlead@example.org",
        }
        with machine_of_tenancies(image, **settings) as machine:
            machine.extra["HOME"] = str(machine.folder)
            machine.up()
            machine.ok("tenancy", "create", "red", "--network", "none")
            people = {name: _person(machine, name, tmp_path) for name in ("ann", "ben")}
            ann = people["ann"]
            (notice,) = ann.ok("notify", "add", "ann@example.com").out.split()
            ann.ok("notify", "add", address, "--format", "slack")
            machine.until(lambda: bool(sink.mails), what="the code")
            code = re.search(rf"notify confirm {notice} (\d+)", _subjects(sink)[0][1])
            assert code is not None
            assert "secretpath" not in ann.ok("notify", "list", "-o", "json").out
            ann.ok("notify", "confirm", notice, code.group(1))

            assert people["ben"].run("--name", "bens", "--", "true").code == 0
            assert ann.run("--name", "anns", "--", "sh", "-c", "exit 3").code == 3
            machine.until(lambda: any("has failed" in one for one, _ in _subjects(sink)), what="the end by mail")
            machine.until(lambda: any("has failed" in one for one in said), what="the end in the chat")
            (ended,) = (text for subject, text in _subjects(sink) if "container anns of red has failed" in subject)
            assert "exit code 3" in ended
            assert any("container anns of red has failed" in one and "exit code 3" in one for one in said)
            assert not any("bens" in one for one in (*said, *(subject for subject, _ in _subjects(sink))))
            states = {line.split()[2] for line in ann.ok("notify", "show", notice).out.splitlines()[1:]}
            assert states == {"delivered"}
            (found,) = (one for one in json.loads(machine("doctor", "-o", "json").out) if one["check"] == "mail")
            assert found["level"] == "ok"
            assert "secretpath" not in machine.log()


def _person(machine: Home, name: str, tmp_path: Path) -> Home:
    """A person's own machine, logged in by a key."""
    machine.ok("user", "create", name)
    machine.ok("user", "grant", name, "developer", "-T", "red")
    home = tmp_path / name
    home.mkdir()
    extra = {**machine.extra, "HOME": str(home), "FAIRLEAD_API_SOCKET": str(home / "no.sock")}
    person = dataclasses.replace(machine, extra=extra, process=None)
    found = machine.ask("/v1/status")
    key = machine.ok("key", "create", "--user", name).out
    assert person("login", found["address"], "--fingerprint", found["fingerprint"], stdin=key).code == 0
    return person
