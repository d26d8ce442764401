"""What a cgroup's path says of a process: its container by either cgroup driver, or its unit."""

from __future__ import annotations

import pytest

from fairlead.wire.text.cgroupplace import Place, parse_place

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("paths", "place"),
    [
        ((f"/system.slice/docker-{ID}.scope",), Place(engine="docker", container=ID)),
        ((f"/docker/{ID}",), Place(engine="docker", container=ID)),
        ((f"/machine.slice/libpod-{ID}.scope/container",), Place(engine="podman", container=ID)),
        ((f"/libpod_parent/libpod-{ID}",), Place(engine="podman", container=ID)),
        (("/", f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
         Place(engine="podman", container=ID)),
        ((f"/system.slice/cri-containerd-{ID}.scope",), Place(engine="containerd", container=ID)),
        (("/system.slice/jupyter.service",), Place(unit="jupyter.service")),
        (("/user.slice/user-1000.slice/session-4.scope",), Place(unit="session-4.scope")),
        (("/", "/system.slice/a\x1b[2J.service"), Place()),
        ((f"/docker/{ID}x",), Place()),
        ((), Place()),
    ],
)  # fmt: skip
def test_a_place_is_read_from_paths(paths: tuple[str, ...], place: Place) -> None:
    assert parse_place(paths) == place
