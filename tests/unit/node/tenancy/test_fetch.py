"""Images are fetched with the tenancy's own credentials, and one that came with another's is never given away."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.engine.fake.engine import FakeEngine
from fairlead.node.tenancy.fetch import Fetch
from fairlead.node.tenancy.registries import Fetched, Registries
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.oci.registryauth import Login

IMAGE = "registry.example/red/train:1"
LOGIN = Login(username="red", password="rosebud")
RED, BLUE = (Tenancy(metadata=ObjectMeta(name=name, uid=f"{name}-1")) for name in ("red", "blue"))


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = FakeEngine()
        self.engine.reachable[IMAGE] = ("true",)
        self.engine.private[IMAGE] = LOGIN
        self.registries = Registries(folder)
        self.fetch = Fetch(self.engine, self.registries, Fetched(folder))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "registries")


async def test_an_image_comes_with_the_tenancys_own_credentials_and_no_others(place: Place) -> None:
    place.registries.add("red-1", "registry.example/red", LOGIN)

    for other in (BLUE, None):
        with pytest.raises(errors.NotFound, match="unauthorized"):
            await place.fetch.fetch(IMAGE, other)
    await place.fetch.fetch(IMAGE, RED)

    assert await place.engine.exists(IMAGE)
    assert not await place.fetch.must_ask(IMAGE, RED)


async def test_an_image_that_is_here_for_another_is_asked_for_again(place: Place) -> None:
    place.registries.add("red-1", "registry.example/red", LOGIN)
    await place.fetch.fetch(IMAGE, RED)
    identity = await place.engine.identity(IMAGE)
    assert identity

    for other in (BLUE, None):
        for name in (IMAGE, identity):
            assert await place.fetch.must_ask(name, other), name
    place.registries.add("blue-1", "registry.example", LOGIN)
    await place.fetch.fetch(IMAGE, BLUE)

    assert not await place.fetch.must_ask(IMAGE, BLUE)
    assert await place.fetch.must_ask(IMAGE, None)


async def test_a_fetch_that_failed_gives_no_right_to_what_comes_later(place: Place) -> None:
    place.registries.add("blue-1", "registry.example", Login(username="blue", password="guess"))
    with pytest.raises(errors.NotFound):
        await place.fetch.fetch(IMAGE, BLUE)
    place.registries.add("red-1", "registry.example", LOGIN)
    await place.fetch.fetch(IMAGE, RED)
    assert await place.fetch.must_ask(IMAGE, BLUE)


async def test_an_image_of_no_registry_with_a_login_stays_everybodys(place: Place) -> None:
    public = "docker.example/box:1"
    place.engine.reachable[public] = ("true",)
    place.registries.add("red-1", "registry.example", LOGIN)
    await place.fetch.fetch(public, RED)
    assert not await place.fetch.must_ask(public, BLUE)


def test_credentials_are_roots_alone_and_go_with_the_tenancy(place: Place) -> None:
    assert place.registries.add("red-1", "registry.example:5000", LOGIN) == ("registry.example:5000",)
    path = place.registries.authfile("red-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert place.registries.drop("red-1", "registry.example:5000") == ()

    place.registries.forget("red-1")
    place.registries.forget("red-1")

    assert not path.exists()


def test_a_tenancy_without_a_login_has_a_file_without_entries(place: Place) -> None:
    assert place.registries.authfile("blue-1").read_bytes() == b'{"auths":{}}'


def test_notes_that_cannot_be_read_give_nothing_away(place: Place) -> None:
    place.folder.mkdir()
    (place.folder / "fetched.json").write_text("[")
    with pytest.raises(errors.ProtocolError, match="not known"):
        Fetched(place.folder).is_others(IMAGE, "x", "red-1")
