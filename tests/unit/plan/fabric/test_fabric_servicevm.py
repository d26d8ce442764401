"""A Service VM as a libvirt domain and as a pod: every switch at its real address, and nothing else of the machine."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.fabric import servicevm
from fairlead.plan.pod import affinity
from fairlead.wire.kubernetes import core

VM = servicevm.ServiceVM(name="fm", functions=("0000:40:00.0", "10001:41:1f.7"), switches=2)


def test_the_domain_has_each_function_on_a_root_port_of_its_own_and_no_network() -> None:
    root = ElementTree.fromstring(servicevm.domain(VM, disk='/var/lib/<fm>&".qcow2', cid=3))  # noqa: S314 - our own
    devices = root.find("devices")
    assert devices is not None
    given = devices.findall("hostdev")
    assert [one.get("managed") for one in given] == ["no", "no"]
    sources = [one.find("source/address") for one in given]
    assert [dict(one.attrib) for one in sources if one is not None] == [
        {"domain": "0x0000", "bus": "0x40", "slot": "0x00", "function": "0x0"},
        {"domain": "0x10001", "bus": "0x41", "slot": "0x1f", "function": "0x7"},
    ]
    ports = [one.get("index") for one in devices.findall("controller") if one.get("model") == "pcie-root-port"]
    places = [one.find("address") for one in given]
    assert [str(int(str(one.get("bus")), 16)) for one in places if one is not None] == ports == ["1", "2"]
    source = devices.find("disk/source")
    assert source is not None
    assert source.get("file") == '/var/lib/<fm>&".qcow2'
    assert devices.find("interface") is None
    cid = devices.find("vsock/cid")
    assert cid is not None
    assert cid.attrib == {"auto": "no", "address": "3"}


def test_the_domains_firmware_starts_what_nobody_signed_whatever_the_hosts_order_of_firmware() -> None:
    root = ElementTree.fromstring(servicevm.domain(VM, disk="/d", cid=3))  # noqa: S314 - our own
    features = {one.get("name"): one.get("enabled") for one in root.findall("os/firmware/feature")}
    assert features == {"secure-boot": "no"}
    assert [one.attrib for one in root.findall("os/loader")] == [{"stateless": "no"}], "UEFI keeps what it boots"


def test_the_pod_asks_for_all_switches_and_serves_by_vsock_with_a_mounted_secret() -> None:
    made = servicevm.pod(VM, node="n1", namespace="fabric", image="reg/fairlead:1", runtime_class="kata")
    (container,) = made["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/nvswitch"] == "2"
    other = {"resource": "nvidia.com/nvswitch-h100", "node": "n1", "namespace": "f", "image": "i"}
    limits = servicevm.pod(VM, runtime_class="kata", **other)["spec"]["containers"][0]["resources"]["limits"]
    assert {name for name in limits if "/" in name} == {"nvidia.com/nvswitch-h100"}
    assert container["command"][-1] == "4294967295:6667"
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert container["env"][0]["value"].startswith(mounted["secret"])
    assert made["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"switches": 0}, "FabricVMEmpty"),
        ({"name": "a b"}, "FabricVMInvalid"),
        ({"name": "-x"}, "FabricVMInvalid"),
        ({"memory_mib": 1}, "FabricVMInvalid"),
        ({"processors": 0}, "FabricVMInvalid"),
        ({"functions": ("nonsense",)}, "FabricVMInvalid"),
    ],
)
def test_what_no_machine_is_made_of_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        servicevm.domain(dataclasses.replace(VM, **changes), disk="/d", cid=3)  # type: ignore[arg-type]
    assert caught.value.reason == reason


@pytest.mark.parametrize(("disk", "cid"), [("relative", 3), ("/a\0b", 3), ("/d", 2), ("/d", 2**32 - 1)])
def test_a_disk_and_a_context_id_are_real_ones(disk: str, cid: int) -> None:
    with pytest.raises(errors.Invalid):
        servicevm.domain(VM, disk=disk, cid=cid)


_LONGEST = ".".join(["n" * 63, "o" * 63, "d" * 63, "e" * 61])


@pytest.mark.parametrize("node", ["n1", "a.b-c", _LONGEST])
def test_the_pod_goes_to_its_node_however_long_its_name_is_and_to_no_other(node: str) -> None:
    made = servicevm.pod(VM, node=node, namespace="fabric", image="i", runtime_class="kata")
    assert "nodeSelector" not in made["spec"]
    # As it crosses an API server, so that a field of another name would be lost here.
    read = msgspec.json.decode(msgspec.json.encode(made), type=core.Pod)
    wanted = affinity.of_pod(read.spec)
    assert list(affinity.problems(read.spec)) == []
    assert affinity.is_allowed({}, wanted, name=node, labels={"kubernetes.io/hostname": "another"})
    assert not affinity.is_allowed({}, wanted, name=f"{node[:-1]}z", labels={"kubernetes.io/hostname": node})


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "A"},
        {"namespace": "n" * 64},
        {"namespace": "a.b"},
        {"node": "../x"},
        {"node": f"{_LONGEST}s"},
        {"node": "a..b"},
        {"node": "n\0"},
        {"runtime_class": ""},
        {"runtime_class": "r" * 254},
        {"image": "a b"},
        {"image": ""},
    ],
)
def test_names_of_a_pod_are_checked_before_it_is_printed(wrong: dict[str, str]) -> None:
    given = {"node": "n", "namespace": "fabric", "image": "i", "runtime_class": "kata", **wrong}
    with pytest.raises(errors.Invalid):
        servicevm.pod(VM, **given)
