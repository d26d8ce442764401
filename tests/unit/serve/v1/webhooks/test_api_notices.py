"""Notices by the API: everybody keeps their own, for their containers, their tenancies or, as root, the machine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from fairlead.serve.database import engine, schema
from fairlead.serve.webhooks import foresight, mail
from fairlead.serve.webhooks.watcher import Watcher
from fairlead.store import port as stores
from fairlead.wire.kubernetes import core, gpudevice, meta, names
from fairlead.wire.kubernetes.gpudevice import GPUDevice, GPUDeviceSpec, GPUDeviceStatus
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World

_URL = "https://hooks.example/T/B/secretpath"
_SERVER = mail.Server(host="mail.example.org", sender="fl@example.org", domains=("example.com",))
_EVENT = schema.WEBHOOK_EVENT.c


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path, _SERVER) as made:
        yield made


async def _add(lab: Lab, who: str, **body: Any) -> Any:
    return await lab.ask(who, "POST", "/v1/notices", json={"url": _URL, "format": "slack", **body})


async def test_a_viewer_keeps_notices_of_their_own_that_nobody_else_sees(lab: Lab) -> None:
    made = await _add(lab, "viewer")
    assert made.status_code == 201, made.text
    view = made.json()["webhook"]
    assert (view["person"], view["reach"], view["url"]) == ("viewer", "own", "https://hooks.example/…")
    for who in ("owner", "stranger", "nobody"):
        assert (await lab.ask(who, "GET", "/v1/notices?everybody=true")).json()["items"] == []
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", ":test")):
            assert (await lab.ask(who, method, f"/v1/notices/{view['id']}{path}")).status_code == 404
    assert (await lab.ask("root", "GET", "/v1/notices")).json()["items"] == []
    (seen,) = (await lab.ask("root", "GET", "/v1/notices?everybody=true")).json()["items"]
    assert seen == view
    assert (await lab.ask("root", "GET", "/v1/webhooks")).json()["items"] == []
    tried = await lab.ask("viewer", "POST", f"/v1/notices/{view['id']}:test")
    shown = await lab.ask("viewer", "GET", f"/v1/notices/{view['id']}")
    assert [one["id"] for one in shown.json()["deliveries"]] == [tried.json()["id"]]
    assert "secretpath" not in shown.text
    assert (await lab.ask("viewer", "DELETE", f"/v1/notices/{view['id']}")).status_code == 204


async def test_nobody_hears_of_what_is_not_theirs(lab: Lab) -> None:
    assert (await _add(lab, "viewer", tenancy="red")).status_code == 201
    assert (await _add(lab, "viewer", tenancy="blue")).status_code == 404
    refused = await _add(lab, "owner", machine=True)
    assert (refused.status_code, refused.json()["reason"]) == (403, "RoleForbids")
    assert (await _add(lab, "root", machine=True)).status_code == 201
    assert (await _add(lab, "root", machine=True, tenancy="red")).status_code == 403


async def test_addresses_are_checked_and_confirmed_and_roots_are_not(lab: Lab) -> None:
    body = {"format": "email", "url": "mailto:ann@example.com"}
    made = (await _add(lab, "developer", **body)).json()["webhook"]
    assert made["is_confirmed"] is False
    wrong = await lab.ask("developer", "POST", f"/v1/notices/{made['id']}:confirm", json={"code": "1"})
    assert (wrong.status_code, wrong.json()["reason"]) == (403, "CodeWrong")
    assert (await lab.ask("developer", "POST", f"/v1/notices/{made['id']}:test")).status_code == 409
    (sent,) = await _bodies(lab)
    code = sent["data"]["code"]
    assert code not in (await lab.ask("developer", "GET", f"/v1/notices/{made['id']}")).text
    right = await lab.ask("developer", "POST", f"/v1/notices/{made['id']}:confirm", json={"code": code})
    assert right.json()["is_confirmed"] is True
    refused = await _add(lab, "developer", format="email", url="mailto:ann@elsewhere.org")
    assert refused.json()["reason"] == "MailDomainRefused"
    inject = await _add(lab, "root", format="email", url="mailto:ann@example.com\r\nBcc: x@example.com")
    assert inject.json()["reason"] == "MailAddressInvalid"
    trusted = await _add(lab, "root", format="email", url="mailto:ann@elsewhere.org")
    assert trusted.json()["webhook"]["is_confirmed"] is True


async def test_a_tenancys_admin_has_no_mail_sent_to_somebody_who_did_not_ask(lab: Lab) -> None:
    body = {"url": "mailto:ann@example.com", "format": "email", "tenancy": "red"}
    refused = await lab.ask("owner", "POST", "/v1/webhooks", json=body)
    assert (refused.status_code, refused.json()["reason"]) == (403, "RoleForbids")
    assert (await lab.ask("root", "POST", "/v1/webhooks", json=body)).status_code == 201


async def _bodies(lab: Lab) -> list[dict[str, Any]]:
    kept: Any = lab.accounts.webhooks
    async with engine.transaction(kept.database) as connection:
        found = await connection.execute(sa.select(_EVENT.body).order_by(_EVENT.created_at))
    return [json.loads(body) for (body,) in found]


async def _kinds(lab: Lab) -> list[str]:
    return [one["type"] for one in await _bodies(lab)]


async def test_a_container_says_who_started_it_and_nobody_can_say_so_themselves(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red")
    pod = await lab.world.store.get(core.Pod, "train", lab.namespaces["red"])
    assert pod.metadata.annotations[names.ACCOUNT] == "developer"
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "forged", "annotations": {names.ACCOUNT: "owner"}},
        "spec": {"containers": [{"name": "main", "image": "demo"}]},
    }
    answer = await lab.ask("developer", "POST", f"/v1/pods?namespace={lab.namespaces['red']}", json=manifest)
    if answer.is_success:
        forged = await lab.world.store.get(core.Pod, "forged", lab.namespaces["red"])
        assert forged.metadata.annotations[names.ACCOUNT] == "developer"


async def test_an_administrators_container_says_who_started_it_in_a_tenancy_and_outside(lab: Lab) -> None:
    await lab.account("ada", is_root=True)
    for name, place in (("inside", {"tenancy": "red"}), ("outside", {})):
        body = {"name": name, "image": "demo", **place}
        assert (await lab.ask("ada", "POST", "/v1/containers", json=body)).is_success
    for name, space in (("inside", lab.namespaces["red"]), ("outside", "default")):
        pod = await lab.world.store.get(core.Pod, name, space)
        assert pod.metadata.annotations.get(names.ACCOUNT) == "ada"
    assert names.TENANT not in pod.metadata.annotations


async def test_restarted_by_a_colleague_it_stays_who_started_its(lab: Lab) -> None:
    await lab.run("developer", "train", tenancy="red")
    space = lab.namespaces["red"]
    old = await lab.world.store.get(core.Pod, "train", space)
    part = lab.services.backend.places
    assert part.again(old).account == "developer"


class Time:
    """A watcher over a lab's outbox, with a clock."""

    def __init__(self, lab: Lab) -> None:
        self.now = 1_800_000_000.0
        outbox: Any = lab.accounts.webhooks
        self.watcher = Watcher(
            lab.world.store, outbox, times=foresight.Times(wait_s=600, ahead_s=300), now=lambda: self.now
        )

    async def see(self, item: Any) -> None:
        await self.watcher.handle(stores.Change(kind=stores.ChangeKind.MODIFIED, object=item))

    async def pass_by(self, seconds: float) -> None:
        self.now += seconds
        await self.watcher.handle(("time", ()))


def _pod(lab: Lab, at: float, **status: Any) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(
            name="train",
            namespace=lab.namespaces["red"],
            uid="uid-train",
            creation_timestamp=meta.emit_time(at),
            annotations={names.ACCOUNT: "developer"},
        ),
        spec=core.PodSpec(
            containers=(core.Container(name="main", image="demo"),),
            node_name=status.pop("node", "n"),
            active_deadline_seconds=status.pop("deadline", None),
        ),
        status=core.PodStatus(**status),
    )


async def test_the_whole_life_of_a_container_is_told_to_who_started_it(lab: Lab) -> None:
    await _add(lab, "developer")
    await _add(lab, "viewer")  # hears nothing of it
    time = Time(lab)
    begin = time.now
    await time.see(_pod(lab, begin, phase="Pending", node=""))
    for _ in range(3):
        await time.pass_by(300)
    assert await _kinds(lab) == ["container.waits"]
    started = {"phase": "Running", "start_time": meta.emit_time(time.now), "deadline": 3600}
    await time.see(_pod(lab, begin, **started))
    idle = core.IdleNotice(since="s", warned_at="w", action="stop", acts_at="soon", message="its GPUs are idle")
    await time.see(_pod(lab, begin, **started, idle_notice=idle))
    await time.pass_by(60)
    await time.see(_pod(lab, begin, **started))  # in use again
    await time.pass_by(3300)
    await time.pass_by(30)
    ended = core.ContainerStateUnion(terminated=core.ContainerStateTerminated(exit_code=137, reason="Error"))
    main = core.ContainerStatus(name="main", state=ended)
    await time.see(_pod(lab, begin, phase="Failed", reason="DeadlineExceeded", container_statuses=(main,)))
    told = await _bodies(lab)
    assert [one["type"] for one in told] == [
        "container.waits",
        "container.running",
        "container.ends_soon",
        "container.ends_soon",
        "container.failed",
    ]
    assert [one["data"].get("cause") for one in told[2:4]] == ["idle GPUs", "time limit"]
    assert (told[-1]["data"]["exit_code"], told[-1]["data"]["reason"]) == (137, "DeadlineExceeded")
    kept: Any = lab.accounts.webhooks
    assert {name.partition(":")[0] for name in await kept.seen()} == {"pod"}


async def test_one_that_was_warned_is_not_told_again_as_it_is_ended(lab: Lab) -> None:
    await _add(lab, "developer")
    time = Time(lab)
    idle = core.IdleNotice(since="s", warned_at="w", action="stop", acts_at="soon")
    await time.see(_pod(lab, time.now, phase="Running", idle_notice=idle))
    stop = core.StopRequest(requested_at="r", reason="GPUsIdle", message="idle")
    await time.see(_pod(lab, time.now, phase="Running", idle_notice=idle, stop_request=stop))
    await time.see(_pod(lab, time.now, phase="Running", stop_request=stop))
    assert await _kinds(lab) == ["container.running", "container.ends_soon"]


async def test_a_reservation_ahead_is_told_of(lab: Lab) -> None:
    await _add(lab, "developer")
    time = Time(lab)
    await time.see(_pod(lab, time.now, phase="Running"))
    event = core.Event(
        metadata=meta.ObjectMeta(name="e", namespace=lab.namespaces["red"], uid="e"),
        involved_object=core.ObjectReference(kind="Pod", name="train", uid="uid-train"),
        reason=foresight.AHEAD,
        message="4 GPUs are reserved for others",
        source=core.EventSource(component="fairlead-scheduler"),
        last_timestamp="2027-01-15T08:00:00Z",
    )
    await time.see(event)
    await time.see(event)
    await time.pass_by(30)
    told = await _bodies(lab)
    assert [one["type"] for one in told] == ["container.running", "container.ends_soon"]
    assert told[1]["data"]["message"] == "4 GPUs are reserved for others"


async def test_sick_gpus_are_told_to_the_machines_and_to_their_holders(lab: Lab) -> None:
    await _add(lab, "root", machine=True, events=["gpu.*"])
    await _add(lab, "developer")
    time = Time(lab)
    spec = GPUDeviceSpec(
        node_name="n",
        uuid="GPU-1",
        index=0,
        minor=0,
        vendor="nvidia",
        product="H100",
        memory="80Gi",
        simulated=True,
    )
    item = GPUDevice(metadata=meta.ObjectMeta(name="g", uid="g"), spec=spec)
    for health in (gpudevice.HEALTHY, gpudevice.UNHEALTHY, gpudevice.UNHEALTHY, gpudevice.UNKNOWN, gpudevice.HEALTHY):
        status = GPUDeviceStatus(health=health, reason="XID79" if health == gpudevice.UNHEALTHY else "")
        await time.see(msgspec.structs.replace(item, status=status))
    assert await _kinds(lab) == ["gpu.unhealthy", "gpu.healthy"]
    ill = meta.Condition(type="fairlead.dev/GPUHealthy", status="False", reason="XID79", message="GPU-1: fell off")
    await time.see(_pod(lab, time.now, phase="Running", conditions=(ill,)))
    assert (await _kinds(lab))[2:] == ["container.running", "container.gpu_unhealthy"]
