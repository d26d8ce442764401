"""Gangs with sub-groups, after any order of pods that come, are placed and go: what is chosen makes every minimum."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.plan.schedule.group import subgroup
from fairlead.plan.schedule.group.gang import Gang, Gangs
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup

_PARTS = ("a", "b", "c")
_minimum = st.none() | st.integers(0, 3)


@st.composite
def _groups(draw: st.DrawFn) -> podgroup.PodGroup:
    parents = {"a": None, "b": draw(st.sampled_from([None, "a"])), "c": draw(st.sampled_from([None, "a", "b"]))}
    inner = set(parents.values())
    subs = tuple(
        podgroup.SubGroup(
            name=name,
            parent=parents[name],
            min_member=None if name in inner else draw(_minimum),
            min_sub_group=draw(st.none() | st.integers(0, 1)) if name in inner else None,
        )
        for name in draw(st.permutations(_PARTS))
    )
    spec = podgroup.PodGroupSpec(sub_groups=subs, min_member=draw(_minimum), min_sub_group=draw(st.none()))
    return podgroup.KAIPodGroup(metadata=meta.ObjectMeta(name="g", namespace="n"), spec=spec)


def _pod(number: int, part: str, node: str = "") -> core.Pod:
    labels = {subgroup.KAI_NAME: part} if part else {}
    made = f"2026-01-01T00:00:{number:02}Z"
    about = meta.ObjectMeta(
        name=f"p{number}",
        namespace="n",
        uid=str(number),
        labels=labels,
        annotations={"pod-group-name": "g"},
        creation_timestamp=made,
    )
    return core.Pod(metadata=about, spec=core.PodSpec(containers=(), node_name=node))


_steps = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from([*_PARTS, ""]), st.sampled_from(["wait", "bind", "go"])), max_size=25
)


def _state(gang: Gang) -> object:
    parts = {name: _state(one) for name, one in sorted(gang.parts.items())}
    return (set(gang.waiting), set(gang.placed), gang.is_started, gang.lacking, gang.refusal(), parts)


@settings(max_examples=100)
@given(_groups(), _steps, st.integers(0, 25))
def test_what_is_chosen_makes_every_minimum_and_a_group_told_late_is_the_same(
    group: podgroup.PodGroup, steps: list[tuple[int, str, str]], late: int
) -> None:
    early, told_late = Gangs(), Gangs()
    early.note(group)
    parts = dict[int, str]()
    for at, (number, part, act) in enumerate(steps):
        if at == late:
            told_late.note(group)
        parts.setdefault(number, part)
        for gangs in (early, told_late):
            gangs.drop(str(number))
            if act != "go":
                gangs.put(_pod(number, parts[number], "n1" if act == "bind" else ""))
    told_late.note(group)
    gang = next(iter(early.all()), None)
    if gang is None:
        return
    late_one = next(iter(told_late.all()))
    assert (set(gang.waiting), set(gang.placed)) == (set(late_one.waiting), set(late_one.placed))
    if not gang.is_started and not gang.refusal():
        chosen = gang.chosen()
        assert len({pod.metadata.uid for pod in chosen}) == len(chosen) == gang.lacking
        for pod in chosen:
            early.drop(pod.metadata.uid)
            spec = msgspec.structs.replace(pod.spec, node_name="n1")
            early.put(msgspec.structs.replace(pod, spec=spec))
        placed = next(iter(early.all()))
        assert placed.is_started
        assert not placed.lacking


@given(_groups(), _steps)
def test_pods_known_before_their_podgroup_stand_as_those_known_after(
    group: podgroup.PodGroup, steps: list[tuple[int, str, str]]
) -> None:
    before, after = Gangs(), Gangs()
    before.note(group)
    for number, part, act in {one[0]: one for one in steps}.values():
        for gangs in (before, after):
            if act != "go":
                gangs.put(_pod(number, part, "n1" if act == "bind" else ""))
    after.note(group)
    assert [_state(one) for one in before.all()] == [_state(one) for one in after.all()]
