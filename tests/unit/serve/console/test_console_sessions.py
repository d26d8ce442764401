"""The submit form filled in from a template, what it says before it is sent, and how a session is opened."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlead.serve.admission import sessiontemplate
from fairlead.serve.admission.sessiontemplate import BUILT_IN, Template
from fairlead.serve.console import app as console
from fairlead.serve.console.draw import request, sessionform
from fairlead.serve.v1.containers.view import ContainerView
from tests.unit.serve.world import World, application, in_process

NOTEBOOK = next(one for one in BUILT_IN if one.name == "notebook")


@pytest.fixture
async def socket(world: World) -> AsyncIterator[httpx.AsyncClient]:
    made: Any = console.create_app(application(world.services), has_login=False)
    headers = {"origin": "http://localhost", "accept": "text/html"}
    async with httpx.AsyncClient(transport=in_process(made), base_url="http://localhost", headers=headers) as client:
        yield client


def _fields(text: str) -> dict[str, str]:
    """Return what a browser would send of the form, CR LF at the ends of lines."""
    form = text.split('<form id="run"')[1].split("</form>", maxsplit=1)[0]
    found = {}
    for tag in re.findall(r"<input [^>]*>", form):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        if name:
            found[name[1]] = html.unescape(value[1]) if value else ""
    for name, value in re.findall(r'<textarea[^>]*name="([^"]*)"[^>]*>(.*?)</textarea>', form, re.DOTALL):
        found[name] = html.unescape(value).replace("\n", "\r\n")
    return found


@pytest.mark.parametrize("template", BUILT_IN, ids=lambda one: one.name)
async def test_the_form_makes_what_the_command_line_makes(socket: httpx.AsyncClient, template: Template) -> None:
    text = (await socket.get(f"/console/run?template={template.name}")).text
    fields = _fields(text)
    wanted = request.request_of(fields)
    made = json.loads(json.dumps(wanted))
    asked = sessiontemplate.container(template, name=template.name)
    assert made["command"] == list(asked.command), "the shell that makes the token is whole"
    assert (made["image"], made.get("gpus", 0), made["labels"]) == (asked.image, asked.gpus or 0, dict(asked.labels))
    assert made["volumes"] == [{"name": f"{template.name}-home", "container_path": template.home}]
    assert made.get("ports", []) == [], "nothing is published unless the person says so"


async def test_a_session_that_is_there_is_led_to(world: World, socket: httpx.AsyncClient) -> None:
    assert "Already there" not in (await socket.get("/console/run?template=shell")).text
    body = {"image": "demo", "name": "mine", "labels": {"session": "shell"}}
    assert (await socket.post("/v1/containers", json=body)).status_code == 201
    text = (await socket.get("/console/run?template=shell")).text
    assert re.search(r'Already there: <a href="/console/containers/default/mine">', text)
    for odd in ("nosuch", "<script>", "notebook%00", "../x"):
        answer = await socket.get(f"/console/run?template={odd}")
        assert (answer.status_code, "<script>alert" in answer.text) == (200, False), odd
        assert "A container to come back to" not in answer.text or odd == "notebook%00"


async def test_the_form_says_whether_it_would_wait_and_sends_nothing(socket: httpx.AsyncClient) -> None:
    async def judged(**fields: str) -> str:
        answer = await socket.post("/console/run", data={"image": "demo", "action": "check", **fields})
        assert answer.status_code == 200, answer.text
        found = re.search(r'id="judged">(.*?)</div>', answer.text, re.DOTALL)
        assert found is not None
        return html.unescape(found[1])

    assert "nothing that it requests is taken" in await judged(gpus="4")
    running = {"image": "demo", "name": "first", "gpus": 3, "args": ["sleep", "600"]}
    assert (await socket.post("/v1/containers", json=running)).status_code == 201
    await socket.get("/v1/containers/first/wait?state=started&timeout=5")
    text = await judged(gpus="2")
    assert ("It would wait" in text, "3 held by first" in text) == (True, True), text
    assert "It would never start" in await judged(gpus="9")
    assert [one["name"] for one in (await socket.get("/v1/containers")).json()["items"]] == ["first"]


async def test_what_is_wrong_is_said_at_its_field(socket: httpx.AsyncClient) -> None:
    for field, value in (("ports", "nix"), ("volumes", "a:b"), ("env", "x"), ("gpus", "two")):
        answer = await socket.post("/console/run", data={"image": "demo", field: value, "action": "run"})
        assert answer.status_code == 422, field
        assert re.search(rf'<p class="help bad" id="h-{field}">', answer.text), field
        assert re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', answer.text), field


def _shown(**more: Any) -> ContainerView:
    body: dict[str, Any] = {
        **dict.fromkeys(("uid", "image", "reason", "message", "node", "user"), ""),
        "name": "work",
        "namespace": "t-red-1",
        "state": "running",
        "labels": {"session": "notebook"},
        "ports": (),
    }
    fields = {**dict.fromkeys(ContainerView.__struct_fields__), **body, **more}
    return ContainerView(**fields)


@pytest.mark.parametrize(
    ("more", "host", "address", "command"),
    [
        ({"ports": ("30001->8888/tcp",)}, "gpu.lab", "http://gpu.lab:30001/lab", "-T red work"),
        ({"ports": ("0.0.0.0:30001->8888/tcp",)}, "[::1]", "http://[::1]:30001/lab", "-T red work"),
        ({"ports": ("127.0.0.1:30001->8888/tcp",)}, "gpu.lab", "", "-T red work"),
        ({"ports": ("127.0.0.1:30001->8888/tcp",)}, "localhost", "http://127.0.0.1:30001/lab", "-T red work"),
        ({"ports": ("30001->80/tcp", "30002->8888/udp", "odd")}, "gpu.lab", "", "-T red work"),
        ({"namespace": "default"}, "gpu.lab", "", "fairlead notebook work"),
        ({"name": "a b;c"}, "gpu.lab", "", "-T red 'a b;c'"),
    ],
)
def test_a_session_says_how_it_is_opened(more: dict[str, Any], host: str, address: str, command: str) -> None:
    found = sessionform.entry(_shown(**more), BUILT_IN, host=host, space="red")
    assert found is not None
    assert (found.address, found.command.endswith(command)) == (address, True)
    assert found.token_file == "/home/jovyan/.fairlead/token"


@pytest.mark.parametrize("more", [{"labels": {}}, {"labels": {"session": "nosuch"}}, {"state": "pending"}])
def test_what_is_no_session_or_does_not_run_is_not_opened(more: dict[str, Any]) -> None:
    assert sessionform.entry(_shown(**more), BUILT_IN, host="x", space="red") is None


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/lab?token={token}", "http://h:1/lab"),
        ("/?x=1", "http://h:1/?x=1"),
        ("/{token}/", ""),
        ('/"><script>', "http://h:1/%22%3E%3Cscript%3E"),
        ("//evil.example/", "http://h:1"),
    ],
)
def test_a_templates_path_leads_to_no_other_host(path: str, address: str) -> None:
    odd = Template(name="notebook", image="x", command=("x",), home="/h", port=8888, path=path, token="T")
    found = sessionform.entry(_shown(ports=("1->8888/tcp",)), [odd], host="h")
    assert found is not None
    assert found.address.startswith(address)
    assert bool(found.address) == bool(address)
