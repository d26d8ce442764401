"""Finds dangers in specs of any vendor: what crashes engines, weakens containers or keeps them from starting.

A finding is an error where it does harm (an engine panics, an image's code runs on the host, the container does not
start, another device is opened), and a warning where the spec asks for more than it needs or fewer engines will read
it. Each rule is one small function over the edits. Host facts come through callables, so a spec can be judged for
another machine.
Source: CVE-2025-23266 for hooks without env; `docs/design/cdi.md` of Fairlead for the engines that panic.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fairlead_cdi import annotation, names, validate
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node as host


class Severity(enum.Enum):
    """How much harm a finding does."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One danger in a spec."""

    severity: Severity
    code: str
    """Stable kebab-case token, one a rule."""
    where: str
    message: str


_LOADER_ENV: Final = (
    "LD_",
    "GCONV_PATH",
    "NLSPATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PERL5LIB",
    "BASH_ENV",
    "NODE_OPTIONS",
)
_HOST_ROOTS: Final = frozenset(
    {"/", "/boot", "/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/usr", "/var"}
)
_RAW_NODES: Final = frozenset({"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/fuse", "/dev/kvm"})
_CONTAINER_ROOTS: Final = frozenset(
    ["/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr", "/usr/bin", "/usr/lib", "/var"]
)
"""Folders of a container that a mount would hide as a whole."""
_ENGINE_SOCKETS: Final = frozenset(
    {"containerd.sock", "crio.sock", "docker.sock", "podman.sock", "dockershim.sock", "kubelet.sock", "buildkitd.sock"}
)
_SAFE_OPTIONS: Final = ("nosuid", "nodev")


def lint(
    spec: cdi.Spec,
    *,
    stat_node: host.StatNode | None = None,
    stat_file: host.StatFile | None = None,
    find_open: host.FindOpen | None = None,
) -> tuple[Finding, ...]:
    """Find the dangers of one spec.

    Args:    stat_node: device nodes of the host it is for; None: node numbers are not compared.
             stat_file: files of that host; None: hooks are not looked at on disk.
             find_open: who could change them; None: only the folders above a program are looked at.
    Returns: findings in the order of the document.
    """
    linter = _Linter(stat_node=stat_node, stat_file=stat_file, find_open=find_open)
    return tuple(_spec_findings(spec)) + tuple(
        finding for where, edits in _all_edits(spec) for finding in linter.findings(edits, where)
    )


def lint_file(path: str, *, stat_file: host.StatFile, find_open: host.FindOpen | None = None) -> tuple[Finding, ...]:
    """Find who else could replace a spec file: permissions and owners of the file, of its folder and of the way."""
    found = []
    for place, what in ((path, "spec file"), (posixpath.dirname(path) or ".", "spec folder")):
        facts = stat_file(place)
        if facts is not None and facts.is_writable_by_others:
            found.append(_error("spec-writable", place, f"{what} may be written by others (mode {facts.mode:04o})"))
        if facts is not None and facts.uid != 0:
            found.append(_error("spec-owner", place, f"{what} belongs to uid {facts.uid}, not to root"))
    place = find_open(path) if find_open is not None else ""
    if place and place not in {finding.where for finding in found}:
        found.append(
            _error("spec-way-open", place, f"{place} can be changed by others, and the way to {path} leads there")
        )
    return tuple(found)


def missing(edits: cdi.ContainerEdits, *, stat_file: host.StatFile, has_nodes: bool = True) -> Iterator[str]:
    """Yield the files of the host that edits name and that are gone, as after an update of the driver.

    What a relative path or a file system of the kernel's (`tmpfs`) names lies on no host.
    Args:    has_nodes: device nodes are among them; a runtime makes those whose numbers the spec has.
    """
    for mount in edits.mounts:
        if _is_gone(mount, stat_file):
            yield f"mounts {mount.host_path}, which is not there: no container with it starts"
    for node in edits.device_nodes if has_nodes else ():
        host_path = node.host_path or node.path
        if host_path.startswith("/") and stat_file(host_path) is None:
            yield f"names the device node {host_path}, which is not there"
    for hook in edits.hooks:
        facts = stat_file(hook.path)
        if facts is None or not facts.is_file or not facts.mode & 0o111:
            yield f"calls the hook {hook.path}, which is not a program on this host: no container with it starts"


def _is_gone(mount: cdi.Mount, stat_file: host.StatFile) -> bool:
    return mount.host_path.startswith("/") and stat_file(mount.host_path) is None


def _all_edits(spec: cdi.Spec) -> Iterator[tuple[str, cdi.ContainerEdits]]:
    yield from ((f"devices[{device.name}]", device.edits) for device in spec.devices)
    yield "containerEdits", spec.edits


def _error(code: str, where: str, message: str) -> Finding:
    return Finding(severity=Severity.ERROR, code=code, where=where, message=message)


def _warning(code: str, where: str, message: str) -> Finding:
    return Finding(severity=Severity.WARNING, code=code, where=where, message=message)


def _spec_findings(spec: cdi.Spec) -> Iterator[Finding]:
    crash = names.crash_problem(spec.kind)
    if crash:
        yield _error("kind-crashes-engines", "kind", crash)
    strict = names.strict_kind_problem(spec.kind)
    if strict and not crash:
        yield _warning("kind-not-standard", "kind", strict)
    declared, lowest = spec.cdi_version.removeprefix("v"), cdi.minimum_version(spec)
    if cdi.version_rank(declared) > cdi.version_rank(cdi.UNIVERSAL_VERSION):
        tail = f"; {lowest} would suffice" if lowest != declared else ""
        message = (
            f"cdiVersion {declared} is ignored in silence by engines that read up to {cdi.UNIVERSAL_VERSION}{tail}"
        )
        yield _warning("version-high", "cdiVersion", message)
    for message in annotation.problems(spec.annotations):
        yield _warning("annotation-invalid", "annotations", message)
    for device in spec.devices:
        for message in annotation.problems(device.annotations):
            yield _warning("annotation-invalid", f"devices[{device.name}].annotations", message)
        problem = names.strict_device_problem(device.name)
        if problem:
            yield _warning("device-name-not-standard", f"devices[{device.name}]", problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linter:
    stat_node: host.StatNode | None
    stat_file: host.StatFile | None
    find_open: host.FindOpen | None

    def findings(self, edits: cdi.ContainerEdits, where: str) -> Iterator[Finding]:
        for variable in edits.env:
            yield from _env_findings(variable, f"{where}.env")
        for node in edits.device_nodes:
            yield from self._node_findings(node, f"{where}.deviceNodes[{node.path}]")
        for mount in edits.mounts:
            yield from _mount_findings(mount, f"{where}.mounts[{mount.container_path}]")
            if self.stat_file is not None and _is_gone(mount, self.stat_file):
                message = f"{mount.host_path} is not on this host: containers will not start"
                yield _error("mount-missing", f"{where}.mounts[{mount.container_path}]", message)
        for hook in edits.hooks:
            place = f"{where}.hooks[{hook.hook_name} {hook.path}]"
            yield from _hook_findings(hook, place)
            yield from self._hook_file_findings(hook, place)

    def _node_findings(self, node: cdi.DeviceNode, where: str) -> Iterator[Finding]:
        host_path = node.host_path or node.path
        if node.permissions == cdi.NO_ACCESS:
            message = "permissions none: engines with CDI 1.1.0 or older refuse the whole spec"
            yield _warning("node-no-access", where, message)
        elif "m" in (node.permissions or "rwm"):
            yield _warning("node-mknod", where, "permissions include m: the container may create further nodes of it")
        if host_path in _RAW_NODES or node.type == "b":
            yield _error("node-raw", where, f"{host_path} opens the host's memory, disks or kernel to the container")
        if self.stat_file is not None and host_path.startswith("/") and self.stat_file(host_path) is None:
            yield _warning("node-missing", where, f"{host_path} is not on this host")
        if min(node.major or 0, node.minor or 0) < 0:
            yield _error("node-number", where, f"{node.major}:{node.minor} are not the numbers of any device")
        found = self.stat_node(host_path) if self.stat_node else None
        if found is None or not node.major:
            return
        if (found.major, found.minor) != (node.major, node.minor):
            numbers = f"declares {node.major}:{node.minor}, the host has {found.major}:{found.minor}"
            yield _error("node-stale", where, f"{numbers}: engines would open another device")

    def _hook_file_findings(self, hook: cdi.Hook, where: str) -> Iterator[Finding]:
        if self.stat_file is None or not validate.is_plain_path(hook.path):
            return
        facts = self.stat_file(hook.path)
        if facts is None or not facts.is_file or not facts.mode & 0o111:
            yield _error("hook-missing", where, f"{hook.path} is not a program on this host: containers will not start")
            return
        told = set()
        for place in (hook.path, *_parents(hook.path)):
            facts = self.stat_file(place)
            if facts is not None and (facts.is_writable_by_others or facts.uid != 0):
                told.add(place)
                yield _error("hook-writable", where, f"{place} can be changed by others than root: they run as root")
        place = self.find_open(hook.path) if self.find_open is not None else ""
        if place and place not in told:
            yield _error("hook-writable", where, f"{place} can be changed by others than root: they run as root")


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = posixpath.dirname(path)
        yield path


def _env_findings(variable: str, where: str) -> Iterator[Finding]:
    name = variable.partition("=")[0]
    if name.startswith(_LOADER_ENV):
        yield _error("env-loader", f"{where}[{name}]", f"{name} makes every program of the container load other code")
    elif name == "PATH":
        yield _warning("env-path", f"{where}[{name}]", "PATH of the image is replaced")


def _mount_findings(mount: cdi.Mount, where: str) -> Iterator[Finding]:
    options = set(mount.options)
    if not validate.is_performable(mount):
        yield _error("mount-not-bind", where, "neither bind nor rbind among the options: no runtime can perform it")
    missing = [option for option in _SAFE_OPTIONS if option not in options]
    if missing:
        yield _warning("mount-options", where, f"options lack {', '.join(missing)}")
    if "ro" not in options and not {"rro"} & options:
        yield _warning("mount-writable", where, f"{mount.host_path} of the host can be written by the container")
    if posixpath.normpath(mount.host_path) in _HOST_ROOTS:
        yield _error("mount-host-root", where, f"{mount.host_path} of the host as a whole is shown to the container")
    if posixpath.normpath(mount.container_path) in _CONTAINER_ROOTS:
        yield _error("mount-over", where, f"hides the container's own {mount.container_path} as a whole")
    if posixpath.basename(mount.host_path) in _ENGINE_SOCKETS:
        message = f"{mount.host_path} takes orders, read-only too: who reaches it is root on the host"
        yield _error("mount-engine", where, message)
    if not validate.is_plain_path(mount.host_path) or not validate.is_plain_path(mount.container_path):
        yield _warning("mount-path", where, "paths are not absolute or contain . or ..")


def _hook_findings(hook: cdi.Hook, where: str) -> Iterator[Finding]:
    if not validate.is_plain_path(hook.path):
        yield _error("hook-relative", where, f'path "{hook.path}" is looked up in a folder the image controls')
    if not hook.env:
        message = "no env: runc 1.1 runs it as root in the environment of the image (LD_PRELOAD)"
        yield _error("hook-no-env", where, message)
    for variable in hook.env:
        name = variable.partition("=")[0]
        if name.startswith(_LOADER_ENV):
            yield _error("hook-loader", where, f"{name} makes a program that runs as root load other code")
    if hook.timeout is None:
        yield _warning("hook-no-timeout", where, "no timeout: a hanging hook holds the container's start for ever")
    elif hook.timeout <= 0:
        yield _warning("hook-timeout", where, f"timeout {hook.timeout} is not positive")
