"""The kubelet's gRPC servers end where their socket cannot be made ready: one that is left keeps taking calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from fairlead.node.kubelet.devices import podresources, registration
from fairlead.node.kubelet.devices.checkpoint import Checkpoint
from fairlead.node.kubelet.devices.devicemanager import DeviceManager

Serving = Callable[[DeviceManager, Path], AbstractAsyncContextManager[None]]

SERVERS: dict[str, Serving] = {
    "registration": registration.serve_registration,
    "pod resources": lambda devices, folder: podresources.serve_pod_resources(
        devices, lambda: (), folder / "pods.sock"
    ),
}


@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_whose_socket_is_swept_at_once_is_stopped(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(path: Path, _mode: int) -> None:
        raise FileNotFoundError(path)

    devices = DeviceManager(Checkpoint(tmp_path), grace_s=1, changed=lambda: None)
    monkeypatch.setattr(Path, "chmod", sweep)
    with pytest.raises(FileNotFoundError):
        async with SERVERS[name](devices, tmp_path / "sockets"):
            pytest.fail("it serves")
    assert [task for task in asyncio.all_tasks() if "_server_main_loop" in repr(task)] == []
