"""Pages of every list: each item once and in order, whatever comes and goes between two pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.serve.api.page import Page
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, application, in_process

LISTS = (
    "containers",
    "containers/b/events",
    "events",
    "nodes",
    "images",
    "quotas",
    "volumes",
    "queues",
    "tenancies",
    "tenancies/red/members",
    "users",
    "keys",
    "webhooks",
)


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 5)), unique=True), st.integers(1, 4))
def test_pages_joined_are_the_list_in_order(items: list[tuple[str, int]], limit: int) -> None:
    found, after = list[tuple[str, int]](), ""
    while True:
        part, after = Page(limit=limit, after=after).cut(items, lambda one: one)
        found += part
        assert len(part) <= limit
        if not after:
            break
    assert found == sorted(items)


def test_what_comes_and_goes_between_two_pages_moves_no_other_item() -> None:
    _, after = Page(limit=2).cut("abcd", lambda one: (one,))
    assert Page(limit=2, after=after).cut("aaXcde", lambda one: (one,))[0] == ("c", "d")


@pytest.mark.parametrize("after", ["x", "!!", "W10", "bnVsbA", "WzFd", "W1tdXQ", "A" * 5000, "ü", "WyJcdWQ4MDAiXQ"])
def test_what_is_no_cursor_of_the_list_is_refused_or_before_or_behind_all_of_it(after: str) -> None:
    try:
        found, _ = Page(after=after).cut("ab", lambda one: (one,))
    except errors.RequestError as error:
        assert error.reason == "CursorInvalid"  # noqa: PT017 either is right
    else:
        assert found in ((), ("a", "b"))


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        for name in ("b", "a", "c"):
            await made.run("root", name)
            await made.ask("root", "POST", "/v1/volumes", json={"name": f"v-{name}"})
            await made.ask("root", "PUT", f"/v1/queues/q-{name}?create=true", json={})
            quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "9"}}}
            await made.ask("root", "POST", "/v1/webhooks", json={"url": f"https://hooks.example/{name}"})
            await made.ask("root", "PUT", "/v1/quotas", json={**quota, "metadata": {"name": f"q-{name}"}})
        yield made


def _target(path: str) -> str:
    return f"/v1/{path}"


def _all(path: str) -> dict[str, str]:
    """Return what has a list show all that there is; only that of containers leaves something out."""
    return {"all": "true"} if path == "containers" else {}


async def _read(client: httpx.AsyncClient, path: str, limit: int) -> list[dict[str, Any]]:
    found, after = list[dict[str, Any]](), ""
    while True:
        answer = await client.get(_target(path), params={**_all(path), "limit": limit, "after": after})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= limit
        found += page["items"]
        if not (after := page["next"]):
            return found


@pytest.mark.parametrize("path", LISTS)
async def test_every_list_in_pages_is_the_whole_list(lab: Lab, path: str) -> None:
    async with httpx.AsyncClient(transport=in_process(application(lab.services)), base_url="http://test") as client:
        whole = (await client.get(_target(path), params=_all(path))).json()
        assert (whole["next"], bool(whole["items"])) == ("", True)
        by_two = await _read(client, path, 2)
        assert len(by_two) == len(whole["items"])
        assert sorted(map(str, by_two)) == sorted(map(str, whole["items"]))
        assert (await client.get(_target(path), params={"after": "!"})).json()["reason"] == "CursorInvalid"
        assert (await client.get(_target(path), params={"limit": 0})).status_code == 400
