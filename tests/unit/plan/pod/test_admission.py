"""Admission: each rule in Kubernetes' own words, and what is filled in where nothing was said."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"
_PATH = "spec.containers[0].resources"


def _pod(*, name: str = "train", spec: dict[str, Any] | None = None, **container: Any) -> core.Pod:
    item: dict[str, Any] = {"name": "main", "image": "localhost/cuda", **container}
    body = {"containers": [item], **(spec or {})}
    return core.Pod(metadata=meta.ObjectMeta(name=name), spec=msgspec.convert(body, core.PodSpec))


def _problems(pod: core.Pod) -> list[str]:
    with pytest.raises(errors.Invalid) as caught:
        admission.admit(pod)
    assert caught.value.reason == "PodInvalid"
    problems = caught.value.context["problems"]
    assert isinstance(problems, list)
    return problems


def _asking(limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None) -> core.Pod:
    return _pod(resources={"limits": limits or {}, "requests": requests or {}})


# devices: whole, positive, and requests equal to limits


@pytest.mark.parametrize(
    ("amount", "problem"),
    [
        ("0.5", 'Invalid value: "500m": must be an integer'),
        (0.5, 'Invalid value: "500m": must be an integer'),
        ("1500m", 'Invalid value: "1500m": must be an integer'),
        ("-1", 'Invalid value: "-1": must be greater than or equal to 0'),
        (-1, 'Invalid value: "-1": must be greater than or equal to 0'),
        (
            "two",
            'Invalid value: "two": quantities must match the regular expression '
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ],
)
def test_a_number_of_devices_is_whole_and_not_negative(amount: str | float, problem: str) -> None:
    assert _problems(_asking({_GPU: amount})) == [f"{_PATH}.limits[{_GPU}]: {problem}"]


def test_requests_must_equal_limits_for_devices() -> None:
    assert _problems(_asking({_GPU: 2}, {_GPU: 1})) == [
        f'{_PATH}.requests: Invalid value: "1": must be equal to {_GPU} limit of 2'
    ]


def test_a_request_for_devices_needs_a_limit() -> None:
    assert _problems(_asking(requests={_GPU: 1})) == [
        f"{_PATH}.limits: Required value: Limit must be set for non overcommitable resources"
    ]


def test_cpu_may_be_requested_below_its_limit_or_without_one_but_not_above_it() -> None:
    assert admission.admit(_asking({"cpu": "2"}, {"cpu": "0.5"}))
    assert admission.admit(_asking(requests={"memory": "1Gi"}))
    assert _problems(_asking({"cpu": "1"}, {"cpu": 1.5})) == [
        f'{_PATH}.requests: Invalid value: "1500m": must be less than or equal to cpu limit of 1'
    ]


@pytest.mark.parametrize(
    ("resource", "problem"),
    [
        ("gpu", "must be a standard resource type or fully qualified"),
        ("pods", "must be a standard resource for containers"),
        ("nvidia.com/", "doesn't follow extended resource name standard"),
        ("/gpu", "doesn't follow extended resource name standard"),
        ("requests.nvidia.com/gpu", "doesn't follow extended resource name standard"),
        ("nvidia.com/gpu/0", "doesn't follow extended resource name standard"),
    ],
)
def test_a_resource_has_a_name_that_kubernetes_would_take(resource: str, problem: str) -> None:
    assert _problems(_asking({resource: 1})) == [f'{_PATH}.limits[{resource}]: Invalid value: "{resource}": {problem}']


@pytest.mark.parametrize("resource", [_GPU, "amd.com/gpu", "gpu.intel.com/i915", "example.com/shared.gpu-2"])
def test_a_vendors_devices_are_extended_resources(resource: str) -> None:
    assert admission.is_extended(resource)


@pytest.mark.parametrize("resource", ["cpu", "memory", "kubernetes.io/x", "node.kubernetes.io/x", "x/", "/x", "a b/x"])
def test_kubernetes_own_resources_and_malformed_names_are_not(resource: str) -> None:
    assert not admission.is_extended(resource)


# names and images


@pytest.mark.parametrize("name", ["Train", "a_b", "-a", "a.", "a..b", "ä", "a\n"])
def test_a_pods_name_is_a_subdomain(name: str) -> None:
    (problem,) = _problems(_pod(name=name))
    assert problem.startswith(
        f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case '
        "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
    )


def test_no_pod_from_outside_passes_for_a_kubelets_own() -> None:
    pod = _pod()
    about = msgspec.structs.replace(pod.metadata, annotations={"kubernetes.io/config.mirror": "x"})
    (problem,) = _problems(msgspec.structs.replace(pod, metadata=about))
    assert problem == (
        "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: "
        "only a kubelet makes mirror pods, of its own files"
    )


def test_a_pods_name_may_be_generated_but_not_absent_or_endless() -> None:
    assert _problems(_pod(name="")) == ["metadata.name: Required value: name or generateName is required"]
    pod = _pod(name="")
    generated = msgspec.structs.replace(pod, metadata=meta.ObjectMeta(generate_name="train-"))
    assert admission.admit(generated).metadata == generated.metadata
    assert _problems(_pod(name="a" * 254))[0].endswith("must be no more than 253 characters")
    assert admission.admit(_pod(name="a" * 253))


@pytest.mark.parametrize("name", ["Main", "a.b", "-a", "a_b"])
def test_a_containers_name_is_a_label(name: str) -> None:
    (problem,) = _problems(_pod(spec={"containers": [{"name": name, "image": "i"}]}))
    assert problem.startswith(
        f'spec.containers[0].name: Invalid value: "{name}": a lowercase RFC 1123 label must consist of lower case '
        "alphanumeric characters or '-', and must start and end with an alphanumeric character"
    )


def test_a_container_has_a_name_of_at_most_63_characters_and_an_image() -> None:
    items = [{"name": ""}, {"name": "b" * 64, "image": "i"}]
    assert _problems(_pod(spec={"containers": items})) == [
        "spec.containers[0].name: Required value",
        "spec.containers[0].image: Required value",
        f'spec.containers[1].name: Invalid value: "{"b" * 64}": must be no more than 63 characters',
    ]


def test_names_are_unique_in_the_pod_init_containers_included() -> None:
    spec = {"initContainers": [{"name": "main", "image": "i"}]}
    assert _problems(_pod(spec=spec)) == ['spec.containers[0].name: Duplicate value: "main"']
    volumes = {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}
    assert _problems(_pod(spec=volumes)) == ['spec.volumes[1].name: Duplicate value: "v"']


@pytest.mark.parametrize("name", ["A=B", "A\x01", "Ä"])
def test_a_variables_name_cannot_carry_another_variable(name: str) -> None:
    (problem,) = _problems(_pod(env=[{"name": name, "value": "x"}]))
    assert problem.endswith(
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
    )
    assert _problems(_pod(env=[{"name": ""}])) == ["spec.containers[0].env[0].name: Required value"]


# the rest of the spec


def test_a_pod_has_containers_and_a_known_restart_policy() -> None:
    assert _problems(_pod(spec={"containers": []})) == ["spec.containers: Required value"]
    assert _problems(_pod(spec={"restartPolicy": "Sometimes"})) == [
        'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'
    ]


def test_a_negative_grace_is_refused() -> None:
    assert _problems(_pod(spec={"terminationGracePeriodSeconds": -1})) == [
        "spec.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0"
    ]


@pytest.mark.parametrize("number", [-1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("name", ["runAsUser", "runAsGroup"])
def test_a_user_is_a_number_that_a_kernel_has(name: str, number: int) -> None:
    """4294967295 is -1 to a kernel, which leaves the user as it is."""
    why = f"securityContext.{name}: Invalid value: {number}: must be between 0 and 2147483647, inclusive"
    assert _problems(_pod(spec={"securityContext": {name: number}})) == [f"spec.{why}"]
    assert _problems(_pod(securityContext={name: number})) == [f"spec.containers[0].{why}"]


def test_a_mount_names_a_volume_of_the_pod_and_a_volume_has_a_source() -> None:
    pod = _pod(spec={"volumes": [{"name": "nfs"}]}, volumeMounts=[{"name": "data", "mountPath": "/d"}])
    assert _problems(pod) == [
        "spec.volumes[0]: Required value: must specify a volume type we offer "
        "(hostPath, emptyDir, persistentVolumeClaim, secret, configMap, downwardAPI, projected)",
        'spec.containers[0].volumeMounts[0].name: Not found: "data"',
    ]


def test_every_broken_rule_is_told_at_once() -> None:
    with pytest.raises(errors.Invalid) as caught:
        admission.admit(_pod(name="A", image="", resources={"limits": {_GPU: "0.5"}}))
    assert caught.value.message.startswith('Pod "A" is invalid: metadata.name: ')
    assert caught.value.message.count("; ") == 2


# defaults


def test_requests_default_to_limits_and_given_requests_stay() -> None:
    admitted = admission.admit(_asking({_GPU: 2, "cpu": "4"}, {"cpu": "1"}))
    resources = admitted.spec.containers[0].resources
    assert (resources.requests, resources.limits) == ({_GPU: 2, "cpu": "1"}, {_GPU: 2, "cpu": "4"})


def test_images_are_pulled_if_not_present_unless_the_pod_says_otherwise() -> None:
    assert admission.admit(_pod()).spec.containers[0].image_pull_policy == "IfNotPresent"
    assert admission.admit(_pod(imagePullPolicy="Never")).spec.containers[0].image_pull_policy == "Never"


def test_admission_is_idempotent() -> None:
    admitted = admission.admit(_asking({_GPU: 2, "memory": "1Gi"}))
    assert admission.admit(admitted) == admitted


# what the pod needs at once


def _effective(inits: list[dict[str, int]], mains: list[dict[str, int]]) -> dict[str, Fraction]:
    def made(kind: str, items: list[dict[str, int]]) -> list[dict[str, Any]]:
        return [{"name": f"{kind}{n}", "image": "i", "resources": {"limits": one}} for n, one in enumerate(items)]

    pod = _pod(spec={"initContainers": made("i", inits), "containers": made("c", mains)})
    return admission.effective_requests(admission.admit(pod).spec)


def test_containers_add_up_and_init_containers_only_raise_the_total() -> None:
    assert _effective([{_GPU: 3}, {_GPU: 1}], [{_GPU: 1}, {_GPU: 1}]) == {_GPU: Fraction(3)}
    assert _effective([{_GPU: 1}], [{_GPU: 1}, {_GPU: 1}]) == {_GPU: Fraction(2)}


_AMOUNTS = st.lists(st.dictionaries(st.sampled_from([_GPU, "cpu", "memory"]), st.integers(0, 9)), max_size=3)


@given(inits=_AMOUNTS, mains=_AMOUNTS.filter(bool))
def test_at_every_moment_of_its_life_the_pod_needs_no_more_than_that(
    inits: list[dict[str, int]], mains: list[dict[str, int]]
) -> None:
    effective = _effective(inits, mains)
    moments = [*([one] for one in inits), mains]
    for resource in (_GPU, "cpu", "memory"):
        peak = max(sum(one.get(resource, 0) for one in moment) for moment in moments)
        assert effective.get(resource, 0) == peak


@given(st.dictionaries(st.text(max_size=12), st.one_of(st.text(max_size=8), st.integers(), st.floats())))
def test_any_limits_are_either_admitted_or_refused_with_reasons(limits: dict[str, Any]) -> None:
    with contextlib.suppress(errors.Invalid):
        admitted = admission.admit(_asking(limits))
        assert set(admission.effective_requests(admitted.spec)) == set(limits)


def _container(name: str, *, restart_policy: str = "", **requests: str) -> core.Container:
    wanted = core.ResourceRequirements(requests=requests, limits=requests)
    return core.Container(name=name, image="i", resources=wanted, restart_policy=restart_policy)


def test_sidecars_run_beside_everything_that_starts_after_them_and_overhead_comes_on_top() -> None:
    spec = core.PodSpec(
        init_containers=(
            _container("first", cpu="6"),
            _container("sidecar", cpu="1", restart_policy="Always"),
            _container("second", cpu="5", memory="1Gi"),
        ),
        containers=(_container("main", cpu="2"),),
        overhead={"cpu": "250m", "memory": "64Mi"},
    )
    assert admission.effective_requests(spec) == {"cpu": Fraction(25, 4), "memory": Fraction(2**30 + 2**26)}
    assert admission.effective_limits(spec) == {"cpu": Fraction(25, 4), "memory": Fraction(2**30 + 2**26)}


def test_overhead_alone_limits_nothing() -> None:
    spec = core.PodSpec(containers=(core.Container(name="main", image="i"),), overhead={"cpu": "1"})
    assert admission.effective_requests(spec) == {"cpu": Fraction(1)}
    assert admission.effective_limits(spec) == {}


def test_a_sidecar_is_admitted_and_a_policy_of_a_container_that_there_is_not_is_refused() -> None:
    side = _container("log", restart_policy="Always")
    spec = core.PodSpec(containers=(_container("main"),), init_containers=(side,))
    assert admission.admit(core.Pod(metadata=meta.ObjectMeta(name="p"), spec=spec)).spec.init_containers
    assert admission.admit(core.Pod(metadata=meta.ObjectMeta(name="p"), spec=core.PodSpec(containers=(side,))))
    wrong = core.PodSpec(containers=(_container("log", restart_policy="Sometimes"),))
    with pytest.raises(errors.Invalid, match=r"spec\.containers\[0\]\.restartPolicy: Unsupported value"):
        admission.admit(core.Pod(metadata=meta.ObjectMeta(name="p"), spec=wrong))


# strings that programs are told later


@pytest.mark.parametrize(
    "image", ["--privileged", "--device=nvidia.com/gpu=all", "--volume=/:/host:rw", "docker-archive:/etc/shadow", "A b"]
)
def test_an_image_that_is_not_a_reference_is_refused(image: str) -> None:
    (problem,) = _problems(_pod(image=image))
    assert problem.startswith(f'spec.containers[0].image: Invalid value: "{image}": ')


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"image": "localhost/a\0b"}, "spec.containers[0].image"),
        ({"args": ["a", "b\0c"]}, "spec.containers[0].args[1]"),
        ({"command": ["a\0"]}, "spec.containers[0].command[0]"),
        ({"env": [{"name": "A", "value": "x\0"}]}, "spec.containers[0].env[0].value"),
        ({"workingDir": "/\0"}, "spec.containers[0].workingDir"),
        (
            {"securityContext": {"capabilities": {"drop": ["\0"]}}},
            "spec.containers[0].securityContext.capabilities.drop[0]",
        ),
        ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/a\0"}}]}}, "spec.volumes[0].hostPath.path"),
        ({"spec": {"nodeSelector": {"a\0": "b"}}}, "spec.nodeSelector"),
    ],
)
def test_a_nul_is_refused_wherever_it_stands(more: dict[str, Any], path: str) -> None:
    assert any(
        problem.startswith(f"{path}: Invalid value: ") and "NUL" in problem for problem in _problems(_pod(**more))
    )


def test_huge_pages_are_refused_by_their_name_with_what_to_do() -> None:
    limits = {"limits": {"hugepages-2Mi": "4Mi"}}
    (problem,) = [one for one in _problems(_pod(resources=limits)) if "hugepages-2Mi" in one]
    assert problem.startswith("spec.containers[0].resources.limits[hugepages-2Mi]")
    assert "on a cluster alone" in problem


def test_of_very_many_broken_rules_the_first_are_said_and_that_there_are_more() -> None:
    with pytest.raises(errors.Invalid) as caught:
        admission.admit(_pod(env=[{"name": f"=\0{number}"} for number in range(20_000)]))
    problems = caught.value.context["problems"]
    assert isinstance(problems, list)
    assert len(problems) == 100
    assert caught.value.message.endswith("; and more")
    assert len(caught.value.message) < 50_000


def test_a_pod_that_no_cluster_would_store_is_refused_before_its_parts_are_judged() -> None:
    with pytest.raises(errors.Invalid, match="too large") as caught:
        admission.admit(_pod(env=[{"name": f"=\0{number}"} for number in range(80_000)]))
    assert caught.value.reason == "ObjectTooLarge"


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("annotations", "fairlead.dev/devices"),
        ("annotations", "fairlead.dev/step"),
        ("annotations", "deep.fairlead.dev/x"),
        ("labels", "fairlead.dev/home"),
    ],
)
def test_names_of_ours_are_refused_from_outside(part: str, name: str) -> None:
    pod = msgspec.structs.replace(_pod(), metadata=msgspec.convert({"name": "p", part: {name: "x"}}, meta.ObjectMeta))
    with pytest.raises(errors.Denied) as refused:
        admission.admit(pod)
    assert refused.value.reason == "NameReserved"
    assert f"metadata.{part}[{name}]" in refused.value.message


def test_names_that_only_look_like_ours_are_taken() -> None:
    notes = {"fairlead.dev": "1", "notfairlead.dev/x": "1", "example.com/fairlead.dev": "1", "fairlead.dev.io/x": "1"}
    pod = msgspec.structs.replace(_pod(), metadata=meta.ObjectMeta(name="p", annotations=notes, labels={"app": "x"}))
    assert admission.admit(pod).metadata.annotations == notes
