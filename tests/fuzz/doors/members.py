"""What a member of a tenancy sends by key: what is made, what would be, and changes of the object that a tag names."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from fairlead.wire.kubernetes import core
from tests.fuzz import hostile
from tests.fuzz.doors import accounts, api
from tests.fuzz.harness import Door, Feed
from tests.unit.serve.v1.accounts.test_api_accounts import Lab

_JSON: Final = {"content-type": "application/json"}
_MADE: Final = (core.Pod, core.PersistentVolumeClaim, core.Secret)
_BODIES: Final = {(method, target): specimens for method, target, specimens in api.BODIES}
_SENT: Final = (
    ("POST", "/v1/containers"),
    ("POST", "/v1/pods"),
    ("POST", "/v1/secrets"),
    ("PUT", "/v1/secrets/held"),
    ("POST", "/v1/volumes"),
    ("POST", "/v1/webhooks"),
)
_TRIED: Final = (("POST", "/v1/containers"), ("POST", "/v1/pods"))


async def _kept(lab: Lab) -> set[tuple[str, str, str]]:
    return {
        (kind.KIND, one.metadata.namespace, one.metadata.name)
        for kind in _MADE
        for one in (await lab.world.store.list(kind)).items
    }


async def _tidy(lab: Lab, before: set[tuple[str, str, str]]) -> None:
    kinds = {kind.KIND: kind for kind in _MADE}
    for kind, namespace, name in await _kept(lab) - before:
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await lab.world.store.delete(kinds[kind], name, namespace, grace_s=0)


@contextlib.asynccontextmanager
async def _body(folder: Path, method: str, target: str, *, dry: bool) -> AsyncIterator[Feed]:
    async with accounts.opened_lab(folder) as lab:
        secret = {"name": "held", "values": {"a": "b"}}
        assert (await lab.ask("developer", "POST", "/v1/secrets", json=secret)).status_code == 201
        before = await _kept(lab)

        async def feed(data: bytes) -> None:
            place = f"{target}?dry_run=true" if dry else target
            try:
                answer = await accounts.send(lab, "developer", method, place, content=data, headers=_JSON)
                if lab.uids["blue"] in answer.text:
                    raise AssertionError(f"it names another tenancy: {answer.text[:200]}")
            finally:
                made = await _kept(lab) - before
                if dry and made:
                    raise AssertionError(f"a dry run made {made}")
                if any(namespace != lab.namespaces["red"] for _, namespace, _ in made):
                    raise AssertionError(f"made outside the tenancy: {made}")
                await _tidy(lab, before)

        yield feed


@contextlib.asynccontextmanager
async def _tags(folder: Path) -> AsyncIterator[Feed]:
    """Change what is there, naming hostile tags of it: only its own, or any, may have an effect."""
    async with accounts.opened_lab(folder) as lab:
        body = {"image": "demo", "name": "held", "command": ["sleep", "1000"]}
        made = await lab.ask("developer", "POST", "/v1/containers?wait=20", json=body)
        assert made.status_code == 201, made.text

        async def feed(data: bytes) -> None:
            try:
                found = json.loads(data)
            except ValueError as error:
                raise api.Refused("not a header") from error
            if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
                raise api.Refused("not a header")
            headers = {key: value.encode("utf-8", "surrogatepass") for key, value in found.items()}
            with contextlib.suppress(UnicodeEncodeError, ValueError):
                await accounts.send(lab, "developer", "DELETE", "/v1/containers/held", headers=headers)
                if found.get("if-match") != "*":
                    raise AssertionError("a change was made of another object than its tag names")

        yield feed


def _door(method: str, target: str, *, dry: bool = False) -> Door:
    return Door(
        name=f"by a member, {method} {target}{', tried' if dry else ''}",
        opened=functools.partial(_body, method=method, target=target, dry=dry),
        specimens=_BODIES[method, target],
        refusals=(api.Refused,),
        refuses_specimens=True,
        every=3 if target == "/v1/pods" else 1,
        sample=30,
    )


_TAG: Final[Any] = {"if-match": '"x"', "idempotency-key": "x", "prefer": "wait=1"}
DOORS: Final = (
    *(_door(method, target) for method, target in _SENT),
    *(_door(method, target, dry=True) for method, target in _TRIED),
    Door(
        name="by a member, tags of a change",
        opened=_tags,
        specimens=(("headers", _TAG),),
        values=tuple(one for one in hostile.TEXTS if one.value != "*"),
        documents=False,
        refusals=(api.Refused,),
        refuses_specimens=True,
        sample=60,
    ),
)
