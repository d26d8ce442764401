"""Configures containerd: a drop-in and, where no file imports it yet, one item in the main file's `imports`.

How containerd puts files together decides what the drop-in must hold. Main file and imports are read breadth first.
From 2.0 on plugin sections are merged key by key, so ours holds our keys alone. 1.x takes the *last* section of a
plugin whole: a drop-in with one handler would drop the node's CNI folders, sandbox image and cgroup driver. For it
ours begins as a copy of the section in force, and says so. Files of version 1 and 2 may be read by either.

Handlers inherit everything from the runtime in force (`SystemdCgroup`, snapshotter, annotations, …); only the program
is ours, and the one it replaces is what the shim becomes.
Source: containerd 1.6, 1.7 and 2.2, LoadConfig and mergeConfig; docs/cri/config.md.
"""

from __future__ import annotations

import copy
import fnmatch
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairlead import errors
from fairlead.plan.engineconfig import change, tree
from fairlead.plan.engineconfig.model import CDI_FOLDERS, HEADER, Edit, HostFiles, Item, Location, Proposal, Request
from fairlead.wire.text import toml

_DROP_IN: Final = "zz-fairlead.toml"
"""Sorts behind `99-nvidia.toml`: the last file that is read wins."""
_MOST_STARS: Final = 2
"""Of an import's path; more would look at the whole disk."""
_SECTIONS: Final = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
_RUNC: Final = "io.containerd.runc.v2"
_RUNC_KINDS: Final = ("io.containerd.runc.", "io.containerd.runtime.v1.")
_KATA: Final = "kata-qemu-nvidia-gpu"
_MADE: Final = "# Made by `fairlead runtime configure` to import what it wrote; yours to edit.\n"
_COPIED: Final = """\
# containerd 1.x reads the cri section of this file instead of every other file's: it is theirs, with ours added.
# After a change of theirs run `fairlead runtime configure` again; `fairlead runtime check` tells when that is due.
"""


@dataclass(frozen=True, slots=True)
class _Files:
    """What containerd reads, in its order."""

    place: Location
    documents: tuple[tuple[str, dict[str, Any]], ...]

    @property
    def has_main(self) -> bool:
        return bool(self.documents) and self.documents[0][0] == self.place.config

    @property
    def is_2(self) -> bool:
        """Whether containerd 2 is known to read them."""
        return self.place.version is not None and self.place.version >= (2,)

    @property
    def version(self) -> int:
        """Version of the format: the main file's; without a number it is 1, without a file it is what we write."""
        if not self.has_main:
            return 3 if self.is_2 else 2
        found = self.documents[0][1].get("version", 1)
        if not isinstance(found, int) or isinstance(found, bool) or found not in {0, *_SECTIONS}:
            message = f"{self.place.config}: version {found!r:.200} is not known (known: 1 to {max(_SECTIONS)})"
            raise errors.ProtocolError(message, reason="VersionUnknown", hint="a newer Fairlead may know it")
        return max(int(found), 1)

    @property
    def is_merged(self) -> bool:
        """Whether sections are merged key by key; otherwise the last one counts alone."""
        return self.is_2 or self.version >= 3

    @property
    def section(self) -> dict[str, Any]:
        """The CRI plugin's section in force."""
        name, found = _SECTIONS[self.version], dict[str, Any]()
        for path, document in self.documents:
            plugins = tree.table(document, "plugins", where=path)
            if name in plugins:
                one = tree.table(plugins, name, where=path)
                found = tree.merged(found, one) if self.is_merged else one
        return found

    @property
    def imports(self) -> list[str]:
        return [pattern for path, document in self.documents for pattern in _imports(document, path)]


def _load(place: Location, host: HostFiles) -> _Files:
    seen: set[str] = set()
    pending, found = [place.config], []
    while pending:
        path = pending.pop(0)
        data = None if path in seen else host.read(path)
        if data is None:
            continue
        seen.add(path)
        document = toml.parse(data, path=path)
        found.append((path, document))
        for pattern in _imports(document, path):
            pending += host.glob(pattern) if "*" in pattern else [pattern]
    return _Files(place, tuple(found))


def _imports(document: Mapping[str, Any], path: str) -> list[str]:
    found = tree.texts(document, "imports", where=path)
    paths = [posixpath.normpath(posixpath.join(posixpath.dirname(path), item)) for item in found]
    for one in paths:
        if sum("*" in part for part in one.split("/")) > _MOST_STARS:
            message = f"{path}: imports {one!r:.200} has * in more than {_MOST_STARS} places of the path"
            raise errors.ProtocolError(message, reason="FileMalformed", hint="name the folder")
    return paths


def propose(place: Location, request: Request, host: HostFiles) -> Proposal:
    """Decide the drop-in and the import.

    Raises:  ProtocolError: a file cannot be read, or says what cannot be meant.   Unavailable: it would ignore CDI.
             Conflict: the handler's name is taken, or a file that is read later would undo ours.
    """
    files = _load(place, host)
    section = files.section
    runtimes = tree.table(section, "containerd", "runtimes", where=place.config)
    tree.refuse_taken(runtimes, request, place.config)
    notes = [*tree.judge_release("containerd", place, request), *tree.taken_over(runtimes, request)]
    source = _source(section, runtimes)
    program, underlying = tree.program("containerd", _binary(source, place.config), request)
    ours = {} if files.is_merged else copy.deepcopy(section)
    _fill(ours, section, request, handler=_handler(source, program, request))
    if not files.is_merged:
        ours["containerd"]["runtimes"].setdefault("runc", {"runtime_type": _RUNC})
    drop_in = place.drop_in or _place_drop_in(files)
    is_copy = not files.is_merged and bool(section)
    edits = (_drop_in(drop_in, files.version, ours, is_copy=is_copy), *_import(files, host, drop_in))
    _refuse_undone(files, host, edits, ours)
    off = {item for path, one in files.documents for item in tree.texts(one, "disabled_plugins", where=path)}
    if off & {"cri", _SECTIONS[2]}:
        notes.append(f"disabled_plugins of {place.config} has the CRI plugin: no kubelet can use this containerd")
    return Proposal(program=program, runtimes=underlying, edits=edits, notes=tuple(notes))


def _source(section: Mapping[str, Any], runtimes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the runtime that handlers inherit from: the default one if it is of runc's kind; none: nothing."""
    default = tree.text(
        tree.table(section, "containerd", where="containerd"), "default_runtime_name", "runc", where="containerd"
    )
    for name in (default, "runc", "crun"):
        found = tree.table(runtimes, name, where="containerd.runtimes")
        if found and str(found.get("runtime_type", _RUNC)).startswith(_RUNC_KINDS):
            return found
    return {}


def _binary(source: Mapping[str, Any], where: str) -> str:
    return tree.text(tree.table(source, "options", where=where), "BinaryName", where=where)


def _handler(source: Mapping[str, Any], program: str, request: Request) -> dict[str, Any]:
    handler = copy.deepcopy(dict(source))
    kind = str(handler.setdefault("runtime_type", _RUNC))
    # containerd's v1 shim calls the option `Runtime`, the runc shims after it `BinaryName`.
    key = "Runtime" if kind.startswith(_RUNC_KINDS[1]) else "BinaryName"
    handler["options"] = {**handler.pop("options", {}), key: program}
    if "pod_annotations" in handler:
        # A pod's author writes them, and the shim takes what asks for a device for the kubelet's word.
        allowed = tree.texts(handler, "pod_annotations", where="containerd.runtimes")
        handler["pod_annotations"] = [item for item in allowed if not _asks_for_devices(item)]
    if not request.enables_cdi:
        # What the kubelet asks for reaches the shim; what a pod's author writes (`pod_annotations`) does not.
        wanted = tree.texts(handler, "container_annotations", where="containerd.runtimes")
        handler["container_annotations"] = [*wanted, *({"cdi.k8s.io/*"} - set(wanted))]
    return handler


def _asks_for_devices(pattern: str) -> bool:
    """Whether a pattern lets annotations of CDI through; its `*` never reaches over a slash."""
    domain, slash, _ = pattern.partition("/")
    return bool(slash) and fnmatch.fnmatchcase("cdi.k8s.io", domain)


def _fill(ours: dict[str, Any], section: Mapping[str, Any], request: Request, *, handler: dict[str, Any]) -> None:
    if request.enables_cdi:
        folders = tree.texts(section, "cdi_spec_dirs", CDI_FOLDERS, where="containerd")
        ours["enable_cdi"] = True
        ours["cdi_spec_dirs"] = [*folders, *(folder for folder in CDI_FOLDERS if folder not in folders)]
    containerd = ours.setdefault("containerd", {})
    if request.is_default:
        containerd["default_runtime_name"] = request.name
    runtimes = containerd.setdefault("runtimes", {})
    for name in request.names:
        runtimes[name] = copy.deepcopy(handler)
    if request.has_kata and _KATA not in tree.table(section, "containerd", "runtimes", where="containerd"):
        runtimes[_KATA] = _kata(request.kata_folder)


def _kata(folder: str) -> dict[str, Any]:
    """Return the handler for GPUs in virtual machines, named as Kata's own installer names it.

    No annotations are let through: a tenant's annotations could change the machine (Kata `enable_annotations`).
    """
    return {
        "runtime_type": f"io.containerd.{_KATA}.v2",
        "runtime_path": f"{folder}/bin/containerd-shim-kata-v2",
        "privileged_without_host_devices": True,
        "options": {"ConfigPath": f"{folder}/share/defaults/kata-containers/configuration-qemu-nvidia-gpu.toml"},
    }


def _place_drop_in(files: _Files) -> str:
    """Return where our file goes: the last folder that is imported already, else `conf.d` beside the main file."""
    for pattern in reversed(files.imports):
        folder, name = posixpath.split(pattern)
        if name == "*.toml" and "*" not in folder:
            return f"{folder}/{_DROP_IN}"
    return posixpath.join(posixpath.dirname(files.place.config), "conf.d", _DROP_IN)


def _drop_in(path: str, version: int, section: dict[str, Any], *, is_copy: bool) -> Edit:
    head = f"{HEADER}; `fairlead runtime unconfigure` takes it away.\n{_COPIED if is_copy else ''}\n"
    body = toml.emit({"version": version, "plugins": {_SECTIONS[version]: section}})
    return Edit(path=path, before=None, after=head.encode() + body)


def _import(files: _Files, host: HostFiles, drop_in: str) -> tuple[Edit, ...]:
    """Return the edit of the main file, if it needs one."""
    config = files.place.config
    # A pattern, because a path without a file keeps containerd from starting.
    pattern = f"{drop_in.removesuffix('.toml')}*.toml"
    item = Item(key="imports", value=pattern)
    before = host.read(config)
    if before is None:
        body = toml.emit({"version": files.version, "imports": [pattern]})
        return (Edit(path=config, before=None, after=_MADE.encode() + body, changes=(item,)),)
    if any(tree.matches(drop_in, item) for item in files.imports):
        return ()
    made = change.edit(config, before, [item])
    return (made,) if made else ()


@dataclass(frozen=True, slots=True)
class _Edited:
    """The host with our edits made."""

    host: HostFiles
    edits: tuple[Edit, ...]

    def read(self, path: str) -> bytes | None:
        return next((edit.after for edit in self.edits if edit.path == path), None) or self.host.read(path)

    def glob(self, pattern: str) -> Sequence[str]:
        ours = {edit.path for edit in self.edits if tree.matches(edit.path, pattern)}
        return sorted({*self.host.glob(pattern), *ours})


def _refuse_undone(files: _Files, host: HostFiles, edits: tuple[Edit, ...], ours: Mapping[str, Any]) -> None:
    """Refuse when a file that is read after ours takes back what ours says.

    Raises: Conflict (`DropInUndone`).
    """
    name, drop_in = _SECTIONS[files.version], edits[0].path
    after = _load(files.place, _Edited(host, edits)).documents
    paths = [path for path, _ in after]
    if drop_in not in paths:
        message = f"{drop_in} would not be read: no pattern of imports finds that name"
        raise errors.Invalid(message, reason="DropInUnread", hint="let it end in .toml, without *, ? and brackets")
    for path, document in after[paths.index(drop_in) + 1 :]:
        if name not in tree.table(document, "plugins", where=path):
            continue
        what = "containerd 1.x takes its cri section instead of ours"
        if files.is_merged:
            key = tree.find_overruled(ours, tree.table(document, "plugins", name, where=path))
            what = f"says otherwise about {key}" if key else ""
        if what:
            tree.refuse_undone(path, drop_in, what)
