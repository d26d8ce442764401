"""Judges a pod's volumes before it is stored, in the API server's words.

A volume's name is a folder of the host as well, so that anything but a label is refused here.
Source: kubernetes pkg/apis/core/validation, ValidateVolumes.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead import errors
from fairlead.wire.kubernetes import core, dnslabel, quantity


def problems(spec: core.PodSpec) -> Iterator[str]:
    """Yield what is wrong, path by path; names that are given twice are the caller's."""
    for index, one in enumerate(spec.volumes):
        path = f"spec.volumes[{index}]"
        if not dnslabel.is_label(one.name):
            yield f'{path}.name: Invalid value: "{one.name}": {dnslabel.RULE}'
        if one.host_path is None and one.empty_dir is None:
            yield f"{path}: Required value: must specify a volume type we offer (hostPath, emptyDir)"
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
