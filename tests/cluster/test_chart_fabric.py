"""The chart for NVLink: the Service VM's DaemonSet, what the agent is told of it, and RuntimeClasses with drivers."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from fairlead import settings
from fairlead.cli.admin import manifests
from fairlead.cli.doctor.cluster import fabric
from fairlead.cli.layer.fabric import machine
from fairlead.model.fabric import AGENT_PORT
from fairlead.silicon.fabric import reached
from fairlead.wire.kubernetes import names
from tests import policycel
from tests.cluster.charts import one, pod, render
from tools import render_chart

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

_FOLDER: Final = "/opt/fairlead/fabric"
_VALUES: Final[dict[str, Any]] = {
    "folder": _FOLDER,
    "image": f"{_FOLDER}/image@sha256:{'0' * 64}",
    "emulator": f"{_FOLDER}/qemu",
    "firmware": f"{_FOLDER}/OVMF.fd",
    "memoryMiB": 8192,
    "processors": 4,
    "secretName": "fabric",
    "nodeSelector": {"example.com/nvswitch": "yes"},
}
_NAME: Final = "fabric-machine"


def _with(**more: Any) -> dict[str, Any]:
    return {"fabric": {"machine": {**_VALUES, **more}}}


def _refused(values: tuple[str, ...]) -> str:
    """Return what helm says against these values; empty: it takes them."""
    words = [word for value in values for word in ("--set", value)]
    command = (str(render_chart.helm()), "template", str(manifests.CHART), *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    return done.stderr if done.returncode else ""


def _sets() -> tuple[str, ...]:
    return tuple(f"fabric.machine.{name}={value}" for name, value in _VALUES.items() if not isinstance(value, dict))


def _env(spec: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in spec["containers"][0]["env"] if "value" in item}


def test_without_the_value_there_is_no_machine_and_the_agent_hears_nothing_of_one() -> None:
    found = render()
    assert not [item for item in found if item["metadata"]["name"].endswith(_NAME)]
    agent = pod(found, "DaemonSet", "agent")
    assert "hostPID" not in agent
    assert not [name for name in _env(agent) if name.startswith("FAIRLEAD_FABRIC")]


def test_the_machine_comes_as_one_object_whose_pods_no_update_ends() -> None:
    plain = {f"{item['kind']}/{item['metadata']['name']}" for item in render()}
    found = render(_with())
    assert {f"{item['kind']}/{item['metadata']['name']}" for item in found} - plain == {f"DaemonSet/fairlead-{_NAME}"}
    made = one(found, "DaemonSet", _NAME)
    assert made["spec"]["updateStrategy"] == {"type": "OnDelete"}
    spec = made["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    (container,) = spec["containers"]
    assert not {"livenessProbe", "readinessProbe", "startupProbe", "lifecycle"} & container.keys()
    # doctor and the page find it by this label
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == fabric.COMPONENT


def test_the_machine_has_what_it_needs_of_the_node_and_nothing_more() -> None:
    spec = pod(render(_with()), "DaemonSet", _NAME)
    (container,) = spec["containers"]
    of_node = {item["hostPath"]["path"]: item["hostPath"]["type"] for item in spec["volumes"] if "hostPath" in item}
    assert of_node == {
        _FOLDER: "Directory",
        "/var/lib/fairlead": "DirectoryOrCreate",
        "/dev/vfio": "Directory",
        "/dev/kvm": "CharDevice",
        "/dev/vhost-vsock": "CharDevice",
    }
    mounts = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
    assert mounts.keys() == {item["name"] for item in spec["volumes"]}
    assert all(mounts[item["name"]] == item["hostPath"]["path"] for item in spec["volumes"] if "hostPath" in item)
    assert not {"hostPID", "hostIPC", "hostNetwork", "serviceAccountName", "initContainers"} & spec.keys()
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    amounts = container["resources"]
    assert amounts["requests"]["memory"] == amounts["limits"]["memory"] == "8704Mi"


def test_the_machines_variables_make_the_machine_that_the_values_say(tmp_path: Path) -> None:
    spec = pod(render(_with()), "DaemonSet", _NAME)
    (container,) = spec["containers"]
    assert container["args"] == ["fabric", "machine"]
    loaded = settings.load(flags={}, env=_env(spec), file=None)
    chosen, lease = loaded.fabric, loaded.lease
    assert (chosen.vm_image, chosen.vm_memory_mib, chosen.vm_processors) == (_VALUES["image"], 8192, 4)
    assert (lease.verifier_emulator, lease.verifier_firmware) == (_VALUES["emulator"], _VALUES["firmware"])
    secret = tmp_path / "fabric.secret"
    secret.write_text("s" * 40)
    secret.chmod(0o400)
    here = dataclasses.replace(loaded, fabric=dataclasses.replace(chosen, secret=secret))
    assert machine.compose(here).starts == 0


def test_agent_and_machine_share_one_secret_and_the_agent_finds_the_machine() -> None:
    found = render(_with())
    agent, own = (pod(found, "DaemonSet", name) for name in ("agent", _NAME))
    volumes = [next(item for item in spec["volumes"] if item["name"] == "fabric-secret") for spec in (agent, own)]
    assert volumes[0] == volumes[1]
    assert volumes[0]["secret"]["secretName"] == "fabric"
    assert volumes[0]["secret"]["defaultMode"] == 0o400  # a secret that others may read is refused
    loaded = [settings.load(flags={}, env=_env(spec), file=None) for spec in (agent, own)]
    files = {one.fabric_secret for one in loaded}
    assert len(files) == 1
    for spec in (agent, own):
        mounts = {item["name"]: item["mountPath"] for item in spec["containers"][0]["volumeMounts"]}
        assert str(next(iter(files)).parent) == mounts["fabric-secret"]
    assert reached.agent_of(loaded[0].fabric) == f"nvswitch:{AGENT_PORT}"
    # The agent's container has no folder of the machine: `doctor` in it must not look for an image there.
    assert not loaded[0].fabric.vm_image
    assert agent["hostPID"] is True


def test_the_machine_goes_where_agents_go_that_have_switches() -> None:
    found = render(_with(), {"agent": {"nodeSelector": {"pool": "hgx"}}})
    agent, own = (pod(found, "DaemonSet", name) for name in ("agent", _NAME))
    assert own["affinity"] == agent["affinity"]
    assert agent["nodeSelector"].items() <= own["nodeSelector"].items()
    assert own["nodeSelector"]["example.com/nvswitch"] == "yes"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ((), ""),
        (("fabric.machine.folder=",), "fabric.machine.folder is empty"),
        (("fabric.machine.image=",), "fabric.machine.image is empty"),
        (("fabric.machine.secretName=",), "fabric.machine.secretName is empty"),
        (("fabric.machine.emulator=/usr/bin/qemu",), "is not in fabric.machine.folder"),
        (("fabric.machine.image=/opt/fairlead/fabric/image",), "image"),
        (("fabric.machine.memoryMiB=0",), "memoryMiB"),
        (("fabric.machine.secretName=A B",), "secretName"),
        (("fabric.machine.disk=/x",), "disk"),
        (("agent.privileged=false",), "agent.privileged=true"),
        (("agent.enabled=false",), "agent.enabled=true"),
        (("silicon.simulate=h100x8",), "real silicon"),
        (("agent.settings.fabric\\.vm_namespace=fabric",), "one machine has the NVSwitches"),
        (("agent.settings.fabric\\.vm_image=/x",), "both given"),
        (("agent.settings.fabric\\.secret=/x",), "both given"),
        (("agent.settings.fabric\\.guest_driver=580.95.05",), ""),
    ],
)
def test_values_of_the_machine_without_effect_are_refused_by_name(changes: tuple[str, ...], named: str) -> None:
    said = _refused((*_sets(), *changes))
    assert bool(said) is bool(named), said
    assert named in said


# settings of the agent


def test_settings_of_the_fabric_reach_the_agent_as_all_others_do() -> None:
    chosen = {"node.fabric": "on", "fabric.agent": "3:6667", "fabric.guest_driver": "580.95.05", "fabric.timeout_s": 5}
    spec = pod(render({"agent": {"settings": chosen}}), "DaemonSet", "agent")
    loaded = settings.load(flags={}, env=_env(spec), file=None)
    found = loaded.fabric
    assert (found.agent, found.guest_driver, found.timeout_s) == ("3:6667", "580.95.05", 5.0)
    assert "hostPID" not in spec


@pytest.mark.parametrize("chosen", [{"fabric.agent": "nvswitch:6667"}, {"fabric.vm_image": f"/x@sha256:{'0' * 64}"}])
def test_an_agent_that_looks_for_the_service_vm_sees_the_nodes_processes(chosen: dict[str, str]) -> None:
    assert pod(render({"agent": {"settings": chosen}}), "DaemonSet", "agent")["hostPID"] is True


@pytest.mark.parametrize(
    "value",
    ["fabric\\.vm_start_s=soon", "fabric\\.agnet=x", "fabric\\.vm_processors=many", "fabrics\\.agent=x"],
)
def test_a_setting_of_the_fabric_that_would_end_the_agent_is_refused(value: str) -> None:
    assert value.partition("=")[0].replace("\\", "") in _refused((f"agent.settings.{value}",))


# who may ask for NVSwitches

_SWITCH: Final = "nvidia.com/nvswitch"


def _asking(resource: str, kind: str = "containers") -> dict[str, Any]:
    """Return a pod whose second container asks for a resource."""
    plain = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1"}}}
    second = {"name": "fm", "image": "x", "resources": {"limits": {resource: "4"}, "requests": {resource: "4"}}}
    spec: dict[str, Any] = {"containers": [plain]}
    spec.setdefault(kind, []).append(second)
    return {"metadata": {"name": "one"}, "spec": spec}


def _said(chosen: dict[str, Any], pod_: dict[str, Any], namespace: str) -> list[str]:
    (policy,) = (
        item["spec"]
        for item in render({"agent": {"settings": chosen}})
        if item["kind"] == "ValidatingAdmissionPolicy" and item["metadata"]["name"].endswith("-switches")
    )
    assert policy["failurePolicy"] == "Fail"
    return policycel.refusals(policy, pod_, request={"namespace": namespace})


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
@pytest.mark.parametrize("namespace", ["default", "kube-system", "fabric2", "fab"])
def test_a_pod_of_another_namespace_does_not_keep_switches_from_the_service_vm(kind: str, namespace: str) -> None:
    chosen = {"fabric.vm_namespace": "fabric"}
    (said,) = _said(chosen, _asking(_SWITCH, kind), namespace)
    assert f"asks for {_SWITCH}, which pods of the namespace fabric alone may have" in said
    assert _said(chosen, _asking(_SWITCH, kind), "fabric") == []
    assert _said(chosen, _asking("nvidia.com/gpu", kind), namespace) == []


def test_the_policy_judges_by_the_name_that_the_agents_give_switches() -> None:
    chosen = {
        "fabric.vm_namespace": "fabric",
        "node.vfio_names": "kata",
        "node.vfio_switch_alias": "nvswitch-h100",
    }
    (said,) = _said(chosen, _asking("nvidia.com/nvswitch-h100"), "default")
    assert "asks for nvidia.com/nvswitch-h100" in said
    assert _said(chosen, _asking(_SWITCH), "default") == [], "another plugin's, on other nodes"


def test_where_no_pod_is_offered_switches_there_is_no_such_policy() -> None:
    offered = {"agent": {"settings": {"fabric.vm_namespace": "fabric"}}}
    off = {"admission": {"switches": {"enabled": False}}}
    names = [{item["metadata"]["name"] for item in render(*given)} for given in ((), (offered, off), (offered,))]
    assert ["fairlead-switches" in found for found in names] == [False, False, True]
    (bound,) = (
        item
        for item in render(offered)
        if item["kind"] == "ValidatingAdmissionPolicyBinding" and item["metadata"]["name"] == "fairlead-switches"
    )
    assert bound["spec"] == {"policyName": "fairlead-switches", "validationActions": ["Deny"]}, "in every namespace"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("fabric\\.vm_namespace=a'b",), 'fabric.vm_namespace "a\'b" is no name of a namespace'),
        (("fabric\\.vm_namespace=Fabric",), 'fabric.vm_namespace "Fabric"'),
        (
            ("fabric\\.vm_namespace=fabric", "node\\.vfio_switch_alias=nvswitch'"),
            'node.vfio_switch_alias "nvswitch\'"',
        ),
        (("fabric\\.vm_namespace=fabric", "node\\.vfio_switch_alias=pgpu"), 'node.vfio_switch_alias "pgpu"'),
    ],
)
def test_a_name_that_would_break_the_policy_is_refused(changes: tuple[str, ...], named: str) -> None:
    assert named in _refused(tuple(f"agent.settings.{change}" for change in changes))


# RuntimeClasses


def test_each_size_of_machine_says_its_driver_where_that_is_given() -> None:
    plain = render({"runtimeClass": {"kata": {"create": True}}})
    assert not any("annotations" in item["metadata"] for item in plain if item["kind"] == "RuntimeClass")
    found = render({"runtimeClass": {"kata": {"create": True, "guestDriver": "580.95.05"}}})
    classes = [item for item in found if item["kind"] == "RuntimeClass"]
    assert len(classes) == 4
    assert all(item["metadata"]["annotations"] == {names.GUEST_DRIVER: "580.95.05"} for item in classes)


@pytest.mark.parametrize("version", ["580", "v580.95.05", "580.95.05 ", "580.95.05.1.1"])
def test_a_driver_that_is_no_version_is_refused(version: str) -> None:
    assert "guestDriver" in _refused((f"runtimeClass.kata.guestDriver={version}",))
