"""Reads fields of a pod for its own containers: the downward API. Pure.

Source: kubernetes pkg/fieldpath (ExtractFieldPathAsString), pkg/apis/core/validation (validateObjectFieldSelector,
validateContainerResourceFieldSelector), pkg/api/v1/resource (ExtractContainerResourceValue).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead.wire.kubernetes import core, names, quantity
from fairlead.wire.kubernetes.pod.source import FieldSelector, ResourceFieldSelector

_PLAIN: Final = frozenset({"metadata.name", "metadata.namespace", "metadata.uid"})
_MAPS: Final = frozenset({"metadata.labels", "metadata.annotations"})
_ADDRESSES: Final = frozenset({"status.podIP", "status.podIPs"})
_OF_VARIABLES: Final = (
    _PLAIN
    | _ADDRESSES
    | {
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
    }
)
_KEYED: Final = re.compile(r"(metadata\.(?:labels|annotations))\['([^']+)'\]")
_KEY: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESOURCE: Final = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage)")
_DIVISORS: Final = {
    "cpu": frozenset({"1m", "1"}),
    "memory": frozenset({"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}),
}
_ESCAPED: Final = re.compile(r"\\u00([0-9a-f]{2})")
_GO_ESCAPES: Final = {"07": "\\a", "0b": "\\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a pod's object does not say of where it runs."""

    pod_addresses: tuple[str, ...] = ()
    host_addresses: tuple[str, ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """Of the node, by resource: the limit of a container that has none."""


UNKNOWN: Final = Facts()


def field_problems(path: str, source: FieldSelector, *, is_file: bool) -> Iterator[str]:
    """Yield what is wrong with a reference to a field. Args: is_file: of a volume, which has other fields."""
    wanted = source.field_path
    if not wanted:
        yield f"{path}.fieldPath: Required value"
        return
    keyed = _KEYED.fullmatch(wanted)
    if keyed:
        if not _KEY.fullmatch(keyed[2]):
            yield f'{path}.fieldPath: Invalid value: "{wanted}": "{keyed[2]}" is not a key of a label or annotation'
    elif wanted not in (_PLAIN | _MAPS if is_file else _OF_VARIABLES):
        offered = sorted(_PLAIN | _MAPS if is_file else _OF_VARIABLES)
        shown = ", ".join([*offered, "metadata.labels['KEY']", "metadata.annotations['KEY']"])
        yield f'{path}.fieldPath: Unsupported value: "{errors.readable(wanted[:80])}": supported values: {shown}'
    if source.api_version not in {"", "v1"}:
        yield f'{path}.apiVersion: Invalid value: "{errors.readable(source.api_version[:80])}": only v1 is known'


def resource_problems(path: str, source: ResourceFieldSelector, spec: core.PodSpec, *, is_file: bool) -> Iterator[str]:
    """Yield what is wrong with a reference to a limit or request."""
    found = _RESOURCE.fullmatch(source.resource)
    if found is None:
        shown = errors.readable(source.resource[:80])
        offered = ", ".join(f"{kind}.{name}" for kind in ("limits", "requests") for name in _BY_NAME)
        yield f'{path}.resource: Unsupported value: "{shown}": supported values: {offered}'
        return
    if is_file and not source.container_name:
        yield f"{path}.containerName: Required value"
    if source.container_name and _container(spec, source.container_name) is None:
        yield f'{path}.containerName: Not found: "{errors.readable(source.container_name[:80])}"'
    offered_divisors = _DIVISORS["cpu" if found[2] == "cpu" else "memory"]
    if str(source.divisor) not in {"", "0", *offered_divisors}:
        shown = errors.readable(str(source.divisor)[:80])
        yield f'{path}.divisor: Invalid value: "{shown}": only {", ".join(sorted(offered_divisors))} are supported'


_BY_NAME: Final = ("cpu", "memory", "ephemeral-storage")


def needs_address(spec: core.PodSpec) -> bool:
    """Return whether a container is given the pod's own address, which is there before the container is."""
    sources = (one.value_from for item in (*spec.init_containers, *spec.containers) for one in item.env)
    fields = (source.field_ref for source in sources if source is not None)
    return any(one is not None and one.field_path in _ADDRESSES for one in fields)


def field_value(pod: core.Pod, wanted: str, facts: Facts) -> str:
    """Return a field as text; empty where the pod has none of it."""
    about = pod.metadata
    if keyed := _KEYED.fullmatch(wanted):
        return _map(pod, keyed[1]).get(keyed[2], "")
    if wanted in _MAPS:
        return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(_map(pod, wanted).items()))
    plain = {
        "metadata.name": about.name,
        "metadata.namespace": about.namespace,
        "metadata.uid": about.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.hostIP": next(iter(facts.host_addresses), ""),
        "status.hostIPs": ",".join(facts.host_addresses),
        "status.podIP": next(iter(facts.pod_addresses), ""),
        "status.podIPs": ",".join(facts.pod_addresses),
    }
    return plain.get(wanted, "")


def _map(pod: core.Pod, which: str) -> dict[str, str]:
    """Return labels or annotations without those that only Fairlead writes."""
    given = pod.metadata.labels if which == "metadata.labels" else pod.metadata.annotations
    return {key: value for key, value in given.items() if not names.is_own(key)}


def _quoted(text: str) -> str:
    """Return a text in quotes as Go's `%q` has it, which the kubelet writes."""

    def go(found: re.Match[str]) -> str:
        return _GO_ESCAPES.get(found[1], f"\\x{found[1]}")

    return _ESCAPED.sub(go, json.dumps(text, ensure_ascii=False))


def resource_value(spec: core.PodSpec, item: core.Container | None, source: ResourceFieldSelector, facts: Facts) -> str:
    """Return a limit or request in units of the divisor, rounded up.

    Args: item: the container that has the variable; None: the reference names one.
    """
    owner = _container(spec, source.container_name) if source.container_name else item
    kind, _, name = source.resource.partition(".")
    given = owner.resources.limits if owner is not None and kind == "limits" else {}
    if owner is not None and kind == "requests":
        given = {**owner.resources.limits, **owner.resources.requests}
    text = given.get(name, facts.allocatable.get(name, "0") if kind == "limits" else "0")
    divisor = quantity.parse_quantity(source.divisor or "1") or 1
    return str(math.ceil(quantity.parse_quantity(text) / divisor))


def _container(spec: core.PodSpec, name: str) -> core.Container | None:
    return next((one for one in (*spec.init_containers, *spec.containers) if one.name == name), None)
