"""Queries: what a route does not know is refused by name, and a tenancy may be named wherever a namespace may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path", "unknown", "near"),
    [
        ("GET", "/v1/containers?nmespace=x", "nmespace", "namespace"),
        ("GET", "/v1/containers?all=true&tenacy=red", "tenacy", "tenancy"),
        ("GET", "/v1/gpus?node=one", "node", ""),
        ("GET", "/v1/containers/train/logs?folow=true", "folow", "follow"),
        ("GET", "/v1/openapi.json?pretty=1", "pretty", ""),
        ("DELETE", "/v1/containers/train?force=true", "force", ""),
        ("GET", "/v1/containers?%00=1", "\0", ""),
    ],
)
async def test_an_unknown_parameter_is_refused_with_the_nearest(
    lab: Lab, method: str, path: str, unknown: str, near: str
) -> None:
    await lab.run("developer", "train", tenancy="red", args=["sleep", "600"])
    answer = await lab.ask("developer", method, path)
    said = answer.json()
    assert (answer.status_code, said["reason"]) == (400, "ParameterUnknown"), said
    assert f'"{unknown}"' in said["detail"]
    assert (f'did you mean "{near}"?' in said["hint"]) is bool(near), said
    assert (await lab.ask("developer", "GET", "/v1/containers/train")).status_code == 200


async def test_a_tenancy_is_named_where_a_namespace_is(lab: Lab) -> None:
    for who, name, tenancy in (("stranger", "theirs", "blue"), ("developer", "mine", "red")):
        await lab.run(who, name, tenancy=tenancy, args=["sleep", "600"])

    async def names(who: str, query: str) -> Any:
        answer = await lab.ask(who, "GET", f"/v1/containers{query}")
        return [one["name"] for one in answer.json()["items"]] if answer.status_code == 200 else answer.status_code

    assert await names("root", "") == ["theirs", "mine"] or await names("root", "") == ["mine", "theirs"]
    assert await names("root", "?tenancy=red") == ["mine"]
    assert await names("root", "?tenancy=blue") == ["theirs"]
    assert await names("developer", "?tenancy=red") == ["mine"]
    assert await names("developer", "?tenancy=blue") == 404
    assert await names("root", "?tenancy=nosuch") == 404
    both = await lab.ask("root", "GET", f"/v1/containers?tenancy=red&namespace={lab.namespaces['red']}")
    assert (both.status_code, both.json()["reason"]) == (422, "NamespaceAmbiguous")
    shown = await lab.ask("root", "GET", "/v1/containers/mine?tenancy=red")
    assert (shown.status_code, shown.json()["namespace"]) == (200, lab.namespaces["red"])


async def test_an_identity_provider_may_add_what_it_likes(lab: Lab) -> None:
    answer = await lab.ask("developer", "GET", "/v1/oidc/callback?code=x&state=y&session_state=z&authuser=0")
    assert answer.json()["reason"] != "ParameterUnknown"
