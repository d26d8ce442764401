"""The console's search: it leads to any object that its caller may see, names no other, and is bounded."""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.serve.accounts.roles import Role
from fairlead.serve.console.draw import find
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.scheduling.queue import Queue
from fairlead.wire.kubernetes.workloads.apps import Deployment
from tests.unit.serve.console.test_console_accounts import _logged_in as logged_in
from tests.unit.serve.console.test_console_pages import HOSTILE, Browser
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World

CLAIM = {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def _search(browser: Browser, query: str) -> httpx.Response:
    return await browser.get(f"/console/search?{urllib.parse.urlencode({'q': query})}")


def claim(name: str, namespace: str) -> ResourceClaim:
    item = {"apiVersion": dialect.V1, "kind": "ResourceClaim", "metadata": {"name": name, "namespace": namespace}}
    found = dialect.read({**item, "spec": CLAIM}).item
    assert isinstance(found, ResourceClaim)
    return found


async def _filled(lab: Lab) -> None:
    """Make one object of each kind that a tenancy has, all with `rubin` in their names."""
    space = lab.namespaces["red"]
    assert (await lab.run("developer", "rubin-train", tenancy="red")).status_code == 201
    await lab.world.store.create(Deployment(metadata=meta.ObjectMeta(name="rubin-web", namespace=space)))
    await lab.world.store.create(claim("rubin-claim", space))
    for path, body in (
        ("/v1/volumes", {"name": "rubin-data", "namespace": space}),
        ("/v1/secrets", {"name": "rubin-token", "namespace": space, "values": {"a": "b"}}),
        (
            "/v1/reservations",
            {"name": "rubin-night", "namespace": space, "gpus": 1, "from": "tomorrow 9:00", "duration_seconds": 3600},
        ),
    ):
        answer = await lab.ask("developer", "POST", path, json=body)
        assert answer.status_code in {200, 201}, answer.text
    await lab.world.store.create(Queue(metadata=meta.ObjectMeta(name="rubin-queue")))
    await lab.tenancy("rubin-team")
    await lab.account("rubin-person", role=Role.VIEWER, tenancy="rubin-team")


async def test_every_kind_is_found_by_whom_may_see_it_and_by_no_other(lab: Lab) -> None:
    await _filled(lab)
    own = {"train", "web", "claim", "data", "token", "night"}
    machine = {"queue", "team", "person"}
    for account, expected in (("root", own | machine), ("viewer", own), ("stranger", set()), ("nobody", set())):
        answer = await _search(await logged_in(lab, account), "RUBIN")
        assert answer.status_code == 200, (account, answer.text)
        found = {word for word in own | machine if f"rubin-{word}</a>" in answer.text}
        assert found == expected, account


@pytest.mark.parametrize("name", ["rubin-train", "rubin-claim", "rubin-night", "rubin-queue", "rubin-team"])
async def test_another_tenancys_name_is_answered_as_one_that_is_not_there(lab: Lab, name: str) -> None:
    await _filled(lab)
    stranger = await logged_in(lab, "stranger")
    there, absent = await _search(stranger, name), await _search(stranger, "x" * len(name))
    assert (there.status_code, absent.status_code) == (200, 200)
    assert there.text.replace(name, "") == absent.text.replace("x" * len(name), "")
    refusals = [row for row in (await lab.ask("root", "GET", "/v1/audit")).json()["items"] if row["status"] >= 400]
    assert refusals == [], "nothing was asked for that the caller has no right to"


async def test_a_whole_name_leads_to_its_page(lab: Lab) -> None:
    await _filled(lab)
    browser, space = await logged_in(lab, "root"), lab.namespaces["red"]
    uuid = lab.world.inventory.gpus[1].uuid
    for query, place in (
        ("rubin-train", f"/console/containers/{space}/rubin-train"),
        ("rubin-web", f"/console/containers?q=rubin-web&namespace={space}"),
        ("rubin-team", "/console/tenancies/rubin-team"),
        ("rubin-night", f"/console/reservations#reservations-{space}-rubin-night"),
        ("rubin-data", f"/console/volumes#volumes-{space}-rubin-data"),
        ("rubin-token", f"/console/secrets#secrets-{space}-rubin-token"),
        ("rubin-person", "/console/accounts#accounts-rubin-person"),
        ("gpu 1", f"/console/gpus/{uuid}"),
        (uuid.lower(), f"/console/gpus/{uuid}"),
    ):
        answer = await _search(browser, query)
        assert (answer.status_code, answer.headers.get("location")) == (303, place), query
        address, _, row = place.partition("#")
        page = await browser.get(address)
        assert page.status_code == 200, place
        assert not row or f'id="{row}"' in page.text, place


async def test_what_is_typed_and_found_is_text(world: World, lab: Lab) -> None:
    pod = core.Pod(
        metadata=meta.ObjectMeta(name="odd", namespace="default"),
        spec=core.PodSpec(containers=(core.Container(name="c", image=HOSTILE),), scheduler_name="nobody"),
    )
    await world.store.create(pod)
    browser = await logged_in(lab, "root")
    for query in (HOSTILE, "script", "\x00", "%00", "../..", "'", '" onfocus="x'):
        answer = await _search(browser, query)
        assert answer.status_code == 200, query
        assert "<script>alert" not in answer.text
        assert ' onfocus="x"' not in answer.text
    assert "&lt;script&gt;alert" in (await _search(browser, "od")).text


async def test_a_search_is_bounded(lab: Lab) -> None:
    spec = core.PodSpec(containers=(core.Container(name="c", image="demo"),), scheduler_name="nobody")
    for number in range(find.MOST + 5):
        about = meta.ObjectMeta(name=f"many-{number:02}", namespace="default")
        await lab.world.store.create(core.Pod(metadata=about, spec=spec))
    browser = await logged_in(lab, "root")
    text = (await _search(browser, "many")).text
    assert text.count("/console/containers/default/many-") == find.MOST
    assert "and 5 more" in text
    long = await _search(browser, "y" * 50_000)
    assert "Only the first characters count" in long.text
    assert len(long.text) < 20_000
    assert "Type a name above" in (await _search(browser, "   ")).text


async def test_the_api_lists_containers_that_match_all_words(lab: Lab) -> None:
    for name in ("train-a", "train-b", "eval"):
        assert (await lab.run("developer", name, tenancy="red", labels={"team": name[-1]})).status_code == 201
    for match, expected in (
        ("", {"train-a", "train-b", "eval"}),
        ("TRAIN", {"train-a", "train-b"}),
        ("train team=b", {"train-b"}),
        ("red demo eval", {"eval"}),
        ("nix", set()),
    ):
        found = await lab.ask("developer", "GET", "/v1/containers", params={"all": True, "match": match})
        assert {one["name"] for one in found.json()["items"]} == expected, match
        other = await lab.ask("stranger", "GET", "/v1/containers", params={"all": True, "match": match})
        assert other.json()["items"] == []
    long = await lab.ask("developer", "GET", "/v1/containers", params={"match": "x" * 201})
    assert long.status_code in {400, 422}


NAMES = st.lists(st.text("abc-", min_size=1, max_size=6), max_size=40, unique=True)


@given(NAMES, st.text("abc- ", max_size=12))
def test_equal_names_come_first_and_nothing_is_lost(names: list[str], query: str) -> None:
    hits = [find.Hit(name=name, address=f"/{name}") for name in names]
    group = find.group("x", hits, query)
    words = query.split()
    expected = [name for name in names if words and all(word in name for word in words)]
    assert len(group.hits) + group.left_out == len(expected)
    assert {one.name for one in group.hits} <= set(expected)
    if query.strip() in expected and len(words) == 1:
        assert group.hits[0].name == query.strip()
        assert find.only((group,), query) == group.hits[0]
