"""The contract of `engine.port.Networks`, held by the fake and by podman alike."""

from __future__ import annotations

import ipaddress
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import pytest

from fairlead import errors, settings
from fairlead.engine import port
from fairlead.engine.fake import engine as fake
from tests import podmanhere
from tests.contract.test_engine_contract import needs_podman, podman_image, root_folder

__all__ = ["podman_image", "root_folder"]
_NO_NETWORK = not any(shutil.which("netavark", path=one) for one in ("/usr/lib/podman", "/usr/libexec/podman"))
_MARKS = [*needs_podman, pytest.mark.skipif(_NO_NETWORK, reason="not installed: netavark")]


class EngineAndNetworks(port.Engine, port.Networks, Protocol):
    """The ports that are under test."""


@dataclass
class World:
    """An engine with an image, and networks that are nobody else's."""

    engine: EngineAndNetworks
    image: str
    tag: str
    block: int

    def name(self, name: str) -> str:
        return f"ft-{self.tag}-{name}"

    def subnets(self, number: int = 0) -> tuple[str, ...]:
        """Return the subnets as a network has them: podman spells them anew."""
        return tuple(str(ipaddress.ip_network(one)) for one in self.asked(number))

    def asked(self, number: int) -> tuple[str, str]:
        return f"10.231.{self.block + number}.0/24", f"fd31:{self.tag[:4]}:{self.tag[4:]}:{number}::/64"

    async def make(self, name: str, number: int = 0) -> port.Network:
        labels = {"fairlead.test": self.tag}
        return await self.engine.create_network(self.name(name), self.asked(number), labels=labels, resolves_names=True)

    async def own(self) -> dict[str, port.Network]:
        listed = await self.engine.list_networks()
        return {one.name: one for one in listed if one.labels.get("fairlead.test") == self.tag}


@pytest.fixture(params=["fake", pytest.param("podman", marks=_MARKS)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    tag, block = secrets.token_hex(4), secrets.randbelow(250)
    if request.param == "fake":
        async with fake.FakeEngine() as pretended:
            pretended.add_image("localhost/bb:1", command=("/bin/sh",))
            yield World(pretended, "localhost/bb:1", tag, block)
        return
    image: str = request.getfixturevalue("podman_image")
    real = podmanhere.engine(settings.EngineSettings())
    made = World(real, image, tag, block)
    yield made
    for state in await real.list_containers({"fairlead.test": tag}):
        await real.remove(state.name)
    for name in await made.own():
        await real.remove_network(name)


async def test_a_network_is_listed_as_it_was_made_with_the_hosts_address_in_each_subnet(world: World) -> None:
    made = await world.make("a")
    assert (await world.own())[made.name] == made
    assert made.subnets == world.subnets()
    assert made.gateways == tuple(str(ipaddress.ip_network(one)[1]) for one in world.subnets())
    assert made.interface


async def test_each_network_has_a_bridge_of_its_own(world: World) -> None:
    bridges = {(await world.make(name, number)).interface for number, name in enumerate("abc")}
    await world.engine.remove_network(world.name("b"))
    bridges |= {(await world.make("d", 3)).interface}
    every = [one.interface for one in (await world.own()).values()]
    assert len(bridges) >= 3
    assert len(set(every)) == len(every) == 3


@pytest.mark.parametrize(("name", "number"), [("a", 1), ("b", 0)], ids=["its name", "its subnet"])
async def test_what_is_taken_is_refused_and_changes_nothing(world: World, name: str, number: int) -> None:
    made = await world.make("a")
    with pytest.raises(errors.Conflict) as caught:
        await world.make(name, number)
    assert caught.value.reason == "NetworkExists"
    assert await world.own() == {made.name: made}


async def test_a_network_is_gone_once_removed_and_its_name_and_subnet_are_free(world: World) -> None:
    await world.make("a")
    await world.engine.remove_network(world.name("a"))
    assert await world.own() == {}
    await world.engine.remove_network(world.name("a"))
    assert (await world.make("a")).subnets == world.subnets()


async def test_a_network_stays_while_a_container_is_in_it(world: World) -> None:
    made = await world.make("a")
    spec = port.ContainerSpec(
        name=world.name("in"),
        image=world.image,
        command=("/bin/sh", "-c"),
        args=("sleep 60",),
        labels={"fairlead.test": world.tag},
        network_name=made.name,
    )
    await world.engine.create(spec)
    with pytest.raises(errors.Conflict) as caught:
        await world.engine.remove_network(made.name)
    assert caught.value.reason == "NetworkInUse"
    await world.engine.remove(spec.name)
    await world.engine.remove_network(made.name)
    assert await world.own() == {}


async def test_no_container_is_made_in_a_network_that_is_not_there(world: World) -> None:
    spec = port.ContainerSpec(
        name=world.name("in"),
        image=world.image,
        command=("/bin/sh", "-c"),
        args=("sleep 60",),
        labels={"fairlead.test": world.tag},
        network_name=world.name("nowhere"),
    )
    with pytest.raises(errors.FairleadError):
        await world.engine.create(spec)
    assert await world.engine.list_containers({"fairlead.test": world.tag}) == ()


@pytest.mark.parametrize("name", ["", "--help", "a b", "a/b"])
async def test_a_name_that_is_no_name_is_refused(world: World, name: str) -> None:
    with pytest.raises(errors.Invalid):
        await world.engine.create_network(name, world.subnets(), labels={}, resolves_names=True)
    with pytest.raises(errors.Invalid):
        await world.engine.remove_network(name)
