"""Takes faults for the simulated silicon of an agent, on a unix socket that only its owner may open.

A cluster's agents have no API. This is the one path of it that they answer, `POST /v1/faults`, with the same request,
answer and problems, so that `fairlead simulate` works beside an agent as beside a service. Only an agent on simulated
silicon serves it. Who may run a program in the agent's container (`create` on pods/exec of its namespace) may break
what it simulates, and no other user. The application is bare ASGI, as the monitor's: the framework would double the
agent's memory for one path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.serve.v1.gpus.faultview import FaultDone, FaultRequest
from fairlead.silicon.port import Faults
from fairlead.wire.fairlead import problem

PATH: Final = "/v1/faults"
_MOST: Final = 64 << 10
"""Bytes of a request; a fault has some ten."""

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]


def create_app(faults: Faults, node: str) -> App:
    """Return the application; `node` is the only one whose silicon it breaks."""

    async def app(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            asked = _parse(scope, await _body(receive))
            assert_node(asked.node, node)
            done = await asyncio.to_thread(faults.inject, asked.fault, gpu=asked.gpu, value=asked.value)
            status, kind, body = 200, "application/json", msgspec.json.encode(FaultDone(message=done))
        except errors.FairleadError as error:
            told = problem.problem_of(error)
            status, kind, body = told.status, problem.MEDIA_TYPE, msgspec.json.encode(told)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def assert_node(asked: str | None, node: str) -> None:
    """Refuse a fault for another node's silicon. Raises: NotFound."""
    if asked and asked != node:
        message = f'node "{asked}" is not this one, which is "{node}"'
        hint = "name the cluster to reach its other nodes: `fairlead --kubeconfig FILE simulate fault … --node NODE`"
        raise errors.NotFound(message, reason="NodeUnknown", hint=hint)


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise errors.RequestError("the request was cut short", reason="RequestCutShort")
        body += bytes(message.get("body", b""))
        if len(body) > _MOST:
            raise errors.Invalid(f"a fault has at most {_MOST} bytes", reason="RequestTooLarge")
        if not message.get("more_body"):
            return body


def _parse(scope: Mapping[str, Any], body: bytes) -> FaultRequest:
    if (scope["method"], scope["path"]) != ("POST", PATH):
        message = f"an agent answers POST {PATH} alone, not {scope['method']} {scope['path']}"
        hint = "ask the cluster: `fairlead --kubeconfig FILE …`"
        raise errors.NotFound(message, reason="NoSuchRoute", hint=hint)
    try:
        return msgspec.json.decode(body, type=FaultRequest)
    except msgspec.MsgspecError as error:
        raise errors.Invalid(f"not a fault: {error}", reason="RequestInvalid") from error
