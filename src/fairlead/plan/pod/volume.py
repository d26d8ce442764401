"""Judges a pod's volumes before it is stored, in the API server's words.

A volume's name is a folder of the host as well, so that anything but a label is refused here.
Source: kubernetes pkg/apis/core/validation, ValidateVolumes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.plan.pod.values import secret, valuevolume
from fairlead.wire.kubernetes import core, names, quantity

_UNFIT: Final = re.compile(r"[^a-z0-9.-]+")
_LONGEST: Final = 253


def problems(spec: core.PodSpec) -> Iterator[str]:
    """Yield what is wrong, path by path; names that are given twice are the caller's."""
    for index, one in enumerate(spec.volumes):
        path = f"spec.volumes[{index}]"
        if not names.is_dns_label(one.name):
            yield f'{path}.name: Invalid value: "{one.name}": {names.DNS_RULE}'
        given = (one.host_path, one.empty_dir, one.persistent_volume_claim)
        if not any(given) and not valuevolume.is_of_values(one):
            yield (
                f"{path}: Required value: must specify a volume type we offer (hostPath, emptyDir, "
                "persistentVolumeClaim, secret, configMap, downwardAPI, projected)"
            )
        yield from valuevolume.problems(path, one, spec)
        if one.secret is not None:
            yield from secret.volume_problems(f"{path}.secret", one.secret)
        if one.persistent_volume_claim is not None and not one.persistent_volume_claim.claim_name:
            yield f"{path}.persistentVolumeClaim.claimName: Required value"
        if one.empty_dir is not None:
            yield from _empty_dir(f"{path}.emptyDir", one.empty_dir)


def _empty_dir(path: str, source: core.EmptyDirVolume) -> Iterator[str]:
    if source.medium not in {"", "Memory"}:
        yield f'{path}.medium: Unsupported value: "{source.medium}": supported values: "", "Memory"'
    if source.size_limit is None:
        return
    if source.medium != "Memory":
        yield f"{path}.sizeLimit: Forbidden: it is kept for medium Memory only here; leave it out"
    try:
        size = quantity.parse_quantity(source.size_limit)
    except errors.RequestError as error:
        yield f'{path}.sizeLimit: Invalid value: "{source.size_limit}": {error.message}'
        return
    if size <= 0:
        yield f'{path}.sizeLimit: Invalid value: "{source.size_limit}": must be greater than 0'


def check_name(name: str) -> None:
    """Refuse what no claim can be called. Raises: Invalid (`VolumeNameInvalid`)."""
    if not names.is_dns_subdomain(name) or len(name) > _LONGEST:
        close = _UNFIT.sub("-", name.lower()).strip("-.")[:_LONGEST] or "data"
        shown = name.replace("\0", "\\0")
        message = f'volume name "{shown}" is not of lower case letters, digits, "-" and "."'
        raise errors.Invalid(message, reason="VolumeNameInvalid", hint=f'for example "{close}"')


def folder(root: Path, claim: core.PersistentVolumeClaim) -> Path:
    """Return where a claim's files are; by its uid, so that a later claim of its name never sees them.

    Args: root: the folder of all claims, which only root may enter.
    """
    return root / claim.metadata.namespace / claim.metadata.uid


def claims(spec: core.PodSpec) -> tuple[str, ...]:
    """Return the names of the claims that a pod mounts."""
    found = (one.persistent_volume_claim.claim_name for one in spec.volumes if one.persistent_volume_claim is not None)
    return tuple(dict.fromkeys(found))


def users(pods: Iterable[core.Pod]) -> dict[str, tuple[str, ...]]:
    """Return, by claim, the pods of one namespace that name it, ended ones too."""
    found: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        for name in claims(pod.spec):
            found[name] = (*found.get(name, ()), pod.metadata.name)
    return found


def missing(spec: core.PodSpec, present: Iterable[core.PersistentVolumeClaim]) -> str:
    """Return what is wrong with the claims that a pod names; empty: each is there and stays."""
    known: Mapping[str, core.PersistentVolumeClaim] = {one.metadata.name: one for one in present}
    for name in claims(spec):
        if name not in known:
            return f'volume "{name}" is not there'
        if known[name].metadata.deletion_timestamp is not None:
            return f'volume "{name}" is being removed'
    return ""
