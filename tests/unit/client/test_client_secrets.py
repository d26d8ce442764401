"""The Python client keeps secrets, waits for a start, and only tries; in both its forms."""

from __future__ import annotations

import pytest

from fairlead import AsyncClient, Client, errors
from tests.unit.cli.liveservice import Service


def test_a_secret_is_kept_replaced_listed_and_deleted(client: Client) -> None:
    made = client.set_secret("db", "rosebud")
    assert list(made.digests) == ["value"]
    changed = client.set_secret("db", {"password": "sled", "raw": b"\xff"})
    assert list(changed.digests) == ["password", "raw"]
    (listed,) = client.secrets()
    assert (listed.name, "sled" in repr(listed)) == ("db", False)
    box = client.run("demo", ["sleep", "60"], secrets=[{"name": "db", "key": "password", "env": "TOKEN"}])
    assert client.secrets()[0].used_by == (box.name,)
    client.delete_secret("db")
    with pytest.raises(errors.NotFound):
        client.delete_secret("db")
    with pytest.raises(errors.Invalid) as refused:
        client.set_secret("DB", "rosebud")
    assert "rosebud" not in errors.sentence(refused.value)


def test_a_run_can_be_waited_for_and_only_tried(client: Client) -> None:
    would = client.dry_run("demo", gpus=9)
    assert (would.gpus, would.waiting is not None) == (9, True)
    assert list(client.containers(ended=True)) == []
    assert client.run("demo", ["sleep", "60"], wait_s=30).state == "running"


async def test_so_does_the_asynchronous_one(service: Service) -> None:
    async with AsyncClient(service.env["FAIRLEAD_URL"]) as client:
        await client.set_secret("db", b"rosebud")
        assert [one.name for one in await client.secrets()] == ["db"]
        await client.delete_secret("db")
        assert (await client.dry_run("demo")).image == "demo"
        assert (await client.run("demo", ["sleep", "60"], wait_s=30)).state == "running"
