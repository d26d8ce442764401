"""Our CDI specs stay as they were written, and files that define our devices too are found."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from fairlead import settings
from fairlead.node.cdi import specfile, specfiles, specguard
from fairlead.plan.cdi import conflict
from tests import gpus

PATIENCE_S = 50.0
KIND = "fairlead.dev/gpu"
AGAIN = "cdi spec was removed or changed by another process, written again"


class World:
    """One folder with our specs in it, and a guard."""

    def __init__(self, folder: Path) -> None:
        recipe = specfile.allocation_recipe_of(settings.NodeSettings())
        self.specs = specfiles.SpecFiles(folder, recipe=recipe)
        self.path = self.specs.path(KIND)
        self.is_serving = True
        self.guard = specguard.SpecGuard(self.specs, is_serving=lambda: self.is_serving)

    @contextlib.asynccontextmanager
    async def guarded(self) -> AsyncIterator[bytes]:
        await self.specs.ensure(*gpus.driven(2))
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.guard.run())
            yield self.path.read_bytes()
            task.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 (files tell nobody but the guard)
                await asyncio.sleep(0.01)

    async def until_conflicts(self, count: int) -> tuple[conflict.Conflict, ...]:
        async with asyncio.timeout(PATIENCE_S):
            async for found in self.guard.conflicts.changes():
                if len(found) == count:
                    return found
        raise AssertionError("unreachable")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cdi")


def _remove(path: Path) -> None:
    path.unlink()


def _edit(path: Path) -> None:
    document: dict[str, Any] = json.loads(path.read_bytes())
    document["devices"] = document["devices"][:1]
    path.write_text(json.dumps(document))


def _move(path: Path) -> None:
    path.rename(path.with_suffix(".before"))


def _link(path: Path) -> None:
    twin = path.with_name("twin")
    twin.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(twin)


def _open_up(path: Path) -> None:
    path.chmod(0o666)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


def _sweep(path: Path) -> None:
    for entry in path.parent.iterdir():
        entry.unlink()
    path.parent.rmdir()


@pytest.mark.parametrize("harm", [_remove, _edit, _move, _link, _open_up, _pipe, _sweep])
async def test_a_spec_that_somebody_harms_is_written_again_and_said(world: World, harm: Callable[[Path], None]) -> None:
    with structlog.testing.capture_logs() as logs:
        async with world.guarded() as before:
            await world.until(lambda: world.guard.conflicts.version >= 0 and world.path.exists())
            harm(world.path)

            def is_mended() -> bool:
                if not world.path.is_file() or world.path.is_symlink():
                    return False
                return (world.path.read_bytes(), world.path.stat().st_mode & 0o777) == (before, 0o644)

            await world.until(is_mended)
            await world.until(lambda: any(entry["event"] == AGAIN for entry in logs))
    assert {entry["path"] for entry in logs if entry["event"] == AGAIN} == {str(world.path)}


async def test_while_another_agent_serves_by_the_files_they_are_left_to_it(world: World) -> None:
    world.is_serving = False
    async with world.guarded():
        world.path.write_text("{}")
        other = world.path.with_name("other.json")
        other.write_text(json.dumps(_document("GPU-0")))
        await world.until_conflicts(1)  # it has looked since
        assert world.path.read_text() == "{}"


async def test_specs_that_were_removed_at_the_end_stay_away(world: World) -> None:
    async with world.guarded():
        await world.specs.remove()
        world.path.with_name("tick.json").write_text(json.dumps(_document("GPU-9")))
        assert await world.specs.restore() == ()
    assert not world.path.exists()


def _document(*devices: str, kind: str = KIND) -> dict[str, Any]:
    edits = {"env": ["X=1"]}
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": one, "containerEdits": edits} for one in devices]}


async def test_a_file_that_defines_our_devices_is_found_and_its_end_too(world: World) -> None:
    other = world.path.with_name("nvidia.json")
    async with world.guarded():
        other.write_text(json.dumps(_document("GPU-1", "GPU-7")))
        (found,) = await world.until_conflicts(1)
        assert (found.path, found.other, found.devices) == (str(world.path), str(other), ("fairlead.dev/gpu=GPU-1",))
        assert f"`mv {other} {other}.before`" in found.remedy
        other.rename(other.with_suffix(".before"))
        assert await world.until_conflicts(0) == ()


async def test_the_vendors_own_kind_beside_ours_is_no_conflict(world: World) -> None:
    async with world.guarded():
        beside = world.path.with_name("nvidia.yaml")
        beside.write_text(json.dumps(_document("GPU-0", "GPU-1", "0", kind="nvidia.com/gpu")))
        world.path.with_name("z.json").write_text(json.dumps(_document("GPU-1")))
        (found,) = await world.until_conflicts(1)
        assert found.other.endswith("z.json")
