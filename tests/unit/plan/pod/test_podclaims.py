"""What a pod may say of claims, in the words of an API server."""

from __future__ import annotations

import pytest

from fairlead.plan.pod import admission, resourceclaim
from fairlead.wire.kubernetes import core

_Claim = core.PodResourceClaim
_Named = core.ContainerResourceClaim


def _problems(claims: tuple[_Claim, ...], *named: _Named) -> list[str]:
    item = core.Container(name="main", image="i", resources=core.ResourceRequirements(claims=named))
    spec = core.PodSpec(containers=(item,), resource_claims=claims)
    return list(resourceclaim.problems(spec, admission.containers_by_path(spec)))


_MINE = _Claim(name="g", resource_claim_name="mine")
_AT = "spec.containers[0].resources.claims"


def test_a_pod_with_claims_of_both_kinds_and_containers_that_name_them_is_right() -> None:
    other = _Claim(name="t", resource_claim_template_name="a.b")
    assert _problems((_MINE, other), _Named(name="g", request="one"), _Named(name="g", request="two")) == []
    assert _problems((_MINE, other), _Named(name="g"), _Named(name="t")) == []


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ((_Claim(name=""),), "spec.resourceClaims[0].name: Required value"),
        ((_MINE, _MINE), 'spec.resourceClaims[1].name: Duplicate value: "g"'),
        ((_Claim(name="G", resource_claim_name="m"),), 'spec.resourceClaims[0].name: Invalid value: "G"'),
        ((_Claim(name="x" * 64, resource_claim_name="m"),), "must be no more than 63 characters"),
        ((_Claim(name="g"),), "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
        (
            (_Claim(name="g", resource_claim_name="a", resource_claim_template_name="b"),),
            "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
        ),
        (
            (_Claim(name="g", resource_claim_name="A_B"),),
            'spec.resourceClaims[0].resourceClaimName: Invalid value: "A_B"',
        ),
        ((_Claim(name="g", resource_claim_template_name="x" * 254),), "must be no more than 253 characters"),
    ],
)
def test_a_claim_of_a_pod_that_an_api_server_refuses(claims: tuple[_Claim, ...], words: str) -> None:
    assert any(words in one for one in _problems(claims))


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ((_Named(name=""),), f"{_AT}[0]: Required value"),
        ((_Named(name="g"), _Named(name="g")), f'{_AT}[1]: Duplicate value: "g"'),
        ((_Named(name="g"), _Named(name="g", request="r")), f'{_AT}[1]: Duplicate value: "g"'),
        ((_Named(name="g", request="r"), _Named(name="g")), f'{_AT}[1]: Duplicate value: "g"'),
        ((_Named(name="g", request="r"), _Named(name="g", request="r")), f'{_AT}[1]: Duplicate value: "g/r"'),
        ((_Named(name="g", request="R"),), f'{_AT}[0].request: Invalid value: "R"'),
        ((_Named(name="h"),), f'{_AT}[0]: Not found: "h": must be one of the names in pod.spec.resourceClaims: g'),
    ],
)
def test_a_claim_of_a_container_that_an_api_server_refuses(named: tuple[_Named, ...], words: str) -> None:
    (problem,) = _problems((_MINE,), *named)
    assert problem.startswith(words)


def test_a_container_that_names_a_claim_of_a_pod_without_any() -> None:
    (problem,) = _problems((), _Named(name="g"))
    assert problem == f'{_AT}[0]: Not found: "g": must be one of the names in pod.spec.resourceClaims which is empty'
