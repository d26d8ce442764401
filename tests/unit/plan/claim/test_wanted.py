"""Which claims a pod needs: named, made from templates, not made yet, or missing."""

from __future__ import annotations

from fairlead.plan.claim import wanted
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate

_CLAIM = ResourceClaim(metadata=ObjectMeta(name="made", namespace="team"))
_TEMPLATE = ResourceClaimTemplate(metadata=ObjectMeta(name="gpus", namespace="team"))
_CLAIMS = {("team", "made"): _CLAIM}
_TEMPLATES = {("team", "gpus"): _TEMPLATE}
_OF_TEMPLATE = core.PodResourceClaim(name="g", resource_claim_template_name="gpus")
_NAMED = core.PodResourceClaim(name="g", resource_claim_name="made")


def _pod(
    *entries: core.PodResourceClaim,
    made: tuple[core.PodResourceClaimStatus, ...] = (),
    extended: core.PodExtendedResourceClaimStatus | None = None,
    namespace: str = "team",
) -> core.Pod:
    status = core.PodStatus(resource_claim_statuses=made, extended_resource_claim_status=extended)
    about = ObjectMeta(name="web", namespace=namespace)
    return core.Pod(metadata=about, spec=core.PodSpec(resource_claims=entries), status=status)


def test_a_named_claim_is_taken_and_one_that_is_not_there_is_a_problem() -> None:
    found = wanted.of_pod(_pod(_NAMED), _CLAIMS, {})
    assert (found.claims, found.unmade, found.problems) == ((_CLAIM,), frozenset(), ())
    assert wanted.of_pod(_pod(_NAMED), {}, {}).problems == ("claim team/made of its entry g is not there",)


def test_a_template_stands_for_the_claim_that_was_made_or_will_be() -> None:
    made = core.PodResourceClaimStatus(name="g", resource_claim_name="made")
    assert wanted.of_pod(_pod(_OF_TEMPLATE, made=(made,)), _CLAIMS, _TEMPLATES).claims == (_CLAIM,)
    found = wanted.of_pod(_pod(_OF_TEMPLATE), _CLAIMS, _TEMPLATES)
    assert [one.metadata.name for one in found.claims] == ["web-g"]
    assert found.unmade == {"web-g"}
    gone = "ResourceClaimTemplate team/gpus of its entry g is not there"
    assert wanted.of_pod(_pod(_OF_TEMPLATE), _CLAIMS, {}).problems == (gone,)


def test_an_entry_that_needs_no_claim_has_none() -> None:
    none = core.PodResourceClaimStatus(name="g")
    found = wanted.of_pod(_pod(_OF_TEMPLATE, made=(none,)), _CLAIMS, _TEMPLATES)
    assert (found.claims, found.problems) == ((), ())


def test_an_extended_resources_claim_counts_and_a_pod_uses_what_any_of_these_name() -> None:
    extended = core.PodExtendedResourceClaimStatus(resource_claim_name="made")
    pod = _pod(extended=extended)
    assert wanted.of_pod(pod, _CLAIMS, {}).claims == (_CLAIM,)
    assert wanted.uses(pod, _CLAIM)
    assert wanted.uses(_pod(_NAMED), _CLAIM)
    assert wanted.uses(_pod(made=(core.PodResourceClaimStatus(name="g", resource_claim_name="made"),)), _CLAIM)
    assert not wanted.uses(_pod(_OF_TEMPLATE), _CLAIM)
    assert not wanted.uses(_pod(_NAMED, namespace="other"), _CLAIM)
