"""What accounts read of the machine and of each other: one answer to who holds a GPU, and nothing of the host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.serve.api import app
from tests import gpus
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def _held(lab: Lab) -> None:
    """Have both tenancies hold GPUs, and red wait."""
    for who, name, tenancy in (("stranger", "secret", "blue"), ("developer", "mine", "red")):
        await lab.run(who, name, tenancy=tenancy, gpus=1, args=["sleep", "600"])
        await lab.ask(who, "GET", f"/v1/containers/{name}/wait?state=started&timeout=5")
    await lab.run("developer", "waits", tenancy="red", gpus=4)


async def test_lists_of_gpus_and_explanations_agree_and_name_no_other_tenancy(lab: Lab) -> None:
    await _held(lab)
    listed = (await lab.ask("developer", "GET", "/v1/gpus")).text
    explained = await lab.ask("developer", "GET", "/v1/containers/waits/explain")
    shown = (await lab.ask("developer", "GET", "/v1/containers/waits")).text
    for text in (listed, explained.text, shown):
        assert "secret" not in text
        assert lab.namespaces["blue"] not in text
        assert "mine" in text
    assert "1 by another tenancy" in explained.json()["summary"]
    holders = [(one["namespace"], one["name"], one["count"]) for one in explained.json()["waiting"]["holders"]]
    assert holders == [(lab.namespaces["red"], "mine", 1), ("", "", 1)]
    whole = (await lab.ask("root", "GET", "/v1/gpus")).text
    assert "secret" in whole


async def test_serial_numbers_are_the_machines_and_who_has_no_role_sees_models_alone(lab: Lab) -> None:
    lab.world.inventory = type(lab.world.inventory)(
        gpus=(gpus.gpu(0, serial="1320000000001", device_nodes=("/dev/nvidia0",)),), links=(), is_simulated=True
    )
    [whole] = (await lab.ask("root", "GET", "/v1/gpus")).json()["gpus"]
    assert (whole["gpu"]["serial"], bool(whole["gpu"]["pci_bus_id"])) == ("1320000000001", True)
    [member] = (await lab.ask("viewer", "GET", "/v1/gpus")).json()["gpus"]
    assert (member["gpu"]["serial"], bool(member["gpu"]["pci_bus_id"])) == (None, True)
    text = (await lab.ask("nobody", "GET", "/v1/gpus")).text
    for word in (whole["gpu"]["serial"], whole["gpu"]["pci_bus_id"], "/dev/nvidia0"):
        assert word not in text, word
    assert whole["gpu"]["name"] in text


async def test_a_volumes_folder_of_the_host_is_its_administrators(lab: Lab) -> None:
    made = await lab.ask("developer", "POST", "/v1/volumes", json={"name": "data", "namespace": lab.namespaces["red"]})
    assert (made.status_code, made.json()["path"]) == (201, "")
    [listed] = (await lab.ask("developer", "GET", "/v1/volumes")).json()["items"]
    assert listed["path"] == ""
    [whole] = (await lab.ask("root", "GET", "/v1/volumes")).json()["items"]
    assert whole["path"].startswith("/")


async def test_no_browser_guesses_what_an_answer_is(lab: Lab) -> None:
    await lab.run("developer", "train", args=["echo", "<script>"])
    await lab.ask("developer", "GET", "/v1/containers/train/wait?timeout=5")
    for path in ("/v1/containers/train/logs", "/v1/gpus", "/v1/nosuch", "/v1/openapi.json"):
        answer = await lab.ask("developer", "GET", path)
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], path


async def test_the_document_is_made_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await lab.ask("nobody", "GET", "/v1/openapi.json")
    monkeypatch.setattr(app, "describe", None)
    again = await lab.ask("nobody", "GET", "/v1/openapi.json")
    assert (again.status_code, again.content) == (200, first.content)
