"""The API on TLS, behind keys: bodies, names, queries and headers, as an administrator and as a tenancy's owner."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib import parse

import httpx

from tests.fuzz import hostile
from tests.fuzz.doors import api
from tests.fuzz.harness import Door, Feed
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, in_process

_LONGEST: Final = 1 << 14
_REFUSED: Final = 400
_BUG: Final = 500
_BODIES: Final = tuple(
    row for row in api.BODIES if row[1].startswith(("/v1/users", "/v1/keys", "/v1/session", "/v1/tenancies/held"))
)
_OF_ACCOUNTS: Final = ("/v1/users", "/v1/keys", "/v1/audit", "/v1/self", "/v1/session", "/v1/tenancies/{}/members")
_HEADERS: Final = {
    "authorization": "Bearer KEY",
    "cookie": "__Host-fairlead=x",
    "host": "test",
    "origin": "https://test",
    "x-forwarded-for": "203.0.113.9",
    "x-csrf-token": "x",
    "x-confirm-key": "x",
    "x-request-id": "x",
    "content-type": "application/json",
    "if-match": "x",
    "if-none-match": "x",
    "idempotency-key": "x",
    "accept": "application/json",
}


@contextlib.asynccontextmanager
async def opened_lab(folder: Path) -> AsyncIterator[Lab]:
    world = World(folder)
    async with world.running(), opened(world, folder) as lab:
        yield lab


async def send(lab: Lab, who: str, method: str, target: str, **more: Any) -> httpx.Response:
    """Ask with a key. Raises: Refused; AssertionError: an answer that none should be, or that holds a key's secret."""
    headers = {"authorization": f"Bearer {lab.keys[who]}", **more.pop("headers", {})}
    carrier = in_process(lab.app, raises=False)
    try:
        async with httpx.AsyncClient(transport=carrier, base_url="http://test") as client:
            answer = await client.request(method, target, headers=headers, **more)
    except (httpx.InvalidURL, UnicodeEncodeError, httpx.LocalProtocolError) as error:
        raise api.Refused("no client can send it") from error
    if answer.status_code >= _BUG:
        raise AssertionError(answer.text[:200])
    if any(key.rpartition("_")[2] in answer.text for key in lab.keys.values()):
        raise AssertionError("an answer holds the secret of a key")
    if answer.status_code >= _REFUSED:
        if len(answer.content) > _LONGEST:
            raise AssertionError(f"a refusal of {len(answer.content)} bytes")
        raise api.Refused(answer.text)
    return answer


@contextlib.asynccontextmanager
async def _body(folder: Path, method: str, target: str) -> AsyncIterator[Feed]:
    async with opened_lab(folder) as lab:

        async def feed(data: bytes) -> None:
            own = lab.keys["root"].split("_")[1]
            there = target.replace("keys/held", f"keys/{own}").replace("tenancies/held", "tenancies/red")
            sent = {"content": data, "headers": {"content-type": "application/json"}}
            await send(lab, "root", method, there.replace("{account}", "viewer"), **sent)

        yield feed


@contextlib.asynccontextmanager
async def _words(folder: Path) -> AsyncIterator[Feed]:
    """Ask as an owner of a tenancy, who must get nothing but what is theirs."""
    async with opened_lab(folder) as lab:

        async def feed(data: bytes) -> None:
            method, path, names = _request(data)
            quoted = {key: parse.quote(value, safe="", errors="surrogatepass") for key, value in names.items()}
            target = path.replace("{}", quoted["path"]) if "path" in quoted else f"{path}?{_query(quoted)}"
            answer = await send(lab, "owner", method, target)
            if lab.uids["blue"] in answer.text or "stranger" in answer.text:
                raise AssertionError(f"{method} {target:.100} names another tenancy: {answer.text[:200]}")

        yield feed


def _request(data: bytes) -> tuple[str, str, dict[str, str]]:
    try:
        method, path, names = json.loads(data)
    except ValueError as error:
        raise api.Refused("not a request") from error
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in (method, path, *names.values())):
        raise api.Refused("not a request")
    return method, path, names


def _query(quoted: dict[str, str]) -> str:
    return "&".join(f"{parse.quote(key, errors='surrogatepass')}={value}" for key, value in quoted.items())


@contextlib.asynccontextmanager
async def _headers(folder: Path) -> AsyncIterator[Feed]:
    async with opened_lab(folder) as lab:

        async def feed(data: bytes) -> None:
            _, _, found = _request(json.dumps(["GET", "/", json.loads(data)]).encode())
            given = {key: value.replace("KEY", lab.keys["owner"]) for key, value in found.items()}
            raw = {key.encode("utf-8", "surrogatepass"): _line(value) for key, value in given.items()}
            if not all(key.isascii() for key in raw):
                raise api.Refused("no client can send it")
            async with httpx.AsyncClient(transport=in_process(lab.app), base_url="http://test") as client:
                answer = await client.send(httpx.Request("GET", "http://test/v1/self", headers=raw))
            if answer.status_code >= _BUG:
                raise AssertionError(answer.text[:200])
            if answer.status_code < _REFUSED and answer.json()["account"] != "owner":
                raise AssertionError(f"somebody else: {answer.text[:200]}")
            if answer.status_code >= _REFUSED:
                raise api.Refused(answer.text)

        yield feed


def _line(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _door(method: str, target: str, specimens: tuple[tuple[str, Any], ...]) -> Door:
    return Door(
        name=f"by key, {method} {target}",
        opened=lambda folder: _body(folder, method, target),
        specimens=specimens,
        refusals=(api.Refused,),
        refuses_specimens=True,
        sample=30,
    )


DOORS: Final = (
    *(_door(method, target, specimens) for method, target, specimens in _BODIES),
    Door(
        name="by key, names and queries",
        opened=_words,
        specimens=tuple(row for row in api._requests() if row[1][1].startswith(_OF_ACCOUNTS)),
        values=hostile.TEXTS,
        documents=False,
        refusals=(api.Refused,),
        refuses_specimens=True,
        sample=60,
    ),
    Door(
        name="by key, headers",
        opened=_headers,
        specimens=(("headers", _HEADERS),),
        values=hostile.TEXTS,
        documents=False,
        refusals=(api.Refused,),
        refuses_specimens=True,
        sample=60,
    ),
)
