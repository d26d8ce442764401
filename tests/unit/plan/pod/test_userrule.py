"""What a user of a machine may not ask for, and the limit of devices that stands where no quota does."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.plan.pod import userrule
from fairlead.wire.kubernetes import core, meta


def pod(about: dict[str, object] | None = None, **spec: object) -> core.Pod:
    made = {"metadata": {"name": "p", "namespace": "user-1000", **(about or {})}, "spec": {"containers": [], **spec}}
    return msgspec.convert(made, core.Pod)


def with_ports(*ports: int) -> list[dict[str, object]]:
    return [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": one} for one in ports]}]


def with_limit(name: str, value: int) -> core.Pod:
    return pod(machine={"limits": [{"name": name, "soft": value, "hard": value}]})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (pod(volumes=[{"name": "v", "hostPath": {"path": "/etc"}}]), 'volume "/etc" is a folder of the host'),
        (pod(containers=with_ports(22)), "port 22 of the host"),
        (pod(initContainers=with_ports(80)), "port 80 of the host"),
        (pod(nodeName="n"), "spec.nodeName"),
        (pod(priority=1), "a priority"),
        (pod(priorityClassName="high"), "a priority"),
        (pod(terminationGracePeriodSeconds=userrule.LONGEST_GRACE_S + 1), "terminationGracePeriodSeconds"),
        (with_limit("rtprio", 99), "the limit rtprio reaches beyond the container: take core, cpu"),
        (with_limit("nice", 40), "the limit nice"),
        (with_limit("msgqueue", -1), "the limit msgqueue"),
        (pod({"finalizers": ["a.example/x"]}), "metadata.finalizers"),
        (
            pod({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}),
            "metadata.ownerReferences",
        ),
    ],
)
def test_what_takes_from_others_or_from_root_is_refused_by_its_name(asked: core.Pod, why: str) -> None:
    (found,) = userrule.problems(asked)
    assert why in found


def test_everything_else_is_a_users_own_affair() -> None:
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "c"}}]
    assert userrule.problems(pod(volumes=volumes, containers=with_ports(0, 1024, 8080))) == ()
    assert userrule.problems(with_limit("memlock", -1)) == ()


@pytest.mark.parametrize(
    ("name", "uid"), [("user-1000", 1000), ("user-", None), ("user-x", None), ("user-\u00b2", None), ("default", None)]
)
def test_a_namespace_is_a_users_by_digits_alone(name: str, uid: int | None) -> None:
    assert userrule.uid_of(name) == uid
    assert uid is None or userrule.namespace(uid) == name


def test_the_machines_limit_stands_for_devices_that_no_quota_names() -> None:
    needs = {"resources": {"requests": {"nvidia.com/gpu": 2, "cpu": "1"}}}
    asked = pod(containers=[{"name": "c", "image": "i", **needs}])
    found = userrule.quota(asked, 4, ())
    assert found is not None
    assert (dict(found.spec.hard), found.metadata.namespace) == ({"requests.nvidia.com/gpu": "4"}, "user-1000")
    stated = core.ResourceQuota(
        metadata=meta.ObjectMeta(name="own"), spec=core.ResourceQuotaSpec(hard={"requests.nvidia.com/gpu": "1"})
    )
    assert userrule.quota(asked, 4, (stated,)) is None
    assert userrule.quota(asked, 0, ()) is None
    assert userrule.quota(pod(), 4, ()) is None
