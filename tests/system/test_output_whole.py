"""No byte of a container's output is lost, whatever its length, its log's size or its reader's pace."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator

import pytest

from fairlead import settings
from fairlead.engine import port
from fairlead.engine.podman import engine as podman
from fairlead.model.container.output import ErrorOutput, LogQuery
from tests import podmanhere
from tests.contract.test_engine_contract import needs_podman, podman_image, root_folder  # noqa: F401 fixtures

pytestmark = needs_podman
MEBIBYTE = 1 << 20


@pytest.fixture
async def engine() -> AsyncIterator[podman.PodmanEngine]:
    made = podmanhere.engine(settings.EngineSettings(network="none", log_max_mib=1))
    yield made
    for state in await made.list_containers({"fairlead.test": "whole"}):
        await made.remove(state.name)


async def started(engine: podman.PodmanEngine, image: str, script: str) -> str:
    spec = port.ContainerSpec(
        name=f"ft-whole-{secrets.token_hex(4)}",
        image=image,
        command=("/bin/sh", "-c"),
        args=(script,),
        labels={"fairlead.test": "whole"},
        stdin=True,
    )
    await engine.create(spec)
    await engine.start(spec.name)
    return spec.name


async def go(engine: podman.PodmanEngine, name: str) -> None:
    feed = await engine.open_input(name)
    await feed.write(b"go\n")
    await feed.close()


async def ended(engine: podman.PodmanEngine, name: str) -> int | None:
    """Return the exit code once the container has ended."""
    async with asyncio.timeout(60), contextlib.aclosing(engine.watch_changes()) as changes:
        while True:
            found = {one.name: one for one in await engine.list_containers({"fairlead.test": "whole"})}
            if found[name].phase is port.ContainerPhase.EXITED:
                return found[name].exit_code
            await anext(changes)


@pytest.mark.slow  # 150 logs, 23 MB of output: the next one is its small twin
async def test_a_reader_gets_every_byte_though_the_log_begins_anew(
    engine: podman.PodmanEngine,
    podman_image: str,  # noqa: F811
) -> None:
    """Twenty times the log's size, read slower than it is written at first."""
    name = await started(engine, podman_image, "echo ready; read word; busybox seq 1 3000000")
    pieces = engine.logs(name, LogQuery(follow=True, holds_back=True))
    found, size = hashlib.sha256(), 0
    async with asyncio.timeout(100), contextlib.aclosing(pieces):
        assert await anext(pieces) == b"ready\n"
        await go(engine, name)
        async for piece in pieces:
            found.update(piece)
            size += len(piece)
            if size < 4 * MEBIBYTE:
                await asyncio.sleep(0.02)

    wanted = "".join(f"{number}\n" for number in range(1, 3000001)).encode()
    assert size == len(wanted)
    assert found.digest() == hashlib.sha256(wanted).digest()


async def test_a_reader_that_stands_still_now_and_then_gets_every_byte(
    engine: podman.PodmanEngine,
    podman_image: str,  # noqa: F811
) -> None:
    """Its whole process stops after each piece, as after SIGSTOP: conmon fills its socket meanwhile, and then waits."""
    name = await started(engine, podman_image, "echo ready; read word; busybox seq 1 400000")
    pieces = engine.logs(name, LogQuery(follow=True, holds_back=True))
    found = b""
    async with asyncio.timeout(60), contextlib.aclosing(pieces):
        assert await anext(pieces) == b"ready\n"
        await go(engine, name)
        async for piece in pieces:
            found += piece
            time.sleep(0.01)  # noqa: ASYNC251

    wanted = "".join(f"{number}\n" for number in range(1, 400001)).encode()
    assert (len(found), found[-300:]) == (len(wanted), wanted[-300:])
    assert found == wanted


async def test_a_reader_that_holds_nothing_back_does_not_stop_the_program(
    engine: podman.PodmanEngine,
    podman_image: str,  # noqa: F811
) -> None:
    name = await started(engine, podman_image, "echo ready; read word; busybox seq 1 1000000")
    pieces = engine.logs(name, LogQuery(follow=True))
    async with contextlib.aclosing(pieces):
        assert await anext(pieces) == b"ready\n"
        await go(engine, name)

        assert await ended(engine, name) == 0


async def test_what_was_replaced_before_the_reader_came_is_said(
    engine: podman.PodmanEngine,
    podman_image: str,  # noqa: F811
) -> None:
    name = await started(engine, podman_image, "busybox seq 1 400000")
    assert await ended(engine, name) == 0
    first, *rest = [piece async for piece in engine.logs(name, LogQuery(follow=True, holds_back=True))]

    assert type(first) is ErrorOutput
    assert "was replaced before it was read here" in first.decode()
    assert b"".join(rest).endswith(b"\n400000\n")
