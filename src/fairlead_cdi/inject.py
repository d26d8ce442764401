"""Makes the edited runtime spec of a container from its runtime spec and the devices that it was given.

The result is a new value that shares what was not edited; the caller's value is not changed. Host facts come through
`stat`, read anew at each injection. Edits of every kind apply in the order of the request, and the edits of a spec file
apply once, before those of its first device.

Differences from the Go library: injecting twice equals injecting once (nodes, rules, hooks and mounts are not
repeated); a replaced node takes its old cgroup rule with it; a node that is declared with other numbers than the host
has is refused with both numbers, where the Go library would open another device. `explain` lists every change and who
asked for it.
Source: CDI pkg/cdi/container-edits.go, spec 1.1.0; OCI runtime-spec config-linux.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairlead_cdi import emit, errors, oci
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node as host

Source = tuple[str, cdi.ContainerEdits]
"""Who asks (a device or a spec file), and the edits."""
_Numbers = tuple[Any, Any, Any]
_ALL_ACCESS: Final = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that an injection makes in the runtime spec."""

    what: str
    """`env`, `device`, `rule`, `netDevice`, `mount`, `hook`, `intelRdt`, `gid`."""
    subject: str
    """Variable, path, numbers or interface that changes."""
    before: Any
    """Plain value before; None: it is added."""
    after: Any
    """Plain value after; None: it is removed."""
    source: str
    """Device or spec file that asks for it."""

    @property
    def action(self) -> str:
        """`added`, `removed` or `changed`."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


def inject(
    config: dict[str, Any], resolved: Iterable[cdi.Resolved], *, stat: host.StatNode = host.stat_node
) -> dict[str, Any]:
    """Return the runtime spec with these devices in it; the given one is not changed.

    Args:    config: a decoded config.json; unknown fields are kept.   resolved: in the order of the request, from
             `Registry.resolve`; a repeated device counts once.   stat: reads one host path now.
    Raises:  HostError: a device node is not on the host.   DocumentError: the host has another node there than the
             spec declares, or the runtime spec is malformed.   WrongType: not a runtime spec, or not resolved devices.
    """
    return _edited(config, sources_of(resolved), stat).config


def explain(
    config: dict[str, Any], resolved: Iterable[cdi.Resolved], *, stat: host.StatNode = host.stat_node
) -> tuple[Change, ...]:
    """Return what `inject` would change, in the order of application. Args, Raises: as `inject`."""
    return tuple(_edited(config, sources_of(resolved), stat).changes)


def inject_edits(
    config: dict[str, Any], sources: Sequence[Source], *, stat: host.StatNode = host.stat_node
) -> dict[str, Any]:
    """Return the runtime spec with edits that come from no spec file.

    Args:    config, stat: as `inject`.   sources: pairs of who asks and the edits, in the order of application.
    Raises:  HostError, DocumentError: as `inject`.   WrongType: a source is not such a pair.
    """
    errors.refuse_text(sources, "the sources")
    return _edited(config, tuple(sources), stat).config


def sources_of(resolved: Iterable[cdi.Resolved]) -> tuple[Source, ...]:
    """Return the edits of a request: those of each file once, then those of each device once, in request order.

    Raises: WrongType: not resolved devices.
    """
    found: dict[str, cdi.ContainerEdits] = {}
    errors.refuse_text(resolved, "the devices")
    for item in resolved:
        hint = "Registry.inject takes names, inject.inject takes what Registry.resolve returns"
        errors.refuse_other(item, cdi.Resolved, "a device", hint)
        found.setdefault(item.file.path, item.spec.edits)
        found.setdefault(item.name, item.device.edits)
    return tuple(found.items())


def _assert_source(value: object) -> None:
    """Refuse what is not a pair of a source and its edits. Raises: WrongType."""
    hint = "inject_edits takes pairs of a source and its edits"
    if not isinstance(value, tuple | list) or len(value) != 2:
        message = f"a source with its edits must be a pair, not {value!r:.200}"
        raise errors.WrongType(message, reason="WrongType", hint=hint)
    source, edits = value
    errors.refuse_other(source, str, "the source of edits", hint)
    hint = "parse.build_edits makes ContainerEdits of a decoded document"
    errors.refuse_other(edits, cdi.ContainerEdits, f"the edits of {source}", hint)


def _edited(config: dict[str, Any], sources: Sequence[Source], stat: host.StatNode) -> _Editor:
    errors.refuse_other(config, dict, "a runtime spec", "oci.decode_config decodes a config.json")
    for pair in sources:
        _assert_source(pair)
    editor = _Editor(config, stat)
    for source, edits in sources:
        editor.add_env(source, edits)
    editor.set_nodes(sources)
    editor.set_mounts(sources)
    for source, edits in sources:
        editor.add_net_devices(source, edits)
        editor.add_hooks(source, edits)
        editor.set_rdt(source, edits)
        editor.add_gids(source, edits)
    return editor


class _Editor:
    """Copy on write: a section is copied when it is first edited, and made where it is missing."""

    def __init__(self, config: dict[str, Any], stat: host.StatNode) -> None:
        self.config = dict(config)
        self.changes: list[Change] = []
        self._stat = stat
        self._owned: dict[tuple[str, ...], Any] = {}

    def _object(self, *path: str) -> dict[str, Any]:
        if path not in self._owned:
            parent = self._object(*path[:-1]) if path[:-1] else self.config
            self._owned[path] = parent[path[-1]] = oci.object_at(parent, path[-1], ".".join(path))
        owned: dict[str, Any] = self._owned[path]
        return owned

    def _list(self, *path: str) -> list[Any]:
        if path not in self._owned:
            parent = self._object(*path[:-1]) if path[:-1] else self.config
            self._owned[path] = parent[path[-1]] = oci.list_at(parent, path[-1], ".".join(path))
        owned: list[Any] = self._owned[path]
        return owned

    def _record(self, what: str, subject: str, *, before: Any, after: Any, source: str) -> None:
        if before != after:
            self.changes.append(Change(what=what, subject=subject, before=before, after=after, source=source))

    def add_env(self, source: str, edits: cdi.ContainerEdits) -> None:
        for variable in edits.env:
            name = variable.partition("=")[0]
            env = self._list("process", "env")
            held = [place for place, old in enumerate(env) if str(old).partition("=")[0] == name]
            before = env[held[0]] if held else None
            if held:
                env[held[0]] = variable
                # A second one of the name would win in some programs.
                for place in reversed(held[1:]):
                    del env[place]
            else:
                env.append(variable)
            self._record("env", name, before=before, after=variable, source=source)

    def set_nodes(self, sources: Sequence[Source]) -> None:
        """Place every node that is asked for; of several at one container path the last one stands.

        Grants of nodes that make room are taken back first, so that what the container may open depends neither on
        the order of the nodes nor on how often they are injected.
        """
        user = oci.object_at(oci.object_at(self.config, "process", "process"), "user", "process.user")
        wanted: dict[str, tuple[str, cdi.DeviceNode, dict[str, Any]]] = {}
        for source, edits in sources:
            for node in edits.device_nodes:
                place = posixpath.normpath(node.path)
                wanted.pop(place, None)
                wanted[place] = (source, node, _device(node, self._stat, user))
        if not wanted:
            return
        devices = self._list("linux", "devices")
        replaced = {_place(item): item for item in devices if _place(item) in wanted}
        devices[:] = [item for item in devices if _place(item) not in wanted]
        revoked = self._revoke(
            [_numbers(item) for item in replaced.values()], kept=[_numbers(item) for item in devices]
        )
        for place, (source, node, device) in wanted.items():
            old = replaced.get(place)
            devices.append(device)
            self._record("device", node.path, before=old, after=device, source=source)
            # Without access there is no rule: runc and crun refuse to start a container with an empty one.
            if device["type"] in {"b", "c"} and node.permissions != cdi.NO_ACCESS:
                self._grant(device, node.permissions or _ALL_ACCESS, source, revoked)
        for rule in revoked:
            source = next(wanted[place][0] for place, old in replaced.items() if _numbers(old) == _numbers(rule))
            self._record("rule", _rule_text(rule), before=rule, after=None, source=source)

    def _revoke(self, gone: Sequence[_Numbers], *, kept: Sequence[_Numbers]) -> list[dict[str, Any]]:
        """Take back the grants of nodes that go, unless a node that stays has the same numbers; a FIFO has none."""
        numbers = [item for item in gone if item not in kept and item[0] != "p"]
        resources = oci.object_at(self._object("linux"), "resources", "linux.resources")
        if not numbers or not oci.list_at(resources, "devices", "linux.resources.devices"):
            return []  # no section is made for nothing: a second injection would differ from the first
        rules = self._list("linux", "resources", "devices")
        revoked = [rule for rule in rules if _is_grant(rule) and _numbers(rule) in numbers]
        rules[:] = [rule for rule in rules if rule not in revoked]
        return revoked

    def _grant(self, device: dict[str, Any], access: str, source: str, revoked: list[dict[str, Any]]) -> None:
        """Grant access last in the list, where no earlier denial undoes it; an equal grant moves there."""
        rules = self._list("linux", "resources", "devices")
        rule = {
            "allow": True,
            "type": device["type"],
            "major": device["major"],
            "minor": device["minor"],
            "access": access,
        }
        was_there = rule in rules or rule in revoked
        rules[:] = [item for item in rules if item != rule]
        revoked[:] = [item for item in revoked if item != rule]
        rules.append(rule)
        self._record("rule", _rule_text(rule), before=rule if was_there else None, after=rule, source=source)

    def add_net_devices(self, source: str, edits: cdi.ContainerEdits) -> None:
        for item in edits.net_devices:
            devices = self._object("linux", "netDevices")
            before, after = devices.get(item.host_interface_name), {"name": item.name}
            devices[item.host_interface_name] = after
            self._record("netDevice", item.host_interface_name, before=before, after=after, source=source)

    def set_mounts(self, sources: Sequence[Source]) -> None:
        """Place every mount that is asked for, parents before children, else the later mount would hide the earlier.

        Of several at one destination the last one stands, and it stands instead of the container's own.
        """
        wanted: dict[str, tuple[str, dict[str, Any]]] = {}
        for source, edits in sources:
            for asked in edits.mounts:
                place = posixpath.normpath(asked.container_path)
                wanted.pop(place, None)
                wanted[place] = (source, _mount(asked))
        if not wanted:
            return
        mounts = self._list("mounts")
        replaced = {_destination(item): item for item in mounts if _destination(item) in wanted}
        mounts[:] = [item for item in mounts if _destination(item) not in wanted]
        for place, (source, mount) in wanted.items():
            mounts.append(mount)
            self._record("mount", mount["destination"], before=replaced.get(place), after=mount, source=source)
        mounts.sort(key=_depth)

    def add_hooks(self, source: str, edits: cdi.ContainerEdits) -> None:
        for hook in edits.hooks:
            if hook.hook_name not in cdi.HOOK_NAMES:
                message = f'hook stage "{hook.hook_name}" is unknown'
                raise errors.DocumentError(message, reason="HookStageUnknown", source=source)
            after = emit.hook_document(hook)
            stage = after.pop("hookName")
            hooks = self._list("hooks", stage)
            if after not in hooks:
                hooks.append(after)
                self._record("hook", f"{stage} {hook.path}", before=None, after=after, source=source)

    def set_rdt(self, source: str, edits: cdi.ContainerEdits) -> None:
        if edits.intel_rdt is None:
            return
        after = emit.rdt_document(edits.intel_rdt)
        linux = self._object("linux")
        before, linux["intelRdt"] = linux.get("intelRdt"), after
        self._record("intelRdt", "intelRdt", before=before, after=after, source=source)

    def add_gids(self, source: str, edits: cdi.ContainerEdits) -> None:
        for gid in edits.additional_gids:
            if gid == 0:
                continue
            gids = self._list("process", "user", "additionalGids")
            if gid not in gids:
                gids.append(gid)
                self._record("gid", str(gid), before=None, after=gid, source=source)


def _device(node: cdi.DeviceNode, stat: host.StatNode, user: dict[str, Any]) -> dict[str, Any]:
    """Make the runtime spec's entry of one node from what is declared and what the host has now."""
    path = node.host_path or node.path
    if not path.startswith("/") or not node.path.startswith("/"):
        message = f'device node path "{path}" is not absolute'
        raise errors.DocumentError(message, reason="DeviceNodeInvalid", path=path)
    found = stat(path)
    if found is None and not (node.type == "p" or (node.type and node.major)):
        hint = "load the driver or generate the spec again"
        message = f"device node {path} is not on this host"
        raise errors.HostError(message, reason="DeviceNodeMissing", hint=hint, path=path)
    if found is not None:
        _assert_same(node, path, found)
    kind = node.type or (found.type if found else "")
    device: dict[str, Any] = {"path": node.path, "type": kind}
    if kind != "p":
        is_declared = bool(node.major) or found is None
        device["major"] = node.major if is_declared or found is None else found.major
        device["minor"] = node.minor if is_declared or found is None else found.minor
    mode = node.file_mode if node.file_mode is not None or found is None else found.mode
    if mode is not None:
        device["fileMode"] = mode
    for key, declared in (("uid", node.uid), ("gid", node.gid)):
        value = declared if declared is not None else user.get(key) or None
        if value is not None:
            device[key] = value
    return device


def _assert_same(node: cdi.DeviceNode, path: str, found: host.HostNode) -> None:
    """Refuse a node that the host has otherwise than the spec says: engines would open another device."""
    hint = "generate the spec again: the driver was reloaded or the host restarted since"
    if found.type not in {"b", "c", "p"}:
        what = "a symbolic link" if found.type == "link" else "no device node"
        raise errors.DocumentError(f"{path} is {what}", reason="DeviceNodeInvalid", path=path)
    if node.type and node.type.replace("u", "c") != found.type:
        message = f'{path}: the spec declares type "{node.type}", the host has "{found.type}"'
        raise errors.DocumentError(message, reason="DeviceNodeStale", hint=hint, path=path)
    if node.major and found.type != "p" and (node.major, node.minor) != (found.major, found.minor):
        numbers = f"{node.major}:{node.minor}, the host has {found.major}:{found.minor}"
        message = f"{path}: the spec declares {numbers}"
        raise errors.DocumentError(message, reason="DeviceNodeStale", hint=hint, path=path)


def _mount(mount: cdi.Mount) -> dict[str, Any]:
    entry: dict[str, Any] = {"destination": mount.container_path, "source": mount.host_path}
    if mount.type:
        entry["type"] = mount.type
    if mount.options:
        entry["options"] = list(mount.options)
    return entry


def _numbers(item: Any) -> _Numbers:
    """Return type and numbers of a device or rule."""
    return (item.get("type"), item.get("major"), item.get("minor")) if isinstance(item, dict) else (None, None, None)


def _is_grant(rule: Any) -> bool:
    return isinstance(rule, dict) and rule.get("allow") is True


def _rule_text(rule: dict[str, Any]) -> str:
    return f"{rule['type']} {rule['major']}:{rule['minor']} {rule.get('access', '')}".rstrip()


def _place(device: Any) -> str:
    """Return a device's container path, the shortest way to write it."""
    return posixpath.normpath(str(device.get("path"))) if isinstance(device, dict) else ""


def _destination(mount: Any) -> str:
    return posixpath.normpath(str(mount.get("destination", ""))) if isinstance(mount, dict) else ""


def _depth(mount: Any) -> int:
    return sum(1 for part in _destination(mount).split("/") if part)
