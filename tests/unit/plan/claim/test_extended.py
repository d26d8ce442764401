"""Which claim meets extended resources: its requests, whose they are, and on which nodes it is needed."""

from __future__ import annotations

import pytest

from fairlead.plan.claim import extended
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.deviceclass import IMPLICIT_RESOURCE, DeviceClass, DeviceClassSpec

_GPU = "nvidia.com/gpu"
_CLASSES = {_GPU: "gpu", f"{IMPLICIT_RESOURCE}gpu": "gpu"}


def _class(name: str, resource: str | None = None, at: str = "2026-01-01T00:00:00Z") -> DeviceClass:
    about = ObjectMeta(name=name, creation_timestamp=at)
    return DeviceClass(metadata=about, spec=DeviceClassSpec(extended_resource_name=resource))


def _container(name: str, count: int | str, *, policy: str = "", **more: str) -> core.Container:
    requests = {_GPU: str(count), **more}
    return core.Container(name=name, restart_policy=policy, resources=core.ResourceRequirements(requests=requests))


def _pod(*containers: core.Container, init: tuple[core.Container, ...] = ()) -> core.Pod:
    about = ObjectMeta(name="web", namespace="team", uid="u")
    return core.Pod(metadata=about, spec=core.PodSpec(containers=containers, init_containers=init))


def _requests(pod: core.Pod) -> tuple[dict[str, int], list[tuple[str, str]]]:
    found = extended.requests(pod, extended.asked(pod, _CLASSES), _CLASSES)
    counts = {one.name: one.exactly.count for one in found.requests if one.exactly is not None}
    return counts, [(one.container_name, one.request_name) for one in found.mappings]


def test_a_class_stands_for_the_resource_it_names_and_for_one_of_its_own_name() -> None:
    assert extended.served([_class("gpu", _GPU), _class("other")]) == {
        _GPU: "gpu",
        f"{IMPLICIT_RESOURCE}gpu": "gpu",
        f"{IMPLICIT_RESOURCE}other": "other",
    }
    assert extended.served([_class("a", "cpu"), _class("b", "")]).keys().isdisjoint({"cpu", ""})


@pytest.mark.parametrize(
    ("others", "wins"),
    [
        ([_class("b", _GPU), _class("a", _GPU)], "a"),
        ([_class("a", _GPU), _class("b", _GPU, "2026-01-02T00:00:00Z")], "b"),
        ([_class("b", _GPU, "2026-01-02T00:00:00Z"), _class("a", _GPU)], "b"),
    ],
    ids=["of one time the first by name", "the newest", "in any order"],
)
def test_of_classes_that_name_one_resource_one_stands_for_it(others: list[DeviceClass], wins: str) -> None:
    assert extended.served(others)[_GPU] == wins


def test_each_container_that_asks_has_a_request_named_by_its_places() -> None:
    pod = _pod(_container("a", 2, cpu="1"), core.Container(name="b"), _container("c", 1))
    counts, mapped = _requests(pod)
    assert counts == {"container-0-request-1": 2, "container-2-request-0": 1}
    assert mapped == [("a", "container-0-request-1"), ("c", "container-2-request-0")]


def test_a_limit_without_a_request_is_one_as_the_server_stores_it() -> None:
    limits = core.ResourceRequirements(limits={_GPU: "3"})
    assert _requests(_pod(core.Container(name="a", resources=limits)))[0] == {"container-0-request-0": 3}


def test_both_names_of_a_class_are_requested_apart() -> None:
    pod = _pod(_container("a", 1, **{f"{IMPLICIT_RESOURCE}gpu": "2"}))
    assert _requests(pod)[0] == {"container-0-request-0": 2, "container-0-request-1": 1}


def test_an_init_container_that_ends_uses_the_devices_of_those_after_it() -> None:
    pod = _pod(_container("main", 2), init=(_container("first", 1),))
    counts, mapped = _requests(pod)
    assert counts == {"container-1-request-0": 2}
    assert mapped == [("main", "container-1-request-0"), ("first", "container-1-request-0")]


def test_what_init_containers_lack_beyond_that_is_requested_once_as_much_as_the_hungriest_needs() -> None:
    pod = _pod(_container("main", 1), init=(_container("first", 3), _container("second", 5), _container("third", 1)))
    counts, mapped = _requests(pod)
    assert counts == {"container-1-request-0": 4, "container-3-request-0": 1}
    assert mapped == [
        ("main", "container-3-request-0"),
        ("first", "container-3-request-0"),
        ("first", "container-1-request-0"),
        ("second", "container-3-request-0"),
        ("second", "container-1-request-0"),
        ("third", "container-3-request-0"),
    ]


def test_a_sidecar_has_its_own_and_lends_them_only_to_those_before_it() -> None:
    sidecar = _container("side", 2, policy="Always")
    pod = _pod(core.Container(name="main"), init=(_container("before", 1), sidecar, _container("after", 1)))
    counts, mapped = _requests(pod)
    assert counts == {"container-1-request-0": 2, "container-2-request-0": 1}
    assert ("before", "container-1-request-0") in mapped
    assert ("after", "container-2-request-0") in mapped
    assert ("after", "container-1-request-0") not in mapped


@pytest.mark.parametrize("amount", ["0", "1500m", "-1", "none", ""])
def test_an_amount_that_is_no_number_of_devices_is_not_asked_for(amount: str) -> None:
    assert extended.asked(_pod(_container("a", amount)), _CLASSES) == frozenset()


def test_a_node_lacks_what_it_does_not_offer_or_offers_none_of() -> None:
    assert extended.lacking({_GPU}, {}) == {_GPU}
    assert extended.lacking({_GPU}, {_GPU: "0"}) == {_GPU}
    assert extended.lacking({_GPU}, {_GPU: "8"}) == frozenset()


def test_a_claim_that_no_server_takes_is_said_and_costs_no_search_for_what_init_containers_use() -> None:
    many = tuple(_container(f"c{at}", 1) for at in range(33))
    pod = _pod(*many, init=tuple(_container(f"i{at}", 10**9) for at in range(1000)))
    why = extended.problems(pod, {_GPU}, _CLASSES)
    assert why == ("its extended resources need a claim of 33 requests, and a claim has 32 at most",)
    assert len(extended.requests(pod, {_GPU}, _CLASSES).mappings) == 33
    assert extended.problems(_pod(*many[:32]), {_GPU}, _CLASSES) == ()
