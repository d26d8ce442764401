"""Injection: the reference library's semantics row by row, and the points where ours is safer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_cdi import errors, inject, parse
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node

HOST = {
    "/dev/null": node.HostNode("c", 1, 3, 0o666),
    "/dev/tty9": node.HostNode("c", 4, 9, 0o620),
    "/dev/sda": node.HostNode("b", 8, 0, 0o660),
    "/dev/pipe": node.HostNode("p", mode=0o600),
    "/dev/link": node.HostNode("link"),
    "/dev/file": node.HostNode("other", mode=0o644),
    "/dev/nvidia0": node.HostNode("c", 195, 0, 0o666),
}


def stat(path: str) -> node.HostNode | None:
    return HOST.get(path)


def asked(*devices: dict[str, Any], common: dict[str, Any] | None = None, path: str = "/s.json") -> list[cdi.Resolved]:
    """Return devices d0, d1 … of one spec file."""
    parts = tuple(cdi.Device(name=f"d{n}", edits=parse.build_edits(found)) for n, found in enumerate(devices))
    spec = cdi.Spec(cdi_version="1.1.0", kind="vv.com/cc", devices=parts, edits=parse.build_edits(common or {}))
    file = cdi.SpecFile(path=path, priority=0, spec=spec)
    return [cdi.Resolved(name=f"vv.com/cc={part.name}", device=part, file=file) for part in parts]


def injected(config: dict[str, Any], *devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return inject.inject(config, asked(*devices, **more), stat=stat)


def with_node(config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return injected(config or {}, {"deviceNodes": [fields]})


def test_nothing_asked_for_changes_nothing() -> None:
    assert inject.inject({"ociVersion": "1.0.2"}, [], stat=stat) == {"ociVersion": "1.0.2"}


def test_env_is_replaced_in_place_and_appended_and_the_last_one_wins() -> None:
    config = {"process": {"env": ["A=1", "B=2", "A=3"]}}
    assert injected(config, {"env": ["A=x", "C=1"]}, {"env": ["C=2"]})["process"]["env"] == ["A=x", "B=2", "C=2"]


def test_edits_of_the_file_come_once_and_before_its_devices() -> None:
    found = injected({}, {"env": ["A=0"]}, {"env": ["A=1"]}, common={"env": ["A=file", "F=1"]})
    assert found["process"]["env"] == ["A=1", "F=1"]


def test_a_node_takes_what_is_not_declared_from_the_host() -> None:
    found = with_node(path="/dev/c", hostPath="/dev/tty9")
    assert found["linux"]["devices"] == [{"path": "/dev/c", "type": "c", "major": 4, "minor": 9, "fileMode": 0o620}]
    assert found["linux"]["resources"]["devices"] == [
        {"allow": True, "type": "c", "major": 4, "minor": 9, "access": "rwm"}
    ]


def test_declared_mode_owner_and_access_stand() -> None:
    found = with_node(path="/dev/null", fileMode=0o600, uid=7, gid=0, permissions="r")
    (device,) = found["linux"]["devices"]
    assert (device["fileMode"], device["uid"], device["gid"]) == (0o600, 7, 0)
    assert found["linux"]["resources"]["devices"][0]["access"] == "r"


def test_owners_default_to_the_containers_user_unless_that_is_root() -> None:
    (device,) = with_node({"process": {"user": {"uid": 5, "gid": 0}}}, path="/dev/null")["linux"]["devices"]
    assert device["uid"] == 5
    assert "gid" not in device


def test_a_pipe_gets_no_numbers_and_no_rule() -> None:
    found = with_node(path="/dev/pipe")
    assert found["linux"]["devices"] == [{"path": "/dev/pipe", "type": "p", "fileMode": 0o600}]
    assert "resources" not in found["linux"]


def test_a_block_device_gets_a_block_rule() -> None:
    assert with_node(path="/dev/sda")["linux"]["resources"]["devices"][0]["type"] == "b"


@pytest.mark.parametrize(
    "fields",
    [{"type": "c", "major": 9, "minor": 9}, {"type": "p"}, {"type": "b", "major": 9}, {"type": "u", "major": 9}],
)
def test_a_fully_declared_node_may_be_missing_on_the_host(fields: dict[str, Any]) -> None:
    assert with_node(path="/dev/nope", **fields)["linux"]["devices"][0]["path"] == "/dev/nope"


@pytest.mark.parametrize("fields", [{}, {"major": 9, "minor": 9}, {"type": "c"}, {"type": "c", "minor": 9}])
def test_any_other_missing_node_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(errors.HostError, match="/dev/nope is not on this host"):
        with_node(path="/dev/nope", **fields)


@pytest.mark.parametrize("path", ["/dev/link", "/dev/file"])
def test_what_is_no_device_node_is_refused(path: str) -> None:
    with pytest.raises(errors.DocumentError, match=path):
        with_node(path=path)


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(errors.DocumentError, match="not absolute"):
        with_node(path="dev/null")


@pytest.mark.parametrize("fields", [{"type": "b"}, {"type": "p"}])
def test_another_type_than_the_hosts_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(errors.DocumentError, match='the host has "c"'):
        with_node(path="/dev/null", **fields)


@pytest.mark.parametrize("fields", [{"type": "c", "major": 509, "minor": 3}, {"major": 509, "minor": 3}])
def test_other_numbers_than_the_hosts_are_refused_with_both_shown(fields: dict[str, Any]) -> None:
    with pytest.raises(errors.DocumentError) as caught:
        with_node(path="/dev/null", **fields)
    assert "509:3" in caught.value.message
    assert "1:3" in caught.value.message
    assert caught.value.reason == "DeviceNodeStale"


def test_a_minor_without_a_major_is_not_declared() -> None:
    assert with_node(path="/dev/null", minor=99)["linux"]["devices"][0]["minor"] == 3


def test_nodes_are_read_anew_at_every_injection() -> None:
    resolved = asked({"deviceNodes": [{"path": "/dev/uvm"}]})
    numbers = []
    for major in (508, 511):
        found = inject.inject({}, resolved, stat=lambda _, major=major: node.HostNode("c", major, 0, 0o666))  # type: ignore[misc]
        numbers.append(found["linux"]["devices"][0]["major"])
    assert numbers == [508, 511]


HELD = {"path": "/dev/c", "type": "c", "major": 4, "minor": 10}
HELD_RULE = {"allow": True, "type": "c", "major": 4, "minor": 10, "access": "rwm"}
DENY_ALL = {"allow": False, "access": "rwm"}


def held(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"linux": {"devices": [HELD, *devices], "resources": {"devices": [DENY_ALL, HELD_RULE]}}}


def test_a_replaced_node_takes_its_cgroup_rule_with_it() -> None:
    found = with_node(held(), path="/dev/c", hostPath="/dev/null")["linux"]
    assert [device["major"] for device in found["devices"]] == [1]
    assert HELD_RULE not in found["resources"]["devices"]
    assert found["resources"]["devices"][0] == DENY_ALL


def test_the_rule_stays_while_another_node_needs_it() -> None:
    found = with_node(held(HELD | {"path": "/dev/d"}), path="/dev/c", hostPath="/dev/null")["linux"]
    assert HELD_RULE in found["resources"]["devices"]


def test_of_two_nodes_at_one_path_the_last_one_stands_and_the_other_is_not_allowed() -> None:
    found = injected({}, {"deviceNodes": [{"path": "/dev/c", "hostPath": path} for path in ("/dev/sda", "/dev/null")]})
    assert [(rule["type"], rule["major"]) for rule in found["linux"]["resources"]["devices"]] == [("c", 1)]


def test_a_node_given_again_with_less_access_has_less() -> None:
    first = with_node(path="/dev/null")
    again = with_node(first, path="/dev/null", permissions="r")
    assert [rule["access"] for rule in again["linux"]["resources"]["devices"]] == ["r"]


def test_a_grant_comes_after_every_denial() -> None:
    grant = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}
    config = {"linux": {"resources": {"devices": [grant, DENY_ALL]}}}
    assert with_node(config, path="/dev/null")["linux"]["resources"]["devices"] == [DENY_ALL, grant]


def test_mounts_replace_their_namesakes_and_parents_come_first() -> None:
    config = {"mounts": [{"destination": "/a/b/", "source": "old"}, {"destination": "/proc", "type": "proc"}]}
    wanted = [{"hostPath": "/h", "containerPath": path, "options": ["rbind"]} for path in ("/a/b/c", "/a/b", "/", "/z")]
    found = injected(config, {"mounts": wanted})["mounts"]
    assert [mount["destination"] for mount in found] == ["/", "/proc", "/z", "/a/b", "/a/b/c"]
    assert found[3] == {"destination": "/a/b", "source": "/h", "options": ["rbind"]}


def test_a_mount_keeps_its_type() -> None:
    wanted = {"hostPath": "tmpfs", "containerPath": "/scratch", "type": "tmpfs", "options": ["size=1m"]}
    assert injected({}, {"mounts": [wanted]})["mounts"] == [
        {"destination": "/scratch", "source": "tmpfs", "type": "tmpfs", "options": ["size=1m"]}
    ]


def test_hooks_go_to_their_stages_once() -> None:
    hook = {"hookName": "createContainer", "path": "/h", "args": ["h", "x"], "env": ["A=b"], "timeout": 3}
    found = injected({"hooks": {"poststop": [{"path": "/p"}]}}, {"hooks": [hook]}, {"hooks": [hook]})
    assert found["hooks"] == {
        "poststop": [{"path": "/p"}],
        "createContainer": [{"path": "/h", "args": ["h", "x"], "env": ["A=b"], "timeout": 3}],
    }


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(errors.DocumentError, match="nope"):
        injected({}, {"hooks": [{"hookName": "nope", "path": "/h"}]})


def test_rdt_is_replaced_as_a_whole() -> None:
    config = {"linux": {"intelRdt": {"closID": "old", "l3CacheSchema": "x"}}}
    found = injected(config, {"intelRdt": {"closID": "new", "schemata": [], "enableMonitoring": True}})
    assert found["linux"]["intelRdt"] == {"closID": "new", "schemata": [], "enableMonitoring": True}


def test_a_node_without_access_comes_without_a_rule() -> None:
    found = with_node(path="/dev/null", permissions="none")
    assert [device["path"] for device in found["linux"]["devices"]] == ["/dev/null"]
    assert "resources" not in found["linux"]


def test_a_node_without_access_takes_the_rule_of_the_node_that_it_replaces() -> None:
    first = with_node(path="/dev/null", permissions="rw")
    assert with_node(first, path="/dev/null", permissions="none")["linux"]["resources"]["devices"] == []


def test_gids_are_added_once_and_never_zero() -> None:
    config = {"process": {"user": {"uid": 0, "gid": 0, "additionalGids": [4]}}}
    assert injected(config, {"additionalGids": [0, 4, 44, 44]})["process"]["user"]["additionalGids"] == [4, 44]


def test_network_devices_are_set_by_host_name() -> None:
    config = {"linux": {"netDevices": {"eth1": {"name": "a"}}}}
    found = injected(config, {"netDevices": [{"hostInterfaceName": "eth0", "name": "b"}]})
    assert found["linux"]["netDevices"] == {"eth1": {"name": "a"}, "eth0": {"name": "b"}}


@pytest.mark.parametrize(
    "config",
    [
        {"process": []},
        {"process": {"env": {}}},
        {"process": {"user": 1}},
        {"linux": 1},
        {"linux": {"devices": {}}},
        {"mounts": {}},
        {"hooks": []},
        {"hooks": {"prestart": {}}},
    ],
)
def test_a_misshapen_runtime_spec_is_refused(config: dict[str, Any]) -> None:
    everything = {
        "env": ["A=b"],
        "deviceNodes": [{"path": "/dev/null"}],
        "mounts": [{"hostPath": "/a", "containerPath": "/b"}],
        "hooks": [{"hookName": "prestart", "path": "/x"}],
    }
    with pytest.raises(errors.DocumentError, match="runtime spec"):
        injected(config, everything)


def test_nulls_in_the_runtime_spec_are_empty_sections() -> None:
    found = injected(
        {"process": None, "linux": {"devices": None}}, {"env": ["A=b"], "deviceNodes": [{"path": "/dev/null"}]}
    )
    assert found["process"] == {"env": ["A=b"]}
    assert len(found["linux"]["devices"]) == 1


def test_unknown_fields_are_carried_through() -> None:
    config = {"new": {"x": 1}, "process": {"future": [1], "env": []}, "linux": {"other": {"y": 2}}}
    found = injected(config, {"env": ["A=b"], "deviceNodes": [{"path": "/dev/null"}]})
    assert (found["new"], found["process"]["future"], found["linux"]["other"]) == ({"x": 1}, [1], {"y": 2})


def test_edits_without_a_file_are_injected_alike() -> None:
    wanted = parse.build_edits({"env": ["A=b"]})
    assert inject.inject_edits({}, [("us", wanted)], stat=stat) == {"process": {"env": ["A=b"]}}


def test_explain_tells_every_change_and_who_asked() -> None:
    resolved = asked(
        {"env": ["A=2"], "deviceNodes": [{"path": "/dev/c", "hostPath": "/dev/null"}]}, common={"env": ["N=1"]}
    )
    config = held() | {"process": {"env": ["A=1", "N=1"]}}
    changes = inject.explain(config, resolved, stat=stat)
    assert [(c.action, c.what, c.subject, c.source) for c in changes] == [
        ("changed", "env", "A", "vv.com/cc=d0"),
        ("changed", "device", "/dev/c", "vv.com/cc=d0"),
        ("added", "rule", "c 1:3 rwm", "vv.com/cc=d0"),
        ("removed", "rule", "c 4:10 rwm", "vv.com/cc=d0"),
    ]


ENV = st.builds("{}={}".format, st.sampled_from("ABC"), st.sampled_from(["", "x"]))
NODES = st.builds(
    lambda host_path, path, access: {"hostPath": host_path, "path": path or host_path, "permissions": access},
    st.sampled_from(["/dev/null", "/dev/tty9", "/dev/sda", "/dev/pipe"]),
    st.sampled_from(["", "/dev/c0", "/dev/c1"]),
    st.sampled_from(["", "r", "rw", "none"]),
)
MOUNTS = st.builds(lambda path: {"hostPath": "/h", "containerPath": path}, st.sampled_from(["/a", "/a/b", "/c", "/"]))
HOOKS = st.builds(
    lambda stage, path: {"hookName": stage, "path": path},
    st.sampled_from(["prestart", "poststop"]),
    st.sampled_from("xy"),
)
EDITS = st.fixed_dictionaries(
    {},
    optional={
        "env": st.lists(ENV, max_size=3),
        "deviceNodes": st.lists(NODES, max_size=3),
        "mounts": st.lists(MOUNTS, max_size=3),
        "hooks": st.lists(HOOKS, max_size=2),
        "additionalGids": st.lists(st.integers(0, 3), max_size=3),
        "intelRdt": st.just({"closID": "x"}),
    },
)
CONFIGS = st.builds(
    lambda env, user: (
        held() | {"process": {"env": env, "user": user}, "mounts": [{"destination": "/a/b", "source": "s"}]}
    ),
    st.lists(ENV, max_size=3),
    st.sampled_from([{}, {"uid": 5, "gid": 6}]),
)


@settings(max_examples=100)
@given(CONFIGS, st.lists(EDITS, max_size=3))
def test_injecting_twice_is_injecting_once_and_leaves_the_original_alone(
    config: dict[str, Any], wanted: list[dict[str, Any]]
) -> None:
    before = copy.deepcopy(config)
    resolved = asked(*wanted)
    once = inject.inject(config, resolved, stat=stat)
    kept = copy.deepcopy(once)
    assert inject.inject(once, resolved, stat=stat) == once
    assert (config, once) == (before, kept)


@settings(max_examples=100)
@given(CONFIGS, st.lists(EDITS, max_size=3))
def test_every_node_is_there_once_and_allowed(config: dict[str, Any], wanted: list[dict[str, Any]]) -> None:
    linux = inject.inject(config, asked(*wanted), stat=stat)["linux"]
    paths = [device["path"] for device in linux["devices"]]
    assert len(set(paths)) == len(paths)
    allowed = {(r.get("type"), r.get("major"), r.get("minor")) for r in linux["resources"]["devices"] if r["allow"]}
    without = {n["path"] for edits in wanted for n in edits.get("deviceNodes", ()) if n["permissions"] == "none"}
    needed = {
        (d["type"], d.get("major"), d.get("minor"))
        for d in linux["devices"]
        if d["type"] != "p" and d["path"] not in without
    }
    assert needed <= allowed
