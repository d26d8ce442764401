"""The links of /dev/char below a fake root, with device nodes of NVIDIA's numbers."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import aclosing
from pathlib import Path

import asyncinotify
import pytest

from fairlead import errors
from fairlead.node.engines import charlinks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


def make_node(root: Path, name: str, major: int, minor: int) -> None:
    path = root / "dev" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_node(tmp_path, "nvidia0", 195, 0)
    make_node(tmp_path, "nvidiactl", 195, 255)
    make_node(tmp_path, "nvidia-caps/nvidia-cap2", 236, 2)
    make_node(tmp_path, "null", 1, 3)
    (tmp_path / "dev" / "nvidia-notes").write_text("no device")
    (tmp_path / "dev" / "nvidia-alias").symlink_to("nvidia0")
    return tmp_path


def links(root: Path) -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in (root / "dev" / "char").iterdir()}


def mend(root: Path, *, ahead: bool = False) -> None:
    charlinks.apply(root, charlinks.inspect(root, ahead=ahead))


EXPECTED = {"195:0": "../nvidia0", "195:255": "../nvidiactl", "236:2": "../nvidia-caps/nvidia-cap2"}


def test_each_node_has_its_link_and_the_link_leads_to_it(root: Path) -> None:
    mend(root)
    assert links(root) == EXPECTED
    for name in EXPECTED:
        status = (root / "dev" / "char" / name).stat()
        assert f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" == name
    assert charlinks.inspect(root) == charlinks.inspect(root).__class__()


def test_a_driver_that_came_back_under_other_numbers_is_followed(root: Path) -> None:
    mend(root)
    (root / "dev" / "nvidia-caps" / "nvidia-cap2").unlink()
    make_node(root, "nvidia-caps/nvidia-cap1", 237, 1)
    mend(root)
    assert links(root) == {
        "195:0": "../nvidia0",
        "195:255": "../nvidiactl",
        "237:1": "../nvidia-caps/nvidia-cap1",
    }


def test_links_of_others_stay(root: Path) -> None:
    folder = root / "dev" / "char"
    folder.mkdir()
    (folder / "1:3").symlink_to("../null")
    (folder / "195:0").symlink_to("/dev/nvidia0")  # absolute, as the old toolkit writes it: leads out of this root
    (folder / "195:255").write_text("no link")
    decision = charlinks.inspect(root)
    assert decision.blocked == ("195:255",)
    charlinks.apply(root, decision)
    assert (folder / "1:3").readlink() == Path("../null")
    assert (folder / "195:255").read_text() == "no link"


def test_links_ahead_of_the_nodes_need_only_the_bus(tmp_path: Path) -> None:
    for index, kind in enumerate(("0x030200", "0x030200", "0x020000")):
        device = tmp_path / "sys/bus/pci/devices" / f"0000:0{index}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text(kind)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "devices").write_text("Character devices:\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n")
    (tmp_path / "dev").mkdir()
    mend(tmp_path, ahead=True)
    assert sorted(links(tmp_path)) == ["195:0", "195:1", "195:254", "195:255", "508:0", "508:1"]


def test_a_folder_that_cannot_be_is_told(root: Path) -> None:
    (root / "dev" / "char").write_text("a file")
    with pytest.raises(errors.Unavailable, match="cannot write links"):
        charlinks.apply(root, charlinks.inspect(root))


async def test_watching_follows_nodes_as_they_come_and_go(root: Path) -> None:
    async with asyncio.timeout(60), aclosing(charlinks.keep(root)) as decisions:
        assert dict((await anext(decisions)).make) == EXPECTED
        make_node(root, "nvidia1", 195, 1)
        assert dict((await anext(decisions)).make) == {"195:1": "../nvidia1"}
        (root / "dev" / "nvidia-caps" / "nvidia-cap2").unlink()
        assert (await anext(decisions)).remove == ("236:2",)
        make_node(root, "nvidia-caps-imex-channels/channel0", 240, 0)
        assert dict((await anext(decisions)).make) == {"240:0": "../nvidia-caps-imex-channels/channel0"}
        make_node(root, "nvidia-caps-imex-channels/channel1", 240, 1)
        assert dict((await anext(decisions)).make) == {"240:1": "../nvidia-caps-imex-channels/channel1"}
    assert set(links(root)) == {"195:0", "195:1", "195:255", "240:0", "240:1"}


# the agent's part


@pytest.fixture
def systemd(root: Path) -> Path:
    """Make the root one of a host that runs systemd."""
    (root / "run/systemd/system").mkdir(parents=True)
    return root


async def test_the_agent_keeps_the_links_of_a_host_that_runs_systemd(
    systemd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charlinks, "find_place", lambda root: root)
    (systemd / "dev" / "char").mkdir()
    with asyncinotify.Inotify() as inotify:
        inotify.add_watch(systemd / "dev" / "char", asyncinotify.Mask.MOVED_TO)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(charlinks.serve(systemd))
            while {path.name for path in (systemd / "dev" / "char").iterdir()} != set(EXPECTED):
                await inotify.get()
            serving.cancel()
    assert links(systemd) == EXPECTED


def test_a_host_without_systemd_is_left_alone(root: Path) -> None:
    assert charlinks.find_place(root, here=root) is None


def test_only_the_hosts_own_dev_is_written(systemd: Path, tmp_path: Path) -> None:
    assert charlinks.find_place(systemd, here=systemd) == systemd
    container = tmp_path / "container"
    (container / "dev").mkdir(parents=True)
    assert charlinks.find_place(systemd, here=container) is None
    (container / "dev").rmdir()
    assert charlinks.find_place(systemd, here=container) is None
    (container / "dev").symlink_to(systemd / "dev")
    assert charlinks.find_place(systemd, here=container) == container


async def test_a_folder_that_refuses_ends_the_keeping_and_not_the_agent(
    systemd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(charlinks, "find_place", lambda root: root)
    (systemd / "dev" / "char").write_text("a file")
    async with asyncio.timeout(60):
        await charlinks.serve(systemd)
    assert "CharLinkRefused" in capsys.readouterr().err
