"""Makes pods of templates, and says where the pods of an owner are. Pure.

Source: kubernetes pkg/controller/controller_utils.go (GetPodFromTemplate, FilterActivePods, ActivePodsWithRanks).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Of names that are made: no vowels, so that no word comes of it."""
_LONGEST: Final = 253
HASH: Final = "pod-template-hash"


def suffix(text: str, length: int = 5) -> str:
    """Return letters that stand for a text, as a part of a name."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    found = []
    for _ in range(length):
        number, digit = divmod(number, len(_LETTERS))
        found.append(_LETTERS[digit])
    return "".join(found)


def template_hash(template: PodTemplateSpec) -> str:
    """Return what tells two templates apart: equal templates have the same."""
    return suffix(msgspec.json.encode(template, order="deterministic").decode(), 10)


def name(base: str, end: str) -> str:
    """Return `BASE-END`, the base cut where it would be too long."""
    return f"{base[: _LONGEST - len(end) - 1].rstrip('-.')}-{end}"


def owned_by(owner: meta.Object, item: meta.Object) -> bool:
    """Return whether an object is another one's, by uid."""
    return any(one.controller and one.uid == owner.metadata.uid for one in item.metadata.owner_references)


def reference(owner: meta.Object) -> meta.OwnerReference:
    """Return what names an object as the owner of what it makes."""
    return meta.OwnerReference(
        api_version=owner.API_VERSION,
        kind=owner.KIND,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def pod(
    owner: meta.Object,
    template: PodTemplateSpec,
    wanted: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: tuple[str, ...] = (),
) -> core.Pod:
    """Return a pod of a template, not admitted yet.

    Args: wanted: its name.   labels, annotations: beside those of the template.
    """
    about = meta.ObjectMeta(
        name=wanted,
        namespace=owner.metadata.namespace,
        labels={**template.metadata.labels, **(labels or {})},
        annotations={**template.metadata.annotations, **(annotations or {})},
        finalizers=finalizers,
        owner_references=(reference(owner),),
    )
    return core.Pod(metadata=about, spec=template.spec)


def is_active(item: core.Pod) -> bool:
    """Return whether a pod runs or will run."""
    return item.status.phase not in core.ENDED_PHASES and item.metadata.deletion_timestamp is None


def is_terminating(item: core.Pod) -> bool:
    """Return whether a pod is on its way out and may still run."""
    return item.metadata.deletion_timestamp is not None and item.status.phase not in core.ENDED_PHASES


def is_ready(item: core.Pod) -> bool:
    """Return whether a pod serves."""
    found = meta.find_condition(item.status.conditions, "Ready")
    return found is not None and found.status == "True" and item.metadata.deletion_timestamp is None


def ready_since(item: core.Pod) -> float | None:
    """Return since when a pod serves, Unix seconds; None: it does not."""
    found = meta.find_condition(item.status.conditions, "Ready")
    return meta.timestamp(found.last_transition_time) if found is not None and is_ready(item) else None


def is_available(item: core.Pod, min_ready_s: int, now: float) -> bool:
    """Return whether a pod has been ready for long enough."""
    since = ready_since(item)
    return since is not None and now - since >= min_ready_s


def by_worth(pods: Iterable[core.Pod]) -> list[core.Pod]:
    """Return pods in the order in which they are given up: not placed, not running, not ready, youngest first."""

    def rank(item: core.Pod) -> tuple[object, ...]:
        placed, running = bool(item.spec.node_name), item.status.phase == "Running"
        return (
            placed,
            running,
            is_ready(item),
            -(meta.timestamp(item.metadata.creation_timestamp) or 0.0),
            item.metadata.name,
        )

    return sorted(pods, key=rank)


def count(text: int | str | None, of: int, *, default: int | str, is_up: bool) -> int:
    """Return a number that may be a percentage of another. Args: is_up: a fraction counts as one more."""
    value = default if text is None else text
    if isinstance(value, int):
        return value
    number = int(value.removesuffix("%")) * of
    return -(-number // 100) if is_up else number // 100


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether labels have everything that is asked for; a selector that asks for nothing finds nothing."""
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())
