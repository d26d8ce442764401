"""Configures CRI-O: a drop-in of our own; no other file is touched.

Files are merged key by key, in the order of their names, but a handler of a later file replaces an earlier one whole.
Source: crio.conf(5), crio.conf.d(5), measured with 1.34; CDI is always on from 1.23.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final

from fairlead.plan.engineconfig import gvisor, tree
from fairlead.plan.engineconfig.model import CDI_FOLDERS, HEADER, Edit, HostFiles, Location, Proposal, Request
from fairlead.wire.text import toml

_DROP_IN: Final = "zz-fairlead.conf"
_KATA: Final = "kata-qemu-nvidia-gpu"
_DEEPEST: Final = 3
"""Levels of folders that are looked into; CRI-O knows no bound."""
_BYPASS: Final = "inherit_default_runtime"
"""Starts the default runtime's program instead of Fairlead's."""


def propose(place: Location, request: Request, host: HostFiles) -> Proposal:
    """Decide the drop-in.

    Raises:  ProtocolError: a file cannot be read.   Unavailable: this CRI-O ignores CDI.
             Conflict: the handler's name is taken, or a file that is read later would undo ours.
    """
    drop_in = place.drop_in or posixpath.join(f"{place.config}.d", _DROP_IN)
    files = {}
    for path in (place.config, *_list_drop_ins(host, posixpath.dirname(drop_in))):
        data = host.read(path)
        if data is not None:
            files[path] = tree.table(toml.parse(data, path=path), "crio", "runtime", where=path)
    section = _joined(files)
    runtimes = tree.table(section, "runtimes", where=place.config)
    tree.refuse_taken(runtimes, request, place.config)
    notes = (
        *tree.judge_release("crio", place, request),
        *tree.taken_over(runtimes, request),
        *gvisor.kept(runtimes, request),
    )
    source = _source(section, runtimes)
    program, underlying = tree.program("crio", tree.text(source, "runtime_path", where=place.config), request)
    ours = _section(section, request, {**source, "runtime_path": program})
    for path, later in files.items():
        is_later = path != place.config and path.split("/") > drop_in.split("/")
        if is_later and (key := tree.find_overruled(ours, later)):
            tree.refuse_undone(path, drop_in, f"says otherwise about {key}")
    body = toml.emit({"crio": {"runtime": ours}})
    head = f"{HEADER}; `fairlead runtime unconfigure` takes it away.\n\n"
    made = Edit(path=drop_in, before=None, after=head.encode() + body)
    return Proposal(program=program, runtimes=underlying, edits=(made,), notes=notes)


def _list_drop_ins(host: HostFiles, folder: str) -> list[str]:
    """Return the files of a folder and of the folders in it, in CRI-O's order: name by name, folder by folder."""
    patterns = ("/".join(["*"] * depth) for depth in range(1, _DEEPEST + 1))
    found = (path for pattern in patterns for path in host.glob(f"{folder}/{pattern}"))
    return sorted(found, key=lambda path: path.split("/"))


def _joined(files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the section in force."""
    section, runtimes = dict[str, Any](), dict[str, Any]()
    for path, one in files.items():
        section = tree.merged(section, one)
        runtimes |= tree.table(one, "runtimes", where=path)
    return {**section, "runtimes": runtimes} if runtimes else section


def _source(section: dict[str, Any], runtimes: dict[str, Any]) -> dict[str, Any]:
    """Return the runtime that handlers inherit from; what has no path is found by its name, as CRI-O does."""
    for name in (tree.text(section, "default_runtime", where="crio.runtime"), "runc", "crun"):
        found = tree.table(runtimes, name, where="crio.runtime.runtimes")
        if found and tree.text(found, "runtime_type", "oci", where="crio.runtime.runtimes") in {"", "oci"}:
            inherited = {key: value for key, value in found.items() if value != "" and key != _BYPASS}
            return {"runtime_path": name, "runtime_type": "oci", **inherited}
    return {"runtime_type": "oci"}


def _section(section: dict[str, Any], request: Request, handler: dict[str, Any]) -> dict[str, Any]:
    runtimes = {name: dict(handler) for name in request.names}
    if request.has_kata and _KATA not in section.get("runtimes", {}):
        runtimes[_KATA] = _kata(request.kata_folder)
    if request.gvisor and gvisor.NAME not in section.get("runtimes", {}):
        runtimes[gvisor.NAME] = gvisor.crio(request)
    ours: dict[str, Any] = {"default_runtime": request.name} if request.is_default else {}
    folders = tree.texts(section, "cdi_spec_dirs", CDI_FOLDERS, where="crio.runtime")
    if request.enables_cdi and not set(CDI_FOLDERS) <= set(folders):
        ours["cdi_spec_dirs"] = [*folders, *(folder for folder in CDI_FOLDERS if folder not in folders)]
    return {**ours, "runtimes": runtimes}


def _kata(folder: str) -> dict[str, Any]:
    return {
        "runtime_path": f"{folder}/bin/containerd-shim-kata-v2",
        "runtime_type": "vm",
        "runtime_root": "/run/vc",
        "runtime_config_path": f"{folder}/share/defaults/kata-containers/configuration-qemu-nvidia-gpu.toml",
        "privileged_without_host_devices": True,
    }
