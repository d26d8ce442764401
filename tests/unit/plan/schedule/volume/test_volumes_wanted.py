"""Which volumes a pod's claims take on a node: distinct ones, the smallest that will do, the claim of least first."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule.constraint import Refusal
from fairlead.plan.schedule.volume import claims, wanted
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import storage

_SIZES = st.lists(st.integers(1, 4), max_size=4)


def _known(volumes: list[int], asked: list[int]) -> tuple[claims.Claims, core.Pod]:
    """Return volumes v0… of some sizes on one node, and a pod with claims c0… that ask for some."""
    known = claims.Claims(lambda _namespace: ())
    about = meta.ObjectMeta(name="local")
    late = storage.FIRST_CONSUMER
    maker = "kubernetes.io/no-provisioner"
    known.note(storage.StorageClass(metadata=about, provisioner=maker, volume_binding_mode=late))
    for at, size in enumerate(volumes):
        spec = storage.VolumeSpec(capacity={"storage": f"{size}Gi"}, storage_class_name="local")
        known.note(storage.PersistentVolume(metadata=meta.ObjectMeta(name=f"v{at}"), spec=spec))
    for at, size in enumerate(asked):
        needs = core.ResourceRequirements(requests={"storage": f"{size}Gi"})
        claim = core.ClaimSpec(storage_class_name="local", resources=needs)
        known.note(core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name=f"c{at}", namespace="d"), spec=claim))
    volumes_ = tuple(
        core.Volume(name=f"x{at}", persistent_volume_claim=core.ClaimVolume(claim_name=f"c{at}"))
        for at in range(len(asked))
    )
    return known, core.Pod(metadata=meta.ObjectMeta(name="p", namespace="d"), spec=core.PodSpec(volumes=volumes_))


@given(_SIZES, _SIZES)
def test_claims_take_distinct_volumes_exactly_where_some_assignment_is_possible(
    volumes: list[int], asked: list[int]
) -> None:
    known, pod = _known(volumes, asked)
    looked = known.look_up(pod)
    assert not isinstance(looked, Refusal)
    found = wanted.chosen(looked, name="n", labels={})
    ways = itertools.permutations(range(len(volumes)), len(asked))
    is_possible = any(all(volumes[at] >= size for at, size in zip(way, asked, strict=True)) for way in ways)
    assert (found is not None) == is_possible
    assert bool(wanted.refusal(looked, name="n", labels={})) != is_possible
    if found is not None:
        assert len(set(found.values())) == len(asked)
        assert all(volumes[int(found[f"c{at}"][1:])] >= size for at, size in enumerate(asked))


def test_a_volume_that_was_given_to_a_claim_is_waited_for_and_no_other_is_taken() -> None:
    known, pod = _known([1, 2], [1])
    volume, claim = known.volume("v1"), known.claim("d", "c0")
    assert volume is not None
    assert claim is not None
    known.note(claims.given(volume, claim))
    looked = known.look_up(pod)
    assert not isinstance(looked, Refusal)
    assert wanted.chosen(looked, name="n", labels={}) == {"c0": "v1"}


def test_a_volume_counts_once_however_many_pods_share_it() -> None:
    one, two = ("csi", "one"), ("csi", "two")
    assert not wanted.too_many(frozenset({one}), frozenset({one}), {"csi": 1})
    assert not wanted.too_many(frozenset({two}), frozenset({one}), {"csi": 2})
    assert not wanted.too_many(frozenset({two}), frozenset({one}), {"other": 0})
    assert wanted.too_many(frozenset({two}), frozenset({one}), {"csi": 1}) == ("node(s) exceed max volume count",)
