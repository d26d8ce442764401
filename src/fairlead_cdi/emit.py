"""Writes CDI documents: only legal specs, in the lowest version that suffices, with stable bytes.

`normal_form` is the form in which a spec is written: the lowest version, and no hostPath where it equals the path,
because a hostPath alone would need 0.5.0. `emit_json` writes it as JSON; `yamltext.emit_yaml` writes the same document
as YAML.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from fairlead_cdi import names, validate
from fairlead_cdi import spec as cdi


def normal_form(spec: cdi.Spec) -> cdi.Spec:
    """Return the spec in the form in which it is written: without redundant host paths, in the lowest version."""
    lean = dataclasses.replace(
        spec,
        devices=tuple(dataclasses.replace(device, edits=_lean(device.edits)) for device in spec.devices),
        edits=_lean(spec.edits),
    )
    return dataclasses.replace(lean, cdi_version=cdi.minimum_version(lean))


def _lean(edits: cdi.ContainerEdits) -> cdi.ContainerEdits:
    nodes = tuple(
        dataclasses.replace(node, host_path="") if node.host_path == node.path else node for node in edits.device_nodes
    )
    return dataclasses.replace(edits, device_nodes=nodes)


def emit_document(spec: cdi.Spec) -> dict[str, Any]:
    """Return the spec as plain values in the order of the specification, ready for any encoder.

    Raises: DocumentError: the spec breaks a writer's rule (`validate.strict_violations`).
    """
    written = normal_form(spec)
    validate.assert_strict(written)
    return as_document(written)


def emit_json(spec: cdi.Spec) -> bytes:
    """Return the spec as one JSON document, indented, with a final newline. Raises: as `emit_document`."""
    return json.dumps(emit_document(spec), indent=2).encode() + b"\n"


def file_name(kind: str, *, suffix: str = ".json", transient_id: str = "") -> str:
    """Return the customary file name of a kind's spec, `vendor-class.json`, or `vendor-class_ID.json` for one pod.

    Source: CDI pkg/cdi/spec-dirs.go, GenerateSpecName and GenerateTransientSpecName.
    """
    vendor, cls = names.split_kind(kind)
    tail = f"_{transient_id.replace('/', '_')}" if transient_id else ""
    return f"{vendor}-{cls}{tail}{suffix}"


def as_document(spec: cdi.Spec) -> dict[str, Any]:
    """Return a spec as plain values, without a check and without a change."""
    document: dict[str, Any] = {"cdiVersion": spec.cdi_version, "kind": spec.kind}
    if spec.annotations:
        document["annotations"] = dict(spec.annotations)
    document["devices"] = [_device(device) for device in spec.devices]
    if spec.edits:
        document["containerEdits"] = edits_document(spec.edits)
    return document


def _device(device: cdi.Device) -> dict[str, Any]:
    document: dict[str, Any] = {"name": device.name}
    if device.annotations:
        document["annotations"] = dict(device.annotations)
    document["containerEdits"] = edits_document(device.edits)
    return document


def edits_document(edits: cdi.ContainerEdits) -> dict[str, Any]:
    """Return container edits as plain values, without what is not declared."""
    return _present(
        env=list(edits.env),
        deviceNodes=[node_document(node) for node in edits.device_nodes],
        netDevices=[net_device_document(device) for device in edits.net_devices],
        hooks=[hook_document(hook) for hook in edits.hooks],
        mounts=[mount_document(mount) for mount in edits.mounts],
        intelRdt=None if edits.intel_rdt is None else rdt_document(edits.intel_rdt),
        additionalGids=list(edits.additional_gids),
    )


def node_document(node: cdi.DeviceNode) -> dict[str, Any]:
    """Return a device node as plain values."""
    return {
        "path": node.path,
        **_present(hostPath=node.host_path, type=node.type, major=node.major or None, minor=node.minor or None),
        **_present(fileMode=node.file_mode, permissions=node.permissions, uid=node.uid, gid=node.gid),
    }


def net_device_document(device: cdi.NetDevice) -> dict[str, Any]:
    """Return a network device as plain values."""
    return {"hostInterfaceName": device.host_interface_name, "name": device.name}


def hook_document(hook: cdi.Hook) -> dict[str, Any]:
    """Return a hook as plain values."""
    document = {"hookName": hook.hook_name, "path": hook.path}
    return document | _present(args=list(hook.args), env=list(hook.env), timeout=hook.timeout)


def mount_document(mount: cdi.Mount) -> dict[str, Any]:
    """Return a mount as plain values."""
    document = {"hostPath": mount.host_path, "containerPath": mount.container_path}
    return document | _present(type=mount.type, options=list(mount.options))


def rdt_document(rdt: cdi.IntelRdt) -> dict[str, Any]:
    """Return Intel RDT as plain values; a declared empty list of schemata stays."""
    document = _present(closID=rdt.clos_id, l3CacheSchema=rdt.l3_cache_schema, memBwSchema=rdt.mem_bw_schema)
    if rdt.schemata is not None:
        document["schemata"] = list(rdt.schemata)
    return document | _present(enableMonitoring=rdt.enable_monitoring or None)


def _present(**fields: Any) -> dict[str, Any]:
    """Keep the fields that say something: not None, not empty; an empty object (intelRdt) says something."""
    return {key: value for key, value in fields.items() if value is not None and value not in ("", [])}
