"""Checks CDI specs: yields what one breaks of the Go library's rules for reading or the specification's for writing.

`violations` has what engines enforce when they load a file, no more and no less. `strict_violations` adds what SPEC.md,
the OCI runtime spec and experience with runtimes ask of a writer: legal names, absolute paths, usable mount options,
positive timeouts, hooks that carry their own environment. Both only report; `assert_valid` and `assert_strict` raise.
Source: CDI pkg/cdi/{spec,device,container-edits}.go, spec 1.1.0; OCI runtime-spec config.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final, NamedTuple

from fairlead_cdi import annotation, errors, names
from fairlead_cdi import spec as cdi

_NODE_TYPES: Final = ("", "b", "c", "u", "p")
_CLOS_LIMIT: Final = 4096


class Violation(NamedTuple):
    """One broken rule."""

    where: str
    """Place in the document, `devices[gpu0].containerEdits.env[0]`."""
    message: str

    def __str__(self) -> str:
        """Return place and rule in one line."""
        return f"{self.where}: {self.message}"


def assert_valid(spec: cdi.Spec) -> None:
    """Check that engines would load this spec. Raises: DocumentError: the first rule that it breaks."""
    _assert_none(violations(spec))


def assert_strict(spec: cdi.Spec) -> None:
    """Check that this spec may be written. Raises: DocumentError: the first rule that it breaks."""
    _assert_none(strict_violations(spec))


def _assert_none(found: Iterator[Violation]) -> None:
    first = next(found, None)
    if first is not None:
        raise errors.DocumentError(str(first), reason="SpecInvalid", field=first.where)


def violations(spec: cdi.Spec) -> Iterator[Violation]:
    """Yield every rule of the Go library that this spec breaks."""
    yield from _version_violations(spec)
    vendor, cls = names.split_kind(spec.kind)
    for problem in (names.vendor_problem(vendor), names.class_problem(cls)):
        if problem:
            yield Violation("kind", f'"{spec.kind}": {problem}')
    if not spec.devices:
        yield Violation("devices", "no devices")
    seen: set[str] = set()
    for device in spec.devices:
        where = f"devices[{device.name}]"
        problem = names.device_problem(device.name)
        if problem:
            yield Violation(where, problem)
        if device.name in seen:
            yield Violation(where, f'device name "{device.name}" is given twice')
        seen.add(device.name)
        if not device.edits:
            yield Violation(f"{where}.containerEdits", "is empty")
        yield from edit_violations(device.edits, f"{where}.containerEdits")
    yield from edit_violations(spec.edits, "containerEdits")


def _version_violations(spec: cdi.Spec) -> Iterator[Violation]:
    declared = cdi.version_rank(spec.cdi_version)
    if declared < 0:
        yield Violation("cdiVersion", f'"{spec.cdi_version}" is not a version (known: {", ".join(cdi.VERSIONS)})')
        return
    lowest = cdi.minimum_version(spec)
    if declared < cdi.version_rank(lowest):
        yield Violation("cdiVersion", f'"{spec.cdi_version}" is too low: the spec uses features of {lowest}')


def edit_violations(edits: cdi.ContainerEdits, where: str) -> Iterator[Violation]:
    """Yield every rule of the Go library that these edits break."""
    for position, variable in enumerate(edits.env):
        if variable.find("=") <= 0:
            yield Violation(f"{where}.env[{position}]", f'"{variable}" is not of the form NAME=value')
    for position, node in enumerate(edits.device_nodes):
        yield from _node_violations(node, f"{where}.deviceNodes[{position}]")
    for position, hook in enumerate(edits.hooks):
        place = f"{where}.hooks[{position}]"
        if hook.hook_name not in cdi.HOOK_NAMES:
            yield Violation(f"{place}.hookName", f'"{hook.hook_name}" is not a stage ({", ".join(cdi.HOOK_NAMES)})')
        if not hook.path:
            yield Violation(f"{place}.path", "is empty")
        yield from _env_violations(hook, place)
    for position, mount in enumerate(edits.mounts):
        if not mount.host_path or not mount.container_path:
            yield Violation(f"{where}.mounts[{position}]", "hostPath and containerPath must be given")
    if edits.intel_rdt is not None:
        yield from _clos_violations(edits.intel_rdt.clos_id, f"{where}.intelRdt.closID")
    yield from _net_violations(edits.net_devices, f"{where}.netDevices")


def _env_violations(hook: cdi.Hook, where: str) -> Iterator[Violation]:
    for position, variable in enumerate(hook.env):
        if variable.find("=") <= 0:
            yield Violation(f"{where}.env[{position}]", f'"{variable}" is not of the form NAME=value')


def _node_violations(node: cdi.DeviceNode, where: str) -> Iterator[Violation]:
    if not node.path:
        yield Violation(f"{where}.path", "is empty")
    if node.type not in _NODE_TYPES:
        yield Violation(f"{where}.type", f'"{node.type}" is not a device type (known: b, c, u, p)')
    if node.permissions != cdi.NO_ACCESS and not set(node.permissions) <= set("rwm"):
        yield Violation(f"{where}.permissions", f'"{node.permissions}" has letters other than r, w, m and is not none')


def _clos_violations(clos: str, where: str) -> Iterator[Violation]:
    if clos == "/":
        return
    if len(clos) >= _CLOS_LIMIT or clos in {".", ".."} or "/" in clos or "\n" in clos:
        yield Violation(where, f'"{clos:.80}" cannot be a folder name')


def _net_violations(devices: tuple[cdi.NetDevice, ...], where: str) -> Iterator[Violation]:
    hosts: set[str] = set()
    inside: set[str] = set()
    for position, device in enumerate(devices):
        place = f"{where}[{position}]"
        for key, text, seen in (
            ("hostInterfaceName", device.host_interface_name, hosts),
            ("name", device.name, inside),
        ):
            if not text:
                yield Violation(f"{place}.{key}", "is empty")
            elif text in seen:
                yield Violation(f"{place}.{key}", f'"{text}" is given twice')
            seen.add(text)


def strict_violations(spec: cdi.Spec) -> Iterator[Violation]:
    """Yield every rule for writers that this spec breaks: those of `violations`, and those of the specification."""
    yield from violations(spec)
    problem = names.strict_kind_problem(spec.kind)
    if problem:
        yield Violation("kind", problem)
    for message in annotation.problems(spec.annotations):
        yield Violation("annotations", message)
    for device in spec.devices:
        where = f"devices[{device.name}]"
        problem = names.strict_device_problem(device.name)
        if problem:
            yield Violation(where, problem)
        for message in annotation.problems(device.annotations):
            yield Violation(f"{where}.annotations", message)
        yield from _strict_edits(device.edits, f"{where}.containerEdits")
    yield from _strict_edits(spec.edits, "containerEdits")


def _strict_edits(edits: cdi.ContainerEdits, where: str) -> Iterator[Violation]:
    for node in edits.device_nodes:
        place = f"{where}.deviceNodes[{node.path}]"
        if not is_plain_path(node.path) or not is_plain_path(node.host_path or "/"):
            yield Violation(place, "paths must be absolute and without . or ..")
        if node.permissions == cdi.NO_ACCESS:
            yield Violation(place, "permissions none is refused by engines with CDI 1.1.0 or older")
        elif len(set(node.permissions)) != len(node.permissions):
            yield Violation(place, f'permissions "{node.permissions}" repeat a letter')
        if node.major and not node.type:
            yield Violation(place, f"major {node.major} without a type is trusted unchecked by engines")
    for mount in edits.mounts:
        place = f"{where}.mounts[{mount.container_path}]"
        if not is_plain_path(mount.container_path) or not is_plain_path(mount.host_path):
            yield Violation(place, "paths must be absolute and without . or ..")
        if not is_performable(mount):
            yield Violation(place, "neither bind nor rbind among the options: runtimes cannot perform it")
    for hook in edits.hooks:
        yield from _strict_hook(hook, f"{where}.hooks[{hook.hook_name} {hook.path}]")


def _strict_hook(hook: cdi.Hook, where: str) -> Iterator[Violation]:
    if not is_plain_path(hook.path):
        yield Violation(where, f'path "{hook.path}" is not absolute')
    if not hook.env:
        yield Violation(where, "no env: runc 1.1 runs such a hook in the environment of the image")
    if hook.timeout is not None and hook.timeout <= 0:
        yield Violation(where, f"timeout {hook.timeout} is not positive")


def is_plain_path(path: str) -> bool:
    """Whether a path is absolute and written the shortest way."""
    return path.startswith("/") and not path.startswith("//") and posixpath.normpath(path) == path


def is_performable(mount: cdi.Mount) -> bool:
    """Whether a runtime can perform this mount: a bind, or a file system type of its own."""
    return bool({"bind", "rbind"} & set(mount.options)) or mount.type not in {"", "bind", "none"}
