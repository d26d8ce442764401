"""`fairlead debug` on real podman: which namespaces a debugger is in, which devices it has, and how it ends."""

from __future__ import annotations

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow]

_KINDS = ("net", "uts", "ipc", "user", "pid", "mnt")


def _namespaces(service: Home, container: str) -> dict[str, str]:
    words = " ".join(f"$(readlink /proc/self/ns/{kind})" for kind in _KINDS)
    found = service.ok("exec", "-c", container, "box", "--", "sh", "-c", f"echo {words}").out.split()
    return dict(zip(_KINDS, found, strict=True))


def test_it_is_in_the_pods_namespaces_and_sees_the_targets_processes(service: Home) -> None:
    service.start("box", "-g", "1", "--memory", "64Mi")
    (container,) = (part["name"] for part in service.show("box")["containers"])
    service.ok("debug", "-c", "plain", "box", "--", "sleep", "777")
    service.ok("debug", "-c", "close", "--target", "box", "box", "--", "sleep", "777")
    main, plain, close = (_namespaces(service, name) for name in (container, "plain", "close"))
    assert {kind for kind in _KINDS if plain[kind] == main[kind]} == {"net", "uts", "ipc", "user"}
    assert {kind for kind in _KINDS if close[kind] == main[kind]} == {"net", "uts", "ipc", "user", "pid"}
    assert "sleep 1000" in service.ok("exec", "-c", "close", "box", "--", "ps").out
    assert "sleep 1000" not in service.ok("exec", "-c", "plain", "box", "--", "ps").out
    listed = service.ok("exec", "-c", container, "box", "--", "sh", "-c", "ls /dev | grep -c nvidia").out
    assert int(listed) > 0
    nodes = service("exec", "-c", "close", "box", "--", "sh", "-c", "ls /dev | grep -c nvidia")
    assert nodes.out.strip() == "0", nodes
    (limit,) = (one["memory_limit_bytes"] for one in [service.ask("/v1/containers/box/usage?container=close")])
    assert limit == 64 << 20


def test_its_output_and_code_come_back_and_it_ends_with_the_container(service: Home) -> None:
    service.start("box")
    told = service("debug", "-i", "box", "--", "sh", "-c", "cat; hostname; exit 6", stdin="in\n")
    assert (told.code, told.out) == (6, "in\nbox\n"), told
    service.ok("debug", "-c", "long", "--target", "box", "box", "--", "sleep", "777")
    service.rm("box")
    assert service.containers() == []
