"""Collects and checks what isolates tenancies on this machine: the packet filter, and what ended services left of it.

The tables and the engine's networks are read; nothing is changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fairlead import errors, settings
from fairlead.cli.doctor.finding import Finding
from fairlead.engine import machine as engines
from fairlead.kernel import inotify
from fairlead.kernel.network import netfilter
from fairlead.node.kubelet import hostpath
from fairlead.node.tenancy import userids
from fairlead.plan.pod import mountable
from fairlead.plan.tenancy import firewall
from fairlead.wire.kubernetes import names

_UNFILTERED: Final = "no container of a tenancy with a network starts on this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read."""

    problem: str = ""
    """Why packets cannot be filtered here; empty: they can."""
    families: tuple[int, ...] = ()
    leftovers: tuple[str, ...] = ()
    """Marks of services whose rules are in force and that have no network."""
    is_read: bool = False
    setting: str = "auto"
    """`engine.user_namespaces`."""
    no_user_namespace: str = ""
    """Why containers of tenancies and of users have none; empty: they have."""
    fix: str = ""
    inotify: tuple[int, int] = (0, 0)
    """Instances that are held on this machine, and how many root may hold; 0: it could not be read."""
    mounts: tuple[str, ...] = ()
    """Why folders of `api.mounts` cannot be mounted, one text each."""


async def collect(config: settings.Settings) -> Facts:
    """Read the tables and the networks; nothing where we are not root, who alone may."""
    if os.geteuid() != 0:
        return Facts()
    problem, fix = _user_namespaces(config)
    seen = await _filters(config.engine)
    setting, mounts = config.engine.user_namespaces, _unusable_mounts(config.api.mounts)
    held = await asyncio.to_thread(_inotify)
    return replace(seen, setting=setting, no_user_namespace=problem, fix=fix, mounts=mounts, inotify=held)


def _inotify() -> tuple[int, int]:
    try:
        return inotify.count(), inotify.limit()
    except (OSError, ValueError):
        return 0, 0


def _unusable_mounts(setting: str) -> tuple[str, ...]:
    try:
        return tuple(filter(None, map(hostpath.exchangeable, mountable.parse(setting))))
    except errors.Invalid as error:
        return (error.message,)


def _user_namespaces(config: settings.Settings, root: Path = Path("/")) -> tuple[str, str]:
    """Return why containers of tenancies and of users have no user namespace, and what mends it; empty: they have."""
    if config.engine.user_namespaces == "never":
        return "they are switched off (engine.user_namespaces is never)", "set engine.user_namespaces to auto"
    if problem := userids.machine_problem(root):
        return problem, "`sysctl user.max_user_namespaces=65536`, and a kernel with CONFIG_USER_NS; not in a container"
    if config.node.cdi_hook:
        problem = f"{config.node.cdi_hook} (node.cdi_hook) cannot run inside of one"
        return f"{problem}: containers with GPUs have none", "leave node.cdi_hook empty where images need no such hook"
    return "", ""


async def _filters(engine: settings.EngineSettings) -> Facts:
    families = netfilter.families()
    try:
        saved = [await netfilter.saved(family) for family in families]
    except errors.Unavailable as error:
        return Facts(problem=errors.sentence(error), is_read=True)
    marks = {mark for one in saved for mark in firewall.leftovers(one, ())}
    if not marks:
        return Facts(families=families, is_read=True)
    try:
        listed = await engines.open_engine(engine).list_networks()
    except errors.FairleadError:
        return Facts(families=families, is_read=True)  # that podman does not answer is another finding
    used = {firewall.chains(one.labels[names.HOME]).mark for one in listed if names.HOME in one.labels}
    return Facts(families=families, leftovers=tuple(sorted(marks - used)), is_read=True)


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings; none where nothing was read."""
    if not seen.is_read:
        return
    if seen.problem:
        fix = "`apt install iptables`, and run as root; a tenancy of `--network none` needs neither"
        yield Finding(check="tenancies", level="warn", what=seen.problem, why=_UNFILTERED, fix=fix)
        return
    for mark in seen.leftovers:
        chains = ", ".join(firewall.chains(mark).all)
        yield Finding(
            check="tenancies",
            level="warn",
            what=f"rules of a service that is gone are in the table mangle: {chains}",
            why="they are about bridges whose names another network may get",
            fix="start the service of that state folder once more, or take them out with iptables and ip6tables",
        )
    words = " and ".join(f"IPv{family}" for family in seen.families)
    has_ipv6 = 6 in seen.families
    rest = "" if has_ipv6 else "; the kernel has no IPv6, so tenancies have IPv4 alone"
    yield Finding(check="tenancies", level="ok", what=f"packets of {words} can be filtered{rest}")


def check_user_ids(seen: Facts) -> Iterator[Finding]:
    """Yield whether containers of tenancies and of users have user namespaces; nothing where nothing was read."""
    if not seen.is_read:
        return
    if not seen.no_user_namespace:
        what = "containers of tenancies and users have user namespaces: root inside is nobody on the host"
        yield Finding(check="tenancies", level="ok", what=what)
        return
    is_required = seen.setting == "always"
    why = "they are refused (engine.user_namespaces is always)" if is_required else "root inside is root of the host's"
    yield Finding(
        check="tenancies",
        level="fail" if is_required else "warn",
        what=f"containers of tenancies and users have no user namespace: {seen.no_user_namespace}",
        why=f"{why} files, should it ever reach them" if not is_required else why,
        fix=seen.fix,
    )


def check_inotify(seen: Facts) -> Iterator[Finding]:
    """Yield whether inotify instances run out, which containers in user namespaces take out of root's."""
    held, most = seen.inotify
    if most and held * 4 >= most * 3:
        yield Finding(
            check="tenancies",
            level="warn",
            what=f"{held} inotify instances are held, and root may hold {most}",
            why="systemd, kubelets and engines of this machine fail without one; containers may hold a quarter each",
            fix="`sysctl fs.inotify.max_user_instances=8192`, and the same in a file of /etc/sysctl.d",
        )


def check_mounts(seen: Facts) -> Iterator[Finding]:
    """Yield folders of `api.mounts` that no user can mount."""
    for text in seen.mounts:
        yield Finding(
            check="tenancies",
            level="warn",
            what=f"api.mounts: {text}",
            why="users and accounts are refused this folder",
            fix="let root own the folders above it, mode 0755, or leave it out of api.mounts",
        )
