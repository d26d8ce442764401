"""Reads the options of `fairlead run` that claim devices, and shows the claim that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead import errors
from fairlead.cli.container import gpuoption
from fairlead.serve.admission.request import ClaimRequest, ContainerRequest


def claims(values: Sequence[str]) -> tuple[ClaimRequest, ...]:
    """Return the claims of `--claim NAME` and `--claim NAME=TEMPLATE`. Raises: Invalid (`ClaimInvalid`)."""
    found = []
    for word in values:
        name, equals, template = word.partition("=")
        if not name or (equals and not template):
            message = f'--claim "{word}" is neither a claim nor NAME=TEMPLATE'
            raise errors.Invalid(message, reason="ClaimInvalid", hint="--claim mine, or --claim gpus=two-h100s")
        found.append(ClaimRequest(name=name, template=template))
    return tuple(found)


def is_claiming(given: Mapping[str, Any]) -> bool:
    """Return whether a claim is made with the container: `-g` counts its devices then."""
    return bool(given["device_class"] or given["where"])


def made(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields `gpus`, `device_class` and `where` of a claim that is made with the container.

    Raises: Invalid (`WhereInvalid`, `GPUsInvalid`, `FractionInvalid`): options that say nothing of a claim.
    """
    # What no other run needs.
    from fairlead.plan.claim import where
    from fairlead.plan.claim.validate.resourceclaim import RESULTS_MOST

    if given["gpu_memory"] is not None or given["gpu_compute"] is not None:
        message = "--gpu-memory and --gpu-compute ask for part of one GPU, --where and --device-class for a claim"
        raise errors.Invalid(message, reason="FractionInvalid", hint="--where 'memory>=40Gi' asks for a larger GPU")
    where.parse(given["where"])
    if len(given["gpus"]) > 1:
        message = "-g is given more than once, and a claim here has devices of one class"
        raise errors.Invalid(message, reason="GPUsInvalid", hint="`fairlead run -f FILE` takes a claim with several")
    word = next(iter(given["gpus"]), "1")
    docker = gpuoption.parse(word)
    count = word if docker is None else docker.count
    if not (count.isascii() and count.isdecimal() and len(count) <= len(str(RESULTS_MOST))):
        message = f'-g "{word}" is not a number of devices that one claim can have'
        raise errors.Invalid(message, reason="GPUsInvalid", hint="-g 2: with --where and --device-class by number")
    return {"gpus": int(count), "device_class": given["device_class"], "where": given["where"]}


def document(request: ContainerRequest) -> str:
    """Return the claim that is made with a container as a manifest; empty: none is."""
    if not request.device_class and not request.where:
        return ""
    import msgspec
    import yaml

    from fairlead.plan.claim import where
    from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

    count = request.gpus if isinstance(request.gpus, int) else 1
    spec = where.claim_spec(count, request.device_class, where.parse(request.where))
    name = f"{request.name or 'NAME'}-{where.REQUEST}-"
    found = {
        "apiVersion": ResourceClaim.API_VERSION,
        "kind": ResourceClaim.KIND,
        "metadata": {"generateName": name, **({"namespace": request.namespace} if request.namespace else {})},
        "spec": msgspec.to_builtins(spec),
    }
    text: str = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=200)
    return text.rstrip("\n")
