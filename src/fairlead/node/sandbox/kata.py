"""Reads what a node says of Kata: the engine's handlers, Kata's own files, the kubelet's configuration.

Nothing is read where no handler of Kata is configured, which is one file. What cannot be read is a fact of its own.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead import command, errors, files
from fairlead.model.container import isolation
from fairlead.plan.engineconfig import containerdset, table, tree
from fairlead.plan.gpu.allocation import enginesupport
from fairlead.plan.sandbox import kata
from fairlead.wire.kubernetes import manifest
from fairlead.wire.text import toml

_LARGEST_BYTES: Final = 4 << 20
_ASK_S: Final = 20.0
_KUBELET: Final = "/var/lib/kubelet/config.yaml"
_SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
_RELEASES: Final = ((2, 2), (1, 7))


@dataclass(frozen=True, slots=True)
class _Disk:
    """The host's files below a root."""

    root: Path

    def read(self, path: str) -> bytes | None:
        return files.read_regular(self.root / path.lstrip("/"), limit_bytes=_LARGEST_BYTES)

    def glob(self, pattern: str) -> Sequence[str]:
        prefix = str(self.root).rstrip("/")
        return sorted(path.removeprefix(prefix) for path in glob.glob(f"{prefix}{pattern}"))  # noqa: PTH207


async def look(root: Path = Path("/")) -> kata.Node:
    """Return what the node says; one without a handler of Kata has nothing else."""
    disk = _Disk(root)
    found = _handlers(disk)
    if not found:
        return kata.Node()
    handlers, paths = tuple(handler for handler, _ in found), [path for _, path in found if path]
    configs: dict[str, Mapping[str, Any]] = {}
    unread: dict[str, str] = {}
    for path in dict.fromkeys(handler.config for handler in handlers if handler.config):
        try:
            data = disk.read(path)
            if data is None:
                unread[path] = "it is not there"
            else:
                configs[path] = toml.parse(data, path=path)
        except errors.FairleadError as error:
            unread[path] = error.message
    return kata.Node(
        handlers=handlers,
        version=await _release(paths[0] if paths else "containerd-shim-kata-v2"),
        configs=configs,
        unread=unread,
        kubelet=_kubelet(disk),
        kubelet_version=await _release("kubelet"),
        has_socket=(root / _SOCKET.lstrip("/")).is_socket(),
    )


def _handlers(disk: _Disk) -> list[tuple[kata.Handler, str]]:
    """Return containerd's handlers of Kata, and the path of each one's shim."""
    config = table.ENGINES["containerd"].config
    try:
        documents = containerdset.load(config, disk)
        sections = [containerdset.in_force(documents, release).section for release in _RELEASES] if documents else []
    except errors.FairleadError:
        return []  # `doctor` says of the engine that its files cannot be read
    found: dict[str, tuple[kata.Handler, str]] = {}
    for section in sections:
        for name, one in tree.table(section, "containerd", "runtimes", where=config).items():
            if isinstance(one, dict) and isolation.of_class(name) == isolation.VM:
                found.setdefault(name, (_handler(name, one), str(one.get("runtime_path", ""))))
    return list(found.values())


def _handler(name: str, one: Mapping[str, Any]) -> kata.Handler:
    options = one.get("options")
    marks = one.get("pod_annotations")
    return kata.Handler(
        name=name,
        config=str(options.get("ConfigPath", "")) if isinstance(options, dict) else "",
        pod_annotations=tuple(map(str, marks)) if isinstance(marks, list) else (),
        keeps_host_devices_out=one.get("privileged_without_host_devices") is True,
    )


def _kubelet(disk: _Disk) -> Mapping[str, Any] | None:
    try:
        data = disk.read(_KUBELET)
        found = manifest.documents(data) if data is not None else ()
    except errors.FairleadError:
        return None
    return next((one for _, one in found if isinstance(one, dict)), None)


async def _release(program: str) -> tuple[int, ...] | None:
    try:
        done = await command.run((program, "--version"), env=command.base_env(), timeout_s=_ASK_S)
    except errors.Unavailable:
        return None
    return enginesupport.parse_version(done.stdout.decode(errors="replace")) if done.code == 0 else None
