"""`fairlead dra slices`, `claims` and `free`: what is published, who has what, what is left."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from fairlead.cli.core import invocation
from fairlead.cli.layer.dra import group

_V1 = "resource.k8s.io/v1"


def _slice(name: str, *devices: dict[str, Any], pool: str = "n1", **spec: Any) -> dict[str, Any]:
    about = {"name": pool, "generation": spec.pop("generation", 1), "resourceSliceCount": spec.pop("of", 1)}
    where = {} if {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & spec.keys() else {"nodeName": pool}
    made = {"driver": "d.example", "pool": about, "devices": [*devices], **where, **spec}
    return {"apiVersion": _V1, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": made}


def _claim(name: str, *results: dict[str, Any], users: tuple[str, ...] = (), **about: str) -> dict[str, Any]:
    made: dict[str, Any] = {"apiVersion": _V1, "kind": "ResourceClaim"}
    made["metadata"] = {"name": name, "namespace": "team", **about}
    made["spec"] = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}]}}
    if results:
        devices = [{"request": "r", "driver": "d.example", "pool": "n1", **one} for one in results]
        made["status"] = {"allocation": {"devices": {"results": devices}}}
        made["status"]["reservedFor"] = [{"resource": "pods", "name": one, "uid": "1"} for one in users]
    return made


def _run(verb: str, *documents: dict[str, Any], words: tuple[str, ...] = (), width: str = "") -> Result:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*documents]})
    return CliRunner().invoke(
        group.group,
        [verb, "-f", "-", *words],
        input=text,
        standalone_mode=False,
        obj=invocation.Invocation(env={"COLUMNS": width}),
    )


_GPU = {
    "name": "gpu-0",
    "attributes": {"type": {"string": "gpu"}, "other.example/v": {"version": "1.2.3"}},
    "capacity": {"memory": {"value": "80Gi"}},
    "consumesCounters": [{"counterSet": "c", "counters": {"slices": {"value": "7"}}}],
    "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
    "allowMultipleAllocations": True,
}
_SETS = [{"name": "c", "counters": {"slices": {"value": "7"}}}]


def test_pools_say_whether_anything_can_be_allocated_of_them_and_why_not() -> None:
    done = _run(
        "slices",
        *(_slice("a", _GPU, of=2), _slice("b", sharedCounters=_SETS, of=2), _slice("old", {"name": "x"}, generation=0)),
        *(_slice("c", pool="n2", of=3), _slice("e", {"name": "x"}, {"name": "x"}, pool="n3")),
        _slice("f", pool="net", allNodes=True),
    )
    assert done.stdout.splitlines() == [
        "POOL            NODE        GEN   SLICES   DEVICES   STATE",
        "d.example/n1    n1          1     2/2      1         complete; 1 tainted; counters c/slices 7; "
        "older slices: old",
        "d.example/n2    n2          1     1/3      0         1 of 3 slices are there: nothing is allocated of it "
        "until they are",
        "d.example/n3    n3          1     1/1      2         nothing is allocated of it: duplicate device name x",
        "d.example/net   all nodes   1     1/1      0         complete",
    ]


def test_counters_that_no_slice_has_are_said() -> None:
    done = _run("slices", _slice("a", _GPU))
    assert "nothing is allocated of it: counter set c not found" in done.stdout


def test_devices_are_shown_with_what_selectors_see_of_them() -> None:
    elsewhere = {"name": "gpu-1", "nodeName": "n7"}
    objects = (
        _slice("a", _GPU, elsewhere, of=2, perDeviceNodeSelection=True),
        _slice("b", sharedCounters=_SETS, of=2, allNodes=True),
        {
            **{"apiVersion": _V1, "kind": "DeviceTaintRule", "metadata": {"name": "sick"}},
            "spec": {"deviceSelector": {"device": "gpu-1"}, "taint": {"key": "s", "effect": "NoExecute"}},
        },
    )
    done = _run("slices", *objects, words=("--devices",))
    assert done.stdout.splitlines()[2:] == [
        "d.example/n1",
        '  gpu-0: type "gpu", other.example/v semver("1.2.3"); memory 80Gi; shared; takes c/slices 7; '
        "taint k=v:NoSchedule",
        "  gpu-1: on n7; taint s:NoExecute",
    ]
    bad = {"name": "bad", "attributes": {"v": {"version": "one"}}}
    assert "  bad: v unreadable: attribute 'v': no semantic version: 'one'" in (
        _run("slices", _slice("a", bad), words=("--devices",)).stdout
    )


def test_pools_and_devices_are_bounded_and_counted() -> None:
    many = _slice("a", *({"name": f"gpu-{at}"} for at in range(60)), pool="a")
    done = _run("slices", many, *(_slice(f"p{at}", pool=f"p{at}") for at in range(60)), words=("--devices",))
    assert "  10 devices more; --all shows them" in done.stdout
    assert "not shown: 11 pools; --all shows them" in done.stdout
    found = json.loads(_run("slices", many, words=("--devices", "--all", "-o", "json")).stdout)
    assert len(found["pools"][0]["device_list"]) == 60
    plain = json.loads(_run("slices", many, words=("-o", "json")).stdout)["pools"][0]
    assert (plain["device_list"], plain["more_devices"]) == ([], 0)


def test_claims_say_what_they_wait_for_or_have_where_and_for_whom() -> None:
    share = {"device": "gpu-0", "shareID": "s", "consumedCapacity": {"memory": "10Gi"}}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    busy = _claim("busy", share, users=("web", "db"))
    busy["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": terms}
    either = _claim("either")
    alternatives = [
        {"name": "a", "deviceClassName": "gpu", "allocationMode": "All"},
        {"name": "b", "deviceClassName": "mig"},
    ]
    either["spec"] = {"devices": {"requests": [{"name": "r", "firstAvailable": alternatives}]}}
    done = _run(
        "claims",
        *(busy, _claim("ends", {"device": "gpu-1"}, deletionTimestamp="2026-01-01T00:00:00Z"), _claim("waits"), either),
        _claim("looks", {"device": "gpu-0", "adminAccess": True}),
    )
    assert done.stdout.splitlines() == [
        "CLAIM         STATE                NODE         FOR               DEVICES",
        "team/busy     reserved             n1           pod web, pod db   d.example/n1/gpu-0 (share of memory 10Gi)",
        "team/either   waiting              -            -                 wants all gpu or 1 mig",
        "team/ends     allocated, deleted   every node   -                 d.example/n1/gpu-1",
        "team/looks    allocated            every node   -                 d.example/n1/gpu-0 (looks on)",
        "team/waits    waiting              -            -                 wants 2 gpu",
        "5 claims: 2 allocated, 1 reserved, 2 waiting.",
    ]


def test_claims_of_one_namespace_and_none_at_all() -> None:
    done = _run("claims", _claim("a"), _claim("b", namespace="lab"), words=("-n", "lab", "-o", "json"))
    assert [one["claim"] for one in json.loads(done.stdout)["claims"]] == ["lab/b"]
    assert _run("claims", _slice("a")).stdout == "0 claims.\n"
    many = _run("claims", *(_claim(f"c{at}") for at in range(103)))
    assert many.stdout.splitlines()[-2:] == ["103 claims: 103 waiting.", "not shown: 3 claims; --all shows them"]


def test_what_is_free_is_counted_as_the_api_does_and_the_note_says_what_that_hides() -> None:
    parts = [{**_GPU, "name": f"mig-{at}", "taints": []} for at in range(3)]
    busy = _claim("busy", {"device": "mig-0", "shareID": "s", "consumedCapacity": {"memory": "10Gi"}})
    slices = (_slice("a", *parts, of=2), _slice("b", sharedCounters=_SETS, of=2))
    done = _run("free", *slices, busy, _slice("c", {"name": "x"}, {"name": "x"}, pool="n2"))
    assert done.stdout.splitlines() == [
        "POOL           TOTAL   ALLOCATED   UNAVAILABLE   AVAILABLE   NOTE",
        "d.example/n1   3       1           0             2           counters are left for 0 of the available; "
        "230Gi of 240Gi memory left",
        "d.example/n2   2       0           0             2           nothing is allocated of it: duplicate device "
        "name x",
        "d.example: 0 of 5 devices can be allocated, in 2 pools",
    ]
    done = _run("free", *slices[:1], words=("-o", "json"))
    (one,) = json.loads(done.stdout)["pools"]
    assert one["status"]["validationError"].startswith("PoolIncomplete: ")
    assert one["problem"] == "the pool does not have as many slices as it says"
    assert "?" in _run("free", *slices[:1]).stdout
    done = _run("free", *slices, busy, words=("--partition-type", "d.example/type"))
    assert "0 of 3 gpu" in done.stdout
    many = _run("free", *(_slice(f"p{at}", pool=f"p{at}") for at in range(60)))
    assert "not shown: 10 pools; --all shows them" in many.stdout


def test_every_table_fits_80_columns() -> None:
    objects = (_slice("a", _GPU, of=2), _slice("b", sharedCounters=_SETS, of=2), _claim("busy", {"device": "gpu-0"}))
    for verb in ("slices", "claims", "free"):
        lines = _run(verb, *objects, width="80").stdout.splitlines()
        assert max(map(len, lines)) <= 80, lines


def test_names_are_bounded_and_no_terminal_obeys_them() -> None:
    name = "\x1b[2J" + "g" * 1_000_000
    objects = (_slice("a", {"name": name, "attributes": {name: {"string": name}}}, pool=name), _claim(name))
    for verb, words in (("slices", ("--devices",)), ("claims", ()), ("free", ())):
        shown = _run(verb, *objects, words=words).stdout
        assert len(shown) < 40_000
        assert "\x1b" not in shown
