"""Node affinity: which nodes a term takes, what preferences are worth, and what cannot be read."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.plan.pod import affinity
from fairlead.wire.kubernetes import core

_LABELS = {"zone": "eu-1", "gpu.count": "8", "gpu.product": "H100", "old": ""}


def _affinity(**rules: object) -> core.NodeAffinity:
    return msgspec.convert(rules, core.NodeAffinity)


def _required(*terms: dict[str, object]) -> core.NodeAffinity:
    return _affinity(requiredDuringSchedulingIgnoredDuringExecution={"nodeSelectorTerms": list(terms)})


def _rule(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"key": key, "operator": operator, "values": list(values)}


def _allows(wanted: core.NodeAffinity) -> bool:
    return affinity.is_allowed({}, wanted, name="node-1", labels=_LABELS)


@pytest.mark.parametrize(
    ("rule", "takes"),
    [
        (_rule("zone", "In", "eu-0", "eu-1"), True),
        (_rule("zone", "In", "eu-0"), False),
        (_rule("absent", "In", ""), False),
        (_rule("zone", "NotIn", "eu-0"), True),
        (_rule("zone", "NotIn", "eu-1"), False),
        (_rule("absent", "NotIn", "x"), True),
        (_rule("old", "Exists"), True),
        (_rule("absent", "Exists"), False),
        (_rule("absent", "DoesNotExist"), True),
        (_rule("old", "DoesNotExist"), False),
        (_rule("gpu.count", "Gt", "7"), True),
        (_rule("gpu.count", "Gt", "8"), False),
        (_rule("gpu.count", "Lt", "9"), True),
        (_rule("gpu.count", "Lt", "8"), False),
        (_rule("gpu.product", "Gt", "1"), False),
        (_rule("gpu.count", "Gt", "many"), False),
        (_rule("gpu.count", "Gt"), False),
        (_rule("gpu.count", "Near", "8"), False),
        (_rule("zone", "In"), False),
    ],
)
def test_every_operator_on_labels(rule: dict[str, object], takes: bool) -> None:
    assert _allows(_required({"matchExpressions": [rule]})) is takes


@pytest.mark.parametrize(
    ("rule", "takes"),
    [
        (_rule("metadata.name", "In", "node-1"), True),
        (_rule("metadata.name", "NotIn", "node-1"), False),
        (_rule("metadata.name", "Exists"), False),
        (_rule("metadata.namespace", "NotIn", "x"), False),
    ],
)
def test_fields_are_the_nodes_name_only(rule: dict[str, object], takes: bool) -> None:
    assert _allows(_required({"matchFields": [rule]})) is takes


def test_one_term_is_enough_and_in_a_term_everything_must_hold() -> None:
    good, bad = _rule("zone", "In", "eu-1"), _rule("zone", "In", "eu-9")
    assert _allows(_required({"matchExpressions": [bad]}, {"matchExpressions": [good]}))
    assert not _allows(_required({"matchExpressions": [good, bad]}))
    name = _rule("metadata.name", "In", "other")
    assert not _allows(_required({"matchExpressions": [good], "matchFields": [name]}))


def test_no_terms_and_empty_terms_take_no_node_and_no_affinity_takes_all() -> None:
    assert not _allows(_required())
    assert not _allows(_required({}))
    assert _allows(affinity.of_pod(core.PodSpec()))
    assert _allows(affinity.of_pod(core.PodSpec(affinity=core.Affinity())))


def test_the_node_selector_must_hold_beside_the_affinity() -> None:
    wanted = _required({"matchExpressions": [_rule("zone", "Exists")]})
    assert not affinity.is_allowed({"zone": "eu-2"}, wanted, name="n", labels=_LABELS)
    assert affinity.is_allowed({"zone": "eu-1"}, wanted, name="n", labels=_LABELS)


def test_weights_of_preferences_that_hold_are_added() -> None:
    terms = [
        {"weight": 10, "preference": {"matchExpressions": [_rule("zone", "Exists")]}},
        {"weight": 5, "preference": {"matchFields": [_rule("metadata.name", "In", "node-1")]}},
        {"weight": 70, "preference": {"matchExpressions": [_rule("absent", "Exists")]}},
        {"weight": 100, "preference": {}},
    ]
    wanted = _affinity(preferredDuringSchedulingIgnoredDuringExecution=terms)
    assert affinity.weight(wanted, name="node-1", labels=_LABELS) == 15


def test_what_an_api_server_would_refuse_is_told_by_path() -> None:
    rules = [
        _rule("a", "In"),
        _rule("a", "Exists", "x"),
        _rule("a", "Gt", "1", "2"),
        _rule("a", "Near", "1"),
        _rule("a", "Lt", "1"),
    ]
    fields = [_rule("spec.nodeName", "In", "a"), _rule("metadata.name", "Exists"), _rule("metadata.name", "In")]
    preferred = [{"weight": 0, "preference": {"matchExpressions": [rules[0]]}}]
    wanted = _affinity(
        requiredDuringSchedulingIgnoredDuringExecution={
            "nodeSelectorTerms": [{"matchExpressions": rules, "matchFields": fields}]
        },
        preferredDuringSchedulingIgnoredDuringExecution=preferred,
    )
    found = list(affinity.problems(core.PodSpec(affinity=core.Affinity(node_affinity=wanted))))
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    assert (
        found[0]
        == f"{path}.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
    )
    assert [text.partition(":")[0].rpartition("[")[2] for text in found] == [
        "0].values",
        "1].values",
        "2].values",
        "3].operator",
        "0].key",
        "1].operator",
        "2].values",
        "0].weight",
        "0].values",
    ]
    none = core.PodSpec(affinity=core.Affinity(node_affinity=_required()))
    assert [text.rpartition(": ")[2] for text in affinity.problems(none)] == [
        "must have at least one node selector term"
    ]
