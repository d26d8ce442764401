"""Lists the engines, one row each: where they are configured, by whom, and how a change takes effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead.plan.engineconfig import containerd, crio, docker, podman
from fairlead.plan.engineconfig.model import HostFiles, Location, Proposal, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One row."""

    config: str
    """Its main file."""
    programs: tuple[str, ...]
    """Programs that print its release with `--version`; the first that exists is run."""
    propose: Callable[[Location, Request, HostFiles], Proposal]
    restart: str
    """What makes it read its files again; empty: it does at every start of a container."""


ENGINES: Final = {
    "containerd": Engine(
        config="/etc/containerd/config.toml",
        programs=("containerd",),
        propose=containerd.propose,
        restart="systemctl restart containerd",
    ),
    "docker": Engine(
        config="/etc/docker/daemon.json",
        programs=("dockerd", "docker"),
        propose=docker.propose,
        restart="systemctl restart docker (a reload is not enough; containers end unless live-restore is on)",
    ),
    "crio": Engine(
        config="/etc/crio/crio.conf", programs=("crio",), propose=crio.propose, restart="systemctl restart crio"
    ),
    "podman": Engine(
        config="/etc/containers/containers.conf", programs=("podman",), propose=podman.propose, restart=""
    ),
}
