"""Makes volumes and mounts of what a service sees of files: volumes, binds, memory, configs and secrets. Pure.

Paths of the machine are absolute already: who reads the files knows the folder that they begin in.
Source: Compose specification, "volumes", "tmpfs", "shm_size", "configs", "secrets".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from fairlead.plan.compose import value
from fairlead.plan.compose.fields import Remarks
from fairlead.plan.compose.project import LABEL, Project, object_name

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_SECRETS: Final = "/run/secrets"
_FILE: Final = ("source", "target", "uid", "gid", "mode")
_MODE: Final = 0o7777


class Mounts:
    """The volumes of one container and where it sees them."""

    def __init__(self, project: Project, service: Mapping[str, Any], path: str, remarks: Remarks) -> None:
        """Take whose they are. Args: path: of the service in the file."""
        self._project, self._service, self._path, self._remarks = project, service, path, remarks
        self.volumes = list[dict[str, Any]]()
        self.mounts = list[dict[str, Any]]()

    def read(self) -> None:
        """Read every attribute. Raises: Invalid."""
        for at, one in enumerate(self._service.get("volumes") or ()):
            self._volume(one, f"{self._path}.volumes[{at}]")
        for at, one in enumerate(self._service.get("tmpfs") or ()):
            self._tmpfs(one, f"{self._path}.tmpfs[{at}]")
        size = self._service.get("shm_size")
        if size is not None and not any(one["mountPath"] == "/dev/shm" for one in self.mounts):  # noqa: S108 shared memory
            self._memory("/dev/shm", value.size(size, f"{self._path}.shm_size"))  # noqa: S108 as above
        for kind in ("configs", "secrets"):
            for at, one in enumerate(self._service.get(kind) or ()):
                self._file(kind, one, f"{self._path}.{kind}[{at}]")

    def _add(self, source: Mapping[str, Any], target: str, **more: Any) -> None:
        name = f"volume-{len(self.volumes)}"
        self.volumes.append({"name": name, **source})
        self.mounts.append({"name": name, "mountPath": target, **{key: one for key, one in more.items() if one}})

    def _memory(self, target: str, size: int | None) -> None:
        limit = {} if not size else {"sizeLimit": str(size)}
        self._add({"emptyDir": {"medium": "Memory", **limit}}, target)

    def _volume(self, given: Mapping[str, Any], path: str) -> None:
        target, is_read_only = given["target"], given["read_only"]
        match given["type"]:
            case "bind":
                if not (source := str(given.get("source") or "")).startswith("/"):
                    raise value.invalid(f"{path}.source", f'"{value.shown(source)}" is not a path')
                for key, one in value.mapping(given.get("bind"), f"{path}.bind").items():
                    if key != "create_host_path" and one:
                        self._remarks.say(f"{path}.bind.{key}", "the folder is mounted as it is")
                self._add({"hostPath": {"path": source}}, target, readOnly=is_read_only)
            case "volume":
                options = value.mapping(given.get("volume"), f"{path}.volume")
                value.only(options, ("nocopy", "subpath", "labels"), f"{path}.volume")
                subpath = str(options.get("subpath") or "")
                if not given.get("source"):
                    self._add({"emptyDir": {}}, target, readOnly=is_read_only)
                    return
                claim = volume_name(self._project, str(given["source"]), path)
                self._add(
                    {"persistentVolumeClaim": {"claimName": claim}}, target, readOnly=is_read_only, subPath=subpath
                )
            case "tmpfs":
                options = value.mapping(given.get("tmpfs"), f"{path}.tmpfs")
                value.only(options, ("size", "mode"), f"{path}.tmpfs")
                if options.get("mode") is not None:
                    self._remarks.say(f"{path}.tmpfs.mode", "everybody in the container may write there")
                size = options.get("size")
                self._memory(target, None if size is None else value.size(size, f"{path}.tmpfs.size"))
            case kind:
                offered = "volume, bind or tmpfs"
                self._remarks.refuse(f"{path}.type", f'"{value.shown(kind)}" is not mounted here: {offered}')

    def _tmpfs(self, given: str, path: str) -> None:
        target, _, options = given.partition(":")
        if not target.startswith("/"):
            raise value.invalid(path, f'"{value.shown(given)}" is not a path from / on')
        size: int | None = None
        for option in filter(None, options.split(",")):
            key, _, word = option.partition("=")
            if key == "size":
                size = value.size(word, path)
            elif key not in {"rw", "exec", "noexec", "nosuid", "nodev", "suid", "dev"}:
                self._remarks.say(f"{path} ({value.shown(key)})", "of a file system in memory the size alone counts")
        self._memory(target, size)

    def _file(self, kind: str, given: Mapping[str, Any], path: str) -> None:
        value.only(given, _FILE, path)
        source = value.text(given.get("source"), f"{path}.source")
        known = getattr(self._project, kind)
        if source not in known:
            raise value.invalid(path, f'there is no {kind[:-1]} "{value.shown(source)}" at the top level of the file')
        for key in ("uid", "gid"):
            if given.get(key) not in (None, "0", 0):
                self._remarks.say(f"{path}.{key}", "the file is root's, and read by everybody in the container")
        target = str(given.get("target") or source)
        if not target.startswith("/"):
            target = f"{_SECRETS}/{target}" if kind == "secrets" else f"/{target}"
        mode = {} if given.get("mode") is None else {"defaultMode": _mode(given["mode"], f"{path}.mode")}
        name, key = file_source(self._project, kind, source)
        items = {"items": [{"key": key, "path": "value"}]}
        if kind == "configs":
            self._add({"configMap": {"name": name, **items, **mode}}, target, subPath="value", readOnly=True)
        else:
            self._add({"secret": {"secretName": name, **items, **mode}}, target, subPath="value", readOnly=True)


def _mode(given: Any, path: str) -> int:
    if isinstance(given, str):
        try:
            given = int(given, 8)
        except ValueError as error:
            raise value.invalid(path, f'"{value.shown(given)}" is not an octal mode') from error
    return value.whole(given, path, most=_MODE)


def volume_name(project: Project, name: str, path: str) -> str:
    """Return the claim that a named volume is. Raises: Invalid: the file does not declare it."""
    if name not in project.volumes:
        hint = f"volumes:\n  {name}:" if name.isprintable() and len(name) < 64 else None
        raise value.invalid(path, f'there is no volume "{value.shown(name)}" at the top level of the file', hint)
    declared = project.volumes[name] or {}
    if is_external(declared, f"volumes.{name}") or declared.get("name"):
        return object_name(str(declared.get("name") or name))
    return object_name(project.name, name)


def is_external(declared: Mapping[str, Any], path: str) -> bool:
    """Return whether something is made by others; `external: {name: X}` is the old form."""
    given = declared.get("external", False)
    return True if isinstance(given, dict) else value.boolean(given, f"{path}.external")


def file_source(project: Project, kind: str, name: str) -> tuple[str, str]:
    """Return the ConfigMap or Secret of a config or secret, and the key of its value."""
    declared = getattr(project, kind)[name] or {}
    if is_external(declared, f"{kind}.{name}"):
        own = str(declared.get("name") or name)
        return own, own
    return made_name(project.name, name), "value"


def made_name(project: str, name: str) -> str:
    """Return the name of a ConfigMap or Secret that is made for a project; it cannot be taken for a hand-made one."""
    return f"{prefix(project)}{object_name(name)}"


def prefix(project: str) -> str:
    """Return what the names of a project's ConfigMaps and Secrets begin with."""
    return f"{LABEL.rpartition('.')[2]}.{object_name(project)}."
