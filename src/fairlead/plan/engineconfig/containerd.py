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
from typing import Any, Final, NoReturn

from fairlead import errors
from fairlead.plan.engineconfig import change, containerdset, gvisor, tree
from fairlead.plan.engineconfig.model import CDI_FOLDERS, HEADER, Edit, HostFiles, Item, Location, Proposal, Request
from fairlead.wire.text import toml

_DROP_IN: Final = "zz-fairlead.toml"
"""Sorts behind `99-nvidia.toml`: the last file that is read wins."""
_SECTIONS: Final = containerdset.SECTIONS
_RELEASES: Final = ((1, 7), (2, 2), (2, 3))
"""The three ways of reading, for a containerd whose release is not known."""
_EACH_MIGRATED: Final = (2, 3)
_INHERITED: Final = frozenset({"containerd", "enable_cdi", "cdi_spec_dirs"})
"""Keys of a CRI section that our handler is made from."""
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
    """What containerd reads, in its order, and what it makes of it."""

    place: Location
    documents: tuple[containerdset.Document, ...]

    @property
    def has_main(self) -> bool:
        return bool(self.documents) and self.documents[0][0] == self.place.config

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(containerdset.version_of(path, document) for path, document in self.documents)

    @property
    def releases(self) -> tuple[containerdset.Release, ...]:
        """The release that reads them; where it is not known, one for each way of reading that these files allow."""
        if self.place.version is not None:
            return (self.place.version,)
        return _RELEASES[1:] if max(self.versions, default=0) > 2 else _RELEASES

    @property
    def is_merged(self) -> bool:
        """Whether sections are merged key by key; otherwise the last one counts alone."""
        return self.releases[0] >= (2,)

    @property
    def before(self) -> containerdset.InForce:
        return containerdset.in_force(self.documents, self.releases[0])

    @property
    def imports(self) -> list[str]:
        return [pattern for path, document in self.documents for pattern in containerdset.imports(document, path)]


@dataclass(frozen=True, slots=True)
class _Form:
    """How our drop-in may be written."""

    version: int
    name: str
    is_copy: bool = False


def _forms(files: _Files) -> list[_Form]:
    """Return the ways to write our file, the one that changes least first."""
    if not files.has_main:
        versions = [3 if files.place.version and files.is_merged else 2]
    elif files.place.version is None and not files.is_merged and not files.versions[0]:
        versions = [2, 1]  # 2.x does not read what is of version 1 here, 1.x does not read that of 2 beside its own
    elif files.is_merged and files.releases[0] >= _EACH_MIGRATED:
        versions = [files.versions[0] or 3]
    elif files.is_merged:
        versions = [files.before.version, files.versions[0], 3, 2]
    else:
        versions = [files.before.version]
    versions = [version for version in dict.fromkeys(versions) if version]
    if not files.is_merged:
        return [_Form(version, _SECTIONS[version], is_copy=True) for version in versions]
    # Beside files of both versions, the newer section is read in a file of version 2, too.
    forms = [_Form(version, name) for version in versions for name in dict.fromkeys((_SECTIONS[version], _SECTIONS[3]))]
    return [*forms, *(_Form(version, _SECTIONS[3], is_copy=True) for version in versions)]


def propose(place: Location, request: Request, host: HostFiles) -> Proposal:
    """Decide the drop-in and the import.

    Raises:  ProtocolError: a file cannot be read, or says what cannot be meant.   Unavailable: it would ignore CDI.
             Conflict: the handler's name is taken, or a file that is read later would undo ours.
    """
    files = _Files(place, containerdset.load(place.config, host))
    _refuse_unread(files.before)
    section = files.before.section
    runtimes = tree.table(section, "containerd", "runtimes", where=place.config)
    tree.refuse_taken(runtimes, request, place.config)
    notes = [
        *tree.judge_release("containerd", place, request),
        *tree.taken_over(runtimes, request),
        *gvisor.kept(runtimes, request),
    ]
    notes += _notes_on_ignored(files)
    source = _source(section, runtimes)
    program, underlying = tree.program("containerd", _binary(source, place.config), request)
    ours: dict[str, Any] = {}
    _fill(ours, section, request, handler=_handler(source, program, request))
    edits, documents = _choose(files, host, request, ours)
    off = {item for path, one in files.documents for item in tree.texts(one, "disabled_plugins", where=path)}
    unmet: tuple[str, ...] = ()
    if off & {"cri", *_SECTIONS.values()}:
        unmet = (f"disabled_plugins of {place.config} has the CRI plugin: no kubelet can use this containerd",)
    return Proposal(
        program=program, runtimes=underlying, edits=edits, notes=tuple(notes), unmet=unmet, documents=documents
    )


def _notes_on_ignored(files: _Files) -> list[str]:
    """Return the notes on CRI sections that containerd does not read.

    Raises: Conflict (`SectionIgnored`): one has what our handler would inherit, so that it would not be as the
            node's own runtimes are meant to be.
    """
    found = files.before
    for path, document in files.documents:
        if path not in found.ignored or not files.is_merged:
            continue
        plugins = tree.table(document, "plugins", where=path)
        if any(_INHERITED & tree.table(plugins, _SECTIONS[old], where=path).keys() for old in (1, 2)):
            number = containerdset.version_of(path, document)
            said = f"version {number}" if number else "it names no version"
            message = (
                f"containerd ignores the CRI section of {path} ({said}): the files together are read as "
                f"version {found.version}, so the node's runtimes are not as it says"
            )
            hint = "add `version = 2` where none is, or bring all files to one version (`containerd config migrate`)"
            raise errors.Conflict(message, reason="SectionIgnored", hint=hint)
    return [f"containerd ignores the CRI section of {path}: it is of another version" for path in found.ignored]


def _refuse_unread(found: containerdset.InForce) -> None:
    if found.refused:
        hint = "bring all files to one version (`containerd config migrate`), or take that file away"
        raise errors.Conflict(found.refused, reason="VersionRefused", hint=hint)


def _choose(
    files: _Files, host: HostFiles, request: Request, ours: dict[str, Any]
) -> tuple[tuple[Edit, ...], tuple[containerdset.Document, ...]]:
    """Return the first way to write our file with which containerd does what is meant, and all it did before.

    Raises: Conflict: there is none.   Invalid: no import would find the drop-in.
    """
    drop_in = files.place.drop_in or _place_drop_in(files)
    wanted = tree.merged(_without(files.before.section, request), ours)
    tried = list[tuple[tuple[Edit, ...], tuple[containerdset.Document, ...], int]]()
    for form in _forms(files):
        body = copy.deepcopy(wanted if form.is_copy else ours)
        if not files.is_merged:
            body["containerd"]["runtimes"].setdefault("runc", {"runtime_type": _RUNC})
        made = _drop_in(drop_in, form, body, is_copy=form.is_copy and bool(files.before.section))
        edits = (made, *_import(files, host, drop_in, version=form.version))
        documents = containerdset.load(files.place.config, _Edited(host, edits))
        _refuse_unfound(drop_in, documents)
        after = [containerdset.in_force(documents, release) for release in files.releases]
        fits = [_fits(one, wanted) for one in after]
        # Of releases that are not known the oldest must be served: there sections replace each other whole.
        tried.append((edits, documents, sum(fits) if fits[0] else 0))
    best = max(tried, key=lambda one: one[2])
    if not best[2]:
        _refuse_undone(files, tried[0][1], drop_in, ours)
    if missing := containerdset.find_missing(best[1]):
        message = f"{missing[0]} imports {missing[1]}, which is not there: containerd does not start"
        raise errors.Conflict(message, reason="ImportMissing", hint="make that file, or import it by a pattern with *")
    return best[:2]


def _fits(found: containerdset.InForce, wanted: Mapping[str, Any]) -> bool:
    return not found.refused and containerdset.covers(found.section, wanted)


def _without(section: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Return a section with the handlers that become ours emptied, in their place."""
    rest = copy.deepcopy(dict(section))
    runtimes = tree.table(rest, "containerd", "runtimes", where="containerd")
    if set(request.names) & runtimes.keys():
        rest["containerd"]["runtimes"] = runtimes | {name: {} for name in request.names if name in runtimes}
    return rest


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
    if request.gvisor and gvisor.NAME not in tree.table(section, "containerd", "runtimes", where="containerd"):
        runtimes[gvisor.NAME] = gvisor.containerd(request)


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


def _drop_in(path: str, form: _Form, section: dict[str, Any], *, is_copy: bool) -> Edit:
    head = f"{HEADER}; `fairlead runtime unconfigure` takes it away.\n{_COPIED if is_copy else ''}\n"
    body = toml.emit({"version": form.version, "plugins": {form.name: section}})
    return Edit(path=path, before=None, after=head.encode() + body)


def _import(files: _Files, host: HostFiles, drop_in: str, *, version: int) -> tuple[Edit, ...]:
    """Return the edit of the main file, if it needs one."""
    config = files.place.config
    # A pattern, because a path without a file keeps containerd from starting.
    pattern = f"{drop_in.removesuffix('.toml')}*.toml"
    item = Item(key="imports", value=pattern)
    before = host.read(config)
    if before is None:
        body = toml.emit({"version": version, "imports": [pattern]})
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


def _refuse_unfound(drop_in: str, documents: Sequence[containerdset.Document]) -> None:
    if drop_in not in dict(documents):
        message = f"{drop_in} would not be read: no pattern of imports finds that name"
        raise errors.Invalid(message, reason="DropInUnread", hint="let it end in .toml, without *, ? and brackets")


def _refuse_undone(
    files: _Files, documents: Sequence[containerdset.Document], drop_in: str, ours: Mapping[str, Any]
) -> NoReturn:
    """Refuse, and name the file that takes back what ours says, or what containerd makes of the set.

    Raises: Conflict (`DropInUndone`, `VersionRefused`, `VersionMixed`).
    """
    paths = [path for path, _ in documents]
    for path, document in documents[paths.index(drop_in) + 1 :]:
        plugins = tree.table(document, "plugins", where=path)
        for name in dict.fromkeys(_SECTIONS.values()):
            what = "containerd 1.x takes its cri section instead of ours" if name in plugins else ""
            if files.is_merged:
                key = tree.find_overruled(ours, tree.table(plugins, name, where=path))
                what = f"says otherwise about {key}" if key else ""
            if what:
                tree.refuse_undone(path, drop_in, what)
    _refuse_unread(containerdset.in_force(documents, files.releases[0]))
    others = ((path, containerdset.version_of(path, one)) for path, one in documents if path != drop_in)
    versions = ", ".join(f"{path} (version {version or 'not named'})" for path, version in others)
    message = f"no drop-in of ours counts beside {versions}"
    hint = "bring all files to one version (`containerd config migrate`)"
    raise errors.Conflict(message, reason="VersionMixed", hint=hint)
