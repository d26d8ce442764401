"""Finds what a claim or a pod waits for: its claims, those that its templates will become, and where it may run.

Source: kubernetes 1.37 pkg/controller/resourceclaim and staging/src/k8s.io/dynamic-resource-allocation/resourceclaim
(`Name`): which claim stands behind an entry of `spec.resourceClaims` (behaviour).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate

Name = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaims:
    """The claims of a pod."""

    claims: tuple[ResourceClaim, ...]
    """Those that are there, and those that templates will become."""
    unmade: frozenset[str]
    """Names of those that are not made yet."""
    problems: tuple[str, ...]
    """Why others are missing; any keeps the pod from being scheduled."""


def of_pod(
    pod: core.Pod, claims: Mapping[Name, ResourceClaim], templates: Mapping[Name, ResourceClaimTemplate]
) -> PodClaims:
    """Return the claims that a pod needs, in the order of its entries; an extended resource's last."""
    namespace = pod.metadata.namespace
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    found: list[ResourceClaim] = []
    unmade: list[str] = []
    problems: list[str] = []

    def take(entry: str, name: str) -> None:
        claim = claims.get((namespace, name))
        if claim is None:
            problems.append(f"claim {namespace}/{name} of its entry {entry} is not there")
        else:
            found.append(claim)

    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name is not None:
            take(entry.name, entry.resource_claim_name)
        elif entry.name in made:
            if (name := made[entry.name]) is not None:
                take(entry.name, name)
        elif (template := templates.get((namespace, entry.resource_claim_template_name or ""))) is not None:
            claim = _made(pod, entry.name, template)
            found.append(claim)
            unmade.append(claim.metadata.name)
        else:
            shown = f"{namespace}/{entry.resource_claim_template_name}"
            problems.append(f"ResourceClaimTemplate {shown} of its entry {entry.name} is not there")
    if (extended := pod.status.extended_resource_claim_status) is not None:
        take("for extended resources", extended.resource_claim_name)
    return PodClaims(claims=tuple(found), unmade=frozenset(unmade), problems=tuple(problems))


def uses(pod: core.Pod, claim: ResourceClaim) -> bool:
    """Return whether a pod needs a claim."""
    if pod.metadata.namespace != claim.metadata.namespace:
        return False
    names = {entry.resource_claim_name for entry in pod.spec.resource_claims}
    names |= {one.resource_claim_name for one in pod.status.resource_claim_statuses}
    if (extended := pod.status.extended_resource_claim_status) is not None:
        names.add(extended.resource_claim_name)
    return claim.metadata.name in names


def _made(pod: core.Pod, entry: str, template: ResourceClaimTemplate) -> ResourceClaim:
    about = meta.ObjectMeta(name=f"{pod.metadata.name}-{entry}", namespace=pod.metadata.namespace)
    return ResourceClaim(metadata=about, spec=template.spec.spec)
