"""Rules that the scheduler does not know: found in a pod as it is written; what is only preferred is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.pod import admission
from fairlead.plan.schedule import reference, rules
from fairlead.wire.kubernetes import core, meta

_TERM = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}
_TEAM = {**_TERM, "namespaceSelector": {"matchLabels": {"team": "red"}}}
_NAMED = {**_TERM, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "red"}}}
_LABELLED = {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM, _TEAM]}
_KNOWN = {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM, _NAMED, {**_TERM, "namespaceSelector": {}}]}
_PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": _TERM}]}


def _spec(**fields: Any) -> core.PodSpec:
    return msgspec.convert({"containers": [{"name": "main"}], **fields}, core.PodSpec)


_RULE = "requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"affinity": {"podAffinity": _LABELLED}}, f"spec.affinity.podAffinity.{_RULE}"),
        ({"affinity": {"podAntiAffinity": _LABELLED}}, f"spec.affinity.podAntiAffinity.{_RULE}"),
        ({"resources": {"requests": {"cpu": "1"}}}, "spec.resources"),
        *(
            ({"volumes": [{"name": "v", source: value}]}, f"spec.volumes[].{source}")
            for source, value in {
                "gcePersistentDisk": {"pdName": "d"},
                "awsElasticBlockStore": {"volumeID": "d"},
                "iscsi": {"iqn": "q"},
                "rbd": {"image": "i"},
            }.items()
        ),
    ],
)
def test_a_rule_that_is_not_known_is_named_with_the_next_step(fields: dict[str, Any], named: str) -> None:
    assert rules.unknown(_spec(**fields)) == (named,)
    assert rules.refusal(_spec(**fields)) == (
        f"asks for {named}, which this scheduler does not know: "
        "leave spec.schedulerName out, and the cluster's own scheduler places it"
    )


def test_every_row_is_tried() -> None:
    params = next(mark.args[1] for mark in test_a_rule_that_is_not_known_is_named_with_the_next_step.pytestmark)
    assert {named for _, named in params} == set(rules.RULES)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"affinity": {"podAffinity": _PREFERRED, "podAntiAffinity": _PREFERRED, "nodeAffinity": {}}},
        {"affinity": {"podAffinity": _KNOWN, "podAntiAffinity": _KNOWN}},
        {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
        {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
        {"volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "w", "emptyDir": {}}]},
        {"resources": {}},
    ],
)
def test_what_is_known_or_only_preferred_or_binds_to_no_node_is_not_refused(fields: dict[str, Any]) -> None:
    assert rules.refusal(_spec(**fields)) == ""


def _listening(*ports: dict[str, Any], init: bool = False) -> reference.PodInfo:
    container = {"name": "c", "ports": [{"containerPort": 8080, **port} for port in ports]}
    spec = {"initContainers": [{**container, "restartPolicy": "Always"}]} if init else {"containers": [container]}
    return reference.pod_info(core.Pod(spec=_spec(**spec)))


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 81}, False),
        ({"hostPort": 80}, {"containerPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, True),
        ({"hostPort": 80, "hostIP": "0.0.0.0"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
    ],
)
def test_a_port_of_the_node_is_given_once(
    one: dict[str, Any], other: dict[str, Any], *, collide: bool, init: bool
) -> None:
    node = reference.NodeInfo(name="n", allocatable={"pods": 9000})
    node = reference.occupied(node, (_listening(one, init=init),))
    refusal = reference.first_refusal(_listening(other), node)
    expected = ("NodePorts", ("node(s) didn't have free ports for the requested pod ports",))
    assert refusal == (expected if collide else None)


def test_one_machine_leaves_out_the_rules_that_tell_nodes_apart() -> None:
    spec = _spec(
        restartPolicy="Never",
        containers=[{"name": "main", "image": "i"}],
        affinity={"podAffinity": _LABELLED, "podAntiAffinity": _LABELLED},
        topologySpreadConstraints=[{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}],
        resources={"requests": {"cpu": "1"}},
    )
    admitted = admission.admit(core.Pod(metadata=meta.ObjectMeta(name="p"), spec=spec))
    assert rules.unknown(spec)
    assert rules.unknown(admitted.spec) == ()
    assert admitted.spec.resource_claims == spec.resource_claims
