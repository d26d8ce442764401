"""A trial of a tenancy's network over a fake engine, whose containers all live in this machine's own network.

So everything reaches everything, which a trial must call a breach. Real networks are tried in `tests/system`.
"""

from __future__ import annotations

import asyncio

import pytest

from fairlead import errors
from fairlead.engine import port
from fairlead.engine.fake import engine as fake
from fairlead.kernel.network import address, netns
from fairlead.node.tenancy import trial
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import meta

IMAGE = "localhost/sleeps:1"


def tenancy(name: str, *, mode: str = "", network: str = "", ready: bool = True) -> Tenancy:
    condition = meta.Condition(type=kind.READY, status="True" if ready else "False", message="the quota is missing")
    return Tenancy(
        metadata=meta.ObjectMeta(name=name, uid=f"uid-{name}", generation=1),
        spec=kind.TenancySpec(network=kind.TenancyNetwork(mode=mode) if mode else kind.TenancyNetwork()),
        status=kind.TenancyStatus(
            observed_generation=1,
            network=kind.NetworkStatus(name=network, gateways=("127.0.0.3",) if network else ()),
            conditions=(condition,),
        ),
    )


@pytest.fixture(autouse=True)
def _one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No namespace is entered, and the addresses of containers and of the host are loopback's."""
    of_process = {"self": ("127.0.0.3", "127.0.0.4", "192.0.2.99")}
    monkeypatch.setattr(netns, "enter", lambda _: None)
    monkeypatch.setattr(address, "of_process", lambda pid: of_process.get(str(pid), ("127.0.0.2",)))
    monkeypatch.setattr(trial, "_PAUSES_S", (0.01,))
    monkeypatch.setattr(trial, "_TIMEOUT_S", 0.2)


async def image() -> str:
    return IMAGE


def made(engine: fake.FakeEngine, **more: bool) -> trial.Trial:
    engine.add_image(IMAGE, command=("sleep",))
    return trial.Trial(engine, home="home", image=image, **more)


async def network(engine: fake.FakeEngine, name: str) -> str:
    await engine.create_network(name, ("10.1.0.0/24",), labels={}, resolves_names=True)
    return name


async def left(engine: fake.FakeEngine) -> int:
    return len(await engine.list_containers({trial.PROBE: "home"}))


async def test_whatever_is_reached_from_outside_is_a_breach_and_nothing_stays() -> None:
    async with fake.FakeEngine() as engine:
        name = await network(engine, "red-net")
        red, blue = tenancy("red", network=name), tenancy("blue", network=name)
        none, late = tenancy("none", mode=kind.NONE), tenancy("late", network=name, ready=False)
        found = await made(engine).test(red, [red, blue, none, late])
        assert await left(engine) == 0
    assert (found.is_isolated, found.problem) == (False, "")
    pairs = {(one.source, one.target): (one.expected, one.reached) for one in found.attempts}
    assert pairs["red", "red, another container"] == (True, True)
    for other in ("blue", "(of no tenancy)"):
        assert pairs["red", other] == pairs[other, "red"] == (False, True)
    assert pairs["red", "the host, as gateway"] == (False, True)
    assert ("red", "the host, 127.0.0.4") in pairs
    assert ("red", "the host, 192.0.2.99") not in pairs  # went meanwhile
    assert pairs["red", "names (DNS)"] == (True, False)
    assert not {"none", "late"} & {one.target for one in found.attempts}
    assert not found.works


async def test_a_tenancy_without_a_network_is_tried_too() -> None:
    async with fake.FakeEngine() as engine:
        red = tenancy("red", mode=kind.NONE)
        found = await made(engine, default_network=False).test(red, [red])
    assert {one.target for one in found.attempts} == {
        "red, another container",
        "the host, 127.0.0.3",
        "the host, 127.0.0.4",
    }


async def test_what_cannot_be_tried_says_why_and_is_not_called_isolated() -> None:
    async with fake.FakeEngine() as engine:
        one = made(engine)
        with pytest.raises(errors.RequestError, match="needs no image"):
            await one.test(tenancy("red"), [], image="demo")
        unready = await one.test(tenancy("red", ready=False), [])
        assert ("the quota is missing" in unready.problem, unready.is_isolated, unready.attempts) == (True, False, ())

    class Bare(fake.FakeEngine):
        async def create(self, spec: port.ContainerSpec) -> port.ContainerState:
            await super().create(spec)
            raise errors.Unavailable("no room", reason="EngineFull")

    async with Bare() as broken:
        found = await made(broken).test(tenancy("red", mode=kind.NONE), [])
        assert ("no room" in found.problem, found.is_isolated, await left(broken)) == (True, False, 0)


async def test_what_a_killed_service_left_of_a_trial_is_swept() -> None:
    async with fake.FakeEngine() as engine:
        one = made(engine)
        await engine.create(port.ContainerSpec(name="old", image=IMAGE, labels={trial.PROBE: "home"}))
        await engine.create(port.ContainerSpec(name="other", image=IMAGE, labels={trial.PROBE: "another home"}))
        await asyncio.gather(one.sweep(), one.sweep())
        assert [state.name for state in await engine.list_containers({})] == ["other"]
