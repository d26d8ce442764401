"""What a user of a machine may not ask for, and the limit of devices that stands where no quota does."""

from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import mountable, userrule
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


def with_folder(path: str, *, read_only: bool = True) -> core.Pod:
    mount = {"name": "v", "mountPath": "/d", "readOnly": read_only}
    volumes = [{"name": "v", "hostPath": {"path": path}}]
    return pod(volumes=volumes, containers=[{"name": "c", "image": "i", "volumeMounts": [mount]}])


def test_folders_of_the_setting_are_mounted_read_only_and_no_others() -> None:
    listed = mountable.parse("/datasets, /models/")
    assert listed == ("/datasets", "/models")
    for path in ("/datasets", "/datasets/imagenet", "//datasets/./x", "/models"):
        assert userrule.problems(with_folder(path), listed) == ()
    for path in ("/data", "/datasets2", "/datasets/../etc", "/datasets/x/../../etc", "/", "datasets"):
        (found,) = userrule.problems(with_folder(path), listed)
        assert "(people may mount /datasets, /models; setting api.mounts)" in found
    (found,) = userrule.problems(with_folder("/datasets", read_only=False), listed)
    assert "write -v /datasets:/d:ro" in found
    assert mountable.marked(with_folder("/datasets")).spec.machine.has_listed_mounts  # type: ignore[union-attr]


def test_a_mark_that_came_with_the_request_is_not_believed() -> None:
    forged = pod(machine={"hasListedMounts": True})
    assert not mountable.is_marked(mountable.marked(forged))
    bare = with_folder("/datasets")
    assert mountable.marked(pod()) is not bare
    assert mountable.is_marked(mountable.marked(bare))


@pytest.mark.parametrize("text", ["data", "/etc", "/var/lib", "/", "/datasets,/proc/1", "/x/../etc", "/run/fairlead"])
def test_a_setting_that_would_give_the_machine_away_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        mountable.parse(text)
    assert refused.value.reason == "MountsInvalid"


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
