"""From a pod and its plugins' answers to what the engine creates: pure, and the allocation has the last word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.engine.port import Bind, ContainerSpec, NetworkMode, Port
from fairlead.node.kubelet import spec
from fairlead.node.kubelet.devices.checkpoint import Grant
from fairlead.plan.pod.values import secret
from fairlead.serve.admission import request as submission
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.proto import deviceplugin_pb2 as pb

_WHO = spec.Identity(node="here", home="home-1")
_UID = "0d3b5f4e-1111-2222-3333-444455556666"


def _pod(container: dict[str, Any] | None = None, **more: Any) -> core.Pod:
    item = {"name": "main", "image": "localhost/cuda", **(container or {})}
    return core.Pod(
        metadata=meta.ObjectMeta(name="train", namespace="team", uid=_UID),
        spec=msgspec.convert({"containers": [item], **more}, core.PodSpec),
    )


def _grant(resource: str = "nvidia.com/gpu", ids: tuple[str, ...] = ("g0",), **answer: Any) -> Grant:
    response = pb.ContainerAllocateResponse(**answer).SerializeToString()
    return Grant(pod_uid=_UID, container="main", resource=resource, device_ids=ids, response=response)


def _made(pod: core.Pod, *grants: Grant, network_of: str | None = None, **volumes: Path) -> ContainerSpec:
    item = pod.spec.containers[0]
    names = spec.cdi_names(item, grants, has_variants=False)
    return spec.container_spec(
        pod, item, 2, identity=_WHO, grants=grants, volumes=volumes, network_of=network_of, cdi_devices=names
    )


def test_a_container_is_named_by_pod_container_uid_and_attempt() -> None:
    made = _made(_pod())
    assert made.name == "fl-train-main-0d3b5f4e1111-2"
    assert (made.image, made.hostname, made.network_of) == ("localhost/cuda", "train", None)


def test_names_stay_within_what_engines_take_and_differ_by_attempt() -> None:
    long = core.Pod(metadata=meta.ObjectMeta(name="a" * 253, uid=_UID))
    names = {spec.engine_name(long, "b" * 63, attempt) for attempt in range(3)}
    assert len(names) == 3
    assert max(map(len, names)) <= 253


def test_labels_say_whose_it_is_and_what_it_holds_even_without_any_checkpoint() -> None:
    labels = _made(_pod(), _grant("example.com/gpu", ("g1", "g0")), _grant("example.com/nic", ("n0",))).labels
    assert (labels[names.POD_UID], labels[names.POD_NAME], labels[names.POD_NAMESPACE]) == (_UID, "train", "team")
    assert (labels[names.CONTAINER_NAME], labels[names.ATTEMPT]) == ("main", "2")
    assert (labels[names.NODE], labels[names.HOME]) == ("here", "home-1")
    assert json.loads(labels[names.DEVICES]) == {"example.com/gpu": ["g1", "g0"], "example.com/nic": ["n0"]}


def test_the_plugins_answer_becomes_devices_mounts_and_variables() -> None:
    grant = _grant(
        envs={"NVIDIA_VISIBLE_DEVICES": "void"},
        mounts=[pb.Mount(host_path="/h", container_path="/c", read_only=True)],
        devices=[pb.DeviceSpec(host_path="/dev/x", container_path="/dev/y", permissions="rw")],
        cdi_devices=[pb.CDIDevice(name="nvidia.com/gpu=0"), pb.CDIDevice(name="nvidia.com/gpu=1")],
    )
    made = _made(_pod(), grant)
    assert made.cdi_devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert made.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert made.binds == (Bind(host_path="/h", container_path="/c", is_read_only=True),)
    assert made.device_nodes == (("/dev/x", "/dev/y", "rw"),)


def test_cdi_names_come_by_field_and_by_annotation_each_once() -> None:
    answer = pb.ContainerAllocateResponse(
        cdi_devices=[pb.CDIDevice(name="a.com/x=0")],
        annotations={"cdi.k8s.io/b": "a.com/x=1, a.com/x=2", "cdi.k8s.io/a": "a.com/x=0", "other": "a.com/x=9"},
    )
    assert deviceplugin.cdi_names(answer) == ("a.com/x=0", "a.com/x=1", "a.com/x=2")


def test_the_allocation_overrides_what_the_pods_author_wrote() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "MODE", "value": "fast"}]
    grant = _grant(envs={"NVIDIA_VISIBLE_DEVICES": "void"}, cdi_devices=[pb.CDIDevice(name="nvidia.com/gpu=0")])
    made = _made(_pod({"env": env}), grant)
    assert made.env == {"NVIDIA_VISIBLE_DEVICES": "void", "MODE": "fast"}


def test_answers_of_several_resources_are_one() -> None:
    grants = (
        _grant(envs={"A": "1"}, cdi_devices=[pb.CDIDevice(name="a.com/x=0")]),
        _grant("b.com/y", envs={"B": "2"}, cdi_devices=[pb.CDIDevice(name="b.com/y=0")]),
    )
    made = _made(_pod(), *grants)
    assert (made.env, made.cdi_devices) == ({"A": "1", "B": "2"}, ("a.com/x=0", "b.com/y=0"))


@pytest.mark.parametrize(
    ("limits", "cpu", "memory_bytes"),
    [
        ({}, None, None),
        ({"cpu": "500m", "memory": "1Gi"}, 0.5, 2**30),
        ({"cpu": 2, "memory": "1.5"}, 2.0, 2),
        ({"cpu": 0.25}, 0.25, None),
    ],
)
def test_limits_are_cpus_and_whole_bytes(limits: dict[str, Any], cpu: float | None, memory_bytes: int | None) -> None:
    made = _made(_pod({"resources": {"limits": limits}}))
    assert (made.cpu_limit, made.memory_limit_bytes) == (cpu, memory_bytes)


@pytest.mark.parametrize(
    ("pod", "container", "user"),
    [
        (None, None, None),
        ({"runAsUser": 0}, None, "0"),
        ({"runAsUser": 1, "runAsGroup": 2}, None, "1:2"),
        ({"runAsUser": 1}, {"runAsUser": 3, "runAsGroup": 4}, "3:4"),
        ({"runAsUser": 1, "runAsGroup": 2}, {"runAsUser": 3}, "3:2"),
        ({"runAsUser": 1}, {"runAsGroup": 4}, "1:4"),
    ],
)
def test_the_user_is_the_containers_or_the_pods_field_by_field(
    pod: dict[str, int] | None, container: dict[str, int] | None, user: str | None
) -> None:
    made = _made(_pod({"securityContext": container}, securityContext=pod))
    assert made.user == user


def test_what_a_security_context_takes_away_is_taken_away() -> None:
    context = {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        "privileged": True,
    }
    made = _made(_pod({"securityContext": context}))
    assert (made.is_root_read_only, made.may_gain_privileges, made.dropped_capabilities) == (True, False, ("ALL",))
    plain = _made(_pod())
    assert (plain.is_root_read_only, plain.may_gain_privileges, plain.dropped_capabilities) == (False, True, ())


@pytest.mark.parametrize(
    ("pod", "container", "words"),
    [
        ({"runAsNonRoot": True}, None, "states no runAsUser"),
        ({"runAsNonRoot": True, "runAsUser": 0}, None, "runs as root"),
        ({"runAsUser": 1000}, {"runAsNonRoot": True, "runAsUser": 0}, "runs as root"),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, ""),
        ({"runAsNonRoot": True, "runAsUser": 1000}, None, ""),
    ],
)
def test_who_may_not_be_root_is_not_started_as_root(
    pod: dict[str, Any], container: dict[str, Any] | None, words: str
) -> None:
    judged = _pod({"securityContext": container}, securityContext=pod)
    if not words:
        assert _made(judged).name
        return
    with pytest.raises(errors.Invalid, match=words) as refused:
        _made(judged)
    assert refused.value.reason == "CreateContainerConfigError"


def test_volumes_are_mounted_where_the_container_says() -> None:
    mounts = [{"name": "data", "mountPath": "/data", "readOnly": True}, {"name": "tmp", "mountPath": "/tmp"}]
    made = _made(_pod({"volumeMounts": mounts}), data=Path("/srv/data"), tmp=Path("/srv/tmp"))
    assert made.binds == (
        Bind(host_path="/srv/data", container_path="/data", is_read_only=True, is_untrusted=True),
        Bind(host_path="/srv/tmp", container_path="/tmp", is_untrusted=True),
    )


def test_a_folder_of_the_host_is_mounted_as_it_is() -> None:
    pod = _pod({"volumeMounts": [{"name": "h", "mountPath": "/h"}]}, volumes=[{"name": "h", "hostPath": {"path": "/"}}])
    assert _made(pod, h=Path("/")).binds == (Bind(host_path="/", container_path="/h"),)


def test_a_shared_network_namespace_has_a_hostname_already() -> None:
    made = _made(_pod(), network_of="fl-train-sandbox")
    assert (made.network_of, made.hostname) == ("fl-train-sandbox", None)


def test_a_hostname_is_a_label_whatever_the_pod_is_called() -> None:
    pod = msgspec.structs.replace(_pod(), metadata=meta.ObjectMeta(name=f"{'a' * 62}.b", uid=_UID))
    assert _made(pod).hostname == "a" * 62


def test_a_hostname_that_is_asked_for_is_given() -> None:
    assert _made(_pod(hostname="trainer")).hostname == "trainer"


def test_ports_of_the_node_lead_into_the_owner_of_the_network_alone() -> None:
    ports = (core.ContainerPort(container_port=80, host_port=8080), core.ContainerPort(container_port=81))
    pod = _pod({"ports": ports})
    assert _made(pod).ports == (Port(host_port=8080, container_port=80),)
    assert _made(pod, network_of="fl-train-sandbox").ports == ()
    assert spec.ports(pod.spec.containers) == (Port(host_port=8080, container_port=80),)


def test_shared_memory_is_generous_with_devices() -> None:
    grant = _grant(cdi_devices=[pb.CDIDevice(name="nvidia.com/gpu=0")])
    assert _made(_pod()).shm_bytes is None
    assert (_made(_pod(), grant).shm_bytes or 0) > 64 << 20
    limited = _pod({"resources": core.ResourceRequirements(limits={"memory": "4Gi"})})
    assert _made(limited, grant).shm_bytes == 2 << 30


def test_what_one_machine_offers_beyond_kubernetes_reaches_the_engine() -> None:
    limits = [{"name": "memlock", "soft": -1, "hard": -1}]
    made = _made(_pod(machine={"user": "app:video", "noNetwork": True, "limits": limits}))

    assert (made.user, made.network, made.ulimits) == ("app:video", NetworkMode.NONE, (("memlock", -1, -1),))


def test_a_pod_that_shares_the_nodes_network_and_memory_says_so_to_the_engine() -> None:
    made = _made(_pod(hostNetwork=True, hostIPC=True))

    assert made.network is NetworkMode.HOST
    assert made.shares_host_ipc


def test_references_in_command_arguments_and_variables_are_expanded() -> None:
    env = [{"name": "SIZE", "value": "2"}, {"name": "TWICE", "value": "$(SIZE)$(SIZE)"}]
    made = _made(
        _pod(
            {
                "command": ["serve", "$(NONE)"],
                "args": ["--size=$(SIZE)", "$$(SIZE)", "$(TWICE)", "$(GIVEN)"],
                "env": env,
            }
        ),
        _grant("example.com/nic", envs={"GIVEN": "g0"}),
    )
    assert (made.command, made.args) == (("serve", "$(NONE)"), ("--size=2", "$(SIZE)", "22", "g0"))
    assert made.env == {"SIZE": "2", "TWICE": "22", "GIVEN": "g0"}


def test_what_a_person_types_reaches_the_program_unchanged() -> None:
    """`run IMAGE -- sh -c 'echo $$'` has no references: they are a manifest's alone."""
    request = submission.ContainerRequest(
        image="i", command=("sh",), args=("-c", "echo $$ $(A) $$(A)"), env={"A": "1", "B": "$(A)"}
    )
    made = _made(submission.pod_of(request, resource="nvidia.com/gpu", scheduler_name="fairlead"))
    assert made.args == ("-c", "echo $$ $(A) $$(A)")
    assert made.env == {"A": "1", "B": "$(A)"}


def _shown(expression: str) -> str:
    """Return the part of a volume that `subPathExpr` stands for, in a container with a plain and a secret variable."""
    ref = {"valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}}
    env = [{"name": "DAY", "value": "monday"}, {"name": "UP", "value": "../x"}, {"name": "TOKEN", **ref}]
    mounts = [{"name": "v", "mountPath": "/v", "subPathExpr": expression}]
    item = msgspec.convert({"name": "main", "env": env, "volumeMounts": mounts}, core.Container)
    pod = core.Pod(metadata=meta.ObjectMeta(name="p", namespace="team"), spec=core.PodSpec(containers=(item,)))
    found = spec.with_sub_paths(item, pod, {"key": {"token": b"s3cret"}}, secret.NOTHING)
    return found.volume_mounts[0].sub_path


def test_a_sub_path_has_the_containers_variables_in_it() -> None:
    assert _shown("days/$(DAY)") == "days/monday"
    assert _shown("$$(DAY)") == "$(DAY)"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("$(NIGHT)", 'no variable "NIGHT"'),
        ("$(UP)", "no path within the volume"),
        ("a/$(TOKEN)", "a value of a Secret"),
    ],
)
def test_a_sub_path_leads_out_of_no_volume_and_shows_no_secret(expression: str, why: str) -> None:
    with pytest.raises(errors.Invalid, match=why) as caught:
        _shown(expression)
    assert caught.value.reason == "CreateContainerConfigError"
    assert "s3cret" not in caught.value.message
