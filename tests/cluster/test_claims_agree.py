"""The real kube-scheduler and ours allocate the same devices for the same claims, on a real API server.

Each case is a node of its own with slices that a test program wrote, and a pod with claims that is pinned to it. The
real scheduler decides all cases first; its pods and allocations are taken back, and ours decides the same ones. Then
ours is killed again and again while it works.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import plane
from fairlead.wire.kubernetes import core, manifest
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.cluster import paper, verb
from tools.cluster import api, build, home

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

_DRIVER = "gpu.example.com"
_RESOURCE = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCE}/namespaces/default/resourceclaims"
_PODS = "/api/v1/namespaces/default/pods"
_SEEDS = range(60)
_WORDS = "cannot allocate all claims"
_OFF = {
    "1.34": "DRAPartitionableDevices=false,DRAConsumableCapacity=false,DRADeviceBindingConditions=false,"
    "DRADeviceTaints=false"
}
"""By release: features that it has off."""


@pytest.fixture(scope="module")
def server(kubernetes_version: str) -> Iterator[tuple[home.Cluster, api.API]]:
    """A control plane with nodes, slices and classes; nothing else changes them."""
    if why := plane.missing():
        pytest.skip(why)
    home.sweep()
    paths = tuple(build.folder_of(module) for module in build.modules(kubernetes_version))
    if missing := [str(path) for path in paths if not path.is_dir()]:
        pytest.fail(f"run tests/cluster/setup.sh {kubernetes_version} first: {missing} are not built")
    one = home.up("claims", version=kubernetes_version, paths=paths, owned=True, has_node=False)
    try:
        with one.api() as connection:
            connection.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            paper.ensure_namespace(connection, "fairlead")
            for name, expression in _CLASSES.items():
                spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
                spec |= {"extendedResourceName": _WHOLE} if name == "gpu" else {}
                connection.create(f"{_RESOURCE}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
            for seed in _SEEDS:
                _add_node(connection, seed)
            yield one, connection
    finally:
        one.down()


_WHOLE = "example.com/whole"
"""The extended resource that the class `gpu` stands for."""
_CLASSES = {
    "gpu": f'device.driver == "{_DRIVER}" && device.attributes["{_DRIVER}"].type == "gpu"',
    "any": f'device.driver == "{_DRIVER}"',
    "mig": f'device.driver == "{_DRIVER}" && device.attributes["{_DRIVER}"].type == "mig"',
}
_SELECTORS = (
    f'device.attributes["{_DRIVER}"].model == "H100"',
    f'device.attributes["{_DRIVER}"].numa == 1',
    f'device.capacity["{_DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
    f'device.attributes["{_DRIVER}"].model.lowerAscii().matches("^a.*")',
    f'device.attributes["{_DRIVER}"].driverVersion.compareTo(semver("580.0.0")) >= 0',
    f'!("rare" in device.attributes["{_DRIVER}"])',
)


def _add_node(server: api.API, seed: int) -> None:
    chance, name = random.Random(seed), f"n{seed}"
    paper.add_node(server, name, gpus=0, labels={"kubernetes.io/hostname": name})
    has_counters = chance.random() < 0.4
    devices = list(_partitions(chance) if has_counters else _gpus(chance))
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1 + has_counters}
    base = {"driver": _DRIVER, "nodeName": name, "pool": pool}
    specs: list[dict[str, Any]] = [{**base, "devices": devices}]
    if has_counters:
        sets = [{"name": f"gpu-{gpu}", "counters": {"slices": {"value": "7"}}} for gpu in range(2)]
        specs.append({**base, "sharedCounters": sets})
    for at, spec in enumerate(specs):
        server.create(f"{_RESOURCE}/resourceslices", {"metadata": {"name": f"{name}-{at}"}, "spec": spec})


def _attributes(chance: random.Random, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": {"string": kind},
        "model": {"string": chance.choice(["H100", "A100"])},
        "numa": {"int": chance.randrange(2)},
        "driverVersion": {"version": chance.choice(["580.1.0", "570.0.0"])},
    }
    return found | ({"rare": {"bool": True}} if chance.random() < 0.3 else {})


def _gpus(chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(chance.choice([2, 4, 8])):
        memory: dict[str, Any] = {"value": chance.choice(["80Gi", "24Gi"])}
        device: dict[str, Any] = {
            "name": f"gpu-{number}",
            "attributes": _attributes(chance, "gpu"),
            "capacity": {"memory": memory},
        }
        if chance.random() < 0.2:
            device["taints"] = [{"key": "sick", "value": "yes", "effect": "NoSchedule"}]
        if chance.random() < 0.3:
            device["allowMultipleAllocations"] = True
            memory["requestPolicy"] = {"default": "8Gi", "validRange": {"min": "4Gi", "step": "4Gi"}}
        yield device


def _partitions(chance: random.Random) -> Iterator[dict[str, Any]]:
    for gpu in range(2):
        for size, count in ((7, 1), (3, 2), (2, 3), (1, 7)):
            for place in range(count):
                uses = [{"counterSet": f"gpu-{gpu}", "counters": {"slices": {"value": str(size)}}}]
                attributes = _attributes(chance, "gpu" if size == 7 else "mig") | {"gpu": {"int": gpu}}
                capacity = {"memory": {"value": f"{10 * size}Gi"}}
                name = f"gpu-{gpu}-{size}g-{place}"
                yield {"name": name, "attributes": attributes, "capacity": capacity, "consumesCounters": uses}


def _claim(chance: random.Random) -> dict[str, Any]:
    requests = [_request(chance, name) for name in ("a", "b")[: chance.randint(1, 2)]]
    devices: dict[str, Any] = {"requests": requests}
    if chance.random() < 0.4:
        key = chance.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        devices["constraints"] = [{key: f"{_DRIVER}/{chance.choice(['model', 'numa'])}"}]
    if chance.random() < 0.3:
        opaque = {"driver": _DRIVER, "parameters": {"kind": "Config"}}
        devices["config"] = [{"requests": [requests[0]["name"]], "opaque": opaque}]
    return {"devices": devices}


def _request(chance: random.Random, name: str) -> dict[str, Any]:
    if chance.random() < 0.25:
        return {"name": name, "firstAvailable": [{"name": f"way-{at}", **_exactly(chance)} for at in range(2)]}
    return {"name": name, "exactly": _exactly(chance)}


def _exactly(chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"deviceClassName": chance.choice(list(_CLASSES))}
    if chance.random() < 0.1:
        found["allocationMode"] = "All"
    else:
        found |= {"allocationMode": "ExactCount", "count": chance.choice([1, 1, 2, 3])}
    if chance.random() < 0.5:
        found["selectors"] = [{"cel": {"expression": chance.choice(_SELECTORS)}}]
    if chance.random() < 0.3:
        found["tolerations"] = [{"key": "sick", "operator": "Exists", "effect": "NoSchedule"}]
    if chance.random() < 0.3:
        found["capacity"] = {"requests": {"memory": chance.choice(["5Gi", "16Gi", "30Gi"])}}
    return found


def _ask(server: api.API, seed: int, scheduler: str) -> None:
    chance, names = random.Random(1000 + seed), []
    for number in range(chance.randint(1, 2)):
        names.append(f"c{seed}-{number}")
        server.create(_CLAIMS, {"metadata": {"name": names[-1]}, "spec": _claim(chance)})
    claims = [{"name": f"claim-{at}", "resourceClaimName": name} for at, name in enumerate(names)]
    main: dict[str, Any] = {"name": "main", "image": "registry.invalid/none:1"}
    main["resources"] = {"claims": [{"name": one["name"]} for one in claims]}
    spec = {
        "schedulerName": scheduler,
        "nodeSelector": {"kubernetes.io/hostname": f"n{seed}"},
        "resourceClaims": claims,
        "containers": [main],
        "terminationGracePeriodSeconds": 0,
    }
    server.create(_PODS, {"metadata": {"name": f"p{seed}"}, "spec": spec})


def _said(pod: Mapping[str, Any]) -> str:
    if pod["spec"].get("nodeName"):
        return "bound"
    conditions = pod.get("status", {}).get("conditions", [])
    return next((one["message"] for one in conditions if one["type"] == "PodScheduled"), "")


def _round(server: api.API, scheduler: str, version: str) -> dict[int, Any]:
    """Return what a scheduler allocated for each case, or why it did not; everything is taken back."""
    for seed in _SEEDS:
        _ask(server, seed, scheduler)

    def judged(items: list[api.Object]) -> dict[str, str] | None:
        said = {item["metadata"]["name"]: _said(item) for item in items}
        return said if len(said) == len(_SEEDS) and all(said.values()) else None

    words = server.until(_PODS, judged, what="every verdict", timeout_s=120)
    found: dict[int, Any] = {}
    for item in server.get(_CLAIMS)["items"]:
        seed = int(item["metadata"]["name"][1:].partition("-")[0])
        pod = f"p{seed}"
        if words[pod] == "bound":
            assert [one["name"] for one in item["status"]["reservedFor"]] == [pod]
            assert item["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
            found.setdefault(seed, {})[item["metadata"]["name"]] = _plain(item["status"]["allocation"], version)
        else:
            assert "allocation" not in item.get("status", {})
            found[seed] = words[pod]
    _clear(server)
    return found


def _plain(allocation: Any, version: str) -> Any:
    """Return an allocation without what differs from run to run, and, before 1.37, between it and 1.37."""
    assert allocation.pop("allocationTimestamp")
    for one in allocation["devices"]["results"]:
        one.pop("shareID", None)
    for one in allocation["devices"].get("config", ()) if version in {"1.34", "1.35", "1.36"} else ():
        one.pop("requests", None)
    return allocation


def _clear(server: api.API) -> None:
    for item in server.get(_PODS)["items"]:
        server.delete(f"{_PODS}/{item['metadata']['name']}", grace_s=0)
    for item in server.get(_CLAIMS)["items"]:
        path = f"{_CLAIMS}/{item['metadata']['name']}"
        server.patch(f"{path}/status", {"status": {"allocation": None, "reservedFor": None}})
        server.patch(path, {"metadata": {"finalizers": None}})
        server.delete(path)


@pytest.fixture(scope="module")
def verdicts(
    server: tuple[home.Cluster, api.API], kubernetes_version: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[int, Any], dict[int, Any]]:
    """What the real scheduler decided, and what ours did."""
    cluster, connection = server
    with plane.kube_scheduler(cluster):
        theirs = _round(connection, "default-scheduler", kubernetes_version)
    log = tmp_path_factory.mktemp("ours") / "log"
    gates = f"--control-feature-gates={_OFF.get(kubernetes_version, '')}"
    with verb.running(verb.Verb("scheduler", cluster.kubeconfig, log, (gates,))):
        ours = _round(connection, "fairlead", kubernetes_version)
    return theirs, ours


def test_a_claim_gets_the_same_devices(verdicts: tuple[dict[int, Any], dict[int, Any]]) -> None:
    theirs, ours = verdicts
    allocated = {seed for seed, one in theirs.items() if not isinstance(one, str)}
    assert 10 < len(allocated) < len(_SEEDS) - 10
    differ = {seed: (theirs[seed], ours[seed]) for seed in allocated if theirs[seed] != ours[seed]}
    assert not differ, json.dumps(differ)


def test_a_claim_that_the_real_scheduler_refuses_is_refused_with_more_words(
    verdicts: tuple[dict[int, Any], dict[int, Any]],
) -> None:
    theirs, ours = verdicts
    refused = {seed for seed, one in theirs.items() if isinstance(one, str)}
    assert refused == {seed for seed, one in ours.items() if isinstance(one, str)}
    failed = {seed: theirs[seed] for seed in refused if _WORDS not in theirs[seed]}
    assert all("constraint would not be satisfied" in words for words in failed.values()), failed
    assert not {seed: ours[seed] for seed in refused if _WORDS not in ours[seed] or "request" not in ours[seed]}


_EXTENDED, _IMPLICIT = "example.com/gpu", "deviceclass.resource.kubernetes.io/extended"


def _drawn_pod(seed: int) -> dict[str, Any]:
    """Return a pod with containers of all kinds that ask for extended resources, or do not."""
    chance = random.Random(2000 + seed)

    def container(name: str, **more: Any) -> dict[str, Any]:
        amounts = {one: str(chance.randint(1, 3)) for one in (_EXTENDED, _IMPLICIT) if chance.random() < 0.6}
        resources = {"limits": amounts, "requests": {**amounts, **({"cpu": "1m"} if chance.random() < 0.5 else {})}}
        return {"name": name, "image": "registry.invalid/none:1", "resources": resources, **more}

    init = [
        container(f"init-{at}", **({"restartPolicy": "Always"} if chance.random() < 0.4 else {}))
        for at in range(chance.randint(0, 4))
    ]
    containers = [container(f"main-{at}") for at in range(chance.randint(1, 3))]
    containers[0]["resources"] = {"limits": {_EXTENDED: "1"}}
    return {
        "nodeSelector": {"kubernetes.io/hostname": f"extended-{seed}"},
        "initContainers": init,
        "containers": containers,
        "terminationGracePeriodSeconds": 0,
    }


def _add_extended(server: api.API, seed: int) -> None:
    """Add a node of which the class `extended` stands for all; every third offers it by a device plugin too."""
    driver, name = "extended.example.com", f"extended-{seed}"
    paper.add_node(server, name, gpus=0, labels={"kubernetes.io/hostname": name})
    if seed % 3 == 2:
        amounts = {"capacity": {_EXTENDED: "40"}, "allocatable": {_EXTENDED: "40"}}
        server.patch(f"/api/v1/nodes/{name}/status", {"status": amounts})
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{at}"} for at in range(48)]
    spec: dict[str, Any] = {"driver": driver, "nodeName": name, "pool": pool, "devices": devices}
    server.create(f"{_RESOURCE}/resourceslices", {"metadata": {"name": name}, "spec": spec})


def _bound_extended(server: api.API, names: list[str], scheduler: str) -> list[tuple[core.Pod, ResourceClaim | None]]:
    """Have a scheduler place the drawn pods; returns each with the claim that was made for it."""
    for seed, name in enumerate(names):
        spec = {**_drawn_pod(seed), "schedulerName": scheduler}
        server.create(_PODS, {"metadata": {"name": name}, "spec": spec})

    def bound(items: list[api.Object]) -> list[api.Object] | None:
        found = [one for one in items if one["metadata"]["name"] in names and one["spec"].get("nodeName")]
        return found if len(found) == len(names) else None

    found = list[tuple[core.Pod, ResourceClaim | None]]()
    for item in server.until(_PODS, bound, what="pods are bound", timeout_s=60):
        pod = manifest.convert({**item, "apiVersion": "v1", "kind": "Pod"}, (core.Pod,)).item
        assert isinstance(pod, core.Pod)
        told = pod.status.extended_resource_claim_status
        found.append((pod, _claim_named(server, told.resource_claim_name) if told is not None else None))
    assert len(server.get(_CLAIMS)["items"]) == sum(claim is not None for _, claim in found)
    return found


def _claim_named(server: api.API, name: str) -> ResourceClaim:
    stored = server.get(f"{_CLAIMS}/{name}")
    found = dialect.read({**stored, "apiVersion": dialect.V1, "kind": "ResourceClaim"}).item
    assert isinstance(found, ResourceClaim)
    return found


def test_extended_resources_get_the_claim_that_the_real_scheduler_makes(
    server: tuple[home.Cluster, api.API], kubernetes_version: str, tmp_path: Path
) -> None:
    cluster, connection = server
    names = [f"e{seed}" for seed in range(9)]
    for seed in range(len(names)):
        _add_extended(connection, seed)
    expression = 'device.driver == "extended.example.com"'
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": _EXTENDED}
    connection.create(f"{_RESOURCE}/deviceclasses", {"metadata": {"name": "extended"}, "spec": spec})
    with plane.kube_scheduler(cluster):
        theirs = _bound_extended(connection, names, "default-scheduler")
    _clear(connection)
    gates = f"--control-feature-gates={_OFF.get(kubernetes_version, '')}"
    with verb.running(verb.Verb("scheduler", cluster.kubeconfig, tmp_path / "log", (gates,))):
        ours = _bound_extended(connection, names, "fairlead")
    several = mixed = 0
    for (their_pod, their_claim), (our_pod, our_claim) in zip(theirs, ours, strict=True):
        if their_claim is None or our_claim is None:
            assert their_claim is our_claim, their_pod.metadata.name
            continue
        told, said = (one.status.extended_resource_claim_status for one in (their_pod, our_pod))
        assert told is not None
        assert said is not None
        assert said.request_mappings == told.request_mappings, their_pod.spec
        assert our_claim.spec == their_claim.spec
        one, two = our_claim.metadata, their_claim.metadata
        assert (one.annotations, one.finalizers, one.generate_name) == (
            two.annotations,
            two.finalizers,
            two.generate_name,
        )
        assert len(one.name) == len(two.name)
        (owner,), (owned,) = one.owner_references, two.owner_references
        assert (owner.kind, owner.name, owner.controller) == (owned.kind, owned.name, owned.controller)
        assert [user.name for user in our_claim.status.reserved_for] == [our_pod.metadata.name]
        plain = [_without_time(claim) for claim in (our_claim, their_claim)]
        assert plain[0] == plain[1]
        mixed += all(one.resource_name != _EXTENDED for one in said.request_mappings or ())
        several += len(our_claim.spec.devices.requests or ()) > 2
    assert several > 2
    assert mixed  # of two resources the plugin offers one, and the claim meets the other
    _clear(connection)


def _without_time(claim: ResourceClaim) -> Any:
    allocation = claim.status.allocation
    assert allocation is not None
    return msgspec.structs.replace(allocation, allocation_timestamp=None)


def test_a_claim_whose_parameters_have_blanks_is_allocated(
    server: tuple[home.Cluster, api.API], tmp_path: Path
) -> None:
    """An API server takes no update of such a claim from a client that writes JSON."""
    cluster, connection = server
    blanks = '{"kind": "Config",  "of": [1, 2]}'
    opaque = {"driver": _DRIVER, "parameters": {"kind": "PLACE"}}
    requests = [{"name": "a", "exactly": {"deviceClassName": "any"}}]
    spec = {"devices": {"requests": requests, "config": [{"opaque": opaque}]}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "blanks"}}
    body = json.dumps({**about, "spec": spec}).replace('{"kind": "PLACE"}', blanks)
    connection.post_text(_CLAIMS, body)
    main = {"name": "main", "image": "registry.invalid/none:1"}
    claims = [{"name": "a", "resourceClaimName": "blanks"}]
    pod = {"schedulerName": "fairlead", "resourceClaims": claims, "containers": [main]}
    connection.create(_PODS, {"metadata": {"name": "blanks"}, "spec": pod})
    with verb.running(verb.Verb("scheduler", cluster.kubeconfig, tmp_path / "log")):
        connection.until(
            _PODS, lambda items: [one for one in items if one["spec"].get("nodeName")] or None, what="it is bound"
        )
    claim = connection.get(f"{_CLAIMS}/blanks")
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert claim["status"]["allocation"]["devices"]["results"]
    connection.delete(f"{_PODS}/blanks", grace_s=0)
    connection.patch(f"{_CLAIMS}/blanks/status", {"status": {"allocation": None, "reservedFor": None}})
    # Its finalizer cannot be taken away by a patch: a claim like this stays until a controller in Go removes it.


def test_a_scheduler_that_is_killed_at_any_point_loses_and_doubles_nothing(
    server: tuple[home.Cluster, api.API], tmp_path: Path
) -> None:
    cluster, connection = server
    node = "many"
    paper.add_node(connection, node, gpus=0, labels={"kubernetes.io/hostname": node})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{at}", "attributes": {"type": {"string": "gpu"}}} for at in range(100)]
    spec = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    connection.create(f"{_RESOURCE}/resourceslices", {"metadata": {"name": node}, "spec": spec})
    for number in range(100):
        about = {"metadata": {"name": f"k{number}"}}
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
        main: dict[str, Any] = {"name": "main", "image": "registry.invalid/none:1"}
        wanted: dict[str, Any] = {"schedulerName": "fairlead", "containers": [main]}
        if number % 2:
            main["resources"] = {"limits": {_WHOLE: "1"}}
        else:
            connection.create(_CLAIMS, {**about, "spec": {"devices": {"requests": [request]}}})
            wanted["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"k{number}"}]
        wanted |= {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 0}
        connection.create(_PODS, {**about, "spec": wanted})
    chance, lives = random.Random(3), 0
    while True:
        one = verb.Verb("scheduler", cluster.kubeconfig, tmp_path / f"{lives}.log")
        one.start()
        one.until_logged('"event": "leading"', timeout_s=60)
        time.sleep(chance.uniform(0.05, 0.5))
        lives += 1
        bound = sum(bool(item["spec"].get("nodeName")) for item in connection.get(_PODS)["items"])
        if bound == 100 or lives == 6:
            break
        one.stop(signal.SIGKILL)
    connection.until(
        _PODS,
        lambda items: True if items and all(item["spec"].get("nodeName") for item in items) else None,
        what="every pod is bound",
        timeout_s=60,
    )
    assert one.stop() == 0
    assert lives > 1
    given = [
        result["device"]
        for item in connection.get(_CLAIMS)["items"]
        if item["metadata"]["name"].startswith("k")
        for result in item["status"]["allocation"]["devices"]["results"]
    ]
    assert len(given) == len(set(given)) == 100
