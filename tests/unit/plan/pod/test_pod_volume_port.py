from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.wire.kubernetes import core, meta


def _pod(*, volume: core.Volume | None = None, **spec: object) -> core.Pod:
    item = core.Container(name="main", image="demo")
    whole = core.PodSpec(containers=(item,), volumes=() if volume is None else (volume,))
    return core.Pod(metadata=meta.ObjectMeta(name="a"), spec=msgspec.structs.replace(whole, **spec))


def _with_ports(*ports: core.ContainerPort) -> core.Pod:
    return _pod(containers=(core.Container(name="main", image="demo", ports=ports),))


def _refusal(pod: core.Pod) -> str:
    with pytest.raises(errors.Invalid) as caught:
        admission.admit(pod)
    return caught.value.message


@pytest.mark.parametrize("name", ["../../../../etc", "a/b", "", ".", "A", "-a", "a" * 64, "a\n"])
def test_a_volume_s_name_can_be_nothing_but_one_folder(name: str) -> None:
    volume = core.Volume(name=name, empty_dir=core.EmptyDirVolume())
    assert "spec.volumes[0].name: Invalid value" in _refusal(_pod(volume=volume))


def test_memory_with_a_size_is_accepted() -> None:
    source = core.EmptyDirVolume(medium="Memory", size_limit="1Gi")
    assert admission.admit(_pod(volume=core.Volume(name="shm", empty_dir=source)))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (core.EmptyDirVolume(medium="HugePages"), 'emptyDir.medium: Unsupported value: "HugePages"'),
        (core.EmptyDirVolume(medium="Memory", size_limit="lots"), 'emptyDir.sizeLimit: Invalid value: "lots"'),
        (core.EmptyDirVolume(medium="Memory", size_limit="-1"), "must be greater than 0"),
        (core.EmptyDirVolume(size_limit="1Gi"), "emptyDir.sizeLimit: Forbidden"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(source: core.EmptyDirVolume, says: str) -> None:
    assert says in _refusal(_pod(volume=core.Volume(name="v", empty_dir=source)))


@pytest.mark.parametrize(
    ("port", "says"),
    [
        (core.ContainerPort(container_port=0), "containerPort: Invalid value: 0"),
        (core.ContainerPort(container_port=80, host_port=65536), "hostPort: Invalid value: 65536"),
        (core.ContainerPort(container_port=80, host_port=-1), "hostPort: Invalid value: -1"),
        (core.ContainerPort(container_port=80, protocol="tcp"), 'protocol: Unsupported value: "tcp"'),
        (core.ContainerPort(container_port=80, host_ip="localhost"), 'hostIP: Invalid value: "localhost"'),
        (core.ContainerPort(container_port=80, host_ip="fe80::1%eth0"), "hostIP: Invalid value"),
        (core.ContainerPort(container_port=80, host_ip="1.2.3.4:80/tcp --privileged"), "hostIP: Invalid value"),
    ],
)
def test_a_port_that_cannot_be_is_refused(port: core.ContainerPort, says: str) -> None:
    assert says in _refusal(_with_ports(port))


def test_one_port_of_the_host_leads_to_one_place() -> None:
    twice = _with_ports(
        core.ContainerPort(container_port=80, host_port=8080), core.ContainerPort(container_port=81, host_port=8080)
    )
    assert "spec.containers[0].ports[1].hostPort: Duplicate value: 8080" in _refusal(twice)
    both = _with_ports(
        core.ContainerPort(container_port=80, host_port=53),
        core.ContainerPort(container_port=80, host_port=53, protocol="UDP"),
    )
    assert admission.admit(both)


@pytest.mark.parametrize("limit_s", [0, -1, 2**31])
def test_a_time_limit_is_a_time(limit_s: int) -> None:
    assert f"spec.activeDeadlineSeconds: Invalid value: {limit_s}" in _refusal(_pod(active_deadline_seconds=limit_s))


@pytest.mark.parametrize("name", ["a.b", "A", "--privileged", "a" * 64])
def test_a_host_name_is_a_label(name: str) -> None:
    assert f'spec.hostname: Invalid value: "{name}"' in _refusal(_pod(hostname=name))


def test_a_pull_policy_is_one_of_three() -> None:
    item = core.Container(name="main", image="demo", image_pull_policy="Sometimes")
    assert 'imagePullPolicy: Unsupported value: "Sometimes"' in _refusal(_pod(containers=(item,)))
