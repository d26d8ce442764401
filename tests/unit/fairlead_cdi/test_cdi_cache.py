"""The watching cache: every way in which a spec can appear, change and vanish is noticed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import asyncinotify
import pytest

from fairlead_cdi import cache, directory


def spec(kind: str, *, mark: str = "x") -> str:
    device = {"name": "0", "containerEdits": {"env": [f"MARK={mark}"]}}
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [device]})


async def following(changes: AsyncIterator[directory.Registry], *, names: set[str]) -> directory.Registry:
    """Return the first registry that has exactly these devices; fails by timeout."""
    async with asyncio.timeout(50):
        async for registry in changes:
            if set(registry.devices) == names:
                return registry
    raise AssertionError("the iterator ended")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cdi"
    path.mkdir()
    return path


def write_directly(folder: Path) -> None:
    (folder / "a.json").write_text(spec("vv.com/gpu"))


def rename_inside(folder: Path) -> None:
    (folder / "a.tmp").write_text(spec("vv.com/gpu"))
    (folder / "a.tmp").rename(folder / "a.json")


def move_from_elsewhere(folder: Path) -> None:
    (folder.parent / "a.json").write_text(spec("vv.com/gpu"))
    (folder.parent / "a.json").rename(folder / "a.json")


def link_from_elsewhere(folder: Path) -> None:
    (folder.parent / "real").write_text(spec("vv.com/gpu"))
    (folder / "a.json").symlink_to("../real")


@pytest.mark.parametrize("appear", [write_directly, rename_inside, move_from_elsewhere, link_from_elsewhere])
async def test_a_spec_that_appears_is_noticed(folder: Path, appear: Callable[[Path], None]) -> None:
    async with aclosing(cache.Cache([folder]).watch()) as changes:
        await following(changes, names=set())
        appear(folder)
        await following(changes, names={"vv.com/gpu=0"})


async def test_a_rewritten_link_target_is_noticed(folder: Path) -> None:
    real = folder.parent / "far" / "real"
    real.parent.mkdir()
    real.write_text(spec("vv.com/gpu"))
    (folder / "hop").symlink_to(real)
    (folder / "a.json").symlink_to("hop")
    async with aclosing(cache.Cache([folder]).watch()) as changes:
        await following(changes, names={"vv.com/gpu=0"})
        real.write_text(spec("ww.com/gpu"))
        await following(changes, names={"ww.com/gpu=0"})


async def test_a_spec_that_goes_is_noticed(folder: Path) -> None:
    write_directly(folder)
    async with aclosing(cache.Cache([folder]).watch()) as changes:
        await following(changes, names={"vv.com/gpu=0"})
        (folder / "a.json").unlink()
        await following(changes, names=set())


async def test_a_folder_made_later_removed_and_made_again_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    async with aclosing(cache.Cache([folder]).watch()) as changes:
        await following(changes, names=set())
        for _ in range(2):
            folder.mkdir(parents=True)
            write_directly(folder)
            await following(changes, names={"vv.com/gpu=0"})
            shutil.rmtree(tmp_path / "not")
            await following(changes, names=set())


async def test_a_change_of_content_is_told_and_a_touch_is_not(folder: Path) -> None:
    write_directly(folder)
    async with aclosing(cache.Cache([folder]).watch()) as changes:
        await following(changes, names={"vv.com/gpu=0"})
        (folder / "a.json").touch()
        (folder / "a.json").write_text(spec("vv.com/gpu", mark="y"))
        registry = await following(changes, names={"vv.com/gpu=0"})
        assert registry.devices["vv.com/gpu=0"].device.edits.env == ("MARK=y",)


class RefusingInotify:
    """The kernel out of inotify instances."""

    def __init__(self) -> None:
        raise OSError(24, "too many open files")


class BlindInotify(asyncinotify.Inotify):
    """The kernel out of watches."""

    def add_watch(self, path: object, mask: object) -> asyncinotify.Watch:
        raise OSError(28, "no space left on device")


@pytest.mark.parametrize("broken", [RefusingInotify, BlindInotify])
async def test_where_inotify_fails_folders_are_polled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, broken: type
) -> None:
    monkeypatch.setattr(asyncinotify, "Inotify", broken)
    async with aclosing(cache.Cache([folder], poll_s=0.01).watch()) as changes:
        await following(changes, names=set())
        write_directly(folder)
        await following(changes, names={"vv.com/gpu=0"})


def test_without_watching_the_cache_is_refreshed_by_hand(folder: Path) -> None:
    held = cache.Cache([folder])
    assert held.registry.files == ()
    write_directly(folder)
    assert set(held.refresh().devices) == {"vv.com/gpu=0"}
