"""The OpenAPI document and what is answered: no 5xx and no answer that it does not name, whoever asks.

schemathesis makes requests of the document, valid ones and broken ones; they are sent by TLS' door as nobody, as a
developer of a tenancy and as an administrator. Streams that follow and waits are asked to end at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core.result import Ok

from fairlead.serve.api import app as base
from fairlead.serve.v1 import app as v1
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, in_process

AWAY = frozenset({503})
"""A dependency of the machine is away: the one status above 499 that is an answer."""
_WITHOUT_PACKETS = frozenset({"POST /v1/tenancies/{name}:test"})


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    world = World(tmp_path)
    async with world.running(), opened(world, tmp_path) as made:
        await made.run("developer", "train", tenancy="red")
        yield made


_MADE: Final = dict[int, list[tuple[Any, Any]]]()


def _cases(lab: Lab, examples: int) -> list[tuple[Any, Any]]:
    """Return (operation, request), the same ones at every run and for each caller: making them is most of the work."""
    if examples not in _MADE:
        document = base.describe(v1.create_app(lab.services))
        found = list(schemathesis.openapi.from_dict(document).get_all_operations())
        assert [one for one in found if not isinstance(one, Ok)] == []
        operations = [one.ok() for one in found if isinstance(one, Ok)]
        _MADE[examples] = [
            (operation, case)
            for operation in operations
            if operation.label not in _WITHOUT_PACKETS
            for case in _made(operation, examples)
        ]
    return _MADE[examples]


def _made(operation: Any, examples: int) -> list[Any]:
    made = list[Any]()

    @seed(1)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy())
    def collect(case: Any) -> None:
        made.append(case)

    collect()
    return made


def _request(case: Any) -> dict[str, Any]:
    """Return what httpx sends for a case."""
    asked = case.as_transport_kwargs(base_url="http://test")
    query = {**(asked.get("params") or {}), "timeout": 0}
    if "wait" in query:
        query["wait"] = 0
    if "follow" in query:
        query["follow"] = "false"
    data = asked.get("data")
    headers = {name: value for name, value in (asked.get("headers") or {}).items() if name.lower() != "authorization"}
    return {
        "method": asked["method"],
        "url": asked["url"].replace(" ", "%20"),
        "params": query,
        "headers": headers,
        **({"json": asked["json"]} if asked.get("json") is not None else {}),
        **({"content": data} if isinstance(data, bytes | str) else {}),
    }


@pytest.mark.parametrize(
    "examples", [pytest.param(1), pytest.param(6, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("who", ["", "developer", "root"])
async def test_no_answer_is_a_bug_or_one_that_the_document_does_not_name(lab: Lab, who: str, examples: int) -> None:
    wrong, count = set[tuple[str, int, str]](), 0
    headers = {"authorization": f"Bearer {lab.keys[who]}"} if who else {}
    async with httpx.AsyncClient(transport=in_process(lab.app), base_url="http://test", headers=headers) as client:
        for operation, case in _cases(lab, examples):
            try:
                request = client.build_request(**_request(case))
            except (httpx.InvalidURL, UnicodeEncodeError):
                continue  # no client sends it
            async with asyncio.timeout(20):
                answer = await client.send(request)
            count += 1
            named = set(operation.definition.raw["responses"])
            is_bug = answer.status_code >= 500 and answer.status_code not in AWAY
            if is_bug or str(answer.status_code) not in named:
                wrong.add((operation.label, answer.status_code, answer.text[:200]))
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == "application/problem+json", operation.label
                assert not who or answer.status_code != 401
    assert wrong == set()
    assert count > 50
