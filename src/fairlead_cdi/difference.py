"""Compares two CDI specs and returns their differences as data.

Entries are matched by what names them (variable, path, container path, interface) and not by position, so a reordered
list is not a difference. Hooks have no name of their own and are matched whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead_cdi import emit
from fairlead_cdi import spec as cdi


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where two specs differ."""

    where: str
    """`devices[0].deviceNodes[/dev/nvidia0]`, with names in brackets."""
    before: Any
    """Plain value; None: not there."""
    after: Any

    @property
    def action(self) -> str:
        """`added`, `removed` or `changed`."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


def diff(before: cdi.Spec, after: cdi.Spec) -> tuple[Difference, ...]:
    """Return every difference between two specs, sorted by place."""
    return tuple(_compare(_facts(before), _facts(after)))


def diff_edits(before: cdi.ContainerEdits, after: cdi.ContainerEdits) -> tuple[Difference, ...]:
    """Return every difference between two sets of container edits, sorted by place."""
    return tuple(_compare(dict(_edit_facts(before, "")), dict(_edit_facts(after, ""))))


def _compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for where in sorted({*before, *after}):
        old, new = before.get(where), after.get(where)
        if old != new:
            yield Difference(where=where, before=old, after=new)


def _facts(spec: cdi.Spec) -> dict[str, Any]:
    facts: dict[str, Any] = {"cdiVersion": spec.cdi_version, "kind": spec.kind}
    facts |= {f"annotations[{key}]": value for key, value in spec.annotations.items()}
    facts |= dict(_edit_facts(spec.edits, "containerEdits."))
    for device in spec.devices:
        place = f"devices[{device.name}]"
        facts[place] = {"name": device.name}
        facts |= {f"{place}.annotations[{key}]": value for key, value in device.annotations.items()}
        facts |= dict(_edit_facts(device.edits, f"{place}."))
    return facts


def _edit_facts(edits: cdi.ContainerEdits, prefix: str) -> Iterator[tuple[str, Any]]:
    for variable in edits.env:
        name, _, value = variable.partition("=")
        yield f"{prefix}env[{name}]", value
    for node in edits.device_nodes:
        yield f"{prefix}deviceNodes[{node.path}]", emit.node_document(node)
    for device in edits.net_devices:
        yield f"{prefix}netDevices[{device.host_interface_name}]", emit.net_device_document(device)
    for mount in edits.mounts:
        yield f"{prefix}mounts[{mount.container_path}]", emit.mount_document(mount)
    for hook in edits.hooks:
        document = emit.hook_document(hook)
        yield f"{prefix}hooks[{hook.hook_name} {' '.join([hook.path, *hook.args])}]", document
    if edits.intel_rdt is not None:
        yield f"{prefix}intelRdt", emit.rdt_document(edits.intel_rdt)
    for gid in edits.additional_gids:
        yield f"{prefix}additionalGids[{gid}]", gid
