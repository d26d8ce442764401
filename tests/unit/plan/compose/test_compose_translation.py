"""Merging of files, and the objects that services become."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.compose import fields, gpu, merge, objects, project, shape
from fairlead.plan.compose.fields import Remarks
from fairlead.plan.compose.project import Project
from fairlead.wire.compose.document import Tagged

_MACHINE = gpu.Machine(total=8, uuids={str(n): f"GPU-{n}" for n in range(8)})


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return merge.services(merge.services({}, shape.service(base, "a")), shape.service(over, "b"))


def test_services_merge_by_the_specification() -> None:
    base = {
        "command": ["a"], "environment": ["A=1", "B=2"], "ports": ["80:80", "81:81"],
        "volumes": ["x:/a", "y:/b"], "dns": "1.1.1.1", "healthcheck": {"test": "x", "retries": 2}, "labels": ["l=1"],
    }  # fmt: skip
    over = {
        "command": ["b", "c"], "environment": {"B": 3}, "ports": ["80:80", "82:82"], "volumes": ["z:/b:ro"],
        "dns": ["1.1.1.1", "2.2.2.2"], "healthcheck": {"test": "y"}, "labels": {"m": True},
    }  # fmt: skip
    found = _merged(base, over)
    assert found["command"] == ["b", "c"]
    assert found["environment"] == {"A": "1", "B": "3"}
    assert [one["published"] for one in found["ports"]] == ["80", "81", "82"]
    assert [(one["source"], one["target"], one["read_only"]) for one in found["volumes"]] == [
        ("x", "/a", False),
        ("z", "/b", True),
    ]
    assert found["dns"] == ["1.1.1.1", "2.2.2.2"]
    assert found["healthcheck"] == {"test": ["CMD-SHELL", "y"], "retries": 2}
    assert found["labels"] == {"l": "1", "m": "true"}


def test_tags_take_away_and_put_in_place() -> None:
    base = {"privileged": True, "ports": ["80:80"], "environment": {"A": "1"}}
    over = {"privileged": Tagged("reset", None), "ports": Tagged("override", ["81:81"])}
    found = _merged(base, over)
    assert "privileged" not in found
    assert [one["published"] for one in found["ports"]] == ["81"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("80", [("", 80, "", "tcp")]),
        ("8000:80", [("", 80, "8000", "tcp")]),
        ("127.0.0.1:8000:80/udp", [("127.0.0.1", 80, "8000", "udp")]),
        ("[::1]:8000:80", [("::1", 80, "8000", "tcp")]),
        ("127.0.0.1::80", [("127.0.0.1", 80, "", "tcp")]),
        ("8000-8001:90-91", [("", 90, "8000", "tcp"), ("", 91, "8001", "tcp")]),
        ("8000-8010:80", [("", 80, "8000-8010", "tcp")]),
    ],
)
def test_ports_have_the_specifications_forms(text: str, wanted: list[tuple[str, int, str, str]]) -> None:
    found = shape.ports([text], "p")
    assert [(one["host_ip"], one["target"], one["published"], one["protocol"]) for one in found] == wanted


@pytest.mark.parametrize("text", ["x", "0:80", "70000:80", "80:80/sctpx", "1-2:1-3", "1-65535:1-65535"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match=r"^p"):
        shape.ports([text], "p")


def _objects(remarks: Remarks | None = None, machine: gpu.Machine = _MACHINE, **services: Any) -> objects.Objects:
    shaped = project.shaped({"services": services}, "x")["services"]
    whole = {name: merge.services({}, one) for name, one in shaped.items()}
    return objects.make(Project(name="lab", services=whole), machine, remarks or Remarks())


def _container(made: objects.Objects, name: str = "web") -> dict[str, Any]:
    found: dict[str, Any] = made.units[name].pods[0]["spec"]["containers"][0]
    return found


_RESERVED = {"driver": "nvidia", "capabilities": ["gpu"]}


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"gpus": "all"}, "8"),
        ({"gpus": [{"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"]}]}, "8"),
        ({"gpus": 2}, "2"),
        ({"gpus": [{"driver": "nvidia", "count": 1}]}, "1"),
        ({"runtime": "nvidia", "environment": {"NVIDIA_VISIBLE_DEVICES": "0,3"}}, "2"),
        ({"devices": ["nvidia.com/gpu=1"]}, "1"),
        ({"deploy": {"resources": {"reservations": {"devices": [{**_RESERVED, "count": "3"}]}}}}, "3"),
        ({"deploy": {"resources": {"reservations": {"devices": [{**_RESERVED, "device_ids": ["0", "GPU-2"]}]}}}}, "2"),
    ],
)
def test_gpus_are_asked_for_in_every_form(asked: dict[str, Any], count: str) -> None:
    made = _objects(web={"image": "x", **asked})
    assert _container(made)["resources"]["limits"] == {"nvidia.com/gpu": count}


def test_devices_of_other_kinds_are_asked_for_by_their_cdi_names() -> None:
    made = _objects(web={"image": "x", "devices": ["lab.example/x=1", "nvidia.com/gpu=1", "lab.example/x=1"]})
    assert made.units["web"].pods[0]["spec"]["machine"] == {"devices": ["lab.example/x=1"]}
    assert _container(made)["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_certain_gpus_are_a_claim_where_the_machine_gives_them_by_claims() -> None:
    machine = gpu.Machine(total=8, uuids=_MACHINE.uuids, by_claims=True)
    made = _objects(machine=machine, web={"image": "x", "gpus": [{"device_ids": ["1"]}]})
    assert _container(made)["resources"] == {"claims": [{"name": "gpus"}]}
    template = next(one for one in made.shared if one["kind"] == "ResourceClaimTemplate")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert '["GPU-1"]' in request["exactly"]["selectors"][0]["cel"]["expression"]


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ({"privileged": True}, "services.web.privileged"),
        ({"cap_add": ["SYS_ADMIN"]}, "services.web.cap_add"),
        ({"devices": ["/dev/dri:/dev/dri"]}, "services.web.devices[0]"),
        ({"devices": ["lab.example/x=1", "amd.com/gpu=0"]}, "services.web.devices[1]"),
        ({"devices": ["lab.example/x=1,nvidia.com/gpu=0"]}, "services.web.devices[0]"),
        ({"pid": "host"}, "services.web.pid"),
        ({"network_mode": "service:db"}, "services.web.network_mode"),
        ({"imagee": "x"}, "services.web.imagee"),
        ({"gpus": [{"device_ids": ["9"]}]}, "services.web.gpus.device_ids"),
        ({"ports": ["80:80"], "scale": 2}, "services.web.ports"),
        ({"build": "."}, ""),
    ],
)
def test_what_a_program_would_miss_is_refused_by_its_path(service: dict[str, Any], path: str) -> None:
    if not path:
        assert _objects(web={**service}).units["web"].image == "localhost/lab-web"
        return
    with pytest.raises(errors.Invalid) as refused:
        _objects(web={"image": "x", **service})
    assert refused.value.message.startswith(f"{path}: ")


def test_resolver_groups_init_and_signal_are_the_pods() -> None:
    service = {
        "image": "x",
        "dns": "10.0.0.53",
        "dns_search": ["lab"],
        "dns_opt": ["ndots:1", "rotate"],
        "group_add": ["44", "video"],
        "init": True,
        "stop_signal": "SIGINT",
        "post_start": [{"command": "true"}],
    }
    spec = _objects(web=service).units["web"].pods[0]["spec"]
    assert spec["dnsPolicy"] == "None"
    options = [{"name": "ndots", "value": "1"}, {"name": "rotate"}]
    assert spec["dnsConfig"] == {"nameservers": ["10.0.0.53"], "searches": ["lab"], "options": options}
    assert (spec["securityContext"], spec["machine"]) == ({"supplementalGroups": [44]}, {"groups": ["video"]})
    assert spec["shareProcessNamespace"] is True
    assert spec["containers"][0]["lifecycle"].keys() == {"postStart", "stopSignal"}


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ({"dns_search": ["lab"]}, "dns_search"),
        ({"dns": ["dns.lab"]}, "dns"),
        ({"group_add": ["--privileged"]}, "group_add[0]"),
        ({"stop_signal": "SIGNOTHING"}, "stop_signal"),
    ],
)
def test_what_no_resolver_group_or_signal_is_is_refused(service: dict[str, Any], path: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        _objects(web={"image": "x", **service})
    assert refused.value.message.startswith(f"services.web.{path}: ")


def test_what_it_does_not_see_is_said() -> None:
    remarks = Remarks()
    _objects(remarks, web={"image": "x", "logging": {"driver": "none"}, "uts": "host"})
    assert [line.partition(": not carried out: ")[0] for line in remarks.left_out] == [
        "services.web.logging",
        "services.web.uts",
    ]


def test_a_circle_and_a_name_that_is_not_there_are_refused() -> None:
    made = Project(name="lab", services={"a": {"depends_on": {"b": {}}}, "b": {"depends_on": {"a": {}}}})
    with pytest.raises(errors.Invalid, match="a circle: a -> b -> a"):
        project.needed(made, ())
    with pytest.raises(errors.Invalid, match="no such service"):
        project.needed(Project(name="lab", services={"a": {"depends_on": {"c": {}}}}), ())


def test_ten_thousand_services_are_refused() -> None:
    with pytest.raises(errors.Invalid, match="10000 services"):
        project.shaped({"services": {f"s{n}": {"image": "x"} for n in range(10_000)}}, "compose.yaml")


def test_no_attribute_stands_in_two_rows_of_the_table() -> None:
    for kind in ("project", "service", "deploy", "build", "device", "network", "networks", "volume"):
        names = [name for name, _, _ in fields.attributes(kind)]
        assert len(names) == len(set(names)) > 0, kind
