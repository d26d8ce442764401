"""The console's pages over the API: each shows what its caller may see, escaped, and sends what the API judges."""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.serve.accounts.roles import Role
from fairlead.serve.console import app as console
from fairlead.serve.console import guard
from fairlead.serve.limits.bucket import Rate
from fairlead.serve.limits.gate import Policy
from fairlead.store import retry
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, application, in_process

_ORIGIN = {"origin": "http://localhost", "accept": "text/html"}
PAGES = (
    "/console/",
    "/console/containers",
    "/console/run",
    "/console/queue",
    "/console/tenancies",
    "/console/quotas",
    "/console/queues",
    "/console/claims",
    "/console/volumes",
    "/console/reservations",
    "/console/secrets",
    "/console/usage",
    "/console/budgets",
    "/console/events",
    "/console/keys",
    "/console/sshkeys",
    "/console/notices",
    "/console/webhooks",
    "/console/audit",
    "/console/machine",
)
HOSTILE = "<script>alert(1)</script>\"'&\u202e\u0007{{7*7}}"


@pytest.fixture
async def socket(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A browser behind a tunnel to the unix socket, as root."""
    made: Any = console.create_app(application(world.services), has_login=False)
    async with httpx.AsyncClient(transport=in_process(made), base_url="http://localhost", headers=_ORIGIN) as client:
        yield client


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


class Browser:
    """A person's browser on the door of TLS."""

    def __init__(self, lab: Lab) -> None:
        door: Any = console.create_app(lab.app, has_login=True)
        headers = {"origin": "https://test", "accept": "text/html"}
        self.token = ""
        self.client = httpx.AsyncClient(transport=in_process(door), base_url="https://test", headers=headers)

    async def log_in(self, key: str, following: str = "/console/") -> httpx.Response:
        answer = await self.client.post("/console/login", data={"key": key, "next": following})
        self.token = answer.headers.get("location", "").partition("#token=")[2]
        return answer

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.client.get(path, **more)

    async def csrf(self, path: str = "/console/run") -> str:
        """Return what the page's script puts into its forms; no page holds it."""
        text = (await self.get(path)).text
        assert 'name="csrf">' in text
        assert self.token not in text
        return self.token


async def _running(client: httpx.AsyncClient, name: str, **more: Any) -> None:
    answer = await client.post("/v1/containers", json={"image": "demo", "name": name, "args": ["sleep", "600"], **more})
    assert answer.status_code == 201, answer.text
    await client.get(f"/v1/containers/{name}/wait?state=started&timeout=5")


async def test_every_page_is_drawn_on_a_machine_with_and_without_containers(socket: httpx.AsyncClient) -> None:
    for count in range(2):
        for page in PAGES:
            answer = await socket.get(page)
            assert answer.status_code == 200, (page, answer.text)
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert 'aria-current="page"' in answer.text
        await _running(socket, f"train{count}", gpus=2)
        await socket.post("/v1/containers", json={"image": "demo", "name": f"waits{count}", "gpus": 4})


async def test_the_warning_about_idle_gpus_stands_on_the_containers_page_as_text(
    world: World, socket: httpx.AsyncClient
) -> None:
    await _running(socket, "lazy", gpus=1)
    assert 'id="idle"' not in (await socket.get("/console/containers/default/lazy")).text
    said = core.IdleNotice(since="s", warned_at="w", action="stop", acts_at="a", message="<b>idle</b> since then")

    def warned(pod: core.Pod) -> core.Pod:
        return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, idle_notice=said))

    await retry.change_status(world.store, core.Pod, "lazy", warned, namespace="default")
    text = (await socket.get("/console/containers/default/lazy")).text
    assert 'id="idle">&lt;b&gt;idle&lt;/b&gt; since then</div>' in text


async def test_the_overview_says_who_holds_which_gpu(socket: httpx.AsyncClient) -> None:
    await _running(socket, "train", gpus=2)
    text = (await socket.get("/console/")).text
    assert text.count('href="/console/containers/default/train"') == 2
    assert "2 of 4 free" in text


async def test_a_container_is_shown_with_its_way_its_phases_and_what_it_waits_for(socket: httpx.AsyncClient) -> None:
    await _running(socket, "train", gpus=2)
    text = (await socket.get("/console/containers/default/train")).text
    assert "Start-up time" in text
    assert re.search("In short: admission .*, slot .*, sandbox ", text)
    assert "<dt>Isolation</dt><dd>none" in text
    assert "GPU path" in text
    assert "Running on " in text
    assert "container created" in text
    assert "data-follow=" in text
    await socket.post("/v1/containers", json={"image": "demo", "name": "waits", "gpus": 4})
    text = (await socket.get("/console/containers/default/waits")).text
    assert "Waiting for 4 GPUs" in text
    assert "2 of 4" in text
    assert "1 of 1" in text
    assert "Start-up time" not in text, "it has not started"
    assert "Fits now" in (await socket.get("/console/")).text


async def test_a_containers_details_say_what_it_was_asked_to_be_and_hide_what_is_secret(
    socket: httpx.AsyncClient,
) -> None:
    env = {"LR": "0.1", "HF_TOKEN": "hf_abc", "DB": "postgres://me:pw1@db/x"}
    body = {"image": "demo", "name": "asked", "gpus": 1, "args": ["train.py", "--lr", "a b"], "env": env}
    assert (await socket.post("/v1/containers", json=body)).status_code == 201
    text = (await socket.get("/console/containers/default/asked")).text
    assert "train.py --lr &#39;a b&#39;" in text
    assert "<code>LR</code>" in text
    assert "hf_abc" not in text
    assert "pw1" not in text
    assert text.count("it looks like a secret") == 2
    again = re.search(r'href="(/console/run[?][^"]*)"', text)
    assert again is not None
    form = (await socket.get(html.unescape(again[1]))).text
    assert "&#34;train.py&#34;" in form
    assert "LR=0.1" in form
    assert "are not copied" in form
    assert "hf_abc" not in form


async def test_a_waiting_containers_page_completes_itself(socket: httpx.AsyncClient) -> None:
    """The terminal is on it from the start, and the refreshed part takes its notice and the events along."""
    body = {"image": "demo", "name": "later", "gpus": 8, "args": ["sleep", "60"]}
    for name in ("first", "later"):
        assert (await socket.post("/v1/containers", json={**body, "name": name})).status_code == 201
    text = (await socket.get("/console/containers/default/later")).text
    found = re.search(r'id="live"[^>]*hx-select-oob="([^"]*)"', text)
    assert found is not None
    assert {one for one in found[1].split(",") if f'id="{one.removeprefix("#")}"' in text} == {
        "#enter-state",
        "#metrics-part",
        "#events-part",
        "#gpus-part",
        "#details-part",
    }
    assert "It opens once the container runs." in text
    assert 'id="terminal-form"' in text


async def test_the_list_is_filtered_by_state_and_words(socket: httpx.AsyncClient) -> None:
    await _running(socket, "train", labels={"team": "vision"})
    await socket.post("/v1/containers", json={"image": "demo", "name": "ends"})
    await socket.get("/v1/containers/ends/wait?state=ended&timeout=5")
    for query, expected in (
        ("", {"train", "ends"}),
        ("?state=running", {"train"}),
        ("?state=ended", {"ends"}),
        ("?q=TEAM%3Dvision", {"train"}),
        ("?q=nothing", set()),
        ("?state=nix", set()),
    ):
        text = (await socket.get(f"/console/containers{query}")).text
        assert {name for name in ("train", "ends") if f"/console/containers/default/{name}" in text} == expected, query


async def test_a_scheduler_s_reason_is_a_person_s_in_the_list(world: World, socket: httpx.AsyncClient) -> None:
    spec = core.PodSpec(containers=(core.Container(name="c", image="demo"),), scheduler_name="another")
    made = await world.store.create(core.Pod(metadata=meta.ObjectMeta(name="odd", namespace="default"), spec=spec))
    told = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    status = msgspec.structs.replace(made.status, phase="Failed", reason="Unschedulable", message=told)
    await world.store.update_status(msgspec.structs.replace(made, status=status))
    text = (await socket.get("/console/containers?state=ended")).text
    assert "too few GPUs free" in text
    assert "Insufficient" not in text


async def test_hostile_names_and_words_are_shown_as_text(world: World, socket: httpx.AsyncClient) -> None:
    pod = core.Pod(
        metadata=meta.ObjectMeta(name="odd", namespace="default", annotations={"x": HOSTILE}),
        spec=core.PodSpec(containers=(core.Container(name="c", image=HOSTILE),), scheduler_name="nobody"),
    )
    made = await world.store.create(pod)
    status = msgspec.structs.replace(made.status, reason=HOSTILE, message=HOSTILE * 400)
    await world.store.update_status(msgspec.structs.replace(made, status=status))
    for page in (
        *PAGES,
        "/console/containers/default/odd",
        f"/console/containers?{urllib.parse.urlencode({'q': HOSTILE, 'state': HOSTILE})}",
    ):
        text = (await socket.get(page)).text
        assert "<script>alert" not in text, page
        assert "\u202e" not in text, page
        assert "\u0007" not in text, page
        assert "}}49" not in text, page
    detail = (await socket.get("/console/containers/default/odd")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\\u202e\\u0007{{7*7}}" in detail


@pytest.mark.parametrize("name", ["nix", "a%00b", "x:stop", "x%2Fy", "%E2%80%AE"])
async def test_what_is_not_there_is_a_page_that_says_so(socket: httpx.AsyncClient, name: str) -> None:
    answer = await socket.get(f"/console/containers/default/{name}")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


async def test_the_submit_form_shows_its_request_and_sends_the_same(socket: httpx.AsyncClient) -> None:
    fields = {"image": "demo", "name": "web", "gpus": "2", "args": "sh -c 'echo \"hi\"'", "env": "A=1\nB=x y"}
    shown = (await socket.post("/console/run", data={**fields, "action": "show"})).text
    for part in ("&#34;gpus&#34;: 2", "fairlead run -d -g 2 --name web -e A=1", "curl --json"):
        assert part in shown, part
    assert (await socket.get("/v1/containers?all=true")).json()["items"] == []
    sent = await socket.post("/console/run", data={**fields, "action": "run"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/console/containers/default/web?done=run")
    assert (await socket.get("/v1/containers/web")).json()["gpus"] == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": "demo", "gpus": "two"}, "is not a whole number"),
        ({"image": "demo", "args": "sh 'x"}, "close each quotation mark"),
        ({"image": "demo", "env": "nix"}, "not of the form NAME=VALUE"),
        ({"image": "demo", "volumes": "a:b"}, "not of the form NAME:/PATH"),
        ({"image": ""}, "no image given"),
        ({"image": "demo", "name": "Not_A_Name"}, "Not_A_Name"),
    ],
)
async def test_a_request_that_cannot_be_is_refused_beside_the_filled_form(
    socket: httpx.AsyncClient, fields: dict[str, str], words: str
) -> None:
    answer = await socket.post("/console/run", data={**fields, "action": "run"})
    assert answer.status_code in {400, 422}
    assert words in answer.text
    assert 'role="alert"' in answer.text


async def test_a_container_is_stopped_started_and_removed_from_its_page(socket: httpx.AsyncClient) -> None:
    await _running(socket, "train")
    for what, place in (("stop", "/train?done=stop"), ("restart", "/train?done=restart"), ("remove", "?done=train")):
        answer = await socket.post(f"/console/containers/default/train/{what}", data={"csrf": ""})
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].endswith(place)
        assert "is being" in (await socket.get(answer.headers["location"])).text if what != "restart" else True
        await socket.get("/v1/containers/train/wait?state=ended&timeout=5") if what == "stop" else None


async def test_output_is_shown_without_what_only_a_terminal_understands(
    world: World, socket: httpx.AsyncClient
) -> None:
    world.engine.add_image("loud", command=("echo", "\x1b[31mred\x1b[0m 10%\r20%\x07"))
    await socket.post("/v1/containers", json={"image": "loud", "name": "loud"})
    await socket.get("/v1/containers/loud/wait?state=ended&timeout=5")
    text = (await socket.get("/console/containers/default/loud")).text
    found = re.search(r'<pre id="log"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert found is not None
    assert found[1] == "20%\n"


# by TLS


async def test_who_has_not_logged_in_is_led_to_the_login_and_back(lab: Lab) -> None:
    browser = Browser(lab)
    for path in (*PAGES, "/console/containers/default/x?y=1"):
        answer = await browser.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/console/login?next=%2Fconsole")
    assert (await browser.get("/")).headers["location"] == "/console/"
    refreshed = await browser.get("/console/", headers={"hx-request": "true"})
    assert refreshed.headers["hx-redirect"].startswith("/console/login")
    entered = await browser.log_in(lab.keys["viewer"], "/console/queue")
    assert (entered.status_code, entered.headers["location"].partition("#")[0]) == (303, "/console/queue")
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert (await browser.get("/console/queue")).status_code == 200
    rows = (await lab.ask("root", "GET", "/v1/audit")).json()["items"]
    assert [row["action"] for row in rows] == ["session.open"], "looking without a cookie is nobody's attempt"


@pytest.mark.parametrize("following", ["https://evil.example/", "//evil.example", "/console/\\evil", "/v1/x", "\x00"])
async def test_a_login_leads_nowhere_else(lab: Lab, following: str) -> None:
    assert (await Browser(lab).log_in(lab.keys["viewer"], following)).headers["location"].partition("#")[
        0
    ] == "/console/"


async def test_a_key_that_is_not_in_force_is_refused_at_the_login(lab: Lab) -> None:
    for key in ("", "flk_nix", lab.keys["viewer"][:-1] + "0" * 1, HOSTILE):
        if key == lab.keys["viewer"]:
            continue
        answer = await Browser(lab).log_in(key)
        assert answer.status_code == 401, key
        assert 'role="alert"' in answer.text
        assert "set-cookie" not in answer.headers


async def test_an_address_that_guessed_too_often_is_told_to_wait_and_not_that_the_service_is_down(lab: Lab) -> None:
    lab.app = lab.guarded(Policy(key=Rate(per_s=0, burst=1), address=Rate(per_s=0.01, burst=2)), now=lambda: 0.0)
    browser = Browser(lab)
    answers = [await browser.log_in("flk_nix") for _ in range(3)]
    assert [one.status_code for one in answers] == [401, 401, 429]
    assert int(answers[2].headers["retry-after"]) > 0
    assert "refused more than" in answers[2].text


async def test_each_role_is_offered_what_it_may(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red", args=["sleep", "600"])
    place = f"/console/containers/{lab.namespaces['red']}/train"
    for role in Role:
        browser = Browser(lab)
        await browser.log_in(lab.keys[role.value])
        text = (await browser.get(place)).text
        assert (f'action="{place}/stop"' in text) is (role is not Role.VIEWER), role
        assert ('href="/console/run"' in text) is (role is not Role.VIEWER), role
        assert ('href="/console/audit"' in text) is (role in {Role.ADMIN, Role.OWNER}), role
        assert 'href="/console/machine"' not in text, role
        for page in PAGES:
            answer = await browser.get(page)
            hidden = (page in {"/console/machine", "/console/queues"}) or (
                page in {"/console/audit", "/console/webhooks"} and role in {Role.VIEWER, Role.DEVELOPER}
            )
            assert answer.status_code == (403 if hidden else 200), (role, page)
    root = Browser(lab)
    await root.log_in(lab.keys["root"])
    assert [(await root.get(page)).status_code for page in PAGES] == [200] * len(PAGES)


async def test_another_tenancys_container_is_not_found_and_stays(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red", gpus=1, args=["sleep", "600"])
    browser = Browser(lab)
    await browser.log_in(lab.keys["stranger"])
    place = f"/console/containers/{lab.namespaces['red']}/train"
    assert (await browser.get(place)).status_code == 404
    csrf = await browser.csrf()
    for what in ("stop", "remove", "restart"):
        assert (await browser.client.post(f"{place}/{what}", data={"csrf": csrf})).status_code == 404
    for page in ("/console/", "/console/containers", "/console/queue", "/console/tenancies"):
        assert "train" not in (await browser.get(page)).text, page
    await lab.ask("developer", "GET", "/v1/containers/train/wait?state=started&timeout=5")
    assert "another tenancy" in (await browser.get("/console/")).text
    assert (await lab.ask("developer", "GET", "/v1/containers/train")).status_code == 200


async def test_a_change_is_written_into_the_audit_log_as_the_apis(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red", args=["sleep", "600"])
    browser = Browser(lab)
    await browser.log_in(lab.keys["developer"])
    place = f"/console/containers/{lab.namespaces['red']}/train"
    done = await browser.client.post(f"{place}/stop", data={"csrf": await browser.csrf()})
    assert done.status_code == 303
    row = (await lab.ask("root", "GET", "/v1/audit?account=developer")).json()["items"][0]
    assert (row["method"], row["object"], row["action"], row["tenancy"], row["status"]) == (
        "POST",
        "/v1/containers/train:stop",
        "container.run",
        "red",
        202,
    )


async def test_a_form_without_the_sessions_token_changes_nothing(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red", args=["sleep", "600"])
    browser = Browser(lab)
    await browser.log_in(lab.keys["developer"])
    place = f"/console/containers/{lab.namespaces['red']}/train/stop"
    for fields in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "\u202e"}):
        assert (await browser.client.post(place, data=fields)).status_code == 403
    assert (await lab.ask("developer", "GET", "/v1/containers/train")).json()["state"] != "stopping"


async def test_logging_out_ends_the_session(lab: Lab) -> None:
    browser = Browser(lab)
    await browser.log_in(lab.keys["viewer"])
    cookie = browser.client.cookies["__Host-fairlead"]
    answer = await browser.client.post("/console/logout", data={"csrf": browser.token})
    assert (answer.status_code, "Max-Age=0" in answer.headers["set-cookie"]) == (303, True)
    browser.client.cookies.set("__Host-fairlead", cookie)
    assert (await browser.get("/console/")).headers["location"].startswith("/console/login")


async def test_every_answer_of_the_console_is_guarded(lab: Lab) -> None:
    browser = Browser(lab)
    for path in ("/console/login", "/console/", "/console/nix", "/", "/console/static/console.css"):
        headers = (await browser.get(path)).headers
        for name, value in guard.HEADERS.items():
            assert headers[name] == value, (path, name)
    assert "unsafe" not in guard.POLICY
    assert (await browser.get("/console/login")).headers["cache-control"] == "no-store"


async def test_no_page_has_a_script_or_a_style_of_its_own(socket: httpx.AsyncClient) -> None:
    await _running(socket, "train", gpus=1)
    for page in (*PAGES, "/console/login", "/console/nix", "/console/containers/default/train"):
        text = (await socket.get(page)).text
        assert not re.search(r"<style|\sstyle=|<script(?! src=)|\son\w+=|javascript:", text), page


async def test_programs_get_the_api_as_before(lab: Lab) -> None:
    browser = Browser(lab)
    answer = await browser.get("/", headers={"accept": "application/json"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert "content-security-policy" not in answer.headers
    assert (await browser.get("/v1/self", headers={"authorization": f"Bearer {lab.keys['root']}"})).status_code == 200


async def test_claims_say_what_they_hold_and_why_they_wait(world: World, socket: httpx.AsyncClient) -> None:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    result = {"request": "gpus", "driver": "gpu.nvidia.com", "pool": "vm", "device": "gpu-0"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "train", "uid": "u"}],
    }
    for name, more in (("held", {"status": status}), ("waits", {})):
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
            **more,
        }
        found = dialect.read({"apiVersion": dialect.V1, "kind": "ResourceClaim", **body}).item
        assert isinstance(found, ResourceClaim)
        made = await world.store.create(found)
        await world.store.update_status(msgspec.structs.replace(made, status=found.status))
    text = (await socket.get("/console/claims")).text
    assert "gpu.nvidia.com/vm/gpu-0" in text
    assert 'href="/console/containers/default/train"' in text
    assert "waits" in text
    assert "no container that waits names it" in text
    form = {"name": "held", "namespace": "default", "csrf": ""}
    assert (await socket.post("/console/claims/remove", data=form)).status_code == 303
