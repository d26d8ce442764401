"""`fairlead dra explain`: why a claim waits, node by node and device by device."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairlead import errors
from fairlead.cli.layer.dra import explain, group, read
from fairlead.plan.claim import gate
from fairlead.wire.kubernetes import core, manifest
from fairlead.wire.kubernetes.resource import dialect

_ASKED = explain.Asked(gates=gate.DEFAULTS, release="1.37", every=False)


def _slice(node: str, *devices: dict[str, Any], **pool: int) -> dict[str, Any]:
    spec: dict[str, Any] = {"driver": "d.example", "nodeName": node, "devices": [*devices]}
    spec["pool"] = {"name": node, "generation": 1, "resourceSliceCount": 1, **pool}
    return {"apiVersion": dialect.V1, "kind": "ResourceSlice", "metadata": {"name": f"{node}-a"}, "spec": spec}


def _claim(name: str, *, of: str = "gpu", has: tuple[str, ...] = (), **exactly: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "apiVersion": dialect.V1,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": of, **exactly}}]}},
    }
    if has:
        results = [
            {"request": "r", "driver": "d.example", "pool": one.partition("/")[0], "device": one.partition("/")[2]}
            for one in has
        ]
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [has[0].partition("/")[0]]}]}]
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}}
        users = [{"resource": "pods", "name": f"pod-of-{name}", "uid": "1"}]
        made["status"] = {"allocation": allocation, "reservedFor": users}
    return made


def _pod(*entries: dict[str, Any], node: str = "", **more: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "a", "image": "b"}], "resourceClaims": [*entries], **more}
    spec |= {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "team"}, "spec": spec}


def _node(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def _template(**exactly: Any) -> dict[str, Any]:
    spec = _claim("x", **exactly)["spec"]
    about = {"name": "gpus", "namespace": "team"}
    return {"apiVersion": dialect.V1, "kind": "ResourceClaimTemplate", "metadata": about, "spec": {"spec": spec}}


_CLASS = {"apiVersion": dialect.V1, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}


def _explain(name: str, *documents: dict[str, Any], words: tuple[str, ...] = ()) -> Result:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [_CLASS, *documents]})
    return CliRunner().invoke(group.group, ["explain", "-f", "-", name, *words], input=text, standalone_mode=False)


def _objects(*documents: dict[str, Any]) -> read.Objects:
    items = [
        dialect.read(one) if one["apiVersion"] == dialect.V1 else manifest.convert(one, (core.Pod, core.Node))
        for one in (_CLASS, *documents)
    ]
    return read.Objects(items=tuple(items), unread=(), others={})


def test_a_claim_that_waits_says_so_first_and_then_which_test_refused_each_device() -> None:
    tainted = {"name": "gpu-1", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
    other = {"name": "mig-0", "attributes": {"type": {"string": "mig"}}}
    whole = 'device.attributes["d.example"].?type.orValue("gpu") == "gpu"'
    done = _explain(
        "train",
        _slice("n1", {"name": "gpu-0"}, tainted, other),
        _claim("busy", has=("n1/gpu-0",)),
        _claim("train", count=1, selectors=[{"cel": {"expression": whole}}]),
    )
    assert done.return_value == 1
    assert done.stdout.splitlines() == [
        "ResourceClaim team/train waits, and does not fit on n1: request r of claim team/train wants 1 of 3 devices, "
        "and 0 fit: 1 held by other claims (held by claim team/busy), 1 not selected (selector #0 of claim team/train: "
        f"{whole}), 1 tainted (taint k=v:NoSchedule is not tolerated)",
        "n1 does not fit",
        "    d.example/n1/gpu-0: held by claim team/busy",
        "    d.example/n1/gpu-1: taint k=v:NoSchedule is not tolerated",
        f"    d.example/n1/mig-0: selector #0 of claim team/train: {whole} is false",
        "no Node was read: the nodes are those that slices name, and labels of nodes are not known",
    ]


def test_a_claim_that_fits_says_where_and_what_it_waits_for() -> None:
    objects = (_slice("n1", {"name": "gpu-0"}), _slice("n2"), _claim("train"), _node("n1"), _node("n2"))
    done = _explain("team/train", *objects)
    assert done.return_value == 0
    assert done.stdout.splitlines()[:3] == [
        "ResourceClaim team/train waits, and fits on 1 of 2 nodes (n1): a claim is allocated when a pod that uses it "
        "is scheduled, and no such pod was read",
        "n1 fits: 1 device",
        "    d.example/n1/gpu-0: would be allocated",
    ]
    pod = _pod({"name": "g", "resourceClaimName": "train"})
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}]}
    done = _explain("claim/train", *objects, pod)
    assert ": it is allocated when a pod that uses it is scheduled: web; of the pod its" in done.stdout
    assert "its scheduler says: 0/2 nodes" in done.stdout


def test_a_claim_that_is_allocated_says_where_and_for_whom() -> None:
    done = _explain("busy", _slice("n1", {"name": "gpu-0"}), _claim("busy", has=("n1/gpu-0",)))
    assert done.return_value == 0
    assert done.stdout.splitlines() == [
        "ResourceClaim team/busy is allocated on n1, and reserved for pod pod-of-busy",
        "    d.example/n1/gpu-0",
    ]


def test_a_pods_claims_are_those_of_templates_too_made_or_not() -> None:
    entries = ({"name": "g", "resourceClaimTemplateName": "gpus"}, {"name": "h", "resourceClaimName": "busy"})
    objects = (
        *(_slice("n1", {"name": "gpu-0"}), _slice("n2", {"name": "gpu-0"})),
        *(_template(count=1), _claim("busy", has=("n1/gpu-0",))),
    )
    done = _explain("pod/web", *objects, _pod(*entries))
    assert done.return_value == 1
    assert "  claim team/web-g is not made yet, from its template" in done.stdout
    assert "  claim team/busy is allocated on n1, and reserved for pod pod-of-busy" in done.stdout
    assert (
        "not tried: 1 node, where the pod's node selector or a claim that is allocated does not let it be"
        in done.stdout
    )

    made = _pod(*entries[:1])
    made["status"] = {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "web-g-x7"}]}
    found = json.loads(_explain("web", *objects, made, _claim("web-g-x7"), words=("-o", "json")).stdout)
    assert [one["claim"] for one in found["claims"]] == ["team/web-g-x7"]
    assert (found["fits"], found["nodes"][0]["node"]) == (True, "n2")


def test_a_pod_whose_claims_are_all_allocated_and_one_without_any() -> None:
    busy = _claim("busy", has=("n1/gpu-0",))
    done = _explain("web", busy, _pod({"name": "h", "resourceClaimName": "busy"}, node="n1"))
    assert done.stdout.startswith("the claim of Pod team/web is allocated; the pod is on n1\n")
    done = _explain("web", busy, _pod())
    assert done.stdout == "Pod team/web has no claims: they are not what it waits for\n"


def test_what_a_pod_names_and_is_not_there_is_why_it_waits() -> None:
    entries = ({"name": "g", "resourceClaimTemplateName": "gpus"}, {"name": "h", "resourceClaimName": "busy"})
    done = _explain("web", _pod(*entries))
    assert done.return_value == 1
    assert done.stdout.splitlines()[0] == (
        "Pod team/web waits: ResourceClaimTemplate team/gpus of its entry g is not there; "
        "claim team/busy of its entry h is not there"
    )


def test_a_nodes_labels_count_for_slices_and_for_the_pod() -> None:
    anywhere = _slice("n1", {"name": "gpu-0"})
    del anywhere["spec"]["nodeName"]
    wanted = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    anywhere["spec"]["nodeSelector"] = {"nodeSelectorTerms": wanted}
    nodes = (_node("n1", zone="a"), _node("n2", zone="b"), _node("n3", zone="a", no="1"))
    found = explain.explain(_objects(anywhere, _claim("train"), *nodes), "train", "", _ASKED)
    assert [(one.node, one.fits) for one in found.nodes] == [("n1", True), ("n3", True), ("n2", False)]
    pod = _pod({"name": "g", "resourceClaimName": "train"}, nodeSelector={"no": "1"})
    found = explain.explain(_objects(anywhere, _claim("train"), pod, *nodes), "web", "", _ASKED)
    assert [one.node for one in found.nodes] == ["n3"]
    assert found.left_out[0].startswith("not tried: 2 nodes")


def test_a_rule_of_an_administrator_taints_devices_too() -> None:
    rule = {"apiVersion": dialect.V1, "kind": "DeviceTaintRule", "metadata": {"name": "sick"}}
    rule |= {
        "spec": {"deviceSelector": {"pool": "n1", "device": "gpu-0"}, "taint": {"key": "s", "effect": "NoExecute"}}
    }
    done = _explain("train", _slice("n1", {"name": "gpu-0"}), _claim("train"), rule)
    assert "d.example/n1/gpu-0: taint s:NoExecute is not tolerated" in done.stdout


def test_an_error_ends_the_scheduling_and_no_other_node_is_tried() -> None:
    slices = [_slice(f"n{at}", {"name": "gpu-0"}) for at in range(3)]
    done = _explain("train", *slices, _claim("train", of="none"))
    assert done.return_value == 1
    answer = done.stdout.splitlines()[0]
    assert answer.startswith("ResourceClaim team/train waits, and an error ends its scheduling on every node: ")
    assert "none" in answer
    assert "not tried: 2 nodes, since this error ends the scheduling on every node" in done.stdout


def test_counters_and_pools_in_pieces_say_what_is_short() -> None:
    counters = [{"counterSet": "c", "counters": {"slices": {"value": "4"}}}]
    first = _slice("n1", *({"name": f"gpu-{at}", "consumesCounters": counters} for at in (0, 1)), resourceSliceCount=2)
    sets = _slice("n1", resourceSliceCount=2)
    sets["metadata"]["name"] = "n1-b"
    sets["spec"]["sharedCounters"] = [{"name": "c", "counters": {"slices": {"value": "7"}}}]
    busy = _claim("busy", has=("n1/gpu-0",))
    done = _explain("train", first, sets, busy, _claim("train"))
    assert "    d.example/n1/gpu-1: counter c/slices of pool d.example/n1 is short by 1" in done.stdout
    done = _explain("train", first, busy, _claim("train"))
    assert "pools that are being updated: d.example/n1" in done.stdout


def test_nodes_and_devices_are_bounded_and_counted() -> None:
    devices = [{"name": f"gpu-{at}"} for at in range(14)]
    has = tuple(f"n00/gpu-{at}" for at in range(14))
    objects = (_slice("n00", *devices), *(_slice(f"n{at:02}") for at in range(1, 15)), _claim("busy", has=has))
    done = _explain("train", *objects, _claim("train"))
    assert "    4 devices more: 4 held by other claims (held by claim team/busy); --all shows them" in done.stdout
    assert "not shown: 5 nodes, of which 0 fit; --all shows them" in done.stdout
    assert "fits on none of 15 nodes: of their devices 14 held by other claims" in done.stdout
    every = _explain("train", *objects, _claim("train"), words=("--all",)).stdout
    assert every.count("held by claim team/busy") == 15
    assert "--all" not in every


def test_it_ends_after_its_time_and_counts_nodes_that_were_not_tried() -> None:
    ticks = iter(range(0, 1000, 15))
    objects = _objects(*(_slice(f"n{at}", {"name": "gpu-0"}) for at in range(5)), _claim("train"))
    found = explain.explain(objects, "train", "", _ASKED, clock=lambda: next(ticks))
    assert [one.node for one in found.nodes] == ["n0"]
    assert "not tried: 4 nodes, since 20 s were over" in found.left_out


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("tran", (), "did you mean team/train?"),
        ("team/web", (), "is the name of ResourceClaim team/web, Pod team/web"),
        ("pod/train", (), 'no ResourceClaim and no Pod is named "train"'),
        ("team/train", ("-n", "lab"), "names namespace team, and -n lab another one"),
        ("x" * 10_000_000, (), "characters left out"),
    ],
)
def test_a_name_that_does_not_name_one_object_is_an_error(name: str, words: tuple[str, ...], says: str) -> None:
    done = _explain(name, _claim("train"), _claim("web"), _pod(), words=words)
    assert isinstance(done.exception, errors.RequestError)
    assert says in f"{done.exception.message} {done.exception.hint}"


def test_without_any_node_nothing_is_tried_and_several_requests_are_told_apart() -> None:
    done = _explain("train", _claim("train"))
    assert done.return_value == 1
    assert done.stdout.startswith("ResourceClaim team/train waits, and there is no node to try\n")
    two = _claim("train")
    two["spec"]["devices"]["requests"].append({"name": "s", "exactly": {"deviceClassName": "gpu"}})
    done = _explain("train", _slice("n1", {"name": "gpu-0"}), two)
    assert "    d.example/n1/gpu-0 for team/train r: fits" in done.stdout
    assert "    d.example/n1/gpu-0 for team/train s: fits" in done.stdout


def test_an_amount_that_is_none_names_its_claim() -> None:
    bad = _claim("busy", has=("n1/gpu-0",))
    result = bad["status"]["allocation"]["devices"]["results"][0]
    result |= {"shareID": "a671734a-e8e5-11e4-8fde-42010af09327", "consumedCapacity": {"memory": "much"}}
    done = _explain("train", _slice("n1", {"name": "gpu-0"}), bad, _claim("train"))
    assert isinstance(done.exception, errors.Invalid)
    assert done.exception.message.startswith("ResourceClaim team/busy consumes an amount that is none: ")


def test_names_of_any_length_are_bounded() -> None:
    name = "g" * 1_000_000
    done = _explain("train", _slice("n1", {"name": name}), _claim("busy", has=(f"n1/{name}",)), _claim("train"))
    assert max(map(len, done.stdout.splitlines())) < 5000


def _wanting(count: int = 1) -> dict[str, Any]:
    made = _pod()
    made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(count)}}
    return made


def _offering(name: str, count: int) -> dict[str, Any]:
    return {**_node(name), "status": {"allocatable": {"nvidia.com/gpu": str(count)}}}


_SERVING = {**_CLASS, "metadata": {"name": "nvidia"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}


def test_extended_resources_are_judged_as_the_claim_that_would_meet_them_where_a_node_offers_none() -> None:
    slices = _slice("a", {"name": "gpu-0"}), _slice("b", {"name": "gpu-0"}, {"name": "gpu-1"})
    nodes = _node("a"), _offering("b", 0), _offering("c", 8)
    found = explain.explain(_objects(_SERVING, *slices, *nodes, _wanting(2)), "pod/web", "team", _ASKED)
    assert found.answer.startswith("Pod team/web waits, and fits on 1 of 2 nodes (b)")
    assert [(one.node, one.fits) for one in found.nodes] == [("b", True), ("a", False)]
    assert [one.claim for one in found.claims] == ["team/web-extended-resources"]
    assert "would meet extended resources by nvidia" in found.claims[0].state
    told = " ".join(found.left_out)
    assert "offered by 1 node without a claim: nvidia.com/gpu; there the amount decides" in told
    assert "fairlead's scheduler makes none yet" in told


def test_a_pod_whose_nodes_all_offer_its_extended_resources_waits_for_no_claim() -> None:
    found = explain.explain(_objects(_SERVING, _offering("c", 8), _wanting()), "pod/web", "team", _ASKED)
    assert "waits, and for no claim" in found.answer
    assert found.fits
    assert "makes none yet" not in " ".join(found.left_out)


def test_a_pod_without_a_class_for_its_resources_or_with_a_node_has_no_claims() -> None:
    assert "has no claims" in explain.explain(_objects(_node("a"), _wanting()), "pod/web", "team", _ASKED).answer
    placed = _wanting()
    placed["spec"]["nodeName"] = "a"
    assert "has no claims" in explain.explain(_objects(_SERVING, _node("a"), placed), "pod/web", "team", _ASKED).answer


def test_a_claim_of_too_many_requests_is_a_problem_where_no_node_offers_the_resource() -> None:
    pod = _wanting()
    pod["spec"]["containers"] = [{**pod["spec"]["containers"][0], "name": f"c{at}"} for at in range(33)]
    found = explain.explain(_objects(_SERVING, _node("a"), pod), "pod/web", "team", _ASKED)
    assert found.answer.endswith("need a claim of 33 requests, and a claim has 32 at most")
    offered = explain.explain(_objects(_SERVING, _offering("a", 64), pod), "pod/web", "team", _ASKED)
    assert "waits, and for no claim" in offered.answer
