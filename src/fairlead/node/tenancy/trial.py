"""Tries a tenancy's network with real packets: from inside containers, in both directions and both families.

Containers of a program that only sleeps are put into the tenancy's network, into those of other tenancies and into the
engine's own; packets are sent from and to their network namespaces (`kernel.network.probe`), so that nothing is needed
of any image. What answers is a listener of ours with a secret word. The containers are removed with the trial; what a
killed service leaves of them is removed when the next one starts, since a network is not removed with one in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors, telemetry
from fairlead.engine.port import ContainerSpec, Engine, NetworkMode
from fairlead.kernel.network import address, probe
from fairlead.plan.sandbox import choice
from fairlead.plan.tenancy import baseline, matrix
from fairlead.plan.tenancy.matrix import Attempt, Matrix
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy

PROBE: Final = "fairlead.dev/probe"
"""Label of the containers of trials: the home id of the service that made them."""
_OTHERS: Final = 8
"""Other tenancies that are tried; more would take long and tell the same rules."""
_TIMEOUT_S: Final = 1.0
_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0)
"""After which what is allowed is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One container of the trial."""

    title: str
    name: str
    """The container's, which the name server of its network knows."""
    pid: int
    addresses: tuple[tuple[int, str], ...]
    """(family, address)."""


@dataclass(frozen=True, slots=True)
class _Try:
    """One connection that is to be tried."""

    source: _Place
    target: str
    family: int
    expected: bool
    attempt: Callable[[], Awaitable[bool]]


async def _attempted(one: _Try) -> bool:
    """Return whether a connection is made. One that is allowed is tried again: its server may just be reloading.

    Podman's name server is started, or told, anew with each container of a network.
    """
    for pause_s in _PAUSES_S if one.expected else ():
        if await one.attempt():
            return True
        await asyncio.sleep(pause_s)
    return await one.attempt()


class Trial:
    """`serve.backend.port.TenancyTrial` on one machine."""

    def __init__(
        self, engine: Engine, *, home: str, image: Callable[[], Awaitable[str]], default_network: bool = True
    ) -> None:
        """Take the engine, the service's home id, and what makes the image of the sleeping program.

        Args: default_network: containers outside of tenancies are in a network of the engine's.
        """
        self._engine, self._home, self._image = engine, home, image
        self._default_network = default_network
        self._lock = asyncio.Lock()

    def judge(self, item: Tenancy) -> None:
        """See `serve.backend.port.TenancyTrial.judge`."""
        choice.refuse_machines(item.spec.isolation)

    async def test(self, item: Tenancy, every: Sequence[Tenancy], *, image: str = "") -> Matrix:
        """See `serve.backend.port.TenancyTrial.test`."""
        if image:
            message = "on one machine a trial needs no image: packets are sent from network namespaces"
            raise errors.RequestError(message, reason="NotOnMachine", hint="leave --image out")
        name = item.metadata.name
        if problem := baseline.not_ready(item):
            return matrix.judge(name, (), errors.sentence(problem))
        async with self._lock:
            await self._remove_all()
            try:
                return await self._tried(item, [one for one in every if _is_tried(one, item)][:_OTHERS])
            except errors.Unavailable as error:
                return matrix.judge(name, (), errors.sentence(error))
            finally:
                await self._remove_all()

    async def sweep(self) -> None:
        """Remove the containers of a trial that a service before this one did not end."""
        async with self._lock:
            await self._remove_all()

    async def _tried(self, item: Tenancy, others: Sequence[Tenancy]) -> Matrix:
        name = item.metadata.name
        first = await self._container(name, item)
        telemetry.crash_point("tenancy.trial-begun")
        near = await self._container(f"{name}, another container", item)
        far = [await self._container(one.metadata.name, one) for one in others]
        if self._default_network:
            far.append(await self._container("(of no tenancy)", None))
        async with contextlib.AsyncExitStack() as stack:
            tries = [one async for one in _reach(stack, first, near, expected=True)]
            for place in far:
                tries += [one async for one in _reach(stack, first, place, expected=False)]
                tries += [one async for one in _reach(stack, place, first, expected=False)]
            tries += [one async for one in _host(stack, first, item)]
            tries += list(_names(first, near, item))
            reached = await asyncio.gather(*map(_attempted, tries))
        found = tuple(
            Attempt(
                source=one.source.title,
                target=one.target,
                family=f"IPv{one.family}",
                expected=one.expected,
                reached=was,
            )
            for one, was in zip(tries, reached, strict=True)
        )
        return matrix.judge(name, found)

    async def _container(self, title: str, item: Tenancy | None) -> _Place:
        wanted = f"fl-probe-{secrets.token_hex(6)}"
        is_bare = item is not None and item.spec.network.mode == kind.NONE
        state = await self._engine.create(
            ContainerSpec(
                name=wanted,
                image=await self._image(),
                labels={PROBE: self._home},
                network=NetworkMode.NONE if is_bare else None,
                network_name=None if item is None or is_bare else item.status.network.name,
            )
        )
        if state.pid is None:
            message = f"the container for the trial of {title} has no process"
            raise errors.Unavailable(message, reason="ProbeFailed", hint="`fairlead doctor` checks the engine")
        found = await asyncio.to_thread(address.of_process, state.pid)
        pairs = tuple((_family(one), one) for one in found)
        return _Place(title=title, name=wanted, pid=state.pid, addresses=pairs)

    async def _remove_all(self) -> None:
        for state in await self._engine.list_containers({PROBE: self._home}):
            await self._engine.remove(state.name)


def _family(where: str) -> int:
    """Return the family of an address, 4 or 6."""
    return 6 if ":" in where else 4


def _is_tried(one: Tenancy, item: Tenancy) -> bool:
    has_network = bool(one.status.network.name) and one.spec.network.mode != kind.NONE
    return one.metadata.uid != item.metadata.uid and has_network and baseline.is_ready(one)


async def _reach(
    stack: contextlib.AsyncExitStack, source: _Place, target: _Place, *, expected: bool
) -> AsyncIterator[_Try]:
    for family, where in target.addresses:
        listener = await stack.enter_async_context(probe.listening(target.pid, family, where))
        yield _Try(source, target.title, family, expected, _connecting(source, family, where, listener))


async def _host(stack: contextlib.AsyncExitStack, source: _Place, item: Tenancy) -> AsyncIterator[_Try]:
    """Yield what is tried towards the host: its address in the tenancy's own network, and its others."""
    gateways = item.status.network.gateways
    rest = [one for one in await asyncio.to_thread(address.of_process, "self") if one not in gateways]
    titled = [(one, "the host, as gateway") for one in gateways]
    for family in (4, 6):
        titled += [(one, f"the host, {one}") for one in rest if _family(one) == family][:2]
    for where, title in titled:
        family = _family(where)
        try:
            listener = await stack.enter_async_context(probe.listening(None, family, where))
        except errors.Unavailable:
            continue  # an address that went meanwhile
        yield _Try(source, title, family, False, _connecting(source, family, where, listener))


def _names(source: _Place, near: _Place, item: Tenancy) -> list[_Try]:
    """Return what is tried of names: the other container's is answered where names are allowed.

    It is known in the network itself, so that a machine without name servers of its own is judged by its rules alone.
    """
    found = []
    for gateway in item.status.network.gateways:
        family = _family(gateway)
        asks = _asking(source, family, gateway, near.name)
        found.append(_Try(source, "names (DNS)", family, item.spec.network.dns, asks))
    return found


def _connecting(source: _Place, family: int, where: str, listener: probe.Listener) -> Callable[[], Awaitable[bool]]:
    return lambda: probe.reaches(source.pid, family, where, listener, timeout_s=_TIMEOUT_S)


def _asking(source: _Place, family: int, server: str, name: str) -> Callable[[], Awaitable[bool]]:
    return lambda: probe.resolves(source.pid, family, server, name, timeout_s=_TIMEOUT_S)
