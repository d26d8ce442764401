"""Detects what this machine lets podman do; each limit found leaves a note for `doctor`.

Three things break podman's own defaults on real machines. crun refuses cgroup v1 hosts whose v2 hierarchy holds
controllers ("hybrid mode not supported"); runc runs there. Podman's default limits need CAP_SYS_RESOURCE; without it
our own hard limits are passed, for processes no more than kernel.pid_max, to which podman lowers itself before it
starts anything. The default network needs netavark or the CNI plugins, installed and permitted; without them a
container gets a loopback of its own and nothing else.

Pure but for the files under `root` and the lookup of programs. Leaves a network that is installed and still fails to
`podman`, which finds out at the first container.
"""

from __future__ import annotations

import re
import resource
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from fairlead import command, errors
from fairlead.engine import port
from fairlead_cdi import directory

NAME: Final = "podman"
ADVICE: Final = port.Advice(
    too_old="install podman 4.3 or newer",
    no_answer="`podman info` as this user says the same; its storage and configuration must be readable",
    no_list="`podman ps --all` as root says the same",
    broken="container {name} breaks `podman ps`: its network namespace is gone",
    broken_why="podman lists no container while it is there; fairlead lists the others one by one, which takes longer",
    broken_fix="`podman rm --force {name}`",
    list_labelled="podman ps --filter label={label}",
)
# Newest CDI version each podman reads, measured with one minimal spec per version (docs/design/peers.md);
# 4.1, the first with CDI at all, was not measured: 0.3.0 is what every release of its library reads.
_CEILINGS: Final = (((5, 8), "1.0.0"), ((5, 4), "0.8.0"), ((4, 3), "0.5.0"), ((4, 1), "0.3.0"))
_SPEC_DIRS_SINCE: Final = 5
_SERVICE_CREATES: Final = ((4, 3), (5, 4))
"""First and last podman whose service was seen to make of a request what the command makes of its arguments."""
_SERVICE_HEEDS: Final = frozenset({"default_capabilities", "default_sysctls", "log_driver"})
"""Keys of containers.conf, `[containers]`, that its service was seen to obey, or that each request overrides."""
_CAP_SYS_RESOURCE: Final = 24  # include/uapi/linux/capability.h
_CAP_NET_ADMIN: Final = 12
_CAP_SYS_ADMIN: Final = 21
_NETAVARK: Final = tuple(f"{base}/podman/netavark" for base in ("usr/lib", "usr/libexec", "usr/local/lib"))
_CNI: Final = tuple(f"{base}/bridge" for base in ("usr/lib/cni", "usr/libexec/cni", "opt/cni/bin", "usr/local/lib/cni"))


class _Runtime(msgspec.Struct):
    name: str = ""


class _Conmon(msgspec.Struct):
    path: str = "/usr/bin/conmon"


class _Security(msgspec.Struct):
    rootless: bool = False


class _HostInfo(msgspec.Struct, rename="camel"):
    conmon: _Conmon = msgspec.field(default_factory=_Conmon)
    security: _Security = msgspec.field(default_factory=_Security)
    cgroup_version: str = ""
    network_backend: str = "cni"
    oci_runtime: _Runtime = msgspec.field(default_factory=_Runtime)


class _StoreInfo(msgspec.Struct, rename="camel"):
    run_root: str = ""
    graph_root: str = ""
    graph_driver_name: str = ""


class _VersionInfo(msgspec.Struct, rename="pascal"):
    version: str = ""


class Info(msgspec.Struct):
    """The part of `podman info --format json` that matters here."""

    host: _HostInfo
    store: _StoreInfo
    version: _VersionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """How podman must be called on this machine."""

    info: port.EngineInfo
    conmon: str
    """The program that watches over each container, for podman."""
    globals: tuple[str, ...]
    """Options before the verb, where containers are created."""
    ulimits: tuple[str, ...]
    """`name=soft:hard`; none where podman's own defaults work."""
    network: str
    """Network mode of containers with a namespace of their own."""
    may_fall_back: bool
    """A network that fails is replaced by none (the setting says auto), instead of failing the container."""
    pid_folder: Path
    """Holds `ID/userdata/pidfile` for every container."""
    bundle_folder: Path
    """Holds `ID/userdata`, the OCI bundle, for every container."""
    service_creates: bool = False
    """Whether podman's service makes the same containers as its command does."""


def without_network(host: Host, *, why: str) -> Host:
    """Return the same machine with no network but each container's own loopback, and the note that says why."""
    note = f"containers have no network but their own loopback: {why}"
    return replace(host, network="none", may_fall_back=False, info=replace(host.info, notes=(*host.info.notes, note)))


def check_cdi(version: str) -> str:
    """Return the newest CDI version that this podman reads.

    Raises: Unavailable (`CDIUnsupported`): it would start containers without their devices.
    """
    for first, ceiling in _CEILINGS:
        if _number(version) >= first:
            return ceiling
    message = f"podman {version} does not inject CDI devices"
    raise errors.Unavailable(message, reason="CDIUnsupported", hint="install podman 4.3 or newer")


def cdi_folders(version: str, root: Path) -> tuple[str, ...]:
    """Return where this podman looks for CDI specs: since 5, containers.conf may say so (`engine.cdi_spec_dirs`).

    Source: containers.conf(5); the last file that has the key decides.
    """
    found: tuple[str, ...] = directory.DEFAULT_DIRECTORIES
    if _number(version) < (_SPEC_DIRS_SINCE, 0):
        return found
    for table in _configured(root, "engine"):
        named = table.get("cdi_spec_dirs")
        if isinstance(named, list) and named:
            found = tuple(str(folder) for folder in named)
    return found


def find_runtime(name: str, root: Path) -> str:
    """Return the program that podman starts for a runtime of its configuration; empty: it has none of that name.

    Source: containers.conf(5), table of runtimes: the last file that has the name decides, the first path that exists.
    """
    paths: tuple[str, ...] = ()
    for table in _configured(root, "engine"):
        runtimes = table.get("runtimes")
        named = runtimes.get(name) if isinstance(runtimes, dict) else None
        if isinstance(named, list):
            paths = tuple(str(path) for path in named)
    return next((path for path in paths if (root / path.lstrip("/")).is_file()), "")


def _configured(root: Path, table: str) -> Iterator[Mapping[str, object]]:
    """Yield one table of each containers.conf that podman reads as root, the deciding one last."""
    drop_ins = sorted((root / "etc/containers/containers.conf.d").glob("*.conf"))
    for file in (root / "usr/share/containers/containers.conf", root / "etc/containers/containers.conf", *drop_ins):
        try:
            found = tomllib.loads(_read(file)).get(table, {})
        except tomllib.TOMLDecodeError:
            continue  # podman itself says what is wrong with it
        if isinstance(found, dict):
            yield found


def _service_creates(info: Info, root: Path) -> bool:
    """Return whether podman's service may create containers.

    Its command takes defaults from containers.conf that its service does not: volumes and devices for every container.
    A release of which it is not known whether a request loses something is not trusted with one.
    """
    first, last = _SERVICE_CREATES
    if info.host.security.rootless or not first <= _number(info.version.version) <= last:
        return False
    return all(table.keys() <= _SERVICE_HEEDS for table in _configured(root, "containers"))


def _number(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_cdi_folder(folder: Path, version: str, *, root: Path) -> None:
    """Hold the folder of our specs to those that podman reads.

    Raises: Invalid (`CDIFolderUnread`): podman would start containers from other specs than ours, or from none.
    """
    read = cdi_folders(version, root)
    if folder.resolve() in {Path(one).resolve() for one in read}:
        return
    message = f"podman {version} reads CDI specs in {' and '.join(read)}, not in {folder} (node.cdi_folder)"
    hint = "leave node.cdi_folder at its default; simulated services beside each other need no folder of their own"
    raise errors.Invalid(message, reason="CDIFolderUnread", hint=hint)


def detect(
    info: Info,
    *,
    runtime: str,
    network: str,
    root: Path,
    find_program: Callable[[str], Path | None] = command.find_program,
    limits: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> Host:
    """Find this machine's oddities.

    Args:    runtime, network: the settings.   root: where /proc, /sys and /usr are read.
             limits: our own, (soft, hard), by `resource` number.
    Raises:  Unavailable: no OCI runtime can run here, or podman cannot inject devices.
    """
    ceiling = check_cdi(info.version.version)
    effective = _capabilities(root)
    chosen, notes = _runtime(info.host.oci_runtime.name, runtime, root=root, find_program=find_program)
    ulimits, more = _ulimits(effective, root, limits)
    notes += more
    engine = port.EngineInfo(
        name=NAME,
        version=info.version.version,
        runtime=chosen,
        cdi_ceiling=ceiling,
        cgroup_version=2 if info.host.cgroup_version == "v2" else 1,
        notes=tuple(notes),
    )
    host = Host(
        info=engine,
        conmon=info.host.conmon.path,
        globals=("--runtime", chosen),
        ulimits=tuple(ulimits),
        network="bridge" if network == "auto" else network,
        may_fall_back=network == "auto",
        pid_folder=Path(info.store.run_root) / f"{info.store.graph_driver_name}-containers",
        bundle_folder=Path(info.store.graph_root) / f"{info.store.graph_driver_name}-containers",
        service_creates=_service_creates(info, root),
    )
    why = _why_no_bridge(info.host.network_backend, effective, root) if network == "auto" else None
    return without_network(host, why=why) if why else host


def _runtime(
    default: str, setting: str, *, root: Path, find_program: Callable[[str], Path | None]
) -> tuple[str, list[str]]:
    if setting:
        return setting, []
    if default != "crun" or not _is_hybrid(root):
        return default, []
    if find_program("runc") is None:
        message = "podman's runtime crun cannot run on this machine: cgroup v1 with controllers on v2 (hybrid)"
        raise errors.Unavailable(message, reason="RuntimeUnusable", hint="install runc")
    return "runc", ["runc is used: crun refuses cgroup v1 with controllers on v2 (hybrid)"]


def _is_hybrid(root: Path) -> bool:
    if (root / "sys/fs/cgroup/cgroup.controllers").exists():
        return False
    return bool(_read(root / "sys/fs/cgroup/unified/cgroup.controllers").strip())


def _ulimits(effective: int, root: Path, limits: Callable[[int], tuple[int, int]]) -> tuple[list[str], list[str]]:
    if effective >> _CAP_SYS_RESOURCE & 1:
        return [], []
    pid_max = int(_read(root / "proc/sys/kernel/pid_max").strip() or 32768)
    files, processes = limits(resource.RLIMIT_NOFILE)[1], limits(resource.RLIMIT_NPROC)[1]
    if processes == resource.RLIM_INFINITY or processes > pid_max:
        processes = pid_max
    if files == resource.RLIM_INFINITY:
        files = 1048576
    note = f"containers get our own limits (nofile {files}, nproc {processes}): we may not raise them"
    return [f"nofile={files}:{files}", f"nproc={processes}:{processes}"], [note]


def _why_no_bridge(backend: str, effective: int, root: Path) -> str | None:
    if not (effective >> _CAP_NET_ADMIN & 1 and effective >> _CAP_SYS_ADMIN & 1):
        return "we may not make networks (no CAP_NET_ADMIN or CAP_SYS_ADMIN)"
    places = _NETAVARK if backend == "netavark" else _CNI
    if not any((root / place).exists() for place in places):
        missing = "netavark" if backend == "netavark" else "the CNI bridge plugin"
        return f"podman's network needs {missing}, which is not installed"
    return None


def _capabilities(root: Path) -> int:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(root / "proc/self/status"), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
