"""Opens a container's port in a browser: `POST /v1/containers/NAME/ports/PORT/door` answers with an address.

The address has a host of its own and is good once, for a minute; what it leads to is in `serve.opened`. The caller is
judged again for each request that a browser sends there, by the same table as `port-forward`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Final

import litestar
from litestar import params

from fairlead import errors
from fairlead.plan.pod import podstate
from fairlead.serve.admission import sessiontemplate
from fairlead.serve.admission.sessiontemplate import Template
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.containers import pods
from fairlead.serve.backend.port import require
from fairlead.serve.opened import grants, heads
from fairlead.serve.v1.containers.access.view import DoorRequest, DoorView
from fairlead.serve.v1.containers.parameters import Name, Namespace
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.store.subresource import Connection
from fairlead.wire.kubernetes import core
from fairlead.wire.text import timestamp

_LARGEST: Final = 65535
_LONGEST_PATH: Final = 2000
_LONGEST_TOKEN: Final = 256
_TOKEN_S: Final = 10.0

Port = Annotated[int, params.PathParameter(ge=1, le=_LARGEST, description="port that a server in it listens on")]


@litestar.post(
    "/v1/containers/{name:str}/ports/{port:int}/door",
    summary="Open a container's port in a browser",
    responses=documented(400, 401, 403, 404, 409, 422, 429, 503),
    tags=["container"],
)
async def open_port(
    request: litestar.Request[Any, Any, Any],
    services: Dependencies,
    name: Name,
    port: Port,
    data: params.JSONBody[DoorRequest],
    namespace: Namespace = "default",
) -> litestar.Response[DoorView]:
    """Return an address with a host of its own, which leads a browser to a port on the container's loopback."""
    kept, again = require(services.grants), services.again
    require(services.backend.streams)
    if again is None:
        message = "nobody is known to open it for"
        raise errors.Unavailable(message, reason="OpenOff", hint="ask the service, not the cluster")
    pod = await pods.find_pod(services.store, name, namespace)
    if podstate.state_of(pod) not in {"running", "crashed"}:
        raise pods.not_running(pod)
    principal = services.principal
    session = principal.session if principal is not None else None
    found = kept.open(
        grants.Wish(
            caller=services.caller,
            holder=session.id if session is not None else principal.key if principal is not None else "",
            network=session.address if session is not None else "",
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            uid=pod.metadata.uid,
            port=port,
            way=_Way(again, pod.metadata.name, pod.metadata.namespace, pod.metadata.uid, port),
            host=_host(request) if principal is not None else "",
            path=_checked(data.path) if data.path else await _page(services, pod, port),
            ends_at=principal.ends_at if principal is not None else None,
        )
    )
    view = DoorView(address=found.address, origin=found.origin, expires_at=timestamp.emit(found.ends_at))
    return litestar.Response(view, headers={"cache-control": "no-store"})


def _host(request: litestar.Request[Any, Any, Any]) -> str:
    """Return the host that the caller came by."""
    return heads.value_of(request.scope["headers"], b"host") or ""


def _checked(path: str) -> str:
    """Return a path of the container's own host. Raises: Invalid (`PathInvalid`)."""
    is_path = path.startswith("/") and not path.startswith(("//", "/\\")) and len(path) <= _LONGEST_PATH
    if not is_path or not all(0x20 < ord(one) < 0x7F for one in path):
        message = f'"{errors.readable(path[:_LONGEST_PATH])}" is not a path of a web page'
        raise errors.Invalid(message, reason="PathInvalid", hint="for example /lab, with other characters as %20")
    return path


async def _page(services: Services, pod: core.Pod, port: int) -> str:
    """Return the first page of a session's template, with its token; / of other containers and ports."""
    wanted = pod.metadata.labels.get(sessiontemplate.LABEL, "")
    template = next((one for one in services.info.templates if one.name == wanted), None)
    if template is None or template.port != port:
        return "/"
    token = await _token(services, pod, template) if template.token else ""
    try:
        return _checked(template.path.replace("{token}", token))
    except errors.Invalid:
        return "/"


async def _token(services: Services, pod: core.Pod, template: Template) -> str:
    """Return the token that a session made at its start; empty: it has not yet, and its page asks for it.

    It is read as `fairlead notebook` reads it, by a program in the container: the caller may enter it.
    """
    argv, text = ("cat", f"{template.home}/.fairlead/token"), b""
    try:
        async with asyncio.timeout(_TOKEN_S):
            streams = require(services.backend.streams)
            session = await streams.exec(pod, pods.container_name(pod, ""), argv, tty=False, stdin=False)
            try:
                while len(text) <= _LONGEST_TOKEN and (data := await session.read()):
                    text += data
            finally:
                await session.close()
    except (errors.FairleadError, TimeoutError):
        return ""
    token = text.decode("ascii", "replace").strip()
    return token if token.isascii() and token.isalnum() and len(token) <= _LONGEST_TOKEN else ""


@dataclass(frozen=True, slots=True)
class _Way:
    """See `grants.Way`: the services are asked for again each time, as the caller may use them then."""

    again: Any
    name: str
    namespace: str
    uid: str
    port: int

    async def check(self) -> None:
        """See `grants.Way.check`."""
        await self._found()

    async def connect(self) -> Connection:
        """See `grants.Way.connect`."""
        services, pod = await self._found()
        return await require(services.backend.streams).port_forward(pod, self.port)

    async def _found(self) -> tuple[Services, core.Pod]:
        services: Services = await self.again()
        pod = await pods.find_pod(services.store, self.name, self.namespace)
        if pod.metadata.uid != self.uid:
            raise pods.not_found(self.name, self.namespace)  # a later one of its name is another
        return services, pod


ROUTES: Final = (open_port,)
