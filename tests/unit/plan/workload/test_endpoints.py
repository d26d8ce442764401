"""Where Services lead: pods that serve, their names and ports."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.plan.workload import endpoints
from fairlead.plan.workload.endpoints import Relay
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.service import Service


def _pod(name: str, *, ready: bool = True, ip: str = "10.0.0.2", **spec: Any) -> core.Pod:
    document = {
        "metadata": {"name": name, "namespace": "n", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "ports": [{"name": "http", "containerPort": 8000}]}], **spec},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }
    return msgspec.convert(document, core.Pod)


def _service(name: str = "web", **spec: Any) -> Service:
    document = {
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}], **spec},
    }
    return msgspec.convert(document, Service)


def test_only_pods_that_serve_stand_behind_a_service() -> None:
    pods = [_pod("b"), _pod("a", ready=False), _pod("c", ip="")]
    assert [one.metadata.name for one in endpoints.behind(_service(), pods)] == ["b"]
    every = endpoints.behind(_service(publishNotReadyAddresses=True), pods)
    assert [one.metadata.name for one in every] == ["a", "b"]
    assert endpoints.behind(_service(selector={}), pods) == []


def test_a_name_is_short_long_and_of_each_pod_of_a_headless_one() -> None:
    pods = [_pod("db-0", hostname="db-0")]
    (line,) = endpoints.lines([_service()], pods)
    assert line == "10.0.0.2\tweb web.n web.n.svc web.n.svc.cluster.local"
    found = endpoints.lines([_service(clusterIP="None")], pods)
    assert found[1] == "10.0.0.2\tdb-0.web db-0.web.n db-0.web.n.svc db-0.web.n.svc.cluster.local"


def test_our_lines_come_and_go_and_the_rest_of_the_file_stays() -> None:
    old, new = (f"10.0.0.{number}\tweb web.n.svc.cluster.local" for number in (2, 3))
    first = endpoints.with_lines("127.0.0.1 localhost", [old])
    assert first.startswith(f"127.0.0.1 localhost\n# fairlead: services\n{old}\n")
    bare = "".join(line for line in first.splitlines(keepends=True) if not line.startswith("#"))
    assert endpoints.with_lines(bare, [new]).count("web.n.svc.cluster.local") == 1, "podman drops comments"
    second = endpoints.with_lines(f"{first}10.9.9.9 later\n", [new])
    assert second.count("# fairlead: services\n") == 1
    assert "10.0.0.2" not in second
    assert "10.9.9.9 later\n" in second
    assert endpoints.with_lines(second, []) == "127.0.0.1 localhost\n10.9.9.9 later\n"


def test_a_port_that_differs_is_relayed_unless_the_pod_has_it() -> None:
    pod = _pod("a")
    assert list(endpoints.relays([_service()], pod)) == [Relay(port=80, target=8000)]
    assert list(endpoints.relays([_service(ports=[{"port": 8000}])], pod)) == []
    assert list(endpoints.relays([_service(ports=[{"port": 8000, "targetPort": 9000}])], pod)) == []
    assert list(endpoints.relays([_service(ports=[{"port": 80, "targetPort": "none"}])], pod)) == []
    assert list(endpoints.relays([_service()], _pod("a", ready=False))) == []
