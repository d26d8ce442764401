"""OWASP API Security Top 10 (2023): one test at least for each class, against the API by TLS as its clients meet it.

Source: OWASP API Security Top 10 2023, API1 to API10.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from litestar import handlers

from fairlead import errors
from fairlead.cli.process.listen import tlslistener
from fairlead.client import calls, transport
from fairlead.plan.pod import admission
from fairlead.serve import certificate
from fairlead.serve.accounts.roles import Scope
from fairlead.serve.api import app as base
from fairlead.serve.limits.bucket import Rate
from fairlead.serve.limits.gate import Policy
from fairlead.serve.v1 import app as v1
from fairlead.serve.v1 import permissions
from fairlead.serve.v1.containers import view
from fairlead.wire.fairlead import problem
from fairlead.wire.kubernetes import core
from tests.unit.serve.v1.accounts.test_api_accounts import UNLIMITED, Lab, opened
from tests.unit.serve.world import World

OF_A_CONTAINER = (
    ("GET", ""),
    ("GET", "/wait?timeout=0"),
    ("GET", "/logs"),
    ("GET", "/events"),
    ("GET", "/trace"),
    ("GET", "/explain"),
    ("POST", ":stop"),
    ("POST", ":restart"),
    ("POST", ":rename"),
    ("POST", ":signal?signal=TERM"),
    ("DELETE", ""),
)


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def test_api1_broken_object_level_authorization(lab: Lab) -> None:
    """A container of another tenancy is not found by name, whatever is asked of it, and stays as it is."""
    await lab.run("developer", "train", tenancy="red")
    before = await lab.world.pod("train", lab.namespaces["red"])
    for method, rest in OF_A_CONTAINER:
        query = f"{'&' if '?' in rest else '?'}namespace={lab.namespaces['red']}"
        body = {"json": {"name": "mine"}} if rest == ":rename" else {}
        answer = await lab.ask("stranger", method, f"/v1/containers/train{rest}{query}", **body)
        assert answer.status_code == 404, (method, rest, answer.text)
    after = await lab.world.pod("train", lab.namespaces["red"])
    assert (after.metadata.uid, after.metadata.deletion_timestamp) == (before.metadata.uid, None)
    assert after.status.stop_request is None


async def test_api1_a_key_of_a_request_is_found_by_its_own_caller_alone(lab: Lab) -> None:
    """An Idempotency-Key of another caller says nothing of what it made."""
    header = {"idempotency-key": "guessed"}
    made = await lab.ask(
        "developer", "POST", "/v1/containers", json={"image": "demo", "tenancy": "red"}, headers=header
    )
    other = await lab.ask(
        "stranger", "POST", "/v1/containers", json={"image": "demo", "tenancy": "blue"}, headers=header
    )
    assert (made.status_code, other.status_code) == (201, 201)
    assert made.json()["uid"] != other.json()["uid"]


async def test_api2_broken_authentication(lab: Lab) -> None:
    """Guesses at a key's secret are answered alike, slowed down, and shut its owner out from nowhere."""
    clock = [0.0]
    lab.app = lab.guarded(Policy(key=UNLIMITED, address=Rate(per_s=1.0, burst=5)), lambda: clock[0])
    assert (await lab.ask("viewer", "GET", "/v1/self")).status_code == 200
    prefix = lab.keys["viewer"].rpartition("_")[0]
    said = set()
    for at in range(12):
        async with lab.client("viewer", f"{prefix}_{at:064x}") as guesser:
            answer = await guesser.get("/v1/self")
            said.add((answer.status_code, answer.json()["reason"]))
    assert said == {(401, "KeyRefused"), (429, "AddressThrottled")}
    assert (await lab.ask("viewer", "GET", "/v1/self")).status_code == 200


async def test_api3_broken_object_property_level_authorization(lab: Lab) -> None:
    """What a request may not set is refused, never stored in silence; no list tells what it should not."""
    for field, value in (
        ("binds", [{"host_path": "/etc", "container_path": "/etc"}]),
        ("network", "host"),
        ("ports", [{"host_port": 22, "container_port": 22}]),
        ("priority", 1000),
        ("labels", {"fairlead.dev/tenant": "blue"}),
        ("node", "one"),
    ):
        answer = await lab.run("developer", "train", tenancy="red", **{field: value})
        assert answer.status_code in {400, 403}, (field, answer.text)
    assert (await lab.ask("developer", "GET", "/v1/containers?all=true")).json()["items"] == []
    for path in ("/v1/users", "/v1/keys"):
        text = (await lab.ask("root", "GET", path)).text
        assert not [key for key in lab.keys.values() if key.rpartition("_")[2] in text]
        assert "digest" not in text


async def test_api4_unrestricted_resource_consumption(lab: Lab) -> None:
    """Requests, their bodies and their pages are limited; the answer says which limit it was."""
    lab.app = lab.guarded(Policy(key=Rate(per_s=1.0, burst=3), address=UNLIMITED), lambda: 0.0)
    large = await lab.ask("developer", "POST", "/v1/containers", content=b"[" * (5 << 20))
    deep = await lab.ask("developer", "POST", "/v1/containers", content=b'{"a":' * 100_000)
    page = await lab.ask("developer", "GET", "/v1/containers?limit=1000000")
    assert (large.status_code, deep.status_code, page.status_code) == (413, 400, 400)
    late = await lab.ask("developer", "GET", "/v1/containers")
    assert (late.status_code, late.headers["retry-after"]) == (429, "1")


async def test_api5_broken_function_level_authorization(lab: Lab) -> None:
    """What is the administrator's is refused to every role of a tenancy, and to a key without its scope."""
    for who in ("owner", "developer", "viewer", "nobody"):
        for method, path in (
            ("POST", "/v1/users"),
            ("POST", "/v1/tenancies"),
            ("POST", "/v1/images:prune"),
            ("PUT", "/v1/quotas"),
            ("DELETE", "/v1/users/root"),
            ("POST", "/v1/faults"),
        ):
            answer = await lab.ask(who, method, path, json={})
            assert (answer.status_code, answer.json()["reason"]) == (403, "RoleForbids"), (who, path)
    weak = await lab.key("root", Scope.READ)
    async with lab.client("root", weak) as client:
        assert (await client.post("/v1/users", json={"name": "x"})).json()["reason"] == "ScopeMissing"


async def test_api6_unrestricted_access_to_sensitive_business_flows(lab: Lab) -> None:
    """GPUs are not hoarded by asking often: a tenancy's quota is judged in the step that stores each container."""
    namespace = lab.namespaces["red"]
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": namespace},
        "spec": {"hard": {"requests.nvidia.com/gpu": "2"}},
    }
    assert (await lab.ask("root", "PUT", "/v1/quotas", json=quota)).status_code == 200
    lab.world.may_start.clear()  # none of them ends
    found = [(await lab.run("developer", f"t{at}", tenancy="red", gpus=1)).status_code for at in range(5)]
    lab.world.may_start.set()
    assert (found.count(201), found.count(403)) == (2, 3)


@pytest.mark.parametrize(
    "image", ["http://169.254.169.254/latest", "file:///etc/passwd", "docker-archive:/etc/passwd", "../x"]
)
async def test_api7_server_side_request_forgery(lab: Lab, image: str) -> None:
    """No field is an address that the service opens: what is not the name of an image is refused by its form."""
    answer = await lab.ask("developer", "POST", "/v1/containers", json={"container-url": image, "tenancy": "red"})
    assert answer.status_code == 422, answer.text
    with pytest.raises(errors.Invalid):
        admission.admit(core.Pod(spec=core.PodSpec(containers=(core.Container(name="a", image=image),))))


async def test_api8_security_misconfiguration(lab: Lab, tmp_path: Path) -> None:
    """TLS from 1.2 on, no cross-origin access, no banner, no method that is not meant, no inside in an answer."""
    files = certificate.own(tmp_path)
    certificate.ensure_own(files, ["localhost"], tlslistener._now())
    assert certificate.open_context(files).minimum_version >= ssl.TLSVersion.TLSv1_2
    async with lab.client("viewer") as client:
        found = await client.get("/v1/self", headers={"origin": "https://evil.example"})
        assert not {"access-control-allow-origin", "server", "x-powered-by"} & set(found.headers)
        for method in ("TRACE", "OPTIONS", "PATCH"):
            assert (await client.request(method, "/v1/self")).status_code == 405
        wrong = await client.get("/v1/containers/%00%1b%5b31m")
        assert wrong.headers["content-type"] == problem.MEDIA_TYPE
        assert "Traceback" not in wrong.text


def test_api9_improper_inventory_management(lab: Lab) -> None:
    """The document has every route that is served, the table of roles too, and every path has its version."""
    document = base.describe(v1.create_app(lab.services))
    documented = {one["operationId"] for item in document["paths"].values() for one in item.values()}
    sockets = {one.handler_name for one in v1.ROUTES if isinstance(one, handlers.WebsocketRouteHandler)}
    assert documented | sockets | {"document"} == set(permissions.ACTIONS)
    assert all(path.startswith("/v1/") or path in {"/healthz", "/readyz"} for path in document["paths"])


def test_a_route_that_offers_a_dry_run_is_not_refused_one(lab: Lab) -> None:
    document = base.describe(v1.create_app(lab.services))
    operations = [one for item in document["paths"].values() for one in item.values()]
    offers = {
        one["operationId"] for one in operations if any(it["name"] == "dry_run" for it in one.get("parameters", ()))
    }
    assert offers == permissions.TRIES


async def test_resizing_and_changing_limits_is_for_those_who_may(lab: Lab) -> None:
    """A stranger finds no container to resize, a viewer may not, and no owner raises the limits of its own tenancy."""
    await lab.run("developer", "train", tenancy="red", cpu="1")
    path = f"/v1/containers/train/resize?namespace={lab.namespaces['red']}"
    before = await lab.world.pod("train", lab.namespaces["red"])
    assert (await lab.ask("stranger", "PATCH", path, json={"cpu": "2"})).status_code == 404
    assert (await lab.ask("viewer", "PATCH", path, json={"cpu": "2"})).status_code == 403
    assert await lab.world.pod("train", lab.namespaces["red"]) == before
    assert (await lab.ask("developer", "PATCH", path, json={"cpu": "2"})).status_code not in {403, 404}
    for name in ("owner", "developer", "viewer", "stranger"):
        answer = await lab.ask(name, "PATCH", "/v1/tenancies/red", json={"quota": {"pods": "99"}})
        assert answer.status_code in {403, 404}, (name, answer.text)


class Answer:
    """What a service answers that may not be ours."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self._body = status, body

    def header(self, name: str) -> str:
        return "1e9" if name == "retry-after" else ""

    def read(self) -> bytes:
        return self._body

    def pieces(self) -> Iterator[bytes]:
        yield self._body


class Liar:
    """A transport to a service that answers with whatever it likes."""

    address = "https://liar"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    @contextlib.contextmanager
    def send(self, request: transport.Request, *, timeout_s: float | None) -> Iterator[transport.Answer]:
        del request, timeout_s
        yield self.answer

    def connect(self, target: str) -> contextlib.AbstractContextManager[transport.Session]:
        raise AssertionError(target)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b'{"items": "all"}'),
        (200, b"[" * 100_000),
        (500, b"{}"),
        (403, b'{"type": 1}'),
        (404, b"\xff\xfe"),
        (302, b'{"location": "http://169.254.169.254/"}'),
    ],
)
def test_api10_unsafe_consumption_of_apis(status: int, body: bytes) -> None:
    """What another service answers is data: one that is not of our API is an error, and leads nowhere else."""
    with pytest.raises(errors.ProtocolError):
        calls.Calls(Liar(Answer(status, body))).call("GET", "/v1/containers", view.ContainerList)


def test_api10_a_problem_sets_no_more_than_a_problem_has() -> None:
    """A document that names fields of the error's own class changes none of them."""
    said = problem.Problem(
        type="urn:fairlead:error:FairleadError",
        title="x",
        status=403,
        detail="no",
        reason="R",
        context={"self": 1, "message": 2, "reason": 3, "hint": 4, "args": 5},
    )
    found = problem.error_of(said)
    assert (type(found), found.message, found.reason, found.context) == (errors.Denied, "no", "R", {"args": 5})
