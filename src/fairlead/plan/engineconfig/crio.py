"""CRI-O: a drop-in of our own, which is merged key by key; nobody else's file is touched.

Source: crio.conf(5), crio.conf.d(5); CDI is always on from 1.23.
"""

from __future__ import annotations

import posixpath
from typing import Any, Final

from fairlead.plan.engineconfig import tree
from fairlead.plan.engineconfig.model import CDI_FOLDERS, HEADER, Edit, Look, Place, Proposal, Wish
from fairlead.wire import toml

_DROP_IN: Final = "zz-fairlead.conf"
_KATA: Final = "kata-qemu-nvidia-gpu"


def propose(place: Place, wish: Wish, look: Look) -> Proposal:
    """Decide the drop-in.

    Raises:  ProtocolError: a file cannot be read.   Conflict: the handler's name is taken.
             Unavailable: this CRI-O ignores CDI.
    """
    drop_in = place.drop_in or posixpath.join(f"{place.config}.d", _DROP_IN)
    section: dict[str, Any] = {}
    for path in (place.config, *look.glob(posixpath.join(posixpath.dirname(drop_in), "*"))):
        data = look.read(path)
        if data is not None:
            section = tree.merged(section, tree.table(toml.parse(data, path=path), "crio", "runtime", where=path))
    runtimes = tree.table(section, "runtimes", where=place.config)
    tree.refuse_taken(runtimes, wish, place.config)
    notes = (*tree.judge_release("crio", place, wish), *tree.taken_over(runtimes, wish))
    source = _source(section, runtimes)
    program, underlying = tree.program("crio", str(source.get("runtime_path", "")), wish)
    body = toml.emit({"crio": {"runtime": _section(section, wish, {**source, "runtime_path": program})}})
    head = f"{HEADER}; `fairlead runtime unconfigure` takes it away.\n\n"
    made = Edit(path=drop_in, before=None, after=head.encode() + body)
    return Proposal(program=program, runtimes=underlying, edits=(made,), notes=notes)


def _source(section: dict[str, Any], runtimes: dict[str, Any]) -> dict[str, Any]:
    """Return the runtime that handlers inherit from; what has no path is found by its name, as CRI-O does."""
    for name in (str(section.get("default_runtime", "")), "runc", "crun"):
        found = tree.table(runtimes, name, where="crio.runtime.runtimes")
        if found and found.get("runtime_type", "oci") in {"", "oci"}:
            return {"runtime_path": name, "runtime_type": "oci", **{k: v for k, v in found.items() if v != ""}}
    return {"runtime_type": "oci"}


def _section(section: dict[str, Any], wish: Wish, handler: dict[str, Any]) -> dict[str, Any]:
    runtimes = {name: dict(handler) for name in wish.names}
    if wish.has_kata and _KATA not in section.get("runtimes", {}):
        runtimes[_KATA] = _kata(wish.kata_folder)
    ours: dict[str, Any] = {"default_runtime": wish.name} if wish.is_default else {}
    folders = section.get("cdi_spec_dirs", CDI_FOLDERS)
    if wish.enables_cdi and not set(CDI_FOLDERS) <= set(folders):
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
