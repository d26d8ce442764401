"""Judges objects of resource.k8s.io one by one and together, and says so in lines."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.cli.layer.dra import note
from fairlead.cli.layer.dra.read import Objects
from fairlead.plan.claim import consistency, expression
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.validate import door
from fairlead.plan.claim.validate.request import Rules
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.resource import resourceclaim
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.poolstatusrequest import ResourcePoolStatusRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_UNJUDGED: Final = (
    f"Not judged: whether a namespace allows admin access (label {resourceclaim.ADMIN_ACCESS}): it is taken to."
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one object."""

    item: str
    refused: tuple[str, ...] = ()
    """Why an API server would refuse it."""
    dropped: tuple[str, ...] = ()
    """Fields that it would drop, since their feature is off."""
    unknown: tuple[str, ...] = ()
    """Fields that Kubernetes does not have, or Fairlead does not read."""
    problems: tuple[str, ...] = ()
    """What is wrong between it and others."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of objects; those with nothing to say are only counted."""

    looked_at: int
    findings: tuple[Finding, ...]
    unread: tuple[str, ...]
    others: Mapping[str, int]
    """By kind: objects that were passed over."""
    unjudged: str = _UNJUDGED

    @property
    def is_wrong(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.unread or self.findings)


def judge(found: Objects, chosen: Gates) -> Report:
    """Return what is to be said of objects."""
    items = [one.item for one in found.items]
    between: dict[str, list[str]] = {}
    for problem in consistency.problems(_of(items, ResourceSlice), _of(items, ResourceClaim), _of(items, DeviceClass)):
        between.setdefault(problem.item, []).append(problem.text)
    findings = []
    for one in found.items:
        name = _name(one.item)
        refused, dropped = _admitted(one.item, chosen)
        mine = tuple(between.pop(name, ()))
        if refused or dropped or one.ignored or mine:
            findings.append(_finding(name, refused=refused, dropped=dropped, unknown=one.ignored, problems=mine))
    findings += [_finding(name, problems=texts) for name, texts in between.items()]
    return Report(looked_at=len(items), findings=tuple(findings), unread=found.unread, others=found.others)


def _finding(item: str, **texts: Sequence[str]) -> Finding:
    """Return a finding whose texts are bounded: a name may be of 10 MB."""
    return Finding(
        item=errors.readable(item), **{key: tuple(map(errors.readable, found)) for key, found in texts.items()}
    )


def _of(items: Sequence[meta.Object], kind: type[Any]) -> list[Any]:
    return [one for one in items if isinstance(one, kind)]


def _name(item: meta.Object) -> str:
    about = item.metadata
    where = f"{about.namespace}/" if about.namespace or item.NAMESPACED else ""
    return f"{item.KIND} {where}{about.name or about.generate_name}"


def _admitted(item: meta.Object, chosen: Gates) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return why an API server would refuse an object, and the fields that it would drop of it."""
    try:
        return (), _DOORS[type(item)](item, chosen)
    except errors.Invalid as error:
        problems = error.context.get("problems")
        return tuple(map(str, problems)) if isinstance(problems, list) else (error.message,), ()


def _rules(chosen: Gates) -> Rules:
    return expression.rules(chosen)


def _claim(item: Any, chosen: Gates) -> tuple[str, ...]:
    rules, allowed = _rules(chosen), {resourceclaim.ADMIN_ACCESS: "true"}
    if not item.metadata.resource_version:  # of a file that no server wrote: its status is judged all the same
        about = msgspec.structs.replace(item.metadata, resource_version="1")
        item = msgspec.structs.replace(item, metadata=about)
    made = door.admit_claim(item, rules, namespace_labels=allowed)
    if item.status == type(item.status)():
        return made.dropped
    told = door.admit_claim_status(item, rules, namespace_labels=allowed, old=made.item)
    return (*made.dropped, *told.dropped)


def _template(item: Any, chosen: Gates) -> tuple[str, ...]:
    return door.admit_template(item, _rules(chosen), namespace_labels={resourceclaim.ADMIN_ACCESS: "true"}).dropped


def _taint_rule(item: Any, _chosen: Gates) -> tuple[str, ...]:
    door.admit_taint_rule(item, _now())
    return ()


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_DOORS: Final[Mapping[type[meta.Object], Callable[[Any, Gates], tuple[str, ...]]]] = {
    ResourceSlice: lambda item, chosen: door.admit_slice(item, chosen, _now()).dropped,
    ResourceClaim: _claim,
    ResourceClaimTemplate: _template,
    DeviceClass: lambda item, chosen: door.admit_class(item, _rules(chosen)).dropped,
    DeviceTaintRule: _taint_rule,
    ResourcePoolStatusRequest: lambda item, chosen: door.admit_pool_status_request(item, chosen).dropped,
}


def lines(found: Report) -> Iterator[str]:
    """Yield a report for a terminal."""
    for one in found.findings:
        yield from note.wrapped(one.item)
        for words, texts in (
            ("refused", one.refused),
            ("wrong", one.problems),
            ("dropped, its feature is off", one.dropped),
            ("not a field, or not read", one.unknown),
        ):
            for text in texts:
                yield from note.wrapped(f"{words}: {text}", indent=4, first=2)
    for text in found.unread:
        yield from note.wrapped(f"unreadable: {text}", indent=2, first=0)
    wrong = len(found.findings) + len(found.unread)
    said = f"something is wrong with {wrong} of them" if wrong else "nothing is wrong"
    yield f"{found.looked_at + len(found.unread)} objects looked at: {said}."
    if found.others:
        passed = ", ".join(f"{count} {kind}" for kind, count in found.others.items())
        yield from note.wrapped(f"Passed over: {passed}.")
    yield from note.wrapped(found.unjudged)
