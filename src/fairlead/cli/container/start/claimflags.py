"""Reads the options of `fairlead run` that claim devices, and shows the claim that is made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairlead import errors
from fairlead.cli.container.start import gpuoption
from fairlead.cli.core.client import Client
from fairlead.serve.admission.request import ClaimRequest, ContainerRequest
from fairlead.serve.backend.hardware import GPUListing

_INDEX: Final = re.compile(r"index\s*=[\s0-9|]+")


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


def by_name(given: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Return what is given with GPUs that are meant by name as conditions of a claim, which names their UUIDs.

    That is `--gpus device=0,2` and `--where index=0|2`; indices are those that the service lists now.
    Raises: Invalid (`GPUsByName`): GPUs are given by the device plugin here, which lets nobody choose; NotFound.
    """
    asked = [one for word in given["gpus"] if (one := gpuoption.parse(word)) is not None and one.names]
    conditions = [one.strip() for one in str(given["where"]).split(",") if one.strip()]
    indexed = [one for one in conditions if _INDEX.fullmatch(one)]
    if not asked and not indexed:
        return dict(given)
    if asked and _are_counted(client):
        names = ",".join(name for one in asked for name in one.names)
        message = f'GPUs are asked for by number, not by name: "device={names}"'
        hint = f"-g {sum(int(one.count) for one in asked)}; with `node.door=claims` they can be named"
        raise errors.Invalid(message, reason="GPUsByName", hint=hint)
    listing = client.call("GET", "/v1/gpus", GPUListing)
    known = {key: item.gpu.uuid for item in listing.gpus for key in (str(item.gpu.index), item.gpu.uuid)}
    made = [f"uuid={_uuids(one.names, known)}" for one in asked]
    made += [f"uuid={_uuids(one.partition('=')[2].split('|'), known)}" for one in indexed]
    rest = [one for one in conditions if one not in indexed]
    counts = tuple(one.count for one in asked) or given["gpus"]
    return {**given, "gpus": counts, "where": ",".join((*rest, *made))}


def _are_counted(client: Client) -> bool:
    """Return whether a node gives whole GPUs away by the device plugin, which lets nobody choose among them."""
    status = client.status()
    return any(node.allocatable.get(status.resource, "0") != "0" for node in status.nodes)


def _uuids(names: Sequence[str], known: Mapping[str, str]) -> str:
    """Return UUIDs as a condition has several values. Raises: NotFound (`GPUUnknown`)."""
    found: list[str] = []
    for name in (one.strip() for one in names):
        matches = {
            uuid for key, uuid in known.items() if key == name or (name.startswith("GPU-") and key.startswith(name))
        }
        if len(matches) != 1:
            hint = "`fairlead gpus -o wide` lists indices and UUIDs"
            raise errors.NotFound(f'no GPU is "{errors.readable(name)}"', reason="GPUUnknown", hint=hint)
        found += matches
    return "|".join(dict.fromkeys(found))


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
