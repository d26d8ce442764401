"""Judges what a pod says of claims before it is stored, in the API server's words.

Source: kubernetes 1.37 pkg/apis/core/validation/validation.go, validatePodResourceClaims, validateResourceClaimNames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from fairlead.wire.kubernetes import core, names

_LONGEST_LABEL: Final = 63
_LONGEST: Final = 253


def is_name(text: str) -> bool:
    """Return whether a claim, a template or a DeviceClass can have a name."""
    return len(text) <= _LONGEST and names.is_dns_subdomain(text)


def problems(spec: core.PodSpec, containers: Iterable[tuple[str, core.Container]]) -> Iterator[str]:
    """Yield what is wrong with the claims of a pod, and with those that its containers name.

    Args: containers: with the path of each.
    """
    seen = set[str]()
    for at, one in enumerate(spec.resource_claims):
        path = f"spec.resourceClaims[{at}]"
        if one.name in seen:
            yield f'{path}.name: Duplicate value: "{one.name}"'
        else:
            yield from _label(f"{path}.name", one.name)
        seen.add(one.name)
        yield from _source(path, one)
    known = sorted(name for name in seen if name)
    for path, item in containers:
        yield from _named(f"{path}.resources.claims", item.resources.claims, known)


def _source(path: str, one: core.PodResourceClaim) -> Iterator[str]:
    given = {
        "resourceClaimName": one.resource_claim_name,
        "resourceClaimTemplateName": one.resource_claim_template_name,
    }
    found = {field: name for field, name in given.items() if name is not None}
    if len(found) != 1:
        both = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        rule = both if found else "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        yield f"{path}: Invalid value: {msgspec.json.encode(one).decode()}: {rule}"
    for field, name in found.items():
        if len(name) > _LONGEST:
            yield f'{path}.{field}: Invalid value: "{name}": must be no more than {_LONGEST} characters'
        elif not names.is_dns_subdomain(name):
            yield f'{path}.{field}: Invalid value: "{name}": {names.SUBDOMAIN_RULE}'


def _named(path: str, claims: Iterable[core.ContainerResourceClaim], known: list[str]) -> Iterator[str]:
    """Yield what is wrong with the claims that one container names."""
    seen = dict[str, set[str]]()
    for at, one in enumerate(claims):
        where, before = f"{path}[{at}]", seen.get(one.name)
        if not one.name:
            yield f"{where}: Required value"
            continue
        if before is not None and ("" in before or not one.request or one.request in before):
            shown = one.name if not one.request or "" in before else f"{one.name}/{one.request}"
            yield f'{where}: Duplicate value: "{shown}"'
        elif one.request:
            yield from _label(f"{where}.request", one.request)
        seen.setdefault(one.name, set()).add(one.request)
        if one.name not in known:
            there = f": {', '.join(known)}" if known else " which is empty"
            yield f'{where}: Not found: "{one.name}": must be one of the names in pod.spec.resourceClaims{there}'


def _label(path: str, name: str) -> Iterator[str]:
    if not name:
        yield f"{path}: Required value"
    elif len(name) > _LONGEST_LABEL:
        yield f'{path}: Invalid value: "{name}": must be no more than {_LONGEST_LABEL} characters'
    elif not names.is_dns_label(name):
        yield f'{path}: Invalid value: "{name}": {names.DNS_RULE}'
