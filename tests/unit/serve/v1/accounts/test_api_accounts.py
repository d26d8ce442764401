"""The API by keys: every route is judged by the table of roles, and another tenancy's objects do not exist."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from litestar.handlers import BaseRouteHandler

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve import authentication
from fairlead.serve.accounts import port, roles, store, stores
from fairlead.serve.accounts.recording import Refusals
from fairlead.serve.accounts.roles import Action, Membership, Role, Scope
from fairlead.serve.api import app as base
from fairlead.serve.database import engine
from fairlead.serve.limits.bucket import Rate
from fairlead.serve.limits.gate import Gate, Policy
from fairlead.serve.v1 import app as v1
from fairlead.serve.v1 import permissions
from fairlead.serve.webhooks.mail import Server
from fairlead.serve.webhooks.store import StoredWebhooks
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import meta
from tests.unit.plan.metering.leases import keep, lease
from tests.unit.serve.v1.tenancies.test_api_tenancies import Trial
from tests.unit.serve.world import World, application, in_process

As = Callable[[str], httpx.AsyncClient]

UNLIMITED = Rate(per_s=0.0, burst=1)


class Lab:
    """A machine with two tenancies and an account of each role in the first one, keys in hand."""

    def __init__(self, world: World, accounts: port.Accounts) -> None:
        self.world, self.accounts = world, accounts
        backend = replace(world.backend, tenancies=Trial())
        self.services = replace(world.services, backend=backend, accounts=accounts)
        self.refusals = Refusals(accounts.audit)
        self.policy = Policy(key=UNLIMITED, address=UNLIMITED)
        self.app = self.guarded(self.policy)
        self.keys: dict[str, str] = {}
        self.uids: dict[str, str] = {}
        self.namespaces: dict[str, str] = {}

    def guarded(self, policy: Policy, now: Callable[[], float] = time.monotonic) -> authentication.App:
        """Return the door with limits."""
        inner, gate = application(self.services), Gate(policy, now=now)
        return authentication.create_app(inner, self.accounts, gate=gate, refusals=self.refusals)

    async def tenancy(self, name: str) -> None:
        item = await self.world.store.create(Tenancy(metadata=meta.ObjectMeta(name=name)))
        parts = (kind.NAMESPACE_READY, kind.NETWORK_ISOLATED, kind.QUOTA_APPLIED)
        good = {one: baseline.condition(item, one, None, good="Good") for one in parts}
        await self.world.store.apply(baseline.namespace(item), manager="test")
        status = baseline.status(item, good, kind.NetworkStatus())
        await self.world.store.update_status(msgspec.structs.replace(item, status=status))
        self.uids[name], self.namespaces[name] = item.metadata.uid, baseline.namespace_name(item)

    async def account(
        self, name: str, *, role: Role | None = None, tenancy: str = "red", is_root: bool = False
    ) -> None:
        await self.accounts.people.create(name, kind=port.PERSON, is_administrator=is_root)
        if role is not None:
            await self.grant(name, tenancy, role)
        self.keys[name] = await self.key(name)

    async def grant(self, name: str, tenancy: str, role: Role) -> None:
        await self.accounts.people.grant(name, Membership(tenancy=tenancy, uid=self.uids[tenancy], role=role))

    async def key(self, name: str, *scopes: Scope, lifetime_s: float | None = None) -> str:
        wish = port.KeySpec(account=name, scopes=scopes or tuple(Scope), lifetime_s=lifetime_s)
        return (await self.accounts.keys.create(wish)).key

    def client(self, name: str, key: str = "") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key or self.keys[name]}"}
        return httpx.AsyncClient(transport=in_process(self.app), base_url="http://test", headers=headers)

    async def ask(self, name: str, method: str, path: str, **more: Any) -> httpx.Response:
        async with self.client(name) as client:
            return await client.request(method, path, **more)

    async def run(self, name: str, container: str, **more: Any) -> httpx.Response:
        return await self.ask(name, "POST", "/v1/containers", json={"image": "demo", "name": container, **more})


@contextlib.asynccontextmanager
async def opened(world: World, tmp_path: Path, mail: Server | None = None) -> AsyncIterator[Lab]:
    """Give a machine with accounts. Args: mail: where it hands over e-mail; None: it sends none."""
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        hooks = StoredWebhooks(database=database, mail=mail or Server())
        made = Lab(world, stores.open_accounts(database, hooks=hooks))
        await made.tenancy("red")
        await made.tenancy("blue")
        for role in Role:
            await made.account(role.value, role=role)
        await made.account("stranger", role=Role.OWNER, tenancy="blue")
        await made.account("nobody")
        await made.account("root", is_root=True)
        yield made


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


def _handlers() -> list[tuple[str, BaseRouteHandler]]:
    return [(route.handler_name, route) for route in (*v1.ROUTES, base.document)]


def test_the_permission_table_has_exactly_the_routes() -> None:
    assert {name for name, _ in _handlers()} == set(permissions.ACTIONS)


def test_every_action_has_a_row_and_no_role_may_what_a_lower_one_may_not_be_refused() -> None:
    assert set(roles.TABLE) == set(Action)
    order = tuple(Role)
    for rule in roles.TABLE.values():
        assert rule.roles == frozenset(order[len(order) - len(rule.roles) :])


async def test_a_route_that_nobody_named_is_refused_to_an_administrator_too() -> None:
    with pytest.raises(errors.Denied, match="nothing says who may use") as refused:
        permissions.action_of("new_route")
    assert refused.value.reason == "RouteUnjudged"


async def test_no_route_answers_without_a_key(lab: Lab) -> None:
    """OWASP API2: broken authentication."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        raise AssertionError("nothing of the request is read")

    for name, handler in _handlers():
        path = min(handler.paths).replace("{name:str}", "x").replace("{account:str}", "y").replace("/:", ":")
        for method in sorted(getattr(handler, "http_methods", ()) or ("WEBSOCKET",)):
            if (method, path) in permissions.OPEN:
                assert not roles.TABLE[permissions.ACTIONS[name]].needs_account
                continue
            sent.clear()
            type_ = "websocket" if method == "WEBSOCKET" else "http"
            scope = {"type": type_, "method": method, "path": path, "headers": [], "query_string": b"", "state": {}}
            await lab.app(scope, receive, send)
            assert sent[0]["status"] == 401, path
            assert b'"reason":"KeyRequired"' in sent[1]["body"]


async def test_what_each_role_may_is_the_table(lab: Lab) -> None:
    """OWASP API5: broken function level authorization."""
    assert (await lab.run("developer", "train", tenancy="red")).status_code == 201
    secret = {"name": "db", "namespace": lab.namespaces["red"], "values": {"a": "b"}}
    assert (await lab.ask("developer", "POST", "/v1/secrets", json=secret)).status_code == 201
    asked = {
        Action.SERVICE_READ: ("GET", "/v1/gpus", None),
        Action.TENANCY_READ: ("GET", "/v1/tenancies/red", None),
        Action.CONTAINER_READ: ("GET", "/v1/containers/train", None),
        Action.CONTAINER_RUN: ("POST", "/v1/containers/train:stop", None),
        Action.VOLUME_READ: ("GET", "/v1/volumes", None),
        Action.VOLUME_WRITE: ("POST", "/v1/volumes", {"name": "data"}),
        Action.SECRET_READ: ("GET", "/v1/secrets", None),
        Action.SECRET_WRITE: ("PUT", "/v1/secrets/db", {"values": {"a": "b"}}),
        Action.MEMBER_READ: ("GET", "/v1/tenancies/red/members", None),
        Action.MEMBER_WRITE: ("PUT", "/v1/tenancies/red/members/nobody", {"role": "viewer"}),
        Action.KEY_OWN: ("GET", "/v1/keys", None),
        Action.MACHINE_READ: ("GET", "/v1/nodes", None),
        Action.MACHINE_WRITE: ("POST", "/v1/images:prune", None),
        Action.ACCOUNT_WRITE: ("GET", "/v1/users", None),
        Action.AUDIT_READ: ("GET", "/v1/audit", None),
    }
    for action, (method, path, body) in asked.items():
        for role in Role:
            answer = await lab.ask(role.value, method, path, json=body)
            may = role in roles.TABLE[action].roles
            assert (answer.status_code < 400) is may, (action, role, answer.text)
            assert may or (answer.status_code, answer.json()["reason"]) == (403, "RoleForbids")


async def test_another_tenancys_object_is_not_found_and_stays(lab: Lab) -> None:
    """OWASP API1: broken object level authorization."""
    made = (await lab.run("developer", "train", tenancy="red")).json()
    await lab.ask("developer", "POST", "/v1/volumes", json={"name": "data", "namespace": lab.namespaces["red"]})
    for method, path in OBJECTS:
        place = f"{'&' if '?' in path else '?'}namespace={lab.namespaces['red']}"
        answer = await lab.ask("stranger", method, path + place)
        assert answer.status_code == 404, (path, answer.text)
    still = (await lab.ask("developer", "GET", "/v1/containers/train")).json()
    assert (still["uid"], still["state"] == "stopped") == (made["uid"], False)
    assert (await lab.ask("developer", "GET", "/v1/volumes/data")).status_code == 200


OBJECTS = (
    ("GET", "/v1/containers/train"),
    ("GET", "/v1/containers/train/logs"),
    ("GET", "/v1/containers/train/events"),
    ("GET", "/v1/containers/train/trace"),
    ("GET", "/v1/containers/train/explain"),
    ("GET", "/v1/containers/train/processes"),
    ("GET", "/v1/containers/train/wait?timeout=0"),
    ("POST", "/v1/containers/train:stop"),
    ("POST", "/v1/containers/train:signal?signal=TERM"),
    ("POST", "/v1/containers/train:restart"),
    ("DELETE", "/v1/containers/train"),
    ("DELETE", "/v1/volumes/data"),
    ("GET", "/v1/volumes/data"),
)


async def test_another_tenancy_is_not_found_by_name_and_not_listed(lab: Lab) -> None:
    absent = (await lab.ask("stranger", "GET", "/v1/tenancies/nothing")).json()
    for path in ("/v1/tenancies/red", "/v1/tenancies/red/members", "/v1/tenancies/red/wait?timeout=0"):
        answer = await lab.ask("stranger", "GET", path)
        assert answer.status_code == 404
        assert answer.json()["detail"].replace("red", "nothing") == absent["detail"]
    assert (await lab.run("stranger", "train", tenancy="red")).status_code == 404
    names = [item["name"] for item in (await lab.ask("stranger", "GET", "/v1/tenancies")).json()["items"]]
    assert names == ["blue"]


async def test_lists_hold_what_is_of_ones_tenancies_alone(lab: Lab) -> None:
    await lab.run("developer", "red-one", tenancy="red")
    await lab.run("stranger", "blue-one", tenancy="blue")

    async def names(who: str) -> list[str]:
        found = (await lab.ask(who, "GET", "/v1/containers?all=true")).json()["items"]
        return [item["name"] for item in found]

    assert (await names("viewer"), await names("stranger")) == (["red-one"], ["blue-one"])
    assert (await lab.ask("nobody", "GET", "/v1/containers")).status_code == 403
    assert sorted(await names("root")) == ["blue-one", "red-one"]
    holders = [one for gpu in (await lab.ask("stranger", "GET", "/v1/gpus")).json()["gpus"] for one in gpu["holders"]]
    assert not [one for one in holders if one["namespace"] == lab.namespaces["red"]]


async def test_a_member_sees_what_their_own_tenancy_held(lab: Lab) -> None:
    now = time.time()
    held = [lease(name, now - 9, now - 4, gpu=at, of=[lab.namespaces[name]]) for at, name in enumerate(("red", "blue"))]
    await keep(lab.world.store, *held)
    period = {"since": meta.emit_time(now - 60), "group_by": "tenancy"}
    for who, seen in (("viewer", ["red"]), ("stranger", ["blue"]), ("root", ["blue", "red"])):
        shown = (await lab.ask(who, "GET", "/v1/usage", params=period)).json()["items"]
        assert sorted(row["group"]["tenancy"] for row in shown) == seen, who


async def test_a_later_tenancy_of_the_same_name_has_none_of_the_members(lab: Lab) -> None:
    old = lab.uids["red"]
    await lab.world.store.delete(Tenancy, "red", uid=old)
    await lab.tenancy("red")
    assert lab.uids["red"] != old
    assert (await lab.ask("owner", "GET", "/v1/tenancies/red")).status_code in {403, 404}
    assert (await lab.ask("owner", "GET", "/v1/self")).json()["memberships"] == []
    assert (await lab.run("developer", "train", tenancy="red")).status_code in {403, 404}


async def test_an_account_asks_for_nothing_of_the_host(lab: Lab) -> None:
    answer = await lab.run("owner", "train", tenancy="red", binds=[{"host_path": "/etc", "container_path": "/x"}])
    assert answer.status_code == 403, answer.text
    assert (await lab.run("owner", "train", namespace="default-other")).status_code == 404


async def test_an_account_keeps_nobody_waiting_for_longer_than_an_hour(lab: Lab) -> None:
    """Preemption, budgets and the end of a tenancy wait for a container's own grace."""
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: main, image: demo}]\n"
    for seconds, status in ((1000000000000, 403), (3601, 403), (3600, 201)):
        grace = f"  terminationGracePeriodSeconds: {seconds}\n"
        made = await lab.ask("owner", "POST", f"/v1/pods?namespace={lab.namespaces['red']}", content=pod + grace)
        assert made.status_code == status, made.text
    assert (await lab.ask("owner", "POST", "/v1/containers/p:stop?grace=3601")).status_code == 400
    assert (await lab.ask("owner", "DELETE", "/v1/containers/p?grace=1000000000000")).status_code == 400


async def test_only_an_owner_gives_or_takes_what_is_not_below(lab: Lab) -> None:
    """OWASP API3: nobody writes a property that lifts their own role."""

    async def grant(who: str, whom: str, role: str) -> int:
        path = f"/v1/tenancies/red/members/{whom}"
        return (await lab.ask(who, "PUT", path, json={"role": role})).status_code

    assert (await grant("admin", "nobody", "developer"), await grant("admin", "nobody", "admin")) == (200, 403)
    assert (await grant("admin", "admin", "owner"), await grant("admin", "owner", "viewer")) == (403, 403)
    assert (await grant("owner", "nobody", "owner"), await grant("stranger", "stranger", "owner")) == (200, 404)
    assert (await lab.ask("admin", "DELETE", "/v1/tenancies/red/members/owner")).status_code == 403
    assert (await lab.ask("owner", "DELETE", "/v1/tenancies/red/members/admin")).status_code == 204
    body = {"name": "evil", "is_administrator": True}
    assert (await lab.ask("owner", "POST", "/v1/users", json=body)).status_code == 403


async def test_an_account_has_so_many_keys_and_old_ones_are_forgotten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one key fills the database that all accounts are in, and the disk."""
    monkeypatch.setattr(store, "_MOST_KEYS", 3)
    made = [(await lab.ask("viewer", "POST", "/v1/keys", json={})) for _ in range(3)]
    assert [one.status_code for one in made] == [201, 201, 409]
    assert made[-1].json()["reason"] == "KeysTooMany"
    first = made[0].json()["view"]["id"]
    assert (await lab.ask("viewer", "POST", f"/v1/keys/{first}:rotate", json={})).status_code < 300
    assert (await lab.ask("developer", "POST", "/v1/keys", json={})).status_code == 201
    for _ in range(6):
        made_anew = await lab.ask("developer", "POST", "/v1/keys", json={})
        await lab.ask("developer", "POST", f"/v1/keys/{made_anew.json()['view']['id']}:revoke")
    assert len((await lab.ask("developer", "GET", "/v1/keys")).json()["items"]) <= 2 * 3


async def test_a_key_does_no_more_than_its_scopes_and_makes_none_that_does(lab: Lab) -> None:
    for scope, reads, runs in ((Scope.READ, 200, 403), (Scope.RUN, 403, 201)):
        async with lab.client("owner", await lab.key("owner", scope)) as client:
            assert (await client.get("/v1/containers")).status_code == reads
            made = await client.post("/v1/containers", json={"image": "demo", "tenancy": "red"})
            # Naming a tenancy looks it up, which the scope to run is enough for.
            assert made.status_code == runs, made.text
            assert (await client.post("/v1/keys", json={})).status_code == 403
    async with lab.client("owner", await lab.key("owner", Scope.MANAGE)) as client:
        wider = await client.post("/v1/keys", json={"scopes": ["run"]})
        assert (wider.status_code, wider.json()["reason"]) == (403, "ScopeMissing")
        made = await client.post("/v1/keys", json={})
        assert made.json()["view"]["scopes"] == ["manage"]
        assert (await client.post("/v1/keys", json={"account": "root"})).status_code == 403


async def test_a_key_ends_at_once_when_it_is_revoked_and_only_by_who_may(lab: Lab) -> None:
    id_ = lab.keys["viewer"].split("_")[1]
    assert (await lab.ask("owner", "POST", f"/v1/keys/{id_}:revoke")).status_code == 404
    assert (await lab.ask("viewer", "GET", "/v1/self")).json()["memberships"][0]["role"] == "viewer"
    assert (await lab.ask("root", "POST", f"/v1/keys/{id_}:revoke")).status_code == 200
    answer = await lab.ask("viewer", "GET", "/v1/self")
    assert (answer.status_code, answer.json()["reason"]) == (401, "KeyRefused")
    assert lab.keys["viewer"].split("_")[2] not in answer.text


async def test_an_old_key_and_its_successor_are_in_force_together(lab: Lab) -> None:
    id_ = lab.keys["viewer"].split("_")[1]
    made = await lab.ask("viewer", "POST", f"/v1/keys/{id_}:rotate", json={"overlap_s": 3600})
    assert made.status_code == 201, made.text
    assert (await lab.ask("viewer", "GET", "/v1/self")).status_code == 200
    lab.keys["viewer"] = made.json()["key"]
    assert (await lab.ask("viewer", "POST", f"/v1/keys/{id_}:rotate", json={"overlap_s": 0})).status_code == 201
    states = {one["id"]: one["state"] for one in (await lab.ask("viewer", "GET", "/v1/keys")).json()["items"]}
    assert states[id_] == "expired"


async def test_no_key_is_in_an_answer_or_a_log_line_after_it_was_made(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = [key.split("_")[2] for key in lab.keys.values()]
    for path in ("/v1/keys", "/v1/users", "/v1/self"):
        answer = await lab.ask("root", "GET", path)
        assert not [one for one in secrets if one in answer.text]
    async with lab.client("root", lab.keys["root"][:-1] + "g") as client:
        assert (await client.get("/v1/self")).status_code == 401
    shown = capsys.readouterr()
    assert not [one for one in secrets if one in shown.out + shown.err]


async def test_a_websocket_is_refused_in_words_before_it_opens(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red")
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        await asyncio.sleep(0)
        return {"type": "websocket.connect"}

    scope = {
        "type": "websocket",
        "path": "/v1/containers/train/exec",
        "raw_path": b"/v1/containers/train/exec",
        "root_path": "",
        "scheme": "wss",
        "headers": [(b"authorization", f"Bearer {lab.keys['viewer']}".encode())],
        "query_string": b"command=sh",
        "state": {},
        "subprotocols": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {"websocket.http.response": {}},
    }
    await lab.app(scope, receive, send)
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 403)
    assert b"RoleForbids" in sent[1]["body"]


async def test_the_unix_sockets_callers_are_judged_as_before(lab: Lab) -> None:
    transport = in_process(application(lab.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/v1/users")).status_code == 200
        assert (await client.post("/v1/keys", json={"account": "viewer"})).status_code == 201
        own = await client.post("/v1/keys", json={})
        assert (own.status_code, own.json()["reason"]) == (422, "AccountRequired")


async def test_accounts_are_refused_where_the_door_is_off(world: World) -> None:
    transport = in_process(application(world.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/v1/users")
    assert (answer.status_code, answer.json()["reason"]) == (503, "AccountsOff")


async def test_an_expired_key_is_refused(lab: Lab) -> None:
    key = await lab.key("viewer", lifetime_s=0.01)
    await asyncio.sleep(0.02)
    assert time.time() > 0
    async with lab.client("viewer", key) as client:
        assert (await client.get("/v1/self")).json()["detail"].endswith("is expired")
