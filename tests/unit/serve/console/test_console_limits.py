"""Quotas and queues in the browser: made, changed and ended by administrators, with what is wrong said at its field."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.serve.console.draw import limits, queueform
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.scheduling.queue import QueueSpec
from tests.unit.serve.console.test_console_accounts import _logged_in as logged_in
from tests.unit.serve.console.test_console_accounts import _post as post
from tests.unit.serve.console.test_console_pages import HOSTILE
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import RESOURCE, World

QUOTAS, QUEUES = "/console/quotas", "/console/queues"


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


def _said(answer: httpx.Response, field: str) -> str:
    """Return what is said at a field; empty: it is not marked as wrong."""
    found = re.search(rf'<p class="help bad" id="h-f-{field}">(.*?)</p>', answer.text)
    is_marked = re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', answer.text) is not None
    assert is_marked == (found is not None), field
    return html.unescape(found[1]) if found else ""


async def test_an_administrator_makes_changes_and_removes_a_quota(lab: Lab) -> None:
    root, space = await logged_in(lab, "root"), lab.namespaces["red"]
    fields = {"where": "red", "gpus": "2", "memory": "64Gi", "more": "requests.nvidia.com/mig-1g.10gb=4"}
    made = await post(root, QUOTAS, QUOTAS, **fields)
    assert made.status_code == 303, made.text
    (kept,) = (await lab.ask("root", "GET", "/v1/quotas")).json()["items"]
    assert (kept["namespace"], kept["name"]) == (space, "limits")
    assert kept["hard"] == {
        f"requests.{RESOURCE}": "2",
        "memory": "64Gi",
        "requests.nvidia.com/mig-1g.10gb": "4",
    }
    assert made.headers["location"].partition("#")[2] in (await root.get(QUOTAS)).text
    page = f"{QUOTAS}/{space}/limits"
    shown = (await root.get(page)).text
    assert 'name="gpus" value="2"' in shown
    assert "requests.nvidia.com/mig-1g.10gb=4</textarea>" in shown
    assert "data-confirm=" in shown
    twice = await post(root, QUOTAS, QUOTAS, **fields)
    assert (twice.status_code, "change it, or choose another name" in _said(twice, "name")) == (422, True)
    changed = await post(root, page, page, gpus="3", memory="")
    assert changed.status_code == 303, changed.text
    (kept,) = (await lab.ask("root", "GET", "/v1/quotas")).json()["items"]
    assert kept["hard"] == {f"requests.{RESOURCE}": "3"}, "what was emptied is gone"
    assert (await post(root, f"{page}/remove", page)).status_code == 303
    assert (await lab.ask("root", "GET", "/v1/quotas")).json()["items"] == []


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"gpus": "many"}, "gpus", '"many" is not a whole number'),
        ({"gpus": "1.5"}, "gpus", "is not a whole number"),
        ({"gpus": "-1"}, "gpus", "is below 0"),
        ({"memory": "64 gigs"}, "memory", "is not an amount, as 8, 500m or 64Gi"),
        ({"more": "cpu"}, "more", "is not of the form RESOURCE=AMOUNT"),
        ({"more": "a=b"}, "more", "is not an amount"),
        ({"cpus": "4", "more": "cpu=8"}, "more", "has a field of its own"),
        ({}, "gpus", "needs one limit at least"),
        ({"gpus": "1", "where": "visoin"}, "where", 'no tenancy or namespace "visoin"'),
        ({"gpus": HOSTILE}, "gpus", "is not a whole number"),
    ],
)
async def test_what_is_wrong_with_a_quota_is_said_at_its_field(
    lab: Lab, fields: dict[str, str], field: str, says: str
) -> None:
    root = await logged_in(lab, "root")
    answer = await post(root, QUOTAS, QUOTAS, **{"where": "red", **fields})
    assert (answer.status_code, 'role="alert"' in answer.text) == (422, True)
    assert says in _said(answer, field)
    assert "<script>alert" not in answer.text
    assert (await lab.ask("root", "GET", "/v1/quotas")).json()["items"] == []


async def test_members_see_their_quota_and_change_nothing(lab: Lab) -> None:
    root, owner, stranger = [await logged_in(lab, name) for name in ("root", "owner", "stranger")]
    await post(root, QUOTAS, QUOTAS, where="red", gpus="2")
    page = f"{QUOTAS}/{lab.namespaces['red']}/limits"
    text = (await owner.get(page)).text
    assert ("0 of 2" in text, "Change it" in text, "Make a quota" in (await owner.get(QUOTAS)).text) == (
        True,
        False,
        False,
    )
    for browser, refused in ((owner, {403}), (stranger, {403, 404})):
        for path in (page, f"{page}/remove"):
            answer = await post(browser, path, QUOTAS, gpus="4")
            assert answer.status_code in refused, path
        assert (await post(browser, QUOTAS, QUOTAS, where="default", gpus="4")).status_code in {403, 422}
    assert (await stranger.get(page)).status_code == 404
    assert "limits" not in (await stranger.get(QUOTAS)).text.split("<main")[1]
    bare = await root.client.post(page, data={"gpus": "4"})
    assert bare.status_code == 403, "a form without the session's token changes nothing"
    (kept,) = (await lab.ask("root", "GET", "/v1/quotas")).json()["items"]
    assert kept["hard"] == {f"requests.{RESOURCE}": "2"}


async def test_a_quota_with_scopes_is_not_changed_here_since_the_form_has_none(lab: Lab) -> None:
    item = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "long", "namespace": "default"},
        "spec": {"hard": {"pods": "3"}, "scopes": ["NotTerminating"]},
    }
    assert (await lab.ask("root", "PUT", "/v1/quotas", json=item)).json()["items"][0]["scopes"] == ["NotTerminating"]
    root = await logged_in(lab, "root")
    text = (await root.get(f"{QUOTAS}/default/long")).text
    assert "NotTerminating" in text
    assert "<form class=" not in text.split("<main")[1]


async def test_an_administrator_makes_changes_and_removes_queues(lab: Lab) -> None:
    root, space = await logged_in(lab, "root"), lab.namespaces["red"]
    fields = {"name": "vision", "deserved-gpus": "2", "limit-gpus": "4", "limit-more": "cpu=64", "weight": "3"}
    more = {"minutes": "1.5", f"in-{space}": "on", "namespaces": "user-1000\nuser-1001", "policy": "packed"}
    made = await post(root, QUEUES, QUEUES, **fields, **more)
    assert (made.status_code, made.headers.get("location")) == (303, f"{QUEUES}/vision"), made.text
    (kept,) = (await lab.ask("root", "GET", "/v1/queues")).json()["items"]
    assert kept["spec"]["limit"] == {RESOURCE: "4", "cpu": "64"}
    assert kept["spec"]["minRuntimeSeconds"] == 90
    assert kept["spec"]["namespaces"] == [space, "user-1000", "user-1001"]
    shown = (await root.get(f"{QUEUES}/vision")).text
    assert 'name="limit-gpus" value="4"' in shown
    assert f'name="in-{space}" checked' in shown
    assert "user-1000\nuser-1001</textarea>" in shown
    below = await post(root, QUEUES, QUEUES, name="students", parent="vision", weight="1")
    assert below.status_code == 303, below.text
    used = await post(root, f"{QUEUES}/vision/remove", QUEUES)
    assert (used.status_code, "has queues below it: students" in used.text) == (409, True)
    here = f"{QUEUES}/vision"
    changed = await post(root, here, here, **{"weight": "1", "limit-gpus": ""})
    assert changed.status_code == 303, changed.text
    spec = (await lab.ask("root", "GET", "/v1/queues/vision")).json()["spec"]
    assert (spec.get("limit", {}), spec.get("namespaces", [])) == ({}, []), "what was emptied is gone"
    circle = await post(root, here, here, weight="1", parent="students")
    assert (circle.status_code, "its own ancestor" in circle.text) == (422, True)
    for name in ("students", "vision"):
        assert (await post(root, f"{QUEUES}/{name}/remove", QUEUES)).status_code == 303
    assert "No queues" in (await root.get(QUEUES)).text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"weight": "x"}, "weight"),
        ({"weight": "70000"}, "weight"),
        ({"weight": "9" * 5000}, "weight"),
        ({"minutes": "1e9"}, "minutes"),
        ({"minutes": "-1"}, "minutes"),
        ({"guarantee-gpus": "0.5"}, "guarantee-gpus"),
        ({"deserved-more": HOSTILE}, "deserved-more"),
        ({"limit-gpus": HOSTILE}, "limit-gpus"),
    ],
    ids=lambda value: next(iter(value)) + str(len(str(value))) if isinstance(value, dict) else value,
)
async def test_what_is_wrong_with_a_queue_is_said_at_its_field(lab: Lab, fields: dict[str, str], field: str) -> None:
    root = await logged_in(lab, "root")
    answer = await post(root, QUEUES, QUEUES, **{"name": "vision", "weight": "1", **fields})
    assert answer.status_code == 422
    assert _said(answer, field)
    assert "<script>alert" not in answer.text
    assert (await lab.ask("root", "GET", "/v1/queues")).json()["items"] == []


async def test_queues_are_the_machines_administrators(lab: Lab) -> None:
    await lab.ask("root", "PUT", "/v1/queues/vision?create=true", json={})
    owner = await logged_in(lab, "owner")
    assert "/console/queues" not in (await owner.get("/console/")).text
    for path in (QUEUES, f"{QUEUES}/vision"):
        assert (await owner.get(path)).status_code == 403
        assert (await post(owner, path, "/console/keys", name="x", weight="1")).status_code == 403
    assert (await post(owner, f"{QUEUES}/vision/remove", "/console/keys")).status_code == 403
    assert len((await lab.ask("root", "GET", "/v1/queues")).json()["items"]) == 1


AMOUNTS = st.integers(0, 10**6).map(str) | st.sampled_from(["500m", "64Gi", "0", "1k"])
HARD = st.dictionaries(
    st.sampled_from(["pods", "cpu", "requests.cpu", "limits.cpu", f"requests.{RESOURCE}", RESOURCE, "memory", "x/y"]),
    AMOUNTS,
    min_size=1,
)


@given(HARD)
def test_a_quota_comes_back_from_its_form_as_it_was(hard: dict[str, str]) -> None:
    asked = limits.read(limits.filled(hard, RESOURCE), RESOURCE, hard)
    fractions = {name for name, text in hard.items() if quantity.parse_quantity(text).denominator != 1}
    if asked.problems:
        assert fractions, "only half a GPU or container is refused"
    else:
        assert asked.hard == hard


@given(
    st.builds(
        QueueSpec,
        guarantee=st.dictionaries(st.sampled_from(["cpu", RESOURCE]), st.integers(0, 99).map(str)),
        limit=st.dictionaries(st.sampled_from(["memory", RESOURCE]), st.integers(0, 99).map(str)),
        weight=st.integers(0, 65535),
        namespaces=st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple),
        min_runtime_seconds=st.integers(0, 86400 * 30),
        policy=st.sampled_from(["", "packed"]),
    )
)
def test_a_queue_comes_back_from_its_form_as_it_was(spec: QueueSpec) -> None:
    asked = queueform.read(queueform.filled(spec, RESOURCE, {"a"}), RESOURCE, {"a"})
    assert asked.problems == {}
    assert sorted(asked.body["namespaces"]) == sorted(spec.namespaces)
    for name in ("guarantee", "deserved", "limit", "weight", "min_runtime_seconds", "policy", "parent"):
        assert asked.body[name] == getattr(spec, name), name


async def test_an_administrator_changes_a_tenancys_limits_and_its_owner_does_not(lab: Lab) -> None:
    root, page = await logged_in(lab, "root"), "/console/tenancies/red"
    wrong = await post(root, f"{page}/limits", page, gpus="two", more="pods=7")
    assert (wrong.status_code, _said(wrong, "gpus")) == (422, '"two" is not a whole number, as 8')
    assert "pods=7</textarea>" in wrong.text, "what was typed stays"
    assert '<details id="limits" open>' in wrong.text
    made = await post(root, f"{page}/limits", page, gpus="2", memory="64Gi", display_name="Red team")
    assert made.status_code == 303, made.text
    kept = (await lab.ask("root", "GET", "/v1/tenancies/red")).json()
    assert kept["quota"] == {f"requests.{RESOURCE}": "2", "memory": "64Gi"}
    assert kept["display_name"] == "Red team"
    assert 'name="memory" value="64Gi"' in (await root.get(page)).text
    assert (await post(root, f"{page}/limits", page, display_name="")).status_code == 303
    assert (await lab.ask("root", "GET", "/v1/tenancies/red")).json()["quota"] == {}, "what was emptied is gone"
    owner = await logged_in(lab, "owner")
    assert "/limits" not in (await owner.get(page)).text
    assert (await post(owner, f"{page}/limits", page, gpus="8")).status_code == 403
    assert (await lab.ask("root", "GET", "/v1/tenancies/red")).json()["quota"] == {}
